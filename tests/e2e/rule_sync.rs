//! Rules from the tenant's own cluster, and their status back.

use kube::ResourceExt;
use kube::api::{Api, DeleteParams, ListParams};
use outrigger_api::WorkloadRule;
use outrigger_api::conditions::Status;
use outrigger_core::keys;
use outrigger_tests::outrigger::Outrigger;
use outrigger_tests::tenant::{Tenant, namespace, rule_for, rule_with};
use outrigger_tests::{InWords, always, create, eventually, holds, is_gone};
use serde_json::json;
use std::time::Duration;

/// Waits until a condition of a rule in the tenant's own cluster is so, and returns the rule.
async fn is(t: &Tenant, rule: &str, kind: &str, status: Status, reason: &str) -> WorkloadRule {
    t.own_condition(rule, kind, status, reason).await.0
}

#[tokio::test]
async fn a_tenant_sees_only_its_own_cluster() {
    let t = Tenant::new(Outrigger::shared().await, "rs-whole", &[("a", 1)]).await;
    t.own_rule("fw", rule_for("app", "web")).await.unwrap();
    t.web("w").await;
    t.companion().await;
    let rule = is(&t, "fw", "Ready", Status::True, "AllReady").await;
    let status = rule.status.clone().unwrap();
    assert_eq!((status.matched, status.created, status.ready), (Some(1), Some(1), Some(1)));
    assert_eq!(
        (status.sync_result.as_deref(), status.observed_generation),
        (Some("success"), rule.metadata.generation)
    );
    let there = t.rules().get("fw").await.unwrap();
    assert_eq!(there.spec, rule.spec);
    assert_eq!(there.annotations()[keys::ORIGIN], rule.uid().unwrap());
    // Nothing happens: nothing is written, on either side.
    let versions = async || {
        (
            t.rules().get("fw").await.unwrap().resource_version(),
            t.own_rules().get("fw").await.unwrap().resource_version(),
        )
    };
    let before = versions().await;
    always("nothing is written", Duration::from_secs(3), || async {
        let now = versions().await;
        holds(now == before, format!("{now:?}"))
    })
    .await;
    // A change arrives, and so does the deletion.
    let mut spec = rule_for("app", "db");
    spec["dpuSelectionPolicy"] = json!("Any");
    t.own_rule("fw", spec).await.unwrap();
    t.ready(0).await;
    is(&t, "fw", "Matched", Status::False, "NoMatch").await;
    t.own_rules().delete("fw", &DeleteParams::default()).await.unwrap();
    t.rule_is_gone("fw").await;
}

#[tokio::test]
async fn drift_is_repaired_and_what_is_not_the_agents_stays() {
    let t = Tenant::new(Outrigger::shared().await, "rs-drift", &[("a", 1)]).await;
    t.own_rule("mine", rule_for("app", "web")).await.unwrap();
    t.rule("byhand", rule_for("app", "other")).await;
    is(&t, "mine", "Synced", Status::True, "StreamConnected").await;
    // Somebody changes and deletes it over there.
    t.rules().delete("mine", &DeleteParams::default()).await.unwrap();
    let spec = t.own_rules().get("mine").await.unwrap().spec;
    let same = async || match t.rules().get_opt("mine").await.in_words()? {
        Some(rule) if rule.spec == spec => Ok(()),
        other => Err(format!("{other:?}")),
    };
    eventually("it is there again", same).await;
    let patch = json!({"spec": {"dpuSelectionPolicy": "Any"}});
    t.outrigger.plane.infra.patch("wr/mine", &["-n", &t.namespace], &patch).unwrap();
    eventually("it is as it should be again", same).await;
    assert!(t.rules().get("byhand").await.is_ok(), "only the agent's own rules are deleted");
    // A name that is taken.
    t.own_rule("byhand", rule_for("app", "web")).await.unwrap();
    let rule = is(&t, "byhand", "Accepted", Status::False, "NameTaken").await;
    assert_ne!(t.rules().get("byhand").await.unwrap().spec, rule.spec);
    // Its finalizer never went on, so it goes by itself.
    t.own_rules().delete("byhand", &DeleteParams::default()).await.unwrap();
    is_gone(&t.own_rules(), "byhand").await;
    assert!(t.rules().get("byhand").await.is_ok());
}

