//! The audit log of an API server, and what `outrigger explain audit` tells of it.

use outrigger_core::keys;
use outrigger_tests::control_plane::ControlPlane;
use outrigger_tests::outrigger::Outrigger;
use outrigger_tests::tenant::{Tenant, rule_for};
use outrigger_tests::{create, dry_run, eventually, holds};
use serde_json::{Value, json};

use crate::e2e::second_webhook::{DOES, SENT, pod, second};

/// The requests about the Pods of a tenant that the log tells of, by the Pod's name.
fn explained(t: &Tenant, name: &str) -> Value {
    let log = t.outrigger.plane.dir.join("logs/infra-audit.log");
    let args = ["explain", "audit", log.to_str().unwrap(), "-n", &t.namespace, "--name", name];
    let (code, report) = t.outrigger.report(&args).unwrap();
    assert_eq!((code, &report["notes"]), (Some(0), &json!([])), "{report}");
    report["pods"][0].clone()
}

/// The steps of a request: name, whether it was the second call, name of what decided, and generation.
fn steps(request: &Value) -> Vec<Value> {
    let of = |step: &Value| json!([step["step"], step["again"], step["name"], step["generation"]]);
    request["steps"].as_array().unwrap().iter().map(of).collect()
}

/// The webhooks that changed the Pod: round and name.
fn webhooks(request: &Value) -> Vec<Value> {
    let of = |webhook: &Value| json!([webhook["round"], webhook["webhook"]]);
    request["webhooks"].as_array().unwrap().iter().map(of).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_audit_log_shows_which_step_rule_or_policy_changed_or_refused_a_pod() {
    // The only control plane here that has an audit log: it costs writes to the disk.
    let plane = ControlPlane::start_with(&["--audit-log"]).unwrap();
    let outrigger = Outrigger::new(plane).unwrap().started().await.unwrap().of_one_test();
    let t = Tenant::new(*outrigger, "audit", &[("a", 1)]).await;
    let _calls = second(t.outrigger, &t.namespace).await;

    // A companion whose affinity another webhook changes: Outrigger's is called twice.
    let mut spec = rule_for("app", "web");
    spec["template"]["metadata"] = json!({"labels": {SENT: "once"}, "annotations": {DOES: "adds a term"}});
    let generation = t.rule("r", spec).await.metadata.generation;
    t.web("w").await;
    let companion = t.companion().await.metadata.name.unwrap();
    let report = explained(&t, &companion);
    let manager = "system:serviceaccount:outrigger-system:outrigger-manager";
    assert_eq!(
        (&report["createdBy"], &report["requests"][0]["code"]),
        (&json!(manager), &json!(201)),
        "{report}"
    );
    assert_eq!(
        steps(&report["requests"][0]),
        [
            json!(["companion", false, "r", generation]),
            json!(["isolation", false, t.id, null]),
            json!(["companion", true, "r", generation])
        ],
        "{report}"
    );
    let ours = "pods.outrigger.dev";
    let changed = [json!([0, ours]), json!([0, "once.second.example.com"]), json!([1, ours])];
    assert_eq!(webhooks(&report["requests"][0]), changed, "{report}");
    let patch = report["requests"][0]["webhooks"][0]["patch"].to_string();
    assert!(patch.contains("add /spec/affinity"), "its patch has paths: {patch}");

    // A Pod of a user. The affinity is restricted in both calls, and the toleration is added in the first.
    create(&t.pods(), &pod("plain", "again", "adds a term")).await.unwrap();
    let report = explained(&t, "plain");
    assert_eq!(steps(&report["requests"][0]), [json!(["isolation", false, t.id, null])], "{report}");
    assert_eq!(webhooks(&report["requests"][0])[..3].last(), Some(&json!([1, ours])), "{report}");

    // Refused by the mutating webhook.
    let mut forged = pod("forged", "never", "nothing");
    forged["metadata"]["labels"][keys::TENANT] = json!("red");
    let error = create(&t.pods(), &forged).await.unwrap_err().to_string();
    let report = explained(&t, "forged");
    let request = &report["requests"][0];
    assert!(error.contains(request["message"].as_str().unwrap()), "{error}: {request}");
    assert_eq!((&request["code"], report.get("createdBy")), (&json!(403), None), "{report}");
    assert_eq!(
        request["refusedBy"],
        json!({"webhook": ours, "ours": true, "step": "keys", "kind": "Tenant", "name": t.id,
            "fields": [format!("metadata.labels[{}]", keys::TENANT)]})
    );
    // Refused by a policy, because the other webhook removes the affinity in the last call.
    // An API server that has just started may not have read its policies yet.
    eventually("the policy applies", || async {
        let refused =
            dry_run(&t.pods(), &pod("probe", "again", "removes all")).await.unwrap_err().to_string();
        holds(refused.contains("ValidatingAdmissionPolicy 'outrigger-pods'"), refused)
    })
    .await;
    create(&t.pods(), &pod("removed", "again", "removes all")).await.unwrap_err();
    let report = explained(&t, "removed");
    let refused = json!({"policy": "outrigger-pods", "ours": true, "fields": []});
    assert_eq!(report["requests"][0]["refusedBy"], refused, "{report}");
    assert_eq!(steps(&report["requests"][0]), [json!(["isolation", false, t.id, null])], "{report}");
    none_is_dropped(t.outrigger);
}

/// The API server warns of each annotation that it drops, and has dropped none of Outrigger's.
fn none_is_dropped(o: &Outrigger) {
    let log = std::fs::read_to_string(o.plane.dir.join("logs/infra-kube-apiserver.log")).unwrap();
    let dropped: Vec<&str> =
        log.lines().filter(|line| line.contains("ailed to set") && line.contains("annotation")).collect();
    let of = |name: &str| dropped.iter().filter(|line| line.contains(name)).collect::<Vec<_>>();
    assert!(!of("again.second.example.com/call").is_empty(), "the other webhook's is dropped: {dropped:?}");
    assert_eq!(of("outrigger.dev/"), [""; 0].iter().collect::<Vec<_>>());
}
