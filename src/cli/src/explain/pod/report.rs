//! What is known of a Pod. As JSON it is the output of `-o json`.

use std::collections::BTreeMap;

use json_patch::Patch;
use outrigger_admission::Decision;
use outrigger_admission::provenance::{self, Origin};
use outrigger_admission::webhooks::Call;
use outrigger_api::NamespaceOffloading;
use outrigger_core::json::text;
use outrigger_core::keys;
use serde::Serialize;
use serde_json::Value;

use super::super::audit::Decider;
use super::policies::{self, Policy};
use super::written::written;
use crate::admission::Admission;
use crate::companion::{PodName, creation};
use crate::files::InputError;
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
    pub(super) roles: Vec<String>,
    /// Outrigger's webhooks for new Pods.
    pub(super) webhooks: Vec<Call>,
    /// What admission makes of the Pod as its creator wrote it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) creation: Option<Creation>,
    /// What admission makes of the Pod as it is stored.
    pub(super) stored: Verdict,
    /// Policies that the API server evaluates for such a Pod.
    pub(super) policies: Vec<Policy>,
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
    /// The steps that change it, in their order.
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
}

#[derive(Debug, Serialize)]
pub(super) struct Refusal {
    pub(super) code: u16,
    pub(super) message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) step: Option<String>,
    #[serde(flatten)]
    pub(super) by: Decider,
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
        if namespace.is_none() {
            notes.push(format!(
                "the labels of namespace {} aren't known: every webhook is taken to be called",
                name.namespace
            ));
        }
        let written = written(admission, pod, name)?;
        let by_manager = written.as_ref().is_some_and(|written| written.by_manager)
            || pod["metadata"]["labels"].get(keys::RULE).is_some();
        let user = if by_manager { admission.manager() } else { user };
        let creation_of = |pod: &Value| creation(user, &name.namespace, pod);
        let stored = as_new(pod, by_manager);
        let creation = written.map(|written| {
            let verdict = Verdict::of(admission.decide(&mut creation_of(&written.pod)?));
            Ok(Creation { from: written.of, verdict })
        });
        let creation = creation.transpose()?;
        if creation.is_none() {
            let note = "the Pod as its creator wrote it isn't known: neither its owner's template nor what kubectl applied is there, so \
                        the steps that changed it can't be told; outrigger explain audit tells them from the audit log";
            notes.push(note.to_owned());
        }
        let labels = owned(namespace.unwrap_or_default(), &name.namespace);
        let own = |labels: &Value| serde_json::from_value(labels.clone()).unwrap_or_default();
        Ok(Self {
            notes,
            namespace: name.namespace.clone(),
            name: name.name.clone(),
            node: Some(text(pod, "/spec/nodeName").to_owned()).filter(|node| !node.is_empty()),
            unscheduled: unscheduled(pod).to_owned(),
            roles: roles(admission, pod, name),
            webhooks: admission.calls(&creation_of(&stored)?),
            stored: Verdict::of(admission.decide(&mut creation_of(&stored)?)),
            creation,
            policies: policies::applying(state, &own(&pod["metadata"]["labels"]), &labels),
        })
    }

    /// Whether admission would refuse the Pod now. What its creator wrote counts, where it is known.
    pub(super) fn is_refused(&self) -> bool {
        self.creation.as_ref().map_or(&self.stored, |creation| &creation.verdict).refusal.is_some()
    }
}

impl Verdict {
    fn of(decision: Decision) -> Self {
        let admitted =
            Self { refusal: None, steps: Vec::new(), patch: Patch(Vec::new()), warnings: Vec::new() };
        match decision {
            Decision::Allow { patch, warnings, audit } => {
                // A companion whose facts are known from itself alone looks as if a call had changed it before.
                let step = |(key, by): &(&'static str, String)| Step {
                    step: provenance::step(key).0,
                    by: Decider::of(&Origin::parse(by)),
                };
                Self { steps: audit.iter().map(step).collect(), patch, warnings, ..admitted }
            }
            Decision::Deny { code, message, by, .. } => {
                let origin = Origin::parse(&by);
                let step = origin.step.as_deref().map(str::to_owned);
                let refusal = Refusal { code, message, step, by: Decider::of(&origin) };
                Self { refusal: Some(refusal), ..admitted }
            }
        }
    }
}

/// The labels of a namespace with the one that the API server gives each.
fn owned(labels: BTreeMap<&str, &str>, name: &str) -> BTreeMap<String, String> {
    let own = [("kubernetes.io/metadata.name", name)];
    labels.into_iter().chain(own).map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
}

/// A stored Pod as if it were created: without what only a running one has. What Outrigger itself wrote under its keys is no user's
/// doing, and left out if the manager isn't the creator.
fn as_new(pod: &Value, by_manager: bool) -> Value {
    let mut pod = pod.clone();
    let remove = |object: &mut Value, names: &[&str]| {
        if let Some(map) = object.as_object_mut() {
            map.retain(|key, _| !names.contains(&key.as_str()));
        }
    };
    remove(&mut pod, &["status"]);
    remove(
        &mut pod["metadata"],
        &["uid", "resourceVersion", "creationTimestamp", "deletionTimestamp", "generation", "managedFields"],
    );
    remove(&mut pod["spec"], &["nodeName"]);
    if !by_manager {
        for part in ["labels", "annotations"] {
            if let Some(map) = pod["metadata"].get_mut(part).and_then(Value::as_object_mut) {
                map.retain(|key, _| !keys::is_own(key));
            }
        }
    }
    pod
}

/// What a Pod is to Outrigger.
fn roles(admission: &Admission, pod: &Value, name: &PodName) -> Vec<String> {
    let (state, label) = (admission.state(), |key: &str| pod["metadata"]["labels"][key].as_str());
    let mut roles = Vec::new();
    if let (Some(rule), Some(workload)) = (label(keys::RULE), label(keys::WORKLOAD)) {
        roles.push(format!("companion of the workload {workload}, by the rule {rule}"));
    }
    if let Some(tenant) = admission.owner(&name.namespace) {
        roles.push(format!("in the namespace of Tenant {tenant}: isolated on its DPUs"));
    }
    let offloaded =
        state.namespace_labels(&name.namespace).is_some_and(|l| l.get(keys::OFFLOADED) == Some(&"true"));
    if offloaded {
        let mut all = state.of(keys::OFFLOADING_GROUP, "NamespaceOffloading");
        let of = all.find(|offloading| offloading.namespace == name.namespace);
        let strategy = of.and_then(|offloading| NamespaceOffloading::read(&offloading.value).ok());
        let strategy =
            strategy.map_or_else(String::new, |of| format!(": {}", of.spec.pod_offloading_strategy));
        roles.push(format!("in a namespace that is offloaded{strategy}"));
    }
    if label(keys::POD_ROLE) == Some(keys::GUEST) {
        let of = |key| label(key).unwrap_or("(none named)");
        roles.push(format!(
            "guest of the Machine group {}, type {}",
            of(keys::MACHINE_GROUP),
            of(keys::MACHINE_TYPE)
        ));
    }
    roles
}
