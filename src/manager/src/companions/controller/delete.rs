//! The deletion of a companion.

use outrigger_core::companion::DeleteReason;
use outrigger_core::fault;
use outrigger_core::reason::Cause;
use outrigger_core::template::Kind;
use tracing::info;

use super::{Companion, CompanionLocation, STALE_PAUSE};
use crate::companions::refusal::WriteFailure;
use crate::metrics::Operation;
use crate::state::Why;
use crate::state::rollout::serves;
use crate::worker::Action;
use crate::writes;

impl Companion<'_> {
    /// Deletes the companion with this uid.
    ///
    /// # Errors
    /// It isn't deleted, or nobody knows whether it is.
    pub(super) async fn delete(
        &self,
        kind: Kind,
        uid: &str,
        reason: DeleteReason,
    ) -> Result<Action, WriteFailure> {
        let (key, CompanionLocation { name, namespace, .. }) = (&self.id.key, &self.location);
        if reason == DeleteReason::NotAdmitted && self.state.lock().refusals.get(key).is_none() {
            const MESSAGE: &str = "the admission webhook did not see the companion, so it was neither placed nor \
                isolated and will not be started: register the MutatingWebhookConfiguration";
            return Err(WriteFailure::Refused(Why::new(Cause::NotAdmitted, MESSAGE)));
        }
        if reason == DeleteReason::Failed {
            let pause = self.state.lock().pauses.wait(key, self.now());
            if let Some(pause) = pause {
                return Ok(Action::Requeue(pause));
            }
        }
        self.confirm_gone(reason, uid).await?;
        // It may be ready by now, which the watch hasn't shown yet: only the state that isn't is deleted.
        let version = match reason {
            DeleteReason::NeverReady if !fault("whatever-was-never-ready-is-deleted") => {
                let known = self.known(uid).filter(|o| !o.was_ready);
                Some(known.ok_or(WriteFailure::CacheStale)?.resource_version)
            }
            DeleteReason::TemplateChanged | DeleteReason::ResizeInfeasible
                if !fault("whatever-was-down-is-replaced") =>
            {
                let known = self.state.lock().replaceable(key, uid).ok_or(WriteFailure::CacheStale)?;
                Some(known.resource_version).filter(|version| *version > 0 && !serves(&known))
            }
            _ => None,
        };
        let (objects, started) = (self.objects(kind), self.now());
        let lists = objects.lists(&self.context.feeds);
        let result = objects.delete(name, uid, version).await;
        self.wrote(Operation::Delete, &result, started);
        // Deleted, or replaced by another object: the watch shows which. So it does where it is in another state.
        let result = if version.is_some() { result } else { writes::deleted(result) };
        if let Err(error) = result {
            return Err(self.not_replaced(WriteFailure::of(&error)));
        }
        info!(companion = %name, %namespace, reason = reason.as_str(), "deleted companion");
        if !objects.deleted(&self.context.feeds, (name, uid), lists) {
            // A list that came meanwhile is of before the deletion, or of a restored cluster, which has the companion again.
            return Ok(Action::Requeue(STALE_PAUSE));
        }
        let mut data = self.state.lock();
        data.with_companions(&key.rule, |companions| companions.deleting(key, uid));
        data.companion_observed(key);
        Ok(Action::Done)
    }

    /// A replacement has failed. Where no answer has come it may have happened all the same, so its place in the rollout stays.
    pub(super) fn not_replaced(&self, failure: WriteFailure) -> WriteFailure {
        if !matches!(failure, WriteFailure::Transient(_)) || fault("place-of-an-unknown-deletion-is-free") {
            self.state.lock().rollouts.undo(&self.id.key);
        }
        failure
    }
}
