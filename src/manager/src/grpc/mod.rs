//! The gRPC services.

mod access;
mod admin_rules;
mod pace;
mod rules;
mod status;
mod verbs;
mod workloads;

pub use access::Access;
pub use admin_rules::AdminRules;
pub use rules::Rules;
pub use workloads::Workloads;

use outrigger_core::ids::TenantId;
use outrigger_proto::TENANT_ID;
use tonic::Status;
use tonic::metadata::MetadataMap;

/// The tenant that a call's metadata names.
///
/// # Errors
/// INVALID_ARGUMENT when `tenant-id` is missing, there several times, or no tenant's id.
pub fn tenant_id(metadata: &MetadataMap) -> Result<TenantId, Status> {
    let mut values = metadata.get_all(TENANT_ID).iter();
    let Some(value) = values.next() else {
        return Err(Status::invalid_argument(format!(
            "metadata {TENANT_ID}: is missing; set it to the tenant's id"
        )));
    };
    if values.next().is_some() {
        return Err(Status::invalid_argument(format!("metadata {TENANT_ID}: is there more than once")));
    }
    let text = value.to_str().map_err(|_| {
        Status::invalid_argument(format!("metadata {TENANT_ID}: has other than ASCII characters"))
    })?;
    TenantId::new(text).map_err(|e| Status::invalid_argument(format!("metadata {TENANT_ID}: {e}")))
}
