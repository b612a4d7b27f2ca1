//! Validation of Machines: what Imperator's webhook refuses, in its order and words, and then what it should have refused.

use std::collections::HashSet;

use json_patch::Patch;
use outrigger_api::Machine;
use outrigger_api::machine::{Gpu, MachineSpec};
use outrigger_core::field::FieldError;
use outrigger_core::groups::{Claim, Conflict, Seen, conflict};
use outrigger_core::ids::{is_dns_label, is_label_name};
use outrigger_core::machine::MAX_RESERVATION_NAME;
use outrigger_core::quantity::Quantity;
use outrigger_core::{keys, machine as domain};
use serde::Deserialize;

use super::{Behind, Settings, deny, deny_fields, expect_kind};
use crate::caches::{CachedMachine, Caches};
use crate::review::{Decision, Request};

/// The kind that is validated here.
const KIND: (&str, &str, &str) = (keys::MACHINE_GROUP_DOMAIN, "v1alpha1", "Machine");

/// Labels that mean something else on nodes and Pods than a machine type.
const RESERVED: [&str; 5] =
    [keys::MACHINE_GROUP, keys::MACHINE_TYPE, keys::POD_ROLE, keys::NODE_POOL, keys::INJECTING_CONTAINER];

/// Longest name of a Service.
const MAX_NAME: usize = 63;

/// Validates Machines.
///
/// # Errors
/// Never: what two requests at once may not both have is settled by their claims, see [`claim`].
pub fn validate_machine(caches: &Caches, _: &Settings, request: &mut Request) -> Result<Decision, Behind> {
    if let Err(denied) = expect_kind(request, &[KIND]) {
        return Ok(denied);
    }
    Ok(validate(caches, request))
}

fn validate(caches: &Caches, request: &Request) -> Decision {
    let (new, old) = match read(request) {
        Ok(both) => both,
        Err(denied) => return denied,
    };
    if old.as_ref().is_some_and(|old| old.spec == new.spec && group(old) == group(&new)) {
        // One that was no better before may still lose its finalizers.
        return Decision::allow();
    }
    let compiled = match new.compile() {
        Ok(compiled) => compiled,
        Err(faults) => return deny_fields(422, &faults),
    };
    let seen = caches.other_machines(&compiled.name);
    let seen: Vec<Seen<'_>> = seen.iter().map(|machine| machine.seen()).collect();
    let claim = claim_of(&new, old.as_ref());
    let taken = conflict(&claim, &seen).err();
    if let Some(message) = refused(caches, &new, old.as_ref(), &compiled, taken.as_ref()) {
        return deny(403, message);
    }
    if let Some(conflict) = taken {
        return taken_by(&claim, &new, &conflict);
    }
    if let Some(fault) = further(&new, &compiled) {
        return deny_fields(403, &[fault]);
    }
    Decision::Allow { patch: Patch(Vec::new()), warnings: warnings(caches, &new, &compiled) }
}

/// The object and what it was before.
fn read(request: &Request) -> Result<(Machine, Option<Machine>), Decision> {
    let new = Machine::deserialize(&request.object).map_err(|error| deny(422, format!("spec: {error}")))?;
    // What it was doesn't matter where it can't be read: then everything has changed.
    let old = Machine::deserialize(&request.old_object).ok().filter(|_| request.operation == "UPDATE");
    Ok((new, old))
}

fn group(machine: &Machine) -> Option<&String> {
    machine.metadata.labels.as_ref()?.get(keys::MACHINE_GROUP)
}

/// Imperator's own refusals: the first one. A node that was in the pool before need not be there any more: it may be just
/// about to come back.
fn refused(
    caches: &Caches,
    new: &Machine,
    old: Option<&Machine>,
    compiled: &domain::Machine,
    taken: Option<&Conflict>,
) -> Option<String> {
    if group(new).is_none() {
        return Some(format!("{} is must be set in .metadata.labels", keys::MACHINE_GROUP));
    }
    if matches!(taken, Some(Conflict::Group(_))) {
        return Some(DUPLICATE_GROUP.to_owned());
    }
    let had: HashSet<&str> = old.iter().flat_map(|old| names(&old.spec)).collect();
    let gone = |name: &&str| !had.contains(name) && caches.node_owner(name).is_none();
    if let Some(node) = names(&new.spec).find(gone) {
        return Some(format!("failed to find node {node} in Kubernetes Cluster"));
    }
    let mut types = HashSet::new();
    if let Some(twice) = compiled.types.iter().find(|type_| !types.insert(&*type_.name)) {
        return Some(format!("machineType name <{}> is duplicated", twice.name));
    }
    for node in &compiled.pool {
        let [type_] = node.types.as_slice() else {
            return Some(format!(
                "<{}>; can not set multiple machineType in nodePool.machineType",
                node.name
            ));
        };
        if !types.contains(&**type_) {
            return Some(format!("{type_} was not found in spec.machineTypes"));
        }
    }
    new.spec.machine_types.iter().find_map(|type_| gpu(type_.spec.gpu.as_ref()?)).map(str::to_owned)
}

