//! What a kubelet does with a Secret: its files in a directory, swapped as a whole. And what it does with its Pods after its Node
//! was not ready, which the stand-in for kubelets does not do.

use std::collections::HashSet;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, Pod, PodSpec, Secret};
use kube::ResourceExt;
use kube::api::{Api, ListParams, Patch, PatchParams};
use serde_json::json;

use crate::{condition_of, is_true};

/// A Secret that is mounted.
#[derive(Debug)]
pub struct Mount {
    dir: PathBuf,
    generation: AtomicU32,
}

impl Mount {
    /// A directory for a Secret; nothing is in it yet.
    pub fn new(dir: PathBuf) -> Self {
        std::fs::create_dir_all(&dir).expect("a directory");
        Self { dir, generation: AtomicU32::new(0) }
    }

    /// A file of the Secret.
    pub fn path(&self, file: &str) -> PathBuf {
        self.dir.join(file)
    }

    /// A new directory with the files, then a swap of the `..data` link to it. The files' own paths are links that never
    /// change.
    pub fn publish<'a>(&self, files: impl IntoIterator<Item = (&'a str, &'a [u8])>) {
        let name = format!("..{}", self.generation.fetch_add(1, Ordering::Relaxed));
        std::fs::create_dir(self.path(&name)).expect("a directory");
        for (file, content) in files {
            std::fs::write(self.path(&name).join(file), content).expect("a file");
            let _ = symlink(Path::new("..data").join(file), self.path(file));
        }
        symlink(&name, self.path("..data_tmp")).expect("a link");
        std::fs::rename(self.path("..data_tmp"), self.path("..data")).expect("a swap");
    }

    /// Publishes the Secret whenever it has changed, for ever.
    pub async fn follow(&self, secrets: &Api<Secret>, name: &str) {
        let mut last = None;
        loop {
            if let Ok(secret) = secrets.get(name).await
                && last != secret.data
            {
                last = secret.data;
                let files = last.iter().flatten().map(|(file, data)| (file.as_str(), data.0.as_slice()));
                self.publish(files);
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}

/// Says for ever that Pods are ready whose containers are, once their Node is ready again.
///
/// The node lifecycle controller sets the Ready condition of all Pods of a Node to false when nothing has been received from that Node for 50 s. A
/// kubelet sets it to what it knows as soon as it reaches the API server; kwok writes a Pod's status only when its phase changes.
pub async fn reassert_ready(client: kube::Client) {
    let (nodes, pods): (Api<Node>, Api<Pod>) = (Api::all(client.clone()), Api::all(client.clone()));
    loop {
        tokio::time::sleep(Duration::from_millis(500)).await;
        let all = ListParams::default();
        // While the API server is away, so is a kubelet.
        let (Ok(nodes), Ok(found)) = (nodes.list(&all).await, pods.list(&all).await) else { continue };
        let ready = nodes.items.iter().filter(|node| is_true(node, "Ready"));
        let ready: HashSet<String> = ready.map(ResourceExt::name_any).collect();
        for pod in found.items {
            let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_ref());
            if node.is_some_and(|node| ready.contains(node)) && is_marked(&pod) {
                let pods: Api<Pod> = Api::namespaced(client.clone(), &pod.namespace().unwrap_or_default());
                let ready = json!({"metadata": {"uid": pod.uid()},
                    "status": {"conditions": [{"type": "Ready", "status": "True"}]}});
                let patch = Patch::Strategic(&ready);
                // A Pod that was deleted meanwhile no longer belongs to its Node; everything else is retried.
                let _ = pods.patch_status(&pod.name_any(), &PatchParams::default(), &patch).await;
            }
        }
    }
}

/// Whether somebody has marked a Pod as not ready, all of whose containers and gates are.
fn is_marked(pod: &Pod) -> bool {
    let Some(status) = &pod.status else { return false };
    let is = |kind: &str, value: &str| condition_of(pod, kind)["status"] == value;
    status.phase.as_deref() == Some("Running")
        && pod.metadata.deletion_timestamp.is_none()
        && is("ContainersReady", "True")
        && is("Ready", "False")
        && gates(&pod.spec).all(|gate| is(gate, "True"))
}

/// The conditions that have to be true before a Pod is ready.
fn gates(spec: &Option<PodSpec>) -> impl Iterator<Item = &str> {
    let gates = spec.iter().flat_map(|spec| spec.readiness_gates.iter().flatten());
    gates.map(|gate| gate.condition_type.as_str())
}
