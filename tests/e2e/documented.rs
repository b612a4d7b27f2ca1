//! The manifests of the documents that Outrigger's interfaces follow, as they are printed there (`tests/cases/documented`): each is
//! applied with kubectl, and has its result, or the refusal that the pages name.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Client;
use kube::api::{Api, ListParams};
use outrigger_core::keys;
use outrigger_tests::control_plane::Cluster;
use outrigger_tests::outrigger::Outrigger;
use outrigger_tests::tenant::{Tenant, annotation, dpu, event, node_of, takes_pods, usage};
use outrigger_tests::{InWords, create, eventually, holds, is_true, root};
use serde_json::{Value, json};

use crate::e2e::claims::without;
use crate::e2e::offloading::stage::{REQUIRED, Stage, tolerates};

fn path(file: &str) -> String {
    root().join("tests/cases/documented").join(file).display().to_string()
}

fn read(file: &str) -> Value {
    serde_yaml::from_str(&std::fs::read_to_string(path(file)).unwrap()).unwrap()
}

/// Applies a manifest as it is; the error is what kubectl says.
fn apply(cluster: &Cluster, file: &str, more: &[&str]) -> Result<String, String> {
    cluster.kubectl(&[&["apply", "-f", &path(file)], more].concat()).map_err(|error| format!("{error:#}"))
}

/// The paths of all fields of a value, without indexes. Below `free` there is anything.
fn fields(value: &Value, at: &str, found: &mut BTreeSet<String>) {
    found.insert(at.to_owned());
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                fields(value, &format!("{at}.{key}"), found);
            }
        }
        Value::Array(list) => list.iter().for_each(|value| fields(value, at, found)),
        _ => {}
    }
}

/// Everything of `wanted` that `stored` has in another way, or not at all.
fn lost(wanted: &Value, stored: &Value, at: &str, found: &mut Vec<String>) {
    match (wanted, stored) {
        (Value::Object(wanted), Value::Object(stored)) => wanted.iter().for_each(|(key, value)| {
            lost(value, stored.get(key).unwrap_or(&Value::Null), &format!("{at}.{key}"), found);
        }),
        (Value::Array(wanted), Value::Array(stored)) if wanted.len() == stored.len() => {
            wanted.iter().zip(stored).for_each(|(wanted, stored)| lost(wanted, stored, at, found));
        }
        _ if wanted == stored => {}
        _ => found.push(format!("{at}: {wanted} became {stored}")),
    }
}

/// A claim without the fields whose feature gates are off in this release.
fn of_release(cluster: &Cluster, claim: &mut Value) {
    let gates: [(&str, &[&str]); 4] = [
        ("DRAAdminAccess", &["adminAccess"]),
        ("DRADeviceTaints", &["tolerations"]),
        ("DRAConsumableCapacity", &["capacity", "consumedCapacity", "shareID", "distinctAttribute"]),
        (
            "DRADeviceBindingConditions",
            &["bindingConditions", "bindingFailureConditions", "allocationTimestamp"],
        ),
    ];
    for (gate, fields) in gates {
        if cluster.lacks(gate) {
            println!("the claim without {}: the feature gate {gate} is off", fields.join(", "));
            without(claim, fields);
        }
    }
    // A constraint has to name an attribute.
    if let Some(constraints) = claim["spec"]["devices"]["constraints"].as_array_mut() {
        constraints.retain(|one| !one["matchAttribute"].is_null() || !one["distinctAttribute"].is_null());
    }
}

