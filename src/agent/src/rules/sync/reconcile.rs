//! Synchronization of one rule.

use kube::ResourceExt;
use kube::api::Patch;
use outrigger_api::{WorkloadRule, rule_wire};
use outrigger_core::{fault, keys, validate};
use outrigger_proto::v1;
use serde_json::json;
use tonic::{Code, Status};
use tracing::{Instrument, debug, debug_span, warn};

use super::super::sanitize;
use super::super::skew;
use super::super::status::SyncState;
use super::super::wire::RuleClient;
use super::{CallError, RuleMemory, RuleResult, Syncer, Wrote};
use crate::{annotations, writes};

/// Reasons of rejections by the agent itself, which are determined again in each round.
pub(super) const LOCAL_REASONS: [&str; 2] = [NAME_TAKEN, MANAGER_TOO_OLD];
const NAME_TAKEN: &str = "NameTaken";
const MANAGER_TOO_OLD: &str = "ManagerTooOld";
/// Attempts to remove a finalizer despite conflicting writes.
const MAX_ATTEMPTS: usize = 5;

impl Syncer {
    /// Makes the infrastructure cluster's rule equal to the tenant's. Errors of the rule are states; other errors concern the
    /// connection or the manager.
    pub(super) async fn reconcile(
        &self,
        client: &RuleClient,
        rule: &WorkloadRule,
        listed: Option<&v1::Rule>,
        remembered: &RuleMemory,
    ) -> RuleResult {
        let now = self.context.environment.clock.now();
        let has_finalizer = has_finalizer(rule);
        if rule.metadata.deletion_timestamp.is_some() {
            return self.delete(client, rule, listed, remembered).await;
        }
        if let Some(other) = listed.filter(|listed| !skew::is_owned(listed, has_finalizer)) {
            let message = format!(
                "the infrastructure cluster has another rule {} that was not created from this cluster; delete that rule, or use \
                 another name",
                other.id
            );
            return Ok((SyncState::Rejected(NAME_TAKEN, message), Wrote::Nothing));
        }
        let excess = rule.excess();
        if !excess.is_empty() {
            return Ok((SyncState::Rejected("Invalid", validate::message(&excess)), Wrote::Nothing));
        }
        let message = v1::Rule { origin: rule.uid().unwrap_or_default(), ..rule_wire::message(rule) };
        if let Some(listed) = listed.filter(|listed| skew::is_current(listed, &message)) {
            return Ok((SyncState::Synced(listed.status.clone()), Wrote::Nothing));
        }
        let generation = rule.metadata.generation.unwrap_or_default();
        if remembered.is_written(generation) {
            return Ok((SyncState::Synced(None), Wrote::Rule));
        }
        if let Some(state) = remembered.rejection(generation, now) {
            return Ok((state.clone(), Wrote::Nothing));
        }
        if let (Some(writes), Some(listed)) = (&remembered.ineffective, listed)
            && writes.is_final(generation, listed, now)
        {
            return Ok((
                SyncState::Rejected(MANAGER_TOO_OLD, skew::PARTLY_STORED.to_owned()),
                Wrote::Nothing,
            ));
        }
        let has_sent = self.workloads.has_sent_annotations(annotations::keys_of(rule));
        if !has_sent && !fault("rule-is-written-before-its-annotations") {
            return Ok((SyncState::AwaitingAnnotations, Wrote::Nothing));
        }
        // The finalizer precedes the creation: otherwise the created rule would be orphaned if this one were deleted meanwhile.
        if !has_finalizer && !self.set_finalizer(rule, true).await {
            return Ok((SyncState::Synced(None), Wrote::Nothing));
        }
        // Before a manager counts as one that drops fields, it is asked what it stores: a list may be old for as long as a watch stands still.
        let counted = remembered.ineffective.as_ref().zip(listed);
        let is_last = counted.is_some_and(|(writes, listed)| writes.is_last(generation, listed));
        let asked = is_last.then(|| message.clone());
        let (state, mut wrote) = self.write(client, message, listed, has_finalizer).await?;
        if wrote == Wrote::Rule
            && let Some(sent) = asked
            && let Ok(Some(stored)) = read(client, &sent.id).await
            && skew::is_current(&stored, &sent)
        {
            wrote = Wrote::Kept;
        }
        Ok((state, wrote))
    }

