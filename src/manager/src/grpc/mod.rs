//! The gRPC services.

mod access;
mod admin_rules;
mod intake;
pub mod limits;
mod message_pace;
mod rates;
mod rules;
mod status;
mod sync;
mod verbs;
mod workloads;

pub use access::Access;
pub use admin_rules::AdminRules;
pub use intake::Intake;
pub use rules::Rules;
pub use workloads::Workloads;

use outrigger_core::ids::TenantId;
use outrigger_proto::TENANT_ID;
use tonic::metadata::MetadataMap;
use tonic::{Request, Status};

use access::Admitted;

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

/// For whom a call has come through [`Intake`].
///
/// # Errors
/// INTERNAL when it hasn't: nothing is served without it.
fn admitted<T>(request: &Request<T>) -> Result<Admitted, Status> {
    let admitted = request.extensions().get::<Option<Admitted>>().cloned().flatten();
    admitted.ok_or_else(|| Status::internal("the call's tenant was not looked up"))
}
