//! Validation of Machines: first what Imperator's webhook refuses, in its order and words, then what can't work besides.

use outrigger_api::Machine;
use outrigger_api::machine::{Gpu, MachineSpec};
use outrigger_core::field::FieldError;
use outrigger_core::groups::{Claim, Conflict, MachineView, conflict};
use outrigger_core::machine::MAX_RESERVATION_NAME;
use outrigger_core::map::HashSet;
use outrigger_core::quantity::Quantity;
use outrigger_core::syntax::{Form, is_label_name};
use outrigger_core::text::quoted;
use outrigger_core::{keys, machine as domain};
use serde::Deserialize;

use super::Reservation;
use crate::caches::{CachedMachine, Caches};
use crate::decision::Decision;
use crate::handler::{Admission, Context, Refusal};
use crate::review::Request;

/// Labels of nodes and Pods that must not become the label of a machine type.
const RESERVED: [&str; 6] = [
    keys::MACHINE_GROUP,
    keys::MACHINE_TYPE,
    keys::POD_ROLE,
    keys::NODE_POOL,
    keys::INJECTING_CONTAINER,
    keys::INJECT_RESOURCE_CONTAINER,
];

/// Validates a Machine. Two requests at once may both pass; the reservation decides between them.
pub(crate) fn validate(cx: Context<'_>, request: &mut Request) -> Result<Admission, Refusal> {
    let (caches, (new, old)) = (cx.caches, read(request)?);
    if old.as_ref().is_some_and(|old| old.spec == new.spec && group(old) == group(&new)) {
        // An object that was invalid before may still lose its finalizers.
        return Ok(Decision::allow().into());
    }
    let compiled = new.compile().map_err(|errors| Decision::deny_fields(422, &errors))?;
    let others = caches.other_machines(&compiled.name);
    let others: Vec<MachineView<'_>> = others.iter().map(|machine| machine.seen()).collect();
    let claim = MachineClaim::new(&new, old.as_ref(), request);
    let taken = conflict(&claim.claim, &others).err();
    if let Some(message) = refused(caches, &new, old.as_ref(), &compiled, taken.as_ref()) {
        return Ok(Decision::deny(403, message).into());
    }
    if let Some(conflict) = taken {
        return Ok(claim.refused(&conflict).into());
    }
    if let Some(error) = further(&new, &compiled) {
        return Ok(Decision::deny_fields(403, &[error]).into());
    }
    let reserve = claim.is_needed(request).then(|| Reservation::Machine(Box::new(claim)));
    Ok(Admission { reserve, ..Decision::warn(warnings(caches, &new, &compiled)).into() })
}

/// Whether a request claims a group or nodes.
pub(crate) fn is_claiming(request: &Request) -> bool {
    read(request).is_ok_and(|(new, old)| MachineClaim::new(&new, old.as_ref(), request).is_needed(request))
}

/// The object, and its state before.
fn read(request: &Request) -> Result<(Machine, Option<Machine>), Decision> {
    let new = Machine::deserialize(&request.object)
        .map_err(|error| Decision::deny(422, format!("spec: {error}")))?;
    // Where the old state can't be read, everything counts as changed.
    let old = Machine::deserialize(&request.old_object).ok().filter(|_| request.operation == "UPDATE");
    Ok((new, old))
}

fn group(machine: &Machine) -> Option<&String> {
    machine.metadata.labels.as_ref()?.get(keys::MACHINE_GROUP)
}

/// The first of Imperator's own refusals. A node that was in the pool before need not exist: it may be about to return.
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
    let mut types = HashSet::default();
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

/// The error of a GPU. A DeviceClass replaces the type, and selects the devices itself.
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

/// The first error that Imperator doesn't check for.
fn further(new: &Machine, compiled: &domain::Machine) -> Option<FieldError> {
    let mut nodes = HashSet::default();
    if let Some((i, name)) = names(&new.spec).enumerate().find(|(_, name)| !nodes.insert(*name)) {
        let message = format!("is {name:?}, which is in the pool already; remove one of both");
        return Some(FieldError::new(format_args!("spec.nodePool[{i}].name"), message));
    }
    let group = compiled.group.as_deref().unwrap_or_default();
    if !group.is_empty() && !Form::DnsSubdomain.accepts(&domain::pool_name(group)) {
        let message = format!(
            "is {:?}, and the MachineNodePool of the group is named after it; use {}",
            quoted(group),
            Form::DnsSubdomain
        );
        return Some(FieldError::new(format_args!("metadata.labels[{}]", keys::MACHINE_GROUP), message));
    }
    let types = new.spec.machine_types.iter().enumerate();
    types.map(|(i, type_)| (format!("spec.machineTypes[{i}]"), type_)).find_map(|(path, type_)| {
        let gpu = type_.spec.gpu.as_ref();
        name_fault(group, &type_.name, &path)
            .or_else(|| gpu.and_then(|gpu| gpu_fault(gpu, &format!("{path}.spec.gpu"))))
    })
}

/// What is wrong with the name of a type, which names a label of nodes, and with the group's a Service and a StatefulSet.
fn name_fault(group: &str, name: &str, path: &str) -> Option<FieldError> {
    let reservation = domain::reservation_name(group, name);
    let message = if !is_label_name(name) {
        format!(
            "is {:?}; it becomes the name of a label of nodes, so use letters and digits, with '-', '_' or '.' between",
            quoted(name)
        )
    } else if RESERVED.contains(&domain::type_key(name).as_str()) {
        format!(
            "is {name:?}, but the label {} means something else; choose another name",
            domain::type_key(name)
        )
    // Without a group's name nothing is reserved; a warning says so.
    } else if !group.is_empty() && !Form::ServiceName.accepts(&reservation) {
        format!("makes {:?} with the group's name; use {}", quoted(&reservation), Form::ServiceName)
    } else {
        return None;
    };
    Some(FieldError::new(format_args!("{path}.name"), message))
}

