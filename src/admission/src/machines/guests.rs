//! Guests of Machines: which slot a Pod takes, and how a Pod with a slot may change. Refusals begin with the words of
//! Imperator's webhook.

use std::sync::Arc;

use outrigger_core::json::{list, metadata_map, text};
use outrigger_core::machine::{self, MachineType, is_gated};
use outrigger_core::mutate::is_mirror;
use outrigger_core::mutate::machine::{GuestSlot, is_done, outgrown};
use outrigger_core::slots::Ask;
use outrigger_core::text::quoted;
use outrigger_core::{keys, validate};
use serde_json::Value;

use super::{GuestOutcome, Reservation, SlotReservation};
use crate::caches::{CachedMachine, Caches};
use crate::decision::Decision;
use crate::handler::{Admission, CacheStale, Context, Refusal};
use crate::provenance::Origin;
use crate::review::Request;

/// How Imperator's webhook refuses an update.
const NO_UPDATE: &str = "it is forbidden to update the Pod";

impl GuestOutcome {
    /// The decision with this outcome.
    pub fn denied(self, decision: Decision) -> Admission {
        Admission { guest: Some(self), ..decision.into() }
    }

    fn refusal(self, code: u16, message: String) -> Refusal {
        Refusal::Denied(self.denied(Decision::deny(code, message)))
    }
}

/// The slot that a guest asks for.
#[derive(Debug, Clone)]
pub struct Slot {
    machine: Arc<CachedMachine>,
    group: String,
    type_: MachineType,
    /// How many slots the type has.
    pub slots: u32,
}

impl Slot {
    /// What decides about the guest.
    pub(crate) fn origin(&self) -> Origin<'_> {
        let machine_type = Some(self.type_.name.as_str().into());
        Origin { machine_type, ..Origin::object("Machine", &self.machine.name) }
    }

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

    pub(crate) fn facts(&self) -> GuestSlot<'_> {
        GuestSlot { group: &self.group, type_: &self.type_ }
    }
}

pub(super) fn none_left(name: &str, namespace: &str, type_: &str) -> Decision {
    Decision::deny(403, format!("name: <{name}>, namespace: <{namespace}>; there is no <{type_}> left"))
}

/// The slot that a Pod asks for; `None` for other Pods than guests, and in namespaces whose guests get no slots.
pub(crate) fn slot_for(caches: &Caches, request: &Request) -> Result<Option<Slot>, Refusal> {
    if !caches.is_injected(&request.namespace) {
        return Ok(None);
    }
    let Some((group, type_)) = guest(&request.object) else { return Ok(None) };
    find(caches, group, type_).map(Some)
}

fn find(caches: &Caches, group: &str, type_: &str) -> Result<Slot, Refusal> {
    let cached = caches.machine(group).ok_or_else(|| {
        GuestOutcome::UnknownGroup.refusal(403, format!("failed to find machine-group <{group}>"))
    })?;
    let machine = cached.machine.as_ref().map_err(|errors| {
        let message = format!("Machine {}: {}", cached.name, validate::message(errors));
        GuestOutcome::WrongMachine.refusal(422, message)
    })?;
    let wanted = machine.type_named(type_).cloned().ok_or_else(|| {
        let message = format!("machine-group, <{group}> does not have machine-type, <{type_}>");
        GuestOutcome::UnknownType.refusal(403, message)
    })?;
    let usage = cached.usages.get(type_).ok_or_else(|| {
        let message = format!(
            "imperator controller is preparing: Machine {} doesn't tell the slots of <{type_}> yet in \
             status.availableMachines; try again",
            cached.name
        );
        GuestOutcome::NotCounted.refusal(403, message)
    })?;
    let slots = usage.slots();
    Ok(Slot { machine: cached.clone(), group: group.to_owned(), type_: wanted, slots })
}

/// Validates guests: the mutation has injected a new guest, and an update changes neither its slot nor the slot's size. A guest takes its
/// slot when it is created, or when its last scheduling gate is removed.
pub(crate) fn validate(cx: Context<'_>, request: &mut Request) -> Result<Admission, Refusal> {
    match (request.operation.as_str(), request.sub_resource.as_str()) {
        ("CREATE", "") => create(cx.caches, request),
        ("UPDATE", "") => update(cx.caches, request),
        ("UPDATE", "resize") => resize(cx.caches, request),
        _ => Ok(Decision::allow().into()),
    }
}

/// The slot that a guest asks for. Only requests about namespaces whose guests get slots are sent here.
fn asked(caches: &Caches, request: &Request) -> Result<Option<Slot>, Refusal> {
    if guest(&request.object).is_some() && !caches.is_injected(&request.namespace) {
        return Err(CacheStale(format!(
            "namespace {} is not known yet to have the label {}={}",
            request.namespace,
            keys::INJECT_RESOURCE,
            keys::INJECT_ENABLED
        ))
        .into());
    }
    slot_for(caches, request)
}

