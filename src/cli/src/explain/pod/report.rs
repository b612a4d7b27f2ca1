//! What is known of a Pod. As JSON it is the output of `-o json`.

use std::cell::RefCell;
use std::collections::BTreeMap;

use json_patch::{Patch, PatchOperation};
use outrigger_admission::provenance::{self, Origin};
use outrigger_admission::review::Request;
use outrigger_admission::webhooks::Call;
use outrigger_admission::{Decision, StepObserver};
use outrigger_core::json::text;
use serde::Serialize;
use serde_json::Value;

use super::super::audit::Decider;
use super::policies::{self, Policy};
use super::recorded::{self, Recorded};
use super::roles::{self, Role};
use super::written::written;
use crate::admission::Admission;
use crate::companion::{PodName, as_new, creation, is_of_rule};
use crate::files::InputError;
use crate::slots::is_new;
use crate::state::unscheduled;

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Report {
    /// What isn't known.
    pub(super) notes: Vec<String>,
    pub(super) namespace: String,
    pub(super) name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) node: Option<String>,
    /// What the scheduler says, while it has no node.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) unscheduled: String,
    /// What it is to Outrigger; empty for nothing.
    pub(super) roles: Vec<Role>,
    /// What it has of each step, whenever that was.
    pub(super) recorded: Vec<Recorded>,
    /// Outrigger's webhooks for new Pods.
    pub(super) webhooks: Vec<Call>,
    /// What admission makes of the Pod as its creator wrote it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) creation: Option<Creation>,
    /// What admission makes of the Pod as it is stored.
    pub(super) stored: Verdict,
    /// Policies that the API server evaluates for such a Pod.
    pub(super) policies: Vec<Policy>,
    /// No API server has seen it: `stored` is what its creator wrote.
    #[serde(skip)]
    pub(super) new: bool,
}

#[derive(Debug, Serialize)]
pub(super) struct Creation {
    /// What the Pod is made of.
    pub(super) from: String,
    #[serde(flatten)]
    pub(super) verdict: Verdict,
}

/// A decision.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Verdict {
    /// Why it would be refused; without it, it would be admitted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) refusal: Option<Refusal>,
    /// Why it isn't known whether it would be admitted: what decides may not be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) unknown: Option<String>,
    /// The steps that change it, in their order, also where it is refused afterwards.
    pub(super) steps: Vec<Step>,
    /// The changes (RFC 6902).
    pub(super) patch: Patch,
    pub(super) warnings: Vec<String>,
}

#[derive(Debug, Serialize)]
pub(super) struct Step {
    pub(super) step: &'static str,
    #[serde(flatten)]
    pub(super) by: Decider,
    /// What it changes (RFC 6902).
    pub(super) operations: Vec<PatchOperation>,
}

#[derive(Debug, Serialize)]
pub(super) struct Refusal {
    pub(super) code: u16,
    pub(super) message: String,
    /// The webhook that refuses it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) webhook: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) step: Option<String>,
    #[serde(flatten)]
    pub(super) by: Decider,
    /// Paths of what is refused, as far as they are known.
    pub(super) fields: Vec<String>,
}

