//! Each overlay alone, with each component that goes with it, and with all that go with each other: installed in an empty cluster, all
//! of it becomes ready.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use outrigger_tests::control_plane::Cluster;
use outrigger_tests::outrigger::{SYSTEM, tenant_identity};
use outrigger_tests::pki::Authority;
use outrigger_tests::rack::{HOSTS, Rack, ready, way_to_manager};
use outrigger_tests::shipped::{kustomize, of_kind};
use outrigger_tests::tenant::{namespace, tenant};
use outrigger_tests::{InWords, eventually, holds, is_true, root};
use serde_json::{Value, json};

use super::shared::{BLUE, CONTROL, HOST};

/// Components that go with webhook and manager, each alone. Those joined by `+` are of no use alone.
const SERVERS: [&str; 10] = [
    "cert-manager",
    "self-signed",
    "autoscaling",
    "client-certificates",
    "console",
    "queries",
    "console-queries",
    "imperator",
    "liqo",
    "reports",
];
/// Those that go with the agent.
const AGENT: [&str; 7] = [
    "companions-first",
    "device-attributes",
    "gate",
    "gate+gate-client-certificates",
    "no-pod-conditions",
    "node-conditions",
    "node-taints",
];
/// Those that go with a webhook that is alone.
const WEBHOOK: [&str; 3] = ["cert-manager", "self-signed-webhook", "client-certificates"];

/// All of them that aren't there in place of another one.
const ALL_SERVERS: &str = "autoscaling+client-certificates+console-queries+imperator+liqo+reports";
const ALL_AGENT: &str =
    "companions-first+device-attributes+gate-client-certificates+node-taints+no-pod-conditions";

/// The combinations of an overlay, each a list joined by `+`.
fn combinations(overlay: &str) -> Vec<String> {
    let owned = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    let both = |others: &str| ["cert-manager", "self-signed"].map(|one| format!("{one}+{others}")).to_vec();
    let (each, all) = match overlay {
        "infrastructure" => (owned(&SERVERS), both(ALL_SERVERS)),
        "tenant" => (owned(&AGENT), vec![ALL_AGENT.to_owned()]),
        "all-in-one" => {
            (owned(&[&SERVERS[..], &AGENT].concat()), both(&format!("{ALL_SERVERS}+{ALL_AGENT}")))
        }
        _ => (owned(&WEBHOOK), vec!["self-signed-webhook+client-certificates".to_owned()]),
    };
    [vec![String::new()], each, all].concat()
}

#[test]
fn every_component_is_in_a_combination() {
    let all: String = ["infrastructure", "tenant", "all-in-one", "webhook-only"]
        .iter()
        .flat_map(|overlay| combinations(overlay))
        .collect::<Vec<_>>()
        .join("+");
    let named: Vec<&str> = all.split('+').collect();
    for component in std::fs::read_dir(root().join("deploy/components")).unwrap() {
        let component = component.unwrap().file_name().into_string().unwrap();
        assert!(named.contains(&component.as_str()), "{component}");
    }
}

#[tokio::test]
#[ignore = "long"]
async fn the_overlay_infrastructure_starts_with_each_component() {
    let rack = rack().await;
    each_starts(&rack, "infrastructure").await;
}

#[tokio::test]
#[ignore = "long"]
async fn the_overlay_webhook_only_starts_with_each_component() {
    let rack = rack().await;
    each_starts(&rack, "webhook-only").await;
}

#[tokio::test]
#[ignore = "long"]
async fn the_overlay_all_in_one_starts_with_each_component() {
    let rack = rack().await;
    each_starts(&rack, "all-in-one").await;
}

#[tokio::test]
#[ignore = "long"]
async fn the_overlay_tenant_starts_with_each_component() {
    let rack = rack().await;
    rack.add(&[HOST]).await;
    rack.install().await.unwrap();
    rack.plane.infra.apply(&[its_tenant()]).unwrap();
    each_starts(&rack, "tenant").await;
}

async fn rack() -> Rack {
    let rack = Rack::start(&[]).unwrap();
    rack.add(&[CONTROL]).await;
    // Beside Liqo and Imperator their definitions are there already.
    for cluster in [&rack.plane.infra, &rack.plane.tenant] {
        cluster.apply(&kustomize("deploy/crds").unwrap()).unwrap();
        cluster.established().unwrap();
    }
    rack
}

fn its_tenant() -> Value {
    tenant(BLUE, json!({"identities": [tenant_identity(BLUE)], "hosts": [HOST.name]}))
}

async fn each_starts(rack: &Rack, overlay: &str) {
    let cluster = if overlay == "tenant" { &rack.plane.tenant } else { &rack.plane.infra };
    for combination in combinations(overlay) {
        let components: Vec<&str> = combination.split('+').filter(|name| !name.is_empty()).collect();
        say(&format!("{overlay} with {combination:?}"));
        let mut objects = rack.overlay(&format!("deploy/overlays/{overlay}"), &components, BLUE).unwrap();
        objects.retain(|object| object["kind"] != "CustomResourceDefinition");
        if components.contains(&"imperator") {
            // It is Imperator's own there.
            objects.insert(0, namespace("imperator-system"));
        }
        prepare(rack, cluster, overlay, &components, &mut objects);
        cluster.apply(&objects).unwrap();
        if overlay == "all-in-one" {
            eventually("a Tenant is admitted", || async { cluster.apply(&[its_tenant()]).in_words() }).await;
        }
        if overlay == "tenant" || (overlay == "all-in-one" && components.contains(&"cert-manager")) {
            rack.connect(cluster, BLUE).await.unwrap();
        }
        if overlay == "tenant" {
            cluster.apply(&way_to_manager(CONTROL)).unwrap();
        }
        all_run(cluster, &objects).await;
        remove(cluster, objects).await;
    }
}

