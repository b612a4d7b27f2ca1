//! The status of each workload's companions and of the DPU of each host, which is sent to the tenant's agent.
//!
//! An outcome is kept so that it is known since when it is so, whether a companion has been ready before, and how many there are of
//! which cause. There is one for each match, as there is one companion. Who follows the outcomes has a set of the workloads that
//! have changed, and reads their outcomes when it sends them: a slow reader misses states in between, and never the last.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use outrigger_core::companion::{self, Observed};
use outrigger_core::fault;
use outrigger_core::ids::{RuleName, WorkloadId};
use outrigger_core::index::{CompanionKey, Desired};
use outrigger_core::map::{HashMap, remove_from};
use outrigger_core::progress::{Facts, HostDpu, Progress, Stage, Wish};
use outrigger_core::reason::Cause;
use outrigger_core::rule::{Ordering, Rule};
use outrigger_core::steps::step;
use outrigger_core::unplaced;
use outrigger_core::workload::Workload;
use tokio::sync::Notify;

use super::TenantData;
use super::companions::CompanionCache;
use super::registry::Registry;

mod all;
mod hosts;
mod refused;

/// Workloads that a follower may have in its set beyond twice those that are known. Those that are gone are dropped then.
const SPARE: usize = 1024;

/// The match is left out for the tenant's limit.
const LEFT_OUT: Progress = Progress { stage: Stage::Refused, cause: Some(Cause::LimitReached) };

/// The workload waits for a companion, and it isn't decided whether there is to be one.
const UNDECIDED: Progress = Progress { stage: Stage::Pending, cause: Some(Cause::AnnotationsNotSent) };

/// The status of a companion.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Outcome {
    pub progress: Progress,
    /// What of the template keeps it from having a DPU; empty where that isn't the cause, or isn't known.
    pub words: String,
    /// Since when it is at this stage, as far as this replica has seen it.
    pub since: Timestamp,
    /// Whether the workload waits for it.
    pub ordering: Ordering,
    was_ready: bool,
    /// The host whose DPU it waits for.
    host: Option<Arc<str>>,
}

/// The companions of a workload, as they are reported.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct WorkloadReport {
    pub id: WorkloadId,
    /// The node of the workload with which all outcomes were assessed.
    pub node: Option<String>,
    /// [`Workload::revision`] of the state with which all outcomes were assessed; 0 if that isn't known.
    pub revision: u64,
    pub companions: Vec<ReportedCompanion>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ReportedCompanion {
    pub rule: RuleName,
    pub outcome: Outcome,
    /// Faults of the rule's fields, where they are the cause, or what of them no DPU fits.
    pub faults: String,
}

/// The DPU of a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct HostOutcome {
    pub dpu: HostDpu,
    pub since: Timestamp,
}

/// The outcomes of one tenant, and who follows them.
#[derive(Debug, Default)]
pub(crate) struct Outcomes {
    by_workload: BTreeMap<Arc<str>, BTreeMap<RuleName, Outcome>>,
    /// Companions that aren't ready, by the host that they have to run on.
    waiting: HashMap<Arc<str>, BTreeSet<CompanionKey>>,
    causes: BTreeMap<Cause, usize>,
    /// By the names of the Nodes that they are.
    hosts: BTreeMap<String, HostOutcome>,
    /// uid and generation of the Tenant whose hosts these are.
    hosts_of: Option<(String, i64)>,
    /// The stream whose sync has ended, and all of whose matches have an outcome; 0 for none. What an earlier stream has sent says nothing
    /// of workloads that the present one is about to send.
    pub(crate) complete: u64,
    followers: BTreeMap<u64, Follower>,
    next: u64,
}

/// Who follows outcomes.
#[derive(Debug, Default)]
struct Follower {
    workloads: BTreeSet<Arc<str>>,
    hosts: BTreeSet<String>,
    changed: Arc<Notify>,
}

impl Outcomes {
    /// Somebody follows from now on. Returns the follower's number, and what wakes it; `None` when there are `most` already.
    pub(crate) fn follow(&mut self, most: usize) -> Option<(u64, Arc<Notify>)> {
        if self.followers.len() >= most {
            return None;
        }
        self.next += 1;
        let follower = Follower { hosts: self.hosts.keys().cloned().collect(), ..Follower::default() };
        let changed = follower.changed.clone();
        self.followers.insert(self.next, follower);
        Some((self.next, changed))
    }

    pub(crate) fn leave(&mut self, follower: u64) {
        self.followers.remove(&follower);
    }

    /// Whether somebody still follows: [`Self::dismiss`] hasn't been called since they began.
    pub(crate) fn is_followed_by(&self, follower: u64) -> bool {
        self.followers.contains_key(&follower)
    }

