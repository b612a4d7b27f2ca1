use outrigger_core::tenant::Policy;
use serde_json::json;

use super::*;

fn errors(name: &str, spec: serde_json::Value) -> Vec<String> {
    let tenant: Tenant = serde_json::from_value(json!({
        "apiVersion": "outrigger.dev/v1alpha1", "kind": "Tenant", "metadata": {"name": name}, "spec": spec}))
    .unwrap();
    tenant.compile().err().unwrap_or_default().into_iter().map(|e| e.path).collect()
}

#[test]
fn a_limit_of_more_than_32_bits_is_read() {
    let limits: TenantLimits = serde_json::from_value(json!({"companions": 9_999_999_999_u64})).unwrap();
    assert_eq!((limits.companions, limits.rules), (u32::MAX, TenantLimits::default().rules));
}

#[test]
fn exceptions_name_checks_and_pods_that_can_be_and_a_time() {
    let exception = |change: serde_json::Value| {
        let mut all = json!({"name": "a", "requestedBy": "storage", "checks": ["ClaimsOfOtherPods"],
            "pods": ["web-0", "job-*", "a.b-*"], "until": "2027-01-31T00:00:00Z"});
        change.as_object().into_iter().flatten().for_each(|(key, value)| all[key] = value.clone());
        all
    };
    let found = |change: serde_json::Value| errors("blue", json!({"exceptions": [exception(change)]}));
    assert_eq!(found(json!({})), [""; 0]);
    for (change, path) in [
        (json!({"name": "A"}), "name"),
        (json!({"checks": ["NodeAffinity"]}), "checks"),
        (json!({"pods": ["*"]}), "pods"),
        (json!({"pods": ["-*"]}), "pods"),
        (json!({"pods": ["a*b"]}), "pods"),
        (json!({"pods": ["web-"]}), "pods"),
        (json!({"until": "tomorrow"}), "until"),
    ] {
        assert_eq!(found(change.clone()), [format!("spec.exceptions[0].{path}")], "{change}");
    }
    let twice = json!({"exceptions": [exception(json!({})), exception(json!({}))]});
    assert_eq!(errors("blue", twice), ["spec.exceptions[1].name"]);
}

#[test]
fn a_tenant_with_an_empty_spec_has_defaults() {
    let tenant: Tenant = serde_json::from_value(json!({
        "apiVersion": "outrigger.dev/v1alpha1", "kind": "Tenant", "metadata": {"name": "blue"}, "spec": {}}))
    .unwrap();
    let tenant = tenant.compile().unwrap();
    assert_eq!(tenant.namespace, "tenant-blue");
    assert_eq!(tenant.limits, domain::Limits::default());
    assert_eq!(tenant.policy, Policy::new(TenantId::new("blue").unwrap()));
    assert_eq!(tenant.enforcement, None, "the installation's");
}

#[test]
fn a_host_has_the_name_of_its_node() {
    let names = json!([{"node": "worker-1", "host": "h"}, {"node": "h", "host": "i"}]);
    let tenant: Tenant = serde_json::from_value(json!({
        "apiVersion": "outrigger.dev/v1alpha1", "kind": "Tenant", "metadata": {"name": "blue"},
        "spec": {"hosts": ["h", "i", "j"], "hostNames": names}}))
    .unwrap();
    let tenant = tenant.compile().unwrap();
    let of = |host| tenant.host_names.node(host).unwrap_or_default();
    assert_eq!(["h", "i", "j"].map(of), ["worker-1", "h", "j"]);
}

#[test]
fn each_invalid_field_is_reported() {
    let long = "x".repeat(57);
    assert_eq!(errors(&long, json!({"namespace": "x"})), ["metadata.name"]);
    assert_eq!(errors(&long, json!({})), ["metadata.name", "spec.namespace"]);
    for (spec, path) in [
        (json!({"namespace": "kube-system"}), "spec.namespace"),
        (json!({"namespace": "outrigger-system"}), "spec.namespace"),
        (json!({"namespace": "default"}), "spec.namespace"),
        (json!({"namespace": "A"}), "spec.namespace"),
        (json!({"identities": ["a.b", "spiffe://x"]}), "spec.identities[1]"),
        (json!({"identities": ["a.b", "a.b"]}), "spec.identities[1]"),
        (json!({"hosts": ["h", "h"]}), "spec.hosts[1]"),
        (json!({"hosts": ["h", "H"]}), "spec.hosts[1]"),
        (json!({"hosts": ["h"], "hostNames": [{"node": "A b", "host": "h"}]}), "spec.hostNames[0].node"),
        (json!({"hosts": ["h"], "hostNames": [{"node": "n", "host": "i"}]}), "spec.hostNames[0].host"),
        (
            json!({"hosts": ["h", "i"], "hostNames": [{"node": "n", "host": "h"}, {"node": "n", "host": "i"}]}),
            "spec.hostNames[1].node",
        ),
        (
            json!({"hosts": ["h"], "hostNames": [{"node": "n", "host": "h"}, {"node": "m", "host": "h"}]}),
            "spec.hostNames[1].host",
        ),
        (json!({"podSecurity": "none"}), "spec.podSecurity"),
        (json!({"enforcement": "Off"}), "spec.enforcement"),
        (json!({"enforcement": ""}), "spec.enforcement"),
        (json!({"serviceAccounts": [""]}), "spec.serviceAccounts[0]"),
        (json!({"priorityClasses": ["a b"]}), "spec.priorityClasses[0]"),
        (json!({"runtimeClasses": ["/"]}), "spec.runtimeClasses[0]"),
        (json!({"deviceClasses": ["x", "x"]}), "spec.deviceClasses[1]"),
    ] {
        assert_eq!(errors("blue", spec), [path]);
    }
}
