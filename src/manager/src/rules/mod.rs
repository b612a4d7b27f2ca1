//! The controller of rules: validates their templates by a dry run, keeps their ResourceClaimTemplates, and writes their status.

pub(crate) mod deleted;

pub(crate) mod devices;

pub(crate) mod status;

use std::sync::Arc;
use std::time::Duration;

use kube::api::Api;
use kube::{Client, ResourceExt};
use outrigger_api::{WorkloadRule, WorkloadRuleStatus};
use outrigger_core::claim::{self, Template};
use outrigger_core::index::CompanionKey;
use outrigger_core::reason::Cause;
use outrigger_core::workload::Workload;
use outrigger_core::{companion, fault};
use serde_json::Value;
use tokio::time::Instant;
use tracing::debug;

use crate::admin;
use crate::companions::object;
use crate::companions::refusal::{WriteFailure, of_template};
use crate::companions::templates;
use crate::context::Context;
use crate::queue::Queue;
use crate::state::status_pace::{PACE, same_verdicts};
use crate::state::{CompanionId, Namespace, RuleId, TenantData, TenantState, Why, WrittenStatus};
use crate::tenants;
use crate::worker::{Action, Controller};
use crate::writes::{self, Version};

/// How long a rule's status waits for more changes before it is written: companions change in crowds.
pub(crate) const SETTLE: Duration = Duration::from_millis(200);

pub(crate) struct Rules(pub(crate) Arc<Context>);

impl Controller for Rules {
    type Key = RuleId;

    const NAME: &'static str = "rules";
    const LEADER_ONLY: bool = false;
    const QUEUE: fn(&Context) -> &Queue<RuleId> = |context| &context.queues.rules;

    async fn step(&self, id: &RuleId) -> Result<Action, kube::Error> {
        if id.name.is_admin() { admin::step(&self.0, id).await } else { step(&self.0, id).await }
    }
}

async fn step(context: &Context, id: &RuleId) -> Result<Action, kube::Error> {
    let state = context.states.state(&id.namespace);
    fill(context, &state, id);
    validate_template(context, &state, id).await;
    devices::keep(context, id).await;
    report_refusals(context, &state, id).await;
    let Some(change) = status_change(context, &state, id) else { return Ok(Action::Done) };
    let left = change.left(&mut state.lock(), context.environment.clock.now());
    if !left.is_zero() {
        return Ok(Action::Requeue(left));
    }
    let StatusChange { over, before, status, last } = change;
    if let Some(last) = last {
        // Somebody has written the rule since then. That may be a replica that has taken the tenant over, of which this one has
        // not heard: its watch of Tenants may be silent. Two replicas would write over each other until it hears.
        if last.shown != over.resource_version && !still_acts(context, &state, id).await? {
            return Ok(Action::Done);
        }
    }
    let rules: Api<WorkloadRule> = Api::namespaced(context.client.clone(), &id.namespace);
    let written = writes::status(&rules, &over, &status).await?;
    debug!(rule = %id.name, namespace = %id.namespace, "status written");
    let version = written.resource_version().unwrap_or_default();
    let last = WrittenStatus::new(&written, version, context.environment.clock.now());
    context.feeds.rules.answer(written);
    state.lock().status_written(&id.name, &over.uid, last);
    // The replica whose dry run was refused writes the Event of a refusal.
    let news = status.news(&before);
    for (reason, message) in news.iter().filter(|(reason, _)| !reason.ends_with("Refused")) {
        context.telemetry.events.rule(&state.namespace, id, &over.uid, reason, message).await;
    }
    // What has changed meanwhile is written then; if nothing has, nothing is.
    Ok(Action::Requeue(PACE))
}

/// Whether this replica acts for a rule's tenant, by what the API server says now.
async fn still_acts(context: &Context, state: &TenantState, id: &RuleId) -> Result<bool, kube::Error> {
    if let Some(tenant) = context.states.tenant_of(&id.namespace) {
        tenants::claim::look(context, &tenant).await?;
    }
    Ok(state.lock().acts(context.replica.leadership.leads()))
}

