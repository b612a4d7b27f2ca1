//! Guests of Machines: which slot a Pod takes, and what may become of a Pod that has one. Refusals begin with the words of
//! Imperator's webhook.

use std::sync::Arc;

use outrigger_core::keys;
use outrigger_core::machine::{self, MachineType};
use outrigger_core::mutate::machine::{Facts, is_done, outgrown};
use outrigger_core::slots::Ask;
use prometheus_client::encoding::EncodeLabelValue;
use serde_json::{Map, Value};

use super::{Behind, Settings, deny, deny_fields, expect_kind};
use crate::caches::{CachedMachine, Caches};
use crate::review::{Decision, Request};

/// How Imperator's webhook refuses an update.
const NO_UPDATE: &str = "it is forbidden to update the Pod";

/// What came of a guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelValue)]
pub enum Outcome {
    /// It has a slot.
    Admitted,
    /// There is no such machine group.
    UnknownGroup,
    /// The group has no such machine type.
    UnknownType,
    /// The Machine can't be read.
    WrongMachine,
    /// Nobody has counted the slots yet.
    NotCounted,
    /// No slot is left.
    NoneLeft,
    /// Slots can't be counted now.
    Unavailable,
    /// Its update would have changed which slot it has, or what that is worth.
    Changed,
}

impl Outcome {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::Admitted,
        Self::UnknownGroup,
        Self::UnknownType,
        Self::WrongMachine,
        Self::NotCounted,
        Self::NoneLeft,
        Self::Unavailable,
        Self::Changed,
    ];
}

/// The slot that a guest asks for.
#[derive(Debug, Clone)]
pub struct Slot {
    machine: Arc<CachedMachine>,
    group: String,
    type_: MachineType,
    /// How many there are.
    pub slots: u32,
}

impl Slot {
    /// The machine group.
    pub fn group(&self) -> &str {
        &self.group
    }

    /// Name of the machine type.
    pub fn type_name(&self) -> &str {
        &self.type_.name
    }

    /// Name and uid of the Machine.
    pub fn owner(&self) -> (&str, &str) {
        (&self.machine.name, &self.machine.uid)
    }

    pub(super) fn facts(&self) -> Facts<'_> {
        Facts { group: &self.group, type_: &self.type_ }
    }
}

/// A guest that has been found in order, and whose slot is to be taken.
#[derive(Debug, Clone)]
pub struct Taking {
    /// What it takes.
    pub slot: Slot,
    /// Who takes it.
    pub ask: Ask,
    /// The Pod's name as refusals tell it.
    pub name: String,
    /// The Pod's namespace.
    pub namespace: String,
}

impl Taking {
    /// That no slot is left.
    pub fn none_left(&self) -> Decision {
        none_left(&self.name, &self.namespace, self.slot.type_name())
    }

    /// That nobody can tell whether one is.
    pub fn unavailable(&self, why: &str) -> Decision {
        let Self { name, namespace, slot, .. } = self;
        let message = format!(
            "name: <{name}>, namespace: <{namespace}>; the slots of <{}> can't be counted now: {why}; try again",
            slot.type_name()
        );
        deny(503, message)
    }
}

fn none_left(name: &str, namespace: &str, type_: &str) -> Decision {
    deny(403, format!("name: <{name}>, namespace: <{namespace}>; there is no <{type_}> left"))
}

/// The slot that the creation of a Pod takes; none where it is no guest, or where guests get none.
///
/// # Errors
/// Why it can't have one.
pub(super) fn of(caches: &Caches, request: &Request) -> Result<Option<Slot>, (Outcome, Decision)> {
    if !caches.is_injected(&request.namespace) {
        return Ok(None);
    }
    let Some((group, type_)) = guest(&request.object) else { return Ok(None) };
    let slot = find(caches, group, type_)?;
    let name = name(&request.object);
    // Early, and for nothing: what counts is asked when the slot is taken.
    if caches.other_guests(group, type_, &request.namespace, name) >= slot.slots as usize {
        return Err((Outcome::NoneLeft, none_left(name, &request.namespace, type_)));
    }
    Ok(Some(slot))
}

fn find(caches: &Caches, group: &str, type_: &str) -> Result<Slot, (Outcome, Decision)> {
    let cached = caches.machine(group).ok_or_else(|| {
        (Outcome::UnknownGroup, deny(403, format!("failed to find machine-group <{group}>")))
    })?;
    let machine = cached.machine.as_ref().map_err(|faults| {
        let told = outrigger_core::validate::message(faults);
        (Outcome::WrongMachine, deny(422, format!("Machine {}: {told}", cached.name)))
    })?;
    let wanted = machine.type_named(type_).cloned().ok_or_else(|| {
        let message = format!("machine-group, <{group}> does not have machine-type, <{type_}>");
        (Outcome::UnknownType, deny(403, message))
    })?;
    let usage = cached.usages.get(type_).ok_or_else(|| {
        let message = format!(
            "imperator controller is preparing: Machine {} doesn't tell the slots of <{type_}> yet in \
             status.availableMachines; try again",
            cached.name
        );
        (Outcome::NotCounted, deny(403, message))
    })?;
    let slots = usage.slots();
    Ok(Slot { machine: cached.clone(), group: group.to_owned(), type_: wanted, slots })
}

