//! One step for one companion.

use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use outrigger_core::claim;
use outrigger_core::companion::{self, Action, DeleteReason};
use outrigger_core::index::{CompanionKey, Desired};
use outrigger_core::template::{self, Kind};
use outrigger_runtime::lease::Leadership;
use serde_json::Value;
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tracing::{Instrument, debug, info, warn};

use super::location::CompanionLocation;
use super::object::{self, Feeds, Object, Objects};
use super::refusal::{WriteFailure, of_template, verdict, verdict_of_create};
use super::templates::Templates;
use crate::events::Events;
use crate::latency::{CompanionLatency, Step};
use crate::metrics::{Metrics, Operation, WriteOutcome};
use crate::queue::Queue;
use crate::rules::gone::GoneRules;
use crate::state::companions::CompanionCache;
use crate::state::registry::Registry;
use crate::state::{CompanionId, Refusal, RuleId, TenantData, TenantState, TenantStates};
use crate::writes;

/// Writes that may wait for the API server at once. A single writer is bound by etcd's fsync; the apiserver's default
/// limit for mutating requests is 200, of which this leaves half to everybody else.
pub const MAX_IN_FLIGHT: usize = 100;

/// How many of these one tenant may have.
pub const MAX_OF_ONE_TENANT: usize = MAX_IN_FLIGHT / 2;

/// How long a refused companion waits before it is tried again without a change of its rule.
const REFUSED_PAUSE: Duration = Duration::from_secs(30);

/// How long a companion waits for a rule that is known here in an older state than the companion was made from.
const BEHIND_PAUSE: Duration = Duration::from_secs(1);

/// Makes companions what they should be.
#[derive(Clone)]
pub struct Controller {
    /// The infrastructure cluster.
    pub client: Client,
    /// What is known.
    pub states: Arc<TenantStates>,
    /// Companions to look at.
    pub queue: Arc<Queue<CompanionId>>,
    /// Rules whose status may have changed.
    pub rules: Arc<Queue<RuleId>>,
    /// Tells users.
    pub events: Arc<Events>,
    /// Counts.
    pub metrics: Arc<Metrics>,
    /// Which companions messages have asked for.
    pub latency: Arc<CompanionLatency>,
    /// Which hosts have DPUs.
    pub registry: Arc<Registry>,
    /// Whether this replica cares for tenants that nobody serves.
    pub leadership: Leadership,
    /// What device claims are made from.
    pub templates: Arc<Templates>,
    /// Where answers to writes of companions go.
    pub feeds: Feeds,
    /// Rules that are gone for certain.
    pub gone: Arc<GoneRules>,
}

impl Controller {
    /// Works on the queue for ever, up to [`MAX_IN_FLIGHT`] keys at once.
    pub async fn run(self) {
        let slots = Arc::new(Semaphore::new(MAX_IN_FLIGHT));
        loop {
            let Ok(slot) = slots.clone().acquire_owned().await else { return };
            let id = self.queue.next().await;
            let this = self.clone();
            tokio::spawn(async move {
                this.step(&id).await;
                this.queue.done(&id);
                drop(slot);
            });
        }
    }

    async fn step(&self, id: &CompanionId) {
        let state = self.states.state(&id.namespace);
        let mut step = self.latency.begin(id);
        let Some(location) = self.states.location(id) else { return self.queue.forget(id) };
        self.act(&state, id, &location, &mut step).await;
        // Whatever came of it, it may be another companion's turn now.
        let turns = state.lock().turns(&id.key.rule, &self.registry);
        self.queue.add(state.ids(turns));
    }

