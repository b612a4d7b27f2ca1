//! What the log tells of each Pod. As JSON it is the output of `-o json`.

use std::borrow::Cow;
use std::collections::BTreeMap;

use outrigger_admission::provenance::Origin;
use outrigger_core::text::truncate;
use serde::Serialize;

use crate::companion::PodName;

/// Most characters of a name or a user.
pub(super) const MAX_NAME: usize = 253;

/// Most requests that are kept. Each takes a kilobyte or two.
pub(super) const MAX_CHANGES: usize = 100_000;

/// Everything.
#[derive(Debug, Default, Serialize)]
pub(super) struct Report {
    /// What is left out of the report, and why.
    pub(super) notes: Vec<String>,
    /// In the order of namespaces and names.
    pub(super) pods: Vec<Pod>,
    /// By the Pod that the requests were about: `web-…` where the API server has generated the name and the log doesn't have it.
    #[serde(skip)]
    changes: BTreeMap<PodName, Vec<Change>>,
    #[serde(skip)]
    kept: usize,
    #[serde(skip)]
    left_out: usize,
}

/// A Pod with the requests that created, changed or deleted it, or were refused.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Pod {
    pub(super) namespace: String,
    pub(super) name: String,
    /// Who created it, if the log has that: the last time, if several Pods had this name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) created_by: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) created_at: Option<String>,
    /// In the order of their times.
    pub(super) requests: Vec<Change>,
}

/// One request.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Change {
    /// When the API server received it.
    pub(super) time: String,
    pub(super) verb: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) subresource: String,
    pub(super) user: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) impersonated_user: Option<String>,
    /// Nothing was stored.
    pub(super) dry_run: bool,
    pub(super) code: u16,
    /// It failed, for whatever reason.
    pub(super) failed: bool,
    /// The message of a failure.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) message: String,
    /// What refused it, if that can be determined.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) refused_by: Option<Refusal>,
    /// Steps of Outrigger's webhooks that changed the Pod, in their order.
    pub(super) steps: Vec<Step>,
    /// Webhooks that changed the Pod, in the order of their calls.
    pub(super) webhooks: Vec<Webhook>,
    /// Policies whose validation failed, also where they only warn or audit.
    pub(super) policies: Vec<Policy>,
    /// Webhooks that could not be called and whose failure was ignored.
    pub(super) failed_open: Vec<String>,
}

/// A step of Outrigger that changed the Pod.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Step {
    pub(super) step: String,
    /// In the second call of the request, after another webhook had changed the Pod.
    pub(super) again: bool,
    pub(super) webhook: String,
    #[serde(flatten)]
    pub(super) by: Decider,
}

/// The object that decided.
#[derive(Debug, Clone, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(in super::super) struct Decider {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) kind: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) namespace: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) generation: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) machine_type: Option<String>,
}

impl Decider {
    /// The object that an audit annotation names.
    pub(in super::super) fn of(origin: &Origin<'_>) -> Self {
        let text = |text: &Option<Cow<'_, str>>| text.as_deref().map(|text| cut(text, MAX_NAME));
        Self {
            kind: text(&origin.kind),
            namespace: text(&origin.namespace),
            name: text(&origin.name),
            generation: origin.generation,
            machine_type: text(&origin.machine_type),
        }
    }
}

/// What refused a request.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Refusal {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) webhook: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) policy: Option<String>,
    /// It is one of Outrigger's.
    pub(super) ours: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) step: Option<String>,
    pub(super) fields: Vec<String>,
    #[serde(flatten)]
    pub(super) by: Decider,
}

/// A mutating webhook that changed the Pod.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Webhook {
    pub(super) round: u32,
    pub(super) index: u32,
    pub(super) configuration: String,
    pub(super) webhook: String,
    pub(super) ours: bool,
    /// The operations of its patch with their paths, where the log has them: from the level Request on.
    pub(super) patch: Vec<String>,
}

/// A policy whose validation failed.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Policy {
    pub(super) policy: String,
    pub(super) binding: String,
    pub(super) ours: bool,
    pub(super) actions: Vec<String>,
    pub(super) message: String,
}

impl Report {
    /// Adds a request.
    pub(super) fn add(&mut self, pod: PodName, change: Change) {
        if self.kept == MAX_CHANGES {
            self.left_out += 1;
            return;
        }
        self.kept += 1;
        self.changes.entry(pod).or_default().push(change);
    }

    /// Orders what was added.
    pub(super) fn finish(&mut self) {
        if self.left_out > 0 {
            let note = format!("{} requests left out after {MAX_CHANGES}: use -n or --name", self.left_out);
            self.notes.push(note);
        }
        for (PodName { namespace, name }, mut requests) in std::mem::take(&mut self.changes) {
            // Times have one format, so they are ordered as texts.
            requests.sort_by(|a, b| a.time.cmp(&b.time));
            let created = requests.iter().rev().find(|change| change.created()).map(|change| {
                (change.impersonated_user.as_ref().unwrap_or(&change.user).clone(), change.time.clone())
            });
            let (created_by, created_at) = created.unzip();
            self.pods.push(Pod { namespace, name, created_by, created_at, requests });
        }
    }
}

impl Change {
    /// Whether it created the Pod.
    fn created(&self) -> bool {
        self.verb == "create" && self.subresource.is_empty() && !self.failed && !self.dry_run
    }
}

/// The beginning of a text, without characters that would change a terminal.
pub(super) fn cut(text: &str, most: usize) -> String {
    let text = truncate(text, most);
    text.chars().map(|c| if c.is_control() && c != '\n' { '\u{fffd}' } else { c }).collect()
}
