//! What a tenant's ResourceClaim, or template of one, may ask for (`resource.k8s.io/v1`, KEP-4381, KEP-5018).

use serde_json::Value;

use super::{cut, entries, keys, text};
use crate::field::FieldError;
use crate::tenant::Policy;

/// Everything that forbids a ResourceClaim or a ResourceClaimTemplate in a tenant's namespace. `old` is null at creation;
/// what hasn't changed since is not judged again.
pub fn claim(object: &Value, old: &Value, policy: &Policy, manager: bool) -> Vec<FieldError> {
    let mut faults = Vec::new();
    keys::unchanged(object, old, manager, &mut faults);
    let (spec, path) = match object.get("spec").and_then(|spec| spec.get("spec")) {
        Some(inner) => (inner, "spec.spec.devices"),
        None => (object.get("spec").unwrap_or(&Value::Null), "spec.devices"),
    };
    if object.get("spec") == old.get("spec") {
        return faults;
    }
    let Some(devices) = spec.get("devices") else { return faults };
    for (path, request) in entries(devices, path, "requests") {
        if let Some(exactly) = request.get("exactly") {
            device_request(&format!("{path}.exactly"), exactly, policy, &mut faults);
        }
        for (path, alternative) in entries(request, &path, "firstAvailable") {
            device_request(&path, alternative, policy, &mut faults);
        }
    }
    faults
}

fn device_request(path: &str, request: &Value, policy: &Policy, faults: &mut Vec<FieldError>) {
    if request.get("adminAccess") == Some(&Value::Bool(true)) {
        faults.push(FieldError::new(
            format_args!("{path}.adminAccess"),
            "is true and reaches devices that others have; remove it",
        ));
    }
    let class = text(request, "deviceClassName").unwrap_or_default();
    if !policy.device_classes.contains(class) {
        faults.push(FieldError::new(
            format_args!("{path}.deviceClassName"),
            format_args!("is {:?}; have it allowed by the Tenant's spec.deviceClasses", cut(class)),
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::TenantId;
    use serde_json::json;

    #[test]
    fn what_a_claim_may_not_ask_for() {
        let mut policy = Policy::new(TenantId::new("blue").unwrap());
        policy.device_classes.insert("crypto".into());
        let paths = |spec: &Value, old: &Value| -> Vec<String> {
            claim(&json!({"spec": spec}), old, &policy, false).into_iter().map(|f| f.path).collect()
        };
        let good =
            json!({"devices": {"requests": [{"name": "a", "exactly": {"deviceClassName": "crypto"}}]}});
        assert_eq!(paths(&good, &Value::Null), Vec::<String>::new());
        let bad = json!({"devices": {"requests": [
            {"name": "a", "exactly": {"deviceClassName": "crypto", "adminAccess": true}},
            {"name": "b", "firstAvailable": [{"deviceClassName": "crypto"}, {"deviceClassName": "gpu"}]}]}});
        let expected = [
            "devices.requests[0].exactly.adminAccess",
            "devices.requests[1].firstAvailable[1].deviceClassName",
        ];
        assert_eq!(paths(&bad, &Value::Null), expected.map(|p| format!("spec.{p}")));
        assert_eq!(
            paths(&json!({"spec": bad}), &Value::Null),
            expected.map(|p| format!("spec.spec.{p}")),
            "a template"
        );
        assert_eq!(paths(&bad, &json!({"spec": bad})), Vec::<String>::new(), "it was so before");
        let marked = json!({"metadata": {"labels": {"outrigger.dev/workload": "w"}}, "spec": good});
        assert_eq!(claim(&marked, &Value::Null, &policy, false).len(), 1);
        assert_eq!(claim(&marked, &Value::Null, &policy, true), []);
    }
}
