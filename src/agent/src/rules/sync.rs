//! Rounds.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use jiff::Timestamp;
use kube::ResourceExt;
use kube::api::{Api, PatchParams};
use outrigger_api::WorkloadRule;
use outrigger_core::ids::RuleName;
use outrigger_core::keys;
use outrigger_proto::v1;
use tokio::time::Instant;
use tonic::{Code, Status};
use tracing::{debug, info, warn};

mod reconcile;
mod report;

use super::RuleStore;
use super::budget::Budget;
use super::pace::{Pace, Told};
use super::sanitize;
use super::skew::Stubborn;
use super::status::Found;
use super::wire::Rules;
use crate::context::Context;
use crate::metrics::Round;
use crate::store::Store;

/// How long the manager's list may not show what has just been written: it is made from a watch.
const SHOWN: Duration = Duration::from_secs(3);
/// How long a write that was not answered may still be carried out: the manager gives its own call half of this.
const UNSURE: Duration = Duration::from_secs(60);
/// How long a rule that was refused is left alone, unless it changes.
const REFUSED_PAUSE: Duration = Duration::from_secs(60);
/// Rules that nobody here asks for any more and that are deleted in one round. For each the tenant's own cluster is asked, and how
/// many there are is the manager's word.
const MOST_ORPHANS: usize = 50;
/// How often in a row a rule can't be dealt with before it is told: a proxy on the way may say anything for a moment.
const IN_VAIN: u32 = 3;

/// Keeps the rules of both clusters the same.
pub struct Syncer {
    /// What the parts of the agent share.
    pub context: Arc<Context>,
    /// The namespace of its rules.
    pub namespace: String,
    /// What the watch shows of it.
    pub store: Arc<RuleStore>,
    /// The workloads that the manager is told of.
    pub workloads: Arc<Store>,
    /// Time between two rounds when nothing happens.
    pub interval: Duration,
    /// Rules that are worked on at once.
    pub at_once: usize,
}

/// What is remembered between rounds.
struct Memory {
    rules: Option<Rules>,
    reached: Option<Timestamp>,
    /// Rules that the infrastructure cluster has refused: by uid, the generation, the words, and until when.
    refused: HashMap<String, (i64, Found, Instant)>,
    /// Rules that have been written: by uid, the generation, and until when a list may not show it yet.
    written: HashMap<String, (i64, Instant)>,
    /// Rules of which the manager keeps only a part.
    stubborn: Stubborn,
    /// Rules that were written without an answer: by uid, until when that may still be carried out.
    unsure: HashMap<String, Instant>,
    /// Rules that could not be dealt with: by uid, how often in a row.
    failed: HashMap<String, u32>,
    /// What may be written into statuses.
    budget: Budget,
}

impl Memory {
    fn new(now: Instant) -> Self {
        Self {
            rules: None,
            reached: None,
            refused: HashMap::default(),
            written: HashMap::default(),
            stubborn: Stubborn::default(),
            unsure: HashMap::default(),
            failed: HashMap::default(),
            budget: Budget::new(now),
        }
    }

    /// Whether the rule may still appear in the infrastructure cluster by a write that was not answered.
    fn is_unsure(&self, uid: &str, now: Instant) -> bool {
        self.unsure.get(uid).is_some_and(|until| *until > now)
    }

    /// Forgets what is over, and rules that there are no more.
    fn clean(&mut self, uids: &HashSet<String>, now: Instant) {
        self.refused.retain(|uid, _| uids.contains(uid));
        self.written.retain(|uid, (_, until)| uids.contains(uid) && *until > now);
        self.stubborn.retain(uids);
        self.unsure.retain(|uid, until| uids.contains(uid) && *until > now);
        self.failed.retain(|uid, _| uids.contains(uid));
        self.budget.retain(uids);
    }

