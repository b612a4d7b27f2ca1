//! Amounts of cpu and memory of Pods: what the API server makes of them, and the subresource `resize`.

use serde_json::Value;

use super::object;

/// What decides the class of quality of service.
const RESOURCES: [&str; 2] = ["cpu", "memory"];

fn containers(pod: &Value) -> &[Value] {
    pod["spec"]["containers"].as_array().map_or(&[][..], Vec::as_slice)
}

fn amount<'a>(container: &'a Value, list: &str, resource: &str) -> Option<&'a Value> {
    container.get("resources")?.get(list)?.get(resource)
}

/// Where a container of a new Pod has a limit and no request, the limit is the request.
pub(super) fn set_requests(pod: &mut Value) {
    let all = pod.get_mut("spec").and_then(|spec| spec.get_mut("containers")).and_then(Value::as_array_mut);
    for container in all.into_iter().flatten() {
        let limits = container.get("resources").and_then(|resources| resources.get("limits"));
        let Some(mut requests) = limits.and_then(Value::as_object).cloned() else { continue };
        let own = container["resources"]["requests"].as_object().cloned();
        requests.extend(own.unwrap_or_default());
        container["resources"]["requests"] = Value::Object(requests);
    }
}

/// The class of quality of service of a Pod.
pub(super) fn class(pod: &Value) -> &'static str {
    let of = |list: &'static str| {
        containers(pod)
            .iter()
            .flat_map(move |one| RESOURCES.iter().map(move |resource| amount(one, list, resource)))
    };
    if of("requests").chain(of("limits")).flatten().next().is_none() {
        "BestEffort"
    } else if of("limits").all(|limit| limit.is_some()) && of("limits").eq(of("requests")) {
        "Guaranteed"
    } else {
        "Burstable"
    }
}

/// A Pod gets the amounts of another spec, and nothing else of it.
pub(super) fn take_amounts(spec: &Value, pod: &mut Value) {
    let all = pod.get_mut("spec").and_then(|spec| spec.get_mut("containers")).and_then(Value::as_array_mut);
    for container in all.into_iter().flatten() {
        let mut wanted = spec["containers"].as_array().into_iter().flatten();
        if let Some(wanted) = wanted.find(|wanted| wanted["name"] == container["name"]) {
            object::put(container, "resources", wanted["resources"].clone());
        }
    }
}
