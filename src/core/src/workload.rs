//! A workload: something that runs in a tenant cluster and may get companions.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use serde::ser::SerializeStruct;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};

use crate::field::{self, FieldError};
use crate::ids::WorkloadId;
use crate::text::quoted;
use crate::texts::Texts;

/// The only kind of workload so far.
pub const POD: &str = "v1/Pod";

/// The map of `state.extra` with the health of its devices: the worst of each resource, `example.com/nic`, and of each request of a claim,
/// `claim:NAME/REQUEST`. It is `Healthy`, `Unhealthy` or `Unknown`.
pub const DEVICE_HEALTH: &str = "deviceHealth";

/// The map of `state.extra` with attributes of the devices that are allocated to its claims: `CLAIM/REQUEST/ATTRIBUTE`.
pub const DEVICE_ATTRIBUTES: &str = "deviceAttributes";

/// What becomes known of a workload when it has devices, or later.
pub const DEVICE_MAPS: [&str; 2] = [DEVICE_HEALTH, DEVICE_ATTRIBUTES];

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
    pub resource_type: Cow<'static, str>,
    /// The Pod's namespace.
    pub resource_namespace: String,
    /// The Pod's name.
    pub resource_name: String,
    /// The tenant Node that it runs on; `None` while it is not bound.
    pub node_name: Option<String>,
    /// Its Ready condition is true.
    pub ready: bool,
    /// It can't be scheduled yet: its Pod has scheduling gates (`spec.schedulingGates`). Rules can't name this.
    pub gated: bool,
    /// All labels.
    pub labels: Texts,
    /// All annotations.
    pub annotations: Texts,
    /// Maps of `state.extra` besides labels and annotations: [`DEVICE_MAPS`], and those of other orchestrators.
    pub extra: BTreeMap<String, Texts>,
    /// The groups of workloads that it belongs to. Rules can't name them, and companions don't get them.
    pub groups: Vec<DisruptionGroup>,
    /// Keys of annotations that its Pod has and that weren't sent, for they are too large. Rules can't name this list.
    pub withheld: Vec<Box<str>>,
    /// Which state this is, by a number of its sender; 0 if it doesn't say. Rules can't name it.
    pub revision: u64,
}

/// What a label, an annotation or a group of a workload counts beyond the bytes that it has on the wire: its share of what receiving
/// and keeping it takes.
pub const ITEM_BYTES: usize = 64;

/// Most that one workload may count: its bytes on the wire, and [`ITEM_BYTES`] for each label, annotation and group. All annotations
/// that Kubernetes permits (256 KiB) are half as much again. Larger ones aren't served, so that a few Pods don't use up what a tenant
/// may have.
pub const MAX_SIZE: usize = 384 << 10;

/// Most groups that a workload may belong to.
pub const MAX_GROUPS: usize = 8;

/// Workloads of which few may lose a companion of one rule at the same time: those that one controller owns, or those that one
/// PodDisruptionBudget selects.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct DisruptionGroup {
    /// Unique within the tenant: a hash of the controller's namespace and uid, or `metadata.uid` of the PodDisruptionBudget.
    pub id: Arc<str>,
    /// Of a PodDisruptionBudget, how many must be healthy (`status.desiredHealthy`). `None` for a controller, whose workloads may lose as
    /// many companions as the rule's [`MaxUnavailable`](crate::rollout::MaxUnavailable) says.
    pub desired_healthy: Option<u32>,
}

impl Workload {
    /// A Pod of which nothing else is known: it isn't bound, isn't ready, and has neither labels nor annotations.
    pub fn new(id: WorkloadId, namespace: &str, name: &str) -> Self {
        Self {
            id,
            orchestrator: Orchestrator::Kubernetes,
            resource_type: POD.into(),
            resource_namespace: namespace.to_owned(),
            resource_name: name.to_owned(),
            node_name: None,
            ready: false,
            gated: false,
            labels: Texts::default(),
            annotations: Texts::default(),
            extra: BTreeMap::new(),
            groups: Vec::new(),
            withheld: Vec::new(),
            revision: 0,
        }
    }

    /// A map of `state.extra` by its name.
    pub fn extra_map(&self, name: &str) -> Option<&Texts> {
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
        let mut maps: BTreeMap<&str, &Texts> =
            self.0.extra.iter().map(|(name, map)| (name.as_str(), map)).collect();
        maps.insert("labels", &self.0.labels);
        maps.insert("annotations", &self.0.annotations);
        maps.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Workload {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // By way of a value, because serde's own errors don't say which field has the wrong type.
        Self::try_from(&Value::deserialize(deserializer)?).map_err(serde::de::Error::custom)
    }
}

/// Reads a workload's JSON. Unknown fields are left out, null is the same as absent.
impl TryFrom<&Value> for Workload {
    type Error = FieldError;