    /// Nobody follows any longer: what they have received isn't kept up to date from now on, or is about another tenant.
    pub(crate) fn dismiss(&mut self) {
        self.wake();
        self.followers.clear();
    }

    /// Has all followers look whether they still may follow.
    pub(crate) fn wake(&self) {
        for follower in self.followers.values() {
            follower.changed.notify_one();
        }
    }

    /// A workload that has changed, which counts as sent from now on.
    pub(crate) fn next_workload(&mut self, follower: u64) -> Option<Arc<str>> {
        self.followers.get_mut(&follower)?.workloads.pop_first()
    }

    /// The Node of a host that has changed, which counts as sent from now on, and the host's DPU; `None` for a host that is no longer the
    /// tenant's.
    pub(crate) fn next_host(&mut self, follower: u64) -> Option<(String, Option<HostOutcome>)> {
        let host = self.followers.get_mut(&follower)?.hosts.pop_first()?;
        let outcome = self.hosts.get(&host).copied();
        Some((host, outcome))
    }

    /// How many companions are wrong, by cause.
    pub(crate) fn causes(&self) -> impl Iterator<Item = (Cause, usize)> {
        self.causes.iter().map(|(cause, count)| (*cause, *count))
    }

    /// The workloads are unknown from now on.
    pub(super) fn forget_workloads(&mut self) {
        self.by_workload.clear();
        self.waiting.clear();
        self.causes.clear();
        self.complete = 0;
        for follower in self.followers.values_mut() {
            follower.workloads.clear();
        }
        self.wake();
    }

    /// The tenant is another one. Who followed the outcomes of the former one must not hear those of this one, and has missed some if the
    /// former one comes back.
    pub(super) fn change_tenant(&mut self) {
        self.hosts.clear();
        self.hosts_of = None;
        self.dismiss();
    }

    fn get(&self, key: &CompanionKey) -> Option<&Outcome> {
        self.by_workload.get(key.label())?.get(&key.rule)
    }

    /// Sets an outcome, or removes it. Returns whether it is another one than before.
    fn set(&mut self, key: &CompanionKey, new: Option<Outcome>) -> bool {
        let old = match &new {
            Some(new) => self
                .by_workload
                .entry(key.workload.clone())
                .or_default()
                .insert(key.rule.clone(), new.clone()),
            None => {
                let of_workload = self.by_workload.get_mut(&key.workload);
                let old = of_workload.and_then(|of_workload| of_workload.remove(&key.rule));
                if self.by_workload.get(&key.workload).is_some_and(BTreeMap::is_empty) {
                    self.by_workload.remove(&key.workload);
                }
                old
            }
        };
        if old == new {
            return false;
        }
        for (outcome, add) in [(&old, false), (&new, true)] {
            let Some(Outcome { progress, host, .. }) = outcome else { continue };
            if let Some(cause) = progress.cause {
                let count = self.causes.entry(cause).or_default();
                *count = if add { *count + 1 } else { *count - 1 };
            }
            let Some(host) = host else { continue };
            if add {
                self.waiting.entry(host.clone()).or_default().insert(key.clone());
            } else {
                remove_from(&mut self.waiting, host, |waiting| waiting.remove(key));
            }
        }
        true
    }

    fn set_host(&mut self, node: &str, dpu: Option<HostDpu>, now: Timestamp) {
        let before = self.hosts.get(node).map(|outcome| outcome.dpu);
        if before == dpu {
            return;
        }
        match dpu {
            Some(dpu) => self.hosts.insert(node.to_owned(), HostOutcome { dpu, since: now }),
            None => self.hosts.remove(node),
        };
        for follower in self.followers.values_mut() {
            follower.hosts.insert(node.to_owned());
            follower.changed.notify_one();
        }
    }
}

impl TenantData {
    /// Whether outcomes can be reported: the tenant's agent is connected to this replica, and has sent all of its workloads on this
    /// connection.
    pub(crate) fn can_report(&self) -> bool {
        self.stream.connected
            && self.index.synced()
            && !self.closing
            && (self.stream.check(self.outcomes.complete).is_ok()
                || fault("companions-are-sent-before-they-are-known"))
    }

    /// These companions may be other than before, or wanted in another way.
    pub(crate) fn assess(&mut self, keys: &[CompanionKey], registry: &Registry, now: Timestamp) {
        // Taken in any case: until a sync is complete they would grow without an end, and afterwards everything is read once.
        let (left_out, undecided) = (self.index.left_out_changed(), self.index.undecided_changed());
        if self.tenant.is_none() || !self.index.synced() {
            return;
        }
        for key in keys {
            step();
            self.assess_one(&key.whole(), registry, now);
        }
        for label in left_out.into_iter().chain(undecided) {
            self.changed(&label);
        }
    }

