//! Rollouts among groups of workloads.

use outrigger_api::AdminWorkloadRule;
use outrigger_core::companion::Held;
use outrigger_core::ids::TenantId;
use outrigger_core::keys;
use outrigger_core::workload::{DisruptionGroup, Workload};
use outrigger_runtime::environment::Environment;
use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::fixtures;
use crate::state::registry::Registry;
use crate::state::validation::TemplateValidation;
use crate::state::{RuleEntry, TenantData};

/// A tenant whose rule has a new template.
pub(super) struct Tenant {
    pub(super) data: TenantData,
    registry: Registry,
    at: Moment,
    pub(super) rule: RuleName,
}

fn owner(id: &str) -> DisruptionGroup {
    DisruptionGroup { id: id.into(), desired_healthy: None }
}

fn budget(desired: u32) -> DisruptionGroup {
    DisruptionGroup { id: "budget".into(), desired_healthy: Some(desired) }
}

pub(super) fn workload(id: usize, groups: &[DisruptionGroup]) -> Workload {
    Workload { groups: groups.to_vec(), ..fixtures::workload(&key(id).workload) }
}

impl Tenant {
    /// These workloads have companions of the earlier template, all ready.
    fn new(workloads: Vec<Workload>) -> Self {
        Self::with_rule(&fixtures::rule(), workloads)
    }

    pub(super) fn with_rule(rule: &serde_json::Value, workloads: Vec<Workload>) -> Self {
        let registry = Registry::new(Default::default(), Vec::new());
        let clock = Environment::system().clock;
        let at = Moment { now: clock.now(), wall: clock.wall(), admin_deadline: Duration::from_secs(60) };
        let mut data = TenantData { tenant: TenantId::new("blue").ok(), ..TenantData::default() };
        data.admin_companions = Some(Arc::default());
        let mut name = key(0).rule;
        if rule["kind"] == "AdminWorkloadRule" {
            name = RuleName::admin("r").unwrap();
            let rule: AdminWorkloadRule = fixtures::object(rule.clone());
            let compiled = Arc::new(rule.compile().unwrap().rule);
            data.set_admin_rule(&name, RuleEntry::default(), Some(compiled));
        } else {
            data.apply_rule(&fixtures::object(rule.clone()));
        }
        data.rules.get_mut(&name).unwrap().validation = TemplateValidation::passed();
        data.index.sync(workloads);
        let mut this = Self { data, registry, at, rule: name };
        for key in this.keys() {
            this.shows(&key, pod("old", true));
        }
        this
    }

    pub(super) fn keys(&self) -> Vec<CompanionKey> {
        let mut keys: Vec<_> = self.data.index.matches().collect();
        keys.sort();
        keys
    }

    fn observed(&self, key: &CompanionKey) -> Observed {
        self.data.read_companion(key, Observed::clone).unwrap()
    }

    /// The hash of the new template.
    pub(super) fn template_hash(&self) -> String {
        self.data.index.rule(&self.rule).unwrap().template_hash().to_owned()
    }

    pub(super) fn shows(&mut self, key: &CompanionKey, observed: Observed) {
        self.data.with_companions(&key.rule, |of| of.applied(&key.workload, key.clone(), observed));
        self.data.companion_observed(key);
    }

    /// Asks about all companions, one after the other. Returns those that may be replaced.
    pub(super) fn ask(&mut self) -> Vec<usize> {
        let keys = self.keys();
        self.ask_about(keys)
    }

    pub(super) fn ask_about(&mut self, keys: Vec<CompanionKey>) -> Vec<usize> {
        let mut asked = Vec::new();
        for key in keys {
            if self.data.may_replace(&key, &self.registry, self.at) {
                asked.push(key.workload[1..].parse().unwrap());
            } else if let Some(record) = self.data.hold_record(&key, self.at) {
                let text = record["metadata"]["annotations"][keys::ROLLOUT_HELD].as_str().unwrap();
                let time = |time: &str| Some(time.parse::<Timestamp>().unwrap().as_millisecond());
                let held = Held::read(text, time);
                assert!(held.is_some(), "{text}");
                let before = self.observed(&key);
                self.shows(&key, Observed { held, ..before });
                assert_eq!(self.data.hold_record(&key, self.at), None, "it is written once");
            }
        }
        asked
    }

