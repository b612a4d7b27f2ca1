//! What a tenant's ResourceClaim, or template of one, may ask for (`resource.k8s.io/v1`, KEP-4381, KEP-5018).

use crate::map::HashSet;
use serde_json::Value;

use super::{entries, keys, reserved, text};
use crate::device;
use crate::field::{FieldError, FieldErrors, join};
use crate::json::list;
use crate::keys::POD_CLAIM_NAME;
use crate::steps::step;
use crate::tenant::Policy;
use crate::text::quoted;

/// Who writes a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Writer {
    /// Outrigger's manager.
    Manager,
    /// A controller of the cluster itself, or its scheduler: they make claims for single Pods.
    Cluster,
    /// Any other user.
    User,
}

/// Everything that forbids a ResourceClaim or a ResourceClaimTemplate in a tenant's namespace. `old` is null at creation;
/// what hasn't changed since is not judged again.
pub fn claim(object: &Value, old: &Value, policy: &Policy, writer: Writer) -> Vec<FieldError> {
    let mut faults = Vec::new();
    keys::unchanged(object, old, writer == Writer::Manager, &mut faults);
    if writer == Writer::User {
        of_pods(object, old, &mut faults);
    }
    let (spec, path) = spec_of(object);
    let is_template = path == "spec.spec";
    if old.is_null() && writer == Writer::User && !is_template {
        predictable_name(object, &mut faults);
    }
    if object.get("spec") != old.get("spec") {
        faults.extend(device_requests(spec, path, policy));
    }
    faults
}

/// Fields of a claim's spec that a tenant may not set; `path` is the path of the spec. This is for claims in whatever object:
/// the API server's own rules are [`device::faults`].
pub fn device_requests(spec: &Value, path: &str, policy: &Policy) -> Vec<FieldError> {
    let mut faults = Vec::new();
    for (below, request) in device::subrequests(spec) {
        device_request(&join(path, &below), request, policy, &mut faults);
    }
    faults
}

/// Warnings about a ResourceClaim or a ResourceClaimTemplate that is admitted.
pub fn claim_warnings(object: &Value) -> Vec<String> {
    device::warnings(spec_of(object).0)
}

/// The claim's spec in a ResourceClaim or in a ResourceClaimTemplate, and its path. By the kind: a claim may have a field
/// `spec.spec` too, until the API server drops what it doesn't know.
fn spec_of(object: &Value) -> (&Value, &'static str) {
    let spec = object.get("spec").unwrap_or(&Value::Null);
    if text(object, "kind") == Some("ResourceClaimTemplate") {
        return (spec.get("spec").unwrap_or(&Value::Null), "spec.spec");
    }
    (spec, "spec")
}

fn device_request(path: &str, request: &Value, policy: &Policy, faults: &mut Vec<FieldError>) {
    if request.get("adminAccess") == Some(&Value::Bool(true)) {
        faults.add(
            format_args!("{path}.adminAccess"),
            "is true and reaches devices that others have; remove it",
        );
    }
    for (path, toleration) in entries(request, path, "tolerations") {
        if text(toleration, "key").unwrap_or_default().is_empty() {
            faults.add(
                format_args!("{path}.key"),
                "is missing, so it tolerates every taint, also of devices that are out of order; name one",
            );
        }
    }
    let class = text(request, "deviceClassName").unwrap_or_default();
    if !policy.device_classes.contains(class) {
        faults.add(
            format_args!("{path}.deviceClassName"),
            format_args!("is {:?}; have it allowed by the Tenant's spec.deviceClasses", quoted(class)),
        );
    }
}

/// A claim that says it was made for a Pod is given to that Pod, which may be another workload's companion.
fn of_pods(object: &Value, old: &Value, faults: &mut Vec<FieldError>) {
    let pod_claim = |object: &Value| object.pointer("/metadata/annotations")?.get(POD_CLAIM_NAME).cloned();
    if pod_claim(object) != pod_claim(old) {
        faults.add(
            format_args!("metadata.annotations[{POD_CLAIM_NAME}]"),
            "is for claims that Kubernetes makes for a Pod; leave it as it was",
        );
    }
    let owners = |object| list(object, "/metadata/ownerReferences").iter();
    let before: HashSet<&Value> = owners(old).collect();
    for (i, owner) in owners(object).enumerate() {
        step();
        if text(owner, "kind") == Some("Pod") && !before.contains(owner) {
            faults.add(
                format_args!("metadata.ownerReferences[{i}]"),
                format_args!(
                    "is Pod {:?}: only Kubernetes makes claims of Pods; use a ResourceClaimTemplate",
                    quoted(text(owner, "name").unwrap_or_default())
                ),
            );
        }
    }
}

