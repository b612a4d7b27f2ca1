//! Companions that outlive their workloads.

use super::*;

#[test]
fn a_companion_whose_workload_has_ended_is_reported_with_its_reason() {
    let ended = json!({"metadata": {"annotations": {keys::WORKLOAD_ENDED: "2026-01-01T00:00:00Z"}},
        "status": {"conditions": [{"type": "Ready", "status": "True"}]}});
    let mut leaves = ended.clone();
    leaves["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:10Z");
    let states = |linger: i64| {
        let mut rule = rule("tenant-blue", "b", json!({}));
        rule["spec"]["lingerSeconds"] = json!(linger);
        let objects = [
            tenant("blue"),
            rule,
            pod("work", "web", "blue-a"),
            companion("uid-of-work-web", &ended),
            companion("gone", &ended),
            companion("leaving", &leaves),
        ];
        let report = explained(&objects, &[]).unwrap();
        let rule = &report["rules"][0];
        let others = rule["companions"].as_array().unwrap().iter();
        let others: Vec<Value> = others.map(|other| other["state"].clone()).collect();
        (rule["workloads"][0]["state"].clone(), others)
    };
    let lingers = json!({"phase": "Lingering",
        "message": "Lingering: the workload ended at 2026-01-01T00:00:00Z, lingerSeconds is 60"});
    let (ready, leaving) = (json!({"phase": "Ready"}), json!({"phase": "Terminating"}));
    let (of_workload, others) = states(60);
    assert_eq!(of_workload, ready, "its workload is there");
    assert!(others.len() == 2 && others.contains(&lingers) && others.contains(&leaving), "{others:?}");
    assert!(states(0).1.contains(&ready), "the rule doesn't let it linger");
}
