//! Receives a sync: in one message, or in chunks between a begin and an end.
//!
//! Each workload counts as soon as it is received. That others are deleted is known at the end, and only there: a sync that is
//! interrupted deletes nothing. The companions that it has touched by then are reconciled all the same: the workloads are known, so the
//! next sync says nothing new of them.

use std::sync::Arc;

use outrigger_api::workload_wire;
use outrigger_core::annotations::Reading;
use outrigger_core::fault;
use outrigger_core::field::FieldError;
use outrigger_core::ids::WorkloadId;
use outrigger_core::index::CompanionKey;
use outrigger_core::map::HashSet;
use outrigger_core::tenant::Limits;
use outrigger_core::workload::{MAX_SIZE, Workload};
use outrigger_proto::raw::WorkloadUpdate;
use parking_lot::MutexGuard;
use tonic::Status;

use super::workloads::{bad, exhausted};
use crate::context::Context;
use crate::state::{TenantData, TenantState};
use crate::usage::{self, Unkept};

/// How many workloads are taken in at once. Whoever else needs the tenant's state waits for so many at most: the watch of
/// companions above all, which is that of all tenants.
const AT_ONCE: usize = 256;

#[derive(Debug)]
pub(super) struct Sync {
    context: Arc<Context>,
    state: Arc<TenantState>,
    /// The stream that sends it.
    stream: u64,
    limits: Limits,
    /// The workloads received so far. They alone are compared with the limits: workloads that the sync is about to remove no
    /// longer count.
    received: HashSet<WorkloadId>,
    /// Workloads of before were forgotten, to make room.
    made_room: bool,
    /// How the workloads of a client are to be understood that says nothing of annotations; `None` as soon as the first has come.
    silent: Option<Reading>,
    /// The companions to reconcile that weren't returned yet.
    owed: Vec<CompanionKey>,
}

/// Has those looked at that an interrupted sync owes.
impl Drop for Sync {
    fn drop(&mut self) {
        let owed = std::mem::take(&mut self.owed);
        if !owed.is_empty() && !fault("interrupted-sync-forgets-what-it-touched") {
            self.context.companions_touched(&self.state, owed);
        }
    }
}

impl Sync {
    /// A sync begins. `announced`: how many workloads it will have; 0 where that isn't known. `silent`: how they are to be understood
    /// where the client says nothing of annotations. Returns RESOURCE_EXHAUSTED when there are too many.
    pub(super) fn begin(
        context: Arc<Context>,
        state: Arc<TenantState>,
        stream: u64,
        limits: Limits,
        announced: u64,
        silent: Reading,
    ) -> Result<Self, Status> {
        usage::within(announced, &limits).map_err(|e| exhausted(&e))?;
        let received = HashSet::default();
        let (made_room, silent, owed) = (false, Some(silent), Vec::new());
        Ok(Self { context, state, stream, limits, received, made_room, silent, owed })
    }

    /// Takes in some workloads. `path`: the field of the message that has them. Tens of thousands take a moment, so this isn't
    /// for the threads that serve everybody. One that is too large is refused alone. Returns INVALID_ARGUMENT for what is no workload,
    /// RESOURCE_EXHAUSTED when there are too many: nothing of the message counts then. ABORTED when a newer stream has begun. Workloads
    /// received by then stay known.
    pub(super) fn take(
        &mut self,
        updates: &[WorkloadUpdate],
        path: &str,
    ) -> Result<Vec<CompanionKey>, Status> {
        self.receive(updates, path)?;
        Ok(std::mem::take(&mut self.owed))
    }

