//! Pods with only the fields that Outrigger reads.
//!
//! A Pod can have 1.5 MiB, and Outrigger needs little of it: no containers, their variables, volumes or field managers. What a
//! type doesn't have the parser skips without building it, so a [`Pod`] takes what its metadata takes. It is read only: what is
//! written to a Pod is a patch, or raw JSON.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1 as full;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference, Time};
use kube::Resource;
pub use outrigger_core::annotations::LAST_APPLIED;
use outrigger_core::gate::Hold;
use outrigger_core::keys;
use serde::{Deserialize, Deserializer};

/// A Pod with the fields that Outrigger reads.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, Resource)]
#[resource(inherit = full::Pod)]
pub struct Pod {
    /// Its metadata, without the field managers' bookkeeping and [`LAST_APPLIED`].
    #[serde(default, deserialize_with = "metadata")]
    pub metadata: ObjectMeta,
    /// Where it runs, and what keeps it from being scheduled.
    #[serde(default)]
    pub spec: Option<Spec>,
    /// Its status.
    #[serde(default)]
    pub status: Option<Status>,
}

impl Pod {
    /// Whether it has scheduling gates.
    pub fn is_gated(&self) -> bool {
        let gates = self.spec.as_ref().and_then(|spec| spec.scheduling_gates.as_deref());
        gates.is_some_and(|gates| !gates.is_empty())
    }
}

/// A Pod's spec.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Spec {
    /// The Node it is bound to.
    #[serde(default)]
    pub node_name: Option<String>,
    /// What has to be taken away before it is scheduled.
    #[serde(default)]
    pub scheduling_gates: Option<Vec<full::PodSchedulingGate>>,
    /// The conditions that have to be true before it is ready.
    #[serde(default)]
    pub readiness_gates: Option<Vec<full::PodReadinessGate>>,
    /// How long it waits for its companions by a claim for a device of its Node; `None` if it has no such claim.
    #[serde(default, rename = "resourceClaims", deserialize_with = "holds")]
    pub held: Option<Hold>,
}

/// Reads whether the claims of a Pod include that of [`keys::COMPANIONS_CLAIM`], and keeps nothing else of them.
fn holds<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Hold>, D::Error> {
    let claims = Option::<Vec<full::PodResourceClaim>>::deserialize(deserializer)?;
    let ours = claims.into_iter().flatten().find(|claim| claim.name == keys::COMPANIONS_CLAIM);
    Ok(ours.and_then(|claim| Hold::of_template(claim.resource_claim_template_name.as_deref()?)))
}

/// A Pod's status.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    /// Pending, Running, Succeeded, Failed or Unknown.
    #[serde(default)]
    pub phase: Option<String>,
    /// Why it is so, for people.
    #[serde(default)]
    pub message: Option<String>,
    /// `metadata.generation` of the Pod that the kubelet has acted on; `None` from a kubelet that doesn't say so.
    #[serde(default)]
    pub observed_generation: Option<i64>,
    /// Scheduled, ready and others.
    #[serde(default)]
    pub conditions: Option<Vec<Condition>>,
    /// Of its containers, those of the status.
    #[serde(default)]
    pub container_statuses: Option<Vec<Container>>,
    /// The same of its init containers.
    #[serde(default)]
    pub init_container_statuses: Option<Vec<Container>>,
    /// Name of the ResourceClaim that was generated for [`Spec::held`].
    #[serde(default, rename = "resourceClaimStatuses", deserialize_with = "companions_claim")]
    pub companions_claim: Option<String>,
}

impl Status {
    /// What is said of containers, and then of init containers.
    pub fn containers(&self) -> impl Iterator<Item = &Container> {
        self.container_statuses.iter().chain(&self.init_container_statuses).flatten()
    }
}

/// Reads which ResourceClaim was generated for the claim of [`keys::COMPANIONS_CLAIM`], and keeps nothing of others.
fn companions_claim<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    let statuses = Option::<Vec<full::PodResourceClaimStatus>>::deserialize(deserializer)?;
    let ours = statuses.into_iter().flatten().find(|status| status.name == keys::COMPANIONS_CLAIM);
    Ok(ours.and_then(|status| status.resource_claim_name))
}

/// How healthy a device is, from the best to the worst.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Health {
    /// It works.
    Healthy,
    /// Nobody has said it for a while, or it is a word that isn't known.
    Unknown,
    /// It doesn't work.
    Unhealthy,
}

