//! Companions that get other amounts of cpu and memory in place, by the subresource `resize` of Pods (KEP-1287), instead of being
//! replaced.
//!
//! Two writes do that: one of the amounts, one of the annotations that say which template the companion is made from, because the
//! subresource takes no annotations. Which of them is due follows from the Pod as it is, so a manager that ends between them, or makes
//! one twice, changes nothing: a Pod that has the amounts gets the annotations only, and one that has both gets nothing. The write of the
//! amounts is about the Pod as it was read: one that comes late, after its manager has ended, must not take back what the next manager has
//! made, because a Pod whose annotations are right isn't read again.

use serde_json::{Map, Value, json};

use crate::json;
use crate::quantity::Quantity;
use crate::template::CONTAINERS;

/// The resources of a container that can be changed in place.
const RESOURCES: [&str; 2] = ["cpu", "memory"];

/// What a companion needs so that it has the amounts of a template.
#[derive(Debug, Clone, PartialEq)]
pub enum Resize {
    /// Nothing: it has them.
    Done,
    /// This strategic merge patch of the subresource, which carries uid and resourceVersion as preconditions and has the amounts that
    /// differ, and no others.
    Patch(Value),
    /// It has to be replaced: it lacks a container, or has a request or limit that the template doesn't ask for. Kubernetes doesn't let
    /// those be removed.
    Impossible,
}

/// Containers that have ended when the others run can't be resized; those that run beside them can.
pub(super) fn is_resizable(list: &str, container: &Value) -> bool {
    list == "containers" || json::text(container, "/restartPolicy") == "Always"
}

/// Takes the amounts of cpu and memory out of a container, and returns them.
pub(super) fn take_amounts(container: &mut Map<String, Value>) -> Value {
    let mut taken = json!({});
    let Some(Value::Object(resources)) = container.get_mut("resources") else { return taken };
    for list in ["requests", "limits"] {
        if let Some(Value::Object(amounts)) = resources.get_mut(list) {
            for resource in RESOURCES {
                if let Some(amount) = amounts.remove(resource) {
                    taken[list][resource] = amount;
                }
            }
            if amounts.is_empty() {
                resources.remove(list);
            }
        }
    }
    if resources.is_empty() {
        container.remove("resources");
    }
    taken
}

/// What `pod`, the companion as the API server has it, needs so that it has the amounts of the template that it is made from now.
pub fn resize(template: &Value, pod: &Value) -> Resize {
    let mut spec = Map::new();
    for list in CONTAINERS {
        let pointer = format!("/spec/{list}");
        let mut changed = Vec::new();
        for wanted in json::list(template, &pointer).iter().filter(|wanted| is_resizable(list, wanted)) {
            let name = wanted.get("name");
            let present = json::list(pod, &pointer).iter().find(|present| present.get("name") == name);
            match present.and_then(|present| difference(wanted, present)) {
                None => return Resize::Impossible,
                Some(resources) if resources.is_empty() => {}
                Some(resources) => changed.push(json!({"name": name, "resources": resources})),
            }
        }
        if !changed.is_empty() {
            spec.insert(list.to_owned(), changed.into());
        }
    }
    if spec.is_empty() {
        return Resize::Done;
    }
    let read = |field: &str| pod.pointer(&format!("/metadata/{field}"));
    let metadata = json!({"uid": read("uid"), "resourceVersion": read("resourceVersion")});
    Resize::Patch(json!({"metadata": metadata, "spec": spec}))
}

/// The amounts of a container that have to change; `None` where one would have to be removed.
fn difference(wanted: &Value, present: &Value) -> Option<Map<String, Value>> {
    let amount = |container: &Value, list: &str, resource: &str| {
        let amount = container.get("resources")?.get(list)?.get(resource)?;
        (!amount.is_null()).then(|| amount.clone())
    };
    let mut changed = Map::new();
    for list in ["requests", "limits"] {
        for resource in RESOURCES {
            // Where the template has a limit and no request, the API server has made the limit the request too.
            let to = amount(wanted, list, resource).or_else(|| amount(wanted, "limits", resource));
            match (to, amount(present, list, resource)) {
                (None, None) => {}
                (None, Some(_)) => return None,
                (Some(to), Some(from)) if is_as_much(&to, &from) => {}
                (Some(to), _) => {
                    let of_list = changed.entry(list).or_insert_with(|| json!({}));
                    of_list[resource] = to;
                }
            }
        }
    }
    Some(changed)
}

