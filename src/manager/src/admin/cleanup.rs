//! Companions that go whoever serves their tenant: its Tenant goes, or their rule does.

use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, ListParams};
use kube::core::PartialObjectMeta;
use kube::{Client, ResourceExt};
use outrigger_core::ids::{RuleName, TenantId};
use outrigger_core::keys;
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
    delete(client, namespace, &labels, |_| true).await
}

/// Deletes all companions of an admin rule. Returns how many are still there.
///
/// # Errors
/// When the API server can't be asked, or refuses.
pub(super) async fn of_rule(client: &Client, namespace: &str, rule: &RuleName) -> Result<usize, kube::Error> {
    let labels = format!("{}={}", keys::RULE, rule.label_value());
    // The label of a long name is a hash of it.
    let its = |pod: &PartialObjectMeta<Pod>| {
        pod.annotations().get(keys::ADMIN_RULE).is_some_and(|name| name == rule.as_str())
    };
    delete(client, namespace, &labels, its).await
}

/// Asked of the API server, past its caches: what this says is acted upon.
async fn delete(
    client: &Client,
    namespace: &str,
    labels: &str,
    wanted: impl Fn(&PartialObjectMeta<Pod>) -> bool,
) -> Result<usize, kube::Error> {
    let pods: Api<PartialObjectMeta<Pod>> = Api::namespaced(client.clone(), namespace);
    let mut left = pods.list(&ListParams::default().labels(labels)).await?.items;
    left.retain(|pod| wanted(pod));
    for pod in &left {
        if pod.metadata.deletion_timestamp.is_none() {
            gone(pods.delete(&pod.name_any(), &only(&pod.uid().unwrap_or_default())).await)?;
            info!(companion = %pod.name_any(), namespace, "deleted: its rule or its tenant goes");
        }
    }
    Ok(left.len())
}