    /// Creates or updates the infrastructure cluster's rule.
    async fn write(
        &self,
        client: &RuleClient,
        rule: v1::Rule,
        listed: Option<&v1::Rule>,
        has_finalizer: bool,
    ) -> RuleResult {
        let (name, uid) = (rule.id.clone(), rule.origin.clone());
        let rule = v1::Rule { revision: String::new(), etag: String::new(), status: None, ..rule };
        let verb = if listed.is_some() { "update" } else { "create" };
        let span = debug_span!("sync rule", verb, otel.kind = "client");
        let call = async {
            match listed {
                Some(listed) => update(client, &rule, &listed.etag, has_finalizer).await,
                None => client.create(Some(rule)).await,
            }
        };
        match call.instrument(span).await {
            Ok(()) => Ok((SyncState::Synced(None), Wrote::Rule)),
            Err(status) if status.code() == Code::AlreadyExists && !has_finalizer => {
                if read(client, &name).await?.is_some_and(|rule| rule.origin == uid) {
                    // An earlier call without a response has created it.
                    return Ok((SyncState::Synced(None), Wrote::Rule));
                }
                // Another client has created it since the list was made. With the finalizer it would count as owned for a
                // manager that doesn't report origins. The next list reports the conflict. It is waited for as after a write: while a
                // manager's cache is stale, each attempt would write the finalizer twice.
                self.remove_finalizer(&name).await;
                Ok((SyncState::Synced(None), Wrote::Rule))
            }
            Err(status) => {
                let unconfirmed = !is_definite(status.code());
                let state = state_of(status).map_err(|status| CallError { status, unconfirmed })?;
                Ok((state, Wrote::Nothing))
            }
        }
    }

    /// Deletes the infrastructure cluster's rule of a rule that is being deleted, then removes the finalizer.
    async fn delete(
        &self,
        client: &RuleClient,
        rule: &WorkloadRule,
        listed: Option<&v1::Rule>,
        remembered: &RuleMemory,
    ) -> RuleResult {
        let (name, has_finalizer) = (rule.name_any(), has_finalizer(rule));
        let owned = match listed {
            Some(listed) => Some(listed.clone()),
            // The list may be stale.
            None if has_finalizer => read(client, &name).await?,
            None => None,
        }
        .filter(|found| skew::is_owned(found, has_finalizer));
        let is_owned = owned.is_some();
        if let Some(found) = owned {
            let span = debug_span!("sync rule", verb = "delete", otel.kind = "client");
            delete(client, &name, &found.etag, has_finalizer).instrument(span).await?;
        }
        let unconfirmed =
            remembered.unconfirmed.is_some_and(|until| until > self.context.environment.clock.now());
        if has_finalizer && !unconfirmed {
            self.set_finalizer(rule, false).await;
        }
        Ok((SyncState::Synced(None), if is_owned { Wrote::Rule } else { Wrote::Nothing }))
    }

    /// Adds the finalizer to a rule of the tenant's cluster, or removes it. Returns whether that succeeded; otherwise the next
    /// round retries.
    pub(super) async fn set_finalizer(&self, rule: &WorkloadRule, add: bool) -> bool {
        let mut all: Vec<&str> =
            rule.finalizers().iter().map(String::as_str).filter(|f| *f != keys::RULE_FINALIZER).collect();
        if add {
            all.push(keys::RULE_FINALIZER);
        }
        // The patch replaces the whole list, so it must fail if another client has changed the list.
        let patch = json!({"metadata": {"uid": rule.uid(), "resourceVersion": rule.resource_version(), "finalizers": all}});
        match self.api().patch(&rule.name_any(), &writes::patch(), &Patch::Merge(&patch)).await {
            Ok(rule) => {
                self.store.apply_response(rule);
                true
            }
            Err(error) => {
                debug!(rule = %rule.name_any(), %error, "failed to write finalizers; retrying");
                false
            }
        }
    }

