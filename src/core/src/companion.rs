//! What a companion looks like, and what has to be done so that the one that exists becomes the one that is wanted.
//!
//! A companion is to its (rule, workload) what a StatefulSet's Pod is to its ordinal: one name, at most one Pod at a
//! time. Replacing it means deleting it, waiting until it is gone, and creating it again.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use crate::claim::{self, Devices};
use crate::ids::{RuleName, Scope, TenantId, WorkloadId, hex};
use crate::index::{CompanionKey, Desired};
use crate::json::{annotation, label, metadata_map};
use crate::reason::Cause;
use crate::rule::{DpuSelectionPolicy, Rule};
use crate::syntax::unlabelable;
use crate::template::{self, Kind};
use crate::tenant::hosts::HostNames;
use crate::workload::Workload;
use crate::{fault, keys};

mod delete_reason;
mod facts;
mod held;
mod host;
mod in_place;
mod linger;
mod name;
mod resize;
mod stream_claim;

pub use delete_reason::DeleteReason;
use facts::annotate;
pub use facts::{annotations_size, injected_list, while_it_waits};
pub use held::Held;
pub use host::host;
use host::unknown_host;
pub use in_place::{Fields, InPlace, in_place, parts, renewed, restarted};
pub use linger::{LingerStep, Lingering, UNREADABLE_END, equal_part};
pub(crate) use name::device_template_name;
pub use name::{name, own_name};
pub use resize::{Resize, resize};
pub use stream_claim::StreamClaim;

/// Most bytes that keys and values of all annotations of an object may have together
/// (`TotalAnnotationSizeLimitB` in apimachinery's validation).
pub const MAX_ANNOTATIONS: usize = 256 * 1024;

/// Hash of the parts of a rule that decide the companion itself, as they are written. 16 hex digits.
///
/// Injections aren't in it: they are annotations, which change in place.
pub fn template_hash(policy: DpuSelectionPolicy, template: &Value, devices: &Devices) -> String {
    hash_of(policy, template, devices.fingerprint())
}

/// Hash of what the same parts mean: when it changes, the companions are replaced. It is the same as [`template_hash`] for what is
/// written without anything that the API server doesn't store.
pub fn content_hash(policy: DpuSelectionPolicy, template: &Value, devices: &Devices) -> String {
    hash_of(policy, &template::meaning::of(template), devices.content())
}

fn hash_of(policy: DpuSelectionPolicy, template: &Value, devices: Option<Value>) -> String {
    let mut hash = Sha256::new();
    hash.update(policy.as_str());
    hash.update([0]);
    hash_canonical(template, &mut hash);
    if let Some(devices) = devices.filter(|_| !fault("devices-are-no-part-of-a-template")) {
        hash.update([0]);
        hash_canonical(&devices, &mut hash);
    }
    hex(&hash.finalize(), 16)
}

/// Feeds a value to a hash, object members in the order of their keys, so that the hash doesn't depend on the order in
/// which somebody wrote them.
fn hash_canonical(value: &Value, hash: &mut Sha256) {
    match value {
        Value::Object(map) => {
            let mut members: Vec<_> = map.iter().collect();
            members.sort_unstable_by_key(|(key, _)| *key);
            hash.update(b"{");
            for (key, value) in members {
                hash.update(key.as_bytes());
                hash.update([0]);
                hash_canonical(value, hash);
            }
            hash.update(b"}");
        }
        Value::Array(list) => {
            hash.update(b"[");
            for value in list {
                hash_canonical(value, hash);
                hash.update(b",");
            }
            hash.update(b"]");
        }
        scalar => hash.update(scalar.to_string().as_bytes()),
    }
}

