//! Claims and DeviceClasses.

use serde_json::{Value, json};

use super::{check, good, k, policy, with};

#[test]
fn claims_and_devices_of_others() {
    let good = good();
    let faults = |pod: &Value| -> Vec<String> {
        check(&policy(), false, pod, None).into_iter().map(|fault| fault.to_string()).collect()
    };
    let named = |name: &str| with(&good, "/spec/resourceClaims/0/resourceClaimName", json!(name));
    for (name, words) in [
        ("theirs", "which was made for workload \"w2\" alone"),
        ("made", "which was made for Pod \"web\" alone"),
        ("firewall-573e560607f4a185", "a name as only claims for one workload have it"),
        ("firewall-573e560607f4a185-device-x7k2m", "a name as only claims for one workload have it"),
    ] {
        let said = faults(&named(name));
        assert!(said.len() == 1 && said[0].contains(words), "{name}: {said:?}");
        assert!(said[0].starts_with("spec.resourceClaims[0].resourceClaimName: is"), "{said:?}");
    }
    assert_eq!(faults(&named("shared")), Vec::<String>::new());
    // The companion of a workload may name a claim for that workload before it is there.
    let key =
        crate::index::CompanionKey { rule: crate::ids::RuleName::new("r").unwrap(), workload: "w1".into() };
    let own = with(&named(&crate::companion::own_name(&key)), "/metadata/labels", json!({k::WORKLOAD: "w1"}));
    assert_eq!(check(&policy(), true, &own, None), []);
    let other = with(&own, "/metadata/labels", json!({k::WORKLOAD: "w2"}));
    assert_eq!(check(&policy(), true, &other, None).len(), 1);

    let asks = |resource: &str| {
        let resources = json!({"limits": {resource: 1, "cpu": 1}});
        with(&good, "/spec/containers/0/resources", resources)
    };
    for good in ["example.com/regex", "example.com/plugin", "deviceclass.resource.kubernetes.io/regex"] {
        assert_eq!(faults(&asks(good)), Vec::<String>::new(), "{good}");
    }
    for bad in ["example.com/gpu", "example.com/either", "deviceclass.resource.kubernetes.io/gpu"] {
        assert_eq!(
            faults(&asks(bad)),
            [format!(
                "spec.containers[0].resources.limits[{bad}]: asks for a device of class \"gpu\"; have it allowed by the \
                 Tenant's spec.deviceClasses"
            )]
        );
    }
}

#[test]
fn a_companion_may_use_the_claim_that_its_rule_shares() {
    use crate::claim::{DeviceClaimSpec, DevicesSpec, own_shared_name};
    use crate::ids::RuleName;
    use crate::rule::tests::{compiled, named};
    use crate::rule::{Rule, RuleSpec};
    use crate::validate::{ValidationContext, create};

    // Of this rule the claim's name is no sign.
    let of = RuleName::new("a.b").unwrap();
    let shared = DeviceClaimSpec { name: "s".into(), from_rule: "a.b".into(), ..DeviceClaimSpec::default() };
    let template = json!({"apiVersion": "v1", "kind": "Pod", "spec": {"containers": [{"name": "c"}]}});
    let devices = DevicesSpec { claims: vec![shared], host_attribute: String::new() };
    let rule: &Rule = &compiled(RuleSpec { template: template.into(), devices, ..named("r") });
    let (policy, schedulers) = (policy(), ["default-scheduler".to_owned()]);
    let paths = |rule: Option<&Rule>, of: &str| -> Vec<String> {
        let facts = ValidationContext {
            manager: true,
            rule,
            default_priority_class: Some("usual"),
            ..ValidationContext::new(&policy, "tenant-blue", &schedulers)
        };
        let pod = with(&good(), "/spec/resourceClaims/0/resourceClaimName", json!(of));
        let pod = with(&pod, "/metadata/labels", json!({k::WORKLOAD: "w1"}));
        create(&pod, &facts).into_iter().map(|fault| fault.path).collect()
    };
    assert_eq!(paths(Some(rule), &own_shared_name(&of, "w1")), Vec::<String>::new());
    for (rule, workload) in [(Some(rule), "w2"), (None, "w1")] {
        assert_eq!(
            paths(rule, &own_shared_name(&of, workload)),
            ["spec.resourceClaims[0].resourceClaimName"]
        );
    }
}
