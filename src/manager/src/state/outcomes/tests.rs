use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use outrigger_core::companion::Observed;
use outrigger_core::keys;
use outrigger_runtime::cache::Change;
use serde_json::{Value, json};

use super::*;
use crate::fixtures::{self, key};
use crate::state::{Refusal, Why};

mod all;

/// The tenant `blue` with the host `h`, its rule `r` for Pods on the DPU of their node, and as many workloads on that host.
struct World {
    data: TenantData,
    registry: Registry,
    now: Timestamp,
}

fn rule(ordering: &str) -> Value {
    let mut rule = fixtures::rule();
    rule["spec"]["dpuSelectionPolicy"] = json!("SameNode");
    rule["spec"]["ordering"] = json!(ordering);
    rule
}

fn dpu(ready: bool, owner: &str) -> Node {
    let ready = if ready { "True" } else { "False" };
    let labels = json!({keys::DPU_HOST: "h", keys::NODE_TENANT: owner});
    fixtures::object(json!({"metadata": {"name": "n", "labels": labels},
        "status": {"conditions": [{"type": "Ready", "status": ready}]}}))
}

impl World {
    fn new(workloads: usize) -> Self {
        let registry = Registry::new(Default::default(), Vec::new());
        let tenant = json!({"apiVersion": "outrigger.dev/v1alpha1", "kind": "Tenant",
            "metadata": {"name": "blue", "uid": "t", "generation": 1}, "spec": {"hosts": ["h"]}});
        registry.tenant(Change::Applied(fixtures::object(tenant)));
        registry.node("n", Some(&dpu(true, "blue")));
        let mut data =
            TenantData { tenant: outrigger_core::ids::TenantId::new("blue").ok(), ..TenantData::default() };
        data.stream.connected = true;
        let mut this = Self { data, registry, now: Timestamp::UNIX_EPOCH };
        let all = (0..workloads).map(|i| on_host(&format!("w{i}"))).collect();
        let mut touched = this.data.apply_rule(&fixtures::object(rule("Parallel")));
        touched.extend(this.data.index.sync(all));
        this.assess(&touched);
        this.data.assess_hosts(&this.registry, this.now);
        this
    }

    fn assess(&mut self, keys: &[CompanionKey]) {
        self.now = self.now.checked_add(Duration::from_secs(1)).unwrap();
        self.data.assess(keys, &self.registry, self.now);
    }

    /// The companion of a workload looks like this.
    fn shows(&mut self, workload: &str, change: impl FnOnce(&mut Observed)) {
        let hash = self.data.index.rule(&key("").rule).unwrap().template_hash().to_owned();
        let mut observed = Observed {
            uid: "pod".into(),
            rule_uid: "u".into(),
            template_hash: hash,
            host: Some("h".into()),
            ..Observed::default()
        };
        change(&mut observed);
        self.data.companions.applied(workload, key(workload), observed);
        self.assess(&[key(workload)]);
    }

    fn reported(&self, workload: &str) -> Vec<(Stage, Option<Cause>, i64)> {
        let report = self.data.report_of(&workload.into(), self.now).unwrap();
        let of = |companion: &ReportedCompanion| {
            let Progress { stage, cause } = companion.outcome.progress;
            (stage, cause, companion.outcome.since.as_second())
        };
        report.companions.iter().map(of).collect()
    }
}

fn on_host(id: &str) -> outrigger_core::workload::Workload {
    outrigger_core::workload::Workload { node_name: Some("h".into()), ..fixtures::workload(id) }
}