const DUPLICATE_GROUP: &str = "machineGroup label is duplicate, machineGroup must be set as unique";

fn names(spec: &MachineSpec) -> impl Iterator<Item = &str> {
    spec.node_pool.iter().map(|node| &*node.name)
}

/// A DeviceClass stands for the type, and picks the devices itself.
fn gpu(gpu: &Gpu) -> Option<&'static str> {
    let by_class = !gpu.device_class.is_empty();
    if gpu.type_.is_empty() && !by_class {
        return Some("gpu.type must be set value");
    }
    if gpu.num.parse::<Quantity>().is_ok_and(|num| num.is_negative()) {
        return Some("gpu.num must be set 0 or more value");
    }
    match [&gpu.family, &gpu.product, &gpu.machine].iter().filter(|value| !value.is_empty()).count() {
        0 if !by_class => Some("you must set a value for either gpu.family, gpu.product or gpu.machine"),
        0 | 1 => None,
        _ => Some("only one GPU family, product or machine cane be set"),
    }
}

/// What can't work, and Imperator doesn't look at.
fn further(new: &Machine, compiled: &domain::Machine) -> Option<FieldError> {
    let mut nodes = HashSet::new();
    if let Some((i, name)) = names(&new.spec).enumerate().find(|(_, name)| !nodes.insert(*name)) {
        let message = format!("is {name:?}, which is in the pool already; remove one of both");
        return Some(FieldError::new(format_args!("spec.nodePool[{i}].name"), message));
    }
    for (i, type_) in new.spec.machine_types.iter().enumerate() {
        let path = format!("spec.machineTypes[{i}]");
        let fault = |key: &str, message: String| Some(FieldError::new(format_args!("{path}.{key}"), message));
        let name = &type_.name;
        if !is_label_name(name) {
            let message = format!(
                "is {:?}; it becomes the name of a label of nodes, so use letters and digits, with '-', '_' or '.' between",
                short(name)
            );
            return fault("name", message);
        }
        if RESERVED.contains(&domain::type_key(name).as_str()) {
            let message = format!(
                "is {name:?}, but the label {} means something else; choose another name",
                domain::type_key(name)
            );
            return fault("name", message);
        }
        // Without a group's name there are no reservations; there is a warning for that.
        if let Some(group) = compiled.group.as_deref().filter(|group| !group.is_empty()) {
            let reservation = domain::reservation_name(group, name);
            if !is_service_name(&reservation) {
                let message = format!(
                    "makes {:?} with the group's name, which has to be the name of a Service: at most {MAX_NAME} \
                     lower-case letters, digits and '-', a letter first",
                    short(&reservation)
                );
                return fault("name", message);
            }
        }
        let Some(gpu) = &type_.spec.gpu else { continue };
        if !gpu.type_.is_empty() && !gpu.device_class.is_empty() {
            let message = "stands beside type; set one of both".to_owned();
            return fault("spec.gpu.deviceClass", message);
        }
        if matches!(&*gpu.type_, "cpu" | "memory") {
            let message = format!("is {:?}, which the slot has anyway; name the GPUs' resource", gpu.type_);
            return fault("spec.gpu.type", message);
        }
        if !gpu.device_class.is_empty() && !is_class_name(&gpu.device_class) {
            let message = format!("is {:?}, which is no name of a DeviceClass", short(&gpu.device_class));
            return fault("spec.gpu.deviceClass", message);
        }
    }
    None
}

/// A label of DNS that begins with a letter (RFC 1035).
fn is_service_name(name: &str) -> bool {
    name.len() <= MAX_NAME && is_dns_label(name) && name.starts_with(|c: char| c.is_ascii_lowercase())
}

fn is_class_name(name: &str) -> bool {
    outrigger_core::ids::is_dns_subdomain(name)
}