    async fn act(
        &self,
        state: &TenantState,
        id: &CompanionId,
        location: &CompanionLocation,
        step: &mut Step<'_>,
    ) {
        let (action, kind) = self.decide(state, &id.key, location);
        let done = match action {
            Action::Nothing | Action::Wait => {
                if matches!(action, Action::Wait) {
                    step.goes_on();
                }
                self.queue.forget(id);
                return;
            }
            Action::Create(object) => {
                let done = self.create(state, id, location, &object).instrument(step.span("create")).await;
                if done.is_ok() {
                    step.created();
                }
                done
            }
            Action::Annotate(patch) => {
                let turn = state.lock().facts.write(&id.key, Instant::now());
                if let Err(pause) = turn {
                    self.queue.add_after(id.clone(), pause);
                    return;
                }
                self.annotate(id, location, kind, &patch).instrument(step.span("annotate")).await
            }
            Action::Delete { uid, reason } => {
                let deletion = self.delete(state, id, location, kind, &uid, reason);
                let done = deletion.instrument(step.span("delete")).await;
                // Another one may have to be made in its location.
                step.goes_on();
                done
            }
            Action::Refuse(message) => Err(WriteFailure::Refused(message)),
        };
        match done {
            Ok(()) => {
                state.lock().refusals.remove(&id.key);
                self.queue.forget(id);
            }
            Err(WriteFailure::LookAgain) => {
                step.goes_on();
                self.queue.retry(id.clone());
            }
            Err(WriteFailure::Transient(message)) => {
                step.goes_on();
                info!(companion = %location.name, namespace = %location.namespace, reason = message.as_str(), "will be tried again");
                self.queue.retry(id.clone());
            }
            Err(WriteFailure::Exists | WriteFailure::Refused(_)) if state.lock().tenant.is_none() => {}
            Err(WriteFailure::Exists) => {
                let message =
                    format!("a {} {} exists that is no companion of this rule", kind.as_str(), location.name);
                self.refused(state, id, location, message).await;
            }
            Err(WriteFailure::Refused(message)) => self.refused(state, id, location, message).await,
        }
        self.rules.add_after(state.rule_id(&id.key.rule), crate::rules::SETTLE);
    }

    /// The next step, and the kind of what it is about.
    fn decide(
        &self,
        state: &TenantState,
        key: &CompanionKey,
        location: &CompanionLocation,
    ) -> (Action, Kind) {
        const NOTHING: (Action, Kind) = (Action::Nothing, Kind::Pod);
        let mut data = state.lock();
        let data = &mut *data;
        if !data.acts(self.leadership.leads()) {
            return NOTHING;
        }
        if data.tenant.as_ref() != Some(&location.tenant) {
            return NOTHING;
        }
        let desired = data.index.desired(key);
        if !matches!(desired, Desired::Wanted { .. }) {
            // What isn't wanted any more isn't refused any more, and has no turn in a rollout.
            data.refusals.remove(key);
            data.rollouts.unwanted(key);
        }
        if let Some(pause) = still_refused(data, key, &desired) {
            self.queue.add_after(CompanionId { namespace: state.namespace.clone(), key: key.clone() }, pause);
            return NOTHING;
        }
        if is_behind(data, key) {
            let id = CompanionId { namespace: state.namespace.clone(), key: key.clone() };
            self.queue.add_after(id, BEHIND_PAUSE);
            return NOTHING;
        }
        match planned(data, key, location) {
            (Action::Delete { reason: DeleteReason::TemplateChanged, .. }, _)
                if !data.may_replace(key, &self.registry) =>
            {
                NOTHING
            }
            // It would be refused too, and again and again. The rule says why; when that changes, all are looked at.
            (Action::Create(_), _)
                if data.rules.get(&key.rule).is_some_and(|r| r.validation.refusal().is_some()) =>
            {
                NOTHING
            }
            step => step,
        }
    }

    async fn create(
        &self,
        state: &TenantState,
        id: &CompanionId,
        location: &CompanionLocation,
        object: &Value,
    ) -> Result<(), WriteFailure> {
        self.device_templates(state, id, location).await?;
        let started = Instant::now();
        let result = object::create(&self.client, &location.namespace, object, &writes::post()).await;
        self.metrics.wrote(Operation::Create, WriteOutcome::of(&result), started.elapsed());
        match result {
            Ok(made) => {
                debug!(companion = %location.name, kind = made.kind().as_str(), namespace = %location.namespace, "created");
                self.learn(id, location, made);
                let known = state.lock().among(&id.key.rule, |companions| companions.get(&id.key).is_some());
                // What was shown since is newer than a late answer, and may be that the companion is gone: nothing else would
                // bring the key back, where that was a list that doesn't have it.
                if known == Some(false) { Err(WriteFailure::LookAgain) } else { Ok(()) }
            }
            Err(error) => match verdict_of_create(&error, object, of_template) {
                WriteFailure::Exists => self.exists(id, location, template::kind(object)).await,
                other => Err(other),
            },
        }
    }

    /// What the companion's devices are claimed by is there before it.
    async fn device_templates(
        &self,
        state: &TenantState,
        id: &CompanionId,
        location: &CompanionLocation,
    ) -> Result<(), WriteFailure> {
        let rule = state.lock().index.rule(&id.key.rule).cloned();
        let Some(rule) = rule.filter(|rule| !rule.devices().claims().is_empty()) else { return Ok(()) };
        let wanted = claim::templates(&rule, &location.tenant, &location.namespace, location.owned);
        self.templates.ensure(&self.client, &location.namespace, &rule, &wanted).await
    }

