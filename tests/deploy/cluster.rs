//! The manifests on a real API server.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{Api, ListParams};
use outrigger_core::keys;
use outrigger_runtime::tls::ServerTls;
use outrigger_tests::control_plane::{self, Cluster, ControlPlane, tool};
use outrigger_tests::outrigger::SYSTEM;
use outrigger_tests::page::{Action, Page};
use outrigger_tests::pki::Authority;
use outrigger_tests::shipped::{chart_in, kustomize, name, of_kind, operators_definitions, output};
use outrigger_tests::tenant::{is_ready, node_of};
use outrigger_tests::{InWords, eventually, holds, root};
use serde_json::{Value, json};

use crate::deploy::{overlay, with_component};

/// The commands of a page's block that have this in them, whether or not the page is run with them.
pub(crate) fn block(page: &str, with: &str) -> String {
    let read = Page::read(&format!("docs/{page}")).unwrap();
    let run = read.steps.iter().filter_map(|step| match &step.action {
        Action::Run(script) => Some(script),
        _ => None,
    });
    let mut all = run.chain(read.not_run.iter().map(|block| &block.script));
    all.find(|script| script.contains(with)).unwrap_or_else(|| panic!("{page} has no {with}")).to_owned()
}

/// Runs commands as an administrator does, in a directory.
pub(crate) fn shell(dir: &Path, kubeconfig: &Path, script: &str) {
    let kubectl = dir.join("kubectl");
    if !kubectl.exists() {
        std::os::unix::fs::symlink(control_plane::kubectl().unwrap(), kubectl).unwrap();
    }
    // A program that hangs is killed, and so reported.
    let mut command = Command::new("timeout");
    command.args(["300", "bash", "-xeuo", "pipefail", "-c", script]).current_dir(dir);
    command.env("KUBECONFIG", kubeconfig);
    command.env("PATH", format!("{}:{}", dir.display(), std::env::var("PATH").unwrap()));
    output(command).unwrap();
}

/// Makes certificates as docs/installation.md does by hand: by its own commands, in both clusters.
fn certificates(plane: &ControlPlane) {
    let dir = plane.dir.join("by-hand");
    std::fs::create_dir(&dir).unwrap();
    let script = format!(
        "export CA_PASSPHRASE=$(openssl rand -hex 16)\n{}\n{}\nexport KUBECONFIG={}\n{}",
        block("installation.md", "issue ca webhook"),
        block("installation.md", "for kind in mutating validating"),
        plane.tenant.kubeconfig.display(),
        block("installation.md", "issue client-ca agent"),
    );
    shell(&dir, &plane.infra.kubeconfig, &script);

    let pki = plane.dir.join("outrigger-pki");
    let mut keys = Vec::new();
    for (cluster, part) in [(&plane.infra, "webhook"), (&plane.infra, "manager"), (&plane.tenant, "agent")] {
        let secret = format!("outrigger-{part}-tls");
        let secret = cluster.get(&["secret", &secret, "-n", SYSTEM]).unwrap();
        let file = |end: &str| {
            let path = dir.join(format!("{part}.{end}"));
            let data = secret["data"][format!("tls.{end}")].as_str().unwrap();
            std::fs::write(&path, STANDARD.decode(data).unwrap()).unwrap();
            path
        };
        ServerTls::load(file("crt"), file("key"), Some(pki.join("client-ca.crt"))).unwrap();
        keys.push(pki.join(format!("{part}.key")));
    }
    assert!(keys.iter().all(|key| !key.exists()), "{keys:?}");
    let ca = STANDARD.encode(std::fs::read(pki.join("ca.crt")).unwrap());
    for kind in ["mutating", "validating"] {
        let of = format!("{kind}webhookconfiguration");
        let found = plane.infra.get(&[&of, "outrigger"]).unwrap();
        for webhook in found["webhooks"].as_array().unwrap() {
            assert_eq!(webhook["clientConfig"]["caBundle"], ca.as_str(), "{}", webhook["name"]);
        }
    }
}

/// Every Secret and ConfigMap that the Pods of these objects wait for is there, with all that they take out of it.
fn nothing_is_missing(cluster: &Cluster, objects: &[Value]) {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let mut count = 0;
    for deployment in of_kind(objects, "Deployment") {
        for volume in list(&deployment["spec"]["template"]["spec"]["volumes"]) {
            let mut sources = list(&volume["projected"]["sources"]);
            sources.push(volume);
            for source in sources {
                for (kind, field) in [("secret", "secretName"), ("secret", "name"), ("configMap", "name")] {
                    let Some(name) = source[kind][field].as_str() else { continue };
                    let found = cluster.get(&[kind, name, "-n", SYSTEM]).unwrap();
                    for item in list(&source[kind]["items"]) {
                        let key = item["key"].as_str().unwrap();
                        assert!(found["data"][key].is_string(), "{kind} {name} has no {key}");
                        count += 1;
                    }
                }
            }
        }
    }
    assert!(count > 0);
}

