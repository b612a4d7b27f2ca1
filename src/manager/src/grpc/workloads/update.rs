//! Takes in workloads that come by themselves, and looks after those that have no room.

use outrigger_api::workload_wire;
use outrigger_core::field::FieldError;
use outrigger_core::index::CompanionKey;
use outrigger_core::tenant::Limits;
use outrigger_proto::raw::WorkloadUpdate;
use tonic::Status;

use super::{Session, Workloads, bad, exhausted};
use crate::state::TenantState;
use crate::usage::Unkept;

impl Workloads {
    /// Takes in a workload that comes by itself on the stream with this number. Also returns whether more or fewer workloads are refused
    /// than before.
    pub(super) fn update(
        &self,
        state: &TenantState,
        number: u64,
        limits: &Limits,
        update: &WorkloadUpdate,
    ) -> Result<(Vec<CompanionKey>, bool), Status> {
        let size = workload_wire::size(update);
        let below = |e: FieldError| bad(e.below("workload_update"));
        let workload = workload_wire::workload(update).map_err(below)?;
        let statement = workload_wire::statement(update).map_err(below)?;
        let mut data = state.lock();
        data.stream.check(number)?;
        let before = data.index.refused_count();
        let kept = data.usage.update(&workload.id, size, limits);
        if let Err(Unkept::TooMany(e)) = &kept {
            return Err(exhausted(e));
        }
        // It is about all workloads, also where this one has no room.
        let said = data.said(statement);
        let mut keys = match kept {
            Ok(()) => data.update_workload(workload, &self.context.caches.registry, self.wall()),
            Err(_) => {
                data.refuse_workload(&workload, size);
                Vec::new()
            }
        };
        let refused = data.index.refused_count() != before;
        drop(data);
        if let Some(more) = said {
            keys.extend(more);
            self.queue_rules(state);
        }
        Ok((keys, refused))
    }

    /// Ends a stream with workloads that were refused when there may be room for them: the agent sends them again on its next one.
    pub(super) fn look_at_refused(&self, session: &Session) -> Result<(), Status> {
        if session.sync.is_none() && session.state.lock().can_keep_refused(&session.tenant.limits) {
            return Err(Status::unavailable(
                "there is room for workloads that were refused; connect again, and send all of them",
            ));
        }
        Ok(())
    }
}
