//! Gives a guest the size of its slot and keeps it on the nodes of its group: what Imperator's Pod injector does to Pods.

mod container;
mod whole;

use crate::map::HashMap;
use std::borrow::Cow;
use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::{NO_NODE, Report};
use crate::field::{self, FieldError};
use crate::json::list;
use crate::keys;
use crate::machine::MachineType;
use crate::quantity::Quantity;
use crate::selector::{self, clash, product};
use crate::steps::step;
use crate::text::{quoted, truncate};

/// The slot that a guest takes.
#[derive(Debug, Clone, Copy)]
pub struct GuestSlot<'a> {
    /// The machine group.
    pub group: &'a str,
    /// The machine type.
    pub type_: &'a MachineType,
}

/// The lists of a container's resources.
const LISTS: [&str; 2] = ["requests", "limits"];

/// Sets the resources of one container to the slot's, ANDs the slot's nodes into the required node affinity, and tolerates
/// their taints.
///
/// # Errors
/// A [`FieldError`] where the Pod isn't of the API's shape, has no container, or as a whole asks for less than its slot.
pub fn apply(
    pod: &mut Value,
    facts: &super::PodContext<'_>,
    report: &mut Report,
) -> Result<bool, FieldError> {
    match facts.machine.filter(|_| !super::is_mirror(pod)) {
        Some(facts) => inject(pod, facts, report),
        None => Ok(false),
    }
}

/// Whether a Pod is as this step leaves it.
pub fn is_done(pod: &Value, facts: GuestSlot<'_>) -> bool {
    let mut done = pod.clone();
    inject(&mut done, facts, &mut Report::default()).is_ok() && done == *pod
}

fn inject(pod: &mut Value, facts: GuestSlot<'_>, report: &mut Report) -> Result<bool, FieldError> {
    let GuestSlot { group, type_ } = facts;
    let mut changed = resources(pod, type_, report)?;
    for toleration in type_.tolerations(group) {
        changed |= selector::tolerate(pod, toleration)?;
    }
    let imposed = [json!({"matchExpressions": type_.expressions(group)})];
    if let Some((own, theirs)) = clash::opposition(pod, &imposed) {
        report.warnings.push(format!(
            "{NO_NODE}: it asks for {}, its machine type for {}",
            quoted(&own),
            quoted(&theirs)
        ));
    }
    Ok(product::and(pod, &imposed)? || changed)
}

/// Gives the slot's resources to one container, and room for them to the Pod as a whole. Returns whether an amount was set.
fn resources(pod: &mut Value, type_: &MachineType, report: &mut Report) -> Result<bool, FieldError> {
    let requested = whole::requested(pod);
    let changed = inject_slot(pod, &type_.resources(), report)?;
    Ok(match requested {
        Some(before) => whole::hold(pod, &before, type_)? || changed,
        None => changed,
    })
}

/// Gives the slot's resources to one container, and notes which. Returns whether an amount was set.
fn inject_slot(
    pod: &mut Value,
    slot: &BTreeMap<String, String>,
    report: &mut Report,
) -> Result<bool, FieldError> {
    let object = field::as_object_mut(pod, "")?;
    let i = holder(object, slot)?;
    let containers = field::list_mut(field::object_mut(object, "", "spec")?, "spec", "containers")?;
    let Some(container) = containers.get_mut(i) else {
        return Err(FieldError::new(
            "spec.containers",
            "is empty; a guest needs a container that gets the resources of its slot",
        ));
    };
    let path = format!("spec.containers[{i}]");
    let container = field::as_object_mut(container, &path)?;
    let name = container.get("name").cloned().unwrap_or_default();
    let resources = field::object_mut(container, &path, "resources")?;
    let path = format!("{path}.resources");
    let mut changed = false;
    for list in LISTS {
        let amounts = field::object_mut(resources, &path, list)?;
        for (name, amount) in slot {
            changed |= set(amounts, &format!("{path}.{list}"), name, amount, report);
        }
    }
    if changed && name.is_string() {
        let metadata = field::object_mut(object, "", "metadata")?;
        let annotations = field::object_mut(metadata, "metadata", "annotations")?;
        annotations.insert(keys::INJECTED_CONTAINER.to_owned(), name);
    }
    Ok(changed)
}

