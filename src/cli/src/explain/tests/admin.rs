//! Rules of the platform.

use super::*;

/// A rule of the platform, for tenants with these labels.
fn admin_rule(name: &str, selector: &Value) -> Value {
    let mut rule = rule("universe", name, json!({}));
    rule["kind"] = json!("AdminWorkloadRule");
    rule["spec"]["tenantSelector"] = selector.clone();
    rule
}

/// The one rule of a report.
fn only(report: &Value) -> &Value {
    let [rule] = report["rules"].as_array().unwrap().as_slice() else { panic!("{report}") };
    rule
}

#[test]
fn a_rule_of_the_platform_is_explained_for_the_tenant_that_it_selects() {
    let mut blue = tenant("blue");
    blue["metadata"]["labels"] = json!({"tier": "gold"});
    let state = |selector: &Value| {
        [blue.clone(), admin_rule("fw", selector), pod("work", "web", "blue-a"), dpu("blue-a")]
    };
    let gold = json!({"matchLabels": {"tier": "gold"}});
    let report = explained(&state(&gold), &[]).unwrap();
    let rule = only(&report);
    assert_eq!((&rule["kind"], &rule["namespace"]), (&json!("AdminWorkloadRule"), &json!("universe")));
    assert_eq!(rule["selected"], true);
    let workload = &rule["workloads"][0];
    assert_eq!(workload["outcome"], "Companion", "{report}");
    assert_eq!(workload["placement"]["nodes"][0]["node"], "blue-a-dpu");

    let report = explained(&state(&json!({"matchLabels": {"tier": "bronze"}})), &[]).unwrap();
    assert_eq!((&only(&report)["selected"], &only(&report)["workloads"]), (&json!(false), &json!([])));

    // What is served is what is in the namespace of such rules.
    let elsewhere = explained(&state(&gold), &["--admin-rules-namespace", "other"]).unwrap();
    assert_eq!(elsewhere["rules"], json!([]));
}

#[test]
fn its_companions_are_those_of_the_tenant_in_the_platforms_namespace() {
    let workload = "uid-of-work-web";
    let companion = json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "fw-1", "namespace": "universe", "uid": "c",
            "labels": {keys::WORKLOAD: workload, keys::TENANT: "blue", keys::RULE: "fw"},
            "annotations": {keys::ADMIN_RULE: "fw", keys::RULE_UID: "r"}},
        "spec": {"containers": [{"name": "c", "image": "i"}]},
        "status": {"conditions": [{"type": "Ready", "status": "True"}]}});
    let objects = [
        tenant("blue"),
        admin_rule("fw", &Value::Null),
        pod("work", "web", "blue-a"),
        dpu("blue-a"),
        companion,
    ];
    let report = explained(&objects, &[]).unwrap();
    assert_eq!(only(&report)["workloads"][0]["state"]["phase"], "Ready", "{report}");
    // A tenant's rule of that name is another one.
    let own = rule("tenant-blue", "fw", json!({}));
    let report = explained(&[&objects[..], &[own]].concat(), &["--rule", "fw"]).unwrap();
    let phases: Vec<_> = report["rules"]
        .as_array()
        .unwrap()
        .iter()
        .map(|rule| &rule["workloads"][0]["state"]["phase"])
        .collect();
    assert_eq!(phases, ["Absent", "Ready"]);
}

#[test]
fn an_invalid_rule_of_the_platform_says_why() {
    let mut wrong = admin_rule("fw", &json!({"matchExpressions": [{"key": "tier", "operator": "Near"}]}));
    wrong["spec"]["template"]["spec"]["containers"] = json!([{"name": "c", "image": "i"}]);
    let report = explained(&[tenant("blue"), wrong], &[]).unwrap();
    let errors = only(&report)["errors"].as_array().unwrap();
    assert_eq!(errors[0]["path"], "spec.tenantSelector.matchExpressions[0].operator", "{report}");
}
