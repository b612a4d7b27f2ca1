//! Deletes companions whichever replica serves their tenant: when the Tenant or their rule is being deleted.

use std::fmt::Debug;
use std::future::ready;

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::resource::v1::{ResourceClaim, ResourceClaimTemplate};
use kube::api::{Api, ListParams, ObjectMeta};
use kube::core::PartialObjectMeta;
use kube::{Client, Resource};
use outrigger_core::ids::RuleName;
use outrigger_core::keys;
use tracing::info;

use crate::tenants::Former;
use crate::writes;

/// Deletes a tenant's companions of admin rules. Returns how many are still there.
pub(crate) async fn release(former: &Former<'_>, namespace: &str) -> Result<usize, kube::Error> {
    let labels = format!("{}={},{}", keys::TENANT, former.id, keys::RULE);
    let client = former.client;
    let pods = delete::<Pod>(client, namespace, &labels, |_| true, former.is_still_deleted()).await?;
    let may = former.is_still_deleted();
    Ok(pods + delete::<ResourceClaim>(client, namespace, &labels, |_| true, may).await?)
}

/// Deletes all companions of an admin rule, and what their devices were claimed by. Returns how many are still there.
pub(super) async fn of_rule(client: &Client, namespace: &str, rule: &RuleName) -> Result<usize, kube::Error> {
    let labels = format!("{}={}", keys::RULE, rule.label_value());
    // The label of a long name is a hash of it.
    let its = |metadata: &ObjectMeta| {
        let name = metadata.annotations.as_ref().and_then(|annotations| annotations.get(keys::ADMIN_RULE));
        name.is_some_and(|name| name == rule.as_str())
    };
    let may = || ready(Ok(true));
    let pods = delete::<Pod>(client, namespace, &labels, its, may()).await?;
    let left = pods + delete::<ResourceClaim>(client, namespace, &labels, its, may()).await?;
    if left > 0 {
        return Ok(left);
    }
    delete::<ResourceClaimTemplate>(client, namespace, &labels, its, may()).await
}

/// Deletes the companions of a kind that a selector and `wanted` select, by [`writes::delete_all`]. Returns how many are still there.
async fn delete<K>(
    client: &Client,
    namespace: &str,
    labels: &str,
    wanted: impl Fn(&ObjectMeta) -> bool,
    may: impl Future<Output = kube::Result<bool>>,
) -> Result<usize, kube::Error>
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + Debug,
{
    let objects: Api<PartialObjectMeta<K>> = Api::namespaced(client.clone(), namespace);
    match writes::delete_all(&objects, ListParams::default().labels(labels), wanted, may).await {
        Ok((left, deleted)) => {
            for name in deleted {
                info!(
                    companion = name,
                    namespace, "deleted companion: its rule or its tenant is being deleted"
                );
            }
            Ok(left)
        }
        // A cluster that doesn't have the kind has no objects of it.
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(0),
        Err(error) => Err(error),
    }
}
