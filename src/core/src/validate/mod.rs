//! What a Pod in a tenant's namespace may not be, whoever made it.
//!
//! Mutation puts the isolation in; this looks at the final object, after every other webhook, and believes nothing.
//! An update is validated by what it changes ([`update`]): a Pod that is older than one of these checks can still lose its
//! finalizers. Nothing is exempt for being deleted.
//!
//! The load-bearing rule is the required node affinity, which the kubelet checks again; everything else closes ways
//! around it, or keeps a Pod from reaching what else is on its DPU.

mod admin;
mod claims;
mod isolation;
mod keys;
mod references;
mod reserved;
mod size;

pub mod pod_security;
pub mod same;

pub use admin::template as admin_template;
pub use claims::{Writer, claim, claim_warnings, device_requests};
pub use reserved::is_of_pod;
pub use size::{MAX_BYTES, MAX_COMPANION_BYTES, json_bytes, too_large};

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

use crate::claim::Source;
use crate::field::{FieldError, FieldErrors};
use crate::mutate;
use crate::rule::Rule;
use crate::template::{self, Kind};
use crate::tenant::Policy;

/// Context of the admission request, all of it from the verified request and from watch caches.
#[derive(Debug, Clone, Copy)]
pub struct ValidationContext<'a> {
    /// What the tenant of the Pod's namespace may do.
    pub policy: &'a Policy,
    /// The Pod's namespace.
    pub namespace: &'a str,
    /// The request comes from Outrigger's manager, which alone may set Outrigger's own keys.
    pub manager: bool,
    /// The rule that the Pod is a companion of. Set only when the manager makes it.
    pub rule: Option<&'a Rule>,
    /// Schedulers that Pods may name.
    pub schedulers: &'a [String],
    /// The cluster's default PriorityClass, which the API server fills in.
    pub default_priority_class: Option<&'a str>,
    /// ResourceClaims that were made for one workload: name of the claim to label value of the workload.
    pub claims: &'a BTreeMap<String, String>,
    /// ResourceClaims that Kubernetes made for one Pod: name of the claim to name of the Pod.
    pub pod_claims: &'a BTreeMap<String, String>,
    /// Extended resources that DeviceClasses stand behind: name of the resource to names of the classes.
    pub device_resources: &'a BTreeMap<String, BTreeSet<String>>,
}

impl<'a> ValidationContext<'a> {
    /// A request of a user other than the manager, in a cluster without claims, DeviceClasses and a default PriorityClass.
    pub fn new(policy: &'a Policy, namespace: &'a str, schedulers: &'a [String]) -> Self {
        static NONE: BTreeMap<String, String> = BTreeMap::new();
        static NO_CLASSES: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        Self {
            policy,
            namespace,
            manager: false,
            rule: None,
            schedulers,
            default_priority_class: None,
            claims: &NONE,
            pod_claims: &NONE,
            device_resources: &NO_CLASSES,
        }
    }
}

/// Most faults that one answer tells.
pub const MAX_FAULTS: usize = 16;

/// What a check protects, which decides whether a tenant's level of enforcement governs it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protects {
    /// That Pods run on the DPUs of their tenant only, where the scheduler puts them.
    Placement,
    /// Who has a DPU, a device, or anything else that the platform assigns.
    Ownership,
    /// Other tenants, and the infrastructure.
    Isolation,
    /// That nobody passes for somebody else.
    Impersonation,
    /// The tenant's own Pods from each other, and nobody else. Only what neither another tenant nor the infrastructure can be
    /// harmed by belongs here; in doubt it is one of the others.
    OwnPods,
}

impl Protects {
    /// Whether the level of enforcement governs such checks. All others hold at every level.
    pub const fn is_governed(self) -> bool {
        matches!(self, Self::OwnPods)
    }
}

