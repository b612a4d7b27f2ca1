//! What a Pod says of itself.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;

/// Whether a Pod's Ready condition is true.
pub fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|s| s.conditions.as_deref()).unwrap_or_default();
    conditions.iter().any(|c| c.type_ == "Ready" && c.status == "True")
}

/// An annotation of a Pod.
pub fn annotation<'a>(pod: &'a Pod, key: &str) -> Option<&'a str> {
    pod.annotations().get(key).map(String::as_str)
}

/// The Node that a Pod runs on.
pub fn node_of(pod: &Pod) -> &str {
    pod.spec.as_ref().and_then(|s| s.node_name.as_deref()).unwrap_or_default()
}

/// The name of a Pod, and each of its conditions that isn't true.
pub(super) fn describe(pod: &Pod) -> String {
    let status: BTreeMap<String, String> = pod
        .status
        .iter()
        .flat_map(|s| s.conditions.iter().flatten())
        .filter(|c| c.status != "True")
        .map(|c| (c.type_.clone(), c.message.clone().unwrap_or_default()))
        .collect();
    format!("{} {status:?}", pod.name_any())
}
