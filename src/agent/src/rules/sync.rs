//! Rounds.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use jiff::Timestamp;
use kube::api::{Api, Patch, PatchParams};
use kube::{Client, Resource, ResourceExt};
use outrigger_api::{WorkloadRule, rule_wire};
use outrigger_core::{keys, validate};
use outrigger_proto::v1::workload_rule_service_client::WorkloadRuleServiceClient;
use outrigger_proto::{TENANT_ID, v1};
use outrigger_runtime::events::Events;
use outrigger_runtime::telemetry::inject_metadata;
use serde_json::json;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tonic::metadata::AsciiMetadataValue;
use tonic::transport::Channel;
use tonic::{Code, Request, Status};
use tracing::{Instrument, debug, debug_span, info, warn};

use super::RuleStore;
use super::pace::{Pace, Told};
use super::skew::{self, Stubborn};
use super::status::{Found, compute};
use crate::connect::Link;
use crate::metrics::{Metrics, Round};

/// Largest answer that is read: a brief list of a thousand rules with their conditions has about 2 MiB.
const MAX_ANSWER: usize = 64 << 20;
/// How long the manager's list may not show what has just been written: it is made from a watch.
const SHOWN: Duration = Duration::from_secs(3);
/// What is refused without asking, and so looked at anew in each round.
const FOUND_HERE: [&str; 2] = [NAME_TAKEN, MANAGER_TOO_OLD];
const NAME_TAKEN: &str = "NameTaken";
const MANAGER_TOO_OLD: &str = "ManagerTooOld";
/// How often a finalizer is taken off while others write the same rule.
const ATTEMPTS: usize = 5;
/// How long a write that was not answered may still be carried out: the manager gives its own call half of this.
const UNSURE: Duration = Duration::from_secs(60);
/// How long a rule that was refused is left alone, unless it changes.
const REFUSED_PAUSE: Duration = Duration::from_secs(60);

/// Keeps the rules of both clusters the same.
pub struct Syncer {
    /// The tenant's own cluster.
    pub client: Client,
    /// The namespace of its rules.
    pub namespace: String,
    /// What the watch shows of it.
    pub store: Arc<RuleStore>,
    /// Tells the tenant.
    pub events: Events,
    /// The way to the manager.
    pub link: Link,
    /// The tenant.
    pub tenant: AsciiMetadataValue,
    /// Time between two rounds when nothing happens.
    pub interval: Duration,
    /// Rules that are worked on at once.
    pub at_once: usize,
    /// Cancelled when the process ends.
    pub drain: CancellationToken,
    /// Counts.
    pub metrics: Metrics,
}

/// What is remembered between rounds.
#[derive(Default)]
struct Memory {
    client: Option<WorkloadRuleServiceClient<Channel>>,
    reached: Option<Timestamp>,
    /// Rules that the infrastructure cluster has refused: by uid, the generation, the words, and until when.
    refused: HashMap<String, (i64, Found, Instant)>,
    /// Rules that have been written: by uid, the generation, and until when a list may not show it yet.
    written: HashMap<String, (i64, Instant)>,
    /// Rules of which the manager keeps only a part.
    stubborn: Stubborn,
    /// Rules that were written without an answer: by uid, until when that may still be carried out.
    unsure: HashMap<String, Instant>,
}

impl Memory {
    /// Whether the rule may still appear in the infrastructure cluster by a write that was not answered.
    fn is_unsure(&self, uid: &str) -> bool {
        self.unsure.get(uid).is_some_and(|until| *until > Instant::now())
    }
}

