//! No rule in the infrastructure cluster and no companion goes back to an earlier state.
//!
//! Two things can't be prevented, and are repaired before the system comes to rest. The API server can't refuse a creation that was sent
//! before the object was deleted. A manager and a webhook whose watches of rules are both behind know nothing better than an earlier state. What
//! a list has shown counts from when the watch after it is open.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use outrigger_core::keys;
use serde_json::Value;

use super::{Judge, Key, PLATFORM};
use crate::model::Commit;
use crate::world::{World, namespace_of, text};

/// What rules and companions have been. A state is the number of the image: users give rules images with growing numbers.
#[derive(Default)]
pub(super) struct States {
    /// The latest state of each rule and each companion.
    latest: BTreeMap<String, u64>,
    /// The revisions at which rules got their states, of which each is later than the one before.
    since: BTreeMap<String, BTreeMap<u64, u64>>,
    /// When rules were deleted the last time.
    deleted: BTreeMap<String, Timestamp>,
    /// The uids of companions that were made from an earlier state of their rule by processes that knew no later one.
    outdated: BTreeSet<String>,
}

/// The state that an image stands for.
pub(super) fn state(image: &str) -> u64 {
    image.rsplit('-').next().and_then(|number| number.parse().ok()).unwrap_or_default()
}

impl States {
    /// The revision at which a rule got a later state, and whether this one is its latest.
    pub(super) fn known(&self, rule: &str, state: u64) -> (Option<u64>, bool) {
        let later = self.since.get(rule).and_then(|since| since.range(state + 1..).next());
        (later.map(|(_, revision)| *revision), self.latest.get(rule) == Some(&state))
    }

    /// A rule gets a state. One that has gone back gets its later states again.
    pub(super) fn reach(&mut self, rule: &str, state: u64, revision: u64) {
        let since = self.since.entry(rule.to_owned()).or_default();
        since.split_off(&(state + 1));
        since.entry(state).or_insert(revision);
        self.latest.insert(rule.to_owned(), state);
    }
}

/// The kind of a companion's rule, and the rule as [`States`] names it.
pub(super) fn rule_of((id, rule, ..): &Key) -> (&'static str, String) {
    match rule.strip_prefix(PLATFORM) {
        Some(name) => named("adminworkloadrules", keys::ADMIN_NAMESPACE, name),
        None => named("workloadrules", &namespace_of(id), rule),
    }
}

fn named(plural: &'static str, namespace: &str, name: &str) -> (&'static str, String) {
    (plural, format!("{plural} {namespace}/{name}"))
}

impl Judge {
    /// A rule in the infrastructure cluster is written or deleted.
    pub(super) fn rule_written(&self, world: &World, commit: &Commit) {
        let (_, rule) =
            named(commit.kind.plural, commit.namespace.as_deref().unwrap_or_default(), &commit.name);
        let Some(new) = &commit.new else {
            self.found.lock().states.deleted.insert(rule, commit.time);
            return;
        };
        let image = text(new, "/spec/template/spec/containers/0/image");
        let mut guard = self.found.lock();
        let found = &mut *guard;
        let [before, now] = found.images.entry(text(new, "/metadata/uid").to_owned()).or_default();
        if now != image {
            *before = std::mem::replace(now, image.to_owned());
        }
        let (states, state) = (&mut found.states, state(image));
        let since = states.since.entry(rule.clone()).or_default();
        // One that has gone back gets its later states again.
        since.split_off(&(state + 1));
        since.entry(state).or_insert(commit.revision);
        let is_late = commit.old.is_none() && states.deleted.get(&rule).is_some_and(|at| commit.sent <= *at);
        drop(guard);
        self.amounts_asked(&rule, new, commit.revision);
        self.chosen(new);
        self.asked_for(new);
        self.newer(world, rule, state, is_late);
    }

    /// A companion is created.
    pub(super) fn companion_created(&self, world: &World, commit: &Commit, key: &Key, companion: &Value) {
        let state = state(text(companion, "/spec/containers/0/image"));
        let (plural, rule) = rule_of(key);
        let (later, is_current) = self.found.lock().states.known(&rule, state);
        let was_behind = |process: &str, time: Timestamp, revision| {
            world.infra.shown(process, plural, revision).is_none_or(|at| at >= time)
        };
        let is_outdated = later.is_some_and(|revision| {
            let mut admitted = world.admitted_by(companion, commit.sent).into_iter();
            was_behind(&commit.client, commit.sent, revision)
                && admitted.any(|(webhook, time)| was_behind(&webhook, time, revision))
        });
        if is_outdated {
            self.found.lock().states.outdated.insert(text(companion, "/metadata/uid").to_owned());
        }
        // A rule that has gone back takes its companions along.
        self.newer(world, format!("the companion of {key:?}"), state, is_outdated || is_current);
    }

    /// Whether a companion was made from an earlier state of its rule by processes that knew no later one.
    pub(super) fn is_outdated(&self, companion: &Value) -> bool {
        self.found.lock().states.outdated.contains(text(companion, "/metadata/uid"))
    }

    /// A rule or a companion has this state now. `may_go_back`: an earlier one is repaired.
    pub(super) fn newer(&self, world: &World, what: String, state: u64, may_go_back: bool) {
        let (before, restored) = {
            let mut found = self.found.lock();
            (found.states.latest.insert(what.clone(), state).unwrap_or_default(), found.restored)
        };
        // A name that tenant and administrators use has the images of both.
        let shared = world.scope.foreign && what.contains("rule-3");
        if state >= before || restored || shared {
            return;
        }
        let goes_back = format!("{what} goes back from state {before} to {state}");
        if may_go_back {
            world.trace.line(&world.environment, format_args!("NOTE: {goes_back}"));
        } else {
            self.violation(world, goes_back);
        }
    }
}
