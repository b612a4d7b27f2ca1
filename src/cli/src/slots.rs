//! The slots of Machines, where there is no cluster to write them down in: those that the state's guests have, and those that
//! were given since.

use outrigger_admission::caches::Caches;
use outrigger_admission::review::Request;
use outrigger_admission::{Decision, Reservation};
use outrigger_core::json::{list, metadata_map, text};
use outrigger_core::map::HashMap;
use outrigger_core::slots::{Guests, Ledger, SlotDecision};
use outrigger_core::{keys, machine};
use outrigger_runtime::cache::Change;
use outrigger_runtime::pod::Pod;
use parking_lot::Mutex;
use serde::Serialize;
use serde_json::{Value, json};

use crate::files::{InputError, Object};
use crate::state::NOW;

/// Whether a Pod has never been in a cluster.
pub(crate) fn is_new(pod: &Value) -> bool {
    pod.pointer("/metadata/uid").is_none_or(Value::is_null)
}

/// A guest of the state. The rest of a Pod doesn't matter here, and may be as wrong as it likes.
pub(crate) fn guest(caches: &Caches, object: &Object) -> Result<(), InputError> {
    let at = |pointer: &str| object.value.pointer(pointer).cloned().unwrap_or_default();
    let labels = at("/metadata/labels");
    if labels.get(keys::POD_ROLE).is_none_or(|role| role != keys::GUEST) {
        return Ok(());
    }
    let metadata = json!({"name": object.name, "namespace": object.namespace_or_default(), "uid": at("/metadata/uid"),
        "labels": labels});
    let gates = if machine::is_gated(&object.value) { json!([{"name": "gate"}]) } else { Value::Null };
    let pod = json!({"metadata": metadata, "spec": {"schedulingGates": gates}, "status": {"phase": at("/status/phase")}});
    let pod: Pod = serde_json::from_value(pod).map_err(|error| object.wrong(error))?;
    caches.guest(Change::Applied(pod), NOW);
    Ok(())
}

/// The slot that a Pod takes as a guest.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct GuestSlot {
    pub(crate) machine_group: String,
    pub(crate) machine_type: String,
    /// Slots of the type in all.
    pub(crate) slots: u32,
    /// Those that are free before the Pod takes one.
    pub(crate) free: u32,
}

/// Group and type.
type Slot = (String, String);

/// Who has got a slot since.
#[derive(Debug, Default)]
pub(crate) struct Slots {
    /// How many guests a Machine's status counts that are not among the state's Pods.
    unnamed: HashMap<Slot, u32>,
    given: Mutex<Given>,
}

#[derive(Debug, Default)]
struct Given {
    ledgers: HashMap<Slot, Ledger>,
    /// Pods without a name so far: each is another one.
    nameless: usize,
}

impl Slots {
    pub(crate) fn new(caches: &Caches) -> Self {
        let mut unnamed = HashMap::default();
        for machine in caches.other_machines("") {
            let Some(group) = machine.group.clone() else { continue };
            for (type_, usage) in &machine.usages {
                let named = u32::try_from(caches.guests(&group, type_).live.len()).unwrap_or(u32::MAX);
                let waiting = usage.waiting.saturating_sub(usage.gated);
                let counted = usage.used.saturating_add(waiting);
                unnamed.insert((group.clone(), type_.clone()), counted.saturating_sub(named));
            }
        }
        Self { unnamed, given: Mutex::default() }
    }

    /// Takes the slot of a guest that has been admitted, and gives back that of one that is deleted. A dry run changes
    /// nothing.
    pub(crate) fn settle(
        &self,
        caches: &Caches,
        request: &Request,
        reservation: Option<Reservation>,
    ) -> Result<(), Decision> {
        let mut given = self.given.lock();
        if request.operation == "DELETE" {
            let is_pod = request.kind.group.is_empty()
                && request.kind.kind == "Pod"
                && request.sub_resource.is_empty();
            let name = request.old_object.pointer("/metadata/name").and_then(Value::as_str);
            if let Some(name) = name.filter(|_| is_pod && request.dry_run != Some(true)) {
                release(caches, &mut given, &request.namespace, name);
            }
            return Ok(());
        }
        // Files have all Machines, so admission has compared their groups and nodes already.
        let Some(Reservation::Slot(mut wanted)) = reservation else {
            return Ok(());
        };
        if wanted.name.is_empty() {
            given.nameless += 1;
            wanted.ask.pod = format!("{}/ {}", wanted.namespace, given.nameless);
        }
        let slot = (wanted.slot.group().to_owned(), wanted.slot.type_name().to_owned());
        let guests = self.guests(caches, &slot);
        let ledger = given.ledgers.entry(slot).or_default();
        // Time stands still: nothing is given back by it.
        match ledger
            .answer(std::slice::from_ref(&wanted.ask), &guests, wanted.slot.slots, 0, |_| false)
            .as_slice()
        {
            [SlotDecision::Granted] => Ok(()),
            [SlotDecision::NoneLeft] => Err(wanted.none_left()),
            _ => Err(wanted.unavailable("too many guests at once")),
        }
    }

    fn guests(&self, caches: &Caches, slot: &Slot) -> Guests {
        Guests {
            unnamed: self.unnamed.get(slot).copied().unwrap_or_default(),
            ..caches.guests(&slot.0, &slot.1)
        }
    }

    /// The slot that a new Pod takes in a namespace; `None` for other Pods than guests, for guests with scheduling gates, and where guests
    /// get no slots. Admission removes its own gate.
    pub(crate) fn of(&self, caches: &Caches, namespace: &str, pod: &Value) -> Option<GuestSlot> {
        let gates = list(pod, "/spec/schedulingGates");
        let gated = gates.iter().any(|gate| text(gate, "/name") != keys::ADMISSION_GATE);
        let (group, type_) = machine::guest(metadata_map(pod, "labels"))
            .filter(|_| caches.is_injected(namespace) && !gated)?;
        let slot = (group.to_owned(), type_.to_owned());
        let guests = self.guests(caches, &slot);
        let given = self.given.lock();
        let granted = given.ledgers.get(&slot).map_or(0, |ledger| ledger.grants().len());
        let taken = u32::try_from(guests.live.len() + granted).unwrap_or(u32::MAX);
        let slots = caches.slots(group, type_);
        let free = slots.saturating_sub(taken.saturating_add(guests.unnamed));
        Some(GuestSlot { machine_group: slot.0, machine_type: slot.1, slots, free })
    }

    /// Gives back the slot of a Pod that is deleted, if it has one.
    pub(crate) fn release(&self, caches: &Caches, namespace: &str, name: &str) {
        let mut given = self.given.lock();
        release(caches, &mut given, namespace, name);
    }
}

fn release(caches: &Caches, given: &mut Given, namespace: &str, name: &str) {
    let pod = format!("{namespace}/{name}");
    for ledger in given.ledgers.values_mut() {
        ledger.release(&pod);
    }
    let gone = Change::Gone { namespace: namespace.to_owned(), name: name.to_owned(), uid: String::new() };
    caches.guest(gone, NOW);
}
