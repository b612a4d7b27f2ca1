//! The marks of a pool on its Nodes: an annotation, labels, and taints where the pool asks for them.
//!
//! Marks are recognised by their content: the label and taint [`keys::NODE_POOL`], and those under the domain whose value is the
//! group. So marks that Imperator itself has written are removed too, and those of a manager that was killed. Labels and taints are
//! written in one patch: a node never has one without the other.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};

use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use kube::api::ObjectMeta;
use outrigger_core::keys;
use outrigger_core::machine::{Mode, PoolNode, type_key};
use serde_json::{Map, Value, json};

use crate::writes;

/// The fields of a Node that pools depend on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct NodeSummary {
    pub(super) uid: String,
    pub(super) resource_version: String,
    annotation: Option<String>,
    /// Labels under the domain of Machines.
    labels: BTreeMap<String, String>,
    /// All taints, as the API has them.
    taints: Vec<Value>,
    /// Whether none of [`keys::NOT_READY`] is there.
    pub(super) ready: bool,
    /// Changes with what the node has to give.
    pub(super) size: u64,
}

/// The marks that a pool wants on a Node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Marks {
    annotation: Option<String>,
    labels: BTreeMap<String, String>,
    /// Values by keys; the effect is NoSchedule.
    taints: BTreeMap<String, String>,
}

/// How a node is, as a pool's status says.
pub(super) fn condition(mode: Mode, ready: bool) -> &'static str {
    match (mode, ready) {
        (Mode::Maintenance, _) => "Maintenance",
        (Mode::Ready, true) => "Healthy",
        (Mode::Ready, false) => "Unhealthy",
    }
}

impl Marks {
    pub(super) fn none() -> Self {
        Self { annotation: None, labels: BTreeMap::new(), taints: BTreeMap::new() }
    }

    /// Those of a node of a group's pool.
    pub(super) fn of(group: &str, entry: &PoolNode, ready: bool) -> Self {
        let value = match (entry.mode, ready) {
            (Mode::Ready, false) => "not-ready",
            (mode, _) => mode.as_str(),
        };
        let mut labels: BTreeMap<String, String> =
            entry.types.iter().map(|name| (type_key(name), group.to_owned())).collect();
        labels.insert(keys::NODE_POOL.to_owned(), value.to_owned());
        let taints = if entry.taint { labels.clone() } else { BTreeMap::new() };
        Self { annotation: Some(group.to_owned()), labels, taints }
    }
}

fn in_domain(key: &str) -> bool {
    key.split_once('/').is_some_and(|(domain, _)| domain == keys::MACHINE_GROUP_DOMAIN)
}

fn text<'a>(taint: &'a Value, field: &str) -> &'a str {
    taint.get(field).and_then(Value::as_str).unwrap_or_default()
}

