//! What a user of a tenant's cluster hears of a companion without the infrastructure cluster, and with rights in one namespace.

use outrigger_core::keys;
use outrigger_core::reason::Cause;
use outrigger_tests::outrigger::Outrigger;
use outrigger_tests::tenant::{Tenant, rule_for};
use outrigger_tests::{eventually, holds};
use serde_json::{Value, json};

use crate::e2e::offline::explain_with;

/// A kubeconfig of a service account of the tenant's namespace that may list these resources there, and nothing else.
fn user(t: &Tenant, name: &str, resources: &[&str]) -> String {
    let file = t.outrigger.plane.dir.join(format!("{}-{name}.kubeconfig", t.id));
    t.outrigger.plane.tenant.reader(&t.source, name, resources, &file).unwrap();
    format!("--kubeconfig={}", file.display())
}

/// Whether one of the notes has these words.
fn notes(report: &Value, words: &str) -> bool {
    report["notes"].as_array().unwrap().iter().any(|note| note.as_str().unwrap().contains(words))
}

#[tokio::test]
async fn a_user_of_one_namespace_hears_why_a_companion_does_not_come() {
    let t = Tenant::without_agent(Outrigger::shared().await, "explain-own", &[("a", 1), ("b", 0)]).await;
    t.start_agent(&["--report-companions-after=1s".to_owned()]);
    t.own_rule("fw", rule_for("app", "web")).await.unwrap();
    t.start("lonely", "b", json!({"app": "web"})).await;

    let workload = format!("{}/lonely", t.source);
    let reader = user(&t, "reader", &["pods", "events", "workloadrules"]);
    let report = eventually("the condition and the Event are explained", || async {
        let (code, report) = explain_with(&t, &[&reader, "--workload", &workload]);
        let said = &report["pods"][0];
        // Events come oldest first, and one with an earlier reason may precede it.
        let mut events = said["events"].as_array().into_iter().flatten();
        let is_reported =
            said["conditions"][0]["reason"] == "NoDPU" && events.any(|event| event["reason"] == "NoDPU");
        holds(code == Some(0) && is_reported, report.to_string()).map(|()| report)
    })
    .await;
    let condition = &report["pods"][0]["conditions"][0];
    assert_eq!(
        (&condition["type"], &condition["status"]),
        (&json!(keys::COMPANIONS_CONDITION), &json!("False"))
    );
    assert_eq!(
        (&condition["meaning"], &condition["remedy"]),
        (&json!(Cause::NoDpu.meaning()), &json!(Cause::NoDpu.tenant_remedy()))
    );
    assert!(condition["message"].as_str().unwrap().starts_with("rule fw: "), "{condition}");
    assert!(condition["since"].is_string(), "{condition}");
    // The rule was read in that namespace alone, and the note says so.
    let rule = &report["rules"][0];
    assert_eq!((&rule["name"], &rule["workloads"][0]["outcome"]), (&json!("fw"), &json!("Companion")));
    assert_eq!(report["rulesKnown"], "Some", "{report}");
    assert!(notes(&report, &format!("only rules of {} may be read", t.source)), "{report}");
    assert!(notes(&report, "cannot list resource \"nodes\""), "{report}");

    // Without permission for rules and Events the condition is still there.
    let less = user(&t, "less", &["pods"]);
    let (code, report) = explain_with(&t, &[&less, "-n", &t.source]);
    assert_eq!((code, &report["rulesKnown"], &report["rules"]), (Some(0), &json!("None"), &json!([])));
    assert_eq!(report["pods"][0]["conditions"][0]["remedy"], Cause::NoDpu.tenant_remedy());
    assert!(notes(&report, "whether one matches a workload isn't known"), "{report}");
    assert!(notes(&report, "cannot list resource \"events\""), "{report}");

    // Without a namespace the Pods can't be read, and the error names the flag.
    let output = t.outrigger.output(&["explain", &less]).unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("with -n NAMESPACE those of one namespace are enough"), "{said}");
}

#[tokio::test]
async fn an_administrator_of_a_tenants_cluster_hears_of_its_nodes_too() {
    let t = Tenant::without_agent(Outrigger::shared().await, "explain-nodes", &[("a", 1)]).await;
    t.own_rule("fw", rule_for("app", "web")).await.unwrap();
    t.web("w").await;
    let node = t.node("a");
    let condition = json!({"status": {"conditions": [{"type": keys::DPU_READY, "status": "False",
        "reason": "DPUNotReady", "message": "m"}]}});
    let cluster = &t.outrigger.plane.tenant;
    cluster.patch(&format!("node/{node}"), &["--subresource=status"], &condition).unwrap();
    let own = format!("--kubeconfig={}", cluster.kubeconfig.display());
    let (code, report) = explain_with(&t, &[&own, "--workload", &format!("{}/w", t.source)]);
    let said = &report["pods"][0];
    assert_eq!((code, &report["rulesKnown"]), (Some(0), &json!("All")), "{report}");
    assert_eq!(said["dpu"]["remedy"], Cause::DpuNotReady.tenant_remedy(), "{said}");
    // Nobody has written a condition of the Pod: no agent runs.
    assert!(said["unknown"][0].as_str().unwrap().contains("the agent doesn't run"), "{said}");
}
