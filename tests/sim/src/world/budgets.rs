//! The controller of PodDisruptionBudgets, and evictions, which respect them.

use serde_json::{Value, json};

use super::hosts::is_true;
use super::{ADMIN, text};
use crate::model::Model;

/// The controller's user.
const CONTROLLER: &str = "disruption-controller";

/// Whether a budget is about a Pod.
pub(crate) fn selects(budget: &Value, pod: &Value) -> bool {
    let labels = budget["spec"]["selector"]["matchLabels"].as_object();
    let has = |(key, value): (&String, &Value)| pod["metadata"]["labels"][key] == *value;
    budget["metadata"]["namespace"] == pod["metadata"]["namespace"]
        && labels.is_some_and(|labels| !labels.is_empty() && labels.iter().all(has))
}

/// Changes the status of a budget.
fn write(model: &Model, budget: &Value, status: &Value) {
    let at = (budget["metadata"]["namespace"].as_str(), text(budget, "/metadata/name"), Some("status"));
    let _ = model.merge(CONTROLLER, "poddisruptionbudgets", at, json!({"status": status}));
}

/// The status of each budget says how many of its Pods have to be healthy.
pub(super) fn count_budgets(model: &Model) {
    let pods = model.list("pods");
    for budget in model.list("poddisruptionbudgets") {
        let runs = |pod: &Value| !matches!(text(pod, "/status/phase"), "Succeeded" | "Failed");
        let is_healthy =
            |pod: &Value| is_true(pod, "Ready") && pod["metadata"]["deletionTimestamp"].is_null();
        let own = || pods.iter().filter(|pod| selects(&budget, pod) && runs(pod));
        let (all, healthy) = (own().count() as u64, own().filter(|pod| is_healthy(pod)).count());
        let desired = match budget["spec"]["minAvailable"].as_u64() {
            Some(least) => least,
            None => all.saturating_sub(budget["spec"]["maxUnavailable"].as_u64().unwrap_or_default()),
        };
        let status = json!({"observedGeneration": budget["metadata"]["generation"], "expectedPods": all,
            "desiredHealthy": desired, "currentHealthy": healthy,
            "disruptionsAllowed": (healthy as u64).saturating_sub(desired)});
        if budget["status"] != status {
            write(model, &budget, &status);
        }
    }
}

/// Evicts a Pod, as an API server does: it deletes one that runs only where its budget permits that, and refuses where several are about it. Returns
/// whether it is deleted.
pub(crate) fn evict(model: &Model, pod: &Value) -> bool {
    let mut budgets = model.list("poddisruptionbudgets");
    budgets.retain(|budget| selects(budget, pod));
    let permitted = text(pod, "/status/phase") != "Running"
        || match budgets.as_slice() {
            [] => true,
            [budget] => permits(model, budget, pod),
            _ => false,
        };
    let namespace = pod["metadata"]["namespace"].as_str();
    permitted && model.delete(ADMIN, "pods", namespace, text(pod, "/metadata/name")).is_ok()
}

/// Whether a budget permits an eviction, which it counts then. One of a Pod that isn't Ready takes nothing where enough others are.
fn permits(model: &Model, budget: &Value, pod: &Value) -> bool {
    let status = &budget["status"];
    let count = |field: &str| status[field].as_u64().unwrap_or_default();
    let (desired, allowed) = (count("desiredHealthy"), count("disruptionsAllowed"));
    if status["observedGeneration"] != budget["metadata"]["generation"] {
        return false;
    }
    if !is_true(pod, "Ready") && desired > 0 && count("currentHealthy") >= desired {
        return true;
    }
    if allowed > 0 {
        write(model, budget, &json!({"disruptionsAllowed": allowed - 1}));
    }
    allowed > 0
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use outrigger_runtime::environment::Environment;

    use super::*;
    use crate::model::BUILT_IN;
    use crate::world::SHOP;
    use crate::world::hosts::set_conditions;

    #[tokio::test(start_paused = true)]
    async fn as_many_pods_are_evicted_as_their_budget_permits_and_no_ready_one_more() {
        let model = Model::new(BUILT_IN, Environment::simulated(1, Timestamp::UNIX_EPOCH));
        model.create(ADMIN, "namespaces", json!({"metadata": {"name": SHOP}})).unwrap();
        let metadata = |name: &str| json!({"name": name, "namespace": SHOP, "labels": {"app": "a"}});
        for name in ["p", "q", "r", "unready"] {
            let pod = json!({"metadata": metadata(name), "spec": {"nodeName": "x"}});
            let pod = model.create(ADMIN, "pods", pod).unwrap();
            let status = json!({"phase": "Running", "conditions": set_conditions(&pod, &[("Ready", name != "unready")])});
            let at = (Some(SHOP), name, Some("status"));
            model.merge("kubelet", "pods", at, json!({"status": status})).unwrap();
        }
        let spec = json!({"minAvailable": 2, "selector": {"matchLabels": {"app": "a"}}});
        model
            .create(ADMIN, "poddisruptionbudgets", json!({"metadata": metadata("b"), "spec": spec}))
            .unwrap();
        let evicts = |name: &str| evict(&model, &model.get("pods", Some(SHOP), name).unwrap());
        assert!(!evicts("p"), "its controller hasn't seen it");
        count_budgets(&model);
        assert_eq!(["unready", "p", "q"].map(evicts), [true, true, false]);
        // What is being deleted isn't healthy.
        count_budgets(&model);
        assert!(!evicts("q"));
    }
}