#[tokio::test]
async fn a_claim_with_every_documented_field_is_stored_whole() {
    let o = Outrigger::shared().await;
    let infra = &o.plane.infra;
    let mut claim = read("resourceclaim.yaml");
    let listed = std::fs::read_to_string(path("resourceclaim.fields")).unwrap();
    let listed: BTreeSet<&str> = listed.lines().filter(|line| !line.starts_with('#')).collect();
    let mut found = BTreeSet::new();
    for part in ["spec", "status"] {
        fields(&claim[part], part, &mut found);
    }
    let missing: Vec<&&str> = listed.iter().filter(|field| !found.contains(**field)).collect();
    assert!(listed.len() > 80 && missing.is_empty(), "the manifest lacks {missing:?}");
    of_release(infra, &mut claim);

    let access = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "documented-claims",
        "labels": {"resource.kubernetes.io/admin-access": "true"}}});
    infra.apply(&[access]).unwrap();
    let client = infra.client().await;
    let uri = "/apis/resource.k8s.io/v1/namespaces/documented-claims/resourceclaims";
    let sent = async |method: &str, uri: &str, body: &Value| -> Result<Value, String> {
        let request = http::Request::builder().method(method).uri(format!("{uri}?fieldValidation=Strict"));
        let request = request.header("content-type", "application/json");
        client.request(request.body(body.to_string().into_bytes()).unwrap()).await.in_words()
    };
    let made = sent("POST", uri, &claim).await.unwrap();
    let mut wrong = Vec::new();
    lost(&claim["spec"], &made["spec"], "spec", &mut wrong);
    let status = json!({"apiVersion": claim["apiVersion"], "kind": claim["kind"], "metadata": made["metadata"],
        "spec": made["spec"], "status": claim["status"]});
    let stored = sent("PUT", &format!("{uri}/documented/status"), &status).await.unwrap();
    lost(&claim["status"], &stored["status"], "status", &mut wrong);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));

    // No namespace of a tenant has the label that admin access requires, and no tenant a class that its Tenant doesn't list.
    let t = Tenant::without_agent(o, "documented-claims", &[("a", 1)]).await;
    let said = apply(infra, "resourceclaim.yaml", &["-n", &t.namespace]).unwrap_err();
    assert!(said.contains("adminAccess: Forbidden"), "{said}");
    claim["metadata"]["namespace"] = json!(t.namespace);
    claim["spec"]["devices"]["requests"][0]["exactly"].as_object_mut().unwrap().remove("adminAccess");
    let said = format!("{:#}", infra.apply(&[claim]).unwrap_err());
    assert!(said.contains("spec.devices.requests[0].exactly.deviceClassName: is \"documented\""), "{said}");
}

/// Paths of the downward API in a companion's volume.
fn paths(companion: &Pod) -> Vec<String> {
    let volumes = companion.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    let items = volumes.filter_map(|volume| volume.downward_api.as_ref()?.items.as_ref()).flatten();
    items.filter_map(|item| Some(item.field_ref.as_ref()?.field_path.clone())).collect()
}

#[tokio::test]
async fn the_documented_rule_is_served_as_it_is_written() {
    let o = Outrigger::shared().await;
    let t = Tenant::without_agent(o, "documented", &[("a", 1)]).await;
    let tenant = &o.plane.tenant;
    // A host of the document, with a DPU that its selector fits.
    let mut dpu = dpu("cloud-dev-12-dpu", "cloud-dev-12");
    dpu["metadata"]["labels"]["foo"] = json!("bar");
    o.plane.infra.apply(&[dpu]).unwrap();
    t.set(json!({"hosts": [t.node("a"), "cloud-dev-12"]})).await.unwrap();
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "cloud-dev-12"}});
    tenant.apply(&[node]).unwrap();
    o.start_agent_with("documented", &["--namespace=default".to_owned()]).unwrap();
    let said = apply(tenant, "workloadrule.yaml", &[]).unwrap();
    assert!(said.contains("rule1"), "{said}");

    let annotations = json!({"k8s.v1.cni.cncf.io/networks-status": "[{}]"});
    let pod = json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "documented", "namespace": "default", "annotations": annotations},
        "spec": {"nodeName": "cloud-dev-12", "containers": [{"name": "c", "image": "app"}]}});
    let pods: Api<Pod> = Api::namespaced(t.cluster.clone(), "default");
    takes_pods(&t.cluster, "default").await;
    create(&pods, &pod).await.unwrap();
    let companion = t.companion().await;
    assert_eq!(node_of(&companion), "cloud-dev-12-dpu");
    let keys = ["entire-workload", "secondary-network-status"];
    assert_eq!(paths(&companion), keys.map(|key| format!("metadata.annotations['{key}']")));
    assert_eq!(annotation(&companion, "secondary-network-status"), Some("[{}]"));
    assert_eq!(annotation(&companion, "tenant-node-name"), Some("cloud-dev-12"));
    assert!(annotation(&companion, "entire-workload").is_some_and(|all| all.contains("documented")));

    let get = || tenant.get(&["workloadrule", "rule1", "-n", "universe"]).in_words();
    eventually("the rule is served", || async {
        let rule = get()?;
        let (served, status) = (is_true(&rule, "Accepted"), &rule["status"]);
        holds(served && status["syncResult"] == "success" && status["ready"] == 1, status.to_string())
    })
    .await;
    let table = tenant.kubectl(&["get", "workloadrules", "-n", "universe"]).unwrap();
    let (head, row) = table.split_once('\n').unwrap();
    assert!(head.contains("SYNCRESULT") && row.contains("success"), "{table}");

    // Whoever applies it in the infrastructure cluster is warned.
    let mut rule = read("workloadrule.yaml");
    rule["metadata"] = json!({"name": "warned", "namespace": t.namespace});
    let file = o.plane.dir.join("documented-rule.json");
    std::fs::write(&file, rule.to_string()).unwrap();
    let file = file.display().to_string();
    let kubectl = o.plane.infra.kubectl_command();
    let warned = std::process::Command::new(&kubectl[0])
        .args(&kubectl[1..])
        .args(["apply", "--dry-run=server", "-f", &file])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&warned.stderr).into_owned();
    assert!(warned.status.success() && said.contains("companions get it with single quotes"), "{said}");
    tenant.kubectl(&["delete", "workloadrule", "rule1", "-n", "universe"]).unwrap();
    tenant.kubectl(&["delete", "pod", "documented", "-n", "default", "--wait=false"]).unwrap();
}

