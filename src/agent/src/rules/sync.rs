//! Rounds of the synchronization.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use jiff::Timestamp;
use kube::ResourceExt;
use kube::api::Api;
use outrigger_api::WorkloadRule;
use outrigger_core::fault;
use outrigger_core::ids::RuleName;
use outrigger_core::map::{HashMap, HashSet};
use outrigger_proto::v1;
use outrigger_runtime::calls::found;
use tokio::sync::watch;
use tokio::time::Instant;
use tonic::{Code, Status};
use tracing::{debug, info, warn};

mod reconcile;
mod report;

use super::RuleStore;
use super::budget::Budget;
use super::pace::{Notice, Pace};
use super::sanitize;
use super::skew::IneffectiveWrites;
use super::status::SyncState;
use super::wire::RuleClient;
use crate::context::Context;
use crate::gate::{Enforcement, Enforces};
use crate::metrics::RoundOutcome;
use crate::store::WorkloadStore;
use crate::waits::changed;

/// Time after which a write appears in the manager's list, which is made from a watch.
const LIST_DELAY: Duration = Duration::from_secs(3);
/// Time after which a write without a response can no longer be executed: twice the deadline of the manager's own call.
const UNCONFIRMED_WRITE: Duration = Duration::from_secs(60);
/// Time after which a rejected rule is sent again without a change.
const REJECTION_PAUSE: Duration = Duration::from_secs(60);
/// Maximum number of orphaned rules that are deleted in one round. Each costs a request to the tenant's API server, and the
/// manager determines their number.
const MAX_ORPHANS: usize = 50;
/// Number of failures in a row before the status of a rule reports them. A proxy may return any error for a moment.
const REPORT_AFTER: u32 = 3;

pub(crate) struct Syncer {
    pub context: Arc<Context>,
    pub namespace: String,
    pub store: Arc<RuleStore>,
    pub workloads: Arc<WorkloadStore>,
    /// What of orderings is enforced, which the status of rules says.
    pub enforcement: Enforcement,
    /// Time between two rounds without changes.
    pub interval: Duration,
    /// Number of rules that are synchronized concurrently.
    pub concurrency: usize,
}

struct Memory {
    enforces: Enforces,
    client: Option<RuleClient>,
    last_success: Option<Timestamp>,
    /// By uid.
    rules: HashMap<String, RuleMemory>,
    budget: Budget,
}

/// State of one rule that is kept between rounds.
#[derive(Default)]
struct RuleMemory {
    /// A rejection by the infrastructure cluster: the generation, the state, and when to send the rule again.
    rejected: Option<(i64, SyncState, Instant)>,
    /// A write: the generation, and until when a list may not show it.
    written: Option<(i64, Instant)>,
    ineffective: Option<IneffectiveWrites>,
    /// A write without a response may be executed until then.
    unconfirmed: Option<Instant>,
    /// Number of failures in a row.
    failures: u32,
}

impl Memory {
    fn new(enforces: Enforces, now: Instant) -> Self {
        Self {
            enforces,
            client: None,
            last_success: None,
            rules: HashMap::default(),
            budget: Budget::new(now),
        }
    }

    /// Removes expired state, and the state of all other rules.
    fn retain(&mut self, uids: &HashSet<String>, now: Instant) {
        self.rules.retain(|uid, _| uids.contains(uid));
        for rule in self.rules.values_mut() {
            rule.written.take_if(|(_, until)| *until <= now);
        }
        self.budget.retain(uids);
    }
}

impl RuleMemory {
    fn is_written(&self, generation: i64) -> bool {
        self.written.is_some_and(|(of, _)| of == generation)
    }

    /// The rejection of this generation, until it is sent again.
    fn rejection(&self, generation: i64, now: Instant) -> Option<&SyncState> {
        let (of, state, until) = self.rejected.as_ref()?;
        (*of == generation && *until > now).then_some(state)
    }