impl NodeSummary {
    pub(super) fn of(node: &Node) -> Self {
        let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_deref()).unwrap_or_default();
        let mut size = DefaultHasher::new();
        if let Some(allocatable) = node.status.as_ref().and_then(|status| status.allocatable.as_ref()) {
            allocatable.iter().for_each(|(resource, quantity)| (resource, &quantity.0).hash(&mut size));
        }
        Self {
            uid: node.uid().unwrap_or_default(),
            resource_version: node.resource_version().unwrap_or_default(),
            annotation: node.annotations().get(keys::MACHINE_GROUP).cloned(),
            labels: node
                .labels()
                .iter()
                .filter(|(key, _)| in_domain(key))
                .map(|(key, value)| (key.clone(), value.clone()))
                .collect(),
            ready: !taints.iter().any(|taint| keys::NOT_READY.contains(&taint.key.as_str())),
            taints: taints.iter().filter_map(|taint| serde_json::to_value(taint).ok()).collect(),
            size: size.finish(),
        }
    }

    /// Whether nothing is different that matters.
    pub(super) fn is_same_as(&self, other: &Self) -> bool {
        *self == Self { resource_version: self.resource_version.clone(), ..other.clone() }
    }

    /// Groups whose marks it has.
    pub(super) fn groups(&self) -> BTreeSet<String> {
        let labels = self.labels.iter().filter(|(key, _)| is_type(key)).map(|(_, value)| value.clone());
        let taints = self.taints.iter().filter(|taint| is_type(text(taint, "key")));
        let taints = taints.map(|taint| text(taint, "value").to_owned());
        labels.chain(taints).chain(self.annotation.clone()).collect()
    }

    /// Whether a manager has written all marks of a group that [`Self::patch`] would remove, by the field managers of the Node. Those of
    /// taints aren't looked at: each is written together with its label.
    pub(super) fn is_ours(&self, metadata: &ObjectMeta, group: &str, shared: bool) -> bool {
        let labels = self.labels.iter().filter(|(key, value)| is_of(key, value, group, shared));
        let labels: BTreeSet<&str> = labels.map(|(key, _)| key.as_str()).collect();
        let annotated = self.annotation.as_deref() == Some(group);
        let mut taints = self.taints.iter().map(|taint| (text(taint, "key"), text(taint, "value")));
        !labels.is_empty()
            && labels.iter().all(|label| writes::has_written(metadata, "f:labels", label))
            && (!annotated || writes::has_written(metadata, "f:annotations", keys::MACHINE_GROUP))
            && taints.all(|(key, value)| !is_of(key, value, group, shared) || labels.contains(key))
    }

    /// The patch that makes the marks of a group these; `None` when they are. `shared`: another pool has the node, and writes its
    /// health.
    pub(super) fn patch(&self, group: &str, marks: &Marks, shared: bool) -> Option<Value> {
        let ours = |key: &str, value: &str| is_of(key, value, group, shared);
        let mut labels = Map::new();
        for (key, value) in &self.labels {
            if ours(key, value) && !marks.labels.contains_key(key) {
                labels.insert(key.clone(), Value::Null);
            }
        }
        for (key, value) in &marks.labels {
            if self.labels.get(key) != Some(value) {
                labels.insert(key.clone(), json!(value));
            }
        }
        let mut metadata = Map::new();
        if !labels.is_empty() {
            metadata.insert("labels".to_owned(), Value::Object(labels));
        }
        let stale = marks.annotation.is_none() && self.annotation.as_deref() == Some(group);
        if stale || marks.annotation.is_some() && self.annotation != marks.annotation {
            metadata.insert("annotations".to_owned(), json!({keys::MACHINE_GROUP: marks.annotation}));
        }
        let mut patch = json!({});
        let is_ours = |taint: &&Value| {
            let (key, value) = (text(taint, "key"), text(taint, "value"));
            text(taint, "effect") == "NoSchedule" && (ours(key, value) || marks.taints.contains_key(key))
        };
        let (have, others): (Vec<&Value>, Vec<&Value>) = self.taints.iter().partition(is_ours);
        let pairs: BTreeSet<(&str, &str)> =
            have.iter().map(|taint| (text(taint, "key"), text(taint, "value"))).collect();
        let wanted = marks.taints.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
        if pairs != wanted {
            let new = marks
                .taints
                .iter()
                .map(|(key, value)| json!({"key": key, "value": value, "effect": "NoSchedule"}));
            let all: Vec<Value> = others.into_iter().cloned().chain(new).collect();
            // The list is replaced as a whole, and is others' too: only if nobody has changed it meanwhile.
            metadata.insert("resourceVersion".to_owned(), json!(self.resource_version));
            patch["spec"] = json!({"taints": all});
        }
        if metadata.is_empty() {
            return None;
        }
        metadata.insert("uid".to_owned(), json!(self.uid));
        patch["metadata"] = Value::Object(metadata);
        Some(patch)
    }
}

/// Whether a label or taint is a mark of a group. `shared`: another pool has the node, and writes its health.
fn is_of(key: &str, value: &str, group: &str, shared: bool) -> bool {
    (key == keys::NODE_POOL && !shared) || (is_type(key) && value == group)
}

