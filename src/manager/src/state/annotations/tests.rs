use std::sync::Arc;

use jiff::Timestamp;
use outrigger_api::AdminWorkloadRule;
use outrigger_core::annotations::Reading;
use outrigger_core::companion::Observed;
use outrigger_core::ids::{TenantId, WorkloadId};
use outrigger_core::index::Desired;
use outrigger_core::progress::Stage;
use outrigger_core::reason::Cause;
use outrigger_core::workload::Workload;
use outrigger_runtime::environment::Environment;
use serde_json::{Value, json};

use super::*;
use crate::fixtures;
use crate::state::RuleEntry;
use crate::state::registry::Registry;

/// The tenant `blue` with the workload `w` and the rule `r`, for workloads without `example.com/off`.
struct World {
    data: TenantData,
    rule: RuleName,
}

fn spec(mut rule: Value, ordering: &str) -> Value {
    rule["spec"]["ordering"] = json!(ordering);
    rule["spec"]["workloadTerms"][0]["matchExpressions"][0] =
        json!({"key": ".state.extra.annotations['example.com/off']", "operator": "DoesNotExist"});
    rule
}

impl World {
    fn new() -> Self {
        let mut data = TenantData { tenant: TenantId::new("blue").ok(), ..TenantData::default() };
        data.admin_companions = Some(Arc::default());
        data.stream.connected = true;
        data.outcomes.complete = data.stream.number();
        data.index.sync(vec![fixtures::workload("w")]);
        Self { data, rule: RuleName::new("r").unwrap() }
    }

    fn own(ordering: &str, origin: &str) -> Self {
        let mut this = Self::new();
        let mut rule = spec(fixtures::rule(), ordering);
        rule["metadata"]["annotations"] = json!({outrigger_core::keys::ORIGIN: origin});
        this.data.apply_rule(&fixtures::object(rule));
        this
    }

    fn admin() -> Self {
        let mut this = Self::new();
        this.rule = RuleName::admin("r").unwrap();
        let rule: AdminWorkloadRule = fixtures::object(spec(fixtures::admin_rule(), "Parallel"));
        let compiled = Arc::new(rule.compile().unwrap().rule);
        this.data.set_admin_rule(&this.rule, RuleEntry::default(), Some(compiled));
        this
    }

    fn say(&mut self, sent: &[&str], withheld: &[&str]) -> Option<Vec<CompanionKey>> {
        let withheld = withheld.iter().map(ToString::to_string).collect();
        self.data.said(Some(Statement::new(sent.iter().map(|key| key.parse().unwrap()), withheld)))
    }

    fn key(&self) -> CompanionKey {
        CompanionKey { rule: self.rule.clone(), workload: "w".into() }
    }

    fn desired(&self) -> &'static str {
        match self.data.index.desired(&self.key()) {
            Desired::Wanted { .. } => "wanted",
            Desired::Unwanted => "unwanted",
            Desired::Undecided => "undecided",
            other => panic!("{other:?}"),
        }
    }

    fn note(&self) -> String {
        self.data.not_sent(&self.rule).unwrap_or_default()
    }

    fn reported(&self) -> Vec<(Stage, Option<Cause>)> {
        let report = self.data.report_of(&"w".into(), Timestamp::UNIX_EPOCH).unwrap();
        report
            .companions
            .iter()
            .map(|companion| (companion.outcome.progress.stage, companion.outcome.progress.cause))
            .collect()
    }
}

#[test]
fn a_rule_says_which_annotations_are_unknown_and_what_follows() {
    let mut own = World::own("Parallel", "");
    assert_eq!((own.desired(), own.note()), ("wanted", String::new()), "a client that sends all");
    own.say(&[], &[]);
    assert_eq!(own.desired(), "undecided");
    assert!(own.note().starts_with("the tenant's agent has been asked for annotations"), "{}", own.note());
    own.say(&[], &["example.com/off"]);
    assert_eq!(own.desired(), "undecided");
    assert_eq!(
        own.note(),
        "the tenant's agent doesn't send annotations that the rule names (example.com/off), so they are unknown: companions lack \
         them, and where they decide, nothing is made and nothing deleted; have the tenant admit them by --allow-annotation of its agent"
    );
    assert_eq!(own.say(&[], &["example.com/off"]), None, "it has said so");
    own.say(&["example.com/*"], &[]);
    assert_eq!((own.desired(), own.note()), ("wanted", String::new()));
    let mut admin = World::admin();
    admin.say(&[], &["example.com/off"]);
    assert_eq!(admin.desired(), "wanted");
    assert_eq!(admin.data.unsent(&admin.rule).as_deref(), Some("example.com/off"));
    admin.say(&["*"], &[]);
    assert_eq!(admin.data.unsent(&admin.rule), None);
}

