//! What must hold while companions of an earlier template are replaced: of a rule's companions, and of those of one owner's workloads, no
//! more than `maxUnavailable` are down at a time because a manager has replaced them.
//!
//! It counts what managers have to know: replacements of the same state of the rule, of workloads that haven't changed since. In rounds
//! in which requests are lost or watches stand still nothing is counted.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use outrigger_core::keys;
use serde_json::Value;

use super::amounts::{differ, may_be_deferred};
use super::hosts::{host_of, is_by_host, is_in};
use super::matching::{matches, read, serves};
use super::wanted::{Place, Wanted, companion, concerns, is_ready, is_workload, served, wanted};
use super::{Judge, Key, PLATFORM};
use crate::model::{Commit, Model};
use crate::world::hosts::{is_true, node_of};
use crate::world::nodes::LIFECYCLE;
use crate::world::resizes::is_resizing;
use crate::world::updates::is_updating;
use crate::world::{World, at, text};

/// A manager that takes a tenant over knows the replacements of so long before.
const KNOWN: Duration = Duration::from_secs(2);

/// After so long a manager knows that a workload isn't ready.
pub(super) const REPORTED: Duration = Duration::from_secs(5);

/// A companion that a manager has deleted because its rule has another template.
#[derive(Debug, Clone)]
pub(super) struct Replaced {
    pub(super) client: String,
    time: Timestamp,
    /// The uid and the generation of the rule.
    pub(super) rule: (String, i64),
    /// The workload was ready.
    was_ready: bool,
}

/// How many companions of so many may be down.
fn most(rule: &Value, all: usize) -> usize {
    let gates = !matches!(text(rule, "/spec/ordering"), "" | "Parallel");
    let share = |percent: usize| all * percent / 100;
    let most = match at(rule, "/spec/updateStrategy/rollingUpdate/maxUnavailable") {
        Some(Value::String(percent)) => share(percent.trim_end_matches('%').parse().unwrap_or(25)),
        Some(count) => usize::try_from(count.as_u64().unwrap_or(1)).unwrap_or(1),
        None => share(if gates { 10 } else { 25 }),
    };
    most.max(1)
}

fn version(rule: &Value) -> (String, i64) {
    let generation = rule["metadata"]["generation"].as_i64().unwrap_or_default();
    (text(rule, "/metadata/uid").to_owned(), generation)
}

pub(super) fn owner(pod: &Value) -> Option<&str> {
    Some(text(pod, "/metadata/ownerReferences/0/uid")).filter(|uid| !uid.is_empty())
}

/// Whether the workloads of a Pod's owner don't permit that it loses its companion: so many aren't ready, perhaps because of another rule. One
/// that was ready when its companion was replaced counts as down until it is ready again.
fn owner_holds(model: &Model, rule: &Value, pod: &Value) -> bool {
    let Some(of) = owner(pod) else { return false };
    let pods = model.list("pods");
    let own = || pods.iter().filter(|other| is_workload(other) && owner(other) == Some(of));
    own().filter(|other| !is_true(other, "Ready")).count() >= most(rule, own().count())
}

/// Whether a rollout waits before it takes the companion of this workload: for its PodDisruptionBudgets, or for its owner's others.
pub(super) fn holds(model: &Model, rule: &Value, pod: &Value) -> bool {
    super::budgets::hold(model, pod) || owner_holds(model, rule, pod)
}

/// A companion that no Node was found for, like those before it: no rollout has taken it down.
fn has_never_run(pod: &Value) -> bool {
    pod["metadata"]["annotations"][keys::FIRST_COMPANION] == "true" && !pod["spec"]["nodeName"].is_string()
}

fn image(object: &Value, pointer: &str) -> String {
    text(object, pointer).to_owned()
}

fn stays(pod: &Value) -> bool {
    pod["metadata"]["deletionTimestamp"].is_null()
}

/// Whether a companion is Ready, isn't being changed, and isn't being deleted.
pub(super) fn runs(pod: &Value) -> bool {
    is_ready(pod) && !is_resizing(pod) && !is_updating(pod) && stays(pod)
}

