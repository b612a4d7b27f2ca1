//! The controller of PodDisruptionBudgets.

use serde_json::{Value, json};

use super::hosts::is_true;
use super::{SHOP, text};
use crate::model::Model;

/// Whether a budget is about a Pod.
pub(crate) fn selects(budget: &Value, pod: &Value) -> bool {
    let app = &budget["spec"]["selector"]["matchLabels"]["app"];
    app.is_string() && *app == pod["metadata"]["labels"]["app"]
}

/// The status of each budget says how many of its Pods have to be healthy.
pub(super) fn count_budgets(model: &Model) {
    let pods = model.list("pods");
    for budget in model.list("poddisruptionbudgets") {
        let runs = |pod: &Value| !matches!(text(pod, "/status/phase"), "Succeeded" | "Failed");
        let own = || pods.iter().filter(|pod| selects(&budget, pod) && runs(pod));
        let (all, healthy) = (own().count() as u64, own().filter(|pod| is_true(pod, "Ready")).count());
        let desired = match budget["spec"]["minAvailable"].as_u64() {
            Some(least) => least,
            None => all.saturating_sub(budget["spec"]["maxUnavailable"].as_u64().unwrap_or_default()),
        };
        let status = json!({"observedGeneration": budget["metadata"]["generation"], "expectedPods": all,
            "desiredHealthy": desired, "currentHealthy": healthy,
            "disruptionsAllowed": (healthy as u64).saturating_sub(desired)});
        if budget["status"] != status {
            let at = (Some(SHOP), text(&budget, "/metadata/name"), Some("status"));
            let _ =
                model.merge("disruption-controller", "poddisruptionbudgets", at, json!({"status": status}));
        }
    }
}
