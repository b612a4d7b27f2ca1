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
            ("machines", old, new) => {
                let most = [old, new]
                    .into_iter()
                    .flatten()
                    .map(|machine| available(machine))
                    .max()
                    .unwrap_or_default();
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
        let Some(machine) = machine(world) else { return left(world) };
        let (maximum, used) = (available(&machine), guests(world));
        let holds = |pod: &Value| {
            is_reservation(pod)
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

/// What a Machine that is gone has left.
fn left(world: &World) -> Vec<String> {
    let objects = ["machinenodepools", "statefulsets", "services"]
        .into_iter()
        .flat_map(|plural| world.infra.list(plural).into_iter().map(move |object| (plural, object)));
    let pods =
        world.infra.list("pods").into_iter().filter(|pod| is_reservation(pod)).map(|pod| ("pods", pod));
    let nodes =
        world.infra.list("nodes").into_iter().filter(|node| is_marked(node)).map(|node| ("nodes", node));
    let all = objects.chain(pods).chain(nodes);
    all.map(|(plural, object)| {
        format!("{plural} {} is left of the Machine that is gone", text(&object, "/metadata/name"))
    })
    .collect()
}

/// Whether a Node has a label, an annotation or a taint of a group.
fn is_marked(node: &Value) -> bool {
    let of_group = |key: &str| key.starts_with(keys::MACHINE_GROUP_DOMAIN);
    let maps = ["labels", "annotations"].into_iter().filter_map(|map| node["metadata"][map].as_object());
    maps.flatten().any(|(key, _)| of_group(key))
        || node["spec"]["taints"].as_array().into_iter().flatten().any(|taint| of_group(text(taint, "/key")))
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

fn is_reservation(pod: &Value) -> bool {
    pod["metadata"]["labels"][keys::POD_ROLE] == keys::RESERVATION
}

/// How many guests haven't ended.
fn guests(world: &World) -> u64 {
    let pods = world.infra.list("pods");
    let ended = |pod: &Value| matches!(text(pod, "/status/phase"), "Succeeded" | "Failed");
    pods.iter().filter(|pod| is_guest(pod) && !ended(pod)).count() as u64
}
