//! Rules with a companion on each DPU of a host.

use super::*;

impl World {
    /// The rule has a companion on each DPU of the host, which has none.
    fn on_all() -> Self {
        let mut world = Self::new(1);
        let mut rule = rule("BeforeReady");
        rule["metadata"]["generation"] = json!(2);
        rule["spec"]["dpuSelectionPolicy"] = json!("SameNodeAll");
        let touched = world.data.apply_rule(&fixtures::object(rule));
        world.assess(&touched);
        world.shows_dpu("n", None);
        world
    }

    /// The DPU with this name is so, or is deleted. Returns what this concerns.
    fn shows_dpu(&mut self, name: &str, node: Option<&Node>) -> Vec<CompanionKey> {
        self.registry.node(name, node);
        let touched = self.data.assess_host("h", &self.registry, self.now);
        self.assess(&touched);
        touched
    }

    fn stage(&self) -> (Stage, Option<Cause>) {
        let reported = self.reported("w0");
        assert_eq!(reported.len(), 1, "one status for all: {reported:?}");
        (reported[0].0, reported[0].1)
    }
}

fn handed_over() -> Node {
    let taint = json!({"key": keys::HANDOVER, "value": "blue", "effect": "NoSchedule"});
    let labels = json!({keys::DPU_HOST: "h"});
    fixtures::object(json!({"metadata": {"name": "n", "labels": labels}, "spec": {"taints": [taint]}}))
}

#[test]
fn companions_on_all_dpus_count_as_ready_once_each_is() {
    let mut world = World::on_all();
    assert_eq!(world.stage(), (Stage::NoDpu, Some(Cause::NoDpu)), "none is not all");
    for name in ["d1", "d2"] {
        assert_eq!(world.shows_dpu(name, Some(&dpu(true, "blue"))), [key("w0")]);
    }
    assert_eq!(world.shows_dpu("d2", Some(&dpu(false, "blue"))), [], "it stays what it is");
    assert_eq!(world.stage(), (Stage::Pending, Some(Cause::Pending)));
    let d2 = key("w0").on("d2").workload;
    world.shows(&key("w0").on("d1").workload, |o| o.ready = true);
    assert_eq!(
        world.stage(),
        (Stage::Pending, Some(Cause::Pending)),
        "the companion on the other DPU doesn't exist yet"
    );
    world.shows(&d2, |o| o.unplaced = true);
    assert_eq!(world.stage(), (Stage::NoDpu, Some(Cause::DpuNotReady)), "the other DPU isn't ready");
    world.shows(&d2, |o| o.ready = true);
    assert_eq!(world.stage(), (Stage::Ready, None));
    // Another DPU comes, and goes before it is the tenant's.
    assert_eq!(world.shows_dpu("d3", Some(&handed_over())), [key("w0")]);
    assert_eq!(world.stage(), (Stage::NoDpu, Some(Cause::HandingOver)));
    assert_eq!(world.shows_dpu("d3", Some(&dpu(true, "blue"))), [key("w0")]);
    assert_eq!(
        world.stage(),
        (Stage::Pending, Some(Cause::Pending)),
        "it has had no companion that was lost"
    );
    world.shows(&d2, |_| {});
    world.shows_dpu("d3", None);
    assert_eq!(world.stage(), (Stage::Lost, Some(Cause::DpuNotReady)), "the one on d2 was ready");
    assert_eq!(world.shows_dpu("d2", None), [key("w0")]);
    assert_eq!(world.stage(), (Stage::Ready, None), "it is the only one");
    world.shows_dpu("d1", None);
    assert_eq!(world.stage(), (Stage::NoDpu, Some(Cause::NoDpu)));
}

#[test]
fn a_refusal_of_one_of_several_companions_is_reported() {
    let mut world = World::on_all();
    for name in ["d1", "d2"] {
        world.shows_dpu(name, Some(&dpu(true, "blue")));
        world.shows(&key("w0").on(name).workload, |o| o.ready = true);
    }
    let why = Why { faults: "spec.template.spec.x: m".into(), ..Why::new(Cause::Refused, "in other words") };
    let refusal = Refusal { why, generation: 2, until: tokio::time::Instant::now() };
    let d2 = key("w0").on("d2");
    world.data.companions.deleted(outrigger_core::template::Kind::Pod, &d2.workload);
    world.data.refusals.insert(d2.clone(), refusal);
    world.assess(&[d2]);
    assert_eq!(world.stage(), (Stage::Refused, Some(Cause::Refused)));
    let companion = world.data.report_of(&"w0".into(), world.now).unwrap().companions.remove(0);
    assert_eq!(companion.faults, "spec.template.spec.x: m");
}

#[test]
fn companions_of_a_rule_that_cannot_be_served_stay_and_are_reported() {
    let mut world = World::on_all();
    world.shows_dpu("d1", Some(&dpu(true, "blue")));
    let d1 = key("w0").on("d1");
    world.shows(&d1.workload, |o| o.ready = true);
    let mut rule = rule("BeforeReady");
    rule["metadata"]["generation"] = json!(3);
    rule["spec"]["dpuSelectionPolicy"] = json!("Elsewhere");
    let touched = world.data.apply_rule(&fixtures::object(rule));
    world.assess(&touched);
    assert_eq!(world.stage(), (Stage::Ready, None));
    assert_eq!(world.data.on_dpus(&key("w0")), BTreeSet::from([d1]));
}
