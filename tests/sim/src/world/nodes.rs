//! Nodes that are lost: their kubelets can't be reached, or can't run containers. What Kubernetes' node lifecycle controller makes of that, and that
//! these kubelets do nothing until they are back. No Pod is evicted: that takes five minutes.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::hosts::{is_true, set_conditions, write_ready};
use super::{ADMIN, World, text};
use crate::model::Model;

/// The controller's user.
pub(crate) const LIFECYCLE: &str = "system:serviceaccount:kube-system:node-controller";

/// What the condition Ready of a Node says whose kubelet can't be reached.
pub(crate) const UNREACHABLE: &str = "Unknown";
/// The same of a kubelet that can't run containers.
pub(crate) const NOT_READY: &str = "False";

/// The taints that Nodes get by their condition Ready.
const TAINTS: [(&str, &str); 2] =
    [(UNREACHABLE, "node.kubernetes.io/unreachable"), (NOT_READY, "node.kubernetes.io/not-ready")];

/// The taint of Nodes that are cordoned.
const CORDONED: &str = "node.kubernetes.io/unschedulable";

/// Time between two looks for a kubelet.
const LOOK: Duration = Duration::from_millis(200);

/// Whether a Node says that it isn't ready. One that says nothing of it is no Node with a kubelet.
fn is_unready(node: &Value) -> bool {
    let mut conditions = node["status"]["conditions"].as_array().into_iter().flatten();
    conditions.any(|condition| condition["type"] == "Ready" && condition["status"] != "True")
}

/// Whether a Node is lost.
pub(crate) fn is_lost(model: &Model, node: &str) -> bool {
    model.get("nodes", None, node).is_some_and(|node| is_unready(&node))
}

/// Whether a Pod is on such a Node.
pub(crate) fn is_on_lost(model: &Model, pod: &Value) -> bool {
    pod["spec"]["nodeName"].as_str().is_some_and(|node| is_lost(model, node))
}

fn cordoned(node: &Value) -> bool {
    node["spec"]["unschedulable"] == true
}

/// Whether a Node is cordoned.
pub(crate) fn is_cordoned(model: &Model, node: &str) -> bool {
    model.get("nodes", None, node).is_some_and(|node| cordoned(&node))
}

/// Waits until the Node of a Pod isn't lost.
pub(crate) async fn heard(model: &Model, pod: &Value) {
    while is_on_lost(model, pod) {
        tokio::time::sleep(LOOK).await;
    }
}

/// The Pods on a Node.
pub(crate) fn pods_on(model: &Model, node: &str) -> Vec<Arc<Value>> {
    let mut pods = model.list("pods");
    pods.retain(|pod| pod["spec"]["nodeName"] == node);
    pods
}

/// A Node gets a condition Ready with this status, and the taints of that.
fn set_ready(model: &Model, name: &str, ready: &str) {
    let Some(node) = model.get("nodes", None, name) else { return };
    let mut conditions = node["status"]["conditions"].as_array().cloned().unwrap_or_default();
    conditions.retain(|condition| condition["type"] != "Ready");
    conditions.push(json!({"type": "Ready", "status": ready}));
    let status = json!({"status": {"conditions": conditions}});
    let _ = model.merge("kubelet", "nodes", (None, name, Some("status")), status);
    let now = TAINTS.iter().filter(|(when, _)| *when == ready);
    let now = now.flat_map(|(_, key)| ["NoSchedule", "NoExecute"].map(|effect| (*key, effect)));
    set_taints(model, name, &TAINTS.map(|(_, key)| key), now.collect());
}

/// Of the taints with these keys a Node has these, and others as before.
fn set_taints(model: &Model, name: &str, keys: &[&str], now: Vec<(&str, &str)>) {
    let Some(node) = model.get("nodes", None, name) else { return };
    let mut taints = node["spec"]["taints"].as_array().cloned().unwrap_or_default();
    taints.retain(|taint| keys.iter().all(|key| taint["key"] != *key));
    taints.extend(now.into_iter().map(|(key, effect)| json!({"key": key, "effect": effect})));
    let _ = model.merge(LIFECYCLE, "nodes", (None, name, None), json!({"spec": {"taints": taints}}));
}