/// What the manager knows of a companion that exists.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Observed {
    /// What it is.
    pub kind: Kind,
    /// `metadata.uid`.
    pub uid: String,
    /// `metadata.resourceVersion`; 0 where it isn't a number.
    pub resource_version: u64,
    /// uid of the rule that owns it.
    pub rule_uid: String,
    /// The rule's `metadata.generation` when the companion was made: annotation [`keys::RULE_GENERATION`]; 0 for none.
    pub rule_generation: i64,
    /// The claim under which it was made: annotation [`keys::STREAM_CLAIM`]; `None` for none, or one that isn't understood.
    pub claim: Option<StreamClaim>,
    /// Annotation [`keys::TEMPLATE_HASH`].
    pub template_hash: String,
    /// Annotation [`keys::CONTENT_HASH`]; `None` for none.
    pub content_hash: Option<String>,
    /// Annotation [`keys::TEMPLATE_PARTS`]; `None` for none.
    pub parts: Option<String>,
    /// Annotation [`keys::HOST`].
    pub host: Option<String>,
    /// When its workload ended, in milliseconds since 1970: annotation [`keys::WORKLOAD_ENDED`]; `None` for none,
    /// [`UNREADABLE_END`] for one that isn't understood.
    pub ended: Option<i64>,
    /// Annotation [`keys::ROLLOUT_HELD`]; `None` for none, or one that isn't understood.
    pub held: Option<Held>,
    /// Its workload has had no companion that ran: annotation [`keys::FIRST_COMPANION`].
    pub first: bool,
    /// Annotation [`keys::INJECTED`], decoded; `None` when it is missing or no list of texts.
    pub injected: Option<Vec<String>>,
    /// The annotations that [`Self::injected`] names, as they are.
    pub annotations: BTreeMap<String, String>,
    /// Bytes of keys and values of all annotations.
    pub annotations_size: usize,
    /// It still has the gate that the admission webhook takes off.
    pub gated: bool,
    /// `metadata.deletionTimestamp` is set.
    pub terminating: bool,
    /// `status.phase` is Failed.
    pub failed: bool,
    /// A Pod: its Ready condition is true. A claim: devices are allocated to it.
    pub ready: bool,
    /// It has been ready, as far as this process has seen it.
    pub was_ready: bool,
    /// A Pod: the scheduler has found no Node for it.
    pub unplaced: bool,
    /// A Pod: what keeps a container from running, that it ended without an error, or, where it is ready, that it isn't yet
    /// what it asks to be since it was changed in place; `None` when nothing is wrong with it.
    pub trouble: Option<Cause>,
    /// Why it isn't running or as it asks to be, in the scheduler's or the kubelet's words; empty when there is nothing to say.
    pub message: String,
}

impl Observed {
    /// Whether neither it nor an earlier companion of its workload has ever run: there was never a Node for it. A Pod that has one keeps
    /// it.
    pub fn has_never_run(&self) -> bool {
        self.first && self.unplaced
    }
}

/// The next step towards what is wanted.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// Nothing has to be done, or it isn't known yet what.
    Nothing,
    /// It is on its way out: the event of its end brings the next step.
    Wait,
    /// Create this Pod, or this ResourceClaim.
    Create(Value),
    /// Change annotations in place, by this JSON merge patch, which carries the uid as precondition.
    Annotate(Value),
    /// Change it in place where the Pod and the API server permit that, and delete it otherwise.
    InPlace {
        /// The uid that it must have.
        uid: String,
        /// What changes.
        change: InPlace,
    },
    /// Keep it for a while after its workload, then delete it. What that takes now depends on the time.
    Linger(Lingering),
    /// Delete what has this uid.
    Delete {
        /// The uid that it must have.
        uid: String,
        /// Why.
        reason: DeleteReason,
    },
    /// It can't be made, for a reason that only the user can remove: the cause, and what is wrong.
    Refuse(Cause, String),
}

/// Where a companion lives.
#[derive(Debug, Clone, Copy)]
pub struct Home<'a> {
    /// The tenant of its workload.
    pub tenant: &'a TenantId,
    /// Its namespace.
    pub namespace: &'a str,
    /// Whether its rule lives there too, and so can own it: an owner in another namespace is none to the garbage collector,
    /// which would delete the companion.
    pub owned: bool,
    /// Names that hosts have as Nodes of the tenant's cluster.
    pub host_names: &'a HostNames,
}

