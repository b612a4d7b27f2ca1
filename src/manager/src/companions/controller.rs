//! The controller of companions: compares what is wanted with what there is, and makes one step.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use kube::Error;
use outrigger_core::claim;
use outrigger_core::companion::{Action as Plan, DeleteReason, LingerStep, Lingering, Observed};
use outrigger_core::index::Desired;
use outrigger_core::reason::Cause;
use outrigger_core::template::{self, Kind};
use outrigger_core::{fault, keys};
use serde_json::Value;
use tokio::time::Instant;
use tracing::{Instrument, debug, info, warn};

use super::location::CompanionLocation;
use super::object::{self, Object, Objects};
use super::planned::{is_of_later_claim, is_of_later_rule, meanwhile, planned, still_refused};
use super::refusal::{WriteFailure, of_template};
use crate::context::Context;
use crate::latency::TracedStep;
use crate::metrics::{Operation, WriteOutcome};
use crate::queue::Queue;
use crate::rules::deleted::DeletedRules;
use crate::state::companions::CompanionCache;
use crate::state::{CompanionId, Refusal, TenantState, Why};
use crate::worker::{Action, Controller};
use crate::writes;

/// How long a refused companion waits before it is created again without a change of its rule.
const REFUSED_PAUSE: Duration = Duration::from_secs(30);

/// How long a companion waits for a rule that is known here in an older state than the companion was made from.
const STALE_PAUSE: Duration = Duration::from_secs(1);

mod confirm;
mod delete;
mod in_place;

pub(crate) struct Companions {
    context: Arc<Context>,
    resizes: in_place::Resizes,
    /// Rules of which the API server has said that they are deleted.
    deleted_rules: DeletedRules,
}

impl Companions {
    pub(crate) fn new(context: &Arc<Context>) -> Self {
        Self { context: context.clone(), resizes: Default::default(), deleted_rules: DeletedRules::default() }
    }
}

impl Controller for Companions {
    type Key = CompanionId;

    const NAME: &'static str = "companions";
    const LEADER_ONLY: bool = false;
    const QUEUE: fn(&Context) -> &Queue<CompanionId> = |context| &context.queues.companions;

    fn at_once(&self) -> usize {
        self.context.replica.args.max_concurrent_reconciles
    }

    async fn step(&self, id: &CompanionId) -> Result<Action, Error> {
        let context = &*self.context;
        let state = context.states.state(&id.namespace);
        let mut traced = context.telemetry.metrics.latency.begin(id);
        let Some(location) = context.states.location(id) else { return Ok(Action::Done) };
        let Self { resizes, deleted_rules, .. } = self;
        let companion = Companion { context, resizes, deleted_rules, state: &state, id, location };
        let action = companion.step(&mut traced).await;
        // Whatever the result, it may be another companion's turn now, or another one may have to give way.
        let (others, on_dpus) = {
            let mut data = state.lock();
            data.assess(
                std::slice::from_ref(&id.key),
                &context.caches.registry,
                context.environment.clock.wall(),
            );
            let moment = context.moment();
            let mut others = data.turns(&id.key.rule, &context.caches.registry, moment);
            others.extend(data.lingering_beyond(&id.key.rule));
            let mut on_dpus = BTreeSet::new();
            if id.key.dpu().is_none() {
                on_dpus = data.on_dpus(&id.key);
                let missing = data.missing_on_dpus(&id.key);
                if missing.iter().any(|key| !on_dpus.contains(key))
                    && !fault("missing-companions-on-dpus-are-waited-for")
                {
                    on_dpus.extend(missing);
                }
            }
            if let Some((key, pause)) = data.rollouts.look(&id.key.rule, moment.now) {
                context.queues.companions.add_after(state.id(key), pause);
            }
            (state.ids(others), state.ids(on_dpus))
        };
        traced.passes_to(&on_dpus);
        context.queues.companions.add(on_dpus.into_iter().chain(others));
        Ok(action)
    }
}

/// The companion that a step is made for.
struct Companion<'a> {
    context: &'a Context,
    resizes: &'a in_place::Resizes,
    deleted_rules: &'a DeletedRules,
    state: &'a TenantState,
    id: &'a CompanionId,
    location: CompanionLocation,
}

