//! A manager that is late, or says too little, while the scheduler chooses again: its word about the companion for a Pod's former Node
//! binds the Pod on no other.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use outrigger_core::keys;
use outrigger_proto::companion::watch_response::Message;
use outrigger_proto::companion::{Companion, CompanionState, HostStatus, WorkloadCompanions};
use outrigger_tests::outrigger::{Outrigger, ports};
use outrigger_tests::plugin::can_run;
use outrigger_tests::shipped::kustomize;
use outrigger_tests::tenant::{Tenant, node_of};
use outrigger_tests::{InWords, always, create, eventually, gate, holds};
use serde_json::json;

use crate::abuse::companions::ScriptedManager;
use crate::e2e::before_binding::{allocated, claim, has_rule};
use crate::e2e::companions_first::{BINDING, pod, scheduled};

/// The DPU of a host takes companions, or doesn't for this reason.
fn dpu(node: &str, reason: &str) -> Message {
    let (node_name, reason) = (node.to_owned(), reason.to_owned());
    Message::Host(HostStatus { node_name, dpu_ready: reason.is_empty(), reason, since: "2026".to_owned() })
}

/// How the companion of the rule `bind` for a workload is, and the Node that this is about.
fn word(workload_id: &str, state: CompanionState, node_name: Option<&str>) -> Message {
    let companion = Companion {
        rule: "bind".to_owned(),
        state: state.into(),
        before_ready: true,
        before_start: true,
        ..Companion::default()
    };
    Message::Workload(WorkloadCompanions {
        workload_id: workload_id.to_owned(),
        companions: vec![companion],
        node_name: node_name.map(str::to_owned),
        ..WorkloadCompanions::default()
    })
}

/// Nobody has said that a Pod may be bound.
async fn waits(t: &Tenant, name: &str) -> Result<(), String> {
    let pod: Pod = t.work().get(name).await.in_words()?;
    holds(node_of(&pod).is_empty(), format!("it is bound to {}", node_of(&pod)))?;
    let devices = claim(t, name).await?.status.and_then(|status| status.devices).unwrap_or_default();
    let said: Vec<_> = devices.iter().flat_map(|device| device.conditions.iter().flatten()).collect();
    let ready =
        said.iter().any(|condition| condition.type_ == keys::CLAIM_READY && condition.status == "True");
    holds(!ready, format!("{said:?}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_word_about_the_former_node_binds_no_pod_on_the_next() {
    let o = Outrigger::shared().await;
    if o.plane.tenant.skips(BINDING) {
        return;
    }
    let t = Tenant::without_agent(o, "ab-bind", &[("a", 1), ("b", 1)]).await;
    o.plane.tenant.apply(&kustomize("deploy/base/companions-first").unwrap()).unwrap();
    for host in ["a", "b"] {
        can_run(&t, host, "20").await;
    }
    let (manager, port) = ScriptedManager::start(true).await;
    let [plugins] = ports().unwrap();
    let [insecure, address, _] = Tenant::in_plain_text(&format!("http://127.0.0.1:{port}"));
    let first = ["--companions-first".to_owned(), format!("--host-address=127.0.0.1:{plugins}")];
    gate::start_agent(&t, &[&t.source], &[&[insecure, address][..], &first].concat());
    manager.is_heard().await;
    for host in ["a", "b"] {
        manager.send(&dpu(&t.node(host), ""));
    }
    has_rule(&t, "bind").await;
    let uid = create(&t.work(), &pod("moves", "bind", json!({}))).await.unwrap().uid().unwrap();
    let former = eventually("the scheduler chooses a Node", || allocated(&t, "moves")).await;
    manager.send(&word(&uid, CompanionState::Pending, Some(&former)));
    manager.send(&dpu(&former, "DPUNotReady"));
    let node = eventually("the scheduler chooses another Node", || async {
        let node = allocated(&t, "moves").await?;
        holds(node != former, node.clone())?;
        Ok::<_, String>(node)
    })
    .await;
    // The companion on the former Node's DPU has become Ready at last; and a manager of an earlier version says of which Node it
    // speaks in neither case.
    for about in [Some(&*former), None] {
        manager.send(&word(&uid, CompanionState::Ready, about));
        always("it isn't bound", Duration::from_secs(3), || waits(&t, "moves")).await;
    }
    // The control.
    manager.send(&word(&uid, CompanionState::Ready, Some(&node)));
    assert_eq!(scheduled(&t, "moves").await.0, node);
    t.end("moves").await;
}
