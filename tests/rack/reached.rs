//! What the shipped NetworkPolicies let through and what they don't, where something enforces them.

use outrigger_tests::control_plane::Cluster;
use outrigger_tests::outrigger::{SYSTEM, tenant_identity};
use outrigger_tests::rack::{HOSTS, INFRA_DNS, Machine, Rack, ready};
use outrigger_tests::tenant::{namespace, tenant};
use outrigger_tests::{InWords, eventually, holds, is_true};
use serde_json::{Value, json};

use super::shared::CONTROL;
use super::workloads::runs;

/// Another Node of the cluster, on which clients run too.
const OTHER: Machine = Machine::infra("other", 12, None);

/// The namespaces of clients.
const CLIENTS: [&str; 2] = ["monitoring", "elsewhere"];
/// A part's namespace, its name, and for each of its ports whether Pods in each of these namespaces reach it.
type Part = (&'static str, &'static str, &'static [(&'static str, [bool; 2])]);
const PARTS: [Part; 4] = [
    (SYSTEM, "webhook", &[("https", [true, true]), ("admin", [true, false])]),
    (SYSTEM, "manager", &[("grpc", [true, true]), ("admin", [true, false])]),
    (SYSTEM, "agent", &[("gate", [true, true]), ("host", [false, false]), ("admin", [true, false])]),
    (HOSTS, "host", &[("admin", [true, false])]),
];

/// A Pod on a Node that stays, for commands in it.
fn client(namespace: &str, node: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": format!("client-on-{node}"), "namespace": namespace},
        "spec": {"nodeName": node, "terminationGracePeriodSeconds": 1, "containers": [runs("echo here")]}})
}