/// A Node as a kubelet would make it.
pub(crate) fn node(name: &str, labels: Value, taints: Value) -> Value {
    let mut node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels},
        "spec": {"taints": taints}});
    node["metadata"]["labels"]["kubernetes.io/hostname"] = json!(name);
    node
}

/// What the API server has of each object: its version.
fn versions(cluster: &Cluster, objects: &[Value]) -> BTreeMap<String, String> {
    let list = json!({"apiVersion": "v1", "kind": "List", "items": objects});
    let found = cluster.kubectl_with(&["get", "-f", "-", "-o", "json"], &list.to_string()).unwrap();
    let found: Value = serde_json::from_str(&found).unwrap();
    let found = found["items"].as_array().unwrap();
    assert_eq!(found.len(), objects.len());
    found.iter().map(|o| (name(o), o["metadata"]["resourceVersion"].as_str().unwrap().to_owned())).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn all_of_it_is_applied_runs_and_the_second_time_changes_nothing() {
    let plane = ControlPlane::start().unwrap();
    for cluster in [&plane.infra, &plane.tenant] {
        operators_definitions(cluster).unwrap();
    }
    let tainted = json!([{"key": "node-role.kubernetes.io/control-plane", "effect": "NoSchedule"}]);
    let plain = |name: &str| node(name, json!({}), json!([]));
    let dpu = node("dpu", json!({keys::DPU_HOST: "host-a"}), json!([]));
    plane.infra.apply(&[plain("plain"), node("control-plane", json!({}), tainted), dpu]).unwrap();
    plane.tenant.apply(&["host-a", "host-b"].map(plain)).unwrap();

    let with_monitoring =
        |name: &str| [kustomize(&overlay(name)).unwrap(), kustomize("deploy/monitoring").unwrap()].concat();
    for (cluster, name, parts) in [
        (&plane.infra, "infrastructure", &["webhook", "manager"][..]),
        (&plane.tenant, "tenant", &["agent"]),
        (&plane.tenant, "webhook-only", &["webhook"]),
        (&plane.infra, "all-in-one", &["webhook", "manager", "agent"]),
    ] {
        cluster.apply(&with_monitoring(name)).unwrap();
        for part in parts {
            runs(cluster, part).await;
        }
        answers(cluster, parts).await;
    }

    certificates(&plane);
    nothing_is_missing(&plane.infra, &kustomize(&overlay("infrastructure")).unwrap());
    nothing_is_missing(&plane.tenant, &kustomize(&overlay("tenant")).unwrap());

    let scaled = with_component("infrastructure", "autoscaling");
    let scalers: Vec<Value> = of_kind(&scaled, "HorizontalPodAutoscaler").cloned().collect();
    assert_eq!(scalers.len(), 2);
    plane.infra.apply(&scalers).unwrap();

    // Nobody but us changes anything now.
    for cluster in ["infra", "tenant"] {
        plane.command(&format!("term {cluster}/kube-controller-manager")).unwrap();
        plane.command(&format!("term {cluster}/kube-scheduler")).unwrap();
    }
    for (cluster, name, more) in
        [(&plane.infra, "all-in-one", scalers), (&plane.tenant, "webhook-only", Vec::new())]
    {
        let objects = [with_monitoring(name), more].concat();
        // Who makes a Namespace also owns the label that the API server adds, until he applies it again. And who is written
        // down for a policy's status is written again.
        let again =
            ["Namespace", "ValidatingAdmissionPolicy"].into_iter().flat_map(|kind| of_kind(&objects, kind));
        cluster.apply(&again.cloned().collect::<Vec<_>>()).unwrap();
        let before = versions(cluster, &objects);
        cluster.apply(&objects).unwrap();
        assert_eq!(before, versions(cluster, &objects), "{name}");
    }
}

/// The Pods of a part are created under the namespace's restrictions, scheduled, and nowhere but where they may.
async fn runs(cluster: &Cluster, part: &str) {
    let pods: Api<Pod> = Api::namespaced(cluster.client().await, SYSTEM);
    let which = ListParams::default().labels(&format!("app.kubernetes.io/component={part}"));
    let count = if part == "agent" { 1 } else { 2 };
    let found = eventually(&format!("{part} runs"), || async {
        let all = pods.list(&which).await.in_words()?.items;
        let up = all.iter().filter(|pod| is_ready(pod) && pod.metadata.deletion_timestamp.is_none()).count();
        if up == count && all.len() == count {
            return Ok(all);
        }
        let conditions: Vec<_> = all.iter().map(|pod| pod.status.as_ref().map(|s| &s.conditions)).collect();
        Err(format!("{up} of {} are ready, {count} are wanted: {conditions:?}", all.len()))
    })
    .await;
    for pod in &found {
        assert!(node_of(pod) != "dpu", "{} is on a DPU", pod.name_any());
        assert_eq!(pod.spec.as_ref().unwrap().priority, Some(1_000_000_000), "{}", pod.name_any());
    }
    let nodes: BTreeSet<&str> = found.iter().map(node_of).collect();
    assert_eq!(nodes.len(), count, "{part} is on {nodes:?}");
}

/// Each Service leads to ports of its part's Pods.
async fn answers(cluster: &Cluster, parts: &[&str]) {
    for (part, port) in [("webhook", 9443), ("manager", 9090)] {
        if !parts.contains(&part) {
            continue;
        }
        eventually(&format!("the Service of {part} leads to it"), || async {
            let of = format!("kubernetes.io/service-name=outrigger-{part}");
            let found = cluster.get(&["endpointslices", "-n", SYSTEM, "-l", &of]).in_words()?;
            let slice = &found["items"][0];
            let ready = slice["endpoints"]
                .as_array()
                .into_iter()
                .flatten()
                .filter(|e| e["conditions"]["ready"] == true);
            holds(slice["ports"][0]["port"] == port && ready.count() == 2, slice.to_string())
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn helm_installs_upgrades_and_leaves_what_people_have_made() {
    let plane = ControlPlane::start_infra().unwrap();
    let infra = &plane.infra;
    let nodes = ["one", "two", "three", "four"].map(|name| node(name, json!({}), json!([])));
    infra.apply(&nodes).unwrap();
    let run = |args: &[&str]| {
        let mut command = Command::new(tool("helm").unwrap());
        command.args(args).arg("--namespace=companions").current_dir(root());
        // What it keeps of its own goes with the control plane.
        command.env("KUBECONFIG", &infra.kubeconfig).env("HOME", &plane.dir);
        output(command).unwrap()
    };
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "companions",
        "labels": {"pod-security.kubernetes.io/enforce": "restricted"}}});
    infra.apply(&[namespace]).unwrap();
    let ready = async |replicas: usize| {
        eventually(&format!("{replicas} webhooks are ready"), || async {
            let found = infra.get(&["deployment", "outrigger-webhook", "-n", "companions"]).in_words()?;
            let status = &found["status"];
            if status["readyReplicas"] == replicas && status["replicas"] == replicas {
                return Ok(());
            }
            Err(status.to_string())
        })
        .await;
    };
    run(&["install", "outrigger", "deploy/helm/outrigger"]);
    ready(2).await;
    crate::deploy::live::lacks_certificates_only(infra).await;
    let three = ["--set", "webhook.replicas=3"];
    let upgrade = || run(&[&["upgrade", "outrigger", "deploy/helm/outrigger"][..], &three].concat());
    upgrade();
    ready(3).await;
    infra.established().unwrap();

    // Once more, while nobody but Helm changes anything: then nothing changes.
    let controllers = ["infra/kube-controller-manager", "infra/kube-scheduler"];
    plane.command_all("term", controllers);
    // Not even what somebody else has put into them: whom the API server trusts.
    let trusted = STANDARD.encode(Authority::new(&plane.dir.join("by-hand"), "trusted").unwrap().pem());
    for kind in ["mutatingwebhookconfiguration", "validatingwebhookconfiguration"] {
        let add = json!([{"op": "add", "path": "/webhooks/0/clientConfig/caBundle", "value": trusted}]);
        infra.patch(&format!("{kind}/outrigger"), &[], &add).unwrap();
    }
    let objects = chart_in("companions", &three).unwrap();
    let before = versions(infra, &objects);
    upgrade();
    assert_eq!(before, versions(infra, &objects));
    plane.command_all("start", controllers);

    let tenant = json!({"apiVersion": "outrigger.dev/v1alpha1", "kind": "Tenant", "metadata": {"name": "blue"},
        "spec": {"hosts": ["host-a"], "identities": ["spiffe://outrigger/tenant/blue"]}});
    // The webhook that would judge it only seems to run here.
    infra.kubectl(&["delete", "validatingwebhookconfiguration", "outrigger"]).unwrap();
    infra.apply(&[tenant]).unwrap();
    run(&["uninstall", "outrigger"]);
    infra.kubectl(&["get", "tenant", "blue"]).unwrap();
    let kinds = "deployments,services,validatingadmissionpolicies";
    assert_eq!(infra.kubectl(&["get", kinds, "-n", "companions", "-o", "name"]).unwrap(), "");
}