/// A claim under a name that Outrigger will need would keep a workload from its device, or be taken for it.
fn predictable_name(object: &Value, faults: &mut Vec<FieldError>) {
    let name = object.get("metadata").and_then(|metadata| text(metadata, "name")).unwrap_or_default();
    if reserved::is_companion(name) {
        faults.add(
            "metadata.name",
            format_args!("is {:?}, a name as only companions have it; choose another", quoted(name)),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::TenantId;
    use serde_json::json;

    fn policy() -> Policy {
        let mut policy = Policy::new(TenantId::new("blue").unwrap());
        policy.device_classes.insert("crypto".into());
        policy
    }

    fn good() -> Value {
        json!({"devices": {"requests": [{"name": "a", "exactly": {"deviceClassName": "crypto"}}]}})
    }

    fn bad() -> Value {
        json!({"devices": {"requests": [
            {"name": "a", "exactly": {"deviceClassName": "crypto", "adminAccess": true}},
            {"name": "b", "firstAvailable": [{"deviceClassName": "crypto"}, {"deviceClassName": "gpu"}]}]}})
    }

    const BAD: [&str; 2] =
        ["devices.requests[0].exactly.adminAccess", "devices.requests[1].firstAvailable[1].deviceClassName"];

    fn paths(faults: Vec<FieldError>) -> Vec<String> {
        faults.into_iter().map(|fault| fault.path).collect()
    }

    #[test]
    fn what_a_claim_may_not_ask_for() {
        let judged =
            |spec: &Value, old: &Value| paths(claim(&json!({"spec": spec}), old, &policy(), Writer::User));
        let decoy = json!({"devices": bad()["devices"], "spec": good()});
        assert_eq!(
            judged(&decoy, &Value::Null),
            BAD.map(|p| format!("spec.{p}")),
            "it only looks like a template"
        );
        let mut tolerant = good();
        tolerant["devices"]["requests"][0]["exactly"]["tolerations"] =
            json!([{"key": "a"}, {"operator": "Exists"}]);
        assert_eq!(judged(&tolerant, &Value::Null), ["spec.devices.requests[0].exactly.tolerations[1].key"]);
        assert_eq!(judged(&good(), &Value::Null), Vec::<String>::new());
        assert_eq!(judged(&bad(), &Value::Null), BAD.map(|p| format!("spec.{p}")));
        let template = json!({"kind": "ResourceClaimTemplate", "spec": {"spec": bad()}});
        assert_eq!(
            paths(claim(&template, &Value::Null, &policy(), Writer::User)),
            BAD.map(|p| format!("spec.spec.{p}")),
            "a template"
        );
        assert_eq!(judged(&bad(), &json!({"spec": bad()})), Vec::<String>::new(), "it was so before");
        let marked = json!({"metadata": {"labels": {"outrigger.dev/workload": "w"}}, "spec": good()});
        assert_eq!(claim(&marked, &Value::Null, &policy(), Writer::User).len(), 1);
        assert_eq!(claim(&marked, &Value::Null, &policy(), Writer::Cluster).len(), 1);
        assert_eq!(claim(&marked, &Value::Null, &policy(), Writer::Manager), []);
    }

    #[test]
    fn a_claim_of_a_pod_is_made_by_kubernetes() {
        let of_pod = json!({"metadata": {"annotations": {POD_CLAIM_NAME: "d"}, "ownerReferences": [
            {"apiVersion": "apps/v1", "kind": "Deployment", "name": "d"},
            {"apiVersion": "v1", "kind": "Pod", "name": "p", "controller": true}]}, "spec": good()});
        let expected =
            ["metadata.annotations[resource.kubernetes.io/pod-claim-name]", "metadata.ownerReferences[1]"];
        let plain = json!({"spec": good()});
        for old in [&Value::Null, &plain] {
            assert_eq!(paths(claim(&of_pod, old, &policy(), Writer::User)), expected);
            assert_eq!(claim(&of_pod, old, &policy(), Writer::Cluster), []);
        }
        assert_eq!(claim(&of_pod, &of_pod, &policy(), Writer::User), []);
        assert_eq!(paths(claim(&plain, &of_pod, &policy(), Writer::User)), expected[..1]);
    }

    #[test]
    fn names_of_companions_are_outriggers() {
        let named = |name: &str| json!({"metadata": {"name": name}, "spec": good()});
        let companions_own = named("firewall-573e560607f4a185");
        assert_eq!(paths(claim(&companions_own, &Value::Null, &policy(), Writer::User)), ["metadata.name"]);
        assert_eq!(claim(&companions_own, &Value::Null, &policy(), Writer::Manager), []);
        assert_eq!(
            claim(&companions_own, &companions_own, &policy(), Writer::User),
            [],
            "an update of one that is there"
        );
        assert_eq!(claim(&named("firewall"), &Value::Null, &policy(), Writer::User), []);
    }

    #[test]
    fn what_is_admitted_and_never_allocated_is_a_warning_for_claims_and_templates() {
        let mut many = good();
        many["devices"]["requests"][0]["exactly"]["count"] = json!(33);
        let template = |spec: Value| json!({"kind": "ResourceClaimTemplate", "spec": {"spec": spec}});
        for object in [json!({"spec": many}), template(many)] {
            let said = claim_warnings(&object);
            assert!(said.len() == 1 && said[0].contains("ask for 33 devices"), "{said:?}");
        }
        for object in [json!({"spec": good()}), template(good())] {
            assert_eq!(claim_warnings(&object), Vec::<String>::new());
        }
    }
}
