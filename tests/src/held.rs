//! Companions that are Ready when a test says so, by a readiness gate of their own.

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use serde_json::{Value, json};

use crate::tenant::{Tenant, rule_for};

/// The condition that such a companion waits for.
pub const GO: &str = "example.com/go";

/// The spec of a rule with such companions and this ordering, for Pods with this label `app`.
pub fn rule(app: &str, ordering: &str) -> Value {
    let mut spec = rule_for("app", app);
    spec["ordering"] = json!(ordering);
    spec["template"]["spec"]["readinessGates"] = json!([{"conditionType": GO}]);
    spec
}

/// Lets a companion become Ready.
pub fn go(t: &Tenant, companion: &Pod) {
    set(t, companion, true);
}

/// Says whether a companion may be Ready.
pub fn set(t: &Tenant, companion: &Pod, ready: bool) {
    let status = if ready { "True" } else { "False" };
    let patch = json!({"status": {"conditions": [{"type": GO, "status": status}]}});
    let more = ["-n", &t.namespace, "--subresource=status", "--type=strategic"];
    t.outrigger.plane.infra.patch(&format!("pod/{}", companion.name_any()), &more, &patch).unwrap();
}
