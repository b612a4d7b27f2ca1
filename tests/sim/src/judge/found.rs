//! What a judge has found, and what it remembers of a history.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::Value;

use super::Key;
use super::matching::read;
use super::possible::Possible;
use super::rollouts::{Replaced, owner};
use super::states::States;
use super::wanted::{companion, is_workload};
use crate::model::Commit;
use crate::world::{TENANTS, World};

/// Processes write an object less often than this within a time: what is written again and again is a fight, or a loop.
const MOST_WRITES: u64 = 60;
const WINDOW: Duration = Duration::from_secs(10);

#[derive(Default)]
pub(super) struct Found {
    pub(super) violations: Vec<String>,
    /// What rules and companions have been.
    pub(super) states: States,
    /// All workloads, by uid, and rules, by name, that have ever been there.
    pub(super) known: BTreeSet<(&'static str, String)>,
    /// Those of which something has changed since the system came to rest the last time.
    pub(super) changed: BTreeSet<(&'static str, String)>,
    /// An earlier state of a cluster was restored since then.
    pub(super) restored: bool,
    /// A Tenant has got other hosts since then: companions on a DPU that changes its tenant are deleted, whatever workload they are of.
    pub(super) moved: bool,
    /// Tenants that were deleted or created since then, or haven't had an agent since something else has changed that concerns all of
    /// their companions.
    pub(super) reborn: BTreeSet<&'static str>,
    /// The uids of all Tenants so far.
    pub(super) tenant_uids: BTreeSet<String>,
    /// The most slots that the Machine has had since then, if their number has changed.
    pub(super) most_slots: u64,
    /// Namespaces whose offloading has changed since then.
    pub(super) offloadings: BTreeSet<String>,
    /// Workloads that have got other labels: a rule may have matched them for a part of their life.
    pub(super) relabelled: BTreeSet<(&'static str, String)>,
    /// The uids of companions that have been ready.
    pub(super) served: BTreeSet<String>,
    /// When workloads ended, and as what.
    pub(super) ended: BTreeMap<(&'static str, String), (Timestamp, Arc<Value>)>,
    /// The hosts for which companions have been ready; an empty one where any will do.
    pub(super) ready_on: BTreeMap<Key, BTreeSet<String>>,
    /// Since when companions that were there aren't Ready, are being deleted or are gone.
    pub(super) lost: BTreeMap<Key, Timestamp>,
    /// When others than managers have taken companions down.
    pub(super) fallen: BTreeMap<Key, Timestamp>,
    /// Since when companions are on their way out, by their uids.
    pub(super) leaving: BTreeMap<String, Timestamp>,
    /// Something has broken since the system came to rest the last time.
    pub(super) disturbed: bool,
    /// Requests were lost since then, or watches stood still.
    pub(super) blind: bool,
    /// Rules whose devices have changed since then without their image.
    pub(super) other_devices: BTreeSet<(&'static str, String)>,
    /// Since when PodDisruptionBudgets ask for as many healthy Pods as now, by tenant and name.
    pub(super) budgets: BTreeMap<(&'static str, String), Timestamp>,
    /// Companions that managers have replaced since then.
    pub(super) replaced: BTreeMap<Key, Replaced>,
    /// The most companions of rules, and workloads of owners, since then.
    pub(super) most_companions: BTreeMap<(&'static str, String), usize>,
    /// See [`Self::most_companions`].
    pub(super) most_owned: BTreeMap<(&'static str, String), usize>,
    /// Since when workloads haven't been ready, by their uids.
    pub(super) unready_since: BTreeMap<String, Timestamp>,
    /// The revisions at which what rules read of workloads has changed, by their uids, and when Nodes were chosen for them.
    pub(super) facts_at: BTreeMap<String, u64>,
    /// See [`Self::facts_at`].
    pub(super) placed_at: BTreeMap<String, Timestamp>,
    /// The images that rules have, after those that they had before, by uid.
    pub(super) images: BTreeMap<String, [String; 2]>,
    /// What rules and workloads have been since the last rest.
    pub(super) possible: Possible,
    /// The entries that Tenants have had about names of Nodes since then; the last ones are the present ones.
    pub(super) names: BTreeMap<&'static str, Vec<Value>>,
    /// The policies of rules, by uid and generation.
    pub(super) policies: BTreeMap<(String, String), String>,
    /// When DPUs were in another host or another tenant's the last time since then, by the names of their Nodes.
    pub(super) dpus: BTreeMap<String, Timestamp>,
    /// What no companion of rules can get in place, by uid and generation.
    pub(super) fixed: BTreeMap<(String, String), Value>,
    /// Since when companions are Ready, by their uids.
    pub(super) ready_since: BTreeMap<String, Timestamp>,
    /// Which managers serve tenants, and the revisions at which they have claimed their streams.
    pub(super) holders: BTreeMap<&'static str, (String, u64)>,
    /// When managers have claimed the streams of tenants the last time.
    pub(super) claimed: BTreeMap<&'static str, Timestamp>,
    /// Since when Nodes that are handed over have been unowned.
    pub(super) unowned: BTreeMap<String, Timestamp>,
    /// When the Lease was written the last time.
    pub(super) renewed: Option<Timestamp>,
    /// When Events came, by who wrote them and what they say.
    pub(super) events: BTreeMap<(String, [String; 3]), Vec<Timestamp>>,
    /// Writes of processes, renewals of Leases left out.
    pub(super) writes: u64,
    /// Writes of processes by object, since the beginning of a window of time.
    pub(super) often: BTreeMap<(&'static str, Option<String>, String), (Timestamp, u64)>,
}

impl Found {
    /// Counts a write. Returns what is wrong if the same object was written too often.
    pub(super) fn count(&mut self, commit: &Commit) -> Option<String> {
        if commit.client.is_empty() || commit.kind.plural == "leases" {
            return None;
        }
        self.writes += 1;
        let object = (commit.kind.plural, commit.namespace.clone(), commit.name.clone());
        let (since, writes) = self.often.entry(object).or_insert((commit.time, 0));
        if commit.time.duration_since(*since).unsigned_abs() > WINDOW {
            (*since, *writes) = (commit.time, 0);
        }
        *writes += 1;
        let Commit { kind, namespace, name, .. } = commit;
        (*writes == MOST_WRITES)
            .then(|| format!("{} {namespace:?}/{name} is written {writes} times in {WINDOW:?}", kind.plural))
    }
}

impl Found {
    /// The companions of each rule and the workloads of each owner are so many at a rest.
    pub(super) fn count_all(&mut self, world: &World) {
        (self.most_companions, self.most_owned) = Default::default();
        for (id, rule, ..) in world.infra.list("pods").iter().filter_map(|pod| companion(pod)) {
            *self.most_companions.entry((id, rule)).or_default() += 1;
        }
        for (id, _) in TENANTS {
            for pod in world.tenants[id].list("pods").iter().filter(|pod| is_workload(pod)) {
                if let Some(owner) = owner(pod) {
                    *self.most_owned.entry((id, owner.to_owned())).or_default() += 1;
                }
            }
        }
    }

    /// Whether the DPU of a companion that was replaced has been in another host since: then no rollout has taken it down.
    pub(super) fn has_left(&self, (.., dpu): &Key) -> bool {
        dpu.as_ref().is_some_and(|dpu| self.dpus.contains_key(dpu))
    }

    /// A PodDisruptionBudget is written.
    pub(super) fn budget(&mut self, id: &'static str, commit: &Commit) {
        let asks = |budget: &Arc<Value>| {
            [budget["spec"]["selector"].clone(), budget["status"]["desiredHealthy"].clone()]
        };
        if commit.old.as_ref().map(asks) != commit.new.as_ref().map(asks) {
            self.budgets.insert((id, commit.name.clone()), commit.time);
        }
    }

    /// A Pod in a tenant's cluster changes.
    pub(super) fn workload(&mut self, key: (&'static str, String), commit: &Commit) {
        let [before, now] = [&commit.old, &commit.new].map(|pod| pod.as_ref().filter(|pod| is_workload(pod)));
        match (before, now) {
            (Some(before), None) => _ = self.ended.insert(key, (commit.time, before.clone())),
            (Some(before), Some(now)) if read(before) != read(now) => _ = self.relabelled.insert(key),
            (None, Some(_)) => _ = self.ended.remove(&key),
            _ => {}
        }
    }
}