/// Nodes as the document's, each with the GPUs that the Machine asks for.
fn nodes() -> Vec<Value> {
    let of = |(name, cpu, memory, gpus, labels): (&str, &str, &str, &str, Value)| {
        let size = json!({"cpu": cpu, "memory": memory, "pods": "110", "nvidia.com/gpu": gpus});
        json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels},
            "status": {"capacity": size, "allocatable": size}})
    };
    [
        ("michiru", "40", "128Gi", "2", json!({keys::GPU_PRODUCT: "NVIDIA-GeForce-RTX-3090"})),
        ("utaha", "12", "96Gi", "2", json!({keys::GPU_MACHINE: "DGX-1"})),
        ("eriri", "12", "96Gi", "2", json!({keys::GPU_MACHINE: "DGX-1"})),
    ]
    .map(of)
    .into()
}

/// The Pod of the document's Deployment.
async fn guest(client: &Client, namespace: &str) -> Pod {
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let selector = format!("{}={}", keys::POD_ROLE, keys::GUEST);
    eventually("the guest has a node", || async {
        let all = pods.list(&ListParams::default().labels(&selector)).await.in_words()?.items;
        let one = all.into_iter().find(|pod| !node_of(pod).is_empty());
        one.ok_or_else(|| "there is none".to_owned())
    })
    .await
}