/// A Pod for which no part's policy is meant but the one of all parts.
fn part_of_no_kind() -> Value {
    let mut pod = client(SYSTEM, CONTROL.name);
    pod["metadata"]["labels"] = json!({"app.kubernetes.io/name": "outrigger"});
    pod["spec"]["securityContext"] =
        json!({"runAsNonRoot": true, "runAsUser": 1000, "seccompProfile": {"type": "RuntimeDefault"}});
    pod["spec"]["containers"][0]["securityContext"] =
        json!({"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}});
    pod
}

/// Whether a client can connect to an address: what a policy forbids is never answered.
fn connects(cluster: &Cluster, client: &Value, address: &str, port: u64) -> Result<(), String> {
    let [name, namespace] = ["name", "namespace"].map(|key| client["metadata"][key].as_str().unwrap());
    let command = format!("echo | busybox timeout 20 nc -w 3 {address} {port} >/dev/null");
    cluster.kubectl(&["exec", name, "-n", namespace, "--", "sh", "-c", &command]).map(drop).in_words()
}

/// Asserts that a client can connect, or can't.
async fn assert_connects(cluster: &Cluster, client: &Value, (address, port): (&str, u64), may: bool) {
    let what = format!("{} to {address}:{port}", client["metadata"]);
    if may {
        eventually(&what, || async { connects(cluster, client, address, port) }).await;
    } else {
        connects(cluster, client, address, port).expect_err(&what);
    }
}

/// A running Pod of a part.
fn pod(cluster: &Cluster, namespace: &str, part: &str) -> Result<Value, String> {
    let label = format!("app.kubernetes.io/component={part}");
    let found = cluster.get(&["pods", "-n", namespace, "-l", &label]).in_words()?;
    let mut pods = found["items"].as_array().into_iter().flatten();
    pods.find(|pod| is_true(pod, "Ready")).cloned().ok_or_else(|| format!("no {part}: {found}"))
}

/// Where a Pod's port with this name is.
fn address<'a>(pod: &'a Value, name: &str) -> (&'a str, u64) {
    let mut ports = pod["spec"]["containers"][0]["ports"].as_array().into_iter().flatten();
    let port = ports.find(|port| port["name"] == name).unwrap_or_else(|| panic!("no port {name}: {pod}"));
    (pod["status"]["podIP"].as_str().unwrap(), port["containerPort"].as_u64().unwrap())
}

/// The shipped objects, whose policies permit the ports of this cluster's DNS and API server, as docs/installation.md says.
fn objects(rack: &Rack) -> Vec<Value> {
    let components = ["cert-manager", "companions-first"];
    let mut objects = rack.overlay("deploy/overlays/all-in-one", &components, "green").unwrap();
    let tcp = |port: u16| json!({"protocol": "TCP", "port": port});
    let dns = json!({"ports": [{"protocol": "UDP", "port": INFRA_DNS}, tcp(INFRA_DNS)]});
    let (_, server) = rack.plane.infra.server.rsplit_once(':').unwrap();
    let server = json!({"ports": [tcp(server.parse().unwrap())]});
    for object in objects.iter_mut().filter(|object| object["kind"] == "NetworkPolicy") {
        let more = match object["metadata"]["name"].as_str() {
            Some("outrigger") => vec![dns.clone(), server.clone()],
            Some("outrigger-host") => vec![dns.clone()],
            _ => continue,
        };
        object["spec"]["egress"].as_array_mut().unwrap().extend(more);
    }
    objects
}

/// All parts in one cluster, whose Nodes enforced policies before any of them was there.
async fn installed() -> Rack {
    let rack = Rack::start(&[]).unwrap();
    rack.add(&[CONTROL, OTHER]).await;
    rack.enforce_policies(&[CONTROL, OTHER]).unwrap();
    let infra = &rack.plane.infra;
    infra.apply(&objects(&rack)).unwrap();
    let green = tenant("green", json!({"identities": [tenant_identity("green")], "hosts": [OTHER.name]}));
    eventually("a Tenant is admitted", || async { infra.apply(std::slice::from_ref(&green)).in_words() })
        .await;
    rack.connect(infra, "green").await.unwrap();
    rack
}

#[tokio::test]
#[ignore = "long"]
async fn parts_are_reached_as_their_network_policies_say_and_not_otherwise() {
    let rack = installed().await;
    let infra = &rack.plane.infra;
    // The kubelet's probes, the API server's requests to the webhook, and the parts' own connections get through.
    let parts = ["webhook", "manager", "agent"].map(|part| format!("deployment/outrigger-{part}"));
    ready(infra, &[&parts[0], &parts[1], &parts[2], "daemonset/outrigger-host"]).await;
    eventually("the manager has the agent's stream", || async {
        let status = infra.get(&["tenant", "green"]).in_words()?["status"].take();
        holds(status["stream"]["connected"] == true, status.to_string())
    })
    .await;

    infra.apply(&CLIENTS.map(namespace)).unwrap();
    let account = |of| ["serviceaccount", "default", "-n", of];
    for of in CLIENTS {
        eventually("Pods can be created there", || async { infra.get(&account(of)).in_words() }).await;
    }
    let clients = CLIENTS.map(|at| [CONTROL, OTHER].map(|node| client(at, node.name)));
    infra.apply(&clients.concat()).unwrap();
    let part = part_of_no_kind();
    infra.apply(std::slice::from_ref(&part)).unwrap();
    for pod in clients.iter().flatten().chain([&part]) {
        let [name, of] = ["name", "namespace"].map(|key| pod["metadata"][key].as_str().unwrap());
        infra
            .kubectl(&["wait", "--for=condition=Ready", &format!("pod/{name}"), "-n", of, "--timeout=60s"])
            .unwrap();
    }
    for (of, part, ports) in PARTS {
        let pod = pod(infra, of, part).unwrap();
        for (name, may) in ports {
            for (clients, may) in clients.iter().zip(may) {
                for client in clients {
                    assert_connects(infra, client, address(&pod, name), *may).await;
                }
            }
        }
    }
    // What a part may open itself.
    assert_connects(infra, &part, ("10.96.0.1", 443), true).await;
    let webhook = pod(infra, SYSTEM, "webhook").unwrap();
    assert_connects(infra, &part, address(&webhook, "https"), false).await;
}