/// Where matches were left out for the tenant's limit and there is room by now, they are taken in, a few at a time.
fn fill(context: &Context, state: &TenantState, id: &RuleId) {
    let (keys, more) = {
        let mut data = state.lock();
        (data.index.fill(), data.index.has_more())
    };
    for key in &keys {
        context.queues.rules.add_after(state.rule_id(&key.rule), SETTLE);
    }
    context.companions_touched(state, keys);
    if more {
        context.queues.rules.add_after(id.clone(), SETTLE);
    }
}

struct StatusChange {
    /// The rule that it was computed from.
    over: Version,
    before: WorkloadRuleStatus,
    status: WorkloadRuleStatus,
    /// The last write of this replica.
    last: Option<WrittenStatus>,
}

impl StatusChange {
    /// How long it waits: after the last write of the rule's status, and for those of the tenant's other rules.
    fn left(&self, data: &mut TenantData, now: Instant) -> Duration {
        let counts = self.before.observed_generation == self.status.observed_generation
            && same_verdicts(&self.before.conditions, &self.status.conditions);
        let own = self.last.as_ref().map(|last| last.left(counts, now)).unwrap_or_default();
        let limits = data.limits.unwrap_or_default();
        own.max(data.status_bytes.left(&limits, now))
    }
}

/// The status that a rule should have, if it has another one.
fn status_change(context: &Context, state: &TenantState, id: &RuleId) -> Option<StatusChange> {
    let data = state.lock();
    // The status of a rule that is being deleted stays as it is.
    let entry = data.rules.get(&id.name).filter(|entry| !entry.deleting)?;
    if !data.acts(context.replica.leadership.leads()) {
        return None;
    }
    let now = context.environment.clock.wall();
    let status = status::compute(&id.name, entry, &data, &context.caches.registry, now);
    let over = Version {
        name: id.name.to_string(),
        uid: entry.uid.clone(),
        resource_version: entry.resource_version.clone(),
    };
    let (before, last) = (&entry.status, &entry.written);
    (status != *before).then(|| StatusChange { over, before: before.clone(), status, last: last.clone() })
}

struct DryRun {
    namespace: Namespace,
    uid: String,
    hash: String,
    templates: Vec<Template>,
    /// The companion, or the error that makes a dry run pointless.
    companion: Result<Value, String>,
}

impl DryRun {
    /// Asks the API server, which stores nothing of it. `None` where it didn't say.
    async fn answer(&self, client: &Client) -> Option<Result<(), Why>> {
        let companion = match &self.companion {
            Ok(companion) => companion,
            Err(message) => return Some(Err(Why::new(Cause::AnnotationsTooLarge, message.clone()))),
        };
        match templates::validate(client, &self.namespace, &self.templates).await {
            Some(Ok(())) => {}
            other => return other,
        }
        match object::create(client, &self.namespace, companion, &writes::dry_run()).await {
            Ok(_) => Some(Ok(())),
            Err(error) => judge(&error, companion),
        }
    }
}

/// The dry run that a rule's template needs now in this namespace, if it needs one.
fn dry_run(context: &Context, state: &TenantState, id: &RuleId) -> Option<DryRun> {
    let key = CompanionKey { rule: id.name.clone(), workload: "".into() };
    let location = context.states.location(&CompanionId { namespace: state.namespace.clone(), key })?;
    let data = state.lock();
    let entry = data.rules.get(&id.name)?;
    if !data.acts(context.replica.leadership.leads()) {
        return None;
    }
    let now = context.environment.clock.now();
    if let Some(left) = entry.validation.left(now) {
        // The queue keeps the earliest time only, and this step may have replaced it.
        context.queues.rules.add_after(id.clone(), left);
    }
    if !entry.validation.is_due(now) {
        return None;
    }
    // An admin rule may be about very many tenants; only where it matches does its template matter.
    if id.name.is_admin() && data.index.matched(&id.name) == 0 {
        return None;
    }
    let rule = data.index.rule(&id.name)?;
    let companion = companion::trial(rule, &location.home(Default::default()));
    let templates = claim::templates(rule, Some(&location.tenant), &location.namespace, location.owned);
    let (uid, hash) = (entry.uid.clone(), rule.content_hash().to_owned());
    Some(DryRun { namespace: location.namespace, uid, hash, templates, companion })
}

