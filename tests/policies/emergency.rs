//! The policy for the time without the webhook: `webhooks/emergency.yaml`.

use super::*;

/// The objects of a file.
pub(crate) fn objects(file: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(root().join(file)).unwrap();
    let all = serde_yaml::Deserializer::from_str(&text).map(|d| Value::deserialize(d).unwrap());
    all.filter(|o| !o.is_null()).collect()
}

#[tokio::test]
async fn nothing_new_of_tenants_is_taken_while_the_webhook_is_out_of_service() {
    let setup = Setup::shared().await;
    let client = &setup.plane.infra.client().await;
    let infra = &setup.plane.infra;
    let pods = |namespace: &str| format!("{}/pods", at(namespace));
    let claims = |namespace: &str| format!("/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaims");
    infra
        .apply(&[
            namespace("tenant-out", json!({keys::TENANT: "out"})),
            namespace("tenant-in", json!({keys::TENANT: "in"})),
        ])
        .unwrap();
    let create =
        Admin.create(pods("tenant-out"), merged(pod("out", json!({})), json!({"metadata": {"name": "old"}})));
    eventually("the namespace takes Pods", || async { create.send(client).await }).await;

    // Other tests of this control plane go on in other tenants' namespaces.
    let mut policy = objects("webhooks/emergency.yaml");
    let selector = &mut policy[0]["spec"]["matchConstraints"]["namespaceSelector"]["matchExpressions"];
    let only = json!({"key": "kubernetes.io/metadata.name", "operator": "In", "values": ["tenant-out"]});
    selector.as_array_mut().unwrap().push(only);
    infra.apply(&policy).unwrap();
    let new = |who: Who, tenant: &str| who.create(pods(&format!("tenant-{tenant}")), pod(tenant, json!({})));
    let refused = async |ask: Ask| match ask.dry_run(client).await {
        Err(refusal) if refusal.contains("'outrigger-emergency'") => Ok(()),
        other => Err(format!("{ask:?}: {other:?}")),
    };
    eventually("the policy is active", || refused(new(Admin, "out"))).await;
    for ask in [
        new(Manager, "out"),
        new(Operator, "out"),
        Operator.create(claims("tenant-out"), devices::claim(json!({}))),
        Operator.patch(format!("{}/old/ephemeralcontainers", pods("tenant-out")), debug(json!({}))),
    ] {
        refused(ask).await.unwrap();
    }
    for ask in [
        new(Admin, "in"),
        Operator.create(claims("tenant-in"), devices::claim(json!({}))),
        Operator.patch(format!("{}/old", pods("tenant-out")), label("a", "b")),
        Operator.delete(format!("{}/old", pods("tenant-out"))),
    ] {
        ask.dry_run(client).await.unwrap();
    }
}
