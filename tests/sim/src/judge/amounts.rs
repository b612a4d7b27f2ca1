//! What must hold of the amounts of cpu and memory that companions ask for. A rule that changes in these only has its companions resized
//! where that is possible, a few at a time, and none goes back to earlier amounts.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use outrigger_core::keys;
use serde_json::Value;

use super::rollouts::holds;
use super::states::rule_of;
use super::wanted::{Wanted, companion, is_ready, mark, served, written};
use super::{Judge, Key, PROMPTLY};
use crate::model::Commit;
use crate::world::resizes::{DEFERRED, INFEASIBLE, is_infeasible};
use crate::world::{World, at};

/// The resources of the first container of a Pod, and of that of a rule's template.
const OF_POD: &str = "/spec/containers/0/resources";
/// See [`OF_POD`].
const OF_RULE: &str = "/spec/template/spec/containers/0/resources";

/// Amounts by list and resource. A limit is the request too where there is none.
type Amounts = BTreeMap<(&'static str, &'static str), String>;

fn amounts(resources: Option<&Value>) -> Amounts {
    let mut amounts = Amounts::new();
    for list in ["limits", "requests"] {
        for resource in ["cpu", "memory"] {
            let amount = |list: &str| resources?.get(list)?.get(resource)?.as_str();
            if let Some(amount) = amount(list).or_else(|| amount("limits")) {
                amounts.insert((list, resource), amount.to_owned());
            }
        }
    }
    amounts
}

fn of_pod(pod: &Value) -> Amounts {
    amounts(at(pod, OF_POD))
}

fn of_rule(rule: &Value) -> Amounts {
    amounts(at(rule, OF_RULE))
}

/// The number of the state that amounts are of: users give rules amounts of memory that grow. `None` where there are none.
fn state(amounts: &Amounts) -> Option<u64> {
    amounts.get(&("requests", "memory"))?.trim_end_matches("Mi").parse().ok()
}

/// Which class of quality of service a Pod with these amounts has.
fn class(amounts: &Amounts) -> u8 {
    let same = |resource| {
        let limit = amounts.get(&("limits", resource));
        limit.is_some() && limit == amounts.get(&("requests", resource))
    };
    if amounts.is_empty() { 0 } else { 1 + u8::from(same("cpu") && same("memory")) }
}

/// Whether a rule asks for more than any DPU has.
pub(super) fn asks_for_too_much(rule: &Value) -> bool {
    of_rule(rule).get(&("requests", "cpu")).is_some_and(|cpu| cpu == INFEASIBLE)
}

/// Whether a kubelet defers a resize to what a rule asks for.
pub(super) fn may_be_deferred(rule: &Value) -> bool {
    of_rule(rule).get(&("requests", "cpu")).is_some_and(|cpu| cpu == DEFERRED)
}

/// Whether a companion has other amounts than its rule asks for.
pub(super) fn differ(companion: &Value, rule: &Value) -> bool {
    of_pod(companion) != of_rule(rule)
}

/// Whether a companion that is ready can get a rule's amounts in place.
fn is_resizable(world: &World, companion: &Value, rule: &Value) -> bool {
    let (has, wants) = (of_pod(companion), of_rule(rule));
    !world.scope.without_resize
        && at(rule, "/spec/updateStrategy/rollingUpdate/resize").is_none_or(|how| how != "Replace")
        && has.keys().all(|amount| wants.contains_key(amount))
        && class(&has) == class(&wants)
        && !asks_for_too_much(rule)
}

impl Judge {
    /// Whether a companion may be replaced for its amounts: by a state of its rule since the last rest it couldn't be resized.
    pub(super) fn may_be_replaced(&self, world: &World, commit: &Commit, key: &Key, old: &Value) -> bool {
        if !world.scope.resizes {
            return false;
        }
        let image = |object: &Value, pointer: &str| at(object, pointer).cloned();
        let found = self.found.lock();
        let before = found.possible.rules(key.0, &key.1).iter().cloned();
        let states: Vec<Arc<Value>> = before
            .chain(served(world, key))
            .chain(written(world, key))
            .filter(|rule| {
                image(rule, "/spec/template/spec/containers/0/image")
                    == image(old, "/spec/containers/0/image")
                    && differ(old, rule)
            })
            .collect();
        let uid = at(old, "/metadata/uid").and_then(Value::as_str).unwrap_or_default();
        let since = found.ready_since.get(uid);
        let is_known_as_ready = !found.blind && since.is_some_and(|since| *since + PROMPTLY <= commit.sent);
        is_infeasible(old)
            || !states.is_empty() && !is_known_as_ready
            || states.iter().any(|rule| !is_resizable(world, old, rule))
    }