/// What is wrong with the texts of a GPU: a resource of containers, and the value of a label of nodes.
fn gpu_fault(gpu: &Gpu, path: &str) -> Option<FieldError> {
    let fault = |key: &str, message: String| Some(FieldError::new(format_args!("{path}.{key}"), message));
    let class = &gpu.device_class;
    if !gpu.type_.is_empty() && !class.is_empty() {
        return fault("deviceClass", "stands beside type; set one of both".to_owned());
    }
    if matches!(&*gpu.type_, "cpu" | "memory") {
        let message = format!("is {:?}, which the slot has anyway; name the GPUs' resource", gpu.type_);
        return fault("type", message);
    }
    if !gpu.type_.is_empty() && !Form::Resource.accepts(&gpu.type_) {
        return Form::Resource.fault(format_args!("{path}.type"), &gpu.type_);
    }
    if !gpu.type_.is_empty() && !domain::is_labeled_gpu(&gpu.type_) {
        let message = format!(
            "is {:?}, but family, product and machine are labels of nodes with NVIDIA's GPUs; use a resource of {}, or \
             deviceClass instead of type",
            quoted(&gpu.type_),
            keys::GPU_DOMAIN
        );
        return fault("type", message);
    }
    if !class.is_empty() && !Form::DnsSubdomain.accepts(class) {
        return fault("deviceClass", format!("is {:?}, which is no name of a DeviceClass", quoted(class)));
    }
    if !class.is_empty() && !Form::Resource.accepts(&domain::of_device_class(class)) {
        let message = format!(
            "is {:?}; containers ask for its devices by the resource {}NAME, whose name has at most 63 characters: give the class an \
             extendedResourceName, and set it as type",
            quoted(class),
            keys::DEVICE_CLASS_RESOURCE
        );
        return fault("deviceClass", message);
    }
    let labels = [("family", &gpu.family), ("product", &gpu.product), ("machine", &gpu.machine)];
    labels.into_iter().find_map(|(key, value)| Form::LabelValue.fault(format_args!("{path}.{key}"), value))
}

/// Warnings for what is probably a mistake, but was always allowed.
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
        if !gpu.num.is_whole() {
            warnings.push(format!("{path}.spec.gpu.num: is {}; Pods can ask for whole ones only", gpu.num));
        }
        if !said.device_class.is_empty() && !caches.is_device_class(&said.device_class) {
            warnings.push(format!(
                "{path}.spec.gpu.deviceClass: there is no DeviceClass {:?} yet",
                quoted(&said.device_class)
            ));
        }
    }
    warnings
}

impl CachedMachine {
    /// The Machine in the form that claims are compared with.
    pub fn seen(&self) -> MachineView<'_> {
        MachineView {
            name: &self.name,
            uid: &self.uid,
            generation: self.generation,
            group: self.group.as_deref(),
            nodes: &self.nodes,
        }
    }
}

/// What a Machine has and its state before had not; all that it has where there is none.
pub fn claimed(new: &Machine, old: Option<&Machine>) -> Claim {
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

/// What a Machine asks for and had not before: its group and nodes, which no other Machine may have.
#[derive(Debug, Clone)]
pub struct MachineClaim {
    /// The claim, without the time at which it is written down.
    pub claim: Claim,
    /// Nothing is written down.
    pub dry_run: bool,
    /// Names of the nodes in the pool, in the Machine's order.
    pub pool: Vec<String>,
}

impl MachineClaim {
    fn new(new: &Machine, old: Option<&Machine>, request: &Request) -> Self {
        let claim = claimed(new, old);
        let pool = names(&new.spec).map(str::to_owned).collect();
        Self { claim, dry_run: request.dry_run == Some(true), pool }
    }

    fn is_needed(&self, request: &Request) -> bool {
        request.sub_resource.is_empty() && (self.claim.group.is_some() || !self.claim.nodes.is_empty())
    }

    /// The refusal where another Machine has what this one claims.
    pub fn refused(&self, conflict: &Conflict) -> Decision {
        match conflict {
            Conflict::Group(_) => Decision::deny(403, DUPLICATE_GROUP),
            Conflict::Node(i, other, group) => {
                let name = self.claim.nodes.get(*i).map_or("", String::as_str);
                let at = self.pool.iter().position(|node| node == name).unwrap_or_default();
                let error = FieldError::new(
                    format_args!("spec.nodePool[{at}].name"),
                    format_args!(
                        "is {name:?}, which is in machine-group <{group}> (Machine {other}); a node is in one group only: \
                         take it out there first"
                    ),
                );
                Decision::deny_fields(403, &[error])
            }
            Conflict::Crowded => Decision::deny(503, "too many Machines at once; try again"),
        }
    }

    /// The refusal where it is unknown whether another Machine has what this one claims.
    pub fn unavailable(why: &str) -> Decision {
        let message =
            format!("which Machine has which group and nodes can't be determined now: {why}; try again");
        Decision::deny(503, message)
    }
}

#[cfg(test)]
mod tests;
