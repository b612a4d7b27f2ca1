//! What must hold of companions that outlive their workloads: only those do that have been ready, and as long as their rules say.

use serde_json::Value;

use super::matching::{matches, serves};
use super::wanted::{is_ready, linger, mark, written};
use super::{Judge, Key, SKEW};
use crate::model::Commit;
use crate::world::{World, is_queued, text};

impl Judge {
    /// A companion is written. If that records the end of its workload, it must have been ready: no other one outlives its workload.
    pub(super) fn outlives(&self, world: &World, commit: &Commit, key: &Key) {
        let Some(now) = &commit.new else { return };
        let mut found = self.found.lock();
        if is_ready(now) {
            found.served.insert(text(now, "/metadata/uid").to_owned());
        }
        let is_new = mark(now).is_some() && commit.old.as_ref().is_some_and(|old| mark(old).is_none());
        if is_new && !found.served.contains(text(now, "/metadata/uid")) {
            drop(found);
            self.violation(world, format!("the companion of {key:?} lingers and has never been ready"));
        }
    }

    /// A companion is deleted whose workload has ended. That is a violation before the time that its rule lets it linger, but for
    /// the difference of clocks, if it is ready and no manager can take it for one that isn't matched: its rule and the DPU that it is for
    /// haven't changed since the last rest, and its workload had the same labels all the time.
    pub(super) fn lingered(&self, world: &World, commit: &Commit, key: &Key, companion: &Value) {
        let (id, name, workload, _) = key;
        let ended = {
            let found = self.found.lock();
            let workload = (*id, workload.clone());
            found.ended.get(&workload).filter(|_| !found.relabelled.contains(&workload)).cloned()
        };
        let Some((ended, last)) = ended else { return };
        let exempt = is_queued(companion) || !is_ready(companion) || self.has_other_dpu(key);
        if exempt || !commit.client.starts_with("manager") || self.has_changed(id, name) {
            return;
        }
        let Some(rule) = written(world, key).filter(|rule| rule["metadata"]["deletionTimestamp"].is_null())
        else {
            return;
        };
        let least = linger(&rule).saturating_sub(SKEW);
        let lived = commit.time.duration_since(ended).unsigned_abs();
        let same = text(&rule, "/spec/template/spec/containers/0/image")
            == text(companion, "/spec/containers/0/image");
        let matched =
            same && serves(&rule, &last) && matches(&rule, &last, last["spec"]["nodeName"].as_str());
        if matched && mark(companion).is_none() && !linger(&rule).is_zero() {
            let client = &commit.client;
            self.violation(
                world,
                format!("{client} deletes the companion of {key:?}, which is ready and lingers"),
            );
        } else if matched && lived < least {
            let client = &commit.client;
            self.violation(
                world,
                format!("{client} deletes the companion of {key:?} after {lived:?}, before {least:?}"),
            );
        }
    }
}