    /// A companion is created, or resized. By a resize it gets no earlier amounts, unless its manager knew no later ones.
    pub(super) fn amounts_written(&self, world: &World, commit: &Commit, key: &Key) {
        let Some(state) = commit.new.as_ref().and_then(|new| state(&of_pod(new))) else { return };
        let is_new = commit.old.is_none();
        if !is_new && commit.subresource.as_deref() != Some("resize") {
            return;
        }
        let (plural, rule) = rule_of(key);
        let (later, is_current) = self.found.lock().states.known(&of(&rule), state);
        let is_behind = later.is_some_and(|revision| {
            let shown = world.infra.shown(&commit.client, plural, revision);
            shown.is_none_or(|at| at >= commit.sent)
        });
        self.newer(world, of(&format!("the companion of {key:?}")), state, is_new || is_behind || is_current);
    }

    /// A rule in the infrastructure cluster has other amounts. `named`: as [`super::states::States`] names it.
    pub(super) fn amounts_asked(&self, named: &str, rule: &Value, revision: u64) {
        if let Some(state) = state(&of_rule(rule)) {
            self.found.lock().states.reach(&of(named), state, revision);
        }
    }

    /// How the amounts of companions differ from what their rules ask for. `stuck`: rules whose rollouts wait for what never comes.
    pub(super) fn amounts_missing(
        world: &World,
        wanted: &BTreeMap<Key, Wanted>,
        stuck: &BTreeSet<(&'static str, &str)>,
    ) -> Vec<String> {
        let mut missing = Vec::new();
        let mut made: BTreeMap<(&str, &str), BTreeSet<String>> = BTreeMap::new();
        for pod in world.infra.list("pods").iter().filter(|_| world.scope.resizes) {
            let Some(key) = companion(pod).filter(|_| mark(pod).is_none()) else { continue };
            let Some((key, Wanted { image, rule, pod: workload, .. })) = wanted.get_key_value(&key) else {
                continue;
            };
            let of = (key.0, key.1.as_str());
            if stuck.contains(&of)
                || at(pod, "/spec/containers/0/image").is_none_or(|found| *found != **image)
                || !super::devices::may_have_those_of(world, pod, rule)
                || is_ready(pod) && holds(&world.tenants[key.0], rule, workload)
            {
                continue;
            }
            if differ(pod, rule) {
                let (has, wants) = (of_pod(pod), of_rule(rule));
                missing.push(format!("the companion of {key:?} asks for {has:?}, its rule for {wants:?}"));
            }
            let hash = at(pod, "/metadata/annotations").map(|all| all[keys::TEMPLATE_HASH].to_string());
            made.entry(of).or_default().extend(hash);
        }
        let several = made.into_iter().filter(|(_, hashes)| hashes.len() > 1);
        missing.extend(several.map(|(rule, hashes)| {
            format!("the companions of {rule:?} are as it asks, and say that they are made from {hashes:?}")
        }));
        missing
    }
}

/// What [`super::states::States`] calls the amounts of something.
fn of(what: &str) -> String {
    format!("what is asked for by {what}")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn amounts_have_the_class_that_the_api_server_gives_them() {
        for (resources, expected) in [
            (json!(null), 0),
            (json!({"requests": {"cpu": "1"}}), 1),
            (json!({"limits": {"memory": "1Mi"}}), 1),
            (json!({"limits": {"cpu": "1", "memory": "1Mi"}}), 2),
            (json!({"limits": {"cpu": "1", "memory": "1Mi"}, "requests": {"cpu": "2"}}), 1),
        ] {
            assert_eq!(class(&amounts(Some(&resources))), expected, "{resources}");
        }
        let limits = amounts(Some(&json!({"limits": {"memory": "7Mi"}})));
        assert_eq!((state(&limits), state(&Amounts::new())), (Some(7), None));
    }
}
