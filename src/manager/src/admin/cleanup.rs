//! Deletes companions whichever replica serves their tenant: when the Tenant or their rule is being deleted.

use std::fmt::Debug;

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::resource::v1::{ResourceClaim, ResourceClaimTemplate};
use kube::api::{Api, ListParams, ObjectMeta};
use kube::core::PartialObjectMeta;
use kube::{Client, Resource, ResourceExt};
use outrigger_api::AdminWorkloadRule;
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

/// Deletes all companions of an admin rule, and what their devices were claimed by. Returns how many are still there. They are kept if the
/// API server has another rule of its name by now: the cache may be behind, and they may be that rule's.
pub(super) async fn of_rule(
    rules: &Api<AdminWorkloadRule>,
    uid: &str,
    namespace: &str,
    rule: &RuleName,
) -> Result<usize, kube::Error> {
    let labels = format!("{}={}", keys::RULE, rule.label_value());
    // The label of a long name is a hash of it.
    let its = |metadata: &ObjectMeta| {
        let name = metadata.annotations.as_ref().and_then(|annotations| annotations.get(keys::ADMIN_RULE));
        name.is_some_and(|name| name == rule.as_str())
    };
    let (client, may) = (rules.clone().into_client(), || is_still_deleted(rules, rule, uid));
    let pods = delete::<Pod>(&client, namespace, &labels, its, may()).await?;
    let left = pods + delete::<ResourceClaim>(&client, namespace, &labels, its, may()).await?;
    if left > 0 {
        return Ok(left);
    }
    delete::<ResourceClaimTemplate>(&client, namespace, &labels, its, may()).await
}

/// Whether the API server has no other rule of this name than the one with this uid.
async fn is_still_deleted(rules: &Api<AdminWorkloadRule>, rule: &RuleName, uid: &str) -> kube::Result<bool> {
    let live = writes::found(rules.get_metadata(rule.as_str()).await)?;
    Ok(live.is_none_or(|live| live.uid().as_deref() == Some(uid)))
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

#[cfg(test)]
mod tests {
    use outrigger_runtime::fake_api::{FakeApi, not_found};
    use serde_json::{Value, json};

    use super::*;

    #[tokio::test]
    async fn companions_of_a_rule_that_was_created_again_are_kept() {
        const RULE: &str =
            "/apis/workload.universe.nvidia.com/v1alpha1/namespaces/admin/adminworkloadrules/r";
        let rule = |uid: &str| json!({"metadata": {"name": "r", "namespace": "admin", "uid": uid}});
        let list = |items: Value| json!({"metadata": {}, "items": items});
        for (code, live, deleted) in [(200, rule("u"), 1), (404, not_found(), 1), (200, rule("another"), 0)] {
            let api = FakeApi::default();
            let pod = json!({"metadata": {"name": "p", "uid": "p", "annotations": {keys::ADMIN_RULE: "r"}}});
            let metadata = json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1"});
            let mut listed = metadata.clone();
            json_patch::merge(&mut listed, &pod);
            api.answers("GET", "/api/v1/namespaces/n/pods", 200, list(json!([listed])));
            api.answers(
                "DELETE",
                "/api/v1/namespaces/n/pods/p",
                200,
                json!({"kind": "Status", "status": "Success"}),
            );
            let claims = "/apis/resource.k8s.io/v1/namespaces/n/resourceclaims";
            api.answers("GET", claims, 200, list(json!([])));
            let mut answer = metadata;
            json_patch::merge(&mut answer, &live);
            api.answers("GET", RULE, code, if code == 200 { answer } else { live });
            let rules: Api<AdminWorkloadRule> = Api::namespaced(api.client(), "admin");
            let left = of_rule(&rules, "u", "n", &RuleName::admin("r").unwrap()).await.unwrap();
            assert_eq!((left, api.calls("DELETE").len()), (1, deleted), "{code}");
        }
    }
}