/// Whether a companion counts for no budget as down: it runs, or has never run and isn't being deleted.
pub(super) fn is_up(companions: &[Arc<Value>], key: &Key) -> bool {
    companions
        .iter()
        .any(|pod| companion(pod).as_ref() == Some(key) && (runs(pod) || has_never_run(pod) && stays(pod)))
}

/// Whether the manager that makes a request has known the present state of the rule for [`KNOWN`].
fn knows(world: &World, commit: &Commit, key: &Key, rule: &Value) -> bool {
    let version = text(rule, "/metadata/resourceVersion").parse().unwrap_or(u64::MAX);
    let plural = if key.1.starts_with(PLATFORM) { "adminworkloadrules" } else { "workloadrules" };
    let shown = world.infra.shown(&commit.client, plural, version);
    shown.is_some_and(|shown| shown + KNOWN <= commit.sent)
}

/// Whether a companion is for another host than that of its workload's Node, because a Tenant's entries about names have changed, or its
/// DPU is no longer its tenant's. Then it is deleted whatever its template is.
fn has_moved(world: &World, (id, rule): (&str, &Value), node: Option<&str>, companion: &Value) -> bool {
    let names = world.host_names(id);
    let host = node.and_then(|node| host_of(&names, node));
    let dpu = companion["spec"]["nodeName"].as_str().and_then(|dpu| world.infra.get("nodes", None, dpu));
    is_by_host(rule) && companion["metadata"]["annotations"][keys::HOST].as_str() != host
        || dpu.is_some_and(|dpu| super::dpus::owner(&dpu) != Some(id))
}

impl Judge {
    /// The numbers of companions of a rule, and of workloads of an owner, are the largest since the last rest.
    pub(super) fn grows(&self, world: &World, commit: &Commit) {
        let Some(key) = commit.new.as_ref().filter(|_| commit.old.is_none()).and_then(|pod| companion(pod))
        else {
            return;
        };
        let of_rule =
            |other: &Arc<Value>| companion(other).is_some_and(|other| (other.0, &other.1) == (key.0, &key.1));
        let count = world.infra.list("pods").iter().filter(|pod| of_rule(pod)).count();
        let mut found = self.found.lock();
        let most = found.most_companions.entry((key.0, key.1)).or_default();
        *most = (*most).max(count);
    }

    /// A workload is written: the same of its owner, and since when it isn't ready.
    pub(super) fn workload_grows(&self, world: &World, id: &'static str, commit: &Commit) {
        let Some(pod) = &commit.new else { return };
        let uid = text(pod, "/metadata/uid").to_owned();
        let mut found = self.found.lock();
        if commit.old.as_ref().is_none_or(|old| read(old) != read(pod)) {
            found.facts_at.insert(uid.clone(), commit.revision);
        }
        if commit.user == LIFECYCLE {
            // Its host is lost: from now on that is why it isn't ready, and no manager expects that of a rollout that is over.
            let replaced = found.replaced.iter_mut().filter(|(key, _)| key.2 == uid);
            replaced.for_each(|(_, replaced)| replaced.was_ready = false);
        }
        if is_true(pod, "Ready") {
            found.unready_since.remove(&uid);
        } else {
            found.unready_since.entry(uid).or_insert(commit.time);
        }
        if commit.old.is_none()
            && let Some(of) = owner(pod)
        {
            let pods = world.tenants[id].list("pods");
            let count = pods.iter().filter(|pod| is_workload(pod) && owner(pod) == Some(of)).count();
            let most = found.most_owned.entry((id, of.to_owned())).or_default();
            *most = (*most).max(count);
        }
    }

