use outrigger_core::companion::{self, Observed, StreamClaim};
use outrigger_core::index::CompanionKey;
use outrigger_core::workload::Workload;
use serde_json::json;

use super::*;
use crate::fixtures;
use outrigger_runtime::environment::Environment;
use outrigger_runtime::fake_api::{FakeApi, failure, not_found};

mod dpus;
mod hosts;
mod linger;
mod resize;

const RULE: &str = "/apis/workload.universe.nvidia.com/v1alpha1/namespaces/tenant-blue/workloadrules/r";

/// A controller whose replica serves the tenant `blue`, which has sent the workload `w`.
struct World {
    api: FakeApi,
    controller: Companions,
}

fn id() -> CompanionId {
    CompanionId { namespace: "tenant-blue".into(), key: fixtures::key("w") }
}

impl World {
    fn new() -> Self {
        Self::in_environment(Environment::system())
    }

    fn in_environment(environment: Environment) -> Self {
        let api = FakeApi::default();
        let context = fixtures::context_in(api.client(), environment);
        fixtures::served_tenant(&context).lock().index.sync(vec![fixtures::workload("w")]);
        Self { api, controller: Companions::new(&context) }
    }

    fn state(&self) -> Arc<TenantState> {
        self.controller.context.states.state("tenant-blue")
    }

    /// The watch of Pods shows the companion, made for the rule with this uid and generation.
    fn shows_companion(&self, rule_uid: &str, rule_generation: i64) {
        self.shows(Observed { rule_uid: rule_uid.into(), rule_generation, ..Observed::default() });
    }

    /// The watch of Pods shows the companion.
    fn shows(&self, observed: Observed) {
        let observed = Observed { uid: "pod".into(), ..observed };
        self.state().lock().companions.applied("r-w", id().key, observed);
    }

    /// The watch of Pods shows that the companion is deleted, a long time after it was created.
    fn loses_companion(&self) {
        let state = self.state();
        let mut data = state.lock();
        data.companions.deleted(Kind::Pod, "r-w");
        data.companion_observed(&id().key);
        std::mem::take(&mut data.creations);
    }

    /// The watch of rules shows the rule, which matches Pods of this name.
    fn shows_rule(&self, uid: &str, generation: i64, name: &str) {
        let mut rule = fixtures::rule();
        rule["metadata"]["uid"] = json!(uid);
        rule["metadata"]["generation"] = json!(generation);
        rule["spec"]["workloadTerms"] = json!([{"matchExpressions": [
            {"key": ".metadata.resourceName", "operator": "In", "values": [name]}]}]);
        self.state().lock().apply_rule(&fixtures::object(rule));
    }

    async fn step(&self) -> Action {
        self.controller.step(&id()).await.unwrap()
    }

    /// How many times the companion was deleted.
    fn deletions(&self) -> usize {
        self.api.calls("DELETE").len()
    }
}

fn rule(uid: &str) -> Value {
    json!({"metadata": {"name": "r", "namespace": "tenant-blue", "uid": uid}})
}

#[tokio::test]
async fn no_companion_is_created_once_the_tenant_is_lost_while_its_claim_templates_are_made() {
    const TEMPLATES: &str = "/apis/resource.k8s.io/v1/namespaces/tenant-blue/resourceclaimtemplates";
    for (is_lost, pods) in [(false, 1), (true, 0)] {
        let world = World::new();
        let mut rule = fixtures::rule();
        rule["spec"]["deviceClaims"] = json!([{"name": "d", "spec": {"devices": {"requests": [
            {"name": "d", "exactly": {"deviceClassName": "c"}}]}}}]);
        world.state().lock().apply_rule(&fixtures::object(rule));
        let state = world.state();
        world.api.meanwhile("POST", TEMPLATES, move || state.lock().closing = is_lost);
        let made = json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate",
            "metadata": {"name": "t", "namespace": "tenant-blue", "uid": "t"}});
        world.api.answers("POST", TEMPLATES, 201, made);
        world.step().await;
        let posts = world.api.calls("POST");
        let of = |part: &str| posts.iter().filter(|(path, _)| path.contains(part)).count();
        assert_eq!((of("/resourceclaimtemplates"), of("/pods")), (1, pods), "{is_lost}");
    }
}

