use jiff::Timestamp;
use outrigger_api::Tenant;
use outrigger_core::companion::Observed;
use outrigger_core::index::{CompanionKey, Desired, OwnDpus};
use outrigger_core::keys;
use outrigger_core::workload::Workload;
use outrigger_runtime::cache::Change;
use outrigger_runtime::fake_api::FakeApi;
use serde_json::{Value, json};

use super::*;
use crate::fixtures;
use crate::state::status_pace::PACE;
use crate::worker::Action;

/// A manager of a cluster with these tenants, each with its namespace.
struct World(Arc<Context>);

fn id(name: &str) -> TenantId {
    TenantId::new(name).unwrap()
}

fn name() -> RuleName {
    RuleName::admin("r").unwrap()
}

fn key(workload: &str) -> CompanionKey {
    CompanionKey { rule: name(), workload: workload.into() }
}

impl World {
    fn new(tenants: &[&str]) -> Self {
        Self::of(&FakeApi::default(), tenants)
    }

    fn of(api: &FakeApi, tenants: &[&str]) -> Self {
        let this = Self(fixtures::context(api.client()));
        for tenant in tenants {
            this.tenant(tenant, json!({}));
            this.namespace(&format!("tenant-{tenant}"), Some(tenant));
        }
        this
    }

    fn tenant(&self, name: &str, labels: Value) -> Vec<CompanionId> {
        let object = json!({"apiVersion": "outrigger.dev/v1alpha1", "kind": "Tenant",
            "metadata": {"name": name, "labels": labels}, "spec": {}});
        let tenant: Tenant = fixtures::object(object);
        self.0.caches.registry.tenant(Change::Applied(tenant));
        let states = self.0.states.of(&id(name));
        states
            .iter()
            .flat_map(|state| self.0.caches.admin_rules.update_admin_rules(&self.0, state).0)
            .collect()
    }

    fn namespace(&self, name: &str, tenant: Option<&str>) -> Vec<CompanionId> {
        self.0.states.set_tenant(name, tenant.map(id));
        self.0.caches.admin_rules.update_admin_rules(&self.0, &self.0.states.state(name)).0
    }

    fn rule(&self, generation: i64, change: Value) -> Vec<CompanionId> {
        let mut object = fixtures::admin_rule();
        object["metadata"]["generation"] = json!(generation);
        for (key, value) in change.as_object().unwrap() {
            object["spec"][key] = value.clone();
        }
        self.0.caches.admin_rules.apply(&self.0, &fixtures::object(object))
    }

    fn sync(&self, tenant: &str, workloads: &[&str]) {
        let workloads = workloads.iter().map(|id| fixtures::workload(id)).collect();
        self.0.states.state(&format!("tenant-{tenant}")).lock().index.sync(workloads);
    }

    /// What of the rule's status has to change.
    fn changes(&self, leads: bool) -> Option<Value> {
        let entry = self.0.caches.admin_rules.get(&name())?;
        status::changes(&self.0.states, &name(), &entry, leads, Timestamp::UNIX_EPOCH)
    }

    /// The namespaces where the rule is filed.
    fn filed(&self) -> Vec<String> {
        let is = |state: &Arc<TenantState>| state.lock().rules.contains_key(&name());
        let mut all: Vec<_> =
            self.0.states.all().iter().filter(|s| is(s)).map(|s| s.namespace.to_string()).collect();
        all.sort();
        all
    }
}