    /// A manager deletes a companion, or resizes it.
    pub(super) fn replaced(&self, world: &World, commit: &Commit, key: &Key) {
        let Some(old) = commit.old.as_ref().filter(|_| commit.client.starts_with("manager")) else { return };
        let Some(rule) = served(world, key) else { return };
        let all = wanted(world);
        let Some(Wanted { pod, place: Place::Dpu, .. }) = all.get(key) else { return };
        if self.has_other_dpu(key) {
            return;
        }
        // The state of the rule that managers know may not match the workload.
        let node = node_of(&world.tenants[key.0], pod);
        if !matches(&rule, pod, node.as_deref()) || has_moved(world, (key.0, &rule), node.as_deref(), old) {
            return;
        }
        // All companions of a rule that is deleted are, and those that an earlier state of the rule didn't match. The manager may not know
        // yet that there is a rule of that name again, or its present state.
        let is_of_another = old["metadata"]["annotations"][keys::RULE_UID] != rule["metadata"]["uid"];
        let matched = |state: &Arc<Value>| {
            matches(state, pod, node.as_deref()) && serves(state, pod) && concerns(state, key.0)
        };
        let was_unmatched = || !self.found.lock().possible.rules(key.0, &key.1).iter().all(matched);
        if (is_of_another || was_unmatched()) && !knows(world, commit, key, &rule) {
            return;
        }
        let now = image(&rule, "/spec/template/spec/containers/0/image");
        let is_resize = commit.subresource.as_deref() == Some("resize");
        let is_other = image(old, "/spec/containers/0/image") != now || differ(old, &rule);
        // One whose kubelet resizes it already is down, and no manager has chosen when: its resize may have been deferred.
        let serves = is_ready(old) && !is_resizing(old) && text(old, "/status/phase") != "Failed";
        if !is_other && !is_resize || !serves {
            return;
        }
        let was_current = {
            let found = self.found.lock();
            let same = |before: &[String; 2]| before[0] == image(old, "/spec/containers/0/image");
            let uid = text(&rule, "/metadata/uid");
            let changed = found.moved || found.restored || found.changed.contains(&(key.0, key.2.clone()));
            !changed && found.images.get(uid).is_some_and(same)
        };
        if !is_resize {
            self.untried(world, commit, key, (&now, was_current));
        }
        let version = version(&rule);
        // When there is room for those that were deferred, their kubelets resize them together.
        if image(old, "/spec/containers/0/image") != now || !may_be_deferred(&rule) {
            self.counted(world, commit, key, (&rule, &version), pod);
            self.budgeted(world, commit, key, &version, pod);
        }
        let replaced = Replaced {
            client: commit.client.clone(),
            time: commit.time,
            rule: version,
            was_ready: is_true(pod, "Ready"),
        };
        self.found.lock().replaced.insert(key.clone(), replaced);
    }

    /// Companions are replaced only for a template that the API server takes. `was_current`: before this template, the companion had the latest.
    /// Revisions of a restored cluster don't say when a watch has shown them.
    fn untried(&self, world: &World, commit: &Commit, key: &Key, (image, was_current): (&str, bool)) {
        let restored = self.found.lock().restored;
        let knows = !restored && served(world, key).is_some_and(|rule| knows(world, commit, key, &rule));
        if (knows || was_current) && image.starts_with(crate::world::kubelet::REFUSED) {
            let client = &commit.client;
            self.violation(
                world,
                format!("{client} deletes the companion of {key:?} for a template that is refused"),
            );
        }
    }

