//! What a Pod gets by which it waits for its companions: the readiness gate, and the claim by which it doesn't start before
//! ([`Ordering`](crate::ordering::Ordering)).
//!
//! A Pod gets the gate when it is created, because its list of gates can't change afterwards. An unneeded gate does no harm: the
//! agent sets its condition to `True` where no companion is waited for. A missing one does: the Pod is Ready without its companion.
//! So whatever isn't known at that time counts in favour of the gate. The same holds for claims, which can't change either.
//!
//! The claim is for a device of the Pod's Node. The kubelet starts no container of a Pod before the driver has prepared all of its
//! claims, whether a container uses them or not, and the driver prepares this one when the companions are Ready. The scheduler
//! allocates the device: a Pod that bypasses it never starts with such a claim.

use json_patch::jsonptr::PointerBuf;
use json_patch::{AddOperation, Patch, PatchOperation};
use serde_json::{Value, json};

use crate::field::FieldError;
use crate::keys;
use crate::path::Path;
use crate::workload::Workload;

/// How long a Pod waits that has the claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Hold {
    /// None of its containers starts before its companions are Ready.
    Start,
    /// Moreover, the scheduler doesn't bind it before.
    Binding,
}

impl Hold {
    /// All of them, the weakest first.
    pub const ALL: [Self; 2] = [Self::Start, Self::Binding];

    /// Name of the ResourceClaimTemplate that the claim names.
    pub fn template(self) -> &'static str {
        match self {
            Self::Start => keys::COMPANIONS_CLAIM,
            Self::Binding => keys::COMPANIONS_BINDING_CLAIM,
        }
    }

    /// What a claim of the name [`keys::COMPANIONS_CLAIM`] with this template says; `None` for somebody else's.
    pub fn of_template(template: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|hold| hold.template() == template)
    }
}

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

/// The patch that adds the claim to a Pod; empty if it has the claim already. All other claims stay. A Pod that the API server
/// refuses anyway, because its fields have wrong types, gets no patch.
///
/// # Errors
/// If the Pod has an entry of this name that is another claim or a weaker one, or a Node already.
pub fn claim_patch(pod: &Value, hold: Hold) -> Result<Patch, FieldError> {
    let none = Patch(Vec::new());
    let name = keys::COMPANIONS_CLAIM;
    let Some(spec) = pod.get("spec").filter(|spec| spec.is_object()) else { return Ok(none) };
    if let Some(node) = spec.get("nodeName").and_then(Value::as_str).filter(|node| !node.is_empty()) {
        let why = "the scheduler doesn't see a Pod that has a Node already, so it can't wait for its companions; select the Node by \
                   spec.affinity.nodeAffinity instead";
        return Err(FieldError::of_value("spec.nodeName", node, why));
    }
    let claim = json!({"name": name, "resourceClaimTemplateName": hold.template()});
    let (path, value) = match spec.get("resourceClaims") {
        None | Some(Value::Null) => (PointerBuf::from_tokens(["spec", "resourceClaims"]), json!([claim])),
        Some(Value::Array(claims)) => {
            let named = claims.iter().enumerate().find(|(_, claim)| text(claim, "name") == Some(name));
            if let Some((i, named)) = named {
                return check_claim(i, named, hold).map(|()| none);
            }
            (PointerBuf::from_tokens(["spec", "resourceClaims", "-"]), claim)
        }
        Some(_) => return Ok(none),
    };
    Ok(Patch(vec![PatchOperation::Add(AddOperation { path, value })]))
}

/// Refuses an entry that has the name of Outrigger's claim and is another one, or by which the Pod waits less long.
fn check_claim(i: usize, claim: &Value, hold: Hold) -> Result<(), FieldError> {
    let name = keys::COMPANIONS_CLAIM;
    let path = format!("spec.resourceClaims[{i}]");
    if let Some(other) = text(claim, "resourceClaimName") {
        let why = format!("{name} is the name of Outrigger's claim; give your own claim another name");
        return Err(FieldError::of_value(format!("{path}.resourceClaimName"), other, why));
    }
    match text(claim, "resourceClaimTemplateName") {
        Some(template) if Hold::of_template(template).is_some_and(|found| found >= hold) => Ok(()),
        other => Err(FieldError::of_value(
            format!("{path}.resourceClaimTemplateName"),
            other.unwrap_or_default(),
            format!(
                "{name} is the name of Outrigger's claim; give your own claim another name, or remove it"
            ),
        )),
    }
}

fn text<'a>(object: &'a Value, key: &str) -> Option<&'a str> {
    object.get(key).and_then(Value::as_str)
}

/// Labels that the API server copies from the Node to a Pod when it is bound, over the Pod's own (admission plugin PodTopologyLabels).
pub const OF_NODES: [&str; 2] = ["topology.kubernetes.io/region", "topology.kubernetes.io/zone"];

