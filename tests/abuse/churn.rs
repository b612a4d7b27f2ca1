//! Workloads that come and go, or match and no longer do, without end: what of it stays in the infrastructure cluster.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{Pod, ResourceQuota};
use k8s_openapi::api::events::v1::Event;
use kube::api::{Api, ListParams};
use outrigger_api::conditions::Status;
use outrigger_core::keys;
use outrigger_proto::v1::workload_stream_request::Message;
use outrigger_tests::outrigger::Outrigger;
use outrigger_tests::stream::{set_label, sync, update};
use outrigger_tests::tenant::{Tenant, admin_rule, annotation, is_ready, rule_for, rule_with};
use outrigger_tests::{InWords, eventually, holds, until};
use serde_json::{Value, json};

/// `spec.limits.companions` of the tenants here.
const COMPANIONS: usize = 5;

/// A rule whose companions outlive their workloads for longer than any test lasts.
fn lingers() -> Value {
    rule_with("/lingerSeconds", json!(3600))
}

/// The companions of a tenant that exist, by the names of their workloads.
#[derive(Debug, Default)]
struct Companions {
    /// Those of workloads that exist, and whether they are ready.
    live: BTreeMap<String, bool>,
    /// Those that outlive their workloads.
    lingering: BTreeSet<String>,
}

async fn companions(t: &Tenant, namespace: &str) -> Result<Companions, String> {
    let pods: Api<Pod> = Api::namespaced(t.infra.clone(), namespace);
    let labels = format!("{}={},{}", keys::TENANT, t.id, keys::RULE);
    let mut found = Companions::default();
    for pod in pods.list(&ListParams::default().labels(&labels)).await.in_words()?.items {
        let name = annotation(&pod, "workload-name").unwrap_or_default().to_owned();
        if pod.metadata.deletion_timestamp.is_some() {
            continue;
        }
        if annotation(&pod, keys::WORKLOAD_ENDED).is_some() {
            found.lingering.insert(name);
        } else {
            found.live.insert(name, is_ready(&pod));
        }
    }
    Ok(found)
}

/// Waits until just these workloads have companions, all of them ready or none, and so many outlive theirs. Returns the latter.
async fn there(
    t: &Tenant,
    namespace: &str,
    live: &[String],
    ready: bool,
    lingering: usize,
) -> BTreeSet<String> {
    eventually(&format!("companions of {live:?}, and {lingering} that outlive theirs"), || async {
        let found = companions(t, namespace).await?;
        let are = found.live.keys().eq(live) && found.live.values().all(|is| *is == ready);
        if are && found.lingering.len() == lingering {
            Ok(found.lingering)
        } else {
            Err(format!("{found:?}"))
        }
    })
    .await
}

/// Names of four workloads, in their order.
fn names(round: &str) -> Vec<String> {
    (0..4).map(|i| format!("{round}-{i}")).collect()
}

#[tokio::test]
async fn workloads_that_come_and_go_leave_no_more_companions_than_the_tenant_may_have() {
    let o = Outrigger::shared().await;
    let t = Tenant::without_agent(o, "ab-churn", &[("a", 1)]).await;
    t.set(json!({"limits": {"companions": COMPANIONS}})).await.unwrap();
    let mut spec = lingers();
    spec["tenantSelector"] = json!({"matchLabels": {keys::TENANT: t.id}});
    o.plane.infra.apply(&[admin_rule(keys::ADMIN_NAMESPACE, "ab-churn", spec)]).unwrap();
    let opened = t.opens_stream([]).await;
    let send = async |names: &[String], node: &str| {
        let workloads: Vec<_> = names.iter().map(|name| update(name, &t.node(node))).collect();
        opened.0.send(sync(workloads)).await.unwrap();
    };
    // Four end and outlive their workloads: there is room for five. Of four more the oldest of all give way.
    let mut last = BTreeSet::new();
    for (round, lingering) in [("r0", 0), ("r1", 4), ("r2", COMPANIONS), ("r3", COMPANIONS)] {
        send(&names(round), "a").await;
        last = there(&t, keys::ADMIN_NAMESPACE, &names(round), true, lingering).await;
    }
    assert!(names("r2").iter().all(|name| last.contains(name)), "the latest stay: {last:?}");
    // Companions that no DPU can run leave nothing behind, and take no place from others.
    send(&names("lost"), "nowhere").await;
    let before = there(&t, keys::ADMIN_NAMESPACE, &names("lost"), false, COMPANIONS).await;
    assert!(names("r3").iter().all(|name| before.contains(name)), "{before:?}");
    send(&[], "a").await;
    assert_eq!(there(&t, keys::ADMIN_NAMESPACE, &[], true, COMPANIONS).await, before);
    let infra = &o.plane.infra;
    infra.kubectl(&["delete", "awr", "ab-churn", "-n", keys::ADMIN_NAMESPACE, "--timeout=90s"]).unwrap();
}

