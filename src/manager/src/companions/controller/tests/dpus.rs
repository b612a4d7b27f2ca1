//! Companions on each DPU of a host.

use k8s_openapi::api::core::v1::Node;

use super::*;

const DPU: &str = "/api/v1/nodes/d1";

fn on(dpu: &str) -> CompanionId {
    CompanionId { key: id().key.on(dpu), ..id() }
}

fn node(host: &str) -> Value {
    json!({"metadata": {"name": "d1", "labels": {keys::DPU_HOST: host, keys::NODE_TENANT: "blue"}}})
}

impl World {
    /// A workload on the host `h`, whose rule has a companion on each DPU there.
    fn on_all() -> Self {
        let world = Self::new();
        let mut rule = fixtures::rule();
        rule["spec"]["dpuSelectionPolicy"] = json!("SameNodeAll");
        let state = world.state();
        let mut data = state.lock();
        data.apply_rule(&fixtures::object(rule));
        data.index.sync(vec![Workload { node_name: Some("h".into()), ..fixtures::workload("w") }]);
        drop(data);
        world
    }

    /// The watch of Nodes shows the DPU `d1`, or that it is deleted.
    fn shows_dpu(&self, is_there: bool) {
        let context = &self.controller.context;
        let node: Option<Node> = is_there.then(|| fixtures::object(node("h")));
        context.caches.registry.node("d1", node.as_ref());
        let now = context.environment.clock.wall();
        let touched = self.state().lock().assess_host("h", &context.caches.registry, now);
        assert_eq!(touched, [id().key]);
    }
}

#[tokio::test]
async fn the_step_without_a_dpu_makes_nothing_and_queues_one_for_each_dpu() {
    let world = World::on_all();
    world.step().await;
    let queued = || world.controller.context.queues.companions.counts().ready;
    assert_eq!(queued(), 0, "there is no DPU");
    world.shows_dpu(true);
    let latency = &world.controller.context.telemetry.metrics.latency;
    latency.requested(&[id()], &latency.request(&tracing::Span::none()));
    world.step().await;
    assert_eq!((queued(), world.api.calls("POST").len()), (1, 0));
    latency.begin(&on("d1")).created();
    let mut registry = prometheus_client::registry::Registry::default();
    registry.register("lag", "", latency.histogram.clone());
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
    assert!(text.contains("lag_count 1"), "the workload's message has asked for it: {text}");
    world.controller.step(&on("d1")).await.unwrap();
    let (_, created) = world.api.calls("POST").remove(0);
    assert_eq!(created["metadata"]["annotations"][keys::DPU], "d1");
    assert_eq!(created["metadata"]["name"], companion::own_name(&on("d1").key));
}

#[tokio::test]
async fn a_companion_that_was_never_there_again_is_waited_for_no_longer_than_its_workload_is_there() {
    let world = World::on_all();
    world.shows_dpu(true);
    let (state, key) = (world.state(), on("d1").key);
    state.lock().first_sync(&[id().key]);
    assert!(state.lock().rollouts.concerns(&key), "whoever deleted it, it is down");
    state.lock().index.delete(&fixtures::workload("w").id);
    world.step().await;
    assert_eq!(world.controller.context.queues.companions.counts().ready, 1);
    world.controller.step(&on("d1")).await.unwrap();
    assert!(!state.lock().rollouts.concerns(&key), "its place is free");
    world.step().await;
    assert_eq!(world.controller.context.queues.companions.counts().ready, 1, "nothing is left to be done");
}

#[tokio::test]
async fn a_companion_stays_while_its_dpu_is_only_missing_in_the_cache() {
    let world = World::on_all();
    world.shows_dpu(true);
    let rule = world.state().lock().index.rule(&id().key.rule).unwrap().clone();
    let observed = Observed {
        uid: "pod".into(),
        rule_uid: rule.uid().into(),
        rule_generation: 1,
        template_hash: rule.template_hash().into(),
        content_hash: Some(rule.content_hash().into()),
        host: Some("h".into()),
        injected: Some(Vec::new()),
        ..Observed::default()
    };
    world.state().lock().companions.applied("r-d1", on("d1").key, observed);
    let step = async || world.controller.step(&on("d1")).await.unwrap();
    step().await;
    assert_eq!((world.deletions(), world.api.calls("GET").len()), (0, 0), "nothing has to be asked");
    world.shows_dpu(false);
    for (code, answer, deletions) in [
        (200, node("h"), 0),
        (503, json!({}), 0),
        // It is in another host now.
        (200, node("i"), 1),
        (404, not_found(), 2),
    ] {
        world.api.answers("GET", DPU, code, answer);
        step().await;
        assert_eq!(world.deletions(), deletions, "{code}");
    }
}