#[tokio::test]
async fn a_rule_is_filed_with_the_tenants_that_it_is_about() {
    let world = World::new(&["blue", "red"]);
    world.sync("blue", &["w"]);
    let touched = world.rule(1, json!({}));
    assert_eq!(touched.iter().map(|c| &*c.namespace).collect::<Vec<_>>(), ["tenant-blue"]);
    assert_eq!(world.filed(), ["tenant-blue", "tenant-red"]);
    assert_eq!(world.rule(1, json!({})), [], "known");
    // A tenant that comes, and a namespace that isn't its home though it has its label.
    world.tenant("new", json!({}));
    world.namespace("tenant-new", Some("new"));
    world.namespace("another", Some("new"));
    assert_eq!(world.filed(), ["tenant-blue", "tenant-new", "tenant-red"]);
    world.namespace("tenant-new", None);
    assert_eq!(world.filed(), ["tenant-blue", "tenant-red"]);

    world.rule(2, json!({"tenantSelector": {"matchLabels": {"tier": "gold"}}}));
    assert_eq!(world.filed(), Vec::<String>::new());
    let touched = world.tenant("blue", json!({"tier": "gold"}));
    assert_eq!((world.filed(), touched.len()), (vec!["tenant-blue".to_owned()], 1));
    // Its companions are looked at when it is no longer about their tenant.
    world.0.states.admin_companions_of(&id("blue")).lock().applied(
        "other",
        key("other"),
        Observed::default(),
    );
    let touched = world.tenant("blue", json!({}));
    let keys: Vec<_> = touched.into_iter().map(|c| c.key).collect();
    assert_eq!(keys, [key("w"), key("other")]);
    world.rule(3, json!({}));
    assert_eq!(world.0.caches.admin_rules.remove(&world.0, "r").len(), 2);
    assert_eq!(world.filed(), Vec::<String>::new());
}

#[tokio::test]
async fn a_change_of_a_rule_concerns_companions_that_outlive_their_workloads() {
    let world = World::new(&["blue"]);
    world.sync("blue", &[]);
    world.rule(1, json!({"lingerSeconds": 60}));
    let ended = Observed { ended: Some(0), ready: true, ..Observed::default() };
    world.0.states.admin_companions_of(&id("blue")).lock().applied("w", key("w"), ended);
    let state = world.0.states.state("tenant-blue");
    let lingers = || matches!(state.lock().index.desired(&key("w")), Desired::Ended { .. });
    assert!(lingers());
    assert_eq!(world.rule(2, json!({})), state.ids([key("w")]));
    assert!(!lingers());
    // Nobody waits for them.
    let status = world.changes(true).unwrap();
    assert_eq!((&status["created"], &status["ready"]), (&json!(0), &json!(0)));
    assert_eq!(
        status["conditions"][2]["message"],
        "no companion is wanted; 1 more companion outlives its workload (lingerSeconds)"
    );
    assert!(world.0.caches.admin_rules.remove(&world.0, "r").contains(&state.ids([key("w")])[0]));
}

#[tokio::test]
async fn a_rule_that_can_not_be_read_keeps_what_it_has() {
    let world = World::new(&["blue"]);
    world.sync("blue", &["w"]);
    world.rule(1, json!({"dpuSelectionPolicy": "Some"}));
    let state = world.0.states.state("tenant-blue");
    assert!(matches!(state.lock().index.desired(&key("w")), Desired::RuleUnknown));
    assert_eq!(
        world.filed(),
        ["tenant-blue"],
        "or its companions would be taken for those of a rule that is gone"
    );
    assert_eq!(world.rule(2, json!({})).len(), 1);
    assert!(matches!(state.lock().index.desired(&key("w")), Desired::Wanted { .. }));
    // A tenant's rule of the same name is another one.
    let own = RuleName::new("r").unwrap();
    assert!(!state.lock().rules.contains_key(&own));
    state.lock().remove_rule(&own);
    assert_eq!(world.filed(), ["tenant-blue"]);
}

#[tokio::test]
async fn companions_that_were_seen_before_their_tenant_are_not_lost() {
    let world = World::new(&[]);
    world.rule(1, json!({}));
    world.0.states.admin_companions_of(&id("blue")).lock().applied("w", key("w"), Observed::default());
    world.namespace("tenant-blue", Some("blue"));
    let state = world.0.states.state("tenant-blue");
    assert!(state.lock().admin_companions.is_none(), "there is no such Tenant yet");
    let touched = world.tenant("blue", json!({}));
    assert_eq!(touched, state.ids([key("w")]));
    assert_eq!(state.lock().companion_keys(), [key("w")]);
    world.namespace("tenant-blue", None);
    assert!(state.lock().companion_keys().is_empty());
    assert_eq!(world.0.states.admin_companions_of(&id("blue")).lock().keys().count(), 1);
}