impl Companion<'_> {
    async fn step(&self, traced: &mut TracedStep<'_>) -> Action {
        // The API server knows the latest claim, and the state of the rule. Both are earlier ones where the cluster's state was restored.
        let mut asked = Asked::default();
        let (plan, kind) = loop {
            let answer = match self.decide(asked) {
                Ok(decided) => break decided,
                Err(Undecided::LaterClaim) => {
                    asked.claim = true;
                    self.look_at_tenant().await
                }
                Err(Undecided::LaterRule) => {
                    asked.rule = true;
                    self.look_at_rule().await
                }
                Err(Undecided::Ends(action)) => return action,
            };
            if let Err(action) = answer {
                return action;
            }
        };
        let done = match plan {
            Plan::Nothing => return Action::Done,
            Plan::Wait => {
                traced.continues();
                return Action::Done;
            }
            Plan::Create(object) => {
                let early = self.state.lock().creations.left(&self.id.key, self.now());
                if let Some(pause) = early {
                    // Somebody has deleted it. That may be a replica that has taken the tenant over, of which this one has not heard,
                    // for example because its watch of Tenants is silent. So it asks.
                    return self.look_at_tenant().await.err().unwrap_or(Action::Requeue(pause));
                }
                let done = self.create(&object).instrument(traced.span("create")).await;
                if done.is_ok() {
                    traced.created();
                }
                done
            }
            Plan::Annotate(patch) => {
                let turn = self.state.lock().facts.write(&self.id.key, self.now());
                if let Err(pause) = turn {
                    return Action::Requeue(pause);
                }
                self.annotate(kind, &patch).instrument(traced.span("annotate")).await
            }
            Plan::Delete { uid, reason } => {
                let done = self.delete(kind, &uid, reason).instrument(traced.span("delete")).await;
                // Another one may have to be created in its place.
                traced.continues();
                done
            }
            Plan::InPlace { uid, .. } => {
                let done = self.change(&uid).instrument(traced.span("change")).await;
                traced.continues();
                done
            }
            // [`Self::decide`] has put another step in its place.
            Plan::Linger(_) => return Action::Done,
            Plan::Refuse(cause, message) => Err(WriteFailure::Refused(Why::new(cause, message))),
        };
        let rule = self.state.rule_id(&self.id.key.rule);
        let action = self.concluded(kind, done, traced);
        self.context.queues.rules.add_after(rule, crate::rules::SETTLE);
        action
    }

    /// Takes in the tenant as the API server has it, and with it the latest claim on its stream.
    async fn look_at_tenant(&self) -> Result<(), Action> {
        let tenant = &self.location.tenant;
        crate::tenants::claim::look(self.context, tenant).await.map_err(|error| {
            info!(%tenant, %error, "reading the tenant failed; retrying");
            Action::Wait
        })
    }

    /// Whether the API server has the companion's rule as it is known here: then there is no later state of it.
    async fn look_at_rule(&self) -> Result<(), Action> {
        let name = &self.id.key.rule;
        let known = self.state.lock().rules.get(name).map(|rule| (rule.uid.clone(), rule.generation));
        let rule = self.state.rule_id(name);
        match crate::rules::deleted::state(&self.context.client, &rule).await {
            Ok(found) if found == known => Ok(()),
            Ok(_) => Err(Action::Requeue(STALE_PAUSE)),
            Err(error) => {
                info!(%rule, %error, "reading the rule failed; retrying");
                Err(Action::Wait)
            }
        }
    }

    /// What follows from the end of a step.
    fn concluded(
        &self,
        kind: Kind,
        done: Result<Action, WriteFailure>,
        traced: &mut TracedStep<'_>,
    ) -> Action {
        let CompanionLocation { name, namespace, .. } = &self.location;
        match done {
            Ok(action) => {
                self.state.lock().refusals.remove(&self.id.key);
                action
            }
            Err(WriteFailure::CacheStale) => {
                traced.continues();
                Action::Wait
            }
            Err(WriteFailure::Transient(reason)) => {
                traced.continues();
                info!(companion = %name, %namespace, reason, "write failed; retrying");
                Action::Wait
            }
            Err(WriteFailure::Exists | WriteFailure::Refused(_)) if self.state.lock().tenant.is_none() => {
                Action::Done
            }
            Err(WriteFailure::Exists) => {
                let of_rule = "exists that is no companion of this rule";
                self.refused(Why::new(Cause::ObjectExists, format!("a {} {name} {of_rule}", kind.as_str())))
            }
            Err(WriteFailure::Refused(why)) => self.refused(why),
        }
    }

    fn now(&self) -> Instant {
        self.context.environment.clock.now()
    }

    /// The next step and the kind of the object that it is about, or why no step can be made now. `asked`: what the API server has
    /// just been asked for.
    fn decide(&self, asked: Asked) -> Result<(Plan, Kind), Undecided> {
        let key = &self.id.key;
        let mut data = self.state.lock();
        let data = &mut *data;
        let acts = data.acts(self.context.replica.leadership.leads());
        if !acts || data.tenant.as_ref() != Some(&self.location.tenant) {
            return Err(Undecided::Ends(Action::Done));
        }
        let is_wanted = matches!(data.index.desired(key), Desired::Wanted { .. });
        if is_wanted {
            data.refusals.take_back(key, self.now());
        } else {
            // A companion that is no longer wanted is no longer refused, and has no turn in a rollout.
            data.refusals.set_aside(key, self.now());
            data.companion_unwanted(key);
        }
        if let Some(pause) = still_refused(data, key, self.now()) {
            return Err(Undecided::Ends(Action::Requeue(pause)));
        }
        if !asked.rule && is_of_later_rule(data, key) {
            return Err(Undecided::LaterRule);
        }
        if !asked.claim && is_of_later_claim(data, key) && !fault("later-claims-are-not-respected") {
            return Err(Undecided::LaterClaim);
        }
        let (plan, kind) = planned(data, key, &self.location);
        let is_replaced = match &plan {
            Plan::InPlace { .. } => !fault("resizes-take-no-part-in-a-rollout"),
            Plan::Delete {
                reason: DeleteReason::TemplateChanged | DeleteReason::ResizeInfeasible, ..
            } => true,
            // A rule that was created again has the budget of one whose template changes, as far as its owner references have not had
            // the companions deleted already.
            Plan::Delete { reason: DeleteReason::OtherRule, .. } => is_wanted && data.serves(key),
            _ => false,
        };
        let moment = self.context.moment();
        if !is_replaced {
            data.rollouts.stays(key);
        } else if !data.may_replace(key, &self.context.caches.registry, moment) {
            let change = meanwhile(data, key, moment).ok_or(Undecided::Ends(Action::Done))?;
            return Ok((Plan::Annotate(change), kind));
        }
        match (plan, kind) {
            // The API server would refuse it again. The rule's status says why; all companions are queued when that changes.
            (Plan::Create(_), _)
                if data.rules.get(&key.rule).is_some_and(|rule| rule.validation.refusal().is_some()) =>
            {
                Err(Undecided::Ends(Action::Done))
            }
            (Plan::Create(mut object), kind) => {
                let annotations = &mut object["metadata"]["annotations"];
                if let Some(claim) = data.stream.latest() {
                    annotations[keys::STREAM_CLAIM] = claim.to_string().into();
                }
                let has_run = data.read_companions(&key.rule, |companions| companions.has_run(key));
                if kind == Kind::Pod && has_run == Some(false) {
                    annotations[keys::FIRST_COMPANION] = "true".into();
                }
                Ok((Plan::Create(object), kind))
            }
            (Plan::Linger(lingering), kind) => {
                self.linger(&lingering, data.gives_way(key)).map(|plan| (plan, kind))
            }
            plan => Ok(plan),
        }
    }

    /// The next step for a companion that outlives its workload, by the present time. `gives_way`: there is no room for it.
    fn linger(&self, lingering: &Lingering, gives_way: bool) -> Result<Plan, Undecided> {
        let delete = |reason| Ok(Plan::Delete { uid: lingering.uid.clone(), reason });
        let now = self.context.environment.clock.wall();
        match lingering.step(now.as_millisecond()) {
            LingerStep::Delete => delete(DeleteReason::Unmatched),
            _ if gives_way => delete(DeleteReason::LingeringLimit),
            LingerStep::Mark => Ok(Plan::Annotate(lingering.mark(&format!("{now:.3}")))),
            LingerStep::Stay(left) => Err(Undecided::Ends(Action::Requeue(left))),
        }
    }

    async fn create(&self, object: &Value) -> Result<Action, WriteFailure> {
        let CompanionLocation { name, namespace, .. } = &self.location;
        self.device_templates().await?;
        // Their creation may have taken so long that another replica serves the tenant by now, which decides itself.
        if !self.state.lock().acts(self.context.replica.leadership.leads()) {
            return Ok(Action::Done);
        }
        let started = self.now();
        let result = object::create(&self.context.client, namespace, object, &writes::post()).await;
        self.wrote(Operation::Create, &result, started);
        match result {
            Ok(made) => {
                debug!(companion = %name, kind = made.kind().as_str(), %namespace, "created companion");
                let _ = self.state.lock().creations.write(&self.id.key, self.now());
                self.learn(made);
                let key = &self.id.key;
                let is_known = |companions: &CompanionCache| companions.get(key).is_some();
                let known = self.state.lock().read_companions(&key.rule, is_known);
                // What was shown since is newer than a late answer, and may be that the companion is deleted: nothing else
                // would bring the key back, where that was a list that doesn't have it.
                if known == Some(false) { Err(WriteFailure::CacheStale) } else { Ok(Action::Done) }
            }
            Err(error) => match WriteFailure::of_create(&error, object, of_template) {
                WriteFailure::Exists => self.exists(template::kind(object)).await,
                other => Err(other),
            },
        }
    }

    /// Makes the ResourceClaimTemplates of the companion's rule that aren't there: they are needed before the companion.
    async fn device_templates(&self) -> Result<(), WriteFailure> {
        let rule = self.state.lock().index.rule(&self.id.key.rule).cloned();
        let Some(rule) = rule.filter(|rule| !rule.devices().claims().is_empty()) else { return Ok(()) };
        let CompanionLocation { tenant, namespace, owned, .. } = &self.location;
        let wanted = claim::templates(&rule, Some(tenant), namespace, *owned);
        self.context.caches.templates.ensure(self.context, namespace, &rule, &wanted).await
    }

    /// An object of the companion's name exists: the cache is stale, or the object is no companion. A read tells which.
    async fn exists(&self, kind: Kind) -> Result<Action, WriteFailure> {
        let found = self.objects(kind).get(&self.location.name).await;
        let found = found.map_err(|error| WriteFailure::Transient(error.to_string()))?;
        // The next step is decided with the watch's next event, or after a pause.
        let is_other = found.is_some_and(|found| !self.learn(found));
        Err(if is_other { WriteFailure::Exists } else { WriteFailure::CacheStale })
    }

    async fn annotate(&self, kind: Kind, patch: &Value) -> Result<Action, WriteFailure> {
        let started = self.now();
        let result = self.objects(kind).patch(&self.location.name, patch).await;
        self.wrote(Operation::Annotate, &result, started);
        self.learn(result.map_err(|error| WriteFailure::of(&error))?);
        Ok(Action::Done)
    }

    /// What is known of the companion, if it has this uid.
    fn known(&self, uid: &str) -> Option<Observed> {
        self.state.lock().read_companion(&self.id.key, Observed::clone).filter(|o| o.uid == uid)
    }

    fn objects(&self, kind: Kind) -> Objects<'_> {
        Objects::new(&self.context.client, &self.location.namespace, kind)
    }

    fn wrote<T>(&self, operation: Operation, result: &Result<T, Error>, started: Instant) {
        self.context.telemetry.metrics.wrote(operation, WriteOutcome::of(result), self.now() - started);
    }

    /// Takes in the object that the API server has answered with. Whether it is the companion.
    fn learn(&self, object: Object) -> bool {
        let key = if self.id.key.rule.is_admin() {
            let observed = object.observe_admin().filter(|(tenant, ..)| *tenant == self.location.tenant);
            observed.map(|(_, key, _)| key)
        } else {
            object.observe().map(|(key, _)| key)
        };
        let is_companion = key.is_some_and(|key| key == self.id.key);
        if is_companion {
            object.answer(&self.context.feeds);
        }
        is_companion
    }

    fn refused(&self, why: Why) -> Action {
        let message = why.message.clone();
        let rule = &self.id.key.rule;
        // The rule's next step writes the Event: there is one for all of its companions.
        let is_new = {
            let mut data = self.state.lock();
            let Some(entry) = data.rules.get(rule) else { return Action::Done };
            let generation = entry.generation;
            let until = self.now() + REFUSED_PAUSE;
            let refusal = Refusal { why, generation, until };
            let before = data.refusals.insert(self.id.key.clone(), refusal);
            data.changed(&self.id.key.whole().workload);
            before.is_none_or(|before| before.why.message != message)
        };
        if is_new {
            let CompanionLocation { name, namespace, .. } = &self.location;
            warn!(companion = %name, %namespace, %rule, reason = message, "companion refused");
        }
        Action::Requeue(REFUSED_PAUSE)
    }
}

/// Why no step can be made for a companion now.
enum Undecided {
    /// This follows instead.
    Ends(Action),
    /// It was made under a later claim on the tenant's stream than is known here.
    LaterClaim,
    /// It was made from a later state of its rule than is known here.
    LaterRule,
}

/// What the API server was asked for during a step.
#[derive(Debug, Clone, Copy, Default)]
struct Asked {
    /// The latest claim on the tenant's stream.
    claim: bool,
    /// The state of the companion's rule.
    rule: bool,
}

#[cfg(test)]
mod tests;
