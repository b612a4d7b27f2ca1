//! The status of a NamespaceOffloading, computed from what is known: which virtual nodes it selects. Whether a namespace is
//! there in another cluster is known to those only who make it there, so nothing is said of that.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;
use outrigger_api::namespace_offloading::RemoteNamespaceCondition;
use outrigger_api::{NamespaceOffloading, NamespaceOffloadingStatus};
use outrigger_core::offloading::{Strategy, none_selected};
use outrigger_core::reason::Cause;
use outrigger_core::selector::matching::Node;
use outrigger_core::{keys, validate};
use serde_json::{Map, Value, json};

use super::cache::Labels;

/// Names that a message lists.
const SHOWN: usize = 5;

/// The status that an object should have now. Transition times come from the one it has.
pub(super) fn compute(
    object: &NamespaceOffloading,
    nodes: &BTreeMap<String, Labels>,
    now: Timestamp,
) -> NamespaceOffloadingStatus {
    let before = object.status.clone().unwrap_or_default();
    let mut clusters: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    // One that can't be served selects nothing: its Pods are refused.
    if let Ok(offloading) = object.compile() {
        for (name, labels) in nodes {
            if offloading.selects(&Node { name, labels }) {
                let cluster = labels.get(keys::REMOTE_CLUSTER).unwrap_or(name);
                clusters.entry(cluster.clone()).or_default().push(name);
            }
        }
    }
    let phase = if object.metadata.deletion_timestamp.is_some() {
        "Terminating"
    } else if clusters.is_empty() {
        Cause::NoClusterSelected.as_str()
    } else {
        "Ready"
    };
    let remote_namespace_name = match object.spec.namespace_mapping_strategy.as_str() {
        "EnforceSameName" => object.namespace(),
        "SelectedName" => Some(object.spec.remote_namespace_name.clone()),
        // It holds this cluster's id, which only Liqo knows. The name never changes, so one that is there stays right.
        _ => before.remote_namespace_name.clone(),
    };
    NamespaceOffloadingStatus {
        observed_generation: object.metadata.generation,
        remote_namespace_name,
        offloading_phase: Some(phase.to_owned()),
        remote_namespaces_conditions: clusters
            .into_iter()
            .map(|(cluster, names)| {
                let old = before.remote_namespaces_conditions.get(&cluster);
                let condition = selected(&names, old.map_or(&[][..], Vec::as_slice), now);
                (cluster, vec![condition])
            })
            .collect(),
    }
}

/// What keeps an object with this status from offloading Pods, of so many virtual nodes. What is asked for is not wrong: that Pods
/// stay local, or that the object is deleted.
pub(super) fn trouble(
    object: &NamespaceOffloading,
    status: &NamespaceOffloadingStatus,
    virtual_nodes: usize,
) -> Option<(Cause, String)> {
    if object.metadata.deletion_timestamp.is_some() {
        return None;
    }
    let faults = object.offloading().refusals();
    if !faults.is_empty() {
        return Some((Cause::OffloadingInvalid, validate::message(&faults)));
    }
    let offloads = Strategy::of(&object.spec.pod_offloading_strategy) != Some(Strategy::Local);
    let none = offloads && status.remote_namespaces_conditions.is_empty();
    none.then(|| (Cause::NoClusterSelected, none_selected(virtual_nodes)))
}

/// Whether a status says something else than the one before: it is of another generation, or another phase.
pub(super) fn is_news(before: Option<&NamespaceOffloadingStatus>, now: &NamespaceOffloadingStatus) -> bool {
    before.is_none_or(|before| {
        before.observed_generation != now.observed_generation
            || before.offloading_phase != now.offloading_phase
    })
}

/// That Pods may run in a cluster.
fn selected(names: &[&str], old: &[RemoteNamespaceCondition], now: Timestamp) -> RemoteNamespaceCondition {
    let mut list = names[..names.len().min(SHOWN)].join(", ");
    if names.len() > SHOWN {
        list.push_str(&format!(" and {} more", names.len() - SHOWN));
    }
    let same = old.iter().find(|c| c.type_ == "OffloadingRequired" && c.status == "True");
    RemoteNamespaceCondition {
        type_: "OffloadingRequired".to_owned(),
        status: "True".to_owned(),
        last_transition_time: same.map_or(Some(Time(now)), |same| same.last_transition_time.clone()),
        reason: "ClusterSelected".to_owned(),
        message: format!("Pods may run on virtual nodes: {list}"),
    }
}

