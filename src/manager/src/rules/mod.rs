//! The rule controller: whether the API server would take a rule's companions, and what became of the rule, in its status.

pub mod gone;

pub(crate) mod devices;

mod status;

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use kube::Client;
use kube::api::{Api, Patch};
use outrigger_api::{AdminWorkloadRule, WorkloadRule, WorkloadRuleStatus};
use outrigger_core::claim::{self, Template};
use outrigger_core::companion;
use outrigger_core::index::CompanionKey;
use outrigger_runtime::cache::Feed;
use outrigger_runtime::lease::Leadership;
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tracing::{debug, info};

use crate::admin::{self, AdminRules};
use crate::companions::object;
use crate::companions::refusal::{WriteFailure, of_template, verdict_of_create};
use crate::companions::templates::{self, Templates};
use crate::events::Events;
use crate::queue::Queue;
use crate::state::registry::Registry;
use crate::state::{CompanionId, Namespace, RuleId, TenantData, TenantState, TenantStates};
use crate::writes;

/// How long a rule's status waits for more changes before it is written: companions come and go in crowds.
pub const SETTLE: Duration = Duration::from_millis(200);

/// Least time between two writes of one rule's status.
pub(crate) const PACE: Duration = Duration::from_secs(1);

/// Rules that may wait for the API server at once.
const MAX_IN_FLIGHT: usize = 16;

/// Tries out templates, and writes the status of rules.
#[derive(Clone)]
pub struct Controller {
    /// The infrastructure cluster.
    pub client: Client,
    /// What is known.
    pub states: Arc<TenantStates>,
    /// Rules whose status may have changed.
    pub queue: Arc<Queue<RuleId>>,
    /// Companions to look at.
    pub companions: Arc<Queue<CompanionId>>,
    /// Tells users.
    pub events: Arc<Events>,
    /// Which hosts have DPUs.
    pub registry: Arc<Registry>,
    /// Whether this replica cares for tenants that nobody serves.
    pub leadership: Leadership,
    /// The platform's rules, whose status is written by several replicas.
    pub admin: Arc<AdminRules>,
    /// What device claims are made from.
    pub templates: Arc<Templates>,
    /// Where answers to writes of tenants' rules go.
    pub answers: Feed<WorkloadRule>,
    /// Where answers to writes of the platform's rules go.
    pub admin_answers: Feed<AdminWorkloadRule>,
}

/// A rule's template on its way to the API server.
struct DryRun {
    /// Where its companions live.
    namespace: Namespace,
    uid: String,
    hash: String,
    /// What its device claims are made from.
    templates: Vec<Template>,
    /// The companion, or what is wrong with it already.
    companion: Result<Value, String>,
}

/// A status that a rule should have.
struct Wanted {
    uid: String,
    /// Of the rule that it was computed from.
    resource_version: String,
    /// The status that the rule has.
    before: WorkloadRuleStatus,
    status: WorkloadRuleStatus,
}

impl DryRun {
    /// Asks the API server, which stores nothing of it. `None` where it didn't say.
    async fn verdict(&self, client: &Client) -> Option<Result<(), String>> {
        let companion = match &self.companion {
            Ok(companion) => companion,
            Err(message) => return Some(Err(message.clone())),
        };
        match templates::validate_template(client, &self.namespace, &self.templates).await {
            Some(Ok(())) => {}
            other => return other,
        }
        match object::create(client, &self.namespace, companion, &writes::dry_run()).await {
            Ok(_) => Some(Ok(())),
            Err(error) => judge(&error, companion),
        }
    }
}

impl Controller {
    /// Works on the queue for ever, up to [`MAX_IN_FLIGHT`] rules at once.
    pub async fn run(self) {
        let slots = Arc::new(Semaphore::new(MAX_IN_FLIGHT));
        loop {
            let Ok(slot) = slots.clone().acquire_owned().await else { return };
            let id = self.queue.next().await;
            let this = self.clone();
            tokio::spawn(async move {
                if id.name.is_admin() {
                    admin::step(&this, &id).await;
                } else {
                    this.step(&id).await;
                }
                this.queue.done(&id);
                drop(slot);
            });
        }
    }

    async fn step(&self, id: &RuleId) {
        let state = self.states.state(&id.namespace);
        self.fill(&state, id);
        self.validate_template(&state, id).await;
        devices::keep(self, id).await;
        let Some(Wanted { uid, resource_version, before, status }) = self.wanted(id) else {
            self.queue.forget(id);
            return;
        };
        let api: Api<WorkloadRule> = Api::namespaced(self.client.clone(), &id.namespace);
        let params = writes::patch();
        // Only over what it was computed from: another replica may serve the tenant by now.
        let patch = json!({"metadata": {"uid": uid, "resourceVersion": resource_version}, "status": status});
        match api.patch_status(id.name.as_str(), &params, &Patch::Merge(&patch)).await {
            Ok(written) => {
                debug!(rule = %id.name, namespace = %id.namespace, "status written");
                let news = status.news(&before);
                self.answers.answer(written);
                // What is refused is told by who has tried it.
                for (reason, message) in news.iter().filter(|(reason, _)| !reason.ends_with("Refused")) {
                    self.events.rule(id, &uid, reason, message).await;
                }
                self.queue.forget(id);
                // Whatever changed meanwhile is written then; if nothing did, nothing is.
                self.queue.add_after(id.clone(), PACE);
            }
            Err(kube::Error::Api(status)) if status.code == 404 => self.queue.forget(id),
            // Written by somebody else since: the watch shows how.
            Err(kube::Error::Api(status)) if status.code == 409 => self.queue.retry(id.clone()),
            Err(error) => {
                info!(rule = %id.name, namespace = %id.namespace, %error, "status will be written later");
                self.queue.retry(id.clone());
            }
        }
    }