    /// A workload is as it was received just now. Returns the companions that this may concern.
    ///
    /// If it is on another node or has another revision than before, its outcomes are assessed under the same lock, so that no message
    /// about this state has those of the former one. There is a message also where all outcomes are as before, because that about the
    /// former state counts no longer.
    pub(crate) fn update_workload(
        &mut self,
        workload: Workload,
        registry: &Registry,
        now: Timestamp,
    ) -> Vec<CompanionKey> {
        let label = workload.id.label_value();
        let refused = self.index.refused(&label).is_some();
        let before = self.index.workload(&label);
        let other_node = before.is_some_and(|before| before.node_name != workload.node_name);
        let other_revision = before.is_some_and(|before| before.revision != workload.revision);
        let touched = self.index.update(workload);
        let label = label.into();
        if refused {
            self.changed(&label);
        }
        if other_revision || other_node && !fault("another-node-is-not-reported") {
            self.assess(&touched, registry, now);
            if self.report_of(&label, now).is_some_and(|report| !report.companions.is_empty()) {
                self.changed(&label);
            }
        }
        touched
    }

    /// A companion of the workload with this label value has another outcome, or the reason for it has other words.
    pub(crate) fn changed(&mut self, label: &Arc<str>) {
        let most = 2 * (self.index.workloads() + self.index.refused_count()) + SPARE;
        for follower in self.outcomes.followers.values_mut() {
            step();
            if follower.workloads.len() >= most {
                follower.workloads.retain(|label| {
                    step();
                    self.index.workload(label).is_some() || self.index.refused(label).is_some()
                });
            }
            follower.workloads.insert(label.clone());
            follower.changed.notify_one();
        }
    }

    /// The label of the first workload after another one of whose companions there is something to report.
    pub(crate) fn next_outcome(&self, after: Option<&Arc<str>>) -> Option<Arc<str>> {
        use std::ops::Bound::{Excluded, Unbounded};
        let from = after.map_or(Unbounded, |label| Excluded(label.clone()));
        let matched = self.outcomes.by_workload.range((from, Unbounded)).next().map(|(label, _)| label);
        let left_out = self.index.left_out_after(after).next();
        let undecided = self.index.undecided_after(after);
        let refused = self.index.refused_after(after).next();
        matched.into_iter().chain(left_out).chain(undecided).chain(refused).min().cloned()
    }

    /// The companions of the workload with this label value; `None` when the workload isn't known.
    pub(crate) fn report_of(&self, label: &Arc<str>, now: Timestamp) -> Option<WorkloadReport> {
        let Some(workload) = self.index.workload(label) else { return self.report_refused(label, now) };
        let known = self.outcomes.by_workload.get(label);
        let mut companions: Vec<ReportedCompanion> = known
            .into_iter()
            .flatten()
            .map(|(rule, outcome)| {
                let key = CompanionKey { rule: rule.clone(), workload: label.clone() };
                ReportedCompanion {
                    rule: rule.clone(),
                    outcome: outcome.clone(),
                    faults: self.faults(&key, outcome),
                }
            })
            .collect();
        let left_out = self.index.left_out_of(label).into_iter().map(|rule| (rule, LEFT_OUT));
        let undecided = self.index.undecided_of(label).into_iter().map(|rule| (rule, UNDECIDED));
        let others = left_out.chain(undecided);
        let others = others.filter(|(rule, _)| known.is_none_or(|known| !known.contains_key(rule.name())));
        let missing = |(rule, progress): (&Arc<Rule>, _)| {
            ReportedCompanion::none(rule.name(), rule.ordering(), progress, now)
        };
        companions.extend(others.map(missing));
        let (id, node, revision) = (workload.id.clone(), workload.node_name.clone(), workload.revision);
        Some(WorkloadReport { id, node, revision, companions })
    }

    /// All companions of which there is something to report.
    pub(crate) fn outcome_keys(&self) -> impl Iterator<Item = CompanionKey> {
        self.outcomes.by_workload.iter().flat_map(|(workload, of_workload)| {
            let key = |rule: &RuleName| CompanionKey { rule: rule.clone(), workload: workload.clone() };
            of_workload.keys().map(key)
        })
    }

    fn faults(&self, key: &CompanionKey, outcome: &Outcome) -> String {
        if outcome.progress.stage != Stage::Refused {
            return outcome.words.clone();
        }
        let of_template = || self.rules.get(&key.rule)?.validation.refusal();
        let companions = self.index.companions_of(key);
        let refusal = companions.iter().find_map(|key| self.refusals.get(key));
        let why = refusal.map(|refusal| &refusal.why).or_else(of_template);
        why.filter(|why| Some(why.cause) == outcome.progress.cause)
            .map(|why| why.faults.clone())
            .unwrap_or_default()
    }

