//! The readiness gate of workloads that wait for their companions ([`Ordering::BeforeReady`](crate::rule::Ordering)).
//!
//! A Pod gets the gate when it is created, because its list of gates can't change afterwards. An unneeded gate does no harm: the
//! agent sets its condition to `True` where no companion is waited for. A missing one does: the Pod is Ready without its companion.
//! So whatever isn't known at that time counts in favour of the gate.

use json_patch::jsonptr::PointerBuf;
use json_patch::{AddOperation, Patch, PatchOperation};
use serde_json::{Value, json};

use crate::keys;
use crate::path::Path;
use crate::workload::Workload;

/// Fields of a workload that no one knows before its Pod is stored: its uid, which the API server generates, and its Ready
/// condition.
pub const UNKNOWN_AT_CREATION: [Path; 2] = [Path::Id, Path::Ready];

/// The patch that adds the gate to a Pod; empty if it has the gate already. All other gates stay. A Pod that the API server
/// refuses anyway, because its fields have wrong types, gets no patch.
pub fn patch(pod: &Value) -> Patch {
    let none = Patch(Vec::new());
    let gate = json!({"conditionType": keys::COMPANIONS_GATE});
    let Some(spec) = pod.get("spec").filter(|spec| spec.is_object()) else { return none };
    let (path, value) = match spec.get("readinessGates") {
        None | Some(Value::Null) => (PointerBuf::from_tokens(["spec", "readinessGates"]), json!([gate])),
        Some(Value::Array(gates)) if gates.iter().any(is_ours) => return none,
        Some(Value::Array(_)) => (PointerBuf::from_tokens(["spec", "readinessGates", "-"]), gate),
        Some(_) => return none,
    };
    Patch(vec![PatchOperation::Add(AddOperation { path, value })])
}

fn is_ours(gate: &Value) -> bool {
    gate.get("conditionType").is_some_and(|kind| kind == keys::COMPANIONS_GATE)
}

/// The fields of a workload that may still change before its companion is created: [`UNKNOWN_AT_CREATION`], its node as long as
/// it is not bound, and its name if the API server generates it.
pub fn unknown(workload: &Workload) -> Vec<Path> {
    let mut unknown = UNKNOWN_AT_CREATION.to_vec();
    if workload.node_name.is_none() {
        unknown.push(Path::NodeName);
    }
    if workload.resource_name.is_empty() {
        unknown.push(Path::ResourceName);
    }
    unknown
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn patched(pod: &Value) -> Value {
        let mut after = pod.clone();
        json_patch::patch(&mut after, &patch(pod)).unwrap();
        after
    }

    #[test]
    fn the_gate_is_added_behind_others() {
        let ours = json!({"conditionType": keys::COMPANIONS_GATE});
        let other = json!({"conditionType": "example.com/gate", "unknown": 1});
        for (before, after) in [
            (json!({"spec": {}}), json!([ours])),
            (json!({"spec": {"readinessGates": null}}), json!([ours])),
            (json!({"spec": {"readinessGates": []}}), json!([ours])),
            (json!({"spec": {"readinessGates": [other]}}), json!([other, ours])),
            (json!({"spec": {"readinessGates": [ours, other]}}), json!([ours, other])),
        ] {
            assert_eq!(patched(&before)["spec"]["readinessGates"], after, "{before}");
        }
    }

    #[test]
    fn what_is_no_pod_is_left_alone() {
        for pod in
            [json!(null), json!({}), json!({"spec": []}), json!({"spec": {"readinessGates": {"a": 1}}})]
        {
            assert!(patch(&pod).0.is_empty(), "{pod}");
        }
    }

    fn json_value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i32>().prop_map(Value::from),
            "[a-z]{0,3}".prop_map(Value::from),
            Just(json!({"conditionType": keys::COMPANIONS_GATE})),
        ];
        leaf.prop_recursive(3, 24, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::btree_map("[a-z]{1,3}", inner, 0..4)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn the_patch_is_idempotent_and_touches_nothing_else(
            gates in json_value(),
            other in json_value(),
            has_gates in any::<bool>(),
        ) {
            let mut pod = json!({"metadata": other, "spec": {"containers": other}});
            if has_gates {
                pod["spec"]["readinessGates"] = gates;
            }
            let once = patched(&pod);
            prop_assert_eq!(&patched(&once), &once);
            let without = |pod: &Value| {
                let mut pod = pod.clone();
                let gates = pod["spec"].as_object_mut().unwrap().remove("readinessGates");
                let mut others = gates.as_ref().and_then(Value::as_array).cloned().unwrap_or_default();
                others.retain(|gate| !is_ours(gate));
                (pod, others)
            };
            prop_assert_eq!(without(&once), without(&pod));
        }
    }
}
