//! Workloads whose present state isn't sent yet. The board learns of each: until then the manager's silence says nothing of the Pod.

use std::collections::BTreeSet;
use std::sync::Arc;

use outrigger_core::ids::WorkloadId;

use crate::companions::Board;

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct Changes {
    pub(super) ids: BTreeSet<WorkloadId>,
    pub(super) board: Option<Arc<Board>>,
}

impl Changes {
    pub(super) fn insert(&mut self, id: WorkloadId) {
        if let Some(board) = &self.board {
            board.unsent(&id);
        }
        self.ids.insert(id);
    }

    /// Returns one that is sent now.
    pub(super) fn take(&mut self) -> Option<WorkloadId> {
        let id = self.ids.pop_first()?;
        if let Some(board) = &self.board {
            board.sent(&id);
        }
        Some(id)
    }

    /// All are sent now.
    pub(super) fn clear(&mut self) {
        if let Some(board) = &self.board {
            board.sent_all();
        }
        self.ids.clear();
    }
}