#[test]
fn an_agent_that_says_nothing_sends_what_the_rules_name_that_it_copies() {
    for (mut world, desired, upgrade) in [
        (World::own("Parallel", "o"), "wanted", false),
        (World::own("Parallel", ""), "undecided", true),
        (World::admin(), "wanted", true),
    ] {
        let known = world.data.index.known().begun(Reading::Silent).completed();
        world.data.set_known(known);
        assert_eq!(world.desired(), desired);
        assert_eq!(world.note().ends_with("or upgrade the agent"), upgrade, "{}", world.note());
    }
}

#[test]
fn an_agent_that_does_not_answer_has_a_minute() {
    let mut world = World::admin();
    world.say(&[], &[]);
    let begin = Environment::system().clock.now();
    let at = |world: &mut World, seconds: u64| {
        let (touched, again) = world.data.expire_asked(begin + Duration::from_secs(seconds));
        (touched.len(), again.map(|again| again.as_secs()), world.desired())
    };
    assert_eq!(at(&mut world, 0), (0, Some(60), "undecided"));
    assert_eq!(at(&mut world, 59), (0, Some(1), "undecided"));
    assert_eq!(at(&mut world, 60), (1, None, "wanted"));
    assert_eq!(at(&mut world, 61), (0, None, "wanted"));
    // It answers after all.
    world.say(&["example.com/off"], &[]);
    let off = Workload { annotations: [("example.com/off", "")].into(), ..fixtures::workload("w") };
    world.data.index.update(off);
    assert_eq!(at(&mut world, 62), (0, None, "unwanted"));
    assert!(world.data.asked.is_empty());
}

#[test]
fn a_companion_of_which_nothing_was_decided_is_looked_at_when_it_is() {
    let mut world = World::own("Parallel", "");
    let (key, observed) = (world.key(), Observed { uid: "pod".into(), ..Observed::default() });
    world.data.companions.applied("x", key.clone(), observed);
    world.say(&[], &["example.com/off"]);
    // Its workload is gone, and it is not.
    let deleted = world.data.index.delete(&WorkloadId::new("w").unwrap());
    assert_eq!(deleted, std::slice::from_ref(&key));
    world.data.index.update(fixtures::workload("w"));
    let off = Workload { annotations: [("example.com/off", "")].into(), ..fixtures::workload("w") };
    assert_eq!(world.data.index.update(off), std::slice::from_ref(&key));
    assert_eq!(world.desired(), "unwanted");
    assert!(world.say(&["example.com/off"], &[]).unwrap().contains(&key));
}

#[test]
fn a_workload_waits_for_a_companion_of_which_nothing_is_decided() {
    for (ordering, origin, expected) in [
        ("BeforeReady", "", &[(Stage::Pending, Some(Cause::AnnotationsNotSent))][..]),
        ("BeforeStart", "", &[(Stage::Pending, Some(Cause::AnnotationsNotSent))]),
        ("Parallel", "", &[]),
        // The agent knows itself whether the Pod waits.
        ("BeforeReady", "o", &[]),
    ] {
        let mut world = World::own(ordering, origin);
        let (number, _) = world.data.outcomes.follow(1).unwrap();
        world.say(&[], &[]);
        assert_eq!(world.reported(), expected, "{ordering} {origin:?}");
        assert_eq!(world.data.next_outcome(None).is_some(), !expected.is_empty());
        assert_eq!(
            world.data.outcomes.next_workload(number).is_some(),
            !expected.is_empty(),
            "the reader gets it at once"
        );
        // One that exists and is ready is enough.
        let rule = world.data.index.rule(&world.rule).unwrap();
        let (uid, hash) = (rule.uid().to_owned(), rule.template_hash().to_owned());
        let observed = Observed { rule_uid: uid, template_hash: hash, ready: true, ..Observed::default() };
        let key = world.key();
        world.data.companions.applied("x", key.clone(), observed);
        let registry = Registry::new(Default::default(), Vec::new());
        world.data.assess(&[key], &registry, Timestamp::UNIX_EPOCH);
        assert_eq!(world.reported(), [(Stage::Ready, None)], "{ordering}");
    }
}

#[test]
fn a_refused_workload_waits_when_other_annotations_are_sent() {
    let mut admin = World::admin();
    admin.say(&[], &["example.com/off"]);
    admin.data.refuse_workload(&fixtures::workload("w"), usize::MAX);
    assert_eq!((admin.desired(), admin.reported()), ("wanted", vec![]), "its earlier state counts");
    let keys = admin.say(&["example.com/off"], &[]).unwrap();
    assert!(keys.contains(&admin.key()));
    assert!(matches!(admin.data.index.desired(&admin.key()), Desired::Unknown), "it may have it");
    assert_eq!(admin.reported(), [(Stage::Refused, Some(Cause::LimitReached))]);
    let registry = Registry::new(Default::default(), Vec::new());
    admin.data.update_workload(fixtures::workload("w"), &registry, Timestamp::UNIX_EPOCH);
    assert_eq!((admin.desired(), admin.reported()), ("wanted", vec![]));
}
