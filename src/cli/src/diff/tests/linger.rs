//! Companions that outlive their workloads.

use outrigger_core::companion::own_name;
use outrigger_core::ids::RuleName;
use outrigger_core::index::CompanionKey;

use super::*;

#[test]
fn companions_that_outlive_their_workloads_are_reported_with_the_reason() {
    let lingers = |seconds: i64| with(rule("r", "-"), "/spec/lingerSeconds", json!(seconds));
    let key = CompanionKey { rule: RuleName::new("r").unwrap(), workload: "ended".into() };
    let end = json!({keys::WORKLOAD_ENDED: "2026-01-01T00:00:00Z"});
    let ended = companion(&own_name(&key), "ended", end);
    let report = |old: Value, new: Value| diff(&state(&[old, ended.clone()]), &[new], &[]).unwrap();
    // What would be deleted stays.
    let found = report(lingers(0), lingers(60));
    assert_eq!(changes(&found), ["Lingering ended"]);
    assert_eq!(
        found["companions"][0]["reason"],
        "Lingering: the workload ended at 2026-01-01T00:00:00Z, lingerSeconds is 60"
    );
    assert_eq!(changes(&report(lingers(60), lingers(120))), ["Lingering ended"]);
    assert_eq!(changes(&report(lingers(60), lingers(0))), ["Deleted ended"]);
    assert_eq!(changes(&report(lingers(60), lingers(60))), [""; 0], "it isn't the change's doing");
    // It keeps its place in quotas: that of one Pod is used up.
    let quota = json!({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "q", "namespace": "tenant-blue"},
        "spec": {"hard": {"pods": "1"}}, "status": {"hard": {"pods": "1"}, "used": {"pods": "1"}}});
    let next = |seconds| {
        let all = state(&[lingers(seconds), ended.clone(), quota.clone()]);
        let new = with(rule("r", "web"), "/spec/lingerSeconds", json!(seconds));
        changes(&diff(&all, &[new], &[]).unwrap())
    };
    assert_eq!(next(60), ["Lingering ended", "Refused shop/web"]);
    assert_eq!(next(0), ["Created shop/web", "Deleted ended"]);
}