/// The index of the container that gets the slot. No other may have all of it: the guest would take two slots and count as one.
fn holder(pod: &Map<String, Value>, slot: &BTreeMap<String, String>) -> Result<usize, FieldError> {
    let none = Map::new();
    let metadata = field::object(pod, "", "metadata")?.unwrap_or(&none);
    let spec = field::object(pod, "", "spec")?.unwrap_or(&none);
    let containers = field::list(spec, "spec", "containers")?;
    let i = container::choose(metadata, containers, |container| has_all(container, slot))?;
    let mut others = containers.iter().enumerate().filter(|(j, _)| *j != i);
    match others.find(|(_, other)| has_all(other, slot)) {
        None => Ok(i),
        Some((j, _)) => Err(FieldError::new(
            format_args!("spec.containers[{j}].resources"),
            format_args!(
                "has the whole slot, which container {:?} gets; a guest has one slot: ask for less, or name this container by \
                 the label {}",
                short(containers.get(i).and_then(container::name).unwrap_or_default()),
                keys::INJECTING_CONTAINER
            ),
        )),
    }
}

/// Whether a container requests and may have all of the slot.
fn has_all(container: &Value, slot: &BTreeMap<String, String>) -> bool {
    step();
    LISTS.iter().all(|list| {
        let amounts = container.get("resources").and_then(|resources| resources.get(list));
        slot.iter().all(|(name, slot)| amounts.is_some_and(|amounts| is_as_much(amounts.get(name), slot)))
    })
}

/// Whether an amount is there and as much as the slot's, however it is written.
fn is_as_much(own: Option<&Value>, slot: &str) -> bool {
    own.and_then(amount).is_some_and(|own| slot.parse() == Ok(own))
}

/// Sets one amount, unless it is that much already, however it is written. Returns whether it was set.
fn set(amounts: &mut Map<String, Value>, path: &str, name: &str, slot: &str, report: &mut Report) -> bool {
    let own = amounts.get(name).filter(|own| !own.is_null());
    if is_as_much(own, slot) {
        return false;
    }
    if let Some(own) = own {
        let own = own.as_str().map_or_else(|| own.to_string(), str::to_owned);
        report.warnings.push(format!(
            "{path}: {} is {:?}; the slot's {slot:?} takes its place",
            short(name),
            short(&own)
        ));
    }
    amounts.insert(name.to_owned(), slot.into());
    true
}

/// The container of a guest that has its slot, by its index in this Pod.
pub fn slot_holder(pod: &Value, type_: &MachineType) -> Option<usize> {
    let slot = type_.resources();
    let i = holder(pod.as_object()?, &slot).ok()?;
    has_all(list(pod, "/spec/containers").get(i)?, &slot).then_some(i)
}

/// What a container of a guest may not grow to: beyond its slot, or beyond what it had before where that was more.
///
/// `pod` and `old`: a guest after a resize and before. `type_`: its machine type, where there still is one.
pub fn outgrown(pod: &Value, old: &Value, type_: Option<&MachineType>) -> Option<FieldError> {
    let mut before: HashMap<Option<&Value>, &Value> = HashMap::default();
    for container in list(old, "/spec/containers") {
        step();
        before.entry(container.get("name")).or_insert(container);
    }
    let find = |(i, container): (usize, &Value)| {
        step();
        let named = before.get(&container.get("name")).copied();
        larger(&format!("spec.containers[{i}]"), container, named.unwrap_or(&Value::Null), type_)
    };
    list(pod, "/spec/containers").iter().enumerate().find_map(find).or_else(|| {
        let spec = |pod: &'_ Value| {
            pod.get("spec").and_then(|spec| Some(json!({"resources": spec.get("resources")?})))
        };
        larger("spec", &spec(pod).unwrap_or_default(), &spec(old).unwrap_or_default(), type_)
    })
}

fn larger(path: &str, now: &Value, before: &Value, type_: Option<&MachineType>) -> Option<FieldError> {
    LISTS.iter().find_map(|list| {
        ["cpu", "memory"].iter().find_map(|name| {
            let of = |holder: &Value| amount(holder.get("resources")?.get(list)?.get(name)?);
            let slot = type_.map(|type_| if *name == "cpu" { type_.cpu } else { type_.memory });
            let most = of(before).into_iter().chain(slot).max();
            let now = of(now)?;
            (Some(now) > most).then(|| {
                let most = most.map_or_else(|| "nothing".to_owned(), |most| most.to_string());
                FieldError::new(
                    format_args!("{path}.resources.{list}[{name}]"),
                    format_args!(
                        "grows to {now}, but the slot of this guest has {most}; use another machine type"
                    ),
                )
            })
        })
    })
}

/// A quantity, which may be a number as well.
fn amount(value: &Value) -> Option<Quantity> {
    Quantity::of(value).filter(|_| !value.is_null())
}

/// A name in a warning, short enough that the warning is shown whole.
fn short(name: &str) -> Cow<'_, str> {
    truncate(name, 24)
}

#[cfg(test)]
mod tests;
