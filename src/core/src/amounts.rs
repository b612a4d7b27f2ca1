//! Amounts of resources that a Pod and its containers ask for, added up as Kubernetes does (`AggregateContainerRequests` of
//! `k8s.io/component-helpers/resource`).

use std::collections::BTreeMap;

use serde_json::Value;

use crate::json::{list, text};
use crate::quantity::Quantity;
use crate::steps::step;

/// Amounts by resource.
pub type Amounts = BTreeMap<String, Quantity>;

/// The `requests` or `limits` of a container, or of a Pod's spec. Requests that aren't named are the limits, as the API server's
/// defaults have it. What is no quantity is left out.
pub fn of(holder: &Value, which: &str) -> Amounts {
    let read = |which: &str| {
        let map =
            holder.get("resources").and_then(|resources| resources.get(which)).and_then(Value::as_object);
        map.into_iter().flatten().filter_map(|(name, value)| Some((name.clone(), Quantity::of(value)?)))
    };
    let mut amounts: Amounts = if which == "requests" { read("limits").collect() } else { Amounts::new() };
    amounts.extend(read(which));
    amounts
}

/// Adds more of each resource.
pub fn add(to: &mut Amounts, more: &Amounts) {
    for (name, amount) in more {
        let sum = to.get(name).map_or(*amount, |before| before.plus(*amount));
        to.insert(name.clone(), sum);
    }
}

/// Raises each resource to at least so much.
pub fn raise(to: &mut Amounts, at_least: &Amounts) {
    for (name, amount) in at_least {
        if to.get(name).is_none_or(|before| before < amount) {
            to.insert(name.clone(), *amount);
        }
    }
}

/// Requests or limits of a Pod's containers and sidecars together, or of an init container with the sidecars before it, whichever is
/// more.
pub fn of_containers(pod: &Value, which: &str) -> Amounts {
    let mut all = Amounts::new();
    for container in list(pod, "/spec/containers") {
        step();
        add(&mut all, &of(container, which));
    }
    let (mut sidecars, mut initial) = (Amounts::new(), Amounts::new());
    for container in list(pod, "/spec/initContainers") {
        step();
        let mut own = of(container, which);
        if text(container, "/restartPolicy") == "Always" {
            add(&mut all, &own);
            add(&mut sidecars, &own);
            raise(&mut initial, &sidecars);
        } else {
            add(&mut own, &sidecars);
            raise(&mut initial, &own);
        }
    }
    raise(&mut all, &initial);
    all
}