    /// Records the result for the rule. Returns the state to report, if there is one yet, and what was written. Fails
    /// if the manager can't authenticate the agent, which concerns all rules.
    fn record(
        &mut self,
        generation: i64,
        result: RuleResult,
        now: Instant,
    ) -> Result<(Option<SyncState>, Wrote), Status> {
        match result {
            Ok((state, wrote)) => {
                self.failures = 0;
                match &state {
                    SyncState::Rejected(reason, _) if !reconcile::LOCAL_REASONS.contains(reason) => {
                        // A repeated rejection doesn't extend the pause.
                        if self.rejection(generation, now).is_none() {
                            self.rejected = Some((generation, state.clone(), now + REJECTION_PAUSE));
                        }
                    }
                    _ => self.rejected = None,
                }
                Ok((Some(state), wrote))
            }
            Err(CallError { status, unconfirmed }) => {
                if unconfirmed {
                    self.unconfirmed = Some(now + UNCONFIRMED_WRITE);
                }
                if status.code() == Code::Unauthenticated {
                    return Err(status);
                }
                self.failures = self.failures.saturating_add(1);
                let error = format!("{:?}: {}", status.code(), sanitize::message(status.message()));
                Ok(((self.failures >= REPORT_AFTER).then_some(SyncState::Failing(error)), Wrote::Nothing))
            }
        }
    }
}

/// What was written of a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wrote {
    Nothing,
    Rule,
    /// The rule, and the manager says that it stores it, whatever it has listed.
    Kept,
}

/// The state of a rule, and what was written.
type RuleResult = Result<(SyncState, Wrote), CallError>;

/// A failed call whose cause is not the rule.
struct CallError {
    status: Status,
    /// Whether a write may be executed nevertheless.
    unconfirmed: bool,
}

impl From<Status> for CallError {
    fn from(status: Status) -> Self {
        Self { status, unconfirmed: false }
    }
}

impl Syncer {
    /// Runs until the agent shuts down. `changes`: those of the store.
    pub(crate) async fn run(self, mut changes: watch::Receiver<()>) {
        let mut enforcement = self.enforcement.clone();
        let mut memory = Memory::new(enforcement.now(), self.context.environment.clock.now());
        let mut pace = Pace::default();
        let mut deferred = false;
        loop {
            memory.enforces = enforcement.now();
            match self.round(&mut memory).await {
                Ok(wrote) => {
                    self.context.metrics.round(RoundOutcome::Ok);
                    memory.last_success = Some(self.context.environment.clock.wall());
                    pace.succeeded(wrote);
                }
                Err(status) => self.failed(&status, &mut pace, &mut memory).await,
            }
            let before = std::mem::replace(&mut deferred, memory.budget.take_deferred());
            if deferred && !before {
                warn!("the status of rules changes too often; limiting the rate of status writes");
            }
            tokio::select! {
                biased;
                () = self.context.drain.cancelled() => return,
                () = tokio::time::sleep(pace.pause(self.interval)) => {}
                () = enforcement.changed() => {}
                () = changed(&mut changes) => {
                    // Several rules are usually applied one after the other.
                    tokio::time::sleep(Duration::from_millis(20)).await;
                    pace.changed();
                }
            }
        }
    }

    async fn failed(&self, status: &Status, pace: &mut Pace, memory: &mut Memory) {
        let reason = sanitize::message(status.message());
        let (notice, state) = if status.code() == Code::Unimplemented {
            // The connection is kept: it ends with this manager, and the next one is asked on a new connection. The workload
            // stream is not affected.
            self.context.metrics.round(RoundOutcome::Unsupported);
            let notice = pace.unsupported();
            if notice == Notice::First {
                warn!(reason, "manager does not support rules; upgrade it");
            }
            (notice, SyncState::Unsupported)
        } else {
            self.context.metrics.round(RoundOutcome::Failed);
            memory.client = None;
            let notice = pace.failed();
            let code = status.code();
            if notice == Notice::First {
                warn!(%code, reason, "failed to synchronize rules; retrying");
            } else {
                debug!(%code, reason, "failed to synchronize rules; retrying");
            }
            (notice, SyncState::Unreachable(memory.last_success))
        };
        if notice != Notice::None {
            self.report_unreachable(memory, &state).await;
        }
    }

