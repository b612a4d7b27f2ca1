//! `NamespaceOffloading` (`offloading.liqo.io/v1beta1`): selects the virtual nodes on which the Pods of a namespace may
//! run. The resource has the fields of Liqo's, for clusters in which Liqo's own definition is not installed.

// The derive generates the resource in a private module.
#![allow(unreachable_pub)]
// Printer columns share types.
#![allow(clippy::duplicated_attributes)]

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::{CustomResource, KubeSchema};
use outrigger_core::field::FieldError;
use outrigger_core::offloading::Offloading;
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use crate::null::or_default;

// Names are strings and the selector is JSON, although the schema is stricter: an object that is older than the schema must
// not prevent the list from being read.
/// NamespaceOffloadingSpec defines where the Pods of a namespace may run.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[kube(
    group = "offloading.liqo.io",
    version = "v1beta1",
    kind = "NamespaceOffloading",
    plural = "namespaceoffloadings",
    shortname = "nso",
    shortname = "nsof",
    shortname = "nsoff",
    shortname = "nsoffloading",
    category = "liqo",
    namespaced,
    status = "NamespaceOffloadingStatus",
    doc = "NamespaceOffloading selects the virtual nodes on which the Pods of its namespace may run, and whether they may run on local nodes. A namespace has at most one, named offloading.",
    validation = Rule::new("self.metadata.name == 'offloading'").message("NamespaceOffloading name must match offloading"),
    printcolumn(
        json_path = ".spec.namespaceMappingStrategy",
        name = "NamespaceMappingStrategy",
        type_ = "string"
    ),
    printcolumn(json_path = ".spec.podOffloadingStrategy", name = "PodOffloadingStrategy", type_ = "string"),
    printcolumn(json_path = ".status.offloadingPhase", name = "OffloadingPhase", type_ = "string"),
    printcolumn(
        json_path = ".status.remoteNamespaceName",
        name = "RemoteNamespaceName",
        type_ = "string",
        priority = 10
    ),
    printcolumn(json_path = ".metadata.creationTimestamp", name = "Age", type_ = "date")
)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("self.namespaceMappingStrategy != 'SelectedName' || (has(self.remoteNamespaceName) && self.remoteNamespaceName != '')")
    .message("The RemoteNamespaceName value cannot be empty when using the SelectedName NamespaceMappingStrategy"))]
pub struct NamespaceOffloadingSpec {
    /// namespaceMappingStrategy defines the name of the namespace in the other clusters. DefaultName: its own name
    /// followed by the id of this cluster, which is unique. EnforceSameName: its own name. SelectedName: the value of
    /// remoteNamespaceName. Immutable.
    #[serde(default = "default_name", deserialize_with = "or_default_name")]
    #[schemars(extend("enum" = ["EnforceSameName", "DefaultName", "SelectedName"]))]
    pub namespace_mapping_strategy: String,

    /// remoteNamespaceName is the name of the namespace in the other clusters if namespaceMappingStrategy is
    /// SelectedName. Immutable.
    #[serde(default, deserialize_with = "or_default", skip_serializing_if = "String::is_empty")]
    pub remote_namespace_name: String,

    /// podOffloadingStrategy defines where Pods are scheduled. Local: on local nodes. Remote: on the selected virtual
    /// nodes. LocalAndRemote: on local nodes and the selected virtual nodes. A change does not move Pods that are
    /// already bound to a node.
    #[serde(default = "local_and_remote", deserialize_with = "or_local_and_remote")]
    #[schemars(extend("enum" = ["Local", "Remote", "LocalAndRemote"]))]
    pub pod_offloading_strategy: String,

    /// clusterSelector selects virtual nodes by the terms of a node selector, which are ORed. Without terms, or with an
    /// empty term, it selects all virtual nodes.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    #[schemars(schema_with = "node_selector")]
    pub cluster_selector: Value,
}

/// NamespaceOffloadingStatus is the observed state of a NamespaceOffloading.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct NamespaceOffloadingStatus {
    /// observedGeneration is the `metadata.generation` of the spec that this status reports on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,

    /// remoteNamespaceName is the name of the namespace in the other clusters, if it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remote_namespace_name: Option<String>,

    /// offloadingPhase summarizes the offloading. Ready: Pods may run on at least one virtual node. NoClusterSelected:
    /// no virtual node is selected. Terminating: the object is being deleted. InProgress, SomeFailed and AllFailed are
    /// set by Liqo only, which creates the namespaces in the other clusters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = ["Ready", "NoClusterSelected", "InProgress", "SomeFailed", "AllFailed", "Terminating"]))]
    pub offloading_phase: Option<String>,

    /// remoteNamespacesConditions are the conditions of the namespace in each selected cluster, by cluster id.
    #[serde(default, deserialize_with = "or_default", skip_serializing_if = "BTreeMap::is_empty")]
    pub remote_namespaces_conditions: BTreeMap<String, Vec<RemoteNamespaceCondition>>,
}

