//! What a manager tells of hosts' DPUs: what an agent writes of it on the tenant's Nodes, and what no manager can make it write.

use std::collections::BTreeSet;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, NodeCondition};
use kube::ResourceExt;
use kube::api::{Api, WatchParams};
use outrigger_core::keys::{DPU_NOT_READY, DPU_READY};
use outrigger_proto::companion::HostStatus;
use outrigger_proto::companion::watch_response::Message;
use outrigger_tests::history::modified;
use outrigger_tests::outrigger::{Outrigger, SYSTEM, get};
use outrigger_tests::shipped::kustomize;
use outrigger_tests::tenant::{self, Tenant, binding, host};
use outrigger_tests::{InWords, always, eventually, holds, until};
use serde_json::{Value, json};

use crate::abuse::companions::ScriptedManager;
use crate::abuse::is_modest;

fn host_status(node_name: &str, reason: &str) -> Message {
    let (node_name, reason) = (node_name.to_owned(), reason.to_owned());
    Message::Host(HostStatus { node_name, dpu_ready: reason.is_empty(), reason, since: "2001".to_owned() })
}

fn condition(node: &Node) -> Option<&NodeCondition> {
    let all = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    all.into_iter().find(|condition| condition.type_ == DPU_READY)
}

/// The taints of a Node with the agent's key, or of all others but the cluster's own.
fn taints(node: &Node, ours: bool) -> Vec<String> {
    let all = node.spec.iter().flat_map(|spec| spec.taints.iter().flatten());
    let of = all.filter(|taint| {
        !taint.key.starts_with("node.kubernetes.io/") && (taint.key == DPU_NOT_READY) == ours
    });
    of.map(|taint| format!("{}:{}", taint.key, taint.effect)).collect()
}

async fn says(nodes: &Api<Node>, name: &str, reason: Option<&str>, tainted: bool) {
    until(&format!("{name} says {reason:?} {tainted}"), nodes, name, |node| {
        let (found, taints) = (condition(&node).and_then(|c| c.reason.as_deref()), taints(&node, true));
        holds(found == reason && taints.len() == usize::from(tainted), format!("{found:?} {taints:?}"))
    })
    .await;
}

fn arguments(port: u16, more: &[String]) -> Vec<String> {
    let [insecure, address, _] = Tenant::in_plain_text(&format!("http://127.0.0.1:{port}"));
    [&[insecure, address, "--node-conditions".to_owned(), "--node-taints".to_owned()], more].concat()
}

/// An account of an agent that may do what these roles permit everywhere.
fn account(o: &Outrigger, name: &str, roles: &[&str]) -> String {
    let mut objects = vec![tenant::account(SYSTEM, name)];
    let binding = |role: &&str| binding(&format!("{name}-{role}"), None, role, (SYSTEM, name));
    objects.extend(roles.iter().map(binding));
    o.plane.tenant.apply(&objects).unwrap();
    let kubeconfig = o.plane.dir.join(format!("{name}.kubeconfig"));
    o.plane.tenant.service_account(SYSTEM, name, &kubeconfig).unwrap();
    format!("--kubeconfig={}", kubeconfig.display())
}

async fn warns(admin: u16, text: &str) {
    eventually(text, || async {
        let (_, ready) = get(admin, "/readyz?verbose").await?;
        holds(ready.contains(text), ready)
    })
    .await;
}

