use serde_json::json;

use super::*;

fn rule(name: &str, generation: i64, ordering: &str) -> Arc<WorkloadRule> {
    let object = json!({"apiVersion": "workload.universe.nvidia.com/v1alpha1", "kind": "WorkloadRule",
        "metadata": {"name": name, "uid": name, "generation": generation},
        "spec": {"ordering": ordering,
            "workloadTerms": [{"matchExpressions": [{"key": "@", "operator": "Exists"}]}],
            "template": {"apiVersion": "v1", "kind": "Pod", "spec": {"containers": [{"name": "c", "image": "i"}]}}}});
    Arc::new(serde_json::from_value(object).unwrap())
}

fn names(rules: &[Arc<WorkloadRule>]) -> Vec<String> {
    rules.iter().map(|rule| rule.name_any()).collect()
}

#[test]
fn only_valid_rules_with_an_ordering_count_and_each_is_reported_once() {
    let mut ordered = Ordered::new();
    let rules = [rule("a", 1, "BeforeReady"), rule("b", 1, "Parallel"), rule("c", 1, "Later")];
    assert_eq!(names(&update(&mut ordered, &rules)), ["a"]);
    let first = ordered["a"].2.clone();
    assert_eq!(names(&update(&mut ordered, &rules)), [""; 0]);
    assert!(Arc::ptr_eq(&first, &ordered["a"].2), "it isn't compiled again");
    let rules = [rule("a", 2, "BeforeReady"), rule("b", 2, "BeforeReady")];
    assert_eq!(names(&update(&mut ordered, &rules)), ["b"]);
    let rules = [rule("a", 3, "BeforeStart"), rule("b", 2, "BeforeReady")];
    assert_eq!(names(&update(&mut ordered, &rules)), ["a"], "another ordering may not be enforced");
    assert_eq!(ordered.len(), 2);
    assert_eq!(names(&update(&mut ordered, &[])), [""; 0]);
    assert!(ordered.is_empty());
}

#[test]
fn rules_are_followed_while_their_events_wait() {
    let (reports, mut events) = mpsc::channel(1);
    let enforces = Enforces { gates: false, devices: Publishing::Off };
    let rules = [rule("a", 1, "Parallel"), rule("b", 1, "BeforeReady"), rule("c", 1, "BeforeReady")];
    report(&reports, enforces, rules);
    let (about, text) = events.try_recv().unwrap();
    assert_eq!(about.name.as_deref(), Some("b"));
    assert!(text.starts_with("spec.ordering: is BeforeReady"), "{text}");
    assert!(events.try_recv().is_err(), "no more are remembered");
}

#[test]
fn an_ordering_that_is_not_enforced_says_what_to_enable() {
    use Publishing::{BindingForbidden, Forbidden, NoBinding, NoClass, Off, Unsupported, Working};
    for (gates, devices, ordering, remedy) in [
        (false, Off, Ordering::Parallel, None),
        (false, Off, Ordering::BeforeReady, Some("enable the agent's gate")),
        (false, Working, Ordering::BeforeStart, Some("enable the agent's gate")),
        (true, Off, Ordering::BeforeReady, None),
        (true, Off, Ordering::BeforeStart, Some("enable the agent's setting companionsFirst")),
        (true, Unsupported, Ordering::BeforeStart, Some("upgrade it to Kubernetes 1.34 or later")),
        (true, Forbidden, Ordering::BeforeStart, Some("the role outrigger-agent-companions-first")),
        (true, NoClass, Ordering::BeforeStart, Some("as deploy/base/companions-first has it")),
        (true, NoClass, Ordering::BeforeReady, None),
        (true, Working, Ordering::BeforeStart, None),
        (true, Working, Ordering::BeforeBinding, None),
        (true, NoBinding, Ordering::BeforeStart, None),
        (
            true,
            NoBinding,
            Ordering::BeforeBinding,
            Some("binding.companions.outrigger.dev as deploy/base/companions-first has it"),
        ),
        (true, BindingForbidden, Ordering::BeforeBinding, Some("the role outrigger-agent-companions-first")),
        (true, Forbidden, Ordering::BeforeBinding, Some("the role outrigger-agent-companions-first")),
    ] {
        let enforces = Enforces { gates, devices };
        let starts = matches!(devices, Off | Unsupported);
        assert_eq!(enforces.claims() != Claims::Added, starts, "a Pod that isn't scheduled doesn't start");
        let found = enforces.lacks(ordering);
        assert_eq!(found.is_some(), remedy.is_some(), "{found:?}");
        assert!(found.unwrap_or_default().ends_with(remedy.unwrap_or_default()), "{found:?}");
    }
}

#[test]
fn claims_get_no_weaker_because_something_cannot_be_written() {
    use Publishing::{BindingForbidden, Forbidden, NoBinding, Off, Unsupported, Working};
    for (devices, expected) in [
        (Working, [true, true]),
        (Forbidden, [false, true]),
        (NoBinding, [false, false]),
        (BindingForbidden, [false, false]),
        (Unsupported, [false, false]),
        (Off, [false, false]),
    ] {
        let enforces = Enforces { gates: true, devices };
        assert_eq!([false, true].map(|before| enforces.binds(before)), expected, "{devices:?}");
    }
}

#[test]
fn a_rule_that_is_being_deleted_orders_nothing() {
    let mut rule = (*rule("a", 1, "BeforeReady")).clone();
    rule.metadata.deletion_timestamp =
        Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(jiff::Timestamp::UNIX_EPOCH));
    assert_eq!(names(&update(&mut Ordered::new(), &[Arc::new(rule)])), [""; 0]);
}

#[test]
fn without_namespaces_no_pod_waits() {
    assert_eq!(namespaces(None), Some(BTreeSet::new()));
    assert_eq!(namespaces(Some(&Scope::All)), None);
}