/// RemoteNamespaceCondition is a condition of the namespace in another cluster.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct RemoteNamespaceCondition {
    /// type is the type of the condition. OffloadingRequired: Pods may run in that cluster. Ready: the namespace exists
    /// there; set by Liqo only.
    #[serde(rename = "type")]
    pub type_: String,

    /// status is True, False or Unknown.
    pub status: String,

    /// lastTransitionTime is the time at which the status last changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_transition_time: Option<Time>,

    /// reason is the reason for the status, as one word in CamelCase.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,

    /// message describes the reason for people.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
}

fn default_name() -> String {
    "DefaultName".to_owned()
}

fn or_default_name<'de, D: Deserializer<'de>>(d: D) -> Result<String, D::Error> {
    Ok(Option::deserialize(d)?.unwrap_or_else(default_name))
}

fn or_local_and_remote<'de, D: Deserializer<'de>>(d: D) -> Result<String, D::Error> {
    Ok(Option::deserialize(d)?.unwrap_or_else(local_and_remote))
}

fn local_and_remote() -> String {
    "LocalAndRemote".to_owned()
}

/// Returns the schema of `v1.NodeSelector`.
fn node_selector(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    let requirements = |what: &str| {
        serde_json::json!({
            "type": "array", "description": what, "x-kubernetes-list-type": "atomic",
            "items": {"type": "object", "required": ["key", "operator"], "properties": {
                "key": {"type": "string", "description": "key is the key of the label, or the name of the field (metadata.name)."},
                "operator": {"type": "string", "description": "operator defines how the value is compared.",
                    "enum": ["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"]},
                "values": {"type": "array", "items": {"type": "string"}, "x-kubernetes-list-type": "atomic",
                    "description": "values has at least one value for In and NotIn, one integer for Gt and Lt, and none for the other operators."}}}})
    };
    schemars::json_schema!({
        "type": "object",
        "description": "clusterSelector selects virtual nodes by the terms of a node selector, which are ORed. Without terms, or with an empty term, it selects all virtual nodes.",
        "required": ["nodeSelectorTerms"],
        "properties": {"nodeSelectorTerms": {
            "type": "array", "x-kubernetes-list-type": "atomic",
            "description": "nodeSelectorTerms are ORed: a virtual node that matches one of them is selected.",
            "items": {"type": "object", "description": "A term has requirements for labels and fields of a node, which are ANDed.",
                "properties": {
                    "matchExpressions": requirements("matchExpressions are requirements for labels, which are ANDed."),
                    "matchFields": requirements("matchFields are requirements for fields, which are ANDed.")}}}}
    })
}

impl NamespaceOffloading {
    /// Reads an object. A missing or null spec is read as an empty one, whose fields have their defaults.
    pub fn read(object: &Value) -> Result<Self, serde_json::Error> {
        if object.get("spec").is_some_and(|spec| !spec.is_null()) {
            return Self::deserialize(object);
        }
        let mut object = object.clone();
        if let Some(object) = object.as_object_mut() {
            object.insert("spec".to_owned(), Value::Object(serde_json::Map::new()));
        }
        Self::deserialize(object)
    }

    /// Strategy and selector as written, valid or not.
    pub fn offloading(&self) -> Offloading {
        Offloading::read(&self.spec.pod_offloading_strategy, &self.spec.cluster_selector)
    }

    /// Converts the object to the type that admission uses. A strategy that isn't known is no error.
    pub fn compile(&self) -> Result<Offloading, Vec<FieldError>> {
        Offloading::new(&self.spec.pod_offloading_strategy, &self.spec.cluster_selector)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use outrigger_core::offloading::Strategy;
    use serde_json::json;

    fn object(spec: Value) -> NamespaceOffloading {
        serde_json::from_value(
            json!({"apiVersion": "offloading.liqo.io/v1beta1", "kind": "NamespaceOffloading",
            "metadata": {"name": "offloading", "namespace": "n"}, "spec": spec}),
        )
        .unwrap()
    }

    #[test]
    fn absent_fields_have_defaults() {
        let empty = object(json!({}));
        assert_eq!(empty.spec.namespace_mapping_strategy, "DefaultName");
        assert_eq!(empty.compile().unwrap().strategy(), Ok(Strategy::LocalAndRemote));
        assert_eq!(object(json!({"podOffloadingStrategy": "x"})).compile().unwrap().strategy(), Err("x"));
    }

    #[test]
    fn null_fields_are_absent() {
        let nulls = json!({"namespaceMappingStrategy": null, "remoteNamespaceName": null, "podOffloadingStrategy": null,
            "clusterSelector": null});
        assert_eq!(object(nulls).spec, object(json!({})).spec);
        for bare in [
            json!({"metadata": {"name": "offloading"}}),
            json!({"metadata": {"name": "offloading"}, "spec": null}),
        ] {
            assert_eq!(NamespaceOffloading::read(&bare).unwrap().spec, object(json!({})).spec);
        }
        assert!(NamespaceOffloading::read(&json!({"metadata": {}, "spec": 7})).is_err());
    }

    #[test]
    fn a_malformed_selector_is_read_and_reported() {
        let errors = object(json!({"clusterSelector": {"nodeSelectorTerms": [7]}})).compile().unwrap_err();
        assert_eq!(errors[0].path, "spec.clusterSelector.nodeSelectorTerms[0]");
    }
}