/// What to do about a companion.
pub fn plan(
    key: &CompanionKey,
    desired: &Desired<'_>,
    observed: Option<&Observed>,
    home: &Home<'_>,
) -> Action {
    let delete = |o: &Observed, reason| Action::Delete { uid: o.uid.clone(), reason };
    match (desired, observed) {
        // A rule that isn't valid keeps what it has; one that is gone is the caller's to tell. A workload that isn't known
        // yet may well exist: its tenant has not said all.
        (Desired::RuleUnknown | Desired::Unknown | Desired::Undecided, _)
        | (
            Desired::Unwanted
            | Desired::Waiting
            | Desired::OnOtherDpus { .. }
            | Desired::OverLimit
            | Desired::Ended { .. },
            None,
        ) => Action::Nothing,
        (_, Some(o)) if o.terminating => Action::Wait,
        (Desired::OverLimit, Some(o)) => linger::unmark(o).map_or(Action::Nothing, Action::Annotate),
        (Desired::Unwanted, Some(o)) => delete(o, DeleteReason::Unmatched),
        (Desired::Ended { rule }, Some(o)) => match Lingering::of(rule, o) {
            Ok(lingering) => Action::Linger(lingering),
            Err(reason) => delete(o, reason),
        },
        (Desired::Waiting, Some(o)) => delete(o, DeleteReason::Moved),
        (Desired::OnOtherDpus { rule, workload }, Some(o)) => {
            match host::wrong_dpu(key, rule, host(rule, workload, home.host_names), o) {
                DeleteReason::DpuGone if fault("companion-stays-when-its-dpu-leaves-the-host") => {
                    Action::Nothing
                }
                reason => delete(o, reason),
            }
        }
        (Desired::Wanted { rule, workload }, None) => create(key, rule, workload, home),
        (Desired::Wanted { rule, workload }, Some(o)) => {
            match replace_reason(rule, host(rule, workload, home.host_names), o) {
                Some(reason) => match in_place(rule, o).filter(|_| reason == DeleteReason::TemplateChanged) {
                    Some(change) => Action::InPlace { uid: o.uid.clone(), change },
                    None => delete(o, reason),
                },
                None => annotate(rule, workload, o),
            }
        }
    }
}

/// Why a companion has to be replaced by one on the DPU of this host.
pub(crate) fn replace_reason(rule: &Rule, host: Option<&str>, o: &Observed) -> Option<DeleteReason> {
    let makes = rule.makes(&o.template_hash, o.content_hash.as_deref());
    // One of another policy has a host and the rule none, or the other way round. It serves its workload until its turn in the rollout.
    let of_policy = makes || o.host.is_some() == rule.policy().is_by_host();
    if o.rule_uid != rule.uid() {
        Some(DeleteReason::OtherRule)
    } else if o.host.as_deref() != host && of_policy && !fault("companion-stays-on-the-former-host") {
        // Before the template: a companion that no longer serves a workload doesn't wait for its turn in a rollout.
        Some(DeleteReason::Moved)
    } else if !makes {
        Some(DeleteReason::TemplateChanged)
    } else if o.failed && !fault("failed-companion-stays") {
        Some(DeleteReason::Failed)
    } else if o.gated {
        Some(DeleteReason::NotAdmitted)
    } else if o.ready
        && (o.trouble == Some(Cause::ResizeInfeasible)
            || o.trouble == Some(Cause::ResizeDeferred) && fault("deferred-resize-is-replaced"))
    {
        Some(DeleteReason::ResizeInfeasible)
    } else {
        None
    }
}

