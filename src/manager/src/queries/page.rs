//! One page of a tenant's workloads, in the order of their label values.
//!
//! The workloads of the index have no order, so the label values of all are copied and sorted at most once in [`FRESH`] for each tenant.
//! Each page looks them up again, a few at a time under the tenant's lock. A page begins after the last workload of the one before:
//! whatever changes meanwhile, a workload that exists all the time is on exactly one page.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use outrigger_core::ids::TenantId;
use outrigger_core::progress::Stage;
use outrigger_core::reason::Cause;
use outrigger_runtime::environment::Clock;
use parking_lot::Mutex;
use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};
use tokio::time::Instant;

use super::ask::Ask;
use crate::grpc::message;
use crate::state::outcomes::{ReportedCompanion, WorkloadReport};
use crate::state::{Namespace, TenantData, TenantState};

/// How long label values are used again. A workload that is younger may be missing.
const FRESH: Duration = Duration::from_secs(1);

/// Most tenants whose label values are kept. Each takes 16 bytes for a workload.
const KEPT: usize = 8;

/// Workloads that are looked up under one lock.
const CHUNK: usize = 64;

/// Most workloads that are looked up for a page: where a filter takes few of them, a page has fewer than its limit.
const LOOKED: usize = 10_000;

/// Bytes of workloads after which a page ends.
const BYTES: usize = 1 << 20;

/// Most companions of a workload. Beyond it those are left out that are ready.
const COMPANIONS: usize = 64;

/// A page.
#[derive(Debug, Serialize)]
pub(super) struct Answer {
    tenant: String,
    /// The replica that answers.
    replica: String,
    /// How many workloads of the tenant this replica knows, whatever the query asks for.
    known: usize,
    workloads: Vec<Box<RawValue>>,
    /// Where the next page begins; `None`: this is the last one.
    #[serde(rename = "continue", skip_serializing_if = "Option::is_none")]
    next: Option<String>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Row {
    id: String,
    namespace: String,
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    node: Option<String>,
    ready: bool,
    companions: Vec<CompanionRow>,
    /// Companions that are left out of the page.
    #[serde(skip_serializing_if = "is_zero")]
    more_companions: usize,
}

/// A companion that a rule asks for. Of one of a rule of the platform it has no rule and no text.
#[derive(Debug, Serialize)]
struct CompanionRow {
    #[serde(skip_serializing_if = "Option::is_none")]
    rule: Option<String>,
    state: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    cause: Option<&'static str>,
    #[serde(skip_serializing_if = "String::is_empty")]
    message: String,
    since: String,
    ordering: &'static str,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde hands over references")]
fn is_zero(count: &usize) -> bool {
    *count == 0
}

type Labels = Arc<[Arc<str>]>;

/// The label values of tenants' workloads, sorted.
#[derive(Debug)]
pub(super) struct Pages {
    clock: Clock,
    kept: Mutex<BTreeMap<Namespace, (Instant, Labels)>>,
}

impl Pages {
    pub(super) fn new(clock: Clock) -> Self {
        Self { clock, kept: Mutex::default() }
    }

    /// A page of a tenant's workloads; `None` if this replica doesn't know them. It takes milliseconds, and waits for locks.
    pub(super) fn page(
        &self,
        state: &TenantState,
        id: &TenantId,
        replica: &str,
        ask: &Ask,
        now: Timestamp,
    ) -> Option<Answer> {
        let labels = self.labels(state, id)?;
        let start = ask.after.as_ref().map_or(0, |after| labels.partition_point(|label| **label <= **after));
        let rest = labels.get(start..).unwrap_or_default();
        let mut answer = Answer {
            tenant: id.to_string(),
            replica: replica.to_owned(),
            known: 0,
            workloads: Vec::new(),
            next: None,
        };
        let (mut looked, mut bytes) = (0, 0);
        for chunk in rest.chunks(CHUNK) {
            let found: Vec<Option<Row>> = {
                let data = state.lock();
                if !knows(&data, id) {
                    return None;
                }
                answer.known = data.index.workloads();
                chunk.iter().map(|label| row(&data, label, ask, now)).collect()
            };
            for found in found {
                if answer.workloads.len() >= ask.limit || looked >= LOOKED || bytes >= BYTES {
                    // The one before this, which was looked up last.
                    let last = (start + looked).checked_sub(1).and_then(|at| labels.get(at));
                    answer.next = last.map(|label| label.to_string());
                    return Some(answer);
                }
                looked += 1;
                // Texts and numbers alone: there is nothing in it that could not be serialised.
                let found = found.and_then(|row| to_raw_value(&row).ok());
                bytes += found.as_ref().map_or(0, |row| row.get().len());
                answer.workloads.extend(found);
            }
        }
        if rest.is_empty() {
            let data = state.lock();
            answer.known = data.index.workloads();
            return knows(&data, id).then_some(answer);
        }
        Some(answer)
    }

