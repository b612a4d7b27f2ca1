//! Events of `audit.k8s.io/v1`, as far as they tell of Pods.

use std::collections::BTreeMap;

use outrigger_admission::provenance::{self, DENIED, KEYS, Origin};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

use super::lines::Fault;
use super::report::{Change, Decider, MAX_NAME, Policy, Refusal, Step, Webhook, cut};
use crate::check::installation::reach::is_own as is_our_webhook;
use crate::companion::PodName;

/// Most characters of a message. Those of the API server quote what is wrong.
const MAX_MESSAGE: usize = 2048;

/// Most entries of a list of one request.
const MAX_ENTRIES: usize = 64;

/// The prefixes of the API server's own annotations (apiserver, `pkg/admission/plugin/webhook`).
const MUTATION: &str = "mutation.webhook.admission.k8s.io/";
const PATCH: &str = "patch.webhook.admission.k8s.io/";
const FAILED_OPEN: &str = "failed-open.";
const POLICY_FAILURE: &str = "validation.policy.admission.k8s.io/validation_failure";

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Event<'a> {
    kind: String,
    api_version: String,
    stage: String,
    #[serde(rename = "requestURI")]
    request_uri: String,
    verb: String,
    user: User,
    impersonated_user: Option<User>,
    object_ref: Option<ObjectRef>,
    response_status: Option<Status>,
    #[serde(borrow)]
    request_object: Option<&'a RawValue>,
    #[serde(borrow)]
    response_object: Option<&'a RawValue>,
    request_received_timestamp: String,
    annotations: Option<BTreeMap<String, String>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct User {
    username: String,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ObjectRef {
    resource: String,
    namespace: String,
    name: String,
    api_group: String,
    subresource: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Status {
    message: String,
    code: u16,
}

/// What a mutating webhook did (`MutationAuditAnnotation` and `PatchAuditAnnotation`).
#[derive(Default, Deserialize)]
#[serde(default)]
struct Called {
    configuration: String,
    webhook: String,
    mutated: bool,
    patch: Vec<Operation>,
}

#[derive(Deserialize)]
struct Operation {
    op: String,
    path: String,
}

/// `ValidationFailureValue`.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct PolicyFailure {
    message: String,
    policy: String,
    binding: String,
    validation_actions: Vec<String>,
}

/// Reads one line. `None`: it tells nothing of a Pod that is worth telling.
pub(super) fn read(line: &[u8]) -> Result<Option<(PodName, Change)>, Fault> {
    let event: Event<'_> = serde_json::from_slice(line)
        .map_err(|error| if error.is_data() { Fault::NoEvent } else { Fault::NoJson })?;
    if event.kind != "Event" || event.api_version != "audit.k8s.io/v1" {
        return Err(Fault::NoEvent);
    }
    let Some(object) = event.object_ref.as_ref().filter(|object| object.is_pod()) else { return Ok(None) };
    let is_write = matches!(event.verb.as_str(), "create" | "update" | "patch" | "delete");
    if !is_write || !matches!(event.stage.as_str(), "ResponseComplete" | "Panic") {
        return Ok(None);
    }
    let pod = PodName { namespace: cut(&object.namespace, MAX_NAME), name: event.name(object) };
    let change = event.change(object);
    // Who runs something in a Pod doesn't change it, and its status is written all the time.
    let is_of_pod =
        matches!(object.subresource.as_str(), "" | "binding" | "ephemeralcontainers" | "resize" | "eviction");
    Ok((is_of_pod || change.is_reported_by_admission()).then_some((pod, change)))
}

impl ObjectRef {
    fn is_pod(&self) -> bool {
        self.api_group.is_empty() && self.resource == "pods"
    }
}

impl Event<'_> {
    /// The Pod's name: a generated one is in the answer only.
    fn name(&self, object: &ObjectRef) -> String {
        let of = |raw: Option<&RawValue>| {
            raw.and_then(|raw| lenient::<Named>(raw.get())).unwrap_or_default().metadata
        };
        let names = [object.name.clone(), of(self.response_object).name];
        match names.into_iter().find(|name| !name.is_empty()) {
            Some(name) => cut(&name, MAX_NAME),
            None => format!("{}…", cut(&of(self.request_object).generate_name, MAX_NAME)),
        }
    }

    fn change(&self, object: &ObjectRef) -> Change {
        let status = self.response_status.as_ref();
        let (code, message) = status.map_or((0, ""), |status| (status.code, status.message.as_str()));
        let failed = code >= 400;
        let query = self.request_uri.split_once('?').map_or("", |(_, query)| query);
        let mut change = Change {
            time: cut(&self.request_received_timestamp, MAX_NAME),
            verb: self.verb.clone(),
            subresource: cut(&object.subresource, MAX_NAME),
            user: cut(&self.user.username, MAX_NAME),
            impersonated_user: self.impersonated_user.as_ref().map(|user| cut(&user.username, MAX_NAME)),
            dry_run: query.split('&').any(|part| part.starts_with("dryRun=")),
            code,
            failed,
            message: if failed { cut(message, MAX_MESSAGE) } else { String::new() },
            refused_by: None,
            steps: Vec::new(),
            webhooks: Vec::new(),
            policies: Vec::new(),
            failed_open: Vec::new(),
        };
        let mut patches = BTreeMap::new();
        for (key, value) in self.annotations.iter().flatten() {
            annotation(key, value, &mut change, &mut patches);
        }
        for webhook in &mut change.webhooks {
            webhook.patch = patches.remove(&(webhook.round, webhook.index)).unwrap_or_default();
        }
        change.webhooks.sort_by_key(|webhook| (webhook.round, webhook.index));
        change.steps.sort_by_key(|step| (step.again, KEYS.iter().position(|(key, _)| *key == step.step)));
        if failed && change.refused_by.is_none() {
            change.refused_by = refusal(message);
        }
        change
    }
}