    /// Compares both clusters. Returns whether anything was written in the infrastructure cluster.
    async fn round(&self, memory: &mut Memory) -> Result<bool, Status> {
        let client = self.client(memory).await?;
        let listed = client.list().await?;
        let rules = self.store.all();
        let now = self.context.environment.clock.now();
        memory.retain(&rules.iter().filter_map(|rule| rule.uid()).collect(), now);
        let (remembered, new) = (&memory.rules, &RuleMemory::default());
        let results: Vec<_> = futures::stream::iter(rules.iter().cloned())
            .map(|rule| {
                let (client, listed) = (&client, listed.get(&rule.name_any()));
                let remembered = rule.uid().and_then(|uid| remembered.get(&uid)).unwrap_or(new);
                async move {
                    let result = self.reconcile(client, &rule, listed, remembered).await;
                    (rule, result)
                }
            })
            .buffer_unordered(self.concurrency.max(1))
            .collect()
            .await;
        let now = self.context.environment.clock.now();
        let mut wrote = false;
        let mut unauthenticated = None;
        for (rule, result) in results {
            let generation = rule.metadata.generation.unwrap_or_default();
            if let Err(CallError { status, .. }) = &result {
                let reason = sanitize::message(status.message());
                debug!(rule = %rule.name_any(), code = %status.code(), reason, "failed to synchronize rule; retrying");
            }
            let remembered = memory.rules.entry(rule.uid().unwrap_or_default()).or_default();
            let (state, what) = match remembered.record(generation, result, now) {
                Ok(recorded) => recorded,
                Err(status) => {
                    // The results of the other rules are recorded nevertheless.
                    unauthenticated.get_or_insert(status);
                    continue;
                }
            };
            let written = what != Wrote::Nothing;
            wrote |= written;
            let Some(state) = state else { continue };
            if !written {
                if matches!(state, SyncState::Synced(_)) {
                    remembered.ineffective = None;
                }
                // The status of a rule that was just written is reported by the next round.
                self.report(memory, &rule, &state).await;
            } else if !remembered.is_written(generation) {
                // An old list says nothing of what the manager keeps.
                let listed = listed.get(&rule.name_any()).filter(|_| what == Wrote::Rule);
                let before = remembered.ineffective.take();
                remembered.ineffective =
                    listed.map(|listed| IneffectiveWrites::count(before.as_ref(), generation, listed, now));
                remembered.written = Some((generation, now + LIST_DELAY));
            }
        }
        match unauthenticated {
            Some(status) => Err(status),
            None => Ok(self.delete_orphans(&client, &rules, &listed).await? || wrote),
        }
    }

    /// Returns the client of the manager's service, after connecting if necessary.
    async fn client(&self, memory: &mut Memory) -> Result<RuleClient, Status> {
        if let Some(client) = &memory.client {
            return Ok(client.clone());
        }
        let channel = self.context.connector.connect().await;
        let channel = channel.map_err(|e| Status::unavailable(format!("{e:#}")))?;
        // The manager may have been upgraded.
        memory.rules.values_mut().for_each(|rule| rule.ineffective = None);
        Ok(memory.client.insert(RuleClient::new(channel, self.context.tenant.clone())).clone())
    }

    /// Deletes rules of the infrastructure cluster that an agent of this tenant created from rules that no longer exist.
    /// Returns whether any was deleted.
    async fn delete_orphans(
        &self,
        client: &RuleClient,
        rules: &[Arc<WorkloadRule>],
        listed: &BTreeMap<String, v1::Rule>,
    ) -> Result<bool, Status> {
        let names: HashSet<String> = rules.iter().map(|rule| rule.name_any()).collect();
        let orphans = listed.iter().filter(|(id, rule)| {
            !names.contains(*id) && (!rule.origin.is_empty() || fault("rule-of-others-is-an-orphan"))
        });
        let mut wrote = false;
        for (id, rule) in orphans.take(MAX_ORPHANS) {
            if !self.is_deleted(id).await {
                continue;
            }
            match client.delete(id.clone(), rule.etag.clone()).await {
                Ok(()) => {
                    info!(rule = %id, origin = sanitize::message(&rule.origin), "deleted orphaned rule in the infrastructure cluster");
                    wrote = true;
                }
                Err(status) if status.code() == Code::Unauthenticated => return Err(status),
                Err(status) => {
                    let (code, reason) = (status.code(), sanitize::message(status.message()));
                    debug!(rule = %id, %code, reason, "failed to delete orphaned rule; retrying");
                }
            }
        }
        Ok(wrote)
    }

    /// Whether the tenant's cluster has no rule of this name. It reads the API server, because the cache may be stale.
    async fn is_deleted(&self, name: &str) -> bool {
        // The name becomes a part of a URL path.
        if RuleName::new(name).is_err() {
            return false;
        }
        match found(self.api().get_metadata(name).await) {
            Ok(rule) => rule.is_none(),
            Err(error) => {
                debug!(rule = name, %error, "failed to read rule");
                false
            }
        }
    }

    fn api(&self) -> Api<WorkloadRule> {
        Api::namespaced(self.context.client.clone(), &self.namespace)
    }
}

#[cfg(test)]
mod tests;