/// A Node is lost, with this status of its condition Ready. Where its kubelet can't be reached, its Pods aren't ready any longer. One that can't run
/// containers goes on to say what is ready.
pub(crate) fn lose(model: &Model, node: &str, ready: &str) {
    set_ready(model, node, ready);
    for pod in pods_on(model, node).iter().filter(|pod| ready == UNREACHABLE && is_true(pod, "Ready")) {
        let at = (pod["metadata"]["namespace"].as_str(), text(pod, "/metadata/name"), Some("status"));
        let status = json!({"status": {"conditions": set_conditions(pod, &[("Ready", false)])}});
        let _ = model.merge(LIFECYCLE, "pods", at, status);
    }
}

/// The kubelet of a lost Node is back, and says which of its Pods are ready.
pub(crate) fn find(model: &Model, node: &str) {
    if is_lost(model, node) {
        set_ready(model, node, "True");
        pods_on(model, node).iter().for_each(|pod| write_ready(model, pod));
    }
}

impl World {
    /// Whether a Node of the infrastructure cluster exists, and isn't lost.
    pub(super) fn has_kubelet(&self, node: &str) -> bool {
        self.infra.get("nodes", None, node).is_some_and(|node| !is_unready(&node))
    }

    /// The kubelets of all lost Nodes are back, and cordoned ones are uncordoned.
    pub(crate) fn recover_nodes(&self) {
        for model in std::iter::once(&self.infra).chain(self.tenants.values()) {
            for node in model.list("nodes") {
                let name = text(&node, "/metadata/name");
                self.cordon(model, name, false);
                find(model, name);
            }
        }
    }

    /// An administrator cordons a Node, or uncordons it. Where the history has drains of kubectl, the controller adds its taint, or removes it.
    pub(crate) fn cordon(&self, model: &Model, name: &str, cordons: bool) {
        if model.get("nodes", None, name).is_none_or(|node| cordoned(&node) == cordons) {
            return;
        }
        let cordon = json!({"spec": {"unschedulable": cordons.then_some(true)}});
        let _ = model.merge(ADMIN, "nodes", (None, name, None), cordon);
        if self.scope.evictions {
            let taint = cordons.then_some((CORDONED, "NoSchedule"));
            set_taints(model, name, &[CORDONED], taint.into_iter().collect());
        }
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use outrigger_runtime::environment::Environment;

    use super::*;
    use crate::model::BUILT_IN;

    #[tokio::test(start_paused = true)]
    async fn a_lost_node_keeps_the_taints_of_others_and_its_pods_are_ready_again_when_it_is_back() {
        let model = Model::new(BUILT_IN, Environment::simulated(1, Timestamp::UNIX_EPOCH));
        let other = json!({"key": "example.com/old", "effect": "NoSchedule"});
        model.create(ADMIN, "namespaces", json!({"metadata": {"name": "a"}})).unwrap();
        let node = json!({"metadata": {"name": "x"}, "spec": {"taints": [other]}});
        model.create(ADMIN, "nodes", node).unwrap();
        for name in ["serves", "starts"] {
            let pod = json!({"metadata": {"name": name, "namespace": "a"}, "spec": {"nodeName": "x"}});
            let pod = model.create(ADMIN, "pods", pod).unwrap();
            let so = name == "serves";
            let conditions = set_conditions(&pod, &[("Ready", so), ("ContainersReady", so)]);
            let status = json!({"status": {"phase": "Running", "conditions": conditions}});
            model.merge("kubelet", "pods", (Some("a"), name, Some("status")), status).unwrap();
        }
        let ready = || {
            ["serves", "starts"].map(|name| is_true(&model.get("pods", Some("a"), name).unwrap(), "Ready"))
        };
        let taints = || model.get("nodes", None, "x").unwrap()["spec"]["taints"].as_array().unwrap().clone();
        for (status, key) in TAINTS {
            lose(&model, "x", status);
            assert!(is_lost(&model, "x"));
            assert_eq!(ready(), [status == NOT_READY, false], "{status}");
            let all = taints();
            assert_eq!(all.len(), 3, "{all:?}");
            assert!(all[0] == other && all[1]["key"] == key && all[2]["key"] == key, "{all:?}");
            find(&model, "x");
            assert!(!is_lost(&model, "x"));
            assert_eq!((ready(), taints()), ([true, false], vec![other.clone()]));
        }
    }
}
