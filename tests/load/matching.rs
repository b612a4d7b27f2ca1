//! What matching costs: a workload as rules become more, and a rule that is applied to many workloads. The figures are rows of the
//! report. What the manager takes in a second is measured by `load-manager`.

#![allow(clippy::disallowed_methods, reason = "a bench measures with the system's clocks")]

use std::collections::BTreeMap;
use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use outrigger_core::ids::{RuleName, WorkloadId};
use outrigger_core::index::TenantIndex;
use outrigger_core::rule::{ExpressionSpec, InjectionSpec, Operator, Rule, RuleSpec};
use outrigger_core::texts::Texts;
use outrigger_core::workload::{Orchestrator, Workload};
use outrigger_tests::report::{self, Row};

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
        groups: Vec::new(),
        withheld: Vec::new(),
        revision: 0,
        gated: false,
    }
}

fn with_rules(rules: usize) -> TenantIndex {
    let mut index = TenantIndex::default();
    for i in 0..rules {
        index.apply_rule(rule(i));
    }
    index
}

/// Rounds of each figure, in turns with its floor.
const ROUNDS: usize = 9;

fn time(once: impl FnOnce()) -> Duration {
    let start = Instant::now();
    once();
    start.elapsed()
}

/// Workloads that no rule matches, compared with more and more rules. The floor is ten rules.
fn unmatched() -> Vec<Row> {
    const WORKLOADS: usize = 20_000;
    let workloads: Vec<Workload> = (0..WORKLOADS).map(workload).collect();
    let few = with_rules(10);
    let each = |index: &TenantIndex| {
        let took = time(|| {
            for workload in &workloads {
                assert!(index.matching(black_box(workload)).is_empty(), "no rule matches these workloads");
            }
        });
        took.as_secs_f64() * 1e9 / WORKLOADS as f64
    };
    let row = |rules: usize| {
        let many = with_rules(rules);
        let rounds: Vec<_> = (0..ROUNDS).map(|_| (each(&many), each(&few))).collect();
        Row::new(&format!("an unmatched workload, {rules} rules"), "ns", "10 rules", &rounds)
    };
    [100, 1000, 10_000].map(row).into()
}

/// A rule is applied to a tenant with 100,000 workloads and 1,000 rules: one about a field that no other rule names. The floor is one about a field that
/// other rules name, whose values are known.
fn applied() -> Row {
    let mut index = with_rules(1000);
    index.sync((0..100_000).map(workload).collect());
    let mut once = |rule: Arc<Rule>| {
        let took = time(|| drop(black_box(index.apply_rule(rule.clone()))));
        index.remove_rule(rule.name());
        took.as_secs_f64() * 1e3
    };
    let known = rule(1_000_001);
    let term = vec![ExpressionSpec::new(".state.extra.labels.version", Operator::In, &["v9"])];
    let new = compiled(1_000_002, term);
    let rounds: Vec<_> = (0..ROUNDS).map(|_| (once(new.clone()), once(known.clone()))).collect();
    Row::new("a rule about a new field, 100,000 workloads", "ms", "a field of other rules", &rounds)
}

/// Measures, and prints the rows.
pub(crate) fn run() {
    let mut rows = unmatched();
    rows.push(applied());
    report::record("matching", &rows);
}