#[test]
fn a_companion_is_pending_then_ready_then_lost_and_its_rule_takes_it_away() {
    let mut world = World::new(1);
    assert_eq!(world.reported("w0"), [(Stage::Pending, Some(Cause::Pending), 1)]);
    world.shows("w0", |_| {});
    assert_eq!(world.reported("w0"), [(Stage::Starting, Some(Cause::Starting), 2)]);
    world.shows("w0", |o| o.trouble = Some(Cause::ImageUnavailable));
    assert_eq!(world.reported("w0"), [(Stage::Failed, Some(Cause::ImageUnavailable), 3)]);
    world.shows("w0", |o| o.ready = true);
    assert_eq!(world.reported("w0"), [(Stage::Ready, None, 4)]);
    world.shows("w0", |_| {});
    assert_eq!(world.reported("w0"), [(Stage::Lost, Some(Cause::Lost), 5)]);
    // Since when it is lost stays, while the cause changes with the DPU's Node.
    world.registry.node("n", Some(&dpu(false, "blue")));
    world.data.assess_host("h", &world.registry, world.now);
    assert_eq!(world.reported("w0"), [(Stage::Lost, Some(Cause::DpuNotReady), 5)]);
    assert_eq!(
        world.data.outcomes.causes().filter(|(_, count)| *count > 0).collect::<Vec<_>>(),
        [(Cause::DpuNotReady, 1)]
    );
    let touched = world.data.remove_rule(&key("").rule);
    world.assess(&touched);
    assert_eq!(world.reported("w0"), []);
    assert!(world.data.outcomes.waiting.is_empty() && world.data.outcomes.by_workload.is_empty());
    assert!(world.data.outcomes.causes().all(|(_, count)| count == 0));
}

#[test]
fn a_refusal_is_reported_by_its_cause_and_the_faults_of_the_rules_own_fields() {
    let mut world = World::new(1);
    let why = Why { faults: "spec.template.spec.x: m".into(), ..Why::new(Cause::Refused, "in other words") };
    let refusal = Refusal { why, generation: 1, until: tokio::time::Instant::now() };
    world.data.refusals.insert(key("w0"), refusal);
    world.assess(&[key("w0")]);
    let companion = world.data.report_of(&"w0".into(), world.now).unwrap().companions.remove(0);
    assert_eq!(companion.outcome.progress, Progress { stage: Stage::Refused, cause: Some(Cause::Refused) });
    assert_eq!(companion.faults, "spec.template.spec.x: m");
    world.data.refusals.clear();
    world.assess(&[key("w0")]);
    assert_eq!(world.reported("w0"), [(Stage::Pending, Some(Cause::Pending), 3)]);
}

#[test]
fn a_companion_without_a_node_is_reported_by_what_of_its_template_no_dpu_has() {
    let mut world = World::new(1);
    let mut model = rule("Parallel");
    model["spec"]["template"]["spec"]["nodeSelector"] = json!({"model": "bf9"});
    model["metadata"]["generation"] = json!(2);
    world.data.apply_rule(&fixtures::object(model));
    let of = |world: &World| {
        let companion = world.data.report_of(&"w0".into(), world.now).unwrap().companions.remove(0);
        (companion.outcome.progress.cause, companion.faults)
    };
    const LABELS: &str = "0/3 nodes are available: 3 node(s) didn't match Pod's node affinity/selector.";
    let unplaced =
        |message: &'static str| move |o: &mut Observed| (o.unplaced, o.message) = (true, message.into());
    world.shows("w0", unplaced(LABELS));
    assert_eq!(of(&world), (Some(Cause::NoMatchingDpu), "no DPU has nodeSelector model=bf9".into()));
    assert_eq!(world.data.unplaced(&key("w0")).map(|(cause, _)| cause), Some(Cause::NoMatchingDpu));
    world.shows("w0", unplaced("0/3 nodes are available: 1 Insufficient cpu, 2 node(s) didn't match Pod's node affinity/selector."));
    assert_eq!(of(&world), (Some(Cause::Unschedulable), "Insufficient cpu".into()));
    // Of an earlier template only the scheduler's words are known.
    let earlier = |o: &mut Observed| {
        unplaced(LABELS)(o);
        o.template_hash = "earlier".into();
    };
    world.shows("w0", earlier);
    assert_eq!(of(&world), (Some(Cause::NoMatchingDpu), String::new()));
    world.shows("w0", unplaced(LABELS));
    let mut labelled = dpu(true, "blue");
    labelled.metadata.labels.as_mut().unwrap().insert("model".into(), "bf9".into());
    assert!(world.registry.node("n", Some(&labelled)).hosts.contains("h"));
    world.data.assess_host("h", &world.registry, world.now);
    assert_eq!(of(&world), (Some(Cause::Unschedulable), String::new()));
}