#[tokio::test]
async fn companions_of_workloads_that_have_ended_give_way_to_those_that_are_wanted() {
    let t = Tenant::without_agent(Outrigger::shared().await, "ab-churn-own", &[("a", 1)]).await;
    t.set(json!({"limits": {"companions": COMPANIONS}})).await.unwrap();
    t.rule("r", lingers()).await;
    let opened = t.opens_stream([]).await;
    for (round, lingering) in [("r0", 0), ("r1", 1), ("r2", 1)] {
        let names = names(round);
        opened.0.send(sync(names.iter().map(|name| update(name, &t.node("a"))))).await.unwrap();
        there(&t, &t.namespace, &names, true, lingering).await;
    }
    // Nothing is wanted any longer: there is room for all of the last ones, and one more.
    opened.0.send(sync([])).await.unwrap();
    let left = there(&t, &t.namespace, &[], true, COMPANIONS).await;
    assert!(names("r2").iter().all(|name| left.contains(name)), "{left:?}");
}

/// Names of the rules about whose refused companions there are Events, one for each Event.
async fn refused_rules(t: &Tenant) -> Result<Vec<String>, String> {
    let events: Api<Event> = Api::namespaced(t.infra.clone(), &t.namespace);
    let events = events.list(&ListParams::default()).await.in_words()?.items;
    let refused = events.into_iter().filter(|event| event.reason.as_deref() == Some("CompanionRefused"));
    let mut rules: Vec<String> = refused.filter_map(|event| event.regarding?.name).collect();
    rules.sort();
    Ok(rules)
}

#[tokio::test]
async fn labels_that_flip_at_the_limit_of_companions_write_one_event() {
    const EXCESS: usize = 4;
    let t = Tenant::without_agent(Outrigger::shared().await, "ab-flips", &[("a", 1)]).await;
    t.set(json!({"limits": {"companions": 2}})).await.unwrap();
    let quotas: Api<ResourceQuota> = Api::namespaced(t.infra.clone(), &t.namespace);
    until("the quota counts", &quotas, "outrigger", |quota| {
        let hard = quota.status.and_then(|status| status.hard).unwrap_or_default();
        holds(hard.get("pods").is_some_and(|pods| pods.0 == "2"), format!("{hard:?}"))
    })
    .await;
    t.rule("r", rule_for("app", "web")).await;
    let workloads: Vec<String> = (0..2 + EXCESS).map(|i| format!("w{i}")).collect();
    let opened = t.opens_stream(workloads.iter().map(|name| update(name, &t.node("a")))).await;
    t.condition_says("r", "Ready", Status::False, "Refused", &["exceeded quota", "(and 3 more)"]).await;
    let served = t.by_workload().await.unwrap();
    let excess: Vec<&String> = workloads.iter().filter(|name| !served.contains_key(*name)).collect();
    assert_eq!(excess.len(), EXCESS);
    let written = async |rules: &[&str]| {
        eventually("Events of refused companions", || async {
            let refused = refused_rules(&t).await?;
            holds(refused == rules, format!("{refused:?}"))
        })
        .await;
    };
    written(&["r"]).await;
    for _ in 0..10 {
        for (app, matched) in [("other", "2 of 6 "), ("web", "6 of 6 ")] {
            for name in &excess {
                let mut update = update(name, &t.node("a"));
                set_label(&mut update, "app", app);
                opened.0.send(Message::WorkloadUpdate(update)).await.unwrap();
            }
            t.condition_says("r", "Matched", Status::True, "Matches", &[matched]).await;
        }
    }
    written(&["r"]).await;
    // Another rule has an Event of its own.
    t.rule("s", rule_for("app", "web")).await;
    written(&["r", "s"]).await;
}
