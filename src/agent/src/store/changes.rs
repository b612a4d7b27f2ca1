//! Workloads whose present state isn't sent yet. The board learns of each: until then the manager's silence says nothing of the Pod.

use std::collections::BTreeSet;

use outrigger_core::ids::WorkloadId;

use crate::companions::Board;

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct Changes {
    pub(super) ids: BTreeSet<WorkloadId>,
}

impl Changes {
    pub(super) fn insert(&mut self, id: WorkloadId, board: &Board) {
        board.unsent(&id);
        self.ids.insert(id);
    }

    /// Returns one that is sent now.
    pub(super) fn take(&mut self, board: &Board) -> Option<WorkloadId> {
        let id = self.ids.pop_first()?;
        board.sent(&id);
        Some(id)
    }

    /// All are sent now.
    pub(super) fn clear(&mut self, board: &Board) {
        board.sent_all();
        self.ids.clear();
    }
}