#[tokio::test]
async fn a_companion_stays_while_its_rule_is_only_missing_in_the_cache() {
    let world = World::new();
    world.shows_companion("u", 1);
    world.api.answers("GET", RULE, 200, rule("u"));
    world.step().await;
    assert_eq!(world.deletions(), 0, "the rule exists");
    world.api.answers("GET", RULE, 503, json!({}));
    world.step().await;
    assert_eq!(world.deletions(), 0, "the API server doesn't say");
    world.api.answers("GET", RULE, 404, not_found());
    world.step().await;
    assert_eq!(world.deletions(), 1);
}

#[tokio::test]
async fn a_companion_of_a_newer_rule_of_the_same_name_stays() {
    // Whether the rule that was deleted matches the workload says nothing about the companion.
    for matched in ["web", "db"] {
        let world = World::new();
        world.shows_rule("old", 1, matched);
        world.shows_companion("new", 1);
        world.api.answers("GET", RULE, 200, rule("new"));
        world.step().await;
        assert_eq!(world.deletions(), 0, "the cache is behind");
        world.api.answers("GET", RULE, 200, rule("newest"));
        world.step().await;
        assert_eq!(world.deletions(), 1);
    }
}

#[tokio::test]
async fn a_rule_that_is_created_again_replaces_ready_companions_in_a_rollout() {
    let world = World::new();
    world.shows_rule("new", 1, "web");
    world.shows(Observed { rule_uid: "old".into(), ready: true, ..Observed::default() });
    world.api.answers("GET", RULE, 200, rule("new"));
    world.step().await;
    assert_eq!(world.deletions(), 0, "its template has not been validated");
    let passed = crate::state::validation::TemplateValidation::passed();
    world.state().lock().rules.get_mut(&id().key.rule).unwrap().validation = passed;
    world.step().await;
    assert_eq!(world.deletions(), 1);
    // One that isn't ready serves nobody, and one of a workload that the rule doesn't match isn't part of the rollout.
    for (name, ready) in [("web", false), ("db", true)] {
        let world = World::new();
        world.shows_rule("new", 1, name);
        world.shows(Observed { rule_uid: "old".into(), ready, ..Observed::default() });
        world.api.answers("GET", RULE, 200, rule("new"));
        world.step().await;
        assert_eq!(world.deletions(), 1);
    }
}

#[tokio::test]
async fn a_companion_made_from_a_later_state_of_its_rule_stays() {
    let world = World::new();
    world.shows_rule("u", 1, "db");
    world.shows_companion("u", 2);
    world.api.answers("GET", RULE, 503, json!({}));
    assert_eq!(world.step().await, Action::Wait, "the API server doesn't say");
    let of_generation = |generation: i64| {
        let mut rule = rule("u");
        rule["metadata"]["generation"] = generation.into();
        rule
    };
    world.api.answers("GET", RULE, 200, of_generation(2));
    assert_eq!(world.step().await, Action::Requeue(STALE_PAUSE));
    assert_eq!(world.deletions(), 0, "what is known here doesn't match yet");
    world.shows_rule("u", 2, "db");
    world.step().await;
    assert_eq!(world.deletions(), 1);
    // The cluster's state was restored, and with it an earlier state of the rule.
    world.shows_rule("u", 1, "db");
    world.shows_companion("u", 2);
    world.api.answers("GET", RULE, 200, of_generation(1));
    world.step().await;
    assert_eq!(world.deletions(), 2);
}

const TENANT: &str = "/apis/outrigger.dev/v1alpha1/tenants/blue";
const PODS: &str = "/api/v1/namespaces/tenant-blue/pods";

/// A world that knows the first claim, and shows a companion of a workload that isn't known, made under the second.
fn world_with_later_companion() -> World {
    let world = World::new();
    world.shows_rule("u", 1, "db");
    let known = world.state().lock().stream.latest().unwrap();
    let claim = Some(StreamClaim { number: known.number + 1, ..known });
    world.shows(Observed { rule_uid: "u".into(), claim, ..Observed::default() });
    world
}

#[tokio::test]
async fn a_companion_made_under_a_later_claim_is_the_later_holders() {
    let world = world_with_later_companion();
    world.api.answers("GET", TENANT, 503, json!({}));
    assert_eq!(world.step().await, Action::Wait, "the API server doesn't say");
    world.api.answers("GET", TENANT, 200, fixtures::tenant_claimed(2, "another"));
    assert_eq!(world.step().await, Action::Done);
    assert_eq!(
        world.deletions(),
        0,
        "another replica has the stream, and knows workloads that aren't known here"
    );
}