    pub(super) fn pass(&mut self, time: Duration) {
        self.at.now += time;
        self.at.wall += time;
    }

    /// What is replaced is deleted, and comes back.
    fn replace(&mut self, i: usize, ready: bool) {
        self.data.companions.deleted(outrigger_core::template::Kind::Pod, &key(i).workload);
        self.data.companion_observed(&key(i));
        let now = self.template_hash();
        self.shows(&key(i), pod(&now, ready));
    }

    /// Asks for turns a little later.
    pub(super) fn turns(&mut self) -> Vec<usize> {
        self.pass(QUIET);
        let turns = self.data.turns(&self.rule, &self.registry, self.at);
        self.ask_about(turns)
    }
}

/// So many owners with so many workloads each.
fn services(owners: usize, replicas: usize) -> Vec<Workload> {
    let of = |i: usize| workload(i, &[owner(&format!("o{}", i / replicas))]);
    (0..owners * replicas).map(of).collect()
}

#[test]
fn no_owner_loses_more_than_its_part() {
    let mut t = Tenant::new(services(20, 2));
    // A quarter of all would be ten, and the first ten would be five owners' all.
    assert_eq!(t.ask(), [0, 2, 4, 6, 8, 10, 12, 14, 16, 18]);
    t.replace(0, true);
    assert_eq!(t.turns(), [1], "the first has its companion again");
    t.replace(2, false);
    assert_eq!(t.turns(), [0; 0], "the second hasn't");
    // The control: the same without owners.
    let mut t = Tenant::new((0..40).map(|i| workload(i, &[])).collect());
    assert_eq!(t.ask(), (0..10).collect::<Vec<_>>());
}

#[test]
fn a_workload_that_is_not_ready_again_counts_in_its_group() {
    let mut t = Tenant::new(services(1, 8));
    assert_eq!(t.ask(), [0, 1]);
    t.replace(0, true);
    let unready = Workload { ready: false, ..workload(0, &[owner("o0")]) };
    t.data.index.update(unready.clone());
    assert_eq!(t.turns(), [0; 0], "its companion is ready, and it isn't yet");
    t.data.index.update(Workload { ready: true, ..unready });
    assert_eq!(t.turns(), [2]);
    // One that wasn't ready before holds nobody.
    let mut all = services(1, 8);
    all[0].ready = false;
    let mut t = Tenant::new(all);
    assert_eq!(t.ask(), [0, 1]);
    t.replace(0, true);
    assert_eq!(t.turns(), [2]);
}

#[test]
fn a_pod_disruption_budget_is_respected() {
    let all = |desired| (0..8).map(|i| workload(i, &[budget(desired)])).collect::<Vec<_>>();
    let asked = |all| Tenant::new(all).ask().len();
    assert_eq!([0, 6, 7, 8, 99].map(|desired| asked(all(desired))), [2, 2, 1, 0, 0]);
    // Workloads that aren't ready are not healthy, and may lose their companions.
    let mut some = all(6);
    some[0].ready = false;
    some[1].ready = false;
    assert_eq!(Tenant::new(some).ask(), [0, 1]);
    // It counts workloads that the rule doesn't match.
    let mut rule = fixtures::rule();
    rule["spec"]["workloadTerms"] = json!([{"matchExpressions": [
        {"key": ".metadata.resourceName", "operator": "In", "values": ["web"]}]}]);
    let mut more = all(8);
    more[7].resource_name = "other".to_owned();
    more.push(Workload { resource_name: "other".to_owned(), ..workload(8, &[budget(8)]) });
    assert_eq!(Tenant::with_rule(&rule, more).ask(), [0]);
}