    fn try_from(value: &Value) -> Result<Self, FieldError> {
        const METADATA: &str = "metadata";
        const STATE: &str = "state";
        let empty = Map::new();
        let root = field::as_object(value, "workload")?;
        let metadata =
            field::object(root, "", METADATA)?.ok_or_else(|| FieldError::new(METADATA, "is missing"))?;
        let state = field::object(root, "", STATE)?.unwrap_or(&empty);
        let text = |key| Ok(field::text(metadata, METADATA, key)?.unwrap_or_default());

        let id = WorkloadId::new(text("id")?).map_err(|e| FieldError::new("metadata.id", e))?;
        let orchestrator = match text("orchestrator")? {
            "" | "kubernetes" => Orchestrator::Kubernetes,
            other => {
                let message = format!("{:?} is unknown; use \"kubernetes\"", quoted(other));
                return Err(FieldError::new("metadata.orchestrator", message));
            }
        };
        let resource_type = text("resourceType")?;
        if resource_type.is_empty() {
            return Err(FieldError::new("metadata.resourceType", "is missing; use \"v1/Pod\""));
        }
        let ready = match state.get("ready") {
            None | Some(Value::Null) => false,
            Some(Value::Bool(ready)) => *ready,
            Some(_) => return Err(FieldError::new("state.ready", "must be true or false")),
        };
        let mut extra = BTreeMap::new();
        for name in field::object(state, STATE, "extra")?.unwrap_or(&empty).keys() {
            extra.insert(name.clone(), texts(state, name)?);
        }
        let workload = Self::new(id, text("resourceNamespace")?, text("resourceName")?);
        let node_name = field::text(state, STATE, "nodeName")?.filter(|name| !name.is_empty());
        Ok(Self {
            orchestrator,
            resource_type: if resource_type == POD { POD.into() } else { resource_type.to_owned().into() },
            node_name: node_name.map(str::to_owned),
            ready,
            labels: extra.remove("labels").unwrap_or_default(),
            annotations: extra.remove("annotations").unwrap_or_default(),
            extra,
            ..workload
        })
    }
}

/// A map of `state.extra`.
fn texts(state: &Map<String, Value>, name: &str) -> Result<Texts, FieldError> {
    let Some(extra) = field::object(state, "state", "extra")? else { return Ok(Texts::default()) };
    let Some(map) = field::object(extra, "state.extra", name)? else { return Ok(Texts::default()) };
    let path = format!("state.extra.{name}");
    let entry = |key| Ok((key, field::text(map, &path, key)?.unwrap_or_default()));
    map.keys().map(String::as_str).map(entry).collect::<Result<_, _>>().map(Texts::new)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    /// The workload of the documentation.
    pub(crate) fn nginx() -> Workload {
        Workload {
            node_name: Some("cloud-dev-12".into()),
            ready: true,
            labels: Texts::from([("k8s-app", "nginx")]),
            annotations: Texts::from([("k8s.v1.cni.cncf.io/networks-status", "[{}]")]),
            ..Workload::new(
                WorkloadId::new("aac076f4-a565-4ed0-aac2-3da5698f5a78").unwrap(),
                "default",
                "nginx",
            )
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
    fn what_is_not_needed_may_be_missing_and_what_is_not_known_is_left_out() {
        let sparse = json!({"metadata": {"id": "a", "resourceType": "v1/Pod", "more": 1}, "more": {},
            "state": {"nodeName": "", "ready": null, "more": [], "extra": {"labels": null, "other": {"k": "v"}}}});
        let workload: Workload = serde_json::from_value(sparse).unwrap();
        assert_eq!((workload.node_name.as_deref(), workload.ready), (None, false));
        assert!(workload.labels.is_empty());
        assert_eq!(workload.extra["other"].get("k"), Some("v"));
        assert_eq!(
            workload.to_json()["state"],
            json!({"ready": false, "extra": {"labels": {}, "annotations": {}, "other": {"k": "v"}}}),
            "an unbound workload has no nodeName"
        );
        let machine = json!({"metadata": {"id": "a", "resourceType": "v1/VM"}});
        assert_eq!(serde_json::from_value::<Workload>(machine).unwrap().resource_type, "v1/VM");
    }

    #[test]
    fn what_is_no_workload_is_refused_by_the_field() {
        for (pointer, wrong, expected) in [
            ("/metadata", json!(null), "metadata: is missing"),
            ("/metadata", json!("x"), "metadata: must be an object, is a string"),
            ("/metadata/id", json!(1), "metadata.id: must be a string, is a number"),
            ("/metadata/id", json!(""), "metadata.id: workload id is empty"),
            ("/metadata/orchestrator", json!("openstack"), "metadata.orchestrator: \"openstack\" is unknown"),
            ("/metadata/resourceType", json!(null), "metadata.resourceType: is missing"),
            ("/state/nodeName", json!(["x"]), "state.nodeName: must be a string, is a list"),
            ("/state/ready", json!("true"), "state.ready: must be true or false"),
            ("/state/extra/labels", json!([]), "state.extra.labels: must be an object, is a list"),
            (
                "/state/extra/labels/k8s-app",
                json!(1),
                "state.extra.labels.k8s-app: must be a string, is a number",
            ),
        ] {
            let mut object = nginx().to_json();
            *object.pointer_mut(pointer).unwrap() = wrong;
            let error = serde_json::from_value::<Workload>(object).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{error}");
        }
        assert!(
            serde_json::from_str::<Workload>("[]").unwrap_err().to_string().starts_with("workload: must be")
        );
    }

    proptest! {
        #[test]
        fn json_and_back_is_the_same(
            id in "[!-~]{1,40}", texts in (".*", ".*", ".*"), node_name in proptest::option::of(".+"), ready: bool,
            labels in proptest::collection::btree_map(".*", ".*", 0..4),
            extra in proptest::collection::btree_map("[^la].*", proptest::collection::btree_map(".*", ".*", 0..3), 0..3),
        ) {
            let workload = Workload {
                id: WorkloadId::new(&id).unwrap(), resource_type: "v1/Pod".into(), resource_name: texts.0,
                resource_namespace: texts.1, node_name, ready, labels: (&labels).into(),
                annotations: Texts::from([("k", texts.2)]),
                extra: extra.iter().map(|(name, map)| (name.clone(), map.into())).collect(), ..nginx()
            };
            let text = serde_json::to_string(&workload).unwrap();
            prop_assert_eq!(&text, &workload.to_json().to_string(), "one order of the fields");
            prop_assert_eq!(serde_json::from_str::<Workload>(&text).unwrap(), workload);
        }
    }
}