fn create(caches: &Caches, request: &Request) -> Result<Admission, Refusal> {
    let Some(slot) = asked(caches, request)? else { return Ok(Decision::allow().into()) };
    if !is_done(&request.object, slot.facts()) {
        // Another replica with an older or newer cache has injected the Pod, or it was changed afterwards.
        return Err(CacheStale(format!(
            "Pod {} is not as machine type {} of group {} makes it: the Machine has just changed, or another webhook \
             changes the resources, affinity or tolerations of guests",
            name(&request.object),
            slot.type_name(),
            slot.group()
        ))
        .into());
    }
    if is_gated(&request.object) {
        return Ok(Admission { guest: Some(GuestOutcome::Gated), ..Decision::allow().into() });
    }
    take(caches, request, slot)
}

/// Takes the slot of a guest.
fn take(caches: &Caches, request: &Request, slot: Slot) -> Result<Admission, Refusal> {
    let (name, namespace) = (name(&request.object), request.namespace.clone());
    // An early refusal, which costs nothing. The reservation counts again.
    let others = caches.other_guests(slot.group(), slot.type_name(), &namespace, name);
    if others >= slot.slots as usize {
        let denied = GuestOutcome::NoneLeft.denied(none_left(name, &namespace, slot.type_name()));
        return Err(Refusal::Denied(denied));
    }
    let uid = text(&request.object, "/metadata/uid");
    let pod = format!("{namespace}/{name}");
    let ask = Ask { pod, uid: uid.to_owned(), dry_run: request.dry_run == Some(true) };
    let reservation = SlotReservation { slot, ask, name: name.to_owned(), namespace };
    let reserve = Some(Reservation::Slot(Box::new(reservation)));
    Ok(Admission { reserve, ..Decision::allow().into() })
}

/// Whether a request concerns the slot of a guest: it creates one, or removes its last scheduling gate.
pub(crate) fn is_about_slot(request: &Request) -> bool {
    let creates = request.operation == "CREATE" && request.sub_resource.is_empty();
    guest(&request.object).is_some() && (creates || is_let_go(request))
}

/// Whether an update removes the last scheduling gate of a Pod.
fn is_let_go(request: &Request) -> bool {
    request.operation == "UPDATE"
        && request.sub_resource.is_empty()
        && is_gated(&request.old_object)
        && !is_gated(&request.object)
}

/// Refuses updates that make a guest of another Pod, or another Pod of a guest: which slot a guest asks for is decided at creation. It
/// takes the slot now where its last scheduling gate is removed.
fn update(caches: &Caches, request: &Request) -> Result<Admission, Refusal> {
    let (now, before) = (&request.object, &request.old_object);
    if guest(now).is_none() && guest(before).is_none() {
        return Ok(Decision::allow().into());
    }
    let label = |pod: &Value, key: &str| metadata_map(pod, "labels").get(key).cloned();
    let text = |value: Option<Value>| {
        value.map_or_else(|| "nothing".to_owned(), |value| quoted(&value.to_string()).into_owned())
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
            return Err(GuestOutcome::Changed.refusal(403, message));
        }
    }
    // The API server refuses this too; offline admission has none.
    if names(now) != names(before) {
        let message = format!("{NO_UPDATE}: spec.containers: their names and order can't be changed");
        return Err(GuestOutcome::Changed.refusal(403, message));
    }
    if is_let_go(request) { let_go(caches, request) } else { Ok(Decision::allow().into()) }
}

/// Gives a guest its slot, if it is still as its slot makes it: neither its resources nor its affinity can be changed any longer.
fn let_go(caches: &Caches, request: &Request) -> Result<Admission, Refusal> {
    let Some(slot) = asked(caches, request)? else { return Ok(Decision::allow().into()) };
    if is_done(&request.object, slot.facts()) {
        return take(caches, request, slot);
    }
    let message = format!(
        "{NO_UPDATE}: spec.schedulingGates: it isn't as machine type {} of group {} makes a guest now; create another Pod",
        slot.type_name(),
        slot.group()
    );
    Err(GuestOutcome::Changed.refusal(403, message))
}

fn resize(caches: &Caches, request: &Request) -> Result<Admission, Refusal> {
    let Some((group, type_)) = guest(&request.old_object) else { return Ok(Decision::allow().into()) };
    let cached = caches.machine(group);
    let type_ = cached.as_ref().and_then(|cached| cached.machine.as_ref().ok()?.type_named(type_));
    Ok(match outgrown(&request.object, &request.old_object, type_) {
        None => Decision::allow().into(),
        Some(error) => GuestOutcome::Changed.denied(Decision::deny_fields(403, &[error])),
    })
}

/// Group and type of a guest. The mirror of a static Pod takes no slot: its kubelet runs it in any case, and without the slot's size.
fn guest(pod: &Value) -> Option<(&str, &str)> {
    machine::guest(metadata_map(pod, "labels")).filter(|_| !is_mirror(pod))
}

fn name(pod: &Value) -> &str {
    text(pod, "/metadata/name")
}

fn names(pod: &Value) -> Vec<Option<&Value>> {
    list(pod, "/spec/containers").iter().map(|container| container.get("name")).collect()
}

#[cfg(test)]
pub(crate) mod tests;