#[test]
fn those_that_groups_hold_keep_no_others_waiting() {
    let mut all = services(1, 4);
    all[..4].iter_mut().for_each(|w| w.groups.push(budget(4)));
    all.extend((4..16).map(|i| workload(i, &[])));
    let mut t = Tenant::new(all);
    assert_eq!(t.ask(), [4, 5, 6, 7]);
    for i in 4..8 {
        t.replace(i, true);
    }
    assert_eq!(t.turns(), [8, 9, 10, 11]);
}

#[test]
fn a_rollout_that_waits_for_groups_is_looked_at_again() {
    let mut t = Tenant::new((0..4).map(|i| workload(i, &[budget(4)])).collect());
    let rule = t.rule.clone();
    let began = t.at.now;
    assert_eq!(t.data.rollouts.look(&rule, began), None);
    assert_eq!(t.ask(), [0; 0]);
    assert_eq!(t.data.rollouts.look(&rule, began), Some((key(0), LOOK)));
    // Each step asks for it: what has taken its place in the queue may have been another one's.
    let later = began + Duration::from_secs(4);
    assert_eq!(t.data.rollouts.look(&rule, later), Some((key(0), Duration::from_secs(6))));
    assert_eq!(t.data.rollouts.look(&rule, began + LOOK), Some((key(0), LOOK)));
    // The budget becomes smaller.
    for i in 0..4 {
        t.data.index.update(workload(i, &[budget(3)]));
    }
    assert_eq!(t.turns(), [0]);
    assert_eq!(t.data.rollouts.look_at_all(began + 2 * LOOK), [(key(1), LOOK)]);
    // One that somebody has deleted is created of the new template, and waits for no turn.
    t.data.rollouts.stays(&key(1));
    assert_eq!(t.data.rollouts.look_at_all(began + 3 * LOOK), [(key(2), LOOK)]);
}

#[test]
fn those_that_may_not_go_are_not_asked_about_at_every_step() {
    let mut t = Tenant::new((0..4).map(|i| workload(i, &[budget(4)])).collect());
    assert_eq!(t.ask(), [0; 0]);
    assert_eq!(t.turns(), [0; 0]);
    for i in 0..4 {
        t.data.index.update(workload(i, &[budget(3)]));
    }
    let rule = t.rule.clone();
    let now = t.at.now;
    assert_eq!(t.data.turns(&rule, &t.registry, t.at), []);
    assert_eq!(t.data.rollouts.look(&rule, now), Some((key(0), QUIET)), "but soon");
    assert_eq!(t.turns(), [0]);
}

#[test]
fn a_permission_that_lasts_a_moment_does_not_begin_the_deadline_again() {
    let mut t =
        Tenant::with_rule(&fixtures::admin_rule(), (0..4).map(|i| workload(i, &[budget(4)])).collect());
    assert_eq!(t.ask(), [0; 0]);
    t.pass(Duration::from_secs(59));
    let send = |t: &mut Tenant, desired| {
        for i in 0..4 {
            t.data.index.update(workload(i, &[budget(desired)]));
        }
    };
    send(&mut t, 3);
    let (rule, at) = (t.rule.clone(), t.at);
    assert_eq!(t.data.turns(&rule, &t.registry, at).len(), 1);
    send(&mut t, 4);
    t.pass(Duration::from_secs(1));
    assert_eq!(t.ask(), [0], "one at a time, by the rule's own maximum");
}

#[test]
fn a_workload_whose_host_has_lost_its_dpu_holds_nobody() {
    let mut t = Tenant::new(services(1, 8));
    assert_eq!(t.ask(), [0, 1]);
    let lost = Observed { unplaced: true, host: Some("nowhere".into()), ..pod(&t.template_hash(), false) };
    t.replace(1, true);
    t.shows(&key(0), lost);
    t.data.index.update(Workload { ready: false, ..workload(0, &[owner("o0")]) });
    assert_eq!(t.turns(), [2, 3]);
}

