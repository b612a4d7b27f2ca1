//! Nodes with only the fields that agents read.
//!
//! As with [`crate::pod`], what a type doesn't have the parser skips: a Node's images, addresses and capacity among it. It is read
//! only: what is written to a Node is a patch.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1 as full;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use outrigger_core::quantity::Quantity;
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use crate::pod::{Condition, metadata};

/// A Node with the fields that agents read.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, Resource)]
#[resource(inherit = full::Node)]
pub struct Node {
    /// Its metadata, as of [`crate::pod::Pod`].
    #[serde(default, deserialize_with = "metadata")]
    pub metadata: ObjectMeta,
    /// Its taints.
    #[serde(default)]
    pub spec: Option<Spec>,
    /// Its conditions.
    #[serde(default)]
    pub status: Option<Status>,
}

/// A Node's spec.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
pub struct Spec {
    /// As they are stored, with all fields: a write compares them with what is stored then.
    #[serde(default)]
    pub taints: Option<Vec<Value>>,
}

/// A Node's status.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
pub struct Status {
    /// Ready and others.
    #[serde(default)]
    pub conditions: Option<Vec<Condition>>,
    /// How many Pods it can run at a time.
    #[serde(default, rename = "allocatable", deserialize_with = "pods")]
    pub pods: Option<u64>,
}

/// Reads the number of Pods from a Node's allocatable resources, and keeps nothing else of them.
fn pods<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    let allocatable = Option::<BTreeMap<String, Value>>::deserialize(deserializer)?;
    let pods = allocatable.and_then(|mut all| Quantity::of(&all.remove("pods")?));
    Ok(pods.and_then(|pods| pods.holds(&Quantity::whole(1))))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn taints_are_kept_as_they_are_stored() {
        let taints =
            json!([{"key": "a", "effect": "NoExecute", "timeAdded": "2026-01-01T00:00:00Z", "later": [1]}]);
        let node = json!({"metadata": {"name": "n", "uid": "u", "managedFields": [{"manager": "x"}]},
            "spec": {"podCIDR": "10.0.0.0/24", "taints": taints},
            "status": {"images": [{"names": ["i"]}], "allocatable": {"cpu": "4", "pods": "1k"}, "conditions": [{"type": "Ready", "status": "True", "lastHeartbeatTime": "x"}]}});
        let node: Node = serde_json::from_value(node).unwrap();
        assert_eq!(json!(node.spec.unwrap().taints), taints);
        let status = node.status.unwrap();
        assert_eq!((&*status.conditions.unwrap()[0].type_, status.pods), ("Ready", Some(1000)));
        assert_eq!((node.metadata.name.as_deref(), node.metadata.managed_fields), (Some("n"), None));
        assert_eq!(serde_json::from_value::<Node>(json!({})).unwrap(), Node::default());
    }
}