    /// The watch is behind, or the name is taken: the one read that tells which.
    async fn exists(
        &self,
        id: &CompanionId,
        location: &CompanionLocation,
        kind: Kind,
    ) -> Result<(), WriteFailure> {
        let found = self.objects(location, kind).get(&location.name).await;
        let found = found.map_err(|error| WriteFailure::Transient(error.to_string()))?;
        // Whatever has to be done about it now is decided with the watch's next event, or in a moment.
        let is_other = found.is_some_and(|found| !self.learn(id, location, found));
        Err(if is_other { WriteFailure::Exists } else { WriteFailure::LookAgain })
    }

    async fn annotate(
        &self,
        id: &CompanionId,
        location: &CompanionLocation,
        kind: Kind,
        patch: &Value,
    ) -> Result<(), WriteFailure> {
        let started = Instant::now();
        let result = self.objects(location, kind).patch(&location.name, patch).await;
        self.metrics.wrote(Operation::Annotate, WriteOutcome::of(&result), started.elapsed());
        let patched = result.map_err(|e| verdict(&e))?;
        self.learn(id, location, patched);
        Ok(())
    }

    async fn delete(
        &self,
        state: &TenantState,
        id: &CompanionId,
        location: &CompanionLocation,
        kind: Kind,
        uid: &str,
        reason: DeleteReason,
    ) -> Result<(), WriteFailure> {
        if reason == DeleteReason::NotAdmitted {
            const MESSAGE: &str = "the admission webhook did not see the companion, so it was neither placed nor \
                isolated and will not be started: register the MutatingWebhookConfiguration";
            let first = !state.lock().refusals.contains_key(&id.key);
            if first {
                return Err(WriteFailure::Refused(MESSAGE.to_owned()));
            }
        }
        if reason == DeleteReason::Failed {
            let pause = state.lock().pauses.wait(&id.key, Instant::now());
            if let Some(pause) = pause {
                self.queue.add_after(id.clone(), pause);
                return Ok(());
            }
        }
        if matches!(reason, DeleteReason::RuleDeleted | DeleteReason::OtherRule) {
            self.confirm_rule_gone(state, id, location, uid).await?;
        }
        let started = Instant::now();
        let result = self.objects(location, kind).delete(&location.name, uid).await;
        self.metrics.wrote(Operation::Delete, WriteOutcome::of(&result), started.elapsed());
        // Gone, or another one by now: the watch shows which.
        if let Err(error) = writes::gone(result) {
            state.lock().rollouts.undo(&id.key);
            return Err(verdict(&error));
        }
        info!(companion = %location.name, namespace = %location.namespace, reason = reason.as_str(), "deleted");
        let mut data = state.lock();
        data.among(&id.key.rule, |companions| companions.deleting(&id.key, uid));
        data.saw_companion(&id.key);
        Ok(())
    }

    /// Asks whether the rule that the companion with this uid was made for is gone. The rules' cache may be behind the
    /// companions': that it lacks the rule, or has another one of that name, is no reason to delete anything.
    ///
    /// # Errors
    /// When it is not gone, or the API server does not say.
    async fn confirm_rule_gone(
        &self,
        state: &TenantState,
        id: &CompanionId,
        location: &CompanionLocation,
        uid: &str,
    ) -> Result<(), WriteFailure> {
        let rule = state.rule_id(&id.key.rule);
        let rule_uid = {
            let mut data = state.lock();
            let uid_of_rule = |companions: &mut CompanionCache| {
                companions.get(&id.key).filter(|o| o.uid == uid).map(|o| o.rule_uid.clone())
            };
            data.among(&id.key.rule, uid_of_rule).flatten()
        };
        let Some(rule_uid) = rule_uid else { return Err(WriteFailure::LookAgain) };
        match self.gone.is_gone(&self.client, &rule, &rule_uid, &location.tenant).await {
            Ok(true) => Ok(()),
            Ok(false) => Err(WriteFailure::Transient(
                "the companion's rule exists and is not in the cache yet".to_owned(),
            )),
            Err(error) => {
                Err(WriteFailure::Transient(format!("the companion's rule can't be read: {error}")))
            }
        }
    }