    /// Removes the finalizer from a rule despite conflicting writes.
    async fn remove_finalizer(&self, name: &str) {
        for _ in 0..MAX_ATTEMPTS {
            match self.api().get_opt(name).await {
                Ok(Some(rule)) if has_finalizer(&rule) => {
                    if self.set_finalizer(&rule, false).await {
                        return;
                    }
                }
                Ok(_) => return,
                Err(error) => debug!(rule = name, %error, "failed to read rule"),
            }
        }
        warn!(
            rule = name,
            "failed to remove the finalizer of a rule whose name exists in the infrastructure cluster"
        );
    }
}

pub(super) fn has_finalizer(rule: &WorkloadRule) -> bool {
    rule.finalizers().iter().any(|f| f == keys::RULE_FINALIZER)
}

/// Replaces the version of a rule that has this etag, or the current one if that is another: the list may be older than this agent's
/// own last write. The etag is of no use to this agent, which knows the newest rule. It ends a call that is executed late, after
/// this agent was killed and its successor has written.
async fn update(client: &RuleClient, rule: &v1::Rule, etag: &str, has_finalizer: bool) -> Result<(), Status> {
    let with = |etag: &str| Some(v1::Rule { etag: etag.to_owned(), ..rule.clone() });
    let Err(status) = client.update(with(etag)).await else { return Ok(()) };
    match current(client, &rule.id, etag, has_finalizer, &status).await? {
        Some(found) => client.update(with(&found.etag)).await,
        None => Err(status),
    }
}

/// Deletes a rule in the same way.
async fn delete(client: &RuleClient, name: &str, etag: &str, has_finalizer: bool) -> Result<(), Status> {
    let Err(status) = client.delete(name.to_owned(), etag.to_owned()).await else { return Ok(()) };
    match current(client, name, etag, has_finalizer, &status).await? {
        Some(found) => client.delete(name.to_owned(), found.etag).await,
        None => Err(status),
    }
}

/// The current version of a rule of this agent, if a call has failed because it was about another version.
async fn current(
    client: &RuleClient,
    name: &str,
    etag: &str,
    has_finalizer: bool,
    status: &Status,
) -> Result<Option<v1::Rule>, Status> {
    if status.code() != Code::Aborted || etag.is_empty() {
        return Ok(None);
    }
    let found = read(client, name).await?;
    Ok(found.filter(|found| found.etag != etag && skew::is_owned(found, has_finalizer)))
}

/// Reads a rule of the infrastructure cluster, bypassing the manager's caches.
async fn read(client: &RuleClient, name: &str) -> Result<Option<v1::Rule>, Status> {
    match client.get(name.to_owned()).await {
        Ok(rule) => Ok(rule),
        // A manager without this call only has its list.
        Err(status) if matches!(status.code(), Code::NotFound | Code::Unimplemented) => Ok(None),
        Err(status) => Err(status),
    }
}

/// Returns the state of a rule whose write failed. Fails if the status is not about the rule.
fn state_of(status: Status) -> Result<SyncState, Status> {
    let message = sanitize::message(status.message());
    match status.code() {
        Code::InvalidArgument | Code::OutOfRange => Ok(SyncState::Rejected("Invalid", message)),
        Code::ResourceExhausted => Ok(SyncState::Rejected("LimitReached", message)),
        // The list succeeded, so the agent is authorized, but a policy rejects this rule.
        Code::PermissionDenied => Ok(SyncState::Rejected("Forbidden", message)),
        Code::AlreadyExists | Code::NotFound | Code::Aborted => {
            // Another client has created or deleted the rule since the list was made. The next round compares again.
            Ok(SyncState::Synced(None))
        }
        _ => Err(status),
    }
}

/// Whether a write with this status has not been executed and will not be.
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
