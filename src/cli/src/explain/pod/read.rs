//! What a cluster has of a Pod: the Pod, its owner, its namespace, and what admission decides by.

use k8s_openapi::api::admissionregistration::v1::{
    ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
};
use k8s_openapi::api::core::v1::{Namespace, Node, Pod};
use k8s_openapi::api::resource::v1::{DeviceClass, ResourceClaim};
use k8s_openapi::api::scheduling::v1::PriorityClass;
use kube::api::ListParams;
use outrigger_api::{AdminWorkloadRule, Machine, NamespaceOffloading, Tenant, WorkloadRule};
use outrigger_core::keys;
use outrigger_runtime::cluster::ClusterArgs;
use serde_json::Value;

use super::super::live::{Reader, client, named};
use super::written::controller;
use crate::cluster::Kind;
use crate::companion::PodName;
use crate::files::{InputError, Object};
use crate::state::State;

/// Whether an object has this name and namespace.
pub(super) fn is(object: &Object, name: &PodName) -> bool {
    object.name == name.name && object.namespace_or_default() == name.namespace
}

/// Reads what concerns a Pod. What may not be read is noted.
pub(super) async fn state(cluster: &ClusterArgs, name: &PodName) -> Result<(State, Vec<String>), InputError> {
    let mut reader = Reader::new(client(cluster, "--kubeconfig").await?);
    let namespace = Some(name.namespace.as_str());
    reader.must::<Pod>(namespace, named(&name.name)).await?;
    if let Some(owner) = reader.objects().first().and_then(|pod| controller(&pod.value)).cloned() {
        read_owner(&mut reader, &owner, &name.namespace).await?;
    }
    reader.may::<Namespace>(None, named(&name.namespace)).await?;
    reader.may::<Tenant>(None, ListParams::default()).await?;
    reader.may::<WorkloadRule>(namespace, ListParams::default()).await?;
    reader.may::<AdminWorkloadRule>(None, ListParams::default()).await?;
    reader.may::<NamespaceOffloading>(namespace, ListParams::default()).await?;
    reader.may::<Machine>(None, ListParams::default()).await?;
    reader.may::<Node>(None, ListParams::default()).await?;
    let guests = format!("{}={}", keys::POD_ROLE, keys::GUEST);
    reader.may::<Pod>(None, ListParams::default().labels(&guests)).await?;
    reader.may::<ResourceClaim>(namespace, ListParams::default()).await?;
    reader.may::<PriorityClass>(None, ListParams::default()).await?;
    reader.may::<DeviceClass>(None, ListParams::default()).await?;
    reader.may::<ValidatingAdmissionPolicy>(None, ListParams::default()).await?;
    reader.may::<ValidatingAdmissionPolicyBinding>(None, ListParams::default()).await?;
    Ok(reader.finish())
}

/// The kinds of owners that have a template. Rules are read anyway.
const OWNERS: [(&str, &str); 5] = [
    ("apps/v1", "ReplicaSet"),
    ("apps/v1", "StatefulSet"),
    ("apps/v1", "DaemonSet"),
    ("batch/v1", "Job"),
    ("v1", "ReplicationController"),
];

/// Reads the object that controls a Pod, where it is of such a kind.
async fn read_owner(reader: &mut Reader, owner: &Value, namespace: &str) -> Result<(), InputError> {
    let of = |key: &str| owner[key].as_str().unwrap_or_default();
    let Some((version, kind)) = OWNERS.iter().find(|known| **known == (of("apiVersion"), of("kind"))) else {
        return Ok(());
    };
    reader.may_raw(&Kind(version, kind).resource(), Some(namespace), named(of("name"))).await.map(drop)
}
