//! What many rules cost: a cold agent that brings a thousand of them, and a manager that holds ten thousand beside a hundred
//! thousand workloads. Counts writes, prints times; asserts only about counts.

use std::time::{Duration, Instant};

use futures::{StreamExt, TryStreamExt};
use kube::ResourceExt;
use kube::api::ListParams;
use kube::runtime::watcher::{Config, Event, watcher};
use outrigger_api::WorkloadRule;
use outrigger_core::keys;
use outrigger_proto::v1::WorkloadUpdate;
use outrigger_tests::outrigger::{Outrigger, tenant_identity};
use outrigger_tests::report::{self, Row, percentiles};
use outrigger_tests::stream::{chunked_stream, chunked_sync, set_label, update};
use outrigger_tests::tenant::{Tenant, annotation, rule_for};
use outrigger_tests::writes::{settled, since, writes};
use outrigger_tests::{InWords, eventually, holds};
use serde_json::{Value, json};

/// Rules of the cold agent.
const SYNCED: usize = 1_000;
/// Rules that the manager holds.
const RULES: usize = 10_000;
/// Workloads that the manager holds.
const WORKLOADS: usize = 100_000;
/// Rules whose companions are timed, one after the other.
const SAMPLES: usize = 50;
/// Companions of the rule that is edited.
const OWN: usize = 100;

/// Measures, and prints the rows.
pub(crate) async fn run() {
    let o = Outrigger::shared().await;
    let mut rows = vec![cold_agent(o).await];
    rows.extend(crowd(o).await);
    report::record("rules", &rows);
}

/// Makes so many rules, each for a label of its own, several at once.
async fn many(count: usize, make: impl AsyncFn(String, Value) -> Result<WorkloadRule, String>) {
    futures::stream::iter(0..count)
        .map(|i| make(format!("r{i}"), rule_for("app", &format!("app{i}"))))
        .buffer_unordered(16)
        .try_collect::<Vec<_>>()
        .await
        .unwrap();
}

async fn cold_agent(o: &'static Outrigger) -> Row {
    let t = Tenant::without_agent(o, "cold", &[("a", 1)]).await;
    let began = Instant::now();
    many(SYNCED, async |name, spec| t.own_rule(&name, spec).await).await;
    let made = began.elapsed();
    let both = async || (writes(&t.infra, "workloadrules").await, writes(&t.cluster, "workloadrules").await);
    let before = both().await;
    let began = Instant::now();
    t.start_agent(&[]);
    let synced = async || {
        let rules = t.own_rules().list(&ListParams::default()).await.in_words()?;
        let done = rules.items.iter().filter(|rule| {
            let conditions = rule.status.as_ref().map(|s| s.conditions.as_slice()).unwrap_or_default();
            conditions.iter().any(|c| c.type_ == "Accepted" && c.status == "True")
                && conditions.iter().any(|c| c.type_ == "Synced" && c.status == "True")
        });
        let done = done.count();
        tokio::time::sleep(Duration::from_millis(200)).await;
        holds(done == SYNCED, format!("{done} of {SYNCED}"))
    };
    eventually("all rules are synced", synced).await;
    let synced = began.elapsed();
    let after = settled(Duration::from_secs(6), both).await;
    let (there, here) = (since(&after.0, &before.0), since(&after.1, &before.1));
    println!("  writes in the infrastructure cluster {there:?}, in the tenant's {here:?}");
    assert_eq!(there["workloadrules"], SYNCED as u64, "one write for each rule");
    tokio::time::sleep(Duration::from_secs(15)).await;
    let idle = both().await;
    let (there, here) = (since(&idle.0, &after.0), since(&idle.1, &after.1));
    println!("  writes in 15 idle seconds: {there:?}, {here:?}");
    assert!(there.is_empty() && here.is_empty());
    let times = [(synced.as_secs_f64(), made.as_secs_f64())];
    Row::new(
        "1,000 rules from a cold agent, accepted and reported",
        "s",
        "their creation by users, 16 at once",
        &times,
    )
}

