//! Companions whose rule asks for something else that can be changed in place, and for nothing besides: they are changed where that is
//! possible, and replaced where it isn't. Both have a place in the rollout by then.

use std::time::Duration;

use kube::Error;
use outrigger_core::companion::{DeleteReason, Fields, InPlace, Observed, Resize, in_place, renewed, resize};
use outrigger_core::fault;
use outrigger_core::rule::Rule;
use outrigger_core::template::Kind;
use parking_lot::Mutex;
use serde_json::Value;
use tokio::time::Instant;
use tracing::info;

use super::{Companion, CompanionLocation};
use crate::companions::refusal::WriteFailure;
use crate::context::Context;
use crate::metrics::Operation;
use crate::worker::Action;

/// How long the answer of the discovery is used. An API server gets the subresource by an upgrade.
const REFRESH: Duration = Duration::from_secs(600);

/// Whether the API server has the subresource `resize` of Pods and the manager may use it, as far as is known.
#[derive(Debug, Default)]
pub(super) struct Resizes(Mutex<Option<(Instant, bool)>>);

impl Resizes {
    /// Asks the discovery, unless it was asked a short time ago.
    ///
    /// # Errors
    /// The discovery can't be read.
    async fn are_served(&self, context: &Context) -> Result<bool, Error> {
        let now = context.environment.clock.now();
        if let Some((_, served)) = self.0.lock().filter(|(asked, _)| now - *asked < REFRESH) {
            return Ok(served);
        }
        let served = match context.client.list_core_api_resources("v1").await {
            Ok(list) => list.resources.iter().any(|resource| resource.name == "pods/resize"),
            Err(Error::Api(status)) if status.code == 404 => false,
            Err(error) => return Err(error),
        };
        self.known(now, served);
        Ok(served)
    }

    fn known(&self, now: Instant, served: bool) {
        *self.0.lock() = Some((now, served));
    }
}

/// What the API server's refusal of a resize says.
#[derive(Debug, PartialEq, Eq)]
enum Refusal {
    /// This companion can't be resized.
    OfCompanion,
    /// None can be: there is no such subresource, or the manager may not use it.
    OfAll,
}

impl Refusal {
    /// `None` for another failure than a refusal. `name`: of the companion.
    fn of(error: &Error, name: &str) -> Option<Self> {
        let Error::Api(status) = error else { return None };
        let is_missing = status.details.as_ref().is_some_and(|details| details.name == name);
        match status.code {
            422 => Some(Self::OfCompanion),
            404 if !is_missing => Some(Self::OfAll),
            405 => Some(Self::OfAll),
            // The authorizer's words. Where admission refuses the amounts, it would refuse another companion with them too.
            403 if status.message.contains("cannot patch resource \"pods/resize\"") => Some(Self::OfAll),
            _ => None,
        }
    }
}

impl Companion<'_> {
    /// Changes the companion with this uid in place, or replaces it.
    pub(super) async fn change(&self, uid: &str) -> Result<Action, WriteFailure> {
        match self.change_in_place(uid).await {
            Ok(true) => Ok(Action::Done),
            Ok(false) => self.delete(Kind::Pod, uid, DeleteReason::TemplateChanged).await,
            Err(failure) => Err(self.not_replaced(failure)),
        }
    }

    /// Whether the companion is as its rule asks by now; otherwise it has to be replaced.
    async fn change_in_place(&self, uid: &str) -> Result<bool, WriteFailure> {
        let (rule, observed, change) = self.as_known(uid).ok_or(WriteFailure::CacheStale)?;
        if change.amounts {
            let served = self.resizes.are_served(self.context).await;
            if !served.map_err(|error| WriteFailure::of(&error))? {
                return Ok(false);
            }
        }
        // One that doesn't run has nothing to lose, and a new one starts without the delays after failures.
        if change.has_fields() && (!observed.ready || fault("image-in-place-is-a-replacement")) {
            return Ok(false);
        }
        let name = &self.location.name;
        // The caches don't have what containers ask for: there are many companions, and few are changed.
        let pod = self.objects(Kind::Pod).raw(name).await.map_err(|error| WriteFailure::of(&error))?;
        if outrigger_core::json::text(&pod, "/metadata/uid") != uid {
            return Err(WriteFailure::CacheStale);
        }
        let mut fields = None;
        if change.has_fields() {
            fields = Fields::of(&rule, &observed, &pod);
            if fields.is_none() {
                return Ok(false);
            }
        }
        if change.amounts {
            match resize(&rule.template(), &pod) {
                Resize::Done if fault("half-of-a-resize-stays") => return Ok(true),
                Resize::Done => {}
                Resize::Patch(_) if !observed.ready => return Ok(false),
                Resize::Patch(patch) => {
                    let Some(version) = self.patch_amounts(&patch).await? else { return Ok(false) };
                    fields = fields.map(|fields| fields.at_version(version));
                }
                Resize::Impossible => return Ok(false),
            }
        }
        let is_changed = match fields {
            Some(fields) => self.patch_fields(&fields.patch(&rule, &observed)).await?,
            None => self.annotate(Kind::Pod, &renewed(&rule, &observed)).await.map(|_| true)?,
        };
        if is_changed {
            let mut data = self.state.lock();
            data.rollouts.changed_in_place(&self.id.key);
            data.companion_observed(&self.id.key);
        }
        Ok(is_changed)
    }

    /// The companion's rule, and the companion and what changes of it in place, if it has this uid and may be changed still.
    fn as_known(&self, uid: &str) -> Option<(std::sync::Arc<Rule>, Observed, InPlace)> {
        let key = &self.id.key;
        let data = self.state.lock();
        let rule = data.index.rule(&key.rule)?.clone();
        let observed = data.replaceable(key, uid)?;
        let change = in_place(&rule, &observed)?;
        Some((rule, observed, change))
    }

    /// Whether the API server has taken the fields, and the annotations with them.
    async fn patch_fields(&self, patch: &Value) -> Result<bool, WriteFailure> {
        let CompanionLocation { name, namespace, .. } = &self.location;
        let started = self.now();
        let result = self.objects(Kind::Pod).update(name, patch).await;
        self.wrote(Operation::Update, &result, started);
        match result {
            Ok(updated) => {
                info!(companion = %name, %namespace, "updated companion in place");
                self.learn(updated);
                Ok(true)
            }
            Err(Error::Api(status)) if status.code == 422 => {
                let error = &status.message;
                info!(companion = %name, %namespace, error, "companion can't be updated in place; replacing it");
                Ok(false)
            }
            Err(error) => Err(WriteFailure::of(&error)),
        }
    }

    /// The version of the companion that has the amounts, if the API server has taken them.
    async fn patch_amounts(&self, patch: &Value) -> Result<Option<Option<String>>, WriteFailure> {
        let name = &self.location.name;
        let started = self.now();
        let result = self.objects(Kind::Pod).resize(name, patch).await;
        self.wrote(Operation::Resize, &result, started);
        let namespace = &self.location.namespace;
        match result {
            Ok(resized) => {
                info!(companion = %name, %namespace, "resized companion");
                let version = resized.metadata().resource_version.clone();
                self.learn(resized);
                Ok(Some(version))
            }
            Err(error) => {
                let refusal = Refusal::of(&error, name).ok_or_else(|| WriteFailure::of(&error))?;
                if refusal == Refusal::OfAll {
                    self.resizes.known(self.now(), false);
                }
                info!(companion = %name, %namespace, %error, "companion can't be resized; replacing it");
                Ok(None)
            }
        }
    }
}
