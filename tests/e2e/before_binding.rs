//! Workloads that aren't bound before their companions are Ready: what the real scheduler makes of the conditions of their claims.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::resource::v1::ResourceClaim;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams};
use outrigger_core::keys;
use outrigger_tests::held::{self, go};
use outrigger_tests::tenant::{Tenant, annotation, node_of};
use outrigger_tests::{InWords, condition_of, create, dry_run, eventually, holds, is_gone};
use serde_json::json;

use crate::e2e::companions_first::{BINDING, pod, published, scheduled, stage};

/// Makes a rule by which Pods with this label `app` aren't bound before companions that are Ready only when [`go`] says so, and waits until
/// they get its claim.
pub(crate) async fn has_rule(t: &Tenant, app: &str) {
    t.own_rule(app, held::rule(app, "BeforeBinding")).await.unwrap();
    eventually("its Pods wait to be bound", || async {
        let created = dry_run(&t.work(), &pod("w", app, json!({}))).await.in_words()?;
        let claims = created.spec.and_then(|spec| spec.resource_claims).unwrap_or_default();
        let templates: Vec<_> =
            claims.into_iter().filter_map(|claim| claim.resource_claim_template_name).collect();
        holds(templates == [keys::COMPANIONS_BINDING_CLAIM], format!("{templates:?}"))
    })
    .await;
}

async fn rule_ends(t: &Tenant, app: &str) {
    t.own_rules().delete(app, &DeleteParams::default()).await.unwrap();
    t.rule_is_gone(app).await;
}

/// The claim of a Pod.
pub(crate) async fn claim(t: &Tenant, name: &str) -> Result<ResourceClaim, String> {
    let pod: Pod = t.work().get(name).await.in_words()?;
    let statuses = pod.status.and_then(|status| status.resource_claim_statuses).unwrap_or_default();
    let claim = statuses.into_iter().find_map(|status| status.resource_claim_name).ok_or("no claim")?;
    let all: Api<ResourceClaim> = Api::namespaced(t.cluster.clone(), &t.source);
    all.get(&claim).await.in_words()
}

/// The Node that the claim of a Pod is allocated on.
pub(crate) async fn allocated(t: &Tenant, name: &str) -> Result<String, String> {
    let status = claim(t, name).await?.status.unwrap_or_default();
    let devices = status.allocation.and_then(|allocation| allocation.devices).unwrap_or_default();
    let result = devices.results.unwrap_or_default().pop().ok_or("it isn't allocated")?;
    Ok(result.pool)
}

/// Waits until a Pod that isn't bound has its companion on a DPU of the Node that the scheduler has chosen. Returns both.
async fn chosen(t: &Tenant, name: &str) -> (String, Pod) {
    let companion = waiting(t, &[name], &[]).await.remove(name).unwrap();
    (annotation(&companion, keys::HOST).unwrap().to_owned(), companion)
}

/// Waits until each of these Pods has one companion, on a DPU of the Node that the scheduler has chosen, and isn't bound. There are no companions but
/// theirs and those of `bound`.
pub(crate) async fn waiting(t: &Tenant, names: &[&str], bound: &[&str]) -> BTreeMap<String, Pod> {
    eventually(&format!("{names:?} wait for their companions"), || async {
        let mut all = t.by_workload().await?;
        holds(all.len() == names.len() + bound.len(), format!("{:?}", all.keys()))?;
        all.retain(|name, _| !bound.contains(&name.as_str()));
        holds(all.keys().eq(names), format!("{:?}", all.keys()))?;
        for (name, companion) in &all {
            let pod: Pod = t.work().get(name).await.in_words()?;
            holds(node_of(&pod).is_empty(), format!("{name} is bound to {}", node_of(&pod)))?;
            let node = allocated(t, name).await?;
            holds(annotation(companion, keys::HOST) == Some(&node), format!("{:?}", companion.metadata))?;
            holds(node_of(companion) == format!("{node}-dpu1"), node_of(companion).to_owned())?;
        }
        Ok::<_, String>(all)
    })
    .await
}

/// Waits until the gate of a Pod says why it waits.
async fn says(t: &Tenant, name: &str, reason: &str) {
    eventually(&format!("the Pod says {reason}"), || async {
        let gate = condition_of(&t.work().get(name).await.in_words()?, keys::COMPANIONS_GATE);
        holds(gate["reason"] == reason, gate.to_string())
    })
    .await;
}

#[tokio::test]
async fn a_pod_is_bound_when_its_companion_is_ready_and_not_before() {
    let (t, _alone) = stage().await;
    if t.outrigger.plane.tenant.skips(BINDING) {
        return;
    }
    has_rule(&t, "bind").await;
    create(&t.work(), &pod("bound", "bind", json!({}))).await.unwrap();
    let (node, companion) = chosen(&t, "bound").await;
    says(&t, "bound", "Starting").await;
    go(&t, &companion);
    assert_eq!(scheduled(&t, "bound").await.0, node, "it is bound to the Node of its companion");
    let devices = claim(&t, "bound").await.unwrap().status.unwrap().devices.unwrap();
    let said: Vec<_> = devices.iter().flat_map(|device| device.conditions.iter().flatten()).collect();
    assert!(said.iter().any(|c| c.type_ == keys::CLAIM_READY && c.status == "True"), "{said:?}");
    assert_eq!(t.ready(1).await[0].uid(), companion.uid(), "the companion stays");
    t.end("bound").await;
    rule_ends(&t, "bind").await;
}