    fn assess_one(&mut self, key: &CompanionKey, registry: &Registry, now: Timestamp) {
        let before = self.outcomes.get(key);
        let was_ready = before.is_some_and(|before| before.was_ready);
        let new = self.outcome(key, registry, was_ready, now).map(|new| match before {
            Some(before) if before.progress.stage == new.progress.stage => {
                Outcome { since: before.since, ..new }
            }
            _ => new,
        });
        if self.outcomes.set(key, new) {
            self.changed(&key.workload);
        }
    }

    /// Why the scheduler has found no Node for a companion, and what of its template is the reason. `dpu`: its host and its name, as far as
    /// the companion has to run there.
    fn placement(
        &self,
        observed: &Observed,
        rule: Option<&Arc<Rule>>,
        dpu: (Option<&str>, Option<&str>),
        registry: &Registry,
    ) -> Option<(Cause, String)> {
        // Of another template nothing is known.
        let rule = rule.filter(|rule| rule.makes(&observed.template_hash, observed.content_hash.as_deref()));
        match (rule, &self.tenant) {
            (Some(rule), Some(tenant)) => Some(registry.why_unplaced(tenant, dpu, rule, &observed.message)),
            _ => unplaced::guess(&observed.message).map(|cause| (cause, String::new())),
        }
    }

    /// What keeps a companion from having a DPU, in the tenant's words; `None` where something else is the matter, or nothing.
    pub(crate) fn unplaced(&self, key: &CompanionKey) -> Option<(Cause, String)> {
        let Outcome { progress, words, .. } = self.outcomes.get(key)?;
        let cause = progress.cause.filter(|_| progress.stage == Stage::NoDpu)?;
        let colon = if words.is_empty() { "" } else { ": " };
        Some((cause, format!("{}{colon}{words}", cause.meaning())))
    }

    /// The status of the companion with this key, if there is something to send about it. `companions`: those of its rule.
    fn outcome_of(
        &self,
        key: &CompanionKey,
        companions: &CompanionCache,
        registry: &Registry,
        was_ready: bool,
        now: Timestamp,
    ) -> Option<Outcome> {
        let observed = companions.get(key);
        // That those on other DPUs have been ready says nothing of one that is new.
        let is_new = || !observed.map_or_else(|| companions.has_run(key), |o| o.was_ready);
        let was_ready = was_ready && !(key.dpu().is_some() && is_new());
        let entry = self.rules.get(&key.rule)?;
        let (wish, rule, host) = match self.index.desired(key) {
            Desired::Wanted { rule, workload } => {
                let host = companion::host(rule, workload, &self.host_names);
                (Wish::Companion(rule, host), Some(rule), host)
            }
            Desired::Waiting => (Wish::Waiting, self.index.rule(&key.rule), None),
            desired @ (Desired::OverLimit | Desired::Undecided) => {
                // Without a companion it is among those that are left out or undecided, and so is one whose companion serves another
                // host: that one stays where it is.
                let (rule, workload) = (self.index.rule(&key.rule)?, self.index.workload(&key.workload)?);
                let host = companion::host(rule, workload, &self.host_names);
                observed.filter(|o| o.host.as_deref() == host)?;
                let over = matches!(desired, Desired::OverLimit);
                (if over { Wish::OverLimit } else { Wish::Undecided }, Some(rule), None)
            }
            Desired::RuleUnknown if !entry.errors.is_empty() && !entry.deleting => {
                (Wish::Kept, None, observed?.host.as_deref())
            }
            Desired::RuleUnknown
            | Desired::Unwanted
            | Desired::OnOtherDpus { .. }
            | Desired::Ended { .. }
            | Desired::Unknown => return None,
        };
        let ready = observed.is_some_and(|o| o.ready);
        let dpu = || Some(registry.host_dpu(self.tenant.as_ref()?, host?, key.dpu()));
        let refusal = self.refusals.get(key).filter(|refusal| refusal.generation == entry.generation);
        let placement = observed
            .filter(|o| o.unplaced && !ready)
            .and_then(|o| self.placement(o, rule, (host, key.dpu()), registry));
        let progress = Facts {
            wish,
            observed,
            refusal: refusal.map(|refusal| refusal.why.cause),
            template_refusal: entry.validation.refusal().map(|why| why.cause),
            dpu: if ready { None } else { dpu() },
            placement: placement.as_ref().map(|(cause, _)| *cause),
            was_ready,
        }
        .progress();
        let is_ready = progress.stage == Stage::Ready;
        let words = placement.filter(|(cause, _)| progress.cause == Some(*cause)).map(|(_, words)| words);
        Some(Outcome {
            progress,
            words: words.unwrap_or_default(),
            since: now,
            ordering: rule.map(|rule| rule.ordering()).unwrap_or_default(),
            was_ready: was_ready || is_ready,
            host: host.filter(|_| !is_ready).map(Arc::from),
        })
    }
}

#[cfg(test)]
mod tests;
