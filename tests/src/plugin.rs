//! A host whose Pods wait for their companions: a part of a kubelet (`tests/kubelet`), the plugin (`outrigger host`) on its real
//! socket, and what the tenant's cluster needs for claims.

use std::collections::HashMap;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::ResourceExt;
use kube::api::Api;
use outrigger_core::keys;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, Command};
use tokio::sync::oneshot;

use crate::control_plane::tool;
use crate::outrigger::{Outrigger, ports};
use crate::shipped::{kustomize, of_kind, with};
use crate::tenant::Tenant;
use crate::{InWords, create, eventually, gate, holds, is_true, until};

/// What is shipped for it.
const SHIPPED: &str = "deploy/base/host";

/// Devices of a Node: as many Pods can wait on it.
const DEVICES: usize = 16;

/// A host of a tenant, with a kubelet and a plugin.
pub struct Host {
    /// The kubelet.
    pub kubelet: Kubelet,
    /// Name of the plugin's process.
    pub process: String,
    /// Its admin port.
    pub admin: u16,
    /// The directory of sockets.
    pub registry: PathBuf,
    _dir: TempDir,
}

/// Applies what Pods of a tenant need to wait on the Nodes of its hosts, and starts its agent with the endpoint for hosts and more
/// arguments. Returns the endpoint's port.
pub async fn start_agent(t: &Tenant, hosts: &[&str], more: &[String]) -> u16 {
    let (driver, claim) = (keys::COMPANIONS_DRIVER, keys::COMPANIONS_CLAIM);
    let request = json!({"name": "r", "exactly": {"deviceClassName": driver}});
    // What is shipped for the plugin and the agent, apart from what needs nodes that run containers.
    let mut objects = kustomize(SHIPPED).unwrap();
    objects.retain(|object| object["kind"] != "DaemonSet" && object["kind"] != "Service");
    // Without hosts nothing is claimed. Where an agent publishes devices of its own, nobody else may create a template.
    if !hosts.is_empty() {
        let devices = kustomize("deploy/base/companions-first").unwrap();
        objects.extend(of_kind(&devices, "DeviceClass").cloned());
        objects.push(json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate",
            "metadata": {"name": claim, "namespace": t.source},
            "spec": {"spec": {"devices": {"requests": [request]}}}}));
    }
    for host in hosts {
        let node = t.node(host);
        let devices: Vec<Value> = (0..DEVICES).map(|n| json!({"name": format!("d{n}")})).collect();
        // A kubelet deletes slices that name its Node when the driver isn't registered.
        let of = json!({"nodeSelectorTerms": [{"matchFields":
            [{"key": "metadata.name", "operator": "In", "values": [node]}]}]});
        objects.push(json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice",
            "metadata": {"name": format!("{node}-companions")},
            "spec": {"driver": driver, "nodeSelector": of, "devices": devices,
                "pool": {"name": node, "generation": 1, "resourceSliceCount": 1}}}));
    }
    t.outrigger.plane.tenant.apply(&objects).unwrap();
    let [port] = ports().unwrap();
    let pair = t.outrigger.authority.issue(&format!("hosts-{}", t.id), &["127.0.0.1"]).unwrap();
    let own = [&[format!("--host-address=127.0.0.1:{port}")][..], &pair.serving_flags()].concat();
    t.start_agent(&[&own, more].concat());
    port
}

/// Applies what is shipped for Pods that wait on the Nodes of hosts, and starts the tenant's agent as shipped: its webhook adds the claim,
/// and it publishes devices of all Nodes of the cluster. Returns the port of its endpoint for hosts.
pub fn start_publishing_agent(t: &Tenant) -> u16 {
    let mut objects = kustomize(SHIPPED).unwrap();
    objects.retain(|object| object["kind"] != "DaemonSet" && object["kind"] != "Service");
    objects.extend(kustomize("deploy/base/companions-first").unwrap());
    t.outrigger.plane.tenant.apply(&objects).unwrap();
    let [port] = ports().unwrap();
    let more = ["--companions-first".to_owned(), format!("--host-address=127.0.0.1:{port}")];
    gate::start_agent(t, &[&t.source], &more);
    port
}

/// Sets how many Pods a host can run, once kwok has said what it can.
pub async fn can_run(t: &Tenant, host: &str, pods: &str) {
    let nodes: Api<Node> = Api::all(t.cluster.clone());
    let (name, patch) =
        (t.node(host), json!({"status": {"allocatable": {"pods": pods}, "capacity": {"pods": pods}}}));
    eventually("the Node can run so many Pods", || async {
        let object = format!("node/{name}");
        t.outrigger.plane.tenant.patch(&object, &["--subresource=status"], &patch).in_words()?;
        let node = nodes.get(&name).await.in_words()?;
        let ready = is_true(&node, "Ready");
        let found = node.status.and_then(|status| status.allocatable?.get("pods").cloned());
        holds(ready && found.as_ref().is_some_and(|found| found.0 == pods), format!("{ready} {found:?}"))
    })
    .await;
}