#[test]
fn a_host_is_reported_by_its_dpu_and_so_are_companions_that_wait_for_it() {
    let mut world = World::new(1);
    let (number, _) = world.data.outcomes.follow(1).unwrap();
    let hosts = |world: &mut World| {
        let next = world.data.outcomes.next_host(number);
        next.map(|(name, outcome)| (name, outcome.map(|outcome| outcome.dpu)))
    };
    let h = |dpu| Some(("h".to_owned(), dpu));
    assert_eq!((hosts(&mut world), hosts(&mut world)), (h(Some(HostDpu::Ready)), None), "what there is");
    world.shows("w0", |o| o.unplaced = true);
    assert_eq!(world.reported("w0"), [(Stage::NoDpu, Some(Cause::Unschedulable), 2)]);
    for (node, dpu, cause) in [
        (Some(dpu(false, "blue")), HostDpu::NotReady, Cause::DpuNotReady),
        (Some(dpu(true, "red")), HostDpu::HandingOver, Cause::HandingOver),
        (None, HostDpu::Absent, Cause::NoDpu),
    ] {
        let change = world.registry.node("n", node.as_ref());
        assert!(change.hosts.contains("h"));
        world.data.assess_host("h", &world.registry, world.now);
        assert_eq!(hosts(&mut world), h(Some(dpu)));
        assert_eq!(world.reported("w0"), [(Stage::NoDpu, Some(cause), 2)]);
    }
    assert!(world.registry.node("n", None).hosts.is_empty(), "nothing is other than before");
    let tenant = json!({"apiVersion": "outrigger.dev/v1alpha1", "kind": "Tenant",
        "metadata": {"name": "blue", "uid": "t", "generation": 2}, "spec": {"hosts": ["i"]}});
    world.registry.tenant(Change::Applied(fixtures::object(tenant)));
    world.data.assess_hosts(&world.registry, world.now);
    assert_eq!(hosts(&mut world), h(None), "it is the tenant's no longer");
    assert_eq!(hosts(&mut world), Some(("i".to_owned(), Some(HostDpu::Absent))));
    world.data.assess_hosts(&world.registry, world.now);
    assert_eq!(hosts(&mut world), None);
}

#[test]
fn a_host_is_reported_by_the_name_of_its_node() {
    let mut world = World::new(1);
    let (number, _) = world.data.outcomes.follow(1).unwrap();
    let hosts = |world: &mut World| {
        let next = std::iter::from_fn(|| world.data.outcomes.next_host(number));
        next.map(|(name, outcome)| (name, outcome.map(|outcome| outcome.dpu))).collect::<Vec<_>>()
    };
    assert_eq!(hosts(&mut world), [("h".to_owned(), Some(HostDpu::Ready))]);
    let names = |world: &mut World, generation: i64, entries: serde_json::Value| {
        let tenant = json!({"apiVersion": "outrigger.dev/v1alpha1", "kind": "Tenant",
            "metadata": {"name": "blue", "uid": "t", "generation": generation}, "spec": {"hosts": ["h"], "hostNames": entries}});
        let tenant: outrigger_api::Tenant = fixtures::object(tenant);
        let host_names = tenant.compile().unwrap().host_names;
        world.registry.tenant(Change::Applied(tenant));
        let touched = world.data.set_host_names(&host_names);
        world.assess(&touched);
        world.data.assess_hosts(&world.registry, world.now);
        (touched.len(), hosts(world))
    };
    let host = |name: &str, dpu| (name.to_owned(), dpu);
    assert_eq!(
        names(&mut world, 2, json!([{"node": "n", "host": "h"}])),
        (1, vec![host("h", None), host("n", Some(HostDpu::Ready))])
    );
    assert_eq!(names(&mut world, 3, json!([{"node": "n", "host": "h"}])), (0, vec![]));
    world.registry.node("n", Some(&dpu(false, "blue")));
    world.data.assess_host("h", &world.registry, world.now);
    assert_eq!(hosts(&mut world), [host("n", Some(HostDpu::NotReady))]);
    assert_eq!(
        names(&mut world, 4, json!([])),
        (1, vec![host("h", Some(HostDpu::NotReady)), host("n", None)])
    );
}