/// The object by which a rule's template is validated by dry run: the companion of a workload that doesn't exist, never to be
/// stored. It carries no facts: the reason to refuse made-up facts says nothing about the template.
///
/// # Errors
/// What is wrong with it already, in words for the user.
pub fn trial(rule: &Rule, home: &Home<'_>) -> Result<Value, String> {
    const NAME: &str = "outrigger-trial";
    let id = WorkloadId::new(NAME).map_err(|e| e.to_string())?;
    let key = CompanionKey::of(rule.name(), &id);
    let key = if rule.policy().is_on_all() { key.on(NAME) } else { key };
    let workload = Workload {
        resource_type: rule.resource_kind().to_owned().into(),
        node_name: Some(NAME.to_owned()),
        ..Workload::new(id, NAME, NAME)
    };
    match create(&key, rule, &workload, home) {
        Action::Create(mut object) => {
            if let Some(annotations) =
                object.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut)
            {
                annotations.remove(keys::WORKLOAD);
            }
            Ok(object)
        }
        Action::Refuse(_, message) => Err(message),
        other => Err(format!("{other:?}")),
    }
}

fn too_large(size: usize, workload: &Workload) -> Action {
    let message = format!(
        "annotations of the companion of {}/{} would have {size} bytes, at most {MAX_ANNOTATIONS} are allowed: \
         inject single fields instead of the whole workload, or fewer of them",
        workload.resource_namespace, workload.resource_name
    );
    Action::Refuse(Cause::AnnotationsTooLarge, message)
}

/// The template's labels, and those that name what the companion is for.
fn labels_of(key: &CompanionKey, template: &Value, tenant: &TenantId) -> Map<String, Value> {
    let mut labels: Map<String, Value> =
        metadata_map(template, "labels").iter().map(|(k, v)| (k.clone(), v.clone())).collect();
    labels.insert(keys::TENANT.into(), tenant.as_str().into());
    labels.insert(keys::RULE.into(), key.rule.label_value().into());
    labels.insert(keys::WORKLOAD.into(), key.label().into());
    labels
}

/// The template's annotations, and what the companion is made of.
fn annotations_of(
    key: &CompanionKey,
    rule: &Rule,
    template: &Value,
    host: Option<&str>,
) -> BTreeMap<String, String> {
    let of_template = metadata_map(template, "annotations").iter();
    let of_template = of_template.filter_map(|(k, v)| Some((k.clone(), v.as_str()?.to_owned())));
    let generation = rule.generation().to_string();
    let content_hash = Some(rule.content_hash()).filter(|hash| *hash != rule.template_hash());
    let own = [
        (keys::RULE_UID, Some(rule.uid())),
        (keys::RULE_GENERATION, Some(&*generation)),
        (keys::TEMPLATE_HASH, Some(rule.template_hash())),
        (keys::CONTENT_HASH, content_hash),
        (keys::TEMPLATE_PARTS, rule.parts()),
        (keys::ADMIN_RULE, Some(key.rule.as_str()).filter(|_| key.rule.is_admin())),
        (keys::HOST, host),
        (keys::DPU, key.dpu()),
    ];
    let own = own.into_iter().filter_map(|(key, text)| Some((key.to_owned(), text?.to_owned())));
    of_template.chain(own).collect()
}

fn create(key: &CompanionKey, rule: &Rule, workload: &Workload, home: &Home<'_>) -> Action {
    let template = &rule.template();
    let host = host(rule, workload, home.host_names);
    let mut annotations = annotations_of(key, rule, template, host);
    // What the object will have once the webhook has put the facts in and taken the workload out. The API server counts
    // after admission, so the workload that travels in between does not.
    let injected = rule.injected(workload);
    let mut after = annotations.clone();
    after.insert(keys::INJECTED.into(), injected_list(&injected));
    after.extend(injected);
    let size = annotations_size(&after);
    if size > MAX_ANNOTATIONS {
        return too_large(size, workload);
    }
    let kind = rule.kind();
    if let Some(refusal) = unknown_host(rule, workload, home) {
        return refusal;
    }
    // Admission requires the label of a Pod's Node, and the API server would refuse the Pod for it.
    if let Some((host, why)) = host.and_then(|host| Some((host, unlabelable(host)?)))
        && kind == Kind::Pod
    {
        let message = format!(
            "the workload's node is {host:?}, and {why}: give it a shorter name, or use dpuSelectionPolicy Any"
        );
        return Action::Refuse(Cause::HostNameUnusable, message);
    }
    let spec = match kind {
        Kind::Pod => {
            annotations.insert(keys::WORKLOAD.into(), workload.to_json().to_string());
            gated(template)
        }
        // Nothing has to be kept from being used until admission has seen it: a Pod that uses it is placed itself. So its
        // facts need not travel either.
        Kind::Claim => {
            annotations = after;
            claim::spec(template, rule.devices().host_attribute(), host)
        }
    };
    Action::Create(json!({
        "apiVersion": kind.api_version(),
        "kind": kind.as_str(),
        "metadata": {
            "name": name(key, home.tenant),
            "namespace": home.namespace,
            "labels": labels_of(key, template, home.tenant),
            "annotations": annotations,
            "ownerReferences": owners(rule, home.owned),
        },
        "spec": spec,
    }))
}