#[tokio::test]
async fn the_companion_of_a_pod_that_is_deleted_while_it_waits_is_deleted() {
    let (t, _alone) = stage().await;
    if t.outrigger.plane.tenant.skips(BINDING) {
        return;
    }
    has_rule(&t, "gone").await;
    create(&t.work(), &pod("waits", "gone", json!({}))).await.unwrap();
    let (_, companion) = chosen(&t, "waits").await;
    t.work().delete("waits", &DeleteParams::default().grace_period(0)).await.unwrap();
    is_gone(&t.pods(), &companion.name_any()).await;
    rule_ends(&t, "gone").await;
}

#[tokio::test]
async fn a_pod_goes_elsewhere_when_the_dpu_of_the_chosen_node_takes_no_companions() {
    let (t, _alone) = stage().await;
    if t.outrigger.plane.tenant.skips(BINDING) {
        return;
    }
    has_rule(&t, "move").await;
    create(&t.work(), &pod("moves", "move", json!({}))).await.unwrap();
    let (first, companion) = chosen(&t, "moves").await;
    let (infra, dpu) = (&t.outrigger.plane.infra, format!("{first}-dpu1"));
    // As a DPU that fails: what runs on it isn't Ready, and it takes nothing new.
    infra.cordon(&dpu, true);
    eventually("it goes elsewhere", || async {
        let node = allocated(&t, "moves").await?;
        holds(node != first, node)
    })
    .await;
    let (second, other) = chosen(&t, "moves").await;
    assert_ne!((&first, companion.uid()), (&second, other.uid()));
    go(&t, &other);
    assert_eq!(scheduled(&t, "moves").await.0, second);
    infra.cordon(&dpu, false);
    published(&t, &[("a", 300), ("b", 260)]).await;
    t.end("moves").await;
    rule_ends(&t, "move").await;
}

#[tokio::test]
async fn a_refusal_of_one_pod_keeps_its_node_and_says_why() {
    let (t, _alone) = stage().await;
    if t.outrigger.plane.tenant.skips(BINDING) {
        return;
    }
    has_rule(&t, "refused").await;
    t.set(json!({"limits": {"companions": 1}})).await.unwrap();
    eventually("the quota is the limit", || async {
        let quotas = t.outrigger.plane.infra.get(&["-n", &t.namespace, "resourcequota"]).in_words()?;
        let hard = &quotas["items"][0]["status"]["hard"]["pods"];
        holds(hard == "1", hard.to_string())
    })
    .await;
    create(&t.work(), &pod("first", "refused", json!({}))).await.unwrap();
    let (_, companion) = chosen(&t, "first").await;
    create(&t.work(), &pod("second", "refused", json!({}))).await.unwrap();
    says(&t, "second", "QuotaExceeded").await;
    let node = allocated(&t, "second").await.unwrap();
    let found = claim(&t, "second").await.unwrap();
    assert_eq!(found.status.unwrap().devices, None, "nothing makes the scheduler choose again");
    go(&t, &companion);
    scheduled(&t, "first").await;
    // With room for it the Pod goes on where it is.
    t.set(json!({"limits": {"companions": null}})).await.unwrap();
    let companion = eventually("it has a companion", || async {
        let uid = t.work().get("second").await.in_words()?.uid();
        let all = t.companions().await?;
        let own = all.into_iter().find(|companion| companion.labels().get(keys::WORKLOAD) == uid.as_ref());
        own.ok_or_else(|| "it has none".to_owned())
    })
    .await;
    go(&t, &companion);
    assert_eq!(scheduled(&t, "second").await.0, node);
    for name in ["first", "second"] {
        t.end(name).await;
    }
    rule_ends(&t, "refused").await;
}

#[tokio::test]
async fn an_agent_that_restarts_keeps_the_companion_and_binds_the_pod() {
    let (t, _alone) = stage().await;
    if t.outrigger.plane.tenant.skips(BINDING) {
        return;
    }
    has_rule(&t, "again").await;
    create(&t.work(), &pod("waits-on", "again", json!({}))).await.unwrap();
    let (node, companion) = chosen(&t, "waits-on").await;
    let (plane, process) = (&t.outrigger.plane, format!("agent-{}", t.id));
    plane.command(&format!("stop {process}")).unwrap();
    go(&t, &companion);
    t.ready(1).await;
    plane.command(&format!("start {process}")).unwrap();
    assert_eq!(scheduled(&t, "waits-on").await.0, node);
    assert_eq!(t.ready(1).await[0].uid(), companion.uid());
    t.end("waits-on").await;
    rule_ends(&t, "again").await;
}