/// A rule could not be dealt with, for a reason that is the link's.
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
        let mut memory = Memory::default();
        let mut pace = Pace::default();
        loop {
            match self.round(&mut memory).await {
                Ok(wrote) => {
                    self.metrics.round(Round::Ok);
                    memory.reached = Some(Timestamp::now());
                    pace.went(wrote);
                }
                Err(status) if status.code() == Code::Unimplemented => {
                    // An older manager. The workload stream is another matter, and goes on. The connection is kept: it ends
                    // with this manager, and a new one is asked on a new one.
                    self.metrics.round(Round::Unsupported);
                    let told = pace.unsupported();
                    if told == Told::First {
                        warn!(reason = status.message(), "the manager takes no rules from here; upgrade it");
                    }
                    if told != Told::No {
                        self.out_of_reach(&Found::Unsupported).await;
                    }
                }
                Err(status) => {
                    self.metrics.round(Round::Failed);
                    memory.client = None;
                    let told = pace.failed();
                    let (code, message) = (status.code(), status.message());
                    if told == Told::First {
                        warn!(?code, reason = message, "rules can't be synced; trying on");
                    } else {
                        debug!(?code, reason = message, "a round failed");
                    }
                    if told != Told::No {
                        self.out_of_reach(&Found::LinkDown(memory.reached)).await;
                    }
                }
            }
            tokio::select! {
                () = tokio::time::sleep(pace.pause(self.interval)) => {}
                () = self.store.changed() => {
                    // Whoever applies many rules applies them one after the other.
                    tokio::time::sleep(Duration::from_millis(20)).await;
                    pace.changed();
                }
                () = self.drain.cancelled() => return,
            }
        }
    }

    /// One comparison of both sides. Whether anything was written in the infrastructure cluster.
    async fn round(&self, memory: &mut Memory) -> Result<bool, Status> {
        let client = match &memory.client {
            Some(client) => client.clone(),
            None => {
                let channel = self.link.connect().await.map_err(|e| Status::unavailable(format!("{e:#}")))?;
                // Maybe another manager, of a later version.
                memory.stubborn = Stubborn::default();
                let client = WorkloadRuleServiceClient::new(channel).max_decoding_message_size(MAX_ANSWER);
                memory.client.insert(client).clone()
            }
        };
        let list = v1::ListRequest { brief: true, ..v1::ListRequest::default() };
        let answer = client.clone().list(self.about(list)).await?.into_inner();
        let there: BTreeMap<String, v1::Rule> =
            answer.rules.into_iter().map(|rule| (rule.id.clone(), rule)).collect();
        let here = self.store.all();
        let uids: HashSet<String> = here.iter().filter_map(|rule| rule.uid()).collect();
        memory.refused.retain(|uid, _| uids.contains(uid));
        let now = Instant::now();
        memory.written.retain(|uid, (_, until)| uids.contains(uid) && *until > now);
        memory.stubborn.retain(&uids);
        memory.unsure.retain(|uid, until| uids.contains(uid) && *until > now);
        let known = &*memory;
        let results: Vec<_> = futures::stream::iter(here.iter().cloned())
            .map(|rule| {
                let (client, there) = (client.clone(), there.get(&rule.name_any()));
                async move {
                    let result = self.one(client, &rule, there, known).await;
                    (rule, result)
                }
            })
            .buffer_unordered(self.at_once.max(1))
            .collect()
            .await;
        let mut wrote = false;
        let mut lost = None;
        for (rule, result) in results {
            let uid = rule.uid().unwrap_or_default();
            let (found, written) = match result {
                Ok(result) => result,
                Err(failed) => {
                    if failed.unsure {
                        memory.unsure.insert(uid, Instant::now() + UNSURE);
                    }
                    // What is known of the others is taken in all the same.
                    lost.get_or_insert(failed.status);
                    continue;
                }
            };
            wrote |= written;
            let generation = rule.metadata.generation.unwrap_or_default();
            let known = memory.written.get(&uid).is_some_and(|(of, _)| *of == generation);
            match there.get(&rule.name_any()) {
                // Not what is only remembered as written.
                Some(shown) if written && !known => memory.stubborn.wrote(&uid, generation, shown, now),
                _ if matches!(found, Found::Synced(_)) && !written => memory.stubborn.kept(&uid),
                _ => {}
            }
            if written && !known {
                memory.written.insert(uid.clone(), (generation, Instant::now() + SHOWN));
            }
            match &found {
                Found::Refused(reason, _) if !FOUND_HERE.contains(reason) => {
                    // What was only remembered isn't remembered for longer.
                    let fresh = |(of, _, until): &(i64, Found, Instant)| *of == generation && *until > now;
                    if !memory.refused.get(&uid).is_some_and(fresh) {
                        memory
                            .refused
                            .insert(uid, (generation, found.clone(), Instant::now() + REFUSED_PAUSE));
                    }
                }
                _ => {
                    memory.refused.remove(&uid);
                }
            }
            // Of what was just written the next round has more to tell.
            if !written {
                self.tell(&rule, &found).await;
            }
        }
        if let Some(status) = lost {
            return Err(status);
        }
        // What an agent of this tenant has made, and nobody asks for any more.
        let names: HashSet<String> = here.iter().map(|rule| rule.name_any()).collect();
        for (id, rule) in there.iter().filter(|(id, rule)| !rule.origin.is_empty() && !names.contains(*id)) {
            if !self.is_gone(id).await {
                continue;
            }
            info!(rule = %id, origin = rule.origin, "deleted: it isn't in the tenant's cluster any more");
            client.clone().delete(self.about(v1::DeleteRequest { id: id.clone() })).await?;
            wrote = true;
        }
        Ok(wrote)
    }

    /// Whether the tenant's cluster has no rule of this name, asked past the cache: that the cache lacks it may only mean that
    /// its watch is behind.
    async fn is_gone(&self, name: &str) -> bool {
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

    /// Makes one rule there what it is here. An error is one of the link; what is wrong with the rule itself is a finding.
    async fn one(
        &self,
        mut client: WorkloadRuleServiceClient<Channel>,
        rule: &WorkloadRule,
        there: Option<&v1::Rule>,
        memory: &Memory,
    ) -> Result<(Found, bool), Lost> {
        let (name, uid) = (rule.name_any(), rule.uid().unwrap_or_default());
        let has_finalizer = rule.finalizers().iter().any(|f| f == keys::RULE_FINALIZER);
        if rule.metadata.deletion_timestamp.is_some() {
            let ours = match there {
                Some(there) => skew::is_ours(there, has_finalizer),
                // The list may be behind.
                None if has_finalizer => {
                    self.look_up(&mut client, &name).await?.is_some_and(|found| skew::is_ours(&found, true))
                }
                None => false,
            };
            if ours {
                let span = debug_span!("sync rule", verb = "delete", otel.kind = "client");
                let call = async { client.delete(self.about(v1::DeleteRequest { id: name })).await };
                call.instrument(span).await?;
            }
            if has_finalizer && !memory.is_unsure(&uid) {
                self.finalizer(rule, false).await;
            }
            return Ok((Found::Synced(None), ours));
        }
        if let Some(theirs) = there.filter(|there| !skew::is_ours(there, has_finalizer)) {
            let message = format!(
                "there is a rule {} in the infrastructure cluster that did not come from here; delete it there, or choose \
                 another name",
                theirs.id
            );
            return Ok((Found::Refused(NAME_TAKEN, message), false));
        }
        let excess = rule.excess();
        if !excess.is_empty() {
            return Ok((Found::Refused("Invalid", validate::message(&excess)), false));
        }
        let message = v1::Rule { origin: uid.clone(), ..rule_wire::message(rule) };
        if let Some(there) = there.filter(|there| skew::is_same(there, &message)) {
            return Ok((Found::Synced(there.status.clone()), false));
        }
        let generation = rule.metadata.generation.unwrap_or_default();
        if memory.written.get(&uid).is_some_and(|(of, _)| *of == generation) {
            return Ok((Found::Synced(None), true));
        }
        if let Some((of, found, until)) = memory.refused.get(&uid)
            && *of == generation
            && *until > Instant::now()
        {
            return Ok((found.clone(), false));
        }
        if there.is_some_and(|there| memory.stubborn.is(&uid, generation, there, Instant::now())) {
            return Ok((Found::Refused(MANAGER_TOO_OLD, skew::KEPT_IN_PART.to_owned()), false));
        }
        // Before it is made: else nobody would take it out again if this were deleted meanwhile.
        if !has_finalizer && !self.finalizer(rule, true).await {
            return Ok((Found::Synced(None), false));
        }
        let rule = Some(v1::Rule { revision: String::new(), status: None, ..message });
        let span = debug_span!(
            "sync rule",
            verb = if there.is_none() { "create" } else { "update" },
            otel.kind = "client"
        );
        let call = async {
            match there {
                None => client.create(self.about(v1::CreateRequest { rule })).await.map(drop),
                Some(_) => client.update(self.about(v1::UpdateRequest { rule })).await.map(drop),
            }
        };
        match call.instrument(span).await {
            Ok(()) => Ok((Found::Synced(None), true)),
            Err(status) if status.code() == Code::AlreadyExists && !has_finalizer => {
                if self.look_up(&mut client, &name).await?.is_some_and(|found| found.origin == uid) {
                    // An earlier call has made it, without an answer.
                    return Ok((Found::Synced(None), true));
                }
                // Somebody else's, made since the list was. With our finalizer it would pass for ours with a manager that
                // doesn't tell whose its rules are. The next round says whose it is.
                self.let_go(&name).await;
                Ok((Found::Synced(None), false))
            }
            Err(status) => {
                let unsure = !is_definite(status.code());
                finding(status).map(|found| (found, false)).map_err(|status| Lost { status, unsure })
            }
        }
    }

    /// The rule of this name in the infrastructure cluster, asked past all caches.
    async fn look_up(
        &self,
        client: &mut WorkloadRuleServiceClient<Channel>,
        name: &str,
    ) -> Result<Option<v1::Rule>, Status> {
        match client.get(self.about(v1::GetRequest { id: name.to_owned() })).await {
            Ok(answer) => Ok(answer.into_inner().rule),
            // A manager that has no such call tells as little as one that has no such rule: only its list counts then.
            Err(status) if matches!(status.code(), Code::NotFound | Code::Unimplemented) => Ok(None),
            Err(status) => Err(status),
        }
    }

    /// Puts our finalizer on a rule of the tenant's cluster, or takes it off. Whether that worked; if not, the next round
    /// tries again.
    async fn finalizer(&self, rule: &WorkloadRule, add: bool) -> bool {
        let mut all: Vec<&str> =
            rule.finalizers().iter().map(String::as_str).filter(|f| *f != keys::RULE_FINALIZER).collect();
        if add {
            all.push(keys::RULE_FINALIZER);
        }
        // The list is replaced as a whole: only if nobody has changed it meanwhile.
        let patch = json!({"metadata": {"uid": rule.uid(), "resourceVersion": rule.resource_version(), "finalizers": all}});
        match self.api().patch(&rule.name_any(), &params(), &Patch::Merge(&patch)).await {
            Ok(rule) => {
                self.store.learn(rule);
                true
            }
            Err(error) => {
                debug!(rule = %rule.name_any(), %error, "its finalizers will be written later");
                false
            }
        }
    }

    /// Takes our finalizer off a rule again that has just got it, and doesn't give up because others write the rule too.
    async fn let_go(&self, name: &str) {
        for _ in 0..ATTEMPTS {
            match self.api().get_opt(name).await {
                Ok(Some(rule)) if rule.finalizers().iter().any(|f| f == keys::RULE_FINALIZER) => {
                    if self.finalizer(&rule, false).await {
                        return;
                    }
                }
                Ok(_) => return,
                Err(error) => debug!(rule = name, %error, "it can't be read"),
            }
        }
        warn!(
            rule = name,
            "the name is taken in the infrastructure cluster, and the finalizer is still there"
        );
    }

    /// Writes a rule's status in the tenant's cluster, if it is another.
    async fn tell(&self, rule: &WorkloadRule, found: &Found) {
        let status = compute(rule, found, Timestamp::now());
        if rule.status.as_ref() == Some(&status) || rule.metadata.deletion_timestamp.is_some() {
            return;
        }
        let patch = json!({"metadata": {"uid": rule.uid()}, "status": status});
        match self.api().patch_status(&rule.name_any(), &params(), &Patch::Merge(&patch)).await {
            Ok(written) => {
                let before = rule.status.clone().unwrap_or_default();
                for (reason, message) in status.news(&before) {
                    self.events.publish(true, reason, "SyncRule", &message, &rule.object_ref(&())).await;
                }
                self.store.learn(written);
            }
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {}
            Err(error) => warn!(rule = %rule.name_any(), %error, "its status could not be written"),
        }
    }

    /// Nothing can be written in the infrastructure cluster: rules say so, and those that are given up may go.
    async fn out_of_reach(&self, why: &Found) {
        for rule in self.store.all() {
            if rule.metadata.deletion_timestamp.is_none() {
                self.tell(&rule, why).await;
            } else if rule.annotations().contains_key(keys::ABANDON)
                && rule.finalizers().iter().any(|f| f == keys::RULE_FINALIZER)
            {
                warn!(rule = %rule.name_any(), "abandoned: it may still be in the infrastructure cluster");
                self.finalizer(&rule, false).await;
            }
        }
    }

    fn api(&self) -> Api<WorkloadRule> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    fn about<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        request.metadata_mut().insert(TENANT_ID, self.tenant.clone());
        request.set_timeout(Duration::from_secs(30));
        inject_metadata(request.metadata_mut());
        request
    }
}

fn params() -> PatchParams {
    PatchParams { field_manager: Some(keys::AGENT.to_owned()), ..PatchParams::default() }
}

/// What an answer says about the rule; what it says about the link is an error.
fn finding(status: Status) -> Result<Found, Status> {
    let message = status.message().to_owned();
    match status.code() {
        Code::InvalidArgument | Code::OutOfRange => Ok(Found::Refused("Invalid", message)),
        Code::ResourceExhausted => Ok(Found::Refused("LimitReached", message)),
        Code::AlreadyExists | Code::NotFound | Code::Aborted => {
            // Somebody else has made or deleted it since the list was made. The next round sees how it is.
            Ok(Found::Synced(None))
        }
        _ => Err(status),
    }
}

/// Whether a write that ended so was not carried out, and will not be.
fn is_definite(code: Code) -> bool {
    matches!(
        code,
        Code::InvalidArgument
            | Code::OutOfRange
            | Code::ResourceExhausted
            | Code::AlreadyExists
            | Code::NotFound
            | Code::PermissionDenied
            | Code::Unauthenticated
            | Code::FailedPrecondition
            | Code::Unimplemented
    )
}

#[cfg(test)]
mod tests;
