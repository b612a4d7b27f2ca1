//! A host of one tenant becomes another's, and its DPU with it.

use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use kube::api::Api;
use outrigger_core::keys;
use outrigger_tests::tenant::{Tenant, is_ready, node_of, rule_for};
use outrigger_tests::{InWords, create, holds};
use serde_json::json;

use super::tenant;
use crate::crash::run::Run;

/// The first tenant's companion leaves the DPU before the second one's Pod starts on it.
pub(crate) async fn steps(run: &Run) -> Result<(), String> {
    let from = tenant(run, "a", &[("h", 1)]).await?;
    let to = Tenant::without_agent(run.outrigger(), &format!("{}b", run.id), &[]).await.lasting();
    let (host, node) = (from.node("h"), from.node("h-dpu1"));
    run.act("the rule is taken", || from.try_rule("r", rule_for("app", "web"))).await?;
    from.start("w", "h", json!({"app": "web"})).await;
    run.companions(&from, 1, |pod| node_of(pod) == node).await?;
    let waiting =
        json!({"metadata": {"name": "waits"}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let waiting =
        run.act("the Pod is taken", || async { create(&to.pods(), &waiting).await.in_words() }).await?;
    run.begin();
    run.hold(&[waiting]).await?;
    run.act("the host is given back", || from.set(json!({"hosts": []}))).await?;
    run.act("the host is claimed", || to.set(json!({"hosts": [host]}))).await?;
    let nodes: Api<Node> = Api::all(run.infra.clone());
    run.reach("the DPU is the other tenant's", || async {
        let owner = nodes.get(&node).await.in_words()?.labels().get(keys::NODE_TENANT).cloned();
        holds(owner.as_deref() == Some(&*to.id), format!("{owner:?}"))
    })
    .await?;
    run.reach("its Pod runs there", || async {
        let pod = to.pods().get("waits").await.in_words()?;
        holds(is_ready(&pod) && node_of(&pod) == node, format!("{:?}", pod.status))
    })
    .await?;
    Ok(())
}