/// Asks the API server whether it would accept a companion of a rule for this namespace's tenant, if that isn't known, and lets
/// companions go on that waited for the answer.
pub(crate) async fn validate_template(context: &Context, state: &TenantState, id: &RuleId) {
    let Some(dry_run) = dry_run(context, state, id) else { return };
    let answer = dry_run.answer(&context.client).await;
    let result = match &answer {
        None => "no answer",
        Some(Ok(())) => "accepted",
        Some(Err(_)) => "refused",
    };
    debug!(rule = %id.name, namespace = %id.namespace, result, "template validated by dry run");
    let (released, again, refusal) = {
        let mut data = state.lock();
        let rule = data.index.rule(&id.name);
        if !rule.is_some_and(|rule| rule.content_hash() == dry_run.hash && rule.uid() == dry_run.uid) {
            // The template has changed: its event has queued the rule again.
            return;
        }
        let Some(entry) = data.rules.get_mut(&id.name) else { return };
        let before = entry.validation.refusal().cloned();
        let again = entry.validation.record(answer, context.environment.clock.now());
        let refusal = entry.validation.refusal().cloned();
        let refusal =
            refusal.filter(|new| before.as_ref() != Some(new) || fault("refusal-is-reported-each-time"));
        if refusal.is_some() {
            let key = |workload: &Arc<Workload>| CompanionKey::of(&id.name, &workload.id);
            let keys: Vec<_> = data.index.workloads_of(&id.name).map(key).collect();
            data.assess(&keys, &context.caches.registry, context.environment.clock.wall());
        }
        let released = if again.is_none() { data.released(&id.name, before.is_some()) } else { Vec::new() };
        (released, again, refusal)
    };
    context.companions_touched(state, released);
    if let Some(pause) = again {
        context.queues.rules.add_after(id.clone(), pause);
    }
    if let Some(why) = refusal {
        context
            .telemetry
            .events
            .rule(&state.namespace, id, &dry_run.uid, "TemplateRefused", &why.message)
            .await;
    }
}

/// Writes the Events of a rule's companions for this namespace's tenant that can't be made.
pub(crate) async fn report_refusals(context: &Context, state: &TenantState, id: &RuleId) {
    let (uid, news) = {
        let mut data = state.lock();
        let Some(uid) = data.rules.get(&id.name).map(|entry| entry.uid.clone()) else { return };
        if !data.acts(context.replica.leadership.leads()) {
            return;
        }
        (uid, data.refusals.news(&id.name, context.environment.clock.now()))
    };
    for message in news {
        context.telemetry.events.companion_refused(&state.namespace, id, &uid, &message).await;
    }
}

/// What a refused creation says about the template; `None` where it says nothing.
fn judge(error: &kube::Error, companion: &Value) -> Option<Result<(), Why>> {
    match WriteFailure::of_create(error, companion, of_template) {
        // The last of all checks: everything else has been passed.
        WriteFailure::Exists => Some(Ok(())),
        WriteFailure::Refused(why) if why.cause == Cause::QuotaExceeded => Some(Ok(())),
        WriteFailure::Refused(why) => Some(Err(why)),
        WriteFailure::CacheStale | WriteFailure::Transient(_) => None,
    }
}

#[cfg(test)]
mod tests;