    /// What a rule's turn has come to, which may be an error. What the tenant is told of it; `None`: nothing yet.
    ///
    /// # Errors
    /// When the manager doesn't know who is calling: then it is the same with all others.
    fn took(
        &mut self,
        uid: &str,
        generation: i64,
        result: Turn,
        now: Instant,
    ) -> Result<(Option<Found>, bool), Status> {
        match result {
            Ok((found, written)) => {
                self.failed.remove(uid);
                self.note_refusal(uid, generation, &found, now);
                Ok((Some(found), written))
            }
            Err(Lost { status, unsure }) => {
                if unsure {
                    self.unsure.insert(uid.to_owned(), now + UNSURE);
                }
                if status.code() == Code::Unauthenticated {
                    return Err(status);
                }
                let times = self.failed.entry(uid.to_owned()).or_default();
                *times = times.saturating_add(1);
                let why = format!("{:?}: {}", status.code(), sanitize::message(status.message()));
                debug!(uid, why, "a rule can't be dealt with");
                Ok(((*times >= IN_VAIN).then_some(Found::Failed(why)), false))
            }
        }
    }

    fn note_refusal(&mut self, uid: &str, generation: i64, found: &Found, now: Instant) {
        match found {
            Found::Refused(reason, _) if !reconcile::FOUND_HERE.contains(reason) => {
                // What was only remembered isn't remembered for longer.
                let fresh = |(of, _, until): &(i64, Found, Instant)| *of == generation && *until > now;
                if !self.refused.get(uid).is_some_and(fresh) {
                    self.refused.insert(uid.to_owned(), (generation, found.clone(), now + REFUSED_PAUSE));
                }
            }
            _ => drop(self.refused.remove(uid)),
        }
    }
}

/// What one rule's turn has come to, and whether it was written.
type Turn = Result<(Found, bool), Lost>;

/// A rule could not be dealt with, and the reason is not the rule.
struct Lost {
    status: Status,
    /// It was being written: whether that was carried out is unknown.
    unsure: bool,
}

impl From<Status> for Lost {
    fn from(status: Status) -> Self {
        Self { status, unsure: false }
    }
}

impl Syncer {
    /// Goes on until the process ends.
    pub async fn run(self) {
        let mut memory = Memory::new(self.context.environment.clock.now());
        let mut pace = Pace::default();
        let mut held = false;
        loop {
            match self.round(&mut memory).await {
                Ok(wrote) => {
                    self.context.metrics.round(Round::Ok);
                    memory.reached = Some(self.context.environment.clock.wall());
                    pace.went(wrote);
                }
                Err(status) if status.code() == Code::Unimplemented => {
                    // An older manager. The workload stream is another matter, and goes on. The connection is kept: it ends
                    // with this manager, and a new one is asked on a new one.
                    self.context.metrics.round(Round::Unsupported);
                    let told = pace.unsupported();
                    if told == Told::First {
                        warn!(
                            reason = sanitize::message(status.message()),
                            "the manager takes no rules from here; upgrade it"
                        );
                    }
                    if told != Told::No {
                        self.out_of_reach(&mut memory, &Found::Unsupported).await;
                    }
                }
                Err(status) => {
                    self.context.metrics.round(Round::Failed);
                    memory.rules = None;
                    let told = pace.failed();
                    let (code, message) = (status.code(), sanitize::message(status.message()));
                    if told == Told::First {
                        warn!(%code, reason = message, "failed to synchronize rules; retrying");
                    } else {
                        debug!(%code, reason = message, "still failing to synchronize rules");
                    }
                    if told != Told::No {
                        let since = Found::LinkDown(memory.reached);
                        self.out_of_reach(&mut memory, &since).await;
                    }
                }
            }
            let before = std::mem::replace(&mut held, memory.budget.held());
            if held && !before {
                warn!(
                    "what the manager tells of rules changes too often: their statuses are written at a bounded rate"
                );
            }
            tokio::select! {
                () = tokio::time::sleep(pace.pause(self.interval)) => {}
                () = self.store.changed() => {
                    // Whoever applies many rules applies them one after the other.
                    tokio::time::sleep(Duration::from_millis(20)).await;
                    pace.changed();
                }
                () = self.context.drain.cancelled() => return,
            }
        }
    }

