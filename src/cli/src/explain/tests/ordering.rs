//! What is said of Pods that lack what an ordering gives them.

use super::*;

#[test]
fn a_pod_that_was_created_without_the_gate_does_not_wait() {
    let mut waits = rule("tenant-blue", "r", json!({}));
    waits["spec"]["ordering"] = json!("BeforeReady");
    let held = |created: bool, gates: Value, claims: Value| {
        let mut pod = pod("work", "web", "blue-a");
        pod["metadata"]["uid"] = json!("u");
        pod["spec"]["readinessGates"] = gates;
        pod["spec"]["resourceClaims"] = claims;
        if created {
            pod["metadata"]["creationTimestamp"] = json!("2026-01-02T03:04:05Z");
        }
        pod
    };
    let with = |created: bool, gates: Value| held(created, gates, Value::Null);
    let ordering = |rule: &Value, pod: Value| {
        let report = explained(&[tenant("blue"), rule.clone(), dpu("blue-a"), pod], &[]).unwrap();
        report["rules"][0]["workloads"][0]["ordering"].clone()
    };
    let none = ordering(&waits, with(true, json!([{"conditionType": "example.com/own"}])));
    assert!(none.as_str().is_some_and(|text| text.contains("no readiness gate")), "{none}");
    let gate = json!([{"conditionType": keys::COMPANIONS_GATE}]);
    assert_eq!(ordering(&waits, with(true, gate.clone())), Value::Null);
    assert_eq!(ordering(&waits, with(false, json!([]))), Value::Null, "it isn't created yet");
    assert_eq!(ordering(&rule("tenant-blue", "r", json!({})), with(true, json!([]))), Value::Null);
    waits["spec"]["ordering"] = json!("BeforeStart");
    let none = ordering(&waits, with(true, gate.clone()));
    assert!(none.as_str().is_some_and(|text| text.contains("no claim and starts before")), "{none}");
    let ours = keys::COMPANIONS_CLAIM;
    let claims = json!([{"name": ours, "resourceClaimTemplateName": ours}]);
    assert_eq!(ordering(&waits, held(true, gate.clone(), claims.clone())), Value::Null);
    waits["spec"]["ordering"] = json!("BeforeBinding");
    let weaker = ordering(&waits, held(true, gate.clone(), claims));
    assert!(weaker.as_str().is_some_and(|text| text.contains("is bound before its companion")), "{weaker}");
    let claims = json!([{"name": ours, "resourceClaimTemplateName": keys::COMPANIONS_BINDING_CLAIM}]);
    assert_eq!(ordering(&waits, held(true, gate, claims)), Value::Null);
}

#[test]
fn a_pod_that_is_older_than_the_rule_has_to_be_recreated() {
    let ordering = |created: &str| {
        let mut waits = rule("universe", "b", json!({}));
        waits["spec"]["ordering"] = json!("BeforeReady");
        waits["metadata"]["creationTimestamp"] = json!(created);
        let report = from(own_cluster(), &[waits, reported_pod(false, &[])], &[]).unwrap();
        report["rules"][0]["workloads"][0]["ordering"].as_str().unwrap().to_owned()
    };
    assert!(ordering("2026-01-03T00:00:00Z").contains("created before the rule"));
    assert!(!ordering("2026-01-01T00:00:00Z").contains("created before the rule"));
}
