//! `NamespaceOffloading` (`offloading.liqo.io/v1beta1`): on which virtual nodes the Pods of a namespace may run. Liqo's
//! resource, field by field, for clusters in which Liqo's own is not installed.

// The derive puts the resource into a private module of its own.
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

// Names and selector are texts and JSON here, whatever the schema says of them: an object from before the schema must not
// keep all others from being read.
/// Where the Pods of a namespace may run.
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
    doc = "On which virtual nodes the Pods of its namespace may run, and whether local nodes will do too. One for each namespace, named offloading.",
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
    /// How the namespace is called in the other clusters. DefaultName: by its name and this cluster's id, which is
    /// unique. EnforceSameName: as here. SelectedName: as remoteNamespaceName says. It can't be changed.
    #[serde(default = "default_name", deserialize_with = "or_default_name")]
    #[schemars(extend("enum" = ["EnforceSameName", "DefaultName", "SelectedName"]))]
    pub namespace_mapping_strategy: String,

    /// Name of the namespace in the other clusters, with the mapping strategy SelectedName. It can't be changed.
    #[serde(default, deserialize_with = "or_default", skip_serializing_if = "String::is_empty")]
    pub remote_namespace_name: String,

    /// Where Pods run. Local: on local nodes. Remote: on selected virtual nodes only. LocalAndRemote: on local nodes and
    /// selected virtual nodes. Pods that run already stay where they are.
    #[serde(default = "local_and_remote", deserialize_with = "or_local_and_remote")]
    #[schemars(extend("enum" = ["Local", "Remote", "LocalAndRemote"]))]
    pub pod_offloading_strategy: String,

    /// Which virtual nodes, by the terms of a node selector, which are ORed. Without terms, or with an empty one: all.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    #[schemars(schema_with = "node_selector")]
    pub cluster_selector: Value,
}

/// What became of a NamespaceOffloading.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct NamespaceOffloadingStatus {
    /// `metadata.generation` of the spec that this status is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,

    /// Name of the namespace in the other clusters, where it can be told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remote_namespace_name: Option<String>,

    /// Ready: Pods may run on some virtual node. NoClusterSelected: on none. Terminating: it is being deleted.
    /// InProgress, SomeFailed, AllFailed: said by Liqo only, which makes the namespaces in the other clusters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = ["Ready", "NoClusterSelected", "InProgress", "SomeFailed", "AllFailed", "Terminating"]))]
    pub offloading_phase: Option<String>,

    /// What is known of the selected clusters, by their ids.
    #[serde(default, deserialize_with = "or_default", skip_serializing_if = "BTreeMap::is_empty")]
    pub remote_namespaces_conditions: BTreeMap<String, Vec<RemoteNamespaceCondition>>,
}

/// What is known of the namespace in another cluster.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct RemoteNamespaceCondition {
    /// OffloadingRequired: Pods may run in that cluster. Ready: the namespace is there; said by Liqo only.
    #[serde(rename = "type")]
    pub type_: String,

    /// True, False or Unknown.
    pub status: String,

    /// When the status became so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_transition_time: Option<Time>,

    /// Why, in one word.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,

    /// Why, for people.
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

/// The schema of `v1.NodeSelector`.
fn node_selector(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    let requirements = |what: &str| {
        serde_json::json!({
            "type": "array", "description": what, "x-kubernetes-list-type": "atomic",
            "items": {"type": "object", "required": ["key", "operator"], "properties": {
                "key": {"type": "string", "description": "Key of the label, or name of the field (metadata.name)."},
                "operator": {"type": "string", "description": "How the value is compared.",
                    "enum": ["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"]},
                "values": {"type": "array", "items": {"type": "string"}, "x-kubernetes-list-type": "atomic",
                    "description": "At least one for In and NotIn, one integer for Gt and Lt, none for the others."}}}})
    };
    schemars::json_schema!({
        "type": "object",
        "description": "Which virtual nodes, by the terms of a node selector. Without terms, or with an empty one: all.",
        "required": ["nodeSelectorTerms"],
        "properties": {"nodeSelectorTerms": {
            "type": "array", "x-kubernetes-list-type": "atomic",
            "description": "The terms are ORed: a virtual node that matches one is selected.",
            "items": {"type": "object", "description": "Expressions about labels and fields of a node, ANDed.",
                "properties": {
                    "matchExpressions": requirements("Expressions about labels, ANDed."),
                    "matchFields": requirements("Expressions about fields, ANDed.")}}}}
    })
}

impl NamespaceOffloading {
    /// Reads an object as somebody wrote it: without a spec all is as the defaults say.
    ///
    /// # Errors
    /// When a field has another type.
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

    /// The object as admission needs it.
    ///
    /// # Errors
    /// Everything that is wrong with its selector, with paths that begin at the custom resource.
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
    fn what_is_not_said_has_its_default() {
        let least = object(json!({}));
        assert_eq!(least.spec.namespace_mapping_strategy, "DefaultName");
        assert_eq!(least.compile().unwrap().strategy(), Ok(Strategy::LocalAndRemote));
        assert_eq!(object(json!({"podOffloadingStrategy": "x"})).compile().unwrap().strategy(), Err("x"));
    }

    #[test]
    fn null_is_as_good_as_absent() {
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
    fn a_selector_of_another_shape_can_be_read_and_is_told() {
        let errors = object(json!({"clusterSelector": {"nodeSelectorTerms": [7]}})).compile().unwrap_err();
        assert_eq!(errors[0].path, "spec.clusterSelector.nodeSelectorTerms[0]");
    }
}