/// One test, because agents of two tenants in one cluster would each take the other's Nodes for no hosts.
#[tokio::test(flavor = "multi_thread")]
async fn a_hostile_manager_marks_only_nodes_that_exist_and_not_often() {
    let o = Outrigger::shared().await;
    let t = Tenant::without_agent(o, "ab-nodes", &[]).await;
    let (a, other) = (t.node("a"), t.node("other"));
    o.plane.tenant.apply(&[host(&a), host(&other)]).unwrap();
    for part in ["agent-nodes", "agent-node-taints"] {
        o.plane.tenant.apply(&kustomize(&format!("deploy/base/{part}")).unwrap()).unwrap();
    }
    o.plane.tenant.kubectl(&["taint", "node", &a, "example.com/mine:NoSchedule"]).unwrap();
    let nodes: Api<Node> = Api::all(t.cluster.clone());

    // Without the second role the condition is written, and the agent says of the taint that it may not.
    let (manager, port) = ScriptedManager::start(true).await;
    let limited =
        account(o, "ab-nodes", &["outrigger-agent", "outrigger-agent-rules", "outrigger-agent-nodes"]);
    let admin = t.start_agent_with_admin(&arguments(port, &[limited]));
    manager.is_heard().await;
    manager.send(&host_status(&a, "DPUNotReady"));
    says(&nodes, &a, Some("DPUNotReady"), false).await;
    warns(admin, "the agent may not write taints of Nodes").await;
    o.plane.command("term agent-ab-nodes").unwrap();

    let (manager, port) = ScriptedManager::start(true).await;
    let before = nodes.get(&a).await.unwrap();
    let writes = modified(nodes.clone(), WatchParams::default(), before.resource_version().unwrap());
    t.start_agent(&arguments(port, &[]));
    manager.is_heard().await;
    for n in 0..5_000 {
        manager.send(&host_status(
            &a,
            ["", "DPUNotReady", "HostNotListed", "Owned\u{1b}[31m", &"r".repeat(1000)][n % 5],
        ));
        manager.send(&host_status(&format!("{n}{}", "n".repeat(n % 400)), "NoDPU"));
    }
    manager.send(&host_status(&a, "NoDPU"));
    says(&nodes, &a, Some("NoDPU"), true).await;
    is_modest("agent", "--tenant-id=ab-nodes");

    const REASONS: [&str; 4] = ["Ready", "DPUNotReady", "NoDPU", "Unknown"];
    let written = writes.lock().clone();
    let of_a: Vec<&Node> = written.iter().filter(|node| node.name_any() == a).collect();
    let marks: BTreeSet<String> = of_a.iter().map(|node| format!("{:?}", condition(node))).collect();
    assert!((1..40).contains(&of_a.len()), "{} changes", of_a.len());
    assert!((1..30).contains(&marks.len()), "{marks:?}");
    for node in of_a {
        assert_eq!(taints(node, false), ["example.com/mine:NoSchedule"]);
        assert_eq!((node.labels(), node.annotations()), (before.labels(), before.annotations()));
        let Some(found) = condition(node) else { continue };
        assert!(found.reason.as_deref().is_some_and(|reason| REASONS.contains(&reason)), "{found:?}");
        assert!(found.message.as_ref().is_some_and(|message| message.len() <= 256), "{found:?}");
        assert!(!format!("{:?}", found.last_transition_time).contains("2001"), "the manager's clock");
    }
    let unreported = written.iter().filter(|node| node.name_any() == other);
    assert!(unreported.clone().all(|node| condition(node).is_none() && taints(node, true).is_empty()));

    // The manager is away: what it said last stays, also over a restart.
    manager.stop();
    o.plane.command("term agent-ab-nodes").unwrap();
    t.start_agent(&arguments(port, &[]));
    always("condition and taint stay", Duration::from_secs(3), || async {
        let node = nodes.get(&a).await.in_words()?;
        let reason = condition(&node).and_then(|condition| condition.reason.as_deref());
        holds(reason == Some("NoDPU") && taints(&node, true).len() == 1, format!("{reason:?}"))
    })
    .await;
    o.plane.command("term agent-ab-nodes").unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn without_any_role_for_nodes_the_agent_says_so_and_goes_on() {
    let o = Outrigger::shared().await;
    let t = Tenant::without_agent(o, "ab-roleless", &[("a", 1)]).await;
    let (manager, port) = ScriptedManager::start(true).await;
    let limited = account(o, "ab-roleless", &["outrigger-agent", "outrigger-agent-rules"]);
    let admin = t.start_agent_with_admin(&arguments(port, &[limited, "--debug-endpoints".to_owned()]));
    manager.is_heard().await;
    warns(admin, "the Nodes could not be listed").await;
    t.start("w", "a", json!({})).await;
    eventually("the agent is ready and takes new Pods in", || async {
        let (status, ready) = get(admin, "/readyz").await?;
        holds(status == 200, ready)?;
        let (_, state) = get(admin, "/debug/state").await?;
        let state: Value = serde_json::from_str(&state).in_words()?;
        holds(state["agent"]["workloads"] == 1, state.to_string())
    })
    .await;
    o.plane.command("term agent-ab-roleless").unwrap();
}