#[tokio::test]
async fn what_the_infrastructure_refuses_is_reported_where_the_tenant_looks() {
    let t = Tenant::new(Outrigger::shared().await, "rs-wrong", &[("a", 1)]).await;
    t.own_rule("r", rule_with("/workloadTerms/0/matchExpressions/0/key", json!(".spec.nodeName")))
        .await
        .unwrap();
    let rule = is(&t, "r", "Accepted", Status::False, "Invalid").await;
    let conditions = rule.status.unwrap().conditions;
    assert!(
        conditions[0].message.contains("spec.workloadTerms[0].matchExpressions[0].key"),
        "{conditions:?}"
    );
    // A template that would get out is refused over there, with its path.
    t.own_rule("r", rule_with("/template/spec/hostNetwork", json!(true))).await.unwrap();
    let rule = eventually("the words are others", || async {
        let rule = is(&t, "r", "Accepted", Status::False, "Invalid").await;
        let message = rule.status.clone().unwrap().conditions[0].message.clone();
        if message.contains("spec.template.spec.hostNetwork") { Ok(rule) } else { Err(message) }
    })
    .await;
    assert!(t.rules().get_opt(&rule.name_any()).await.unwrap().is_none());
    let events: Api<k8s_openapi::api::core::v1::Event> = Api::namespaced(t.cluster.clone(), &t.source);
    eventually("an Event says so too", || async {
        let all = events.list(&ListParams::default()).await.in_words()?;
        let reported = |words: &str| {
            all.items.iter().any(|e| {
                e.reason.as_deref() == Some("RuleInvalid")
                    && e.message.as_deref().unwrap_or_default().contains(words)
            })
        };
        holds(reported("matchExpressions[0].key") && reported("hostNetwork"), format!("{}", all.items.len()))
    })
    .await;
    // Mended, it is served at once.
    t.own_rule("r", rule_for("app", "web")).await.unwrap();
    is(&t, "r", "Accepted", Status::True, "Valid").await;
}

#[tokio::test]
async fn a_link_that_is_down_is_reported_and_holds_nothing_for_ever() {
    let o = Outrigger::shared().await;
    let t = Tenant::without_agent(o, "rs-down", &[("a", 1)]).await;
    // An agent that nobody answers.
    t.start_agent(&Tenant::in_plain_text("http://127.0.0.1:9"));
    let rule = json!({"apiVersion": "workload.universe.nvidia.com/v1alpha1", "kind": "WorkloadRule",
        "metadata": {"name": "r", "finalizers": [keys::RULE_FINALIZER]}, "spec": rule_for("app", "web")});
    let api: Api<WorkloadRule> = t.own_rules();
    create(&api, &rule).await.unwrap();
    let rule = is(&t, "r", "Synced", Status::Unknown, "LinkDown").await;
    assert_eq!(rule.status.unwrap().sync_result.as_deref(), Some("unknown"));
    // It can't be taken out of the infrastructure cluster, so it waits; unless its owner says otherwise.
    api.delete("r", &DeleteParams::default()).await.unwrap();
    always("it waits", Duration::from_secs(1), || async {
        let left = api.get_opt("r").await.in_words()?;
        left.map(drop).ok_or("it is gone".to_owned())
    })
    .await;
    let abandon = format!("{}=true", keys::ABANDON);
    o.plane.tenant.kubectl(&["annotate", "wr", "r", "-n", &t.source, &abandon]).unwrap();
    is_gone(&api, "r").await;
    o.plane.command("term agent-rs-down").unwrap();
}

#[tokio::test]
async fn the_namespaces_that_are_reported_are_followed_live() {
    let o = Outrigger::shared().await;
    let t = Tenant::without_agent(o, "rs-conf", &[("a", 1)]).await;
    let other = "work-rs-conf-2";
    let config = |text: &str| {
        json!({"apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": "workload-plugin-config", "namespace": t.source}, "data": {"config": text}})
    };
    let pod = |name: &str, namespace: &str| {
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": namespace, "labels": {"app": "conf"}},
            "spec": {"nodeName": t.node("a"), "automountServiceAccountToken": false, "containers": [{"name": "c", "image": "i"}]}})
    };
    o.plane.tenant.apply(&[namespace(other), config(&format!("namespaces: [{}]", t.source))]).unwrap();
    eventually("Pods can be made there", || async {
        o.plane.tenant.apply(&[pod("one", &t.source), pod("two", other)])
    })
    .await;
    o.start_agent_with("rs-conf", &[format!("--rules-namespace={}", t.source)]).unwrap();
    t.own_rule("r", rule_for("app", "conf")).await.unwrap();
    t.serves(&["one"]).await;
    o.plane.tenant.apply(&[config(&format!("namespaces: [{}, {other}]", t.source))]).unwrap();
    t.serves(&["one", "two"]).await;
    o.plane.tenant.apply(&[config(&format!("namespaces: [{other}]"))]).unwrap();
    t.serves(&["two"]).await;
    // What can't be used changes nothing. All is only what somebody has said to be all.
    for wrong in ["namespaces: what", "", "namespaces: []", "namespaces: [a/b]", "namespace: [x]"] {
        o.plane.tenant.apply(&[config(wrong)]).unwrap();
        always("it stays", Duration::from_millis(300), || async {
            let n = t.companions().await?.len();
            holds(n == 1, n.to_string())
        })
        .await;
    }
    o.plane.tenant.apply(&[config("namespaces: ['*']")]).unwrap();
    t.serves(&["one", "two"]).await;
}