    /// Where matches were left out for the tenant's limit and there is room by now, they are taken in, a few at a time.
    fn fill(&self, state: &TenantState, id: &RuleId) {
        let (keys, more) = {
            let mut data = state.lock();
            (data.index.fill(), data.index.has_more())
        };
        for key in &keys {
            self.queue.add_after(state.rule_id(&key.rule), SETTLE);
        }
        self.companions.add(state.ids(keys));
        if more {
            self.queue.add_after(id.clone(), SETTLE);
        }
    }

    /// The template of the rule, if it should be tried out in this state now.
    fn attempt(&self, state: &TenantState, id: &RuleId) -> Option<DryRun> {
        let key = CompanionKey { rule: id.name.clone(), workload: "".into() };
        let location = self.states.location(&CompanionId { namespace: state.namespace.clone(), key })?;
        let data = state.lock();
        let entry = data.rules.get(&id.name)?;
        if !data.acts(self.leadership.leads()) {
            return None;
        }
        let now = Instant::now();
        if let Some(left) = entry.validation.left(now) {
            // The queue keeps the earliest time only, and whatever brought us here has taken this one's location.
            self.queue.add_after(id.clone(), left);
        }
        if !entry.validation.is_due(now) {
            return None;
        }
        // An admin rule may be about very many tenants; only where it matches does its template matter.
        if id.name.is_admin() && data.index.matched(&id.name) == 0 {
            return None;
        }
        let rule = data.index.rule(&id.name)?;
        let companion = companion::trial(rule, &location.home());
        let templates = claim::templates(rule, &location.tenant, &location.namespace, location.owned);
        let (uid, hash) = (entry.uid.clone(), rule.template_hash().to_owned());
        Some(DryRun { namespace: location.namespace, uid, hash, templates, companion })
    }

    /// Asks the API server whether it would take a companion for this state's tenant, if that isn't known, and lets those that
    /// waited for the answer go on.
    pub(crate) async fn validate_template(&self, state: &TenantState, id: &RuleId) {
        let Some(attempt) = self.attempt(state, id) else { return };
        let verdict = attempt.verdict(&self.client).await;
        debug!(rule = %id.name, namespace = %id.namespace, ?verdict, "template tried out");
        let (held, again, news) = {
            let mut data = state.lock();
            let current = |data: &TenantData| {
                data.index
                    .rule(&id.name)
                    .is_some_and(|rule| rule.template_hash() == attempt.hash && rule.uid() == attempt.uid)
            };
            if !current(&data) {
                // Another template by now: its event has queued the rule again.
                return;
            }
            let Some(entry) = data.rules.get_mut(&id.name) else { return };
            let before = entry.validation.refusal().map(str::to_owned);
            let refused = before.is_some();
            let again = entry.validation.record(verdict, Instant::now());
            let news =
                entry.validation.refusal().map(str::to_owned).filter(|now| before.as_ref() != Some(now));
            let held = if again.is_none() { data.released(&id.name, refused) } else { Vec::new() };
            (held, again, news)
        };
        self.companions.add(state.ids(held));
        if let Some(pause) = again {
            self.queue.add_after(id.clone(), pause);
        }
        if let Some(message) = news {
            self.events.rule(id, &attempt.uid, "TemplateRefused", &message).await;
        }
    }

    /// The status that the rule should have, if it has another one.
    fn wanted(&self, id: &RuleId) -> Option<Wanted> {
        let state = self.states.state(&id.namespace);
        let data = state.lock();
        // Of one that is being deleted there is nothing more to tell.
        let entry = data.rules.get(&id.name).filter(|entry| !entry.deleting)?;
        if !data.acts(self.leadership.leads()) {
            return None;
        }
        let status = status::compute(&id.name, entry, &data, &self.registry, Timestamp::now());
        (status != entry.status).then(|| Wanted {
            uid: entry.uid.clone(),
            resource_version: entry.resource_version.clone(),
            before: entry.status.clone(),
            status,
        })
    }
}

/// What a refused creation says about the template; `None` where it says nothing.
fn judge(error: &kube::Error, companion: &Value) -> Option<Result<(), String>> {
    match verdict_of_create(error, companion, of_template) {
        // The last of all checks: everything else has been passed.
        WriteFailure::Exists => Some(Ok(())),
        WriteFailure::Refused(message) if message.contains("exceeded quota") => Some(Ok(())),
        WriteFailure::Refused(message) => Some(Err(message)),
        WriteFailure::LookAgain | WriteFailure::Transient(_) => None,
    }
}

#[cfg(test)]
mod tests;