/// One check: adds what it finds.
type Check = fn(&Value, &ValidationContext<'_>, &mut Vec<FieldError>);

/// What holds for every Pod, at creation and after every change: what each check is called, what it protects, and the check.
/// Checks that aren't listed here hold at every level of enforcement.
const CHECKS: &[(&str, Protects, Check)] = &[
    ("node affinity", Protects::Placement, isolation::placement),
    ("tolerations", Protects::Placement, isolation::tolerations),
    ("scheduler", Protects::Placement, isolation::scheduler),
    ("grace period", Protects::Ownership, isolation::grace),
    ("Pod affinity", Protects::Isolation, isolation::pod_affinity),
    ("Pod security", Protects::Isolation, pod_security::check),
    ("service accounts, tokens and certificates", Protects::Impersonation, references::accounts),
    ("priority and runtime classes", Protects::Isolation, references::classes),
    ("claims of workloads", Protects::Impersonation, references::claims),
    ("claims of other Pods", Protects::OwnPods, references::pod_claims),
    ("device classes", Protects::Ownership, references::device_classes),
    ("owners", Protects::Impersonation, references::owners),
    ("finalizers", Protects::Ownership, keys::finalizers),
];

/// The names by which a Tenant's exceptions name checks: those that its level of enforcement governs.
pub fn exceptable() -> impl Iterator<Item = String> {
    CHECKS.iter().filter(|(_, protects, _)| protects.is_governed()).map(|(name, ..)| name_in_api(name))
}

/// The name of a check as exceptions have it: `ClaimsOfOtherPods` for "claims of other Pods".
pub fn name_in_api(check: &str) -> String {
    let upper = |word: &str| {
        word.chars().take(1).flat_map(char::to_uppercase).chain(word.chars().skip(1)).collect::<String>()
    };
    check.split(' ').map(upper).collect()
}

/// Everything that forbids the creation of a Pod.
pub fn create(pod: &Value, facts: &ValidationContext<'_>) -> Vec<FieldError> {
    let mut faults = all(pod, facts);
    isolation::unbound(pod, &mut faults);
    keys::unchanged(pod, &Value::Null, facts.manager, &mut faults);
    faults
}

/// Everything that forbids a rule's template, as the Pod that would be created from it: with the isolation put in, and made by the
/// manager. Paths begin at `root`, where the template's own `metadata` and `spec` are.
pub fn template(template: &Value, root: &str, facts: &ValidationContext<'_>) -> Vec<FieldError> {
    if template::kind(template) == Kind::Claim {
        return under(root, claims::claim(template, &Value::Null, facts.policy, Writer::Manager));
    }
    let mut pod = Map::new();
    for part in ["metadata", "spec"] {
        pod.insert(
            part.to_owned(),
            template.get(part).filter(|part| part.is_object()).cloned().unwrap_or_default(),
        );
    }
    let mut pod = Value::Object(pod);
    let tenant = mutate::PodContext { tenant: Some(&facts.policy.tenant), ..mutate::PodContext::default() };
    let faults = match mutate::mutate(&mut pod, &tenant) {
        Ok(_) => create(&pod, &ValidationContext { manager: true, ..*facts }),
        Err(error) => vec![error],
    };
    under(root, faults)
}

/// Everything that forbids the claims that a rule's companions are given. Paths begin at the custom resource.
pub fn device_claims(rule: &Rule, facts: &ValidationContext<'_>) -> Vec<FieldError> {
    let claims = rule.devices().claims().iter().enumerate();
    claims
        .filter_map(|(i, claim)| {
            let Source::Template { spec, .. } = &claim.source else { return None };
            let object = json!({"spec": spec.tree()});
            let faults = claims::claim(&object, &Value::Null, facts.policy, Writer::Manager);
            Some(under(&format!("spec.deviceClaims[{i}]"), faults))
        })
        .flatten()
        .collect()
}

/// The same faults with paths that begin further up.
fn under(root: &str, faults: Vec<FieldError>) -> Vec<FieldError> {
    faults.into_iter().map(|fault| fault.below(root)).collect()
}

/// Everything that forbids the change of a Pod from `old` to `pod`: what is wrong with it now and was not before ([`same`]).
pub fn update(pod: &Value, old: &Value, facts: &ValidationContext<'_>) -> Vec<FieldError> {
    let mut faults = all(pod, facts);
    if !faults.is_empty() {
        faults = same::added(&faults, pod, &all(old, facts), old);
    }
    isolation::still_unbound(pod, old, &mut faults);
    keys::unchanged(pod, old, facts.manager, &mut faults);
    faults
}

fn all(pod: &Value, facts: &ValidationContext<'_>) -> Vec<FieldError> {
    let mut faults = Vec::new();
    if !pod.get("spec").is_some_and(Value::is_object) {
        faults.add("spec", "must be an object");
        return faults;
    }
    for (name, protects, check) in CHECKS {
        let before = faults.len();
        check(pod, facts, &mut faults);
        faults[before..]
            .iter_mut()
            .for_each(|fault| fault.governed = protects.is_governed().then_some(*name));
    }
    faults
}

/// Faults as one message, the first [`MAX_FAULTS`] of them.
pub fn message(faults: &[FieldError]) -> String {
    let mut text: Vec<String> = faults.iter().take(MAX_FAULTS).map(ToString::to_string).collect();
    if faults.len() > MAX_FAULTS {
        text.push(format!("and {} more", faults.len() - MAX_FAULTS));
    }
    text.join("; ")
}

/// The entries of a list, with their paths. What is no list is empty: the API server has refused it before us, and the
/// checks that isolation rests on ask for what must be there, not for what must not.
fn entries<'a>(
    parent: &'a Value,
    path: &str,
    key: &str,
) -> impl Iterator<Item = (String, &'a Value)> + use<'a> {
    let path = format!("{path}.{key}");
    let list = parent.get(key).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    list.iter().enumerate().map(move |(i, entry)| (format!("{path}[{i}]"), entry))
}

/// A text that is there and not empty.
fn text<'a>(parent: &'a Value, key: &str) -> Option<&'a str> {
    parent.get(key).and_then(Value::as_str).filter(|text| !text.is_empty())
}

#[cfg(test)]
mod tests;
