//! What matching costs: per workload as rules become more, and how many updates a second one core takes in.
//!
//! `cargo bench -p outrigger-core --bench matching`. The last lines sum up what the goals are about.
#![allow(clippy::disallowed_methods, reason = "a bench measures with the system's clocks")]
// A bench talks to whoever runs it, and its fixtures are its own.
#![allow(clippy::print_stdout, clippy::unwrap_used)]

use std::cell::Cell;
use std::collections::BTreeMap;
use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, Throughput};
use outrigger_core::ids::{RuleName, WorkloadId};
use outrigger_core::index::TenantIndex;
use outrigger_core::rule::{ExpressionSpec, InjectionSpec, Operator, Rule, RuleSpec};
use outrigger_core::texts::Texts;
use outrigger_core::workload::{Orchestrator, Workload};

const STATUS: &str = "k8s.v1.cni.cncf.io/networks-status";

/// Rules as teams write them: each for its own namespace, application or nodes, with parts that many have in common.
fn rule(i: usize) -> Arc<Rule> {
    use Operator::{Exists, In, NotIn};
    let namespace = format!("team-{i}");
    let status = format!(".state.extra.annotations['{STATUS}']");
    let term = match i % 4 {
        0 => vec![
            ExpressionSpec::new(".metadata.resourceNamespace", In, &[&namespace]),
            ExpressionSpec::new(".state.extra.labels.tier", In, &["frontend"]),
        ],
        1 => vec![
            ExpressionSpec::new(".state.extra.labels['app.kubernetes.io/name']", In, &[&format!("app-{i}")]),
            ExpressionSpec::new(&status, Exists, &[]),
        ],
        2 => vec![
            ExpressionSpec::new(&status, Exists, &[]),
            ExpressionSpec::new(".state.extra.labels.tier", NotIn, &["batch"]),
            ExpressionSpec::new(".metadata.resourceNamespace", In, &[&namespace, &format!("team-{i}-test")]),
        ],
        _ => vec![
            ExpressionSpec::new(".state.nodeName", In, &[&format!("host-{i}-a"), &format!("host-{i}-b")]),
            ExpressionSpec::new(".state.ready", In, &["true"]),
        ],
    };
    compiled(i, term)
}

fn compiled(i: usize, term: Vec<ExpressionSpec>) -> Arc<Rule> {
    let status = format!(".state.extra.annotations['{STATUS}']");
    let pod = serde_json::json!({"apiVersion": "v1", "kind": "Pod", "spec": {"containers": [{"name": "c"}]}});
    let spec = RuleSpec {
        uid: format!("uid-{i}"),
        terms: vec![term],
        injections: vec![InjectionSpec::new(&status, "networks")],
        template: pod.into(),
        ..RuleSpec::new(RuleName::new(&format!("rule-{i}")).unwrap())
    };
    Arc::new(Rule::compile(spec).unwrap())
}

/// A Pod as a Deployment makes it, in a namespace that no rule names.
fn workload(i: usize) -> Workload {
    let networks = r#"[{"name":"default/ovn-primary","interface":"eth0","ips":["192.0.1.9"],"mac":"0a:58:c0:00:01:09","default":true,"dns":{}}]"#;
    let hash = format!("{:010x}", i.wrapping_mul(0x9e37_79b9));
    Workload {
        id: WorkloadId::new(&format!("{i:08x}-a565-4ed0-aac2-3da5698f5a78")).unwrap(),
        orchestrator: Orchestrator::Kubernetes,
        resource_type: "v1/Pod".into(),
        resource_namespace: format!("tenant-{}", i % 500),
        resource_name: format!("shop-{hash}-{i:05}"),
        node_name: Some(format!("node-{}", i % 1000)),
        ready: true,
        labels: Texts::from([
            ("app.kubernetes.io/name", format!("shop-{}", i % 3000).as_str()),
            ("app.kubernetes.io/instance", "shop"),
            ("app.kubernetes.io/managed-by", "Helm"),
            ("pod-template-hash", hash.as_str()),
            ("tier", "frontend"),
            ("version", "v1.2.3"),
        ]),
        annotations: Texts::from([
            (STATUS, networks),
            ("kubectl.kubernetes.io/restartedAt", "2024-05-01T10:00:00Z"),
            ("prometheus.io/scrape", "true"),
            ("prometheus.io/port", "9090"),
        ]),
        extra: BTreeMap::new(),
    }
}

fn with_rules(rules: usize) -> TenantIndex {
    let mut index = TenantIndex::default();
    for i in 0..rules {
        index.apply_rule(rule(i));
    }
    index
}

/// Runs `once` as often as asked, and keeps the least time that a run took: the least disturbed one.
fn timed(best: &Cell<Duration>, runs: u64, mut once: impl FnMut() -> Duration, per: u32) -> Duration {
    let mut total = Duration::ZERO;
    for _ in 0..runs {
        let took = once();
        best.set(best.get().min(took / per));
        total += took;
    }
    total
}