/// A token of a service account for this audience, of a Pod on a host of the tenant, as kubelets project them into Pods.
pub async fn token(t: &Tenant, account: &str, audience: &str, host: &str) -> String {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let name = format!("{account}-{}-{host}-{}", t.id, COUNT.fetch_add(1, Ordering::Relaxed));
    let pods: Api<Pod> = Api::namespaced(t.cluster.clone(), keys::HOST_NAMESPACE);
    // It only has to be there: the plugin itself is a process of the test.
    let restricted = json!({"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}});
    let pod = json!({"metadata": {"name": name}, "spec": {"nodeName": t.node(host), "serviceAccountName": account,
        "securityContext": {"runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [{"name": "c", "image": "i", "securityContext": restricted}]}});
    let pod = create(&pods, &pod).await.unwrap();
    let uid = pod.uid().unwrap();
    let audience = format!("--audience={audience}");
    let of = ["--bound-object-kind=Pod", "--bound-object-name", &name, "--bound-object-uid", &uid];
    let token =
        t.outrigger.plane.tenant.kubectl(
            &[&["create", "token", account, "-n", keys::HOST_NAMESPACE, &audience][..], &of].concat(),
        );
    token.unwrap().trim().to_owned()
}

impl Host {
    /// Starts kubelet and plugin of a host, and waits until the plugin is registered. `agent` is the port of the agent's endpoint.
    pub async fn start(t: &Tenant, host: &str, agent: u16) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (registry, state) = (dir.path().join("plugins_registry"), dir.path().join("state"));
        for path in [&registry, &state] {
            std::fs::create_dir(path).unwrap();
        }
        let file = dir.path().join("token");
        std::fs::write(&file, token(t, keys::HOST_PLUGIN, keys::AGENT_AUDIENCE, host).await).unwrap();
        let [admin] = ports().unwrap();
        let this = Self {
            kubelet: Kubelet::start(t, host, &registry, &state),
            process: format!("host-{}-{host}", t.id),
            admin,
            registry,
            _dir: dir,
        };
        let forced = [
            format!("--agent-address=https://127.0.0.1:{agent}"),
            "--server-name=127.0.0.1".to_owned(),
            format!("--ca-file={}", t.outrigger.authority.file().display()),
            format!("--token-file={}", file.display()),
            format!("--plugins-registry={}", this.registry.display()),
            format!("--admin-address=127.0.0.1:{admin}"),
            "--log-format=text".to_owned(),
            "--shutdown-delay=0s".to_owned(),
        ];
        let shipped = kustomize(SHIPPED).unwrap();
        let set = of_kind(&shipped, "DaemonSet").next().unwrap();
        let args = set["spec"]["template"]["spec"]["containers"][0]["args"].as_array().unwrap();
        let args: Vec<String> = args.iter().map(|arg| arg.as_str().unwrap().to_owned()).collect();
        let args = with(&args, &forced);
        t.outrigger.run(&this.process, &args).unwrap();
        this.registered(t).await;
        this
    }

    /// Waits until the plugin is ready and the kubelet knows it.
    pub async fn registered(&self, t: &Tenant) {
        t.outrigger.ready_at(&self.process, self.admin).await;
        eventually("the plugin is registered", || self.kubelet.registered()).await;
    }

    /// The value of a metric of the plugin.
    pub async fn metric(&self, family: &str, suffix: &str) -> Result<f64, String> {
        Outrigger::metric(self.admin, family, suffix).await
    }
}

/// A Pod with the claim, which the scheduler puts on a host. Waits until the claim has a device.
pub async fn held_pod(t: &Tenant, name: &str, app: &str, host: &str) -> Pod {
    let claim = keys::COMPANIONS_CLAIM;
    let node = json!({"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchFields":
        [{"key": "metadata.name", "operator": "In", "values": [t.node(host)]}]}]}});
    let pod = json!({"metadata": {"name": name, "labels": {"app": app}},
        "spec": {"affinity": {"nodeAffinity": node},
            "resourceClaims": [{"name": claim, "resourceClaimTemplateName": claim}],
            "containers": [{"name": "c", "image": "i"}]}});
    create(&t.work(), &pod).await.unwrap();
    until("the Pod is bound", &t.work(), name, |pod| {
        let named = pod.status.iter().any(|status| {
            status.resource_claim_statuses.iter().flatten().any(|claim| claim.resource_claim_name.is_some())
        });
        let bound = pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_some());
        if named && bound { Ok(pod) } else { Err(format!("{:?}", pod.status)) }
    })
    .await
}

/// Name and uid of the claim of a Pod.
pub async fn claim_of(t: &Tenant, pod: &Pod) -> (String, String) {
    let statuses = pod.status.as_ref().and_then(|status| status.resource_claim_statuses.as_ref());
    let name = statuses.unwrap()[0].resource_claim_name.clone().unwrap();
    let claim = crate::devices::claims(&t.cluster, &t.source).get(&name).await.unwrap();
    (name, claim.uid().unwrap())
}

/// The part of a kubelet. It ends with this.
pub struct Kubelet {
    namespace: String,
    input: tokio::sync::Mutex<ChildStdin>,
    waiting: Arc<Mutex<HashMap<usize, oneshot::Sender<String>>>>,
    count: AtomicUsize,
    _child: Child,
}

impl Kubelet {
    fn start(t: &Tenant, host: &str, registry: &std::path::Path, state: &std::path::Path) -> Self {
        let mut child = Command::new(tool("kubelet").unwrap())
            .arg(format!("--kubeconfig={}", t.outrigger.plane.tenant.kubeconfig.display()))
            .arg(format!("--node={}", t.node(host)))
            .arg(format!("--registry={}", registry.display()))
            .arg(format!("--state={}", state.display()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let (input, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let waiting: Arc<Mutex<HashMap<usize, oneshot::Sender<String>>>> = Arc::default();
        let answers = waiting.clone();
        tokio::spawn(async move {
            let mut lines = BufReader::new(output).lines();
            while let Ok(Some(line)) = lines.next_line().await {
                let Ok(answer) = serde_json::from_str::<Value>(&line) else { continue };
                let id = answer["id"].as_u64().and_then(|id| usize::try_from(id).ok());
                if let Some(sender) = id.and_then(|id| answers.lock().remove(&id)) {
                    let _ = sender.send(answer["error"].as_str().unwrap_or("no error").to_owned());
                }
            }
        });
        let input = tokio::sync::Mutex::new(input);
        Self { namespace: t.source.clone(), input, waiting, count: AtomicUsize::new(1), _child: child }
    }

    async fn ask(&self, mut request: Value) -> (usize, oneshot::Receiver<String>) {
        let id = self.count.fetch_add(1, Ordering::Relaxed);
        let (sender, answer) = oneshot::channel();
        self.waiting.lock().insert(id, sender);
        request["id"] = json!(id);
        self.input.lock().await.write_all(format!("{request}\n").as_bytes()).await.unwrap();
        (id, answer)
    }

    async fn done(answer: oneshot::Receiver<String>) -> Result<(), String> {
        match answer.await.in_words()?.as_str() {
            "" => Ok(()),
            error => Err(error.to_owned()),
        }
    }

    /// Whether the plugin is registered.
    pub async fn registered(&self) -> Result<(), String> {
        Self::done(self.ask(json!({"do": "registered", "driver": keys::COMPANIONS_DRIVER})).await.1).await
    }

    /// Starts from now on every Pod that is bound to the Node, and writes the condition `example.com/started` at it: see
    /// `tests/kubelet/run.go`.
    pub async fn run(&self) -> Result<(), String> {
        Self::done(self.ask(json!({"do": "run"})).await.1).await
    }

    /// Starts to prepare the claims of a Pod: number and answer. When it has succeeded, a kubelet starts the Pod's containers.
    pub async fn preparing(&self, pod: &str) -> (usize, impl Future<Output = Result<(), String>> + use<>) {
        let (id, answer) = self.ask(json!({"do": "prepare", "namespace": self.namespace, "pod": pod})).await;
        (id, Self::done(answer))
    }

    /// Prepares the claims of a Pod, once.
    pub async fn prepare(&self, pod: &str) -> Result<(), String> {
        self.preparing(pod).await.1.await
    }

    /// Gives up, as for a Pod that is deleted.
    pub async fn cancel(&self, of: usize) {
        Self::done(self.ask(json!({"do": "cancel", "of": of})).await.1).await.unwrap();
    }

    /// Undoes it after the Pod has ended.
    pub async fn unprepare(&self, pod: &str) -> Result<(), String> {
        Self::done(self.ask(json!({"do": "unprepare", "namespace": self.namespace, "pod": pod})).await.1)
            .await
    }
}

/// Waits until the agent holds so many questions of hosts, on this admin port.
pub async fn holds_questions(admin: u16, count: usize) {
    eventually(&format!("{count} questions are held"), || async {
        let held = Outrigger::metric(admin, "outrigger_agent_prepares_held", "").await?;
        #[allow(clippy::cast_precision_loss)] // Counts are small.
        holds((held - count as f64).abs() < 0.5, held.to_string())
    })
    .await;
}
