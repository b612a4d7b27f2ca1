//! Which running Pods of a tenant would be refused at the level Enforce.

use std::collections::BTreeSet;

use k8s_openapi::api::resource::v1::ResourceClaim;
use kube::Client;
use kube::api::{Api, ListParams};
use outrigger_api::pod_claims;
use outrigger_core::keys;
use outrigger_core::tenant::{Enforcement, Tenant};
use outrigger_runtime::watch;

/// Names of running Pods that would be refused if they were created at the level Enforce. There are none at that level. The manager's own
/// watch shows claims of rules only, so the others are listed, page by page, each time that the tenant is looked at.
pub(super) async fn would_be_refused(
    client: &Client,
    tenant: &Tenant,
    level: Enforcement,
) -> Result<BTreeSet<String>, kube::Error> {
    let mut found = BTreeSet::new();
    if level == Enforcement::Enforce {
        return Ok(found);
    }
    let claims: Api<ResourceClaim> = Api::namespaced(client.clone(), &tenant.namespace);
    let others = ListParams::default().labels(&format!("!{}", keys::RULE));
    let listed = watch::list(&claims, others, |claim| {
        found.extend(pod_claims::other_users(&claim).into_iter().map(str::to_owned));
    });
    match listed.await {
        // A cluster may have Dynamic Resource Allocation turned off.
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(BTreeSet::new()),
        listed => listed.map(|()| found),
    }
}

#[cfg(test)]
mod tests {
    use outrigger_api::Tenant as Object;
    use outrigger_runtime::fake_api::{FakeApi, not_found};
    use serde_json::json;

    use super::*;
    use crate::fixtures;

    const CLAIMS: &str = "/apis/resource.k8s.io/v1/namespaces/tenant-blue/resourceclaims";

    fn blue() -> Tenant {
        let object = json!({"apiVersion": "outrigger.dev/v1alpha1", "kind": "Tenant", "metadata": {"name": "blue"}, "spec": {}});
        fixtures::object::<Object>(object).compile().unwrap()
    }

    #[tokio::test]
    async fn claims_are_listed_below_enforce_only_and_a_cluster_need_not_have_them() {
        let (api, tenant) = (FakeApi::default(), blue());
        let reserved = json!([{"resource": "pods", "name": "thief", "uid": "u2"}]);
        let claim = json!({"metadata": {"name": "web-d-x7k2m", "namespace": "tenant-blue", "uid": "c", "ownerReferences": [
                {"apiVersion": "v1", "kind": "Pod", "name": "web", "uid": "u1", "controller": true}]},
            "spec": {}, "status": {"reservedFor": reserved}});
        api.answers("GET", CLAIMS, 200, json!({"metadata": {}, "items": [claim]}));
        let found = async |level| {
            would_be_refused(&api.client(), &tenant, level).await.unwrap().into_iter().collect::<Vec<_>>()
        };
        assert_eq!(found(Enforcement::Enforce).await, [""; 0]);
        assert!(api.calls("GET").is_empty(), "nothing is asked at the level of nearly all tenants");
        assert_eq!(found(Enforcement::Warn).await, ["thief"]);
        api.answers("GET", CLAIMS, 404, not_found());
        assert_eq!(found(Enforcement::Observe).await, [""; 0]);
    }
}
