//! A Tenant whose objects are deleted, asked about past all caches.

use kube::{Api, Client, ResourceExt};
use outrigger_api::Tenant;
use outrigger_core::ids::TenantId;

use crate::writes::found;

/// A Tenant that doesn't exist any longer, or is being deleted. Its objects are found by its name, and one of the same name may have been
/// created since, so who deletes them asks again before.
#[derive(Clone, Copy)]
pub(crate) struct Former<'a> {
    pub(crate) client: &'a Client,
    pub(crate) id: &'a TenantId,
    /// The uid of one that is being deleted; `None` for one that doesn't exist.
    pub(crate) uid: Option<&'a str>,
}

impl Former<'_> {
    /// Whether the API server still says that it doesn't exist, or is being deleted.
    ///
    /// # Errors
    /// When the API server doesn't answer.
    pub(crate) async fn is_still_deleted(&self) -> kube::Result<bool> {
        let tenants: Api<Tenant> = Api::all(self.client.clone());
        let live = found(tenants.get_metadata(self.id.as_str()).await)?;
        Ok(match (self.uid, live) {
            (None, live) => live.is_none(),
            (Some(uid), Some(live)) => {
                live.uid().as_deref() == Some(uid) && live.metadata.deletion_timestamp.is_some()
            }
            (Some(_), None) => false,
        })
    }
}