/// A Pod template's spec as the API server takes it, with the gate that the webhook takes off.
fn gated(template: &Value) -> Value {
    let mut spec = template.get("spec").cloned().unwrap_or_default();
    template::single_quoted(&mut spec);
    let mut spec = spec.as_object_mut().map(std::mem::take).unwrap_or_default();
    match spec.entry("schedulingGates").or_insert(Value::Null) {
        Value::Array(gates) => gates.push(json!({"name": keys::ADMISSION_GATE})),
        other => *other = json!([{"name": keys::ADMISSION_GATE}]),
    }
    Value::Object(spec)
}

/// The owner references of what is made for a rule; none where the rule lives elsewhere.
pub(crate) fn owners(rule: &Rule, owned: bool) -> Value {
    if !owned {
        return json!([]);
    }
    json!([{
        "apiVersion": format!("{}/v1alpha1", keys::WORKLOAD_GROUP),
        "kind": kind(rule.name().scope()),
        "name": rule.name().as_str(),
        "uid": rule.uid(),
        "controller": true,
        // The rule may go first; the garbage collector follows.
        "blockOwnerDeletion": false,
    }])
}

/// Kind of the custom resource that a rule is.
pub fn kind(scope: Scope) -> &'static str {
    match scope {
        Scope::Tenant => "WorkloadRule",
        Scope::Admin => "AdminWorkloadRule",
    }
}

/// Whether an owner reference makes a Pod the companion of what it refers to: a tenant's rule, as its controller.
pub fn is_owner(api_version: &str, kind: &str, controller: Option<bool>) -> bool {
    let group = api_version.split_once('/').map(|(group, _)| group);
    controller == Some(true) && kind == self::kind(Scope::Tenant) && group == Some(keys::WORKLOAD_GROUP)
}

/// The tenant's rule that owns a Pod made by the manager: name and uid of its controller reference.
pub fn owner(pod: &Value) -> Option<(RuleName, &str)> {
    let references = pod.pointer("/metadata/ownerReferences")?.as_array()?;
    let of_rule = references.iter().find(|r| {
        let text = |key: &str| r.get(key).and_then(Value::as_str).unwrap_or_default();
        is_owner(text("apiVersion"), text("kind"), r.get("controller").and_then(Value::as_bool))
    })?;
    let name = RuleName::new(of_rule.get("name")?.as_str()?).ok()?;
    Some((name, of_rule.get("uid")?.as_str()?))
}

/// The admin rule whose companion a Pod made by the manager is, and the tenant whose workload it serves: tenant, name and
/// uid of the rule. Found by what the manager wrote on it, because it may have no owner.
pub fn of_admin_rule(pod: &Value) -> Option<(TenantId, RuleName, &str)> {
    let tenant = TenantId::new(label(pod, keys::TENANT)?).ok()?;
    let name = RuleName::admin(annotation(pod, keys::ADMIN_RULE)?).ok()?;
    Some((tenant, name, annotation(pod, keys::RULE_UID)?))
}

#[cfg(test)]
mod golden;
#[cfg(test)]
pub(crate) mod tests;
