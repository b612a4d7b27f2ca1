//! The status of the companions that a rule has on all DPUs of a workload's host. The tenant hears one status for a workload and a rule,
//! which is that of a companion that isn't ready as long as there is one: nothing that waits for companions goes on before all are ready.

use jiff::Timestamp;
use outrigger_core::companion;
use outrigger_core::fault;
use outrigger_core::index::{CompanionKey, Desired};
use outrigger_core::progress::{HostDpu, Progress, Stage};
use outrigger_core::reason::Cause;

use super::Outcome;
use crate::state::TenantData;
use crate::state::companions::CompanionCache;
use crate::state::registry::Registry;

impl TenantData {
    /// The status of a rule's companions for a workload, if there is something to send about them. `key` has no DPU.
    pub(super) fn outcome(
        &self,
        key: &CompanionKey,
        registry: &Registry,
        was_ready: bool,
        now: Timestamp,
    ) -> Option<Outcome> {
        let of = |key: &CompanionKey| {
            let of = |companions: &CompanionCache| self.outcome_of(key, companions, registry, was_ready, now);
            self.read_companions(&key.rule, of).flatten()
        };
        let companions = match self.index.rule(&key.rule) {
            Some(rule) if !rule.policy().is_on_all() => return of(key),
            Some(_) => self.index.companions_of(key),
            // What exists stays.
            None => match self.on_dpus(key) {
                none if none.is_empty() => return of(key),
                exist => exist.into_iter().collect(),
            },
        };
        let mut outcomes: Vec<Outcome> = companions.iter().filter_map(of).collect();
        outcomes.extend(self.missing_dpu(key, registry, was_ready, now));
        let is_ready = |outcome: &Outcome| outcome.progress.stage == Stage::Ready;
        let some = outcomes.iter().any(is_ready) && !outcomes.iter().all(is_ready);
        let is_enough = some && fault("one-of-several-companions-is-enough");
        let least = outcomes.into_iter().min_by_key(|outcome| is_ready(outcome) != is_enough)?;
        Some(Outcome { was_ready: was_ready || least.was_ready, ..least })
    }

    /// The status of the companion on a DPU that isn't the tenant's yet, or is about to become another's; and where the tenant has none
    /// at all in the host, of the companion that would be there.
    fn missing_dpu(
        &self,
        key: &CompanionKey,
        registry: &Registry,
        was_ready: bool,
        now: Timestamp,
    ) -> Option<Outcome> {
        let Desired::OnOtherDpus { rule, workload } = self.index.desired(key) else { return None };
        let host = companion::host(rule, workload, &self.host_names);
        let dpus = &self.index.dpus;
        let cause = match self.tenant.as_ref().zip(host) {
            _ if dpus.hands_over(rule, workload) => Cause::HandingOver,
            _ if dpus.of(rule, workload).next().is_some() => return None,
            Some((tenant, host)) => registry.host_dpu(tenant, host, None).cause().unwrap_or(Cause::NoDpu),
            None => HostDpu::NotListed.cause()?,
        };
        Some(Outcome {
            progress: Progress { stage: Stage::NoDpu, cause: Some(cause) },
            words: String::new(),
            since: now,
            ordering: rule.ordering(),
            was_ready,
            host: host.map(Into::into),
        })
    }
}
