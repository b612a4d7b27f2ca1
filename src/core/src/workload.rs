//! A workload: something that runs in a tenant cluster and may get companions.

use std::collections::BTreeMap;

use serde::ser::SerializeStruct;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

use crate::ids::WorkloadId;

/// The system that runs a workload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Orchestrator {
    /// Kubernetes; workloads are Pods.
    #[default]
    Kubernetes,
}

impl Orchestrator {
    /// As workload objects spell it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Kubernetes => "kubernetes",
        }
    }
}

/// A workload's whole current state. As JSON it is the object that rules speak of and companions get:
/// `{"metadata": {"id", "orchestrator", "resourceType", "resourceName", "resourceNamespace"},
/// "state": {"nodeName", "ready", "extra": {"labels", "annotations"}}}`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Workload {
    /// Unique within the tenant: the Pod's uid.
    pub id: WorkloadId,
    /// What runs it.
    pub orchestrator: Orchestrator,
    /// `v1/Pod`.
    pub resource_type: String,
    /// The Pod's namespace.
    pub resource_namespace: String,
    /// The Pod's name.
    pub resource_name: String,
    /// The tenant Node that it runs on; `None` while it is not bound.
    pub node_name: Option<String>,
    /// Its Ready condition is true.
    pub ready: bool,
    /// All labels.
    pub labels: BTreeMap<String, String>,
    /// All annotations.
    pub annotations: BTreeMap<String, String>,
    /// Maps of `state.extra` besides labels and annotations, which other orchestrators may send.
    pub extra: BTreeMap<String, BTreeMap<String, String>>,
}

impl Workload {
    /// A map of `state.extra` by its name.
    pub fn extra_map(&self, name: &str) -> Option<&BTreeMap<String, String>> {
        match name {
            "labels" => Some(&self.labels),
            "annotations" => Some(&self.annotations),
            other => self.extra.get(other),
        }
    }

    /// The workload as the object that rules speak of.
    pub fn to_json(&self) -> Value {
        // Texts, a bool, and maps of texts: there is nothing in it that could not be serialised.
        serde_json::to_value(self).unwrap_or_default()
    }
}

impl Serialize for Workload {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut object = serializer.serialize_struct("Workload", 2)?;
        object.serialize_field("metadata", &MetadataRef(self))?;
        object.serialize_field("state", &StateRef(self))?;
        object.end()
    }
}

/// The `metadata` of a workload's JSON.
pub(crate) struct MetadataRef<'a>(pub(crate) &'a Workload);

impl Serialize for MetadataRef<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut object = serializer.serialize_struct("Metadata", 5)?;
        object.serialize_field("id", &self.0.id)?;
        object.serialize_field("orchestrator", &self.0.orchestrator)?;
        object.serialize_field("resourceName", &self.0.resource_name)?;
        object.serialize_field("resourceNamespace", &self.0.resource_namespace)?;
        object.serialize_field("resourceType", &self.0.resource_type)?;
        object.end()
    }
}

/// The `state` of a workload's JSON.
pub(crate) struct StateRef<'a>(pub(crate) &'a Workload);

impl Serialize for StateRef<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut object = serializer.serialize_struct("State", 3)?;
        object.serialize_field("extra", &ExtraRef(self.0))?;
        if let Some(node) = &self.0.node_name {
            object.serialize_field("nodeName", node)?;
        }
        object.serialize_field("ready", &self.0.ready)?;
        object.end()
    }
}

/// The `state.extra` of a workload's JSON. Labels and annotations are always there.
pub(crate) struct ExtraRef<'a>(pub(crate) &'a Workload);

impl Serialize for ExtraRef<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut maps: BTreeMap<&str, &BTreeMap<String, String>> =
            self.0.extra.iter().map(|(name, map)| (name.as_str(), map)).collect();
        maps.insert("labels", &self.0.labels);
        maps.insert("annotations", &self.0.annotations);
        maps.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Workload {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Wire {
            metadata: Metadata,
            #[serde(default)]
            state: State,
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Metadata {
            id: WorkloadId,
            #[serde(default)]
            orchestrator: Orchestrator,
            resource_type: String,
            #[serde(default)]
            resource_name: String,
            #[serde(default)]
            resource_namespace: String,
        }
        #[derive(Deserialize, Default)]
        #[serde(rename_all = "camelCase", default)]
        struct State {
            node_name: Option<String>,
            ready: bool,
            extra: BTreeMap<String, BTreeMap<String, String>>,
        }
        let Wire { metadata, mut state } = Wire::deserialize(deserializer)?;
        Ok(Self {
            id: metadata.id,
            orchestrator: metadata.orchestrator,
            resource_type: metadata.resource_type,
            resource_namespace: metadata.resource_namespace,
            resource_name: metadata.resource_name,
            node_name: state.node_name.filter(|name| !name.is_empty()),
            ready: state.ready,
            labels: state.extra.remove("labels").unwrap_or_default(),
            annotations: state.extra.remove("annotations").unwrap_or_default(),
            extra: state.extra,
        })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use serde_json::json;

    /// The workload of the documentation.
    pub(crate) fn nginx() -> Workload {
        Workload {
            id: WorkloadId::new("aac076f4-a565-4ed0-aac2-3da5698f5a78").unwrap(),
            orchestrator: Orchestrator::Kubernetes,
            resource_type: "v1/Pod".into(),
            resource_namespace: "default".into(),
            resource_name: "nginx".into(),
            node_name: Some("cloud-dev-12".into()),
            ready: true,
            labels: BTreeMap::from([("k8s-app".into(), "nginx".into())]),
            annotations: BTreeMap::from([("k8s.v1.cni.cncf.io/networks-status".into(), "[{}]".into())]),
            extra: BTreeMap::new(),
        }
    }

    #[test]
    fn json_is_the_documented_object() {
        let expected = json!({
            "metadata": {"id": "aac076f4-a565-4ed0-aac2-3da5698f5a78", "orchestrator": "kubernetes",
                "resourceType": "v1/Pod", "resourceName": "nginx", "resourceNamespace": "default"},
            "state": {"nodeName": "cloud-dev-12", "ready": true, "extra": {"labels": {"k8s-app": "nginx"},
                "annotations": {"k8s.v1.cni.cncf.io/networks-status": "[{}]"}}}});
        assert_eq!(nginx().to_json(), expected);
        assert_eq!(serde_json::from_value::<Workload>(expected).unwrap(), nginx());
    }

    #[test]
    fn what_is_no_workload_is_refused_by_the_field() {
        let error = |v: Value| serde_json::from_value::<Workload>(v).unwrap_err().to_string();
        assert!(error(json!({})).contains("metadata"));
        assert!(error(json!({"metadata": {"id": "", "resourceType": "v1/Pod"}})).contains("workload id is empty"));
        assert!(error(json!({"metadata": {"id": "a"}})).contains("resourceType"));
    }
}