#[test]
fn changes_of_one_workload_are_one_message_with_the_last_state() {
    let mut world = World::new(2);
    let (number, _) = world.data.outcomes.follow(1).unwrap();
    assert!(world.data.outcomes.follow(1).is_none(), "no more than one");
    for round in 0..1000 {
        world.shows("w0", |o| o.ready = round % 2 == 1);
    }
    assert_eq!(world.data.outcomes.next_workload(number).as_deref(), Some("w0"));
    assert_eq!(world.reported("w0")[0].0, Stage::Ready);
    assert_eq!(world.data.outcomes.next_workload(number), None);
    world.shows("w0", |o| o.ready = true);
    assert_eq!(world.data.outcomes.next_workload(number), None, "nothing has changed");
    // A rule that has workloads wait changes what is sent about each.
    let mut ordered = rule("BeforeReady");
    ordered["metadata"]["generation"] = json!(2);
    let touched = world.data.apply_rule(&fixtures::object(ordered));
    world.assess(&touched);
    assert_eq!(world.data.outcomes.next_workload(number).as_deref(), Some("w0"));
    assert!(world.data.report_of(&"w0".into(), world.now).unwrap().companions[0].outcome.ordering.gates());
    world.data.outcomes.leave(number);
    assert!(world.data.outcomes.follow(1).is_some());
}

#[test]
fn what_a_follower_has_to_read_is_bounded_while_workloads_come_and_go() {
    let mut world = World::new(1);
    let (number, _) = world.data.outcomes.follow(1).unwrap();
    for i in 0..10_000 {
        let workload = on_host(&format!("x{i}"));
        let id = workload.id.clone();
        let touched = world.data.index.update(workload);
        world.assess(&touched);
        let touched = world.data.index.delete(&id);
        world.assess(&touched);
    }
    let pending = world.data.outcomes.followers[&number].workloads.len();
    assert!((1..=SPARE + 4).contains(&pending), "{pending}");
    assert_eq!(world.data.outcomes.by_workload.len(), 1);
}

#[test]
fn a_workload_whose_match_is_over_the_limit_is_not_one_without_a_rule() {
    let mut world = World::new(1);
    let (number, _) = world.data.outcomes.follow(1).unwrap();
    let touched = world.data.index.limit(1);
    world.assess(&touched);
    let touched = world.data.index.update(on_host("v"));
    assert_eq!(touched, []);
    world.assess(&touched);
    assert_eq!(world.data.outcomes.next_workload(number).as_deref(), Some("v"));
    assert_eq!(world.reported("v")[0].1, Some(Cause::LimitReached));
    let all: Vec<_> =
        std::iter::successors(world.data.next_outcome(None), |label| world.data.next_outcome(Some(label)))
            .collect();
    assert_eq!(all, ["v".into(), "w0".into()], "a new reader hears of both");
    let touched = world.data.index.limit(2);
    world.assess(&touched);
    assert_eq!(world.reported("v")[0].1, Some(Cause::Pending));
}