/// What is probably not meant, but always was allowed.
fn warnings(caches: &Caches, new: &Machine, compiled: &domain::Machine) -> Vec<String> {
    let mut warnings = Vec::new();
    if compiled.group.as_deref() == Some("") {
        warnings.push(format!(
            "metadata.labels[{}]: is empty, so nothing can be reserved; name the group",
            keys::MACHINE_GROUP
        ));
    }
    for (i, (type_, said)) in compiled.types.iter().zip(&new.spec.machine_types).enumerate() {
        let path = format!("spec.machineTypes[{i}]");
        for (name, amount) in [("cpu", type_.cpu), ("memory", type_.memory)] {
            if amount.is_negative() || amount.is_zero() {
                warnings.push(format!(
                    "{path}.spec.{name}: is {amount}; no Pod can ask for that and take a slot"
                ));
            }
        }
        let group = compiled.group.as_deref().unwrap_or_default();
        let length = domain::reservation_name(group, &type_.name).len();
        if length > MAX_RESERVATION_NAME {
            warnings.push(format!(
                "{path}.name: with the group's it has {length} characters; beyond {MAX_RESERVATION_NAME} nothing is reserved"
            ));
        }
        let (Some(gpu), Some(said)) = (&type_.gpu, &said.spec.gpu) else { continue };
        if gpu.num.holds(&Quantity::whole(1)).is_some_and(|whole| Quantity::whole(whole) != gpu.num) {
            warnings.push(format!("{path}.spec.gpu.num: is {}; Pods can ask for whole ones only", gpu.num));
        }
        if !said.device_class.is_empty() && !caches.is_device_class(&said.device_class) {
            warnings.push(format!(
                "{path}.spec.gpu.deviceClass: there is no DeviceClass {:?} yet",
                short(&said.device_class)
            ));
        }
    }
    warnings
}

fn short(text: &str) -> String {
    text.chars().take(80).collect()
}

impl CachedMachine {
    /// As claims are compared with it.
    pub(crate) fn seen(&self) -> Seen<'_> {
        Seen {
            name: &self.name,
            uid: &self.uid,
            generation: self.generation,
            group: self.group.as_deref(),
            nodes: &self.nodes,
        }
    }
}

/// What [`validate_machine`] has allowed and no other Machine may have: nothing where the Machine had all of it before.
pub fn claim(request: &Request) -> Option<Claim> {
    let kind = &request.kind;
    if (&*kind.group, &*kind.kind, &*request.sub_resource) != (KIND.0, KIND.2, "") {
        return None;
    }
    let (new, old) = read(request).ok()?;
    let claim = claim_of(&new, old.as_ref());
    (claim.group.is_some() || !claim.nodes.is_empty()).then_some(claim)
}

/// When it is made says who writes it down.
fn claim_of(new: &Machine, old: Option<&Machine>) -> Claim {
    let had: HashSet<&str> = old.iter().flat_map(|old| names(&old.spec)).collect();
    let metadata = &new.metadata;
    Claim {
        machine: metadata.name.clone().unwrap_or_default(),
        uid: metadata.uid.clone().unwrap_or_default(),
        generation: metadata.generation.unwrap_or_default(),
        group: group(new).filter(|group| old.and_then(self::group) != Some(group)).cloned(),
        nodes: names(&new.spec).filter(|name| !had.contains(name)).map(str::to_owned).collect(),
        at: 0,
    }
}

/// That another Machine has what this one claims.
pub fn refuse(claim: &Claim, request: &Request, conflict: &Conflict) -> Decision {
    match read(request) {
        Ok((new, _)) => taken_by(claim, &new, conflict),
        Err(denied) => denied,
    }
}

/// That nobody can tell whether another Machine has what this one claims.
pub fn unavailable(why: &str) -> Decision {
    deny(503, format!("which Machine has which group and nodes can't be told now: {why}; try again"))
}

fn taken_by(claim: &Claim, new: &Machine, conflict: &Conflict) -> Decision {
    match conflict {
        Conflict::Group(_) => deny(403, DUPLICATE_GROUP.to_owned()),
        Conflict::Node(i, other, group) => {
            let name = claim.nodes.get(*i).map_or("", String::as_str);
            let at = names(&new.spec).position(|node| node == name).unwrap_or_default();
            let fault = FieldError::new(
                format_args!("spec.nodePool[{at}].name"),
                format_args!(
                    "is {name:?}, which is in machine-group <{group}> (Machine {other}); a node is in one group only: take \
                     it out there first"
                ),
            );
            deny_fields(403, &[fault])
        }
        Conflict::Crowded => deny(503, "too many Machines at once; try again".to_owned()),
    }
}

#[cfg(test)]
mod tests;