async fn crowd(o: &'static Outrigger) -> Vec<Row> {
    let t = Tenant::without_agent(o, "crowd", &[("a", 1)]).await;
    t.set(json!({"limits": {"rules": 2 * RULES, "ruleBytes": 32 << 20, "workloads": 2 * WORKLOADS}}))
        .await
        .unwrap();
    eventually("the quota has grown", || async {
        let quota = o.plane.infra.get(&["quota", "-n", &t.namespace]).in_words()?;
        holds(quota.to_string().contains(&format!("\"{}k\"", 2 * RULES / 1000)), quota.to_string())
    })
    .await;
    let node = t.node("a");
    let workload = |i: usize| -> WorkloadUpdate {
        let mut update = update(&format!("w{i}"), &node);
        // The first belong to the rule that is edited, those after it to the rules that are timed.
        let app = if i < OWN { "own".to_owned() } else { format!("sample{i}") };
        set_label(&mut update, "app", &app);
        update
    };
    let began = Instant::now();
    many(RULES, async |name, spec| t.try_rule(&name, spec).await).await;
    println!("{RULES} rules made in {:.0} s", began.elapsed().as_secs_f64());
    // To make the rules takes minutes; the stream is opened when there is something to send.
    let tls = o.client_tls("crowd", &[&tenant_identity("crowd")]);
    let (sender, _call) = chunked_stream(o.grpc_port, &tls, "crowd").await.unwrap();
    for message in chunked_sync(&(0..WORKLOADS).map(workload).collect::<Vec<_>>()) {
        sender.send(message).await.unwrap();
    }
    t.rule("own", rule_for("app", "own")).await;
    t.ready(OWN).await;
    // The statuses of all those rules are written first; after that nothing moves.
    settled(Duration::from_secs(5), async || writes(&t.infra, "workloadrules").await).await;
    println!(
        "  {RULES} rules and {WORKLOADS} workloads are known after {:.0} s",
        began.elapsed().as_secs_f64()
    );

    let before = (writes(&t.infra, "pods").await, writes(&t.infra, "workloadrules").await);
    let mut spec = rule_for("app", "own");
    spec["workloadInfoInject"][0]["asAnnotation"]["name"] = json!("renamed");
    t.rule("own", spec).await;
    let began = Instant::now();
    t.has("the edit has reached all", OWN, OWN, |pod| annotation(pod, "renamed").is_some()).await;
    let took = began.elapsed();
    tokio::time::sleep(Duration::from_secs(3)).await;
    let pods = since(&writes(&t.infra, "pods").await, &before.0);
    let rules = since(&writes(&t.infra, "workloadrules").await, &before.1);
    println!("an edit of a rule with {OWN} companions: {} ms; writes {pods:?} {rules:?}", took.as_millis());
    assert_eq!(pods.get("pods"), Some(&(OWN as u64)), "each of its own companions, and no other");

    let mut seen = std::pin::pin!(watcher(t.pods(), Config::default().labels(keys::RULE)));
    while !matches!(seen.next().await, Some(Ok(Event::InitDone))) {}
    let (mut whole, mut call) = (Vec::new(), Vec::new());
    for i in OWN..OWN + SAMPLES {
        let name = format!("s{i}");
        let began = Instant::now();
        t.rule(&name, rule_for("app", &format!("sample{i}"))).await;
        call.push(began.elapsed());
        loop {
            let Some(Ok(Event::Apply(pod))) = seen.next().await else { continue };
            if pod.labels().get(keys::RULE) == Some(&name) {
                whole.push(began.elapsed());
                break;
            }
        }
    }
    whole.sort_unstable();
    call.sort_unstable();
    let what = "from the creation of a rule to its companion, beside 10,000 rules";
    let mut rows = Vec::from(percentiles(what, "the call that creates the rule", &[(whole, call)], [50, 90]));
    let written = pods.values().sum::<u64>() as f64;
    rows.push(Row::new(
        "edit of a rule with 100 companions beside 10,000 rules, writes of Pods",
        "writes",
        "one for each of its companions",
        &[(written, OWN as f64)],
    ));
    rows
}