impl Health {
    /// The word that Pods have for it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Healthy => "Healthy",
            Self::Unknown => "Unknown",
            Self::Unhealthy => "Unhealthy",
        }
    }

    fn of(word: Option<&str>) -> Self {
        match word {
            Some("Healthy") => Self::Healthy,
            Some("Unhealthy") => Self::Unhealthy,
            _ => Self::Unknown,
        }
    }
}

/// What a kubelet says of the devices of a container (KEP-4680, `allocatedResourcesStatus`).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Devices {
    /// Words about the first of them that is Unhealthy: the device, for which resource or request it was allocated, and what the driver
    /// says. `None` where none is.
    pub unhealthy: Option<String>,
    /// The worst health of the devices of each resource, `example.com/nic`, and of each request of a claim, `claim:NAME/REQUEST`.
    pub health: BTreeMap<String, Health>,
}

/// Reads how healthy the devices of a container are, and keeps nothing else of them.
fn devices<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Devices, D::Error> {
    #[derive(Deserialize)]
    struct Allocated {
        #[serde(default)]
        name: String,
        #[serde(default)]
        resources: Option<Vec<Device>>,
    }
    #[derive(Deserialize)]
    struct Device {
        #[serde(default, rename = "resourceID")]
        id: String,
        #[serde(default)]
        health: Option<String>,
        #[serde(default)]
        message: Option<String>,
    }
    let all = Option::<Vec<Allocated>>::deserialize(deserializer)?;
    let mut devices = Devices::default();
    for Allocated { name, resources } in all.into_iter().flatten() {
        for Device { id, health, message } in resources.into_iter().flatten() {
            let health = Health::of(health.as_deref());
            if health == Health::Unhealthy && devices.unhealthy.is_none() {
                let message = message.map(|message| format!(": {message}")).unwrap_or_default();
                devices.unhealthy = Some(format!("device {id} of {name} is unhealthy{message}"));
            }
            let worst = devices.health.entry(name.clone()).or_insert(health);
            *worst = health.max(*worst);
        }
    }
    Ok(devices)
}

/// A condition of a Pod.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// Which one.
    #[serde(default, rename = "type")]
    pub type_: String,
    /// True, False or Unknown.
    #[serde(default)]
    pub status: String,
    /// Why, in one word.
    #[serde(default)]
    pub reason: Option<String>,
    /// Why, for people.
    #[serde(default)]
    pub message: Option<String>,
    /// `metadata.generation` of the Pod that it is about; `None` where that isn't said.
    #[serde(default)]
    pub observed_generation: Option<i64>,
}

/// What is said of a container.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Container {
    /// Its name.
    #[serde(default)]
    pub name: String,
    /// What it does.
    #[serde(default)]
    pub state: Option<ContainerState>,
    /// Identifier that its runtime has given it, `containerd://…`. A container that is restarted is another one.
    #[serde(default, rename = "containerID")]
    pub container_id: Option<String>,
    /// How its devices are.
    #[serde(default, rename = "allocatedResourcesStatus", deserialize_with = "devices")]
    pub devices: Devices,
}

/// What a container does.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
pub struct ContainerState {
    /// It waits, and why.
    #[serde(default)]
    pub waiting: Option<full::ContainerStateWaiting>,
    /// It runs.
    #[serde(default)]
    pub running: Option<full::ContainerStateRunning>,
}

/// The fields of an object's metadata that Outrigger reads.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata {
    name: Option<String>,
    namespace: Option<String>,
    uid: Option<String>,
    resource_version: Option<String>,
    creation_timestamp: Option<Time>,
    deletion_timestamp: Option<Time>,
    deletion_grace_period_seconds: Option<i64>,
    labels: Option<BTreeMap<String, String>>,
    annotations: Option<BTreeMap<String, String>>,
    generation: Option<i64>,
    finalizers: Option<Vec<String>>,
    owner_references: Option<Vec<OwnerReference>>,
}