#[tokio::test]
async fn each_replica_reports_on_the_tenants_that_it_serves_and_the_leader_sums_up() {
    let world = World::new(&["blue", "red", "idle"]);
    world.rule(1, json!({}));
    // The leader acts for those that nobody serves; it has received nothing of red.
    world.sync("blue", &["a", "b"]);
    world.sync("idle", &[]);
    let patch = world.changes(true).unwrap();
    assert_eq!(patch["tenants"], json!({"blue": {"matched": 2, "refused": null}}), "{patch}");
    assert_eq!((&patch["matched"], &patch["created"]), (&json!(2), &json!(0)));
    assert_eq!(patch["conditions"][2]["reason"], "Pending");
    // Who doesn't lead and serves nobody has nothing to say.
    assert_eq!(world.changes(false), None);

    let before =
        json!({"blue": {"matched": 2}, "red": {"matched": 3, "refused": "no"}, "gone": {"matched": 1}});
    let mut object = fixtures::admin_rule();
    object["status"] = json!({"tenants": before});
    world.0.caches.admin_rules.apply(&world.0, &fixtures::object(object));
    let store = world.0.states.admin_companions_of(&id("red"));
    store.lock().applied("x", key("x"), Observed { ready: true, ..Observed::default() });
    let patch = world.changes(true).unwrap();
    // What another replica has said of red stays, and nobody is left to speak of a tenant that is deleted.
    assert_eq!(patch["tenants"], json!({"gone": null}));
    assert_eq!((&patch["matched"], &patch["created"], &patch["ready"]), (&json!(5), &json!(1), &json!(1)));
    assert_eq!(patch["conditions"][2]["message"], "for tenant red: no");
    // Red is reported now, and has nothing that matches.
    world.sync("red", &[]);
    let patch = world.changes(true).unwrap();
    assert_eq!(patch["tenants"], json!({"gone": null, "red": null}));
}

#[tokio::test]
async fn a_rule_on_all_dpus_is_ready_once_there_are_as_many_as_the_replicas_want() {
    let world = World::new(&["blue"]);
    world.rule(1, json!({"dpuSelectionPolicy": "SameNodeAll"}));
    world.sync("blue", &["a"]);
    let state = world.0.states.state("tenant-blue");
    let nodes = ["d1", "d2"].map(Into::into).into();
    state.lock().index.set_dpus("h", OwnDpus { nodes, hands_over: false });
    state.lock().index.update(Workload { node_name: Some("h".into()), ..fixtures::workload("a") });
    let store = world.0.states.admin_companions_of(&id("blue"));
    let ready = |dpu: &str| {
        let template_hash = state.lock().index.rule(&name()).unwrap().template_hash().to_owned();
        let observed = Observed { ready: true, template_hash, ..Observed::default() };
        store.lock().applied(dpu, key("a").on(dpu), observed);
        let patch = world.changes(true).unwrap();
        assert_eq!(patch["tenants"], json!({"blue": {"matched": 1, "wanted": 2, "refused": null}}));
        patch["conditions"][2]["message"].as_str().unwrap().to_owned()
    };
    assert_eq!(ready("d1"), "1 of 2 companions are ready");
    assert_eq!(ready("d2"), "2 of 2 companions are ready");
}

#[tokio::test]
async fn nothing_is_written_when_nothing_has_changed() {
    let world = World::new(&["blue"]);
    world.rule(1, json!({}));
    world.sync("blue", &["a"]);
    let status = world.changes(true).unwrap();
    let mut stored = json!({});
    json_patch::merge(&mut stored, &status);
    let mut object = fixtures::admin_rule();
    object["status"] = stored;
    world.0.caches.admin_rules.apply(&world.0, &fixtures::object(object));
    assert_eq!(world.changes(true), None);
}

/// An admin rule whose status says how many workloads of the tenant `blue` match.
fn shown(resource_version: &str, matched: i64) -> Value {
    let mut object = fixtures::admin_rule();
    object["metadata"]["resourceVersion"] = json!(resource_version);
    object["status"] = json!({"tenants": {"blue": {"matched": matched}}});
    object
}