#[tokio::test]
async fn a_claim_that_no_tenant_has_doesnt_count() {
    // The cluster's state was restored, and with it an earlier claim.
    let world = world_with_later_companion();
    let me = world.controller.context.replica.identity.clone();
    world.api.answers("GET", TENANT, 200, fixtures::tenant_claimed(1, &me));
    world.step().await;
    assert_eq!(world.deletions(), 1);
}

#[tokio::test]
async fn claims_on_another_tenant_dont_count() {
    let world = World::new();
    world.shows_rule("u", 1, "db");
    let claim = Some(StreamClaim { tenant_uid: "former".into(), number: 9 });
    world.shows(Observed { rule_uid: "u".into(), claim, ..Observed::default() });
    world.step().await;
    assert_eq!(world.deletions(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_companion_that_another_deletes_is_not_created_again_and_again() {
    let world = World::new();
    world.shows_rule("u", 1, "web");
    let created = || world.api.calls("POST").len();
    let me = world.controller.context.replica.identity.clone();
    let made = || json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "r-w", "namespace": "tenant-blue", "uid": "pod"}});
    world.api.answers("POST", PODS, 201, made());
    world.step().await;
    assert_eq!(created(), 1);
    // The watch shows nothing of it: it is deleted already.
    world.api.answers("GET", TENANT, 200, fixtures::tenant_claimed(1, &me));
    let again = world.step().await;
    assert!(matches!(again, Action::Requeue(left) if left <= Duration::from_secs(1)), "{again:?}");
    assert_eq!(created(), 1);
    // After that it is created, as long as no other replica has taken the tenant over.
    tokio::time::advance(Duration::from_secs(1)).await;
    world.api.answers("POST", PODS, 201, made());
    world.step().await;
    assert_eq!(created(), 2);
    world.api.answers("GET", TENANT, 200, fixtures::tenant_claimed(2, "another"));
    world.step().await;
    tokio::time::advance(Duration::from_secs(60)).await;
    assert_eq!(world.step().await, Action::Done);
    assert_eq!(created(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_refusal_holds_while_its_workload_stops_matching_and_matches_again() {
    let world = World::new();
    world.shows_rule("u", 1, "web");
    world.api.answers("POST", PODS, 403, failure(403, "Forbidden"));
    let tried = || world.api.calls("POST").len();
    let named = |name: &str| {
        let workload = Workload { resource_name: name.to_owned(), ..fixtures::workload("w") };
        world.state().lock().index.update(workload);
    };
    world.step().await;
    for _ in 0..10 {
        named("other");
        assert_eq!(world.step().await, Action::Done);
        assert_eq!(world.state().lock().refusals.len(), 0, "it isn't wanted");
        named("web");
        assert!(matches!(world.step().await, Action::Requeue(left) if left <= REFUSED_PAUSE));
    }
    assert_eq!((tried(), world.state().lock().refusals.len()), (1, 1));
    tokio::time::advance(REFUSED_PAUSE).await;
    world.step().await;
    assert_eq!(tried(), 2);
}

#[tokio::test]
async fn the_first_companion_of_a_workload_has_a_mark_until_one_of_them_has_a_node() {
    let mark = |world: &World| {
        let calls = world.api.calls("POST");
        let (_, created) = calls.last().unwrap();
        created["metadata"]["annotations"].get(keys::FIRST_COMPANION).cloned()
    };
    let first = Some(json!("true"));
    // Whether the first one has had a Node, whether it was marked, and the mark of the second.
    for (placed, marked, second) in
        [(false, true, first.clone()), (true, true, None), (false, false, None), (true, false, None)]
    {
        let world = World::new();
        world.shows_rule("u", 1, "web");
        world.step().await;
        assert_eq!(mark(&world), first);
        world.shows(Observed {
            rule_uid: "u".into(),
            first: marked,
            unplaced: !placed,
            ..Observed::default()
        });
        world.loses_companion();
        world.step().await;
        assert_eq!(world.api.calls("POST").len(), 2);
        assert_eq!(mark(&world), second, "placed: {placed}, marked: {marked}");
    }
}
