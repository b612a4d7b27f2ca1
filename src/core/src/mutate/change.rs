//! The patch of what the steps have changed.
//!
//! Only what the steps may change is copied before them and compared after them: most of a Pod is containers and volumes, which
//! belong to others. What is new is moved into the patch and not copied, because a product of node affinity can be large.

use std::collections::BTreeSet;

use json_patch::jsonptr::{PointerBuf, Token};
use json_patch::{AddOperation, Patch, PatchOperation, RemoveOperation, ReplaceOperation};
use serde_json::Value;

use super::PodContext;
use crate::selector;
use crate::template::CONTAINERS;

/// The fields that the steps may change, by parent.
const OWNED: [(&str, &[&str]); 2] = [
    ("metadata", &["annotations"]),
    ("spec", &["affinity", "tolerations", "schedulingGates", "resourceClaims"]),
];

/// What the steps may change of guests besides.
const OWNED_OF_GUESTS: [&str; 2] = ["containers", "resources"];

/// What the steps may change of a Pod, as it was before them.
#[derive(Debug)]
pub struct Before {
    parents: Vec<(&'static str, Parent)>,
}

#[derive(Debug)]
enum Parent {
    /// An object, with a copy of these fields.
    Object(Vec<(&'static str, Option<Value>)>),
    /// Absent, or of a type that the steps refuse.
    Other,
}

impl Before {
    /// Copies what the steps may change. The steps change containers only to give them a slot or devices.
    #[must_use]
    pub fn of(pod: &Value, facts: &PodContext<'_>) -> Self {
        let mut more = BTreeSet::new();
        if facts.rule.is_some_and(|rule| !rule.devices().claims().is_empty()) {
            more.extend(CONTAINERS);
        }
        if facts.machine.is_some() {
            more.extend(OWNED_OF_GUESTS);
        }
        let parent = |(name, owned): (&'static str, &'static [&'static str])| {
            let Some(object) = pod.get(name).and_then(Value::as_object) else { return (name, Parent::Other) };
            let more = more.iter().filter(|_| name == "spec");
            let fields = owned.iter().chain(more).map(|field| (*field, object.get(*field).cloned()));
            (name, Parent::Object(fields.collect()))
        };
        Self { parents: OWNED.map(parent).into() }
    }

    /// The patch that makes the Pod what it is after the steps. What is new is moved out of `pod`, which is of no use
    /// afterwards.
    #[must_use]
    pub fn patch(self, pod: &mut Value) -> Patch {
        let (mut operations, mut path) = (Vec::new(), PointerBuf::root());
        for (name, parent) in self.parents {
            path.push_back(name);
            match (parent, pod.get_mut(name)) {
                (Parent::Object(fields), Some(after)) => {
                    for (field, before) in fields {
                        path.push_back(field);
                        compare(&mut operations, &mut path, before.as_ref(), after.get_mut(field));
                        path.pop_back();
                    }
                }
                // The steps have made it: there is nothing in it but theirs.
                (Parent::Other, Some(after @ Value::Object(_))) => operations.push(add(&path, after)),
                _ => {}
            }
            path.pop_back();
        }
        Patch(operations)
    }
}

fn add(path: &PointerBuf, value: &mut Value) -> PatchOperation {
    PatchOperation::Add(AddOperation { path: path.clone(), value: value.take() })
}

/// Compares one value down to what differs. The terms of node affinity are replaced as one: nearly all of them change, and each
/// operation of their own would have a path that is longer than the change.
fn compare(
    operations: &mut Vec<PatchOperation>,
    path: &mut PointerBuf,
    before: Option<&Value>,
    after: Option<&mut Value>,
) {
    match (before, after) {
        (None, None) => {}
        (None, Some(after)) => operations.push(add(path, after)),
        (Some(_), None) => operations.push(PatchOperation::Remove(RemoveOperation { path: path.clone() })),
        (Some(before), Some(after)) if before == after => {}
        (Some(Value::Object(before)), Some(Value::Object(after))) => {
            for key in before.keys().filter(|key| !after.contains_key(*key)) {
                path.push_back(Token::new(key.as_str()));
                operations.push(PatchOperation::Remove(RemoveOperation { path: path.clone() }));
                path.pop_back();
            }
            for (key, after) in after {
                path.push_back(Token::new(key.as_str()));
                compare(operations, path, before.get(key), Some(after));
                path.pop_back();
            }
        }
        (Some(Value::Array(before)), Some(Value::Array(after)))
            if after.len() >= before.len() && path.as_str() != selector::POINTER =>
        {
            for (i, after) in after.iter_mut().enumerate() {
                path.push_back(i);
                compare(operations, path, before.get(i), Some(after));
                path.pop_back();
            }
        }
        (Some(_), Some(after)) => {
            operations
                .push(PatchOperation::Replace(ReplaceOperation { path: path.clone(), value: after.take() }));
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::claim::DeviceClaimSpec;
    use crate::machine::MachineType;
    use crate::mutate::claims::tests::of_template;
    use crate::mutate::machine::GuestSlot;
    use crate::selector::tests::pod;

    #[test]
    fn a_patch_names_what_differs_and_replaces_selector_terms_as_one() {
        let operations = |before: &Value, mut after: Value| {
            let mut operations = Vec::new();
            compare(&mut operations, &mut PointerBuf::root(), Some(before), Some(&mut after));
            serde_json::to_value(operations).unwrap()
        };
        let lists = |list: Value| json!({"l": list, "same": [1]});
        for (before, after, expected) in [
            (json!([1, 2]), json!([1, 2]), json!([])),
            (json!([1, 2]), json!([1, 3]), json!([{"op": "replace", "path": "/l/1", "value": 3}])),
            (json!([1]), json!([1, {"a": 2}]), json!([{"op": "add", "path": "/l/1", "value": {"a": 2}}])),
            (json!([1, 2]), json!([2]), json!([{"op": "replace", "path": "/l", "value": [2]}])),
            (
                json!([{"a": 1}]),
                json!([{"b": 1}]),
                json!([
                {"op": "remove", "path": "/l/0/a"}, {"op": "add", "path": "/l/0/b", "value": 1}]),
            ),
            (json!("x"), json!([]), json!([{"op": "replace", "path": "/l", "value": []}])),
        ] {
            assert_eq!(operations(&lists(before), lists(after)), expected);
        }
        let term = |key: &str| json!({"matchExpressions": [{"key": key, "operator": "Exists"}]});
        let (before, after) = (pod(json!([term("a")])), pod(json!([term("a"), term("b")])));
        let whole = json!([{"op": "replace", "path": selector::POINTER, "value": [term("a"), term("b")]}]);
        assert_eq!(operations(&before, after), whole);
    }

    #[test]
    fn containers_and_resources_are_copied_only_where_they_get_devices_or_a_slot() {
        let pod = json!({"spec": {"containers": [{"name": "c"}], "initContainers": [{"name": "i"}]}});
        let type_ = MachineType {
            name: "small".to_owned(),
            cpu: "1".parse().unwrap(),
            memory: "1Gi".parse().unwrap(),
            gpu: None,
            available: 1,
        };
        let copied = |claims: Vec<DeviceClaimSpec>, is_guest: bool| -> Vec<&str> {
            let rule = of_template(claims, pod["spec"].clone());
            let machine = is_guest.then_some(GuestSlot { group: "g", type_: &type_ });
            let facts = PodContext { rule: Some(&rule), machine, ..PodContext::default() };
            let parents = Before::of(&pod, &facts).parents.into_iter();
            let fields = parents.flat_map(|(_, parent)| match parent {
                Parent::Object(fields) => fields,
                Parent::Other => Vec::new(),
            });
            fields
                .map(|(field, _)| field)
                .filter(|field| !OWNED[1].1.contains(field) && *field != "annotations")
                .collect()
        };
        let shared = || {
            vec![DeviceClaimSpec { name: "a".into(), from_rule: "s".into(), ..DeviceClaimSpec::default() }]
        };
        assert_eq!(copied(Vec::new(), false), Vec::<&str>::new());
        assert_eq!(copied(shared(), false), CONTAINERS);
        assert_eq!(copied(Vec::new(), true), OWNED_OF_GUESTS);
        assert_eq!(copied(shared(), true), ["containers", "initContainers", "resources"]);
    }
}
