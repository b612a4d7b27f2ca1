//! A Machine: its condition, the slots of its types, its pool, and guests that wait.

use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use outrigger_api::{Machine, MachineNodePool};
use outrigger_core::json::{self, list, text};
use outrigger_core::keys;
use outrigger_core::reason::Cause;
use outrigger_manager::companions::observe::why_not_ready;
use serde_json::Value;

use super::report::{Report, Wrong, wrong};
use crate::condition::named as condition;
use crate::explain::live::Reader;
use crate::files::{InputError, Object};
use crate::state::{State, unscheduled};

/// Most guests that are named.
const MAX_GUESTS: usize = 20;

pub(super) async fn read(reader: &mut Reader) -> Result<(), InputError> {
    reader.must::<Machine>(None, ListParams::default()).await?;
    reader.may::<MachineNodePool>(None, ListParams::default()).await?;
    let guests = format!("{}={}", keys::POD_ROLE, keys::GUEST);
    reader.may::<Pod>(None, ListParams::default().labels(&guests)).await
}

pub(super) fn report(state: &State, name: &str) -> Result<Option<Report>, InputError> {
    let mut machines = state.of(keys::MACHINE_GROUP_DOMAIN, "Machine");
    let Some(machine) = machines.find(|machine| machine.name == name) else { return Ok(None) };
    let typed: Machine = machine.read()?;
    let group = label(machine, keys::MACHINE_GROUP);
    let mut report = Report::new("Machine", name);
    report.fact("group", group);
    report.wrong = wrong(&machine.value, &["Ready"]);
    for type_ in typed.status.iter().flat_map(|status| &status.available_machines) {
        let usage = type_.usage;
        let slots = usage.slots.map_or_else(String::new, |slots| format!(", on nodes {slots}"));
        let value = format!(
            "{} slots{slots}; {} used, {} reserved, {} waiting",
            usage.maximum, usage.used, usage.reserved, usage.waiting
        );
        report.fact(format!("type {}", type_.name), value);
        if let Some(slots) = usage.slots.filter(|slots| *slots < usage.maximum) {
            let message =
                format!("{} of {} slots find no place on its nodes", usage.maximum - slots, usage.maximum);
            report.wrong.push(Wrong::new(format!("type {}", type_.name), Cause::NoRoom, message));
        }
    }
    if typed.status.is_none() {
        report.wrong.push(Wrong::new("status", Cause::NoStatus, ""));
    }
    for pool in state.of(keys::MACHINE_GROUP_DOMAIN, "MachineNodePool") {
        if text(&pool.value, "/spec/machineGroupName") == group {
            report.fact(format!("pool {}", pool.name), nodes(&pool.value));
            let of_pool = wrong(&pool.value, &["Ready"]);
            let named = |wrong: Wrong| Wrong { about: format!("MachineNodePool {}", pool.name), ..wrong };
            report.wrong.extend(of_pool.into_iter().map(named));
        }
    }
    let guests = || {
        let is_guest = |pod: &&Object| {
            label(pod, keys::MACHINE_GROUP) == group && label(pod, keys::POD_ROLE) == keys::GUEST
        };
        state.of("", "Pod").filter(is_guest)
    };
    report.wrong.extend(guests().filter_map(unready).take(MAX_GUESTS));
    let is_waiting = |pod: &&Object| text(&pod.value, "/spec/nodeName").is_empty();
    let mut waiting = guests().filter(is_waiting);
    for guest in waiting.by_ref().take(MAX_GUESTS) {
        let why = unscheduled(&guest.value);
        let why = if why.is_empty() { "not scheduled yet" } else { why };
        report.fact(format!("guest {}/{}", guest.namespace_or_default(), guest.name), why);
    }
    let more = waiting.count();
    if more > 0 {
        report.fact("further guests that wait", more.to_string());
    }
    Ok(Some(report))
}

/// What is wrong with a guest that has a node and isn't ready. One that has ended, or is being deleted, is as it should be.
fn unready(guest: &Object) -> Option<Wrong> {
    let placed = !text(&guest.value, "/spec/nodeName").is_empty();
    let leaves = guest.value["metadata"].get("deletionTimestamp").is_some();
    if !placed || leaves || text(&guest.value, "/status/phase") == "Succeeded" {
        return None;
    }
    let ready = condition(&guest.value, "Ready");
    if ready.is_some_and(|ready| text(ready, "/status") == "True") {
        return None;
    }
    let message = guest.read().map_or_else(|_| String::new(), |pod| why_not_ready(&pod));
    let about = format!("guest {}/{}", guest.namespace_or_default(), guest.name);
    let since = ready.map_or("", |ready| text(ready, "/lastTransitionTime"));
    Some(Wrong::new(about, Cause::GuestNotReady, message).since(since))
}

fn label<'a>(object: &'a Object, key: &str) -> &'a str {
    json::label(&object.value, key).unwrap_or_default()
}

/// The nodes of a pool, each with its state.
fn nodes(pool: &Value) -> String {
    let of = list(pool, "/status/nodePool").iter();
    let all: Vec<String> =
        of.map(|node| format!("{} {}", text(node, "/name"), text(node, "/condition"))).collect();
    all.join(", ")
}
