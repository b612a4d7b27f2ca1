//! Values that are written into clusters and compared with what is computed later, also by later versions. Where one of these
//! changes, every companion in the world is replaced, renamed, or not found again. So none may change by accident.

use serde_json::json;

use super::*;
use crate::claim::{DeviceClaimSpec, DevicesSpec, templates};
use crate::rule::RuleSpec;
use crate::slots::ledger_name;

fn rule(policy: DpuSelectionPolicy, template: Value, devices: DevicesSpec) -> Rule {
    let spec = RuleSpec {
        uid: "8f7d4a5e-0b8e-4f7c-9d52-1c3c0e6f2a11".into(),
        policy,
        template: template.into(),
        devices,
        ..RuleSpec::new(RuleName::new("my.rule").unwrap())
    };
    Rule::compile(spec).unwrap()
}

/// Has all that JSON has, in an order that isn't that of its keys.
fn pod() -> Value {
    json!({"kind": "Pod", "apiVersion": "v1",
        "metadata": {"labels": {"b": "2", "a": "1"}, "annotations": {"note": "ü \"x\"\n"}},
        "spec": {"containers": [{"name": "c", "image": "registry.example/c:1", "args": ["--x", "1"],
            "env": [{"name": "EMPTY", "value": ""}], "securityContext": {"privileged": false, "runAsUser": 1000},
            "unknown": {"number": 1.5, "negative": -3, "large": 18_446_744_073_709_551_615_u64, "none": null}},
            {"name": "d"}]}})
}

fn claim() -> Value {
    json!({"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "crypto", "count": 2}}]}})
}

#[test]
fn hashes_of_templates_do_not_change() {
    use DpuSelectionPolicy::{Any, SameNode};
    let none = DevicesSpec::default;
    let claims = || DevicesSpec {
        claims: vec![
            DeviceClaimSpec {
                name: "own".into(),
                spec: Some(claim().into()),
                containers: vec!["c".into()],
                request: "r".into(),
                ..DeviceClaimSpec::default()
            },
            DeviceClaimSpec {
                name: "shared".into(),
                from_rule: "other".into(),
                ..DeviceClaimSpec::default()
            },
        ],
        ..none()
    };
    let shared =
        json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "spec": claim(), "metadata": {}});
    let host = DevicesSpec { host_attribute: "dpu.example.com/host".into(), ..none() };
    // Those of content may change with what is known to mean nothing: companions are then compared by what was written.
    for (rule, written, content) in [
        (rule(SameNode, pod(), none()), "a4c6dccdd9f899b3", Some("9897b02869e26795")),
        (rule(Any, pod(), none()), "8de90ad59c866c40", Some("711bbec26c712988")),
        (rule(SameNode, pod(), claims()), "3c88697fd8e85453", None),
        (rule(SameNode, shared.clone(), none()), "fc6191b5547429be", None),
        (rule(SameNode, shared, host), "cb5d43f99e994818", None),
    ] {
        let content = content.unwrap_or(rule.content_hash());
        let hashes = (rule.template_hash(), rule.content_hash());
        assert_eq!(hashes, (written, content), "{:?} {}", rule.policy(), rule.template());
    }
    let rule = rule(SameNode, pod(), claims());
    let names: Vec<String> = templates(&rule, Some(&TenantId::new("blue").unwrap()), "n", true)
        .into_iter()
        .map(|t| t.name)
        .collect();
    assert_eq!(names, ["my-rule-f01de9cd8ec2c7da"]);
}

#[test]
fn names_of_companions_do_not_change() {
    const UID: &str = "0c1a9b1e-6a51-4d52-9f3d-5d8c1f7f0a44";
    let long = format!("{}.x", "y".repeat(80));
    let tenant = TenantId::new("blue").unwrap();
    let named = |rule: RuleName| name(&CompanionKey { rule, workload: UID.into() }, &tenant);
    assert_eq!(named(RuleName::new("my.rule").unwrap()), "my-rule-6ac7c5a56d427858");
    assert_eq!(
        named(RuleName::new(&long).unwrap()),
        "yyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyy-0b35161f587dbfe8"
    );
    assert_eq!(named(RuleName::admin("my.rule").unwrap()), "my-rule-f1f4915dea4cd074");
    assert_eq!(RuleName::new(&long).unwrap().label_value(), "h-c1d833b10e022f0d71ace590ae7c608d");
    assert_eq!(WorkloadId::new(UID).unwrap().label_value(), UID);
    assert_eq!(WorkloadId::new(&"w".repeat(64)).unwrap().label_value(), "h-54b74fa3b75131703c57f171843dc58b");
    assert_eq!(ledger_name("group", "type"), "slots-cef9dd29f590a4c90b8e");
}
