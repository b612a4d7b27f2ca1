//! Machines: how many writes an event takes, and what happens to them while no manager runs.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::ResourceExt;
use kube::api::{Api, DeleteParams};
use outrigger_api::{Machine, MachineNodePool};
use outrigger_core::keys;
use outrigger_tests::outrigger::Outrigger;
use outrigger_tests::tenant::{self, host, namespace, usage};
use outrigger_tests::writes::{since, writes};
use outrigger_tests::{InWords, always, create, eventually, holds, is_gone};
use serde_json::{Value, json};

use super::alone;

/// Everything that the controllers of Machines write. Nobody else does while nothing happens.
async fn counted(client: &kube::Client) -> BTreeMap<String, u64> {
    let mut all = BTreeMap::new();
    for resource in ["machines", "machinenodepools", "statefulsets", "services", "nodes"] {
        all.extend(writes(client, resource).await);
    }
    // Kubelets and StatefulSets report their own state.
    all.remove("nodes/status");
    all.remove("statefulsets/status");
    all
}

/// Waits until nothing has been written for a while, and returns the count.
async fn quiet(client: &kube::Client) -> BTreeMap<String, u64> {
    eventually("writes have ended", || async {
        let first = counted(client).await;
        tokio::time::sleep(Duration::from_secs(2)).await;
        let second = counted(client).await;
        if first == second { Ok(second) } else { Err(format!("{:?}", since(&second, &first))) }
    })
    .await
}

/// A namespace for guests, two nodes, and a Machine with a type on each.
fn machine(group: &str) -> [Value; 4] {
    let mut guests = namespace(group);
    guests["metadata"]["labels"] = json!({keys::INJECT_RESOURCE: "enabled"});
    let [n1, n2] = ["n1", "n2"].map(|name| format!("{group}-{name}"));
    let machine = tenant::machine(group, &[(&n1, "t1"), (&n2, "t2")], &[("t1", 2), ("t2", 2)]);
    [guests, host(&n1), host(&n2), machine]
}

/// Admission may not have seen the nodes yet.
async fn make(o: &Outrigger, group: &str) {
    eventually("the Machine is taken", || async { o.plane.infra.apply(&machine(group)) }).await;
}

#[tokio::test]
async fn an_event_is_worth_three_writes_and_no_event_none() {
    let (_one, o) = alone().await;
    let infra = &o.plane.infra;
    let client = infra.client().await;
    let machines: Api<Machine> = Api::all(client.clone());
    make(o, "writes").await;
    usage(&machines, "writes", "t1", [2, 2, 0, 0, 2]).await;
    usage(&machines, "writes", "t2", [2, 2, 0, 0, 2]).await;
    // A manager that starts and finds everything as it should be changes nothing.
    let idle = quiet(&client).await;
    o.plane.command("restart manager").unwrap();
    o.ready().await;
    always("nothing is written", Duration::from_secs(5), || async {
        let written = since(&counted(&client).await, &idle);
        holds(written.is_empty(), format!("{written:?}"))
    })
    .await;
    // Imperator answers this with some thirty writes.
    let pods: Api<Pod> = Api::namespaced(client.clone(), "writes");
    let guest = json!({"metadata": {"name": "g", "labels": {keys::MACHINE_GROUP: "writes",
            keys::MACHINE_TYPE: "t1", keys::POD_ROLE: keys::GUEST}},
        "spec": {"nodeSelector": {"nowhere": "x"}, "containers": [{"name": "c", "image": "i"}]}});
    eventually("the guest is taken", || async { create(&pods, &guest).await }).await;
    usage(&machines, "writes", "t1", [2, 1, 0, 1, 2]).await;
    let waiting = quiet(&client).await;
    let written = since(&waiting, &idle);
    println!("a guest waits: {written:?}");
    assert_eq!(written.get("statefulsets"), Some(&1));
    assert!(written.values().sum::<u64>() <= 3, "{written:?}");
    // What doesn't matter is not answered at all.
    infra.kubectl(&["label", "pod", "g", "-n", "writes", "a=b"]).unwrap();
    infra.kubectl(&["annotate", "machine", "writes", "a=b"]).unwrap();
    let mut written = since(&quiet(&client).await, &waiting);
    assert_eq!(written.remove("machines"), Some(1), "kubectl's own");
    assert_eq!(written, BTreeMap::new());
    infra.kubectl(&["delete", "machine", "writes"]).unwrap();
    infra.kubectl(&["delete", "namespace", "writes", "--wait=false"]).unwrap();
}

#[tokio::test]
async fn a_machine_that_goes_while_no_manager_runs_is_cleaned_up_later() {
    let (_one, o) = alone().await;
    let infra = &o.plane.infra;
    let client = infra.client().await;
    let machines: Api<Machine> = Api::all(client.clone());
    let nodes: Api<Node> = Api::all(client.clone());
    for group in ["stays", "leaves"] {
        make(o, group).await;
        usage(&machines, group, "t1", [2, 2, 0, 0, 2]).await;
    }
    let marked = async |name: &str| {
        let node = nodes.get(name).await.in_words()?;
        let domain = |key: &str| key.starts_with("imperator.tenzen-y.io/");
        let taints = node.spec.clone().and_then(|spec| spec.taints).unwrap_or_default();
        Ok::<_, String>(
            node.labels().keys().chain(node.annotations().keys()).any(|key| domain(key))
                || taints.iter().any(|taint| domain(&taint.key)),
        )
    };
    assert!(marked("leaves-n1").await.unwrap());
    o.plane.command("stop manager").unwrap();
    machines.delete("leaves", &DeleteParams::default()).await.unwrap();
    // And another one loses a node.
    let patch = json!([{"op": "remove", "path": "/spec/nodePool/1"}]);
    infra.patch("machine/stays", &[], &patch).unwrap();
    o.plane.command("start manager").unwrap();
    o.ready().await;
    for name in ["leaves-n1", "leaves-n2", "stays-n2"] {
        let marked = &marked;
        eventually(&format!("{name} is clean"), || async move {
            if marked(name).await? { Err("it is marked".to_owned()) } else { Ok(()) }
        })
        .await;
    }
    let pools: Api<MachineNodePool> = Api::all(client.clone());
    is_gone(&pools, "leaves-node-pool").await;
    assert!(marked("stays-n1").await.unwrap());
    // The slots are what they were, and those of the type without a node go.
    usage(&machines, "stays", "t1", [2, 2, 0, 0, 2]).await;
    usage(&machines, "stays", "t2", [2, 0, 0, 0, 0]).await;
    infra.kubectl(&["delete", "machine", "stays"]).unwrap();
}
