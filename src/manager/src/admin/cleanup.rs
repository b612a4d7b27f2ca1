//! Companions that go whoever serves their tenant: its Tenant goes, or their rule does.

use std::fmt::Debug;

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::resource::v1::{ResourceClaim, ResourceClaimTemplate};
use kube::api::{Api, ListParams, ObjectMeta};
use kube::core::PartialObjectMeta;
use kube::{Client, Resource, ResourceExt};
use outrigger_core::ids::{RuleName, TenantId};
use outrigger_core::keys;
use outrigger_runtime::watch;
use serde::de::DeserializeOwned;
use tracing::info;

use crate::writes::{gone, only};

/// Deletes a tenant's companions of admin rules. Returns how many are still there.
///
/// # Errors
/// When the API server can't be asked, or refuses.
pub(crate) async fn release(
    client: &Client,
    namespace: &str,
    tenant: &TenantId,
) -> Result<usize, kube::Error> {
    let labels = format!("{}={tenant},{}", keys::TENANT, keys::RULE);
    let pods = delete::<Pod>(client, namespace, &labels, |_| true).await?;
    Ok(pods + delete::<ResourceClaim>(client, namespace, &labels, |_| true).await?)
}

/// Deletes all companions of an admin rule, and what their devices were claimed by. Returns how many are still there.
///
/// # Errors
/// When the API server can't be asked, or refuses.
pub(super) async fn of_rule(client: &Client, namespace: &str, rule: &RuleName) -> Result<usize, kube::Error> {
    let labels = format!("{}={}", keys::RULE, rule.label_value());
    // The label of a long name is a hash of it.
    let its = |metadata: &ObjectMeta| {
        let name = metadata.annotations.as_ref().and_then(|annotations| annotations.get(keys::ADMIN_RULE));
        name.is_some_and(|name| name == rule.as_str())
    };
    let pods = delete::<Pod>(client, namespace, &labels, its).await?;
    let left = pods + delete::<ResourceClaim>(client, namespace, &labels, its).await?;
    if left > 0 {
        return Ok(left);
    }
    delete::<ResourceClaimTemplate>(client, namespace, &labels, its).await
}

/// Asked of the API server, past its caches: what this says is acted upon.
async fn delete<K>(
    client: &Client,
    namespace: &str,
    labels: &str,
    wanted: impl Fn(&ObjectMeta) -> bool,
) -> Result<usize, kube::Error>
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + Debug + DeserializeOwned,
{
    let objects: Api<PartialObjectMeta<K>> = Api::namespaced(client.clone(), namespace);
    let (mut left, mut stay) = (0, Vec::new());
    let listed = watch::list(&objects, ListParams::default().labels(labels), |object| {
        if wanted(&object.metadata) {
            left += 1;
            if object.metadata.deletion_timestamp.is_none() {
                stay.push((object.name_any(), object.uid().unwrap_or_default()));
            }
        }
    });
    match listed.await {
        Ok(()) => {}
        // A cluster that doesn't have the kind has none of it.
        Err(kube::Error::Api(status)) if status.code == 404 => return Ok(0),
        Err(error) => return Err(error),
    }
    for (name, uid) in stay {
        gone(objects.delete(&name, &only(&uid)).await)?;
        info!(companion = name, namespace, "deleted: its rule or its tenant goes");
    }
    Ok(left)
}
