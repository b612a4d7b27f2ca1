//! One rule: makes it there what it is here.

use kube::ResourceExt;
use kube::api::Patch;
use outrigger_api::{WorkloadRule, rule_wire};
use outrigger_core::{keys, validate};
use outrigger_proto::v1;
use serde_json::json;
use tonic::{Code, Status};
use tracing::{Instrument, debug, debug_span, warn};

use super::super::sanitize;
use super::super::skew;
use super::super::status::Found;
use super::super::wire::Rules;
use super::{Lost, Memory, Syncer, Turn, params};
use crate::annotations;

/// What is refused without asking, and so looked at anew in each round.
pub(super) const FOUND_HERE: [&str; 2] = [NAME_TAKEN, MANAGER_TOO_OLD];
const NAME_TAKEN: &str = "NameTaken";
const MANAGER_TOO_OLD: &str = "ManagerTooOld";
/// How often a finalizer is taken off while others write the same rule.
const ATTEMPTS: usize = 5;

impl Syncer {
    /// Makes one rule there what it is here. An error is one of the link; what is wrong with the rule itself is a finding.
    pub(super) async fn one(
        &self,
        client: &Rules,
        rule: &WorkloadRule,
        there: Option<&v1::Rule>,
        memory: &Memory,
    ) -> Turn {
        let (name, uid) = (rule.name_any(), rule.uid().unwrap_or_default());
        let has_finalizer = rule.finalizers().iter().any(|f| f == keys::RULE_FINALIZER);
        if rule.metadata.deletion_timestamp.is_some() {
            let ours = match there {
                Some(there) => skew::is_ours(there, has_finalizer),
                // The list may be behind.
                None if has_finalizer => {
                    look_up(client, &name).await?.is_some_and(|found| skew::is_ours(&found, true))
                }
                None => false,
            };
            if ours {
                let span = debug_span!("sync rule", verb = "delete", otel.kind = "client");
                client.delete(name).instrument(span).await?;
            }
            if has_finalizer && !memory.is_unsure(&uid, self.context.environment.clock.now()) {
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
            && *until > self.context.environment.clock.now()
        {
            return Ok((found.clone(), false));
        }
        if there.is_some_and(|there| {
            memory.stubborn.is(&uid, generation, there, self.context.environment.clock.now())
        }) {
            return Ok((Found::Refused(MANAGER_TOO_OLD, skew::KEPT_IN_PART.to_owned()), false));
        }
        if !self.workloads.tells(annotations::named(rule)) {
            return Ok((Found::Waits, false));
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
                None => client.create(rule).await,
                Some(_) => client.update(rule).await,
            }
        };
        match call.instrument(span).await {
            Ok(()) => Ok((Found::Synced(None), true)),
            Err(status) if status.code() == Code::AlreadyExists && !has_finalizer => {
                if look_up(client, &name).await?.is_some_and(|found| found.origin == uid) {
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

    /// Puts our finalizer on a rule of the tenant's cluster, or takes it off. Whether that worked; if not, the next round
    /// tries again.
    pub(super) async fn finalizer(&self, rule: &WorkloadRule, add: bool) -> bool {
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
}

/// The rule of this name in the infrastructure cluster, asked past all caches.
async fn look_up(client: &Rules, name: &str) -> Result<Option<v1::Rule>, Status> {
    match client.get(name.to_owned()).await {
        Ok(rule) => Ok(rule),
        // A manager that has no such call tells as little as one that has no such rule: only its list counts then.
        Err(status) if matches!(status.code(), Code::NotFound | Code::Unimplemented) => Ok(None),
        Err(status) => Err(status),
    }
}

/// What an answer says about the rule; an answer that isn't about the rule is an error.
fn finding(status: Status) -> Result<Found, Status> {
    let message = sanitize::message(status.message());
    match status.code() {
        Code::InvalidArgument | Code::OutOfRange => Ok(Found::Refused("Invalid", message)),
        Code::ResourceExhausted => Ok(Found::Refused("LimitReached", message)),
        // Not who we are, for the list has been told: something there doesn't want this rule.
        Code::PermissionDenied => Ok(Found::Refused("Forbidden", message)),
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