    /// One comparison of both sides. Whether anything was written in the infrastructure cluster.
    async fn round(&self, memory: &mut Memory) -> Result<bool, Status> {
        let client = match &memory.rules {
            Some(rules) => rules.clone(),
            None => {
                let channel = self
                    .context
                    .connector
                    .connect()
                    .await
                    .map_err(|e| Status::unavailable(format!("{e:#}")))?;
                // Maybe another manager, of a later version.
                memory.stubborn = Stubborn::default();
                memory.rules.insert(Rules::new(channel, self.context.tenant.clone())).clone()
            }
        };
        let there = client.list().await?;
        let here = self.store.all();
        let now = self.context.environment.clock.now();
        memory.clean(&here.iter().filter_map(|rule| rule.uid()).collect(), now);
        let known = &*memory;
        let results: Vec<_> = futures::stream::iter(here.iter().cloned())
            .map(|rule| {
                let (client, there) = (&client, there.get(&rule.name_any()));
                async move {
                    let result = self.one(client, &rule, there, known).await;
                    (rule, result)
                }
            })
            .buffer_unordered(self.at_once.max(1))
            .collect()
            .await;
        let now = self.context.environment.clock.now();
        let mut wrote = false;
        let mut refused = None;
        for (rule, result) in results {
            let uid = rule.uid().unwrap_or_default();
            let generation = rule.metadata.generation.unwrap_or_default();
            let (found, written) = match memory.took(&uid, generation, result, now) {
                Ok(took) => took,
                Err(status) => {
                    // What is known of the others is taken in all the same.
                    refused.get_or_insert(status);
                    continue;
                }
            };
            wrote |= written;
            let Some(found) = found else { continue };
            let remembered = memory.written.get(&uid).is_some_and(|(of, _)| *of == generation);
            match there.get(&rule.name_any()) {
                // Not what is only remembered as written.
                Some(shown) if written && !remembered => memory.stubborn.wrote(&uid, generation, shown, now),
                _ if matches!(found, Found::Synced(_)) && !written => memory.stubborn.kept(&uid),
                _ => {}
            }
            if written && !remembered {
                memory.written.insert(uid, (generation, now + SHOWN));
            }
            // Of what was just written the next round has more to tell.
            if !written {
                self.tell(memory, &rule, &found).await;
            }
        }
        match refused {
            Some(status) => Err(status),
            None => Ok(self.delete_orphans(&client, &here, &there).await? || wrote),
        }
    }

    /// Deletes over there what an agent of this tenant has made, and nobody asks for any more. Whether anything was.
    async fn delete_orphans(
        &self,
        client: &Rules,
        here: &[Arc<WorkloadRule>],
        there: &BTreeMap<String, v1::Rule>,
    ) -> Result<bool, Status> {
        let names: HashSet<String> = here.iter().map(|rule| rule.name_any()).collect();
        let orphans = there.iter().filter(|(id, rule)| !rule.origin.is_empty() && !names.contains(*id));
        let mut wrote = false;
        for (id, rule) in orphans.take(MOST_ORPHANS) {
            if !self.is_gone(id).await {
                continue;
            }
            match client.delete(id.clone()).await {
                Ok(()) => {
                    info!(rule = %id, origin = sanitize::message(&rule.origin), "deleted: it isn't in the tenant's cluster any more");
                    wrote = true;
                }
                Err(status) if status.code() == Code::Unauthenticated => return Err(status),
                Err(status) => {
                    let (code, reason) = (status.code(), sanitize::message(status.message()));
                    debug!(rule = %id, ?code, reason, "it can't be deleted in the infrastructure cluster");
                }
            }
        }
        Ok(wrote)
    }

    /// Whether the tenant's cluster has no rule of this name, asked past the cache: that the cache lacks it may only mean that
    /// its watch is behind.
    async fn is_gone(&self, name: &str) -> bool {
        // It becomes a part of a path.
        if RuleName::new(name).is_err() {
            return false;
        }
        match self.api().get_metadata(name).await {
            Err(kube::Error::Api(status)) if status.code == 404 && status.reason == "NotFound" => true,
            Ok(_) => {
                debug!(rule = name, "it is in the tenant's cluster, and not in the cache yet");
                false
            }
            Err(error) => {
                debug!(rule = name, %error, "it can't be read");
                false
            }
        }
    }

    fn api(&self) -> Api<WorkloadRule> {
        Api::namespaced(self.context.client.clone(), &self.namespace)
    }
}

fn params() -> PatchParams {
    PatchParams { field_manager: Some(keys::AGENT.to_owned()), ..PatchParams::default() }
}

#[cfg(test)]
mod tests;