/// Whether a key is that of a machine type, as far as a key can tell.
fn is_type(key: &str) -> bool {
    in_domain(key)
        && ![keys::NODE_POOL, keys::MACHINE_GROUP, keys::MACHINE_TYPE, keys::POD_ROLE].contains(&key)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures;

    const T1: &str = "imperator.tenzen-y.io/t1";
    const T2: &str = "imperator.tenzen-y.io/t2";

    fn node(labels: Value, annotations: Value, taints: Value) -> NodeSummary {
        let node = json!({"metadata": {"name": "n", "uid": "u", "resourceVersion": "7", "labels": labels,
            "annotations": annotations}, "spec": {"taints": taints}});
        NodeSummary::of(&fixtures::object(node))
    }

    fn entry(mode: Mode, taint: bool, type_: &str) -> PoolNode {
        PoolNode { name: "n".to_owned(), mode, taint, types: vec![type_.to_owned()] }
    }

    fn ours(key: &str, value: &str) -> Value {
        json!({"key": key, "value": value, "effect": "NoSchedule"})
    }

    #[test]
    fn health_is_a_label_and_maintenance_comes_first() {
        for (mode, taint, value, says) in [
            (Mode::Ready, None, "ready", "Healthy"),
            (Mode::Ready, Some("node.kubernetes.io/memory-pressure"), "ready", "Healthy"),
            (Mode::Ready, Some("node.kubernetes.io/not-ready"), "not-ready", "Unhealthy"),
            (Mode::Ready, Some("node.kubernetes.io/unschedulable"), "not-ready", "Unhealthy"),
            (Mode::Ready, Some("node.kubernetes.io/network-unavailable"), "not-ready", "Unhealthy"),
            (Mode::Ready, Some("node.kubernetes.io/unreachable"), "not-ready", "Unhealthy"),
            (Mode::Maintenance, None, "maintenance", "Maintenance"),
            (Mode::Maintenance, Some("node.kubernetes.io/unreachable"), "maintenance", "Maintenance"),
        ] {
            let taints: Vec<Value> =
                taint.iter().map(|key| json!({"key": key, "effect": "NoExecute"})).collect();
            let node = node(json!({}), json!({}), json!(taints));
            let marks = Marks::of("g", &entry(mode, false, "t1"), node.ready);
            assert_eq!(condition(mode, node.ready), says, "{taint:?}");
            assert_eq!(
                node.patch("g", &marks, false).unwrap(),
                json!({"metadata": {"uid": "u", "labels": {keys::NODE_POOL: value, T1: "g"},
                    "annotations": {keys::MACHINE_GROUP: "g"}}}),
                "{taint:?}"
            );
        }
    }

    #[test]
    fn taints_of_others_stay_and_a_second_look_changes_nothing() {
        let foreign = json!({"key": "node.kubernetes.io/unreachable", "effect": "NoExecute", "timeAdded": "2026-01-01T00:00:00Z"});
        let clean = node(json!({"a": "b"}), json!({}), json!([foreign]));
        let marks = Marks::of("g", &entry(Mode::Ready, true, "t1"), false);
        let patch = clean.patch("g", &marks, false).unwrap();
        let taints = json!([foreign, ours(keys::NODE_POOL, "not-ready"), ours(T1, "g")]);
        assert_eq!(patch["spec"]["taints"], taints);
        assert_eq!(patch["metadata"]["resourceVersion"], "7");
        let labels = json!({keys::NODE_POOL: "not-ready", T1: "g"});
        assert_eq!(patch["metadata"]["labels"], labels);
        let done = node(labels, json!({keys::MACHINE_GROUP: "g"}), taints);
        assert_eq!(done.patch("g", &marks, false), None);
        // Nothing is left of it in the end, also where the annotation was taken off by hand.
        let without =
            node(json!({T1: "g", keys::NODE_POOL: "ready"}), json!({}), json!([ours(T1, "g"), foreign]));
        assert_eq!(without.groups(), BTreeSet::from(["g".to_owned()]));
        assert_eq!(
            without.patch("g", &Marks::none(), false).unwrap(),
            json!({"metadata": {"uid": "u", "resourceVersion": "7", "labels": {T1: null, keys::NODE_POOL: null}},
                "spec": {"taints": [foreign]}})
        );
        assert_eq!(clean.patch("g", &Marks::none(), false), None);
    }

    #[test]
    fn another_type_takes_the_old_one_away_and_taint_false_the_taints() {
        let before = node(
            json!({T1: "g", keys::NODE_POOL: "ready"}),
            json!({keys::MACHINE_GROUP: "g"}),
            json!([ours(keys::NODE_POOL, "ready"), ours(T1, "g")]),
        );
        let patch = before.patch("g", &Marks::of("g", &entry(Mode::Ready, true, "t2"), true), false).unwrap();
        assert_eq!(patch["metadata"]["labels"], json!({T1: null, T2: "g"}));
        assert_eq!(patch["spec"]["taints"], json!([ours(keys::NODE_POOL, "ready"), ours(T2, "g")]));
        let patch =
            before.patch("g", &Marks::of("g", &entry(Mode::Ready, false, "t1"), true), false).unwrap();
        assert_eq!(patch, json!({"metadata": {"uid": "u", "resourceVersion": "7"}, "spec": {"taints": []}}));
    }

    #[test]
    fn what_another_pool_has_is_left_to_it() {
        let shared = node(
            json!({T1: "g", T2: "other", keys::NODE_POOL: "ready"}),
            json!({keys::MACHINE_GROUP: "other"}),
            json!([ours(keys::NODE_POOL, "ready"), ours(T1, "g"), ours(T2, "other")]),
        );
        assert_eq!(
            shared.patch("g", &Marks::none(), true).unwrap(),
            json!({"metadata": {"uid": "u", "resourceVersion": "7", "labels": {T1: null}},
                "spec": {"taints": [ours(keys::NODE_POOL, "ready"), ours(T2, "other")]}})
        );
    }
}