pub(crate) fn metadata<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ObjectMeta, D::Error> {
    let Some(read) = Option::<Metadata>::deserialize(deserializer)? else {
        return Ok(ObjectMeta::default());
    };
    let mut annotations = read.annotations;
    if let Some(annotations) = &mut annotations {
        annotations.remove(LAST_APPLIED);
    }
    Ok(ObjectMeta {
        name: read.name,
        namespace: read.namespace,
        uid: read.uid,
        resource_version: read.resource_version,
        creation_timestamp: read.creation_timestamp,
        deletion_timestamp: read.deletion_timestamp,
        deletion_grace_period_seconds: read.deletion_grace_period_seconds,
        labels: read.labels,
        annotations,
        generation: read.generation,
        finalizers: read.finalizers,
        owner_references: read.owner_references,
        ..ObjectMeta::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn unused_fields_are_not_kept() {
        let pod = json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "p", "namespace": "n", "uid": "u", "resourceVersion": "7", "labels": {"a": "b"},
                "annotations": {LAST_APPLIED: "{\"env\": \"secret\"}", "kept": "x"},
                "managedFields": [{"manager": "m", "fieldsV1": {"f:spec": {}}}]},
            "spec": {"nodeName": "h", "containers": [{"name": "c", "env": [{"name": "KEY", "value": "secret"}]}],
                "schedulingGates": [{"name": "g"}],
                "resourceClaims": [{"name": "gpu", "resourceClaimName": "mine"},
                    {"name": keys::COMPANIONS_CLAIM, "resourceClaimTemplateName": keys::COMPANIONS_CLAIM}]},
            "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True", "lastProbeTime": null}],
                "containerStatuses": [{"name": "c", "state": {"waiting": {"reason": "Pulling"}}}],
                "resourceClaimStatuses": [{"name": "gpu", "resourceClaimName": "mine"},
                    {"name": keys::COMPANIONS_CLAIM, "resourceClaimName": "p-x7"}]}});
        // The full type says that this is a Pod at all.
        let _: full::Pod = serde_json::from_value(pod.clone()).unwrap();
        let pod: Pod = serde_json::from_value(pod).unwrap();
        assert!(!format!("{pod:?}").contains("secret"));
        assert_eq!(pod.metadata.managed_fields, None);
        assert_eq!(
            pod.metadata.annotations.unwrap().into_iter().collect::<Vec<_>>(),
            [("kept".into(), "x".into())]
        );
        let spec = pod.spec.unwrap();
        assert_eq!((spec.node_name.as_deref(), spec.held), (Some("h"), Some(Hold::Start)));
        let status = pod.status.unwrap();
        assert_eq!(status.conditions.unwrap()[0].type_, "Ready");
        assert_eq!(status.companions_claim.as_deref(), Some("p-x7"));
        let state = status.container_statuses.unwrap().remove(0).state.unwrap();
        assert_eq!(state.waiting.unwrap().reason.as_deref(), Some("Pulling"));
    }

    #[test]
    fn of_the_devices_of_a_resource_or_request_the_worst_counts() {
        let devices = |status: serde_json::Value| {
            serde_json::from_value::<Container>(json!({"allocatedResourcesStatus": status})).unwrap().devices
        };
        let device = |id: &str, health: &str| json!({"resourceID": id, "health": health, "message": "hot"});
        let status = json!([{"name": "claim:gpu/one", "resources": [device("a", "Healthy"), device("b", "New")]},
            {"name": "example.com/nic", "resources": [device("c", "Unhealthy"), device("d", "Healthy"), {"resourceID": "e"}]},
            {"name": "claim:gpu/two", "resources": [device("f", "Healthy")]}, {"name": "example.com/none"}]);
        let Devices { unhealthy, health } = devices(status);
        assert_eq!(unhealthy.as_deref(), Some("device c of example.com/nic is unhealthy: hot"));
        let health: Vec<_> = health.iter().map(|(of, health)| (of.as_str(), health.as_str())).collect();
        let expected =
            [("claim:gpu/one", "Unknown"), ("claim:gpu/two", "Healthy"), ("example.com/nic", "Unhealthy")];
        assert_eq!(health, expected);
        assert_eq!(devices(json!(null)), Devices::default());
    }

    #[test]
    fn only_a_claim_of_our_template_holds_a_pod() {
        let held = |claims: serde_json::Value| {
            serde_json::from_value::<Spec>(json!({"resourceClaims": claims})).unwrap().held
        };
        let claim = |name: &str, source: &str, of: &str| json!([{"name": name, source: of}]);
        let ours = keys::COMPANIONS_CLAIM;
        for hold in Hold::ALL {
            assert_eq!(held(claim(ours, "resourceClaimTemplateName", hold.template())), Some(hold));
        }
        for other in [
            json!(null),
            json!([]),
            claim("other", "resourceClaimTemplateName", ours),
            claim(ours, "resourceClaimTemplateName", "other"),
            claim(ours, "resourceClaimName", ours),
        ] {
            assert_eq!(held(other.clone()), None, "{other}");
        }
        assert_eq!(serde_json::from_value::<Spec>(json!({})).unwrap().held, None);
    }

    #[test]
    fn it_is_asked_for_where_pods_are() {
        assert_eq!(Pod::url_path(&(), Some("n")), full::Pod::url_path(&(), Some("n")));
    }
}