    /// The objects among which a companion is.
    fn objects<'a>(&'a self, location: &'a CompanionLocation, kind: Kind) -> Objects<'a> {
        Objects::new(&self.client, &location.namespace, kind)
    }

    /// Takes an answer in. Whether it is the companion.
    fn learn(&self, id: &CompanionId, location: &CompanionLocation, object: Object) -> bool {
        let key = if id.key.rule.is_admin() {
            object.observe_admin().filter(|(tenant, ..)| *tenant == location.tenant).map(|(_, key, _)| key)
        } else {
            object.observe().map(|(key, _)| key)
        };
        let is_it = key.is_some_and(|key| key == id.key);
        if is_it {
            self.feeds.answer(object);
        }
        is_it
    }

    async fn refused(
        &self,
        state: &TenantState,
        id: &CompanionId,
        location: &CompanionLocation,
        message: String,
    ) {
        let told = {
            let mut data = state.lock();
            let Some(entry) = data.rules.get(&id.key.rule) else { return };
            let (uid, generation) = (entry.uid.clone(), entry.generation);
            let until = Instant::now() + REFUSED_PAUSE;
            let old =
                data.refusals.insert(id.key.clone(), Refusal { message: message.clone(), generation, until });
            if old.is_some_and(|o| o.message == message) { None } else { Some(uid) }
        };
        self.queue.add_after(id.clone(), REFUSED_PAUSE);
        if let Some(uid) = told {
            warn!(companion = %location.name, namespace = %location.namespace, rule = %id.key.rule, reason = message.as_str(), "refused");
            self.events.companion_refused(&state.rule_id(&id.key.rule), &uid, &message).await;
        }
    }
}

/// Whether a companion was made from a later state of its rule than is known here: nothing can be decided about it until the
/// cache has caught up.
fn is_behind(data: &mut TenantData, key: &CompanionKey) -> bool {
    let Some((uid, generation)) = data.rules.get(&key.rule).map(|rule| (rule.uid.clone(), rule.generation))
    else {
        return false;
    };
    let made_later = |companions: &mut CompanionCache| {
        companions.get(key).is_some_and(|o| o.rule_uid == uid && o.rule_generation > generation)
    };
    data.among(&key.rule, made_later).unwrap_or_default()
}

/// The next step for a companion, whatever else is going on, and the kind of what it is about.
fn planned(data: &TenantData, key: &CompanionKey, location: &CompanionLocation) -> (Action, Kind) {
    let admin = data.admin_companions.as_ref().filter(|_| key.rule.is_admin()).map(|store| store.lock());
    let companions = match &admin {
        Some(admin) => admin,
        // Looked after from elsewhere.
        None if key.rule.is_admin() => return (Action::Nothing, Kind::Pod),
        None => &data.companions,
    };
    let observed = companions.get(key);
    if let Some(gone) = observed.filter(|_| !data.rules.contains_key(&key.rule)) {
        // The garbage collector takes these too, also while we are down; but it learns of a kind of owner that is new to
        // the cluster only after half a minute. That the rule is gone is confirmed before anything is deleted.
        let action = if gone.terminating {
            Action::Wait
        } else {
            Action::Delete { uid: gone.uid.clone(), reason: DeleteReason::RuleDeleted }
        };
        return (action, gone.kind);
    }
    let desired = data.index.desired(key);
    if let (Desired::Wanted { rule, .. }, Some(kept), Some(twin)) = (desired, observed, companions.twin(key))
        && kept.kind == rule.kind()
        && !twin.terminating
    {
        let reason = DeleteReason::Superseded;
        return (Action::Delete { uid: twin.uid.clone(), reason }, twin.kind);
    }
    let kind = match (desired, observed) {
        (_, Some(observed)) => observed.kind,
        (Desired::Wanted { rule, .. }, None) => rule.kind(),
        _ => Kind::Pod,
    };
    (companion::plan(key, &desired, observed, &location.home()), kind)
}

/// How much longer a companion that was refused has to wait, unless its rule has changed since.
fn still_refused(data: &TenantData, key: &CompanionKey, desired: &Desired<'_>) -> Option<Duration> {
    let Desired::Wanted { rule, .. } = desired else { return None };
    let refusal = data.refusals.get(key)?;
    let left = refusal.until.checked_duration_since(Instant::now())?;
    (refusal.generation == rule.generation() && !left.is_zero()).then_some(left)
}

#[cfg(test)]
mod tests;