    /// As [`Self::take`]; [`Self::end`] returns the companions to reconcile.
    pub(super) fn receive(&mut self, updates: &[WorkloadUpdate], path: &str) -> Result<(), Status> {
        let mut workloads = Vec::with_capacity(updates.len());
        let mut statement = None;
        for (i, update) in updates.iter().enumerate() {
            let size = workload_wire::size(update);
            let below = |e: FieldError| bad(e.below(&format!("{path}[{i}]")));
            let workload = workload_wire::workload(update).map_err(below)?;
            statement = workload_wire::statement(update).map_err(below)?.or(statement);
            workloads.push((workload, size));
        }
        self.received.extend(workloads.iter().map(|(workload, _)| workload.id.clone()));
        usage::within(self.received.len() as u64, &self.limits).map_err(|e| exhausted(&e))?;
        let state = self.state.clone();
        let keys = self.understand(statement.map(Reading::Said))?;
        self.owed.extend(keys);
        let mut workloads = workloads.into_iter().peekable();
        while workloads.peek().is_some() {
            let mut data = self.lock(&state)?;
            for (workload, size) in workloads.by_ref().take(AT_ONCE) {
                let keys = self.set(&mut data, workload, size);
                self.owed.extend(keys);
            }
            MutexGuard::unlock_fair(data);
        }
        Ok(())
    }

    /// The workloads that follow are to be understood so; `None`: the client says nothing about it. Returns the companions to reconcile,
    /// as [`Self::set`] does.
    fn understand(&mut self, said: Option<Reading>) -> Result<Vec<CompanionKey>, Status> {
        let Some(reading) = said.or(self.silent.take()) else { return Ok(Vec::new()) };
        self.silent = None;
        let state = self.state.clone();
        let mut data = self.lock(&state)?;
        let known = data.index.known().begun(reading);
        let keys = data.set_known(known).unwrap_or_default();
        Ok(if data.index.synced() { keys } else { Vec::new() })
    }

    /// The companions to reconcile because of one workload: none before the first sync has ended, because only its end shows which
    /// companions are missing.
    fn set(&mut self, data: &mut TenantData, workload: Workload, size: usize) -> Vec<CompanionKey> {
        let mut kept = data.usage.update(&workload.id, size, &self.limits);
        let helps = size <= MAX_SIZE || kept != Err(Unkept::TooLarge);
        if kept.is_err() && helps && !std::mem::replace(&mut self.made_room, true) {
            // Former and new workloads together are too many. A former one may still be sent: so it is forgotten, and unknown, as
            // after a restart.
            data.index.doubt(|id| self.received.contains(id));
            data.outcomes.dismiss();
            data.usage.retain(&self.received);
            kept = data.usage.update(&workload.id, size, &self.limits);
        }
        if kept.is_err() {
            data.refuse_workload(&workload, size);
            return Vec::new();
        }
        let (registry, now) = (&self.context.caches.registry, self.context.environment.clock.wall());
        let keys = data.update_workload(workload, registry, now);
        if data.index.synced() { keys } else { Vec::new() }
    }

    /// The sync has ended: workloads that it did not contain are deleted. Returns ABORTED when a newer stream has begun.
    pub(super) fn end(mut self) -> Result<Vec<CompanionKey>, Status> {
        // If no workload has come.
        let decided = self.understand(None)?;
        self.owed.extend(decided);
        let state = self.state.clone();
        let mut data = self.lock(&state)?;
        let first = !data.index.synced();
        data.usage.retain(&self.received);
        let refused = data.index.refused_count();
        let mut keys = data.index.complete(|id| self.received.contains(id));
        if data.index.refused_count() < refused {
            keys.extend(data.companion_keys());
        }
        keys.append(&mut self.owed);
        let known = data.index.known().completed();
        keys.extend(data.set_known(known).unwrap_or_default());
        if first {
            let wanted: Vec<CompanionKey> = data.index.matches().collect();
            data.first_sync(&wanted);
            keys.extend(wanted);
            // Companions from before this process started: those that no workload of the sync wants are deleted now.
            keys.extend(data.companion_keys());
            // Those of workloads that were forgotten to make room.
            keys.extend(data.outcome_keys());
            data.outcomes.complete = 0;
        }
        keys.sort_unstable();
        keys.dedup();
        Ok(keys)
    }

    /// A newer stream may begin at any time.
    fn lock<'a>(&self, state: &'a TenantState) -> Result<MutexGuard<'a, TenantData>, Status> {
        let data = state.lock();
        data.stream.check(self.stream)?;
        Ok(data)
    }
}

#[cfg(test)]
mod tests;
