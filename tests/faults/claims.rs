//! Claims on streams: of Tenants that are created again, with counters that go back, and with answers that are lost.

use kube::api::DeleteParams;
use outrigger_api::Tenant as Object;
use outrigger_core::keys;
use outrigger_tests::faults::{Fault, Matching, Verb};
use outrigger_tests::outrigger::tenant_identity;
use outrigger_tests::tenant::{Tenant, dpu, rule_for, tenant};
use outrigger_tests::{InWords, eventually, holds, merge, merge_status};
use serde_json::json;

use crate::faults::stage::{Replica, Stage};

/// What is patched into a Tenant's status as an administrator.
async fn stream_status(t: &Tenant, fields: serde_json::Value) {
    merge_status(&t.object(), &t.id, json!({"stream": fields})).await.unwrap();
}

async fn claim(t: &Tenant) -> Result<(u64, String), String> {
    let tenant: Object = t.object().get(&t.id).await.in_words()?;
    let stream = tenant.status.and_then(|status| status.stream).unwrap_or_default();
    Ok((stream.claim, stream.holder))
}

/// Has both replicas serve the tenant with a counter that is far ahead: first the shared one, then the other, and the shared
/// one again, so that each knows claims of the other.
async fn counted(stage: &'static Stage, replica: &Replica, t: &Tenant) {
    t.rule("r", rule_for("app", "web")).await;
    stream_status(t, json!({"claim": 1000, "connected": false, "holder": ""})).await;
    let first = stage.open_stream(t, &["w1"]).await;
    t.companion().await;
    let second = replica.open_stream(t, &["w1"]).await;
    assert!(first.1.await.unwrap().is_err(), "superseded");
    let third = stage.open_stream(t, &["w1"]).await;
    assert!(second.1.await.unwrap().is_err(), "superseded");
    eventually("the claim has been raised thrice", || async {
        let (claim, _) = claim(t).await?;
        holds(claim == 1003, format!("{claim}"))
    })
    .await;
    drop(third.0);
    let _ = third.1.await;
}

/// Connects to a replica once, and waits until it serves the tenant's workloads.
async fn served_at_once(replica: &Replica, t: &Tenant, workloads: &[&str]) {
    let (sender, call) = replica.open_stream(t, workloads).await;
    tokio::select! {
        ended = call => panic!("the stream has ended: {ended:?}"),
        _ = t.ready(workloads.len()) => {}
    }
    drop(sender);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tenant_that_is_recreated_is_served_at_once() {
    let stage = Stage::shared().await;
    let replica = Replica::start(stage, "manager-recreated").await;
    let t = stage.tenant("recreated", &["a"]).await;
    counted(stage, &replica, &t).await;
    let unowned = json!({"metadata": {"ownerReferences": null, "labels": {(keys::TENANT): t.id}}});
    let namespaces: kube::Api<k8s_openapi::api::core::v1::Namespace> = kube::Api::all(t.infra.clone());
    merge(&namespaces, &t.namespace, unowned).await.unwrap();
    // Nobody releases it: its namespace stays, and its label too, as it is where a namespace was adopted.
    let own = Matching { verbs: Verb::WRITES.to_vec(), ..Matching::all() };
    let failed = Fault::Status { code: 503, retry_after: None };
    let faults = [
        own.clone().namespace(&t.namespace),
        Matching { resource: Some("namespaces".into()), ..own.clone() }.name(&t.namespace),
        own.path(&format!("/tenants/{}", t.id)),
    ]
    .map(|matching| stage.manager.fault(matching, failed.clone()));
    t.object().delete(&t.id, &DeleteParams::default()).await.unwrap();
    eventually("somebody takes its finalizer away", || async {
        match merge(&t.object(), &t.id, json!({"metadata": {"finalizers": null}})).await {
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            other => Err(format!("{:?}", other.map(drop))),
        }
    })
    .await;
    let again = tenant(&t.id, json!({"hosts": [t.node("a")], "identities": [tenant_identity(&t.id)]}));
    stage.o.plane.infra.apply(&[again, dpu(&t.node("a-dpu1"), &t.node("a"))]).unwrap();
    // The leader takes one step for a Tenant at a time: once the new one has its finalizer, no release of the former one is under way.
    let [in_namespace, of_namespace, of_tenant] = faults;
    stage.manager.remove(of_tenant);
    eventually("the leader has seen the new Tenant", || async {
        let finalizers = t.object().get(&t.id).await.in_words()?.metadata.finalizers;
        holds(finalizers.is_some(), format!("{finalizers:?}"))
    })
    .await;
    [in_namespace, of_namespace].into_iter().for_each(|id| stage.manager.remove(id));
    t.is("Ready", outrigger_api::conditions::Status::True, "Served").await;
    served_at_once(&replica, &t, &["w1", "w2"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_counter_that_goes_back_locks_nobody_out() {
    let stage = Stage::shared().await;
    let replica = Replica::start(stage, "manager-back").await;
    let t = stage.tenant("back", &["a"]).await;
    counted(stage, &replica, &t).await;
    // As after an older state of the cluster has been restored.
    stream_status(&t, json!({"claim": 0, "holder": "", "connected": false})).await;
    served_at_once(&replica, &t, &["w1", "w2"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_whose_answer_is_lost_is_given_up_when_no_agent_returns() {
    let stage = Stage::shared().await;
    // It doesn't lead.
    let replica = Replica::start(stage, "manager-unheard").await;
    let t = stage.tenant("unheard", &["a"]).await;
    let lost = Matching::verb(Verb::Patch, "tenants/status").name(&t.id).times(1);
    replica.proxy.fault(lost, Fault::DropAnswer);
    let (_sender, call) = replica.open_stream(&t, &["w1"]).await;
    assert!(call.await.unwrap().is_err(), "nobody knows whether it is served");
    let (number, holder) = claim(&t).await.unwrap();
    assert!(number > 0 && !holder.is_empty(), "the claim was stored");
    // Its agent never comes back. Its rules' statuses are written all the same.
    t.rule("r", rule_for("app", "web")).await;
    t.condition("r", "Accepted", outrigger_api::conditions::Status::True, "Valid").await;
}
