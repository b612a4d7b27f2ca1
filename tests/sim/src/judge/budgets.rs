//! What must hold of PodDisruptionBudgets while companions are replaced: no manager takes more healthy Pods of a budget their companions
//! than it allows.

use serde_json::Value;

use super::rollouts::{REPORTED, is_up};
use super::wanted::is_workload;
use super::{Judge, Key};
use crate::model::{Commit, Model};
use crate::world::budgets::selects;
use crate::world::hosts::is_true;
use crate::world::{World, text};

/// Whether PodDisruptionBudgets don't permit that a Pod loses its companion: then a rollout waits for it.
pub(super) fn hold(model: &Model, pod: &Value) -> bool {
    let pods = model.list("pods");
    is_true(pod, "Ready")
        && model.list("poddisruptionbudgets").iter().filter(|budget| selects(budget, pod)).any(|budget| {
            let own = pods.iter().filter(|pod| is_workload(pod) && selects(budget, pod));
            let healthy = own.filter(|pod| is_true(pod, "Ready")).count() as u64;
            healthy <= budget["status"]["desiredHealthy"].as_u64().unwrap_or_default()
        })
}

impl Judge {
    /// A manager replaces the companion of a workload. Of the Pods of each of its budgets enough are healthy without it, and without those whose
    /// companions the manager has replaced. What has changed so lately that the manager may not know it counts as it was.
    pub(super) fn budgeted(
        &self,
        world: &World,
        commit: &Commit,
        key: &Key,
        version: &(String, i64),
        pod: &Value,
    ) {
        let (id, rule, of, _) = key;
        let found = self.found.lock();
        let excused =
            found.disturbed || found.blind || found.restored || found.moved || found.reborn.contains(id);
        if excused || !is_true(pod, "Ready") || !world.has_agent(id) {
            return;
        }
        let companions = world.infra.list("pods");
        let is_up = |key: &Key| is_up(&companions, key) || found.has_just_fallen(key, commit.sent);
        let is_late = |time: &jiff::Timestamp| *time + REPORTED > commit.sent;
        let model = &world.tenants[id];
        for budget in model.list("poddisruptionbudgets").iter().filter(|budget| selects(budget, pod)) {
            let name = text(budget, "/metadata/name");
            let (Some(desired), Some(since)) =
                (budget["status"]["desiredHealthy"].as_u64(), found.budgets.get(&(*id, name.to_owned())))
            else {
                continue;
            };
            if is_late(since) {
                continue;
            }
            let ended = found
                .ended
                .iter()
                .filter(|((of, _), (time, pod))| of == id && is_late(time) && selects(budget, pod));
            let (mut healthy, mut soon) = (ended.count(), 0);
            for member in model.list("pods").iter().filter(|pod| is_workload(pod) && selects(budget, pod)) {
                let uid = text(member, "/metadata/uid").to_owned();
                let unready = found.unready_since.get(&uid).filter(|since| !is_late(since)).is_some();
                let is_down = found.replaced.iter().any(|(other, replaced)| {
                    (other.0, &other.1, &other.2) == (*id, rule, &uid)
                        && uid != *of
                        && replaced.client == commit.client
                        && replaced.rule == *version
                        && !found.has_left(other)
                        && !is_up(other)
                });
                healthy += usize::from(!unready);
                soon += usize::from(is_down && is_true(member, "Ready"));
            }
            if healthy < soon + 1 + usize::try_from(desired).unwrap_or_default() {
                let client = &commit.client;
                drop(found);
                let what = format!(
                    "{client} takes the companion of {key:?}, and {soon} others of {healthy} healthy Pods of {name} down, \
                     which asks for {desired}"
                );
                return self.violation(world, what);
            }
        }
    }
}