    fn counted(
        &self,
        world: &World,
        commit: &Commit,
        key: &Key,
        (rule, version): (&Value, &(String, i64)),
        pod: &Value,
    ) {
        let companions = world.infra.list("pods");
        let all = wanted(world);
        let found = self.found.lock();
        let is_up = |key: &Key| is_up(&companions, key) || found.has_just_fallen(key, commit.sent);
        if found.blind || found.restored || found.moved || found.reborn.contains(key.0) {
            return;
        }
        let claimed = found.claimed.get(key.0).copied();
        let others = found.replaced.iter().filter(|(other, replaced)| {
            let same = replaced.client == commit.client
                || claimed.is_some_and(|claimed| replaced.time + KNOWN <= claimed);
            (other.0, &other.1) == (key.0, &key.1)
                && *other != key
                && replaced.rule == *version
                && same
                && !found.changed.contains(&(other.0, other.2.clone()))
                && !found.has_left(other)
                && all.get(*other).is_some_and(|wanted| wanted.place == Place::Dpu)
        });
        let gets_ready = |key: &Key, replaced: &Replaced| {
            let since = found.unready_since.get(&key.2);
            let waits = since.is_some_and(|since| *since > replaced.time && *since + REPORTED <= commit.sent);
            replaced.was_ready && !found.disturbed && waits && world.has_agent(key.0)
        };
        let is_there = |key: &Key| companions.iter().any(|pod| companion(pod).as_ref() == Some(key));
        let (mut down, mut gone) = (1, usize::from(!is_there(key)));
        // One that lacks several companions is one workload.
        let mut of_owner = BTreeSet::from([&key.2]);
        for (other, replaced) in others {
            gone += usize::from(!is_there(other));
            let is_down = !is_up(other);
            down += usize::from(is_down);
            let same = all
                .get(other)
                .is_some_and(|wanted| owner(&wanted.pod).is_some() && owner(&wanted.pod) == owner(pod));
            if same && (is_down || gets_ready(other, replaced)) {
                of_owner.insert(&other.2);
            }
        }
        let of_owner = of_owner.len();
        let is_same =
            |pod: &Arc<Value>| companion(pod).is_some_and(|other| (other.0, &other.1) == (key.0, &key.1));
        // Those that are deleted count too.
        let exist = companions.iter().filter(|pod| is_same(pod)).count() + gone;
        let total =
            found.most_companions.get(&(key.0, key.1.clone())).copied().unwrap_or_default().max(exist);
        let pods = world.tenants[key.0].list("pods");
        let of = owner(pod);
        let owns =
            pods.iter().filter(|other| of.is_some() && is_workload(other) && owner(other) == of).count();
        let most_owned = of.and_then(|of| found.most_owned.get(&(key.0, of.to_owned()))).copied();
        let owned = most_owned.unwrap_or_default().max(owns);
        drop(found);
        if down > most(rule, total) {
            let most = most(rule, total);
            self.violation(
                world,
                format!(
                    "{} takes {down} of {total} companions of {key:?} down, at most {most}",
                    commit.client
                ),
            );
        }
        if owner(pod).is_some() && of_owner > most(rule, owned) {
            let most = most(rule, owned);
            self.violation(
                world,
                format!(
                    "{} takes {of_owner} of {owned} companions of an owner of {key:?} down, at most {most}",
                    commit.client
                ),
            );
        }
    }

    /// Facts and places of companions that aren't as their rules and workloads say.
    pub(super) fn facts_missing(world: &World) -> Vec<String> {
        let (all, mut missing) = (wanted(world), Vec::new());
        for pod in world.infra.list("pods") {
            let Some(key) = companion(&pod).filter(|(id, ..)| world.has_agent(id)) else { continue };
            let Some(Wanted { rule, pod: workload, image: now, .. }) = all.get(&key) else { continue };
            let node = node_of(&world.tenants[key.0], workload);
            for (name, value) in super::matching::facts(rule, workload, node.as_deref()) {
                let found = pod["metadata"]["annotations"].get(name).and_then(Value::as_str);
                if found != value {
                    missing.push(format!(
                        "the companion of {key:?} has the fact {name} {found:?}, and not {value:?}"
                    ));
                }
            }
            // Beside the facts, one that waits for the next template is as before.
            let is_current = image(&pod, "/spec/containers/0/image") == *now;
            if !is_current || !super::devices::may_have_those_of(world, &pod, rule) {
                continue;
            }
            let stale = pod["metadata"]["annotations"].as_object().into_iter().flatten().find(|(name, _)| {
                name.starts_with("example.com/")
                    && !super::matching::facts(rule, workload, None).iter().any(|(fact, _)| fact == name)
            });
            if let Some((name, _)) = stale {
                missing.push(format!("the companion of {key:?} still has the fact {name}"));
            }
            let bound =
                pod["spec"]["nodeName"].as_str().and_then(|node| world.infra.get("nodes", None, node));
            let names = world.host_names(key.0);
            let host = node.as_deref().and_then(|node| host_of(&names, node));
            let is_there = |dpu: &Value| host.is_some_and(|host| is_in(dpu, host));
            if is_by_host(rule) && bound.is_some_and(|dpu| !is_there(&dpu)) {
                missing.push(format!("the companion of {key:?} isn't on the DPU of its workload's host"));
            }
        }
        missing
    }
}
