use serde_json::{Value, json};

use super::*;

fn budget(uid: &str, spec: Value, status: Value) -> PodDisruptionBudget {
    serde_json::from_value(
        json!({"metadata": {"name": uid, "namespace": "n", "uid": uid}, "spec": spec, "status": status}),
    )
    .unwrap()
}

/// A budget that selects all Pods.
fn all(uid: &str, desired_healthy: i64) -> PodDisruptionBudget {
    budget(uid, json!({"selector": {}}), status(desired_healthy))
}

fn status(desired_healthy: i64) -> Value {
    json!({"currentHealthy": 0, "desiredHealthy": desired_healthy, "disruptionsAllowed": 0, "expectedPods": 0})
}

fn workload(labels: &Value, owner: Option<&str>) -> Workload {
    let mut pod = json!({"metadata": {"name": "a", "namespace": "n", "uid": "a", "labels": labels}});
    if let Some(owner) = owner {
        pod["metadata"]["ownerReferences"] = json!([{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": owner, "controller": true}]);
    }
    crate::pod::workload(serde_json::from_value(pod).unwrap()).unwrap()
}

fn ids(groups: &[DisruptionGroup]) -> Vec<(&str, Option<u32>)> {
    groups.iter().map(|group| (&*group.id, group.desired_healthy)).collect()
}

#[test]
fn selectors_have_the_meaning_of_policy_v1() {
    let expression = |operator: &str, values: Value| json!({"selector": {"matchExpressions": [{"key": "app", "operator": operator, "values": values}]}});
    let (web, db, none) = (json!({"app": "web"}), json!({"app": "db"}), json!({}));
    for (spec, expected) in [
        (json!({}), [false, false, false]),
        (json!({"selector": null}), [false, false, false]),
        (json!({"selector": {}}), [true, true, true]),
        (json!({"selector": {"matchLabels": {"app": "web"}}}), [true, false, false]),
        (expression("In", json!(["web", "x"])), [true, false, false]),
        (expression("NotIn", json!(["web"])), [false, true, true]),
        (expression("Exists", json!(null)), [true, true, false]),
        (expression("DoesNotExist", json!(null)), [false, false, true]),
        // Invalid selectors, of which some would select everything.
        (expression("NotIn", json!(["a b"])), [false, false, false]),
        (expression("NotIn", json!(null)), [false, false, false]),
        (expression("Other", json!(["web"])), [false, false, false]),
        (json!({"selector": {"matchExpressions": [{"key": "a b", "operator": "DoesNotExist"}]}}), [false; 3]),
    ] {
        let mut budgets = Budgets::default();
        budgets.apply(&budget("b", spec.clone(), status(1)));
        let selected = [&web, &db, &none].map(|labels| !budgets.groups(&workload(labels, None)).is_empty());
        assert_eq!(selected, expected, "{spec}");
    }
}

#[test]
fn a_budget_counts_in_its_namespace_and_with_a_status_and_an_id_that_can_be_sent() {
    let with = |budget: &PodDisruptionBudget| {
        let mut budgets = Budgets::default();
        budgets.apply(budget);
        budgets.groups(&workload(&json!({}), None)).len()
    };
    assert_eq!(with(&all("b", 0)), 1);
    assert_eq!(with(&budget("b", json!({"selector": {}}), json!(null))), 0);
    assert_eq!(with(&all("b", -1)), 0);
    assert_eq!(
        (with(&all("", 1)), with(&all(&"a".repeat(64), 1)), with(&all(&"a".repeat(65), 1))),
        (0, 1, 0)
    );
    let mut other = all("b", 1);
    other.metadata.namespace = Some("other".to_owned());
    assert_eq!(with(&other), 0);
}

#[test]
fn the_owner_is_first_then_budgets_by_uid_and_there_are_few() {
    let mut budgets = Budgets::default();
    for uid in ["c", "a", "b"] {
        budgets.apply(&all(uid, 1));
    }
    let mut workload = workload(&json!({}), Some("z"));
    let z = crate::pod::owner_group("n", "z");
    let expected = [(&*z, None), ("a", Some(1)), ("b", Some(1)), ("c", Some(1))];
    assert_eq!(ids(&budgets.groups(&workload)), expected);
    workload.groups = budgets.groups(&workload);
    assert_eq!(
        ids(&budgets.groups(&workload)),
        expected,
        "the groups of budgets are computed, that of the owner stays"
    );
    for i in 0..9 {
        budgets.apply(&all(&format!("b{i}"), 2));
    }
    let groups = budgets.groups(&workload);
    assert_eq!(groups.len(), MAX_GROUPS);
    assert_eq!(ids(&groups)[..4], [(&*z, None), ("a", Some(1)), ("b", Some(1)), ("b0", Some(2))]);
}

#[test]
fn only_the_selector_and_the_number_are_a_change() {
    let mut budgets = Budgets::default();
    assert!(budgets.apply(&all("b", 1)).is_some());
    let mut healthy = status(1);
    healthy["currentHealthy"] = json!(7);
    healthy["disruptedPods"] = json!({"a": "2026-01-01T00:00:00Z"});
    assert!(budgets.apply(&budget("b", json!({"selector": {}, "minAvailable": 3}), healthy)).is_none());
    assert!(budgets.apply(&all("b", 2)).is_some());
    let web = budget("b", json!({"selector": {"matchLabels": {"app": "web"}}}), status(2));
    let affected = budgets.apply(&web).unwrap();
    assert!(affected.includes(&workload(&json!({}), None)), "it was selected before");
    let affected = budgets.apply(&budget("b", json!({}), status(2))).unwrap();
    assert!(affected.includes(&workload(&json!({"app": "web"}), None)));
    assert!(!affected.includes(&workload(&json!({"app": "db"}), None)));
    assert!(budgets.remove("n", "b").is_none() && budgets.namespaces.is_empty());
}

#[test]
fn the_budgets_of_a_namespace_are_limited() {
    let mut budgets = Budgets::default();
    for i in 0..MAX_BUDGETS {
        assert!(budgets.apply(&all(&format!("b{i}"), 1)).is_some());
    }
    assert!(budgets.apply(&all("more", 1)).is_none());
    assert!(budgets.apply(&all("b0", 2)).is_some(), "those that are kept go on changing");
    let mut other = all("more", 1);
    other.metadata.namespace = Some("other".to_owned());
    assert!(budgets.apply(&other).is_some(), "each namespace has its own limit");
    budgets.remove("n", "b1");
    assert!(budgets.apply(&all("more", 1)).is_some());
}

#[test]
fn what_a_list_lacks_is_removed_from_its_namespaces_only() {
    let mut budgets = Budgets::default();
    let mut other = all("other", 1);
    other.metadata.namespace = Some("other".to_owned());
    for budget in [&all("a", 1), &all("b", 1), &other] {
        budgets.apply(budget);
    }
    assert_eq!(budgets.retain(Some("n"), |uid| uid == "b").len(), 1);
    assert_eq!(ids(&budgets.groups(&workload(&json!({}), None))), [("b", Some(1))]);
    assert_eq!(budgets.retain(None, |uid| uid == "b").len(), 1);
    budgets.keep_namespaces(&BTreeSet::from(["other".to_owned()]));
    assert!(budgets.namespaces.is_empty());
}