/// A test of minutes says where it is.
#[allow(clippy::print_stdout)] // A test has no other way to say so.
fn say(text: &str) {
    println!("{text}");
}

/// Creates what an administrator has to create, by hand where nothing issues certificates.
fn prepare(rack: &Rack, cluster: &Cluster, overlay: &str, components: &[&str], objects: &mut [Value]) {
    let authority = Authority::new(&rack.plane.dir.join("by-hand"), "by-hand").unwrap();
    let metadata = |name: &str| json!({"name": name, "namespace": SYSTEM});
    let secret = |name: &str, names: &[&str]| {
        let pair = authority.issue(name, names).unwrap();
        let read = |file| std::fs::read_to_string(file).unwrap();
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": metadata(name),
            "stringData": {"tls.crt": read(&pair.cert), "tls.key": read(&pair.key), "ca.crt": authority.pem()}})
    };
    let server = |name: &str| secret(&format!("{name}-tls"), &[&format!("{name}.{SYSTEM}.svc")]);
    let mut own = vec![namespace(SYSTEM), server("outrigger-console")];
    // API servers show a certificate to webhooks.
    let side = if overlay == "tenant" { "tenant" } else { "infra" };
    let clients = std::fs::read_to_string(rack.plane.dir.join(side).join("webhooks/ca.crt")).unwrap();
    own.extend(["outrigger-webhook-clients", "outrigger-gate-clients"].map(
        |name| json!({"apiVersion": "v1", "kind": "Secret", "metadata": metadata(name), "stringData": {"ca.crt": clients}}),
    ));
    let is_issued = components.contains(&"cert-manager") || overlay == "tenant";
    let is_self_signed = components.iter().any(|name| name.starts_with("self-signed"));
    if !is_issued {
        own.push(secret("outrigger-agent-ca", &[]));
        own.push(secret("outrigger-agent-tls", &[&tenant_identity(BLUE)]));
    }
    if !is_issued && !is_self_signed {
        own.extend(["outrigger-webhook", "outrigger-manager"].map(server));
        own.push(json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata("outrigger-ca"),
            "data": {"ca.crt": authority.pem()}}));
        for webhook in
            objects.iter_mut().filter_map(|object| object.get_mut("webhooks")?.as_array_mut()).flatten()
        {
            // That of the gate is the agent's own affair.
            if webhook["clientConfig"]["service"]["name"] == "outrigger-webhook" {
                webhook["clientConfig"]["caBundle"] = json!(STANDARD.encode(authority.pem()));
            }
        }
    }
    cluster.apply(&own).unwrap();
}

/// Waits until every Pod of what was applied is ready, and every DaemonSet has one.
async fn all_run(cluster: &Cluster, objects: &[Value]) {
    let name = |object: &Value| object["metadata"]["name"].as_str().unwrap().to_owned();
    let deployments = of_kind(objects, "Deployment").map(|object| format!("deployment/{}", name(object)));
    let sets: Vec<_> = of_kind(objects, "DaemonSet").map(name).collect();
    let parts: Vec<_> = deployments.chain(sets.iter().map(|name| format!("daemonset/{name}"))).collect();
    assert!(!parts.is_empty());
    ready(cluster, &parts.iter().map(String::as_str).collect::<Vec<_>>()).await;
    for name in sets {
        eventually(&format!("{name} has a Pod"), || async {
            let set = cluster.get(&["daemonset", &name, "-n", HOSTS]).in_words()?;
            holds(set["status"]["numberReady"] == 1, set["status"].to_string())
        })
        .await;
    }
    eventually("no Pod is left over or waits", || async {
        let pods = cluster.get(&["pods", "-A"]).in_words()?;
        let waiting: Vec<_> = pods["items"]
            .as_array()
            .into_iter()
            .flatten()
            .filter(|pod| !is_true(pod, "Ready"))
            .map(|pod| json!({"name": pod["metadata"]["name"], "status": pod["status"]}).to_string())
            .collect();
        holds(waiting.is_empty(), waiting.join("\n"))
    })
    .await;
}

/// Uninstalls, until nothing but definitions is left.
async fn remove(cluster: &Cluster, mut objects: Vec<Value>) {
    cluster.kubectl(&["delete", "tenants", "--all"]).unwrap();
    // Nobody answers these when the Pods are gone. Namespaces last: they take all with them.
    let rank = |object: &Value| match object["kind"].as_str() {
        Some("Namespace") => 2,
        Some(kind) if kind.contains("Webhook") || kind.contains("Admission") => 0,
        _ => 1,
    };
    objects.sort_by_key(rank);
    let list = json!({"apiVersion": "v1", "kind": "List", "items": objects}).to_string();
    let delete = ["delete", "--ignore-not-found", "--wait=false", "-f", "-"];
    cluster.kubectl_with(&delete, &list).unwrap();
    for namespace in [SYSTEM, HOSTS] {
        let _ = cluster.kubectl(&[
            "delete",
            "pods",
            "--all",
            "--grace-period=1",
            "--wait=false",
            "-n",
            namespace,
        ]);
    }
    eventually("the namespaces are gone", || async {
        let left = cluster.get(&["namespaces"]).in_words()?;
        let left: Vec<_> = left["items"]
            .as_array()
            .into_iter()
            .flatten()
            .filter(|object| !object["metadata"]["deletionTimestamp"].is_null())
            .map(|object| object["status"].to_string())
            .collect();
        holds(left.is_empty(), left.join("\n"))
    })
    .await;
}