/// The merge patch that makes a status another one: what is there no more is null.
pub(super) fn patch(before: Option<&NamespaceOffloadingStatus>, wanted: &NamespaceOffloadingStatus) -> Value {
    let mut patch = serde_json::to_value(wanted).unwrap_or_default();
    let gone: Map<String, Value> = before
        .into_iter()
        .flat_map(|before| before.remote_namespaces_conditions.keys())
        .filter(|cluster| !wanted.remote_namespaces_conditions.contains_key(*cluster))
        .map(|cluster| (cluster.clone(), Value::Null))
        .collect();
    if let Some(object) = patch.as_object_mut()
        && !gone.is_empty()
    {
        let clusters = object.entry("remoteNamespacesConditions").or_insert_with(|| json!({}));
        if let Some(clusters) = clusters.as_object_mut() {
            clusters.extend(gone);
        }
    }
    patch
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures;

    fn object(spec: Value, status: Value) -> NamespaceOffloading {
        fixtures::object(json!({"apiVersion": "offloading.liqo.io/v1beta1", "kind": "NamespaceOffloading",
            "metadata": {"name": "offloading", "namespace": "n", "generation": 7}, "spec": spec, "status": status}))
    }

    fn nodes() -> BTreeMap<String, Labels> {
        let node = |name: &str, region: &str, cluster: Option<&str>| {
            let mut labels = BTreeMap::from([("region".to_owned(), region.to_owned())]);
            labels.extend(cluster.map(|id| (keys::REMOTE_CLUSTER.to_owned(), id.to_owned())));
            (name.to_owned(), labels)
        };
        BTreeMap::from([node("v1", "us", Some("c1")), node("v2", "us", Some("c1")), node("v3", "eu", None)])
    }

    fn us() -> Value {
        json!({"nodeSelectorTerms": [{"matchExpressions": [{"key": "region", "operator": "In", "values": ["us"]}]}]})
    }

    #[test]
    fn what_is_selected_is_reported_by_cluster() {
        let now = Timestamp::UNIX_EPOCH;
        for (spec, phase, clusters) in [
            (json!({}), "Ready", &["c1", "v3"][..]),
            (json!({"clusterSelector": us(), "podOffloadingStrategy": "Remote"}), "Ready", &["c1"]),
            (json!({"podOffloadingStrategy": "Local"}), "NoClusterSelected", &[]),
            (json!({"clusterSelector": {"nodeSelectorTerms": 7}}), "NoClusterSelected", &[]),
        ] {
            let status = compute(&object(spec.clone(), Value::Null), &nodes(), now);
            assert_eq!(status.observed_generation, Some(7));
            assert_eq!(status.offloading_phase.as_deref(), Some(phase), "{spec}");
            assert_eq!(status.remote_namespaces_conditions.keys().collect::<Vec<_>>(), clusters, "{spec}");
        }
        let status = compute(&object(json!({}), Value::Null), &nodes(), now);
        let condition = &status.remote_namespaces_conditions["c1"][0];
        assert_eq!(condition.message, "Pods may run on virtual nodes: v1, v2");
    }

    #[test]
    fn what_is_wrong_is_reported_once() {
        let now = Timestamp::UNIX_EPOCH;
        let (all, none) = (nodes(), BTreeMap::new());
        let west = json!({"nodeSelectorTerms": [{"matchExpressions": [{"key": "region", "operator": "In", "values": ["w"]}]}]});
        for (spec, nodes, expected) in [
            (json!({}), &all, None),
            (json!({"podOffloadingStrategy": "Local"}), &none, None),
            (json!({"clusterSelector": west}), &all, Some((Cause::NoClusterSelected, "3 virtual nodes"))),
            (json!({}), &none, Some((Cause::NoClusterSelected, "0 virtual nodes"))),
            (
                json!({"clusterSelector": {"nodeSelectorTerms": 7}}),
                &all,
                Some((Cause::OffloadingInvalid, "nodeSelectorTerms")),
            ),
            (json!({"podOffloadingStrategy": "Perhaps"}), &all, Some((Cause::OffloadingInvalid, "Perhaps"))),
        ] {
            let object = object(spec, Value::Null);
            let status = compute(&object, nodes, now);
            let reported = trouble(&object, &status, nodes.len());
            assert_eq!(
                reported.as_ref().map(|(cause, _)| *cause),
                expected.map(|(cause, _)| cause),
                "{reported:?}"
            );
            assert!(expected.is_none_or(|(_, part)| reported.unwrap().1.contains(part)));
            assert!(is_news(None, &status) && !is_news(Some(&status), &status));
            let earlier = NamespaceOffloadingStatus { observed_generation: Some(6), ..status.clone() };
            assert!(is_news(Some(&earlier), &status));
        }
    }

    #[test]
    fn names_are_reported_where_they_are_known() {
        let name = |spec: Value, before: Value| {
            compute(&object(spec, before), &nodes(), Timestamp::UNIX_EPOCH).remote_namespace_name
        };
        assert_eq!(name(json!({}), Value::Null), None);
        assert_eq!(name(json!({}), json!({"remoteNamespaceName": "n-id"})).as_deref(), Some("n-id"));
        assert_eq!(
            name(json!({"namespaceMappingStrategy": "EnforceSameName"}), Value::Null).as_deref(),
            Some("n")
        );
        let selected = json!({"namespaceMappingStrategy": "SelectedName", "remoteNamespaceName": "x"});
        assert_eq!(name(selected, Value::Null).as_deref(), Some("x"));
    }

    #[test]
    fn nothing_changes_without_a_reason_and_a_patch_takes_away_what_is_gone() {
        let (t0, t1) = (Timestamp::UNIX_EPOCH, Timestamp::from_second(100).unwrap());
        let first = compute(&object(json!({}), Value::Null), &nodes(), t0);
        let again = compute(&object(json!({}), serde_json::to_value(&first).unwrap()), &nodes(), t1);
        assert_eq!(first, again);
        let fewer = compute(
            &object(json!({"clusterSelector": us()}), serde_json::to_value(&first).unwrap()),
            &nodes(),
            t1,
        );
        let mut stored = serde_json::to_value(&first).unwrap();
        json_patch::merge(&mut stored, &patch(Some(&first), &fewer));
        assert_eq!(fixtures::object::<NamespaceOffloadingStatus>(stored), fewer);
        let none = compute(&object(json!({"podOffloadingStrategy": "Local"}), Value::Null), &nodes(), t1);
        assert_eq!(patch(Some(&fewer), &none)["remoteNamespacesConditions"], json!({"c1": null}));
    }
}
