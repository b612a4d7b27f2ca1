//! What must hold of Machines: there are never more guests than slots, and reservations hold those that no guest has.

use outrigger_core::keys;
use serde_json::Value;

use super::Judge;
use crate::model::Commit;
use crate::world::{GUESTS, MACHINE, World, at, text};

impl Judge {
    /// A write in the infrastructure cluster that may be about the Machine or its guests.
    pub(super) fn machine_written(&self, world: &World, commit: &Commit) {
        match (commit.kind.plural, &commit.old, &commit.new) {
            ("machines", old, Some(new)) => {
                let most = old.as_ref().map_or(0, |old| available(old)).max(available(new));
                let mut found = self.found.lock();
                found.most_slots = found.most_slots.max(most);
            }
            ("pods", None, Some(pod)) if is_guest(pod) => {
                let most = {
                    let found = self.found.lock();
                    found.most_slots.max(machine(world).as_deref().map_or(0, available))
                };
                let guests = guests(world);
                if guests > most && !self.found.lock().restored {
                    let name = &commit.name;
                    self.violation(world, format!("guest {name} is admitted: {guests} guests, {most} slots"));
                }
            }
            _ => {}
        }
    }

    /// How the slots differ from what the Machine says.
    pub(super) fn slots_missing(world: &World) -> Vec<String> {
        let Some(machine) = machine(world) else { return Vec::new() };
        let (maximum, used) = (available(&machine), guests(world));
        let holds = |pod: &Value| {
            pod["metadata"]["labels"][keys::POD_ROLE] == keys::RESERVATION
                && pod["metadata"]["deletionTimestamp"].is_null()
                && text(pod, "/status/phase") == "Running"
        };
        let reserved = world.infra.list("pods").iter().filter(|pod| holds(pod)).count() as u64;
        let usage = &machine["status"]["availableMachines"][0]["usage"];
        let fits = reserved == maximum.saturating_sub(used)
            && usage["maximum"] == maximum
            && usage["used"] == used
            && usage["reserved"] == reserved;
        let state = format!("{used} guests and {reserved} reservations; its status says {usage}");
        (!fits).then(|| format!("the Machine has {maximum} slots, {state}")).into_iter().collect()
    }
}

fn machine(world: &World) -> Option<std::sync::Arc<Value>> {
    world.infra.get("machines", None, MACHINE)
}

fn available(machine: &Value) -> u64 {
    at(machine, "/spec/machineTypes/0/available").and_then(Value::as_u64).unwrap_or_default()
}

fn is_guest(pod: &Value) -> bool {
    text(pod, "/metadata/namespace") == GUESTS && pod["metadata"]["labels"][keys::POD_ROLE] == keys::GUEST
}

/// How many guests haven't ended.
fn guests(world: &World) -> u64 {
    let pods = world.infra.list("pods");
    let ended = |pod: &Value| matches!(text(pod, "/status/phase"), "Succeeded" | "Failed");
    pods.iter().filter(|pod| is_guest(pod) && !ended(pod)).count() as u64
}