#[tokio::test]
async fn imperators_documented_manifests_have_their_results() {
    let o = Outrigger::shared().await;
    let infra = &o.plane.infra;
    let client = infra.client().await;
    let all: Api<Node> = Api::all(client.clone());
    for node in nodes() {
        create(&all, &node).await.unwrap();
    }
    eventually("admission knows the Nodes", || async { apply(infra, "machine.yaml", &[]) }).await;
    let machines = Api::all(client.clone());
    usage(&machines, "general-machine", "compute-xlarge", [1, 1, 0, 0, 1]).await;
    // Only eriri is ready, and has room for two.
    usage(&machines, "general-machine", "compute-medium", [4, 2, 0, 0, 2]).await;
    let pool = infra.get(&["machinenodepool", "general-machine-node-pool"]).unwrap();
    let documented = read("machinenodepool.yaml");
    assert_eq!(pool["spec"]["nodePool"], documented["spec"]["nodePool"]);
    let conditions = json!([{"name": "michiru", "condition": "Healthy"},
        {"name": "utaha", "condition": "Maintenance"}, {"name": "eriri", "condition": "Healthy"}]);
    assert_eq!(pool["status"]["nodePool"], conditions);
    let said = apply(infra, "machinenodepool.yaml", &[]).unwrap_err();
    assert!(
        said.contains(r#"no matches for kind "MachineNodePool" in version "imperator.io/v1alpha1""#),
        "{said}"
    );

    // Guests, in a namespace that takes part.
    let namespace = "documented-guests";
    let object = json!({"apiVersion": "v1", "kind": "Namespace",
        "metadata": {"name": namespace, "labels": {keys::INJECT_RESOURCE: "enabled"}}});
    infra.apply(&[object]).unwrap();
    takes_pods(&client, namespace).await;
    let refused = apply(infra, "guest-pod.yaml", &["-n", namespace]).unwrap_err();
    assert!(refused.contains("spec.containers[0].image: Required value"), "{refused}");
    apply(infra, "guest.yaml", &["-n", namespace]).unwrap();
    let guest = guest(&client, namespace).await;
    assert_eq!(node_of(&guest), "michiru");
    let guest = serde_json::to_value(&guest).unwrap();
    let mut wanted = read("guest-pod.yaml")["spec"].clone();
    // The document's Machine asks for the GPU's product, its Pod shows a family.
    let terms = "/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms";
    let gpu = wanted.pointer_mut(&format!("{terms}/0/matchExpressions/2")).unwrap();
    assert_eq!(gpu["key"], keys::GPU_FAMILY);
    *gpu = json!({"key": keys::GPU_PRODUCT, "operator": "In", "values": ["NVIDIA-GeForce-RTX-3090"]});
    assert_eq!(guest["spec"].pointer(terms), wanted.pointer(terms));
    for toleration in wanted["tolerations"].as_array().unwrap() {
        assert!(guest["spec"]["tolerations"].as_array().unwrap().contains(toleration), "{toleration}");
    }
    // The API server writes quantities in their shortest form.
    let size = json!({"cpu": "40", "memory": "128Gi", "nvidia.com/gpu": "2"});
    assert_eq!(guest["spec"]["containers"][0]["resources"], json!({"requests": size, "limits": size}));
    usage(&machines, "general-machine", "compute-xlarge", [1, 0, 1, 0, 1]).await;

    // A reservation that a user writes: its Service has no port, and its StatefulSet a service name with a dot, which makes an invalid
    // subdomain of its Pods.
    let said = apply(infra, "reservation.yaml", &["-n", namespace]).unwrap_err();
    assert!(said.contains("spec.ports: Required value"), "{said}");
    if !said.contains("spec.serviceName: Invalid value") {
        // Releases that don't validate the name can't create the Pod.
        let message = event(&client, namespace, "FailedCreate").await;
        assert!(message.contains("spec.subdomain: Invalid value"), "{message}");
    }
    usage(&machines, "general-machine", "compute-xlarge", [1, 0, 1, 0, 1]).await;
    infra.kubectl(&["delete", "namespace", namespace, "--wait=false"]).unwrap();
    usage(&machines, "general-machine", "compute-xlarge", [1, 1, 0, 0, 1]).await;
    infra.kubectl(&["delete", "machine", "general-machine"]).unwrap();
}

#[tokio::test]
async fn liqos_documented_selector_has_the_documented_terms() {
    let s = Stage::new("documented-liqo").await;
    let documented = read("namespaceoffloading.yaml");
    for (strategy, wanted) in documented["strategies"].as_object().unwrap() {
        let spec =
            json!({"podOffloadingStrategy": strategy, "clusterSelector": documented["clusterSelector"]});
        s.outrigger.plane.infra.apply(&[crate::e2e::offloading::stage::offloading(s.name, spec)]).unwrap();
        eventually(&format!("Pods are as documented for {strategy}"), || async {
            let pod = s.admitted_plain().await?;
            let terms = pod.pointer(REQUIRED).cloned().unwrap_or_default();
            let same = terms == wanted["nodeSelectorTerms"] && json!(tolerates(&pod)) == wanted["tolerates"];
            holds(same, pod["spec"].to_string())
        })
        .await;
    }
}
