//! Workloads and companions that a limit keeps from being served.

use std::sync::Arc;

use jiff::Timestamp;
use outrigger_core::ids::RuleName;
use outrigger_core::index::RefusedWorkload;
use outrigger_core::progress::Progress;
use outrigger_core::rule::Ordering;
use outrigger_core::tenant::Limits;
use outrigger_core::workload::Workload;

use super::{LEFT_OUT, Outcome, ReportedCompanion, WorkloadReport};
use crate::state::TenantData;

impl TenantData {
    /// Whether a workload that was refused would be kept if it was sent again. So it is never just after a sync: while one is received,
    /// room only becomes less.
    pub(crate) fn can_keep_refused(&self, limits: &Limits) -> bool {
        self.index.all_refused().any(|workload| self.usage.has_room(&workload.id, workload.size, limits))
    }

    /// A workload that was received just now is too large to be kept. What is known of it stays. `size`: how much it counts.
    pub(crate) fn refuse_workload(&mut self, workload: &Workload, size: usize) {
        let (id, node_name) = (workload.id.clone(), workload.node_name.clone());
        if let Some(label) = self.index.refuse(RefusedWorkload { id, node_name, size }) {
            self.changed(&label);
        }
    }

    /// The message about a workload whose state was too large. Which rules match it isn't known, and any of them may ask that it waits:
    /// so the message says that one of the platform does.
    pub(super) fn report_refused(&self, label: &Arc<str>, now: Timestamp) -> Option<WorkloadReport> {
        let RefusedWorkload { id, node_name, .. } = self.index.refused(label)?.clone();
        let rule = RuleName::admin("refused").ok()?;
        let companion = ReportedCompanion::none(&rule, Ordering::BeforeStart, LEFT_OUT, now);
        Some(WorkloadReport { id, node: node_name, revision: 0, companions: vec![companion] })
    }
}

impl ReportedCompanion {
    /// One that doesn't exist, with what keeps it from existing.
    pub(super) fn none(rule: &RuleName, ordering: Ordering, progress: Progress, since: Timestamp) -> Self {
        let words = String::new();
        let outcome = Outcome { progress, words, since, ordering, was_ready: false, host: None };
        Self { rule: rule.clone(), outcome, faults: String::new() }
    }
}