    /// The sorted label values of all workloads; `None` if this replica doesn't know them.
    fn labels(&self, state: &TenantState, id: &TenantId) -> Option<Labels> {
        let now = self.clock.now();
        let kept = self.kept.lock().get(&state.namespace).cloned();
        if let Some((_, labels)) = kept.filter(|(at, _)| now.duration_since(*at) < FRESH) {
            return Some(labels);
        }
        let mut labels: Vec<Arc<str>> = {
            let data = state.lock();
            if !knows(&data, id) {
                return None;
            }
            data.index.labels().cloned().collect()
        };
        labels.sort_unstable();
        let labels: Labels = labels.into();
        let mut kept = self.kept.lock();
        kept.retain(|_, (at, _)| now.duration_since(*at) < FRESH);
        if kept.len() < KEPT {
            kept.insert(state.namespace.clone(), (now, labels.clone()));
        }
        Some(labels)
    }
}

/// Whether this is the tenant's state, and its workloads are known.
fn knows(data: &TenantData, id: &TenantId) -> bool {
    data.tenant.as_ref() == Some(id) && data.can_report()
}

/// A workload, if it is asked for and still there.
fn row(data: &TenantData, label: &Arc<str>, ask: &Ask, now: Timestamp) -> Option<Row> {
    let workload = data.index.workload(label)?;
    let (namespace, name) = (&workload.resource_namespace, &workload.resource_name);
    if !ask.text.is_empty() && !format!("{namespace}/{name}").contains(&ask.text) {
        return None;
    }
    let WorkloadReport { mut companions, .. } = data.report_of(label, now)?;
    let has =
        |cause: Cause| companions.iter().any(|companion| companion.outcome.progress.cause == Some(cause));
    if !ask.cause.is_none_or(has) {
        return None;
    }
    let all = companions.len();
    if all > COMPANIONS {
        companions.sort_by_key(|companion| companion.outcome.progress.stage == Stage::Ready);
        companions.truncate(COMPANIONS);
    }
    Some(Row {
        id: workload.id.as_str().to_owned(),
        namespace: namespace.clone(),
        name: name.clone(),
        node: workload.node_name.clone(),
        ready: workload.ready,
        more_companions: all - companions.len(),
        companions: companions.into_iter().map(companion).collect(),
    })
}

fn companion(reported: ReportedCompanion) -> CompanionRow {
    let ReportedCompanion { rule, outcome, faults } = reported;
    let (cause, own) = (outcome.progress.cause, !rule.is_admin());
    CompanionRow {
        rule: own.then(|| rule.as_str().to_owned()),
        state: state(outcome.progress.stage),
        cause: cause.map(Cause::as_str),
        message: cause.filter(|_| own).map(|cause| message(cause, &faults)).unwrap_or_default(),
        since: format!("{:.0}", outcome.since),
        ordering: outcome.ordering.as_str(),
    }
}

fn state(stage: Stage) -> &'static str {
    match stage {
        Stage::Pending => "Pending",
        Stage::Refused => "Refused",
        Stage::NoDpu => "NoDPU",
        Stage::Starting => "Starting",
        Stage::Ready => "Ready",
        Stage::Failed => "Failed",
        Stage::Lost => "Lost",
    }
}

#[cfg(test)]
mod tests;