fn is_as_much(a: &Value, b: &Value) -> bool {
    let exact = |amount: &Value| Quantity::of(amount).map(Quantity::ceil_milli);
    exact(a).zip(exact(b)).map_or(a == b, |(a, b)| a == b)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn template(resources: Value) -> Value {
        json!({"apiVersion": "v1", "kind": "Pod", "spec": {
            "containers": [{"name": "c", "resources": resources}, {"name": "d"}]}})
    }

    fn cpu(amount: &str) -> Value {
        template(json!({"requests": {"cpu": amount}}))
    }

    /// The Pod that the API server makes of a template.
    fn pod(template: &Value) -> Value {
        let mut pod = template.clone();
        pod["metadata"] = json!({"uid": "u", "resourceVersion": "7", "labels": {}});
        for container in pod["spec"]["containers"].as_array_mut().unwrap() {
            let limits = container["resources"]["limits"].as_object().cloned().unwrap_or_default();
            for (resource, limit) in limits {
                let request = &mut container["resources"]["requests"][resource];
                if request.is_null() {
                    *request = limit;
                }
            }
        }
        pod
    }

    /// What a strategic merge patch of containers makes of a Pod.
    fn patched(pod: &Value, patch: &Value) -> Value {
        assert_eq!(patch["metadata"], json!({"uid": "u", "resourceVersion": "7"}));
        let mut pod = pod.clone();
        for change in patch["spec"]["containers"].as_array().unwrap() {
            let containers = pod["spec"]["containers"].as_array_mut().unwrap();
            let container = containers.iter_mut().find(|c| c["name"] == change["name"]).unwrap();
            json_patch::merge(container, change);
        }
        pod
    }

    #[test]
    fn only_containers_that_run_beside_the_others_are_resized() {
        let of = |policy: &str, amount: &str| {
            let mut template = cpu("1");
            let init =
                json!({"name": "i", "restartPolicy": policy, "resources": {"limits": {"cpu": amount}}});
            template["spec"]["initContainers"] = json!([init]);
            template
        };
        let expected =
            json!([{"name": "i", "resources": {"limits": {"cpu": "2"}, "requests": {"cpu": "2"}}}]);
        match resize(&of("Always", "2"), &pod(&of("Always", "1"))) {
            Resize::Patch(patch) => assert_eq!(patch["spec"], json!({"initContainers": expected})),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_patch_has_what_differs_and_nothing_is_removed() {
        let both = |request: &str, limit: &str| {
            template(
                json!({"requests": {"cpu": request, "memory": "1Gi"}, "limits": {"cpu": limit, "example.com/x": 1}}),
            )
        };
        let patch = |from: &Value, to: &Value| match resize(to, &pod(from)) {
            Resize::Patch(patch) => patch["spec"]["containers"].clone(),
            Resize::Done => json!("done"),
            Resize::Impossible => json!("impossible"),
        };
        let c = |resources: Value| json!([{"name": "c", "resources": resources}]);
        for (from, to, expected) in [
            (both("1", "2"), both("1000m", "2"), json!("done")),
            (both("1", "2"), both("1", "3"), c(json!({"limits": {"cpu": "3"}}))),
            (both("1", "2"), both("1500m", "2"), c(json!({"requests": {"cpu": "1500m"}}))),
            // A limit that is given for the first time. The API server says whether that is possible.
            (cpu("1"), template(json!({"limits": {"cpu": "1"}})), c(json!({"limits": {"cpu": "1"}}))),
            (cpu("1"), template(json!({})), json!("impossible")),
            (both("1", "2"), cpu("1"), json!("impossible")),
            (json!({"spec": {"containers": []}}), cpu("1"), json!("impossible")),
        ] {
            assert_eq!(patch(&from, &to), expected, "{from} {to}");
        }
    }

    proptest! {
        #[test]
        fn after_a_resize_there_is_nothing_to_resize(
            from in prop::collection::vec(prop::option::of(1..4_u32), 4),
            to in prop::collection::vec(prop::option::of(1..4_u32), 4),
        ) {
            let of = |amounts: &[Option<u32>]| {
                let amount = |i: usize| amounts[i].map(|amount| json!(format!("{amount}Gi")));
                template(json!({"requests": {"cpu": amount(0), "memory": amount(1)},
                    "limits": {"cpu": amount(2), "memory": amount(3)}}))
            };
            let (present, wanted) = (pod(&of(&from)), of(&to));
            if let Resize::Patch(patch) = resize(&wanted, &present) {
                let after = patched(&present, &patch);
                prop_assert_eq!(resize(&wanted, &after), Resize::Done);
                let amount = |pod: &Value, list: &str, resource: &str| {
                    Quantity::of(&pod["spec"]["containers"][0]["resources"][list][resource]).map(|q| q.nanos())
                };
                for (list, resource) in [("requests", "cpu"), ("limits", "memory")] {
                    prop_assert_eq!(amount(&after, list, resource), amount(&pod(&wanted), list, resource));
                }
            }
        }
    }
}