/// Validates guests: that one that is created has been injected, and that an update leaves it what it is.
///
/// # Errors
/// [`Behind`] when a cache has to catch up first.
pub fn validate_guest(caches: &Caches, _: &Settings, request: &mut Request) -> Result<Decision, Behind> {
    if let Err(denied) = expect_kind(request, &[("", "v1", "Pod")]) {
        return Ok(denied);
    }
    let (outcome, decision) = match (request.operation.as_str(), request.sub_resource.as_str()) {
        ("CREATE", "") => create(caches, request)?,
        ("UPDATE", "") => update(request),
        ("UPDATE", "resize") => resize(caches, request),
        _ => (None, Decision::allow()),
    };
    request.guest = outcome;
    Ok(decision)
}

fn create(caches: &Caches, request: &Request) -> Result<(Option<Outcome>, Decision), Behind> {
    if guest(&request.object).is_none() {
        return Ok((None, Decision::allow()));
    }
    if !caches.is_injected(&request.namespace) {
        // Only what is in such namespaces is sent here.
        return Err(Behind(format!(
            "namespace {} is not known yet to have the label {}={}",
            request.namespace,
            keys::INJECT_RESOURCE,
            keys::INJECT_ENABLED
        )));
    }
    let slot = match of(caches, request) {
        Ok(Some(slot)) => slot,
        Ok(None) => return Ok((None, Decision::allow())),
        Err((outcome, denied)) => return Ok((Some(outcome), denied)),
    };
    if !is_done(&request.object, slot.facts()) {
        // Injected by a replica that knew less or more, or changed afterwards.
        return Err(Behind(format!(
            "Pod {} is not as machine type {} of group {} makes it: the Machine has just changed, or another webhook \
             changes the resources, affinity or tolerations of guests",
            name(&request.object),
            slot.type_name(),
            slot.group()
        )));
    }
    Ok((None, Decision::allow()))
}

/// What [`validate_guest`] has allowed and needs a slot for; nothing where it needs none.
///
/// # Errors
/// Why it can't have one after all: caches go on, and what they show now counts.
pub fn taking(caches: &Caches, request: &Request) -> Result<Option<Taking>, (Outcome, Decision)> {
    let kind = &request.kind;
    if (&*kind.group, &*kind.kind, &*request.operation, &*request.sub_resource) != ("", "Pod", "CREATE", "") {
        return Ok(None);
    }
    let Some(slot) = of(caches, request)? else { return Ok(None) };
    let uid = request.object.pointer("/metadata/uid").and_then(Value::as_str).unwrap_or_default();
    let (name, namespace) = (name(&request.object), &request.namespace);
    let pod = format!("{namespace}/{name}");
    let ask = Ask { pod, uid: uid.to_owned(), dry_run: request.dry_run == Some(true) };
    Ok(Some(Taking { slot, ask, name: name.to_owned(), namespace: namespace.clone() }))
}

/// Who has a slot keeps it, and who has none gets none: both are decided at creation.
fn update(request: &Request) -> (Option<Outcome>, Decision) {
    let (now, before) = (&request.object, &request.old_object);
    if guest(now).is_none() && guest(before).is_none() {
        return (None, Decision::allow());
    }
    let label = |pod: &Value, key: &str| labels(pod).and_then(|labels| labels.get(key)).cloned();
    let text = |value: Option<Value>| {
        value.map_or_else(|| "nothing".to_owned(), |value| value.to_string().chars().take(80).collect())
    };
    for key in [keys::MACHINE_GROUP, keys::MACHINE_TYPE, keys::POD_ROLE] {
        let (now, before) = (label(now, key), label(before, key));
        if now != before {
            let message = format!(
                "{NO_UPDATE}: metadata.labels[{key}] changes from {} to {}; a guest's slot is decided when it is \
                 created: create another Pod",
                text(before),
                text(now)
            );
            return (Some(Outcome::Changed), deny(403, message));
        }
    }
    // The API server refuses this too, but is not there for who asks offline.
    if names(now) != names(before) {
        let message = format!("{NO_UPDATE}: spec.containers: their names and order can't be changed");
        return (Some(Outcome::Changed), deny(403, message));
    }
    (None, Decision::allow())
}

fn resize(caches: &Caches, request: &Request) -> (Option<Outcome>, Decision) {
    let Some((group, type_)) = guest(&request.old_object) else { return (None, Decision::allow()) };
    let cached = caches.machine(group);
    let type_ = cached.as_ref().and_then(|cached| cached.machine.as_ref().ok()?.type_named(type_));
    match outgrown(&request.object, &request.old_object, type_) {
        None => (None, Decision::allow()),
        Some(fault) => (Some(Outcome::Changed), deny_fields(403, &[fault])),
    }
}

fn labels(pod: &Value) -> Option<&Map<String, Value>> {
    pod.get("metadata")?.get("labels")?.as_object()
}

/// Group and type of a guest.
pub(crate) fn guest(pod: &Value) -> Option<(&str, &str)> {
    machine::guest(labels(pod)?)
}

/// Whether a Pod says that it is a guest, of whatever.
pub(super) fn is_marked(pod: &Value) -> bool {
    labels(pod).and_then(|labels| labels.get(keys::POD_ROLE)).is_some_and(|role| role == keys::GUEST)
}

fn name(pod: &Value) -> &str {
    pod.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default()
}

fn names(pod: &Value) -> Vec<Option<&Value>> {
    let containers = pod.pointer("/spec/containers").and_then(Value::as_array);
    containers.into_iter().flatten().map(|container| container.get("name")).collect()
}

#[cfg(test)]
pub(crate) mod tests;
