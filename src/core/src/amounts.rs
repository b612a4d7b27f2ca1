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
        step();
        let sum = to.get(name).map_or(*amount, |before| before.plus(*amount));
        to.insert(name.clone(), sum);
    }
}

/// Raises each resource to at least so much.
pub fn raise(to: &mut Amounts, at_least: &Amounts) {
    for (name, amount) in at_least {
        step();
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
    // Sidecars count with the containers too, so of what an init container doesn't ask for itself the Pod's sum is no less.
    let (mut sidecars, mut initial) = (Amounts::new(), Amounts::new());
    for container in list(pod, "/spec/initContainers") {
        step();
        let mut own = of(container, which);
        if text(container, "/restartPolicy") == "Always" {
            add(&mut sidecars, &own);
        } else {
            for (name, amount) in &mut own {
                *amount = sidecars.get(name).map_or(*amount, |sidecars| sidecars.plus(*amount));
            }
            raise(&mut initial, &own);
        }
    }
    add(&mut all, &sidecars);
    raise(&mut all, &initial);
    all
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn asks(requests: &Value) -> Value {
        json!({"name": "c", "resources": {"requests": requests}})
    }

    fn sidecar(requests: &Value) -> Value {
        json!({"name": "s", "restartPolicy": "Always", "resources": {"requests": requests}})
    }

    #[test]
    fn a_pod_asks_for_its_containers_and_sidecars_or_an_init_container_with_the_sidecars_before_it() {
        for (containers, initial, cpu) in [
            (vec![asks(&json!({"cpu": "1"})), asks(&json!({"cpu": "2"}))], vec![], "3"),
            (vec![asks(&json!({"cpu": "1"}))], vec![asks(&json!({"cpu": "4"}))], "4"),
            (vec![asks(&json!({"cpu": "1"}))], vec![sidecar(&json!({"cpu": "2"}))], "3"),
            // The sidecar runs beside the init container that comes after it, and not beside the one before.
            (
                vec![asks(&json!({"cpu": "1"}))],
                vec![sidecar(&json!({"cpu": "2"})), asks(&json!({"cpu": "3"}))],
                "5",
            ),
            (
                vec![asks(&json!({"cpu": "1"}))],
                vec![asks(&json!({"cpu": "3"})), sidecar(&json!({"cpu": "2"}))],
                "3",
            ),
            (vec![], vec![sidecar(&json!({"cpu": "2"})), asks(&json!({"memory": "1Gi"}))], "2"),
        ] {
            let pod = json!({"spec": {"containers": containers, "initContainers": initial}});
            assert_eq!(of_containers(&pod, "requests")["cpu"].to_string(), cpu, "{pod}");
        }
    }

    #[test]
    fn many_names_of_a_sidecar_and_many_init_containers_are_added_up_in_linear_steps() {
        let pod = |size: usize| {
            let names: BTreeMap<String, &str> = (0..size).map(|i| (format!("a.b/r{i}"), "1")).collect();
            let mut initial = vec![sidecar(&json!(names))];
            initial.extend((0..size).map(|i| asks(&json!({"cpu": i}))));
            json!({"spec": {"containers": [asks(&json!({"cpu": "1"}))], "initContainers": initial}})
        };
        crate::steps::assert_nearly_linear(pod, |pod| assert!(!of_containers(pod, "requests").is_empty()));
    }
}