/// A replica that serves the tenant `blue` has written its entry, and then another one has. Returns the first replica's next step, and
/// how often it has written, where the API server says that this holder has made the claim.
async fn overwritten(claim: u64, holder: Option<&str>) -> (Action, usize) {
    const RULE: &str =
        "/apis/workload.universe.nvidia.com/v1alpha1/namespaces/universe/adminworkloadrules/r/status";
    let api = FakeApi::default();
    let world = World::of(&api, &["blue"]);
    fixtures::connect(&world.0.states.state("tenant-blue"));
    world.sync("blue", &["a"]);
    world.rule(1, json!({}));
    let id = RuleId { namespace: keys::ADMIN_NAMESPACE.into(), name: name() };
    api.answers("PATCH", RULE, 200, shown("2", 1));
    assert_eq!(step(&world.0, &id).await.unwrap(), Action::Requeue(PACE));
    world.0.caches.admin_rules.apply(&world.0, &fixtures::object(shown("3", 7)));
    let early = step(&world.0, &id).await.unwrap();
    assert!(matches!(early, Action::Requeue(left) if left <= PACE), "{early:?}");
    assert_eq!(api.calls("PATCH").len(), 1, "not at once");
    tokio::time::advance(PACE).await;
    let tenant = fixtures::tenant_claimed(claim, holder.unwrap_or(&world.0.replica.identity));
    api.answers("GET", "/apis/outrigger.dev/v1alpha1/tenants/blue", 200, tenant);
    api.answers("PATCH", RULE, 200, shown("4", 1));
    let next = step(&world.0, &id).await.unwrap();
    (next, api.calls("PATCH").len())
}

#[test]
fn a_change_of_an_entry_is_one_of_counts_unless_it_is_refused() {
    let status: AdminWorkloadRuleStatus = fixtures::object(json!({
        "matched": 1, "tenants": {"blue": {"matched": 1}, "red": {"matched": 1, "refused": "no"}},
        "conditions": [{"type": "Ready", "status": "False", "reason": "Pending", "message": "0 of 1",
            "lastTransitionTime": "2026-01-01T00:00:00Z", "observedGeneration": 1}]}));
    let condition = |reason: &str| {
        json!({"conditions": [{"type": "Ready", "status": "False", "reason": reason, "message": "0 of 2",
            "lastTransitionTime": "2026-01-01T00:00:00Z", "observedGeneration": 1}]})
    };
    for (patch, counts) in [
        (json!({"matched": 2, "tenants": {"blue": {"matched": 2, "refused": null}}}), true),
        (
            json!({"tenants": {"red": {"matched": 2, "refused": "no"}, "new": {"matched": 1, "refused": null}}}),
            true,
        ),
        (json!({"tenants": {"red": {"matched": 1, "refused": null}}}), false),
        (json!({"tenants": {"new": {"matched": 1, "refused": "no"}}}), false),
        (json!({"tenants": {"red": null}}), false),
        (json!({"observedGeneration": 2}), false),
        (condition("Pending"), true),
        (condition("Refused"), false),
    ] {
        assert_eq!(status::only_counts(&patch, &status), counts, "{patch}");
    }
}

#[tokio::test(start_paused = true)]
async fn two_replicas_do_not_write_the_entry_of_a_tenant_over_each_other() {
    assert_eq!(
        overwritten(2, Some("another")).await,
        (Action::Done, 1),
        "another one has taken the tenant over"
    );
    assert_eq!(overwritten(1, None).await, (Action::Requeue(PACE), 2), "nobody has");
}

#[cfg(debug_assertions)]
#[tokio::test]
async fn the_status_of_a_rule_takes_no_steps_for_the_tenants_that_it_is_about() {
    outrigger_core::steps::assert_nearly_linear(
        |size| {
            let names: Vec<String> = (0..size).map(|i| format!("t{i}")).collect();
            (World::new(&names.iter().map(String::as_str).collect::<Vec<_>>()), size)
        },
        |(world, size)| {
            world.rule(1, json!({}));
            assert_eq!(world.filed().len(), *size);
            for _ in 0..*size {
                assert_eq!(world.rule(1, json!({})), []);
            }
        },
    );
}