impl Change {
    /// Whether admission has left more than the answer.
    fn is_reported_by_admission(&self) -> bool {
        self.refused_by.is_some()
            || !(self.steps.is_empty()
                && self.webhooks.is_empty()
                && self.policies.is_empty()
                && self.failed_open.is_empty())
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Named {
    metadata: Metadata,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Metadata {
    name: String,
    generate_name: String,
}

/// Takes in one annotation. Others than admission's, such as those of authorization, tell nothing here.
fn annotation(key: &str, value: &str, change: &mut Change, patches: &mut BTreeMap<(u32, u32), Vec<String>>) {
    if key == POLICY_FAILURE {
        let failures: Vec<PolicyFailure> = lenient(value).unwrap_or_default();
        change.policies.extend(failures.into_iter().take(MAX_ENTRIES).map(policy));
    } else if key.starts_with(FAILED_OPEN) {
        if change.failed_open.len() < MAX_ENTRIES {
            change.failed_open.push(cut(value, MAX_NAME));
        }
    } else if let Some(((round, index), called)) = key.strip_prefix(MUTATION).and_then(|at| called(at, value))
    {
        if called.mutated && change.webhooks.len() < MAX_ENTRIES {
            let (configuration, webhook) =
                (cut(&called.configuration, MAX_NAME), cut(&called.webhook, MAX_NAME));
            let ours = is_our_webhook(&webhook);
            change.webhooks.push(Webhook { round, index, configuration, webhook, ours, patch: Vec::new() });
        }
    } else if let Some((at, called)) = key.strip_prefix(PATCH).and_then(|at| called(at, value)) {
        let operations = called.patch.iter().take(MAX_ENTRIES);
        let shortened =
            operations.map(|operation| cut(&format!("{} {}", operation.op, operation.path), MAX_NAME));
        patches.insert(at, shortened.collect());
    } else if let Some((webhook, key)) = key.split_once('/').filter(|(webhook, _)| is_our_webhook(webhook)) {
        own(webhook, key, value, change);
    }
}

/// Takes in an annotation of Outrigger's own webhooks.
fn own(webhook: &str, key: &str, value: &str, change: &mut Change) {
    let Some((key, _)) = KEYS.iter().find(|(known, _)| *known == key) else { return };
    let origin = Origin::parse(value);
    let by = Decider::of(&origin);
    let webhook = cut(webhook, MAX_NAME);
    // What a level of enforcement or an exception has let through was not refused.
    if *key == DENIED && (origin.level.is_some() || origin.exception.is_some()) {
        return;
    }
    if *key == DENIED {
        change.refused_by = Some(Refusal {
            webhook: Some(webhook),
            policy: None,
            ours: true,
            step: origin.step.as_deref().map(|step| cut(step, MAX_NAME)),
            fields: origin.fields.iter().take(MAX_ENTRIES).map(|path| cut(path, MAX_NAME)).collect(),
            by,
        });
        return;
    }
    let (step, again) = provenance::step(key);
    change.steps.push(Step { step: step.to_owned(), again, webhook, by });
}

fn policy(failure: PolicyFailure) -> Policy {
    let policy = cut(&failure.policy, MAX_NAME);
    Policy {
        ours: is_our_policy(&policy),
        policy,
        binding: cut(&failure.binding, MAX_NAME),
        actions: failure
            .validation_actions
            .iter()
            .take(MAX_ENTRIES)
            .map(|action| cut(action, MAX_NAME))
            .collect(),
        message: cut(&failure.message, MAX_MESSAGE),
    }
}

/// What the API server says refused a request, in the words of its dispatchers.
fn refusal(message: &str) -> Option<Refusal> {
    let between = |begin: &str, end: char| {
        let (_, rest) = message.split_once(begin)?;
        rest.split_once(end).map(|(name, _)| cut(name, MAX_NAME))
    };
    let webhook =
        message.starts_with("admission webhook ").then(|| between("admission webhook \"", '"')).flatten();
    let policy = if webhook.is_some() { None } else { between("ValidatingAdmissionPolicy '", '\'') };
    let ours = webhook.as_deref().is_some_and(is_our_webhook) || policy.as_deref().is_some_and(is_our_policy);
    let is_known = webhook.is_some() || policy.is_some();
    is_known.then(|| Refusal {
        webhook,
        policy,
        ours,
        step: None,
        fields: Vec::new(),
        by: Decider::default(),
    })
}

/// The webhook's round and index, and what it did: `round_0_index_1`.
fn called(at: &str, value: &str) -> Option<((u32, u32), Called)> {
    let (round, index) = at.strip_prefix("round_")?.split_once("_index_")?;
    Some(((round.parse().ok()?, index.parse().ok()?), lenient(value)?))
}

fn lenient<T: DeserializeOwned>(text: &str) -> Option<T> {
    serde_json::from_str(text).ok()
}

fn is_our_policy(name: &str) -> bool {
    name.starts_with("outrigger-")
}