impl Report {
    /// `user`: who creates the Pod, if the manager doesn't.
    pub(super) fn new(
        admission: &Admission,
        pod: &Value,
        name: &PodName,
        user: &str,
        mut notes: Vec<String>,
    ) -> Result<Self, InputError> {
        let state = admission.state();
        let namespace = state.namespace_labels(&name.namespace);
        // The notes so far are of what may not be read.
        let incomplete = !notes.is_empty() || !admission.has_namespace(&name.namespace);
        if !admission.has_namespace(&name.namespace) {
            notes.push(format!(
                "the labels of namespace {} aren't known: every webhook is taken to be called",
                name.namespace
            ));
        }
        let written = written(admission, pod, name)?;
        let by_manager = written.as_ref().is_some_and(|written| written.by_manager) || is_of_rule(pod);
        let user = if by_manager { admission.manager() } else { user };
        let creation_of = |pod: &Value| creation(user, &name.namespace, pod);
        let new = is_new(pod);
        let stored = if new { pod.clone() } else { as_new(pod, by_manager) };
        let verdict_of = |pod: &Value| Ok(verdict(admission, &mut creation_of(pod)?, incomplete));
        let creation =
            written.map(|written| Ok(Creation { from: written.of, verdict: verdict_of(&written.pod)? }));
        let creation = creation.transpose()?;
        if creation.is_none() && !new {
            let note = "the Pod as its creator wrote it isn't known: neither its owner's template nor what kubectl applied is there, so \
                        the steps that changed it are known by what it has of them only; the API server's audit \
                        log has them (docs/audit.md)";
            notes.push(note.to_owned());
        }
        let roles = roles::of(admission, &name.namespace, pod);
        let labels = owned(namespace.unwrap_or_default(), &name.namespace);
        let own = |labels: &Value| serde_json::from_value(labels.clone()).unwrap_or_default();
        Ok(Self {
            notes,
            namespace: name.namespace.clone(),
            name: name.name.clone(),
            node: Some(text(pod, "/spec/nodeName").to_owned()).filter(|node| !node.is_empty()),
            unscheduled: unscheduled(pod).to_owned(),
            recorded: recorded::of(admission, &name.namespace, pod, &roles),
            roles: roles.all,
            webhooks: admission.calls(&creation_of(&stored)?),
            stored: verdict_of(&stored)?,
            creation,
            new,
            policies: policies::applying(state, &own(&pod["metadata"]["labels"]), &labels),
        })
    }

    /// Whether admission would refuse the Pod now. What its creator wrote counts, where it is known.
    pub(super) fn is_refused(&self) -> bool {
        self.creation.as_ref().map_or(&self.stored, |creation| &creation.verdict).refusal.is_some()
    }
}

/// Decides about a creation. `incomplete`: not everything that decides is known.
fn verdict(admission: &Admission, request: &mut Request, incomplete: bool) -> Verdict {
    let watched = Watched { before: RefCell::new(request.object.clone()), changes: RefCell::default() };
    let (mut refused_by, mut origins) = (None, Vec::new());
    let decision = admission.decide_observed(request, &watched, &mut |webhook, decision| match decision {
        Decision::Allow { audit, .. } => origins.extend(audit.iter().cloned()),
        Decision::Deny { .. } => refused_by = Some(webhook.to_owned()),
    });
    let by = |step: &str| {
        // A companion whose facts are known from itself alone looks as if a call had changed it before.
        let recorded = origins.iter().find(|(key, _)| provenance::step(key).0 == step);
        recorded.map_or_else(Decider::default, |(_, origin)| Decider::of(&Origin::parse(origin)))
    };
    let steps = watched.changes.into_inner().into_iter();
    let steps = steps.map(|(step, operations)| Step { step, by: by(step), operations }).collect();
    let (refusal, unknown, patch, warnings) = match decision {
        Decision::Allow { patch, warnings, .. } => (None, None, patch, warnings),
        // The server would wait for what it doesn't know. Here it is the user who may not read it.
        Decision::Deny { code: 503, message, .. } if incomplete => {
            (None, Some(message), Patch(Vec::new()), Vec::new())
        }
        Decision::Deny { code, message, by, causes } => {
            let origin = Origin::parse(&by);
            let step = origin.step.as_deref().map(str::to_owned);
            let fields = causes.into_iter().map(|cause| cause.path).collect();
            let refusal =
                Refusal { code, message, webhook: refused_by, step, by: Decider::of(&origin), fields };
            (Some(refusal), None, Patch(Vec::new()), Vec::new())
        }
    };
    Verdict { refusal, unknown, steps, patch, warnings }
}

/// Keeps what each step changes.
struct Watched {
    before: RefCell<Value>,
    changes: RefCell<Vec<(&'static str, Vec<PatchOperation>)>>,
}

impl StepObserver for Watched {
    fn finished(&self, step: &'static str, passed: bool, pod: &Value) {
        // What a step that fails has done so far is of no use.
        let mut before = self.before.borrow_mut();
        if passed && *before != *pod {
            self.changes.borrow_mut().push((step, json_patch::diff(&before, pod).0));
            before.clone_from(pod);
        }
    }
}

/// The labels of a namespace with the one that the API server gives each.
fn owned(labels: BTreeMap<&str, &str>, name: &str) -> BTreeMap<String, String> {
    let own = [("kubernetes.io/metadata.name", name)];
    labels.into_iter().chain(own).map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
}