#[test]
fn nobody_is_informed_of_the_former_nodes_companion_on_another_node() {
    let mut world = World::new(1);
    world.shows("w0", |o| o.ready = true);
    let (number, _) = world.data.outcomes.follow(1).unwrap();
    let moved = Workload { node_name: Some("i".into()), ..on_host("w0") };
    let (now, registry) = (world.now, &world.registry);
    let touched = world.data.update_workload(moved, registry, now);
    assert_eq!(touched, [key("w0")]);
    // Before anybody else has the lock.
    let report = world.data.report_of(&"w0".into(), world.now).unwrap();
    assert_eq!(report.node.as_deref(), Some("i"));
    let progress = report.companions[0].outcome.progress;
    assert_eq!(progress, Progress { stage: Stage::Lost, cause: Some(Cause::WorkloadMoved) });
    assert_eq!(world.data.outcomes.next_workload(number).as_deref(), Some("w0"));
    world.data.update_workload(on_host("w0"), &world.registry, now);
    assert_eq!(world.reported("w0")[0].0, Stage::Ready, "the control");
}

#[test]
fn the_companion_of_another_host_serves_no_workload_over_the_limit() {
    let mut world = World::new(1);
    world.shows("w0", |o| o.ready = true);
    // The match is lost and comes back when there is no room for it.
    world.data.index.limit(0);
    let rule = world.data.index.rule(&key("").rule).unwrap().clone();
    let touched = world.data.index.remove_rule(rule.name());
    world.assess(&touched);
    let touched = world.data.index.apply_rule(rule);
    world.assess(&touched);
    world.assess(&[key("w0")]);
    assert_eq!(world.reported("w0")[0].0, Stage::Ready, "on its own host it still serves it");
    let (moved, now) = (Workload { node_name: Some("i".into()), ..on_host("w0") }, world.now);
    world.data.update_workload(moved, &world.registry, now);
    world.assess(&[key("w0")]);
    let reported: Vec<_> = world.reported("w0").into_iter().map(|(stage, cause, _)| (stage, cause)).collect();
    assert_eq!(reported, [(Stage::Refused, Some(Cause::LimitReached))]);
}

#[cfg(debug_assertions)]
#[test]
fn a_change_takes_steps_for_its_own_companion_alone() {
    outrigger_core::steps::assert_nearly_linear(
        |size| (World::new(size), size),
        |(world, size)| {
            for i in 0..*size {
                world.shows(&format!("w{i}"), |o| o.ready = true);
            }
        },
    );
}

#[test]
fn what_an_earlier_stream_has_sent_says_nothing_of_what_a_later_one_will_send() {
    let mut world = World::new(1);
    assert!(world.data.can_report());
    let later = world.data.stream.begin(9, tokio::time::Instant::now()).unwrap().number;
    world.data.stream.connected = true;
    assert!(!world.data.can_report(), "its sync hasn't ended");
    world.data.outcomes.complete = later;
    assert!(world.data.can_report());
}

#[test]
fn changes_of_refused_workloads_are_noted_in_linear_steps() {
    outrigger_core::steps::assert_nearly_linear(
        |size| {
            let mut world = World::new(0);
            world.data.outcomes.follow(1).unwrap();
            (world, size)
        },
        |(world, size)| {
            for i in 0..*size {
                world.data.refuse_workload(&on_host(&format!("w{i}")), 500_000);
            }
        },
    );
}

#[test]
fn what_is_left_out_before_a_sync_is_complete_is_not_kept() {
    let registry = Registry::new(Default::default(), Vec::new());
    let mut data =
        TenantData { tenant: outrigger_core::ids::TenantId::new("blue").ok(), ..TenantData::default() };
    data.index.limit(0);
    data.apply_rule(&fixtures::object(rule("Parallel")));
    data.update_workload(on_host("w"), &registry, Timestamp::UNIX_EPOCH);
    assert_eq!(data.index.left_out_changed().len(), 1, "there is no room for it");
    let touched = data.update_workload(on_host("other"), &registry, Timestamp::UNIX_EPOCH);
    data.assess(&touched, &registry, Timestamp::UNIX_EPOCH);
    assert!(data.index.left_out_changed().is_empty());
}
