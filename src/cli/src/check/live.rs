//! The objects of a cluster.

use k8s_openapi::api::core::v1::{Namespace, Node};
use k8s_openapi::api::resource::v1::{DeviceClass, ResourceClaim, ResourceClaimTemplate};
use k8s_openapi::api::scheduling::v1::PriorityClass;
use kube::Client;
use kube::api::ListParams;
use outrigger_api::{AdminWorkloadRule, Machine, NamespaceOffloading, Tenant, WorkloadRule};
use outrigger_runtime::cluster::ClusterArgs;

use crate::explain::live::{Reader, client};
use crate::files::InputError;
use crate::state::State;

/// Reads the objects that are examined, with notes on those that can't be read. A cluster need not have all kinds.
pub(super) async fn read(cluster: &ClusterArgs) -> Result<(State, Vec<String>), InputError> {
    read_from(client(cluster, "--kubeconfig").await?).await
}

/// The same by a client.
pub(super) async fn read_from(client: Client) -> Result<(State, Vec<String>), InputError> {
    let mut reader = Reader::new(client);
    reader.must::<Namespace>(None, ListParams::default()).await?;
    reader.may::<Tenant>(None, ListParams::default()).await?;
    reader.may::<WorkloadRule>(None, ListParams::default()).await?;
    reader.may::<AdminWorkloadRule>(None, ListParams::default()).await?;
    reader.may::<NamespaceOffloading>(None, ListParams::default()).await?;
    reader.may::<Node>(None, ListParams::default()).await?;
    reader.may::<PriorityClass>(None, ListParams::default()).await?;
    reader.may::<DeviceClass>(None, ListParams::default()).await?;
    reader.may::<ResourceClaim>(None, ListParams::default()).await?;
    reader.may::<ResourceClaimTemplate>(None, ListParams::default()).await?;
    reader.may::<Machine>(None, ListParams::default()).await?;
    Ok(reader.finish())
}
