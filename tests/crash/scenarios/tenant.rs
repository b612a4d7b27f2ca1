//! A Tenant from its creation to its end.

use k8s_openapi::api::core::v1::{Namespace, Node};
use kube::ResourceExt;
use kube::api::{Api, DeleteParams};
use outrigger_core::keys;
use outrigger_tests::outrigger::tenant_identity;
use outrigger_tests::tenant::{Tenant, dpu, is_ready, node_of, rule_for, tenant};
use outrigger_tests::{InWords, create, holds};
use serde_json::json;

use crate::crash::run::Run;

/// It gets its namespace and its DPU, has a rule and a Pod, and gives all of it back.
pub(crate) async fn steps(run: &Run) -> Result<(), String> {
    let outrigger = run.outrigger();
    let t = Tenant::named(outrigger, &run.id).await;
    let (host, node) = (t.node("h"), t.node("h-dpu1"));
    outrigger.plane.infra.apply(&[dpu(&node, &host)]).in_words()?;
    run.begin();
    let spec = json!({"hosts": [host], "identities": [tenant_identity(&t.id)]});
    let object = tenant(&t.id, spec);
    let object =
        run.act("the Tenant is created", || async { create(&t.object(), &object).await.in_words() }).await?;
    run.reach("the Tenant is served", || async {
        let status = t.object().get(&t.id).await.in_words()?.status.unwrap_or_default();
        let served = status.conditions.iter().any(|c| c.type_ == "Ready" && c.reason == "Served");
        holds(served && status.dpus == Some(1), format!("{status:?}"))
    })
    .await?;
    run.act("the rule is taken", || t.try_rule("r", rule_for("app", "web"))).await?;
    let pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let pod = run.act("the Pod is taken", || async { create(&t.pods(), &pod).await.in_words() }).await?;
    run.hold(std::slice::from_ref(&pod)).await?;
    run.reach("the Pod runs on the DPU", || async {
        let pod = t.pods().get("p").await.in_words()?;
        holds(is_ready(&pod) && node_of(&pod) == node, format!("{:?}", pod.status))
    })
    .await?;
    run.release(&[pod]).await?;
    t.object().delete(&object.name_any(), &DeleteParams::default()).await.in_words()?;
    let nodes: Api<Node> = Api::all(run.infra.clone());
    let namespaces: Api<Namespace> = Api::all(run.infra.clone());
    run.reach("all of it is given back", || async {
        let left = t.object().get_opt(&t.id).await.in_words()?.is_some();
        let namespace = namespaces.get_opt(&t.namespace).await.in_words()?.is_some();
        let owner = nodes.get(&node).await.in_words()?.labels().get(keys::NODE_TENANT).cloned();
        if left || namespace || owner.is_some() {
            return Err(format!("Tenant {left}, namespace {namespace}, owner {owner:?}"));
        }
        Ok(())
    })
    .await?;
    Ok(())
}