/// Tries workloads that no rule matches against more and more rules. Returns the cost of a workload for each count.
fn unmatched(criterion: &mut Criterion) -> Vec<(usize, Duration)> {
    const WORKLOADS: u32 = 2000;
    let workloads: Vec<Workload> = (0..WORKLOADS as usize).map(workload).collect();
    let mut group = criterion.benchmark_group("an unmatched workload against rules");
    group.throughput(Throughput::Elements(u64::from(WORKLOADS)));
    let mut costs = Vec::new();
    for rules in [10, 100, 1000, 10_000] {
        let index = with_rules(rules);
        let best = Cell::new(Duration::MAX);
        group.bench_with_input(BenchmarkId::from_parameter(rules), &index, |bencher, index| {
            let once = || {
                let start = Instant::now();
                for workload in &workloads {
                    assert!(
                        index.matching(black_box(workload)).is_empty(),
                        "the fixture is about what doesn't match"
                    );
                }
                start.elapsed()
            };
            bencher.iter_custom(|runs| timed(&best, runs, once, WORKLOADS));
        });
        costs.push((rules, best.get()));
    }
    group.finish();
    costs
}

/// Takes in updates of workloads that no rule matches: none of them known before, and all of them known but changed.
fn stream(criterion: &mut Criterion) -> (Duration, Duration) {
    const WORKLOADS: u32 = 20_000;
    let fresh: Vec<Workload> = (0..WORKLOADS as usize).map(workload).collect();
    let mut group = criterion.benchmark_group("unmatched updates with 1000 rules");
    group.throughput(Throughput::Elements(u64::from(WORKLOADS)));
    let mut index = with_rules(1000);
    let take_in = |index: &mut TenantIndex, updates: Vec<Workload>| {
        let start = Instant::now();
        for update in updates {
            assert!(index.update(update).is_empty(), "the fixture is about what doesn't match");
        }
        start.elapsed()
    };
    let new = Cell::new(Duration::MAX);
    group.bench_function("new", |bencher| {
        bencher.iter_custom(|runs| {
            let once = || {
                index.sync(Vec::new());
                take_in(&mut index, fresh.clone())
            };
            timed(&new, runs, once, WORKLOADS)
        });
    });
    index.sync(fresh.clone());
    let changed = Cell::new(Duration::MAX);
    let mut ready = true;
    group.bench_function("changed", |bencher| {
        bencher.iter_custom(|runs| {
            let once = || {
                ready = !ready;
                let updates = fresh.iter().map(|w| Workload { ready, ..w.clone() }).collect();
                take_in(&mut index, updates)
            };
            timed(&changed, runs, once, WORKLOADS)
        });
    });
    group.finish();
    (new.get(), changed.get())
}

/// A rule comes into a tenant of 100,000 workloads, once asking for values of a field that other rules ask for too, once
/// of a field that no other rule names.
fn rule_change(criterion: &mut Criterion) -> (Duration, Duration) {
    let mut index = with_rules(1000);
    index.sync((0..100_000).map(workload).collect());
    let mut group = criterion.benchmark_group("a rule into 100000 workloads");
    let mut applied = |name: &str, rule: Arc<Rule>| {
        let best = Cell::new(Duration::MAX);
        group.bench_function(name, |bencher| {
            let mut once = || {
                let rule = rule.clone();
                let start = Instant::now();
                index.apply_rule(rule.clone());
                let took = start.elapsed();
                index.remove_rule(rule.name());
                took
            };
            bencher.iter_custom(|runs| timed(&best, runs, &mut once, 1));
        });
        best.get()
    };
    let known = applied("a known field", rule(1_000_001));
    let term = vec![ExpressionSpec::new(".state.extra.labels.version", Operator::In, &["v9"])];
    let new = applied("a new field", compiled(1_000_002, term));
    group.finish();
    (known, new)
}

fn main() {
    let mut criterion = Criterion::default()
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_millis(1500))
        .sample_size(20)
        .configure_from_args();
    let costs = unmatched(&mut criterion);
    let (new, changed) = stream(&mut criterion);
    let (known, new_field) = rule_change(&mut criterion);
    criterion.final_summary();

    let per_second = |each: Duration| 1.0 / each.as_secs_f64();
    println!("\nbest runs");
    for (rules, each) in &costs {
        println!("an unmatched workload against {rules} rules: {} ns", each.as_nanos());
    }
    if let (Some((few, cheap)), Some((many, dear))) = (costs.first(), costs.last()) {
        println!("ratio {many}/{few} rules: {:.2}", dear.as_secs_f64() / cheap.as_secs_f64());
    }
    println!("unmatched updates on one core, 1000 rules, new: {:.0}/s", per_second(new));
    println!("unmatched updates on one core, 1000 rules, changed: {:.0}/s", per_second(changed));
    println!("a rule into 100000 workloads, a field of other rules: {:.1} us", known.as_secs_f64() * 1e6);
    println!(
        "a rule into 100000 workloads, a field of no other rule: {:.1} ms",
        new_field.as_secs_f64() * 1e3
    );
}