/// The fields of a workload that may still change before its companion is created: [`UNKNOWN_AT_CREATION`], its node and the labels that
/// it gets from the node as long as it is not bound, and its name if the API server generates it.
pub fn unknown(workload: &Workload) -> Vec<Path> {
    let mut unknown = UNKNOWN_AT_CREATION.to_vec();
    if workload.node_name.is_none() {
        unknown.push(Path::NodeName);
        unknown.extend(OF_NODES.map(|key| Path::ExtraEntry("labels".into(), key.into())));
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

    fn claimed(pod: &Value) -> Result<Value, String> {
        claimed_for(pod, Hold::Start)
    }

    fn claimed_for(pod: &Value, hold: Hold) -> Result<Value, String> {
        let mut after = pod.clone();
        json_patch::patch(&mut after, &claim_patch(pod, hold).map_err(|error| error.to_string())?).unwrap();
        Ok(after)
    }

    #[test]
    fn the_claim_is_added_behind_others_and_once() {
        let ours =
            json!({"name": keys::COMPANIONS_CLAIM, "resourceClaimTemplateName": keys::COMPANIONS_CLAIM});
        let other = json!({"name": "gpu", "resourceClaimName": "mine"});
        for (before, after) in [
            (json!({"spec": {}}), json!([ours])),
            (json!({"spec": {"resourceClaims": null, "nodeName": ""}}), json!([ours])),
            (json!({"spec": {"resourceClaims": []}}), json!([ours])),
            (json!({"spec": {"resourceClaims": [other]}}), json!([other, ours])),
            (json!({"spec": {"resourceClaims": [ours, other]}}), json!([ours, other])),
        ] {
            let once = claimed(&before).unwrap();
            assert_eq!(once["spec"]["resourceClaims"], after, "{before}");
            assert_eq!(claimed(&once).unwrap(), once);
        }
        for pod in [json!(null), json!({}), json!({"spec": []}), json!({"spec": {"resourceClaims": {}}})] {
            assert_eq!(claimed(&pod).unwrap(), pod);
        }
    }

    #[test]
    fn a_claim_of_that_name_that_is_another_one_is_refused() {
        for (field, value) in [
            ("resourceClaimName", "mine"),
            ("resourceClaimTemplateName", "other"),
            ("resourceClaimName", keys::COMPANIONS_CLAIM),
        ] {
            let claims = json!([{"name": "a"}, {"name": keys::COMPANIONS_CLAIM, field: value}]);
            let error = claimed(&json!({"spec": {"resourceClaims": claims}})).unwrap_err();
            let start =
                format!("spec.resourceClaims[1].{field}: {value:?}: outrigger-companions is the name of");
            assert!(error.starts_with(&start) && error.contains("another name"), "{error}");
        }
        let empty = json!([{"name": keys::COMPANIONS_CLAIM}]);
        assert!(claimed(&json!({"spec": {"resourceClaims": empty}})).is_err());
    }

    #[test]
    fn a_pod_that_waits_longer_keeps_its_claim_and_one_that_waits_less_long_is_refused() {
        let with = |hold: Hold| {
            let claim = json!({"name": keys::COMPANIONS_CLAIM, "resourceClaimTemplateName": hold.template()});
            json!({"spec": {"resourceClaims": [claim]}})
        };
        let none = json!({"spec": {}});
        for hold in Hold::ALL {
            assert_eq!(claimed_for(&none, hold).unwrap(), with(hold));
            assert_eq!(claimed_for(&with(hold), hold).unwrap(), with(hold));
        }
        assert_eq!(claimed_for(&with(Hold::Binding), Hold::Start).unwrap(), with(Hold::Binding));
        let error = claimed_for(&with(Hold::Start), Hold::Binding).unwrap_err();
        assert!(error.starts_with("spec.resourceClaims[0].resourceClaimTemplateName: "), "{error}");
    }

    #[test]
    fn a_pod_that_bypasses_the_scheduler_is_refused() {
        let error = claimed(&json!({"spec": {"nodeName": "host-a"}})).unwrap_err();
        assert!(
            error.starts_with("spec.nodeName: \"host-a\": ") && error.contains("nodeAffinity"),
            "{error}"
        );
    }

    #[test]
    fn what_is_unknown_before_a_pod_is_stored() {
        let bound = crate::workload::tests::nginx();
        assert_eq!(unknown(&bound), [Path::Id, Path::Ready]);
        let pending = Workload { node_name: None, ..bound.clone() };
        let of_node =
            ["region", "zone"].map(|key| format!(".state.extra.labels['topology.kubernetes.io/{key}']"));
        let [region, zone] = of_node.map(|path| Path::parse(&path).unwrap());
        assert_eq!(unknown(&pending), [Path::Id, Path::Ready, Path::NodeName, region, zone]);
        let generated = Workload { resource_name: String::new(), ..bound };
        assert_eq!(unknown(&generated), [Path::Id, Path::Ready, Path::ResourceName]);
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