#[test]
fn what_a_tenant_tells_delays_rules_of_the_platform_until_the_deadline_only() {
    for (rule, later) in [(fixtures::rule(), 0), (fixtures::admin_rule(), 1)] {
        let mut t = Tenant::with_rule(&rule, (0..4).map(|i| workload(i, &[budget(4)])).collect());
        assert_eq!(t.ask(), [0; 0]);
        t.pass(Duration::from_secs(58));
        assert_eq!(t.turns(), [0; 0]);
        assert_eq!(t.turns().len(), later);
    }
}

#[test]
fn an_agent_that_changes_to_another_manager_does_not_begin_the_deadline_again() {
    let budgets = || (0..4).map(|i| workload(i, &[budget(4)])).collect();
    let mut t = Tenant::with_rule(&fixtures::admin_rule(), budgets());
    assert_eq!(t.ask(), [0; 0]);
    t.pass(Duration::from_secs(40));
    // Another manager knows what is recorded on companions, and nothing else.
    let shown: Vec<_> = t.keys().iter().map(|key| t.observed(key)).collect();
    let at = t.at;
    let other = |records: bool, generation| {
        let mut t = Tenant::with_rule(&fixtures::admin_rule(), budgets());
        t.at = at;
        t.data.rules.get_mut(&t.rule).unwrap().generation = generation;
        for (key, shown) in t.keys().iter().zip(&shown) {
            t.shows(key, Observed { held: shown.held.filter(|_| records), ..shown.clone() });
        }
        assert_eq!(t.ask(), [0; 0]);
        t.pass(Duration::from_secs(19));
        t.turns()
    };
    let generation = t.data.rules[&t.rule].generation;
    assert_eq!(other(true, generation).len(), 1);
    assert_eq!(other(false, generation), [0; 0], "without the records");
    assert_eq!(other(true, generation + 1), [0; 0], "the rule has been changed since");
}

#[test]
fn companions_that_wait_are_recorded_when_there_is_room_for_them_first() {
    let mut all: Vec<_> = (0..3).map(|i| workload(i, &[])).collect();
    all.push(workload(3, &[budget(4)]));
    let mut t = Tenant::with_rule(&fixtures::admin_rule(), all);
    assert_eq!(t.ask(), [0], "the maximum of the rule leaves no question about the others");
    assert_eq!(t.observed(&t.keys()[3]).held, None);
    for i in 0..3 {
        let key = t.keys()[i].clone();
        t.data
            .with_companions(&key.rule, |of| of.deleted(outrigger_core::template::Kind::Pod, &key.workload));
        t.data.companion_observed(&key);
        t.shows(&key, pod("new", true));
        assert_eq!(t.turns(), if i < 2 { vec![i + 1] } else { vec![] });
    }
    assert!(t.observed(&t.keys()[3]).held.is_some());
    // One without room for the record doesn't wait.
    let key = t.keys()[3].clone();
    let full = Observed { held: None, annotations_size: usize::MAX / 2, ..t.observed(&key) };
    t.shows(&key, full);
    assert_eq!(t.turns(), [3]);
}

proptest! {
    /// Whatever the groups are: never more than the part of an owner is down, and a rollout with owners alone ends.
    #[test]
    fn owners_keep_their_companions(owners in proptest::collection::vec(0usize..5, 1..30), failing in 0usize..40) {
        let all: Vec<_> =
            owners.iter().enumerate().map(|(i, o)| workload(i, &[owner(&format!("o{o}"))])).collect();
        let mut t = Tenant::new(all);
        let part = |o: usize| (owners.iter().filter(|other| **other == o).count() / 4).max(1);
        let (mut down, mut updated) = (t.ask(), 0);
        while let Some(i) = down.pop() {
            for o in 0..5 {
                let of = down.iter().chain([&i]).filter(|i| owners[**i] == o).count();
                prop_assert!(of <= part(o), "{} of owner {}", of, o);
            }
            t.replace(i, i != failing);
            updated += 1;
            if i != failing {
                down.extend(t.turns());
            }
        }
        prop_assert!(updated == owners.len() || failing < owners.len());
    }
}
