//! The policy for the time without the webhook: `webhooks/emergency.yaml`.

use outrigger_cases::merged;
use outrigger_core::keys;
use outrigger_tests::{eventually, root, shipped};
use serde_json::{Value, json};

use crate::policies::accounts::Account::{self, Admin, Manager, Operator};
use crate::policies::setup::Setup;

/// The objects of a file.
pub(crate) fn objects(file: &str) -> Vec<Value> {
    shipped::objects(&std::fs::read_to_string(root().join(file)).unwrap()).unwrap()
}

#[tokio::test]
async fn nothing_new_of_tenants_is_taken_while_the_webhook_is_out_of_service() {
    let setup = Setup::shared().await;
    let client = &setup.plane.infra.client().await;
    let infra = &setup.plane.infra;
    let known = &setup.cases.objects;
    let namespace = |tenant: &str| {
        let metadata = json!({"name": format!("tenant-{tenant}"), "labels": {keys::TENANT: tenant}});
        merged(&known["namespace"], &json!({"metadata": metadata}))
    };
    let pod = |tenant: &str| {
        let term =
            json!({"matchExpressions": [{"key": keys::NODE_TENANT, "operator": "In", "values": [tenant]}]});
        let required =
            json!({"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}});
        let spec = json!({"affinity": {"nodeAffinity": required},
            "tolerations": [{"key": keys::TENANT, "value": tenant, "effect": "NoSchedule"}]});
        merged(&known["pod"], &json!({"spec": spec}))
    };
    infra.apply(&[namespace("out"), namespace("in")]).unwrap();
    let old = merged(&pod("out"), &json!({"metadata": {"name": "old"}}));
    let (out, claims) = ("/api/v1/namespaces/tenant-out/pods", "/apis/resource.k8s.io/v1/namespaces");
    eventually("the namespace takes Pods", || {
        Admin.send(client, "POST /api/v1/namespaces/tenant-out/pods", &old)
    })
    .await;

    // Other tests of this control plane go on in other tenants' namespaces.
    let mut policy = objects("webhooks/emergency.yaml");
    let selector = &mut policy[0]["spec"]["matchConstraints"]["namespaceSelector"]["matchExpressions"];
    let only = json!({"key": "kubernetes.io/metadata.name", "operator": "In", "values": ["tenant-out"]});
    selector.as_array_mut().unwrap().push(only);
    infra.apply(&policy).unwrap();
    let refused = async |who: Account, ask: &str, body: &Value| match who.dry_run(client, ask, body).await {
        Err(refusal) if refusal.contains("'outrigger-emergency'") => Ok(()),
        other => Err(format!("{who:?} {ask}: {other:?}")),
    };
    let (new, create) = (pod("out"), format!("POST {out}"));
    eventually("the policy is active", || refused(Admin, &create, &new)).await;
    let debug = json!({"spec": {"ephemeralContainers": [{"name": "debug", "image": "i", "securityContext": {},
        "terminationMessagePolicy": "File", "imagePullPolicy": "Always"}]}});
    for (who, ask, body) in [
        (Manager, create.clone(), &new),
        (Operator, create.clone(), &new),
        (Operator, format!("POST {claims}/tenant-out/resourceclaims"), &known["claim"]),
        (Operator, format!("PATCH {out}/old/ephemeralcontainers"), &debug),
    ] {
        refused(who, &ask, body).await.unwrap();
    }
    for (who, ask, body) in [
        (Admin, "POST /api/v1/namespaces/tenant-in/pods".to_owned(), &pod("in")),
        (Operator, format!("POST {claims}/tenant-in/resourceclaims"), &known["claim"]),
        (Operator, format!("PATCH {out}/old"), &json!({"metadata": {"labels": {"a": "b"}}})),
        (Operator, format!("DELETE {out}/old"), &Value::Null),
    ] {
        who.dry_run(client, &ask, body).await.unwrap();
    }
}
