//! Answers that come late: what a watch has shown since is newer, and wins.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::resource::v1::ResourceClaimTemplate;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, ListParams};
use outrigger_core::keys;
use outrigger_tests::devices::{Devices, templates};
use outrigger_tests::faults::{Fault, Matching, Proxy, Verb};
use outrigger_tests::tenant::{Tenant, dpu, rule_for, rule_with};
use outrigger_tests::{InWords, eventually, holds, until};
use serde_json::json;

use crate::faults::stage::{Replica, Stage};

/// Long enough for a process to have taken in an event that has been delivered to it.
const TAKEN_IN: Duration = Duration::from_millis(700);

/// Has a frozen watch of a resource restart by a list, without the events that were withheld. Returns when the process has read the list and watches again.
async fn relist(proxy: &Proxy, resource: &str) {
    let watches = Matching::watches(resource);
    let before = proxy.calls_of(&watches).len();
    let expired = proxy.fault(watches.clone(), Fault::Expire);
    proxy.hit(expired).await;
    let ended = proxy.hits(expired) as usize;
    proxy.remove(expired);
    eventually(&format!("{resource} are listed and watched again"), || async {
        let now = proxy.calls_of(&watches).iter().filter(|call| call.status == Some(200)).count();
        holds(now >= before + ended, format!("{before} watches before, {now} now"))
    })
    .await;
    tokio::time::sleep(TAKEN_IN).await;
}

/// Deletes an object without grace, and waits until it is gone. Another object may have its name by then: a call that was under way
/// may create it again.
async fn delete_now<K>(api: &Api<K>, name: &str)
where
    K: kube::Resource + Clone + serde::de::DeserializeOwned + std::fmt::Debug,
{
    let uid = api.get(name).await.unwrap().meta().uid.clone();
    api.delete(name, &DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() })
        .await
        .unwrap();
    eventually(&format!("{name} is gone"), || async {
        match api.get_opt(name).await.in_words()? {
            None => Ok(()),
            Some(found) => holds(found.meta().uid != uid, "it is there"),
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_companion_whose_creation_is_answered_after_a_new_list_is_no_ghost() {
    let stage = Stage::shared().await;
    let replica = Replica::start(stage, "manager-ghost").await;
    let t = stage.tenant("ghost", &["a"]).await;
    t.rule("r", rule_for("app", "web")).await;
    let proxy = &replica.proxy;
    let created = proxy.fault(
        Matching::verb(Verb::Create, "pods").namespace(&t.namespace).succeeded().times(1),
        Fault::HoldAnswer(None),
    );
    let frozen = proxy.fault(Matching::watches("pods"), Fault::FreezeWatch);
    let _stream = replica.open_stream(&t, &["w1"]).await;
    let first = eventually("the companion is there", || async {
        t.companions().await?.pop().ok_or_else(|| "it isn't".to_owned())
    })
    .await;
    proxy.hit(created).await;
    // It comes and goes while nobody looks.
    delete_now(&t.pods(), &first.name_any()).await;
    relist(proxy, "pods").await;
    proxy.remove(frozen);
    proxy.remove(created);
    let second = t.companion().await;
    assert_ne!(first.uid(), second.uid());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_template_whose_creation_is_answered_after_a_new_list_is_no_ghost() {
    let stage = Stage::shared().await;
    let replica = Replica::start(stage, "manager-ghost-template").await;
    let t = stage.tenant("ghost-template", &["a"]).await;
    let devices = Devices::publish(&t, &[("a", 2)]).await;
    let spec =
        rule_with("/deviceClaims", json!([{"name": "crypto", "spec": devices.one(), "containers": ["c"]}]));
    let api: Api<ResourceClaimTemplate> = Api::namespaced(t.infra.clone(), &t.namespace);
    let proxy = &replica.proxy;
    // Before the rule: else the leader makes the template.
    let _stream = replica.open_stream(&t, &["w1"]).await;
    eventually("it serves the tenant", || async {
        let stream = t.object().get(&t.id).await.in_words()?.status.and_then(|s| s.stream);
        holds(stream.is_some_and(|stream| stream.connected), "it doesn't")
    })
    .await;
    let created = proxy.fault(
        Matching::verb(Verb::Create, "resourceclaimtemplates").namespace(&t.namespace),
        Fault::HoldAnswer(None),
    );
    let frozen = proxy.fault(Matching::watches("resourceclaimtemplates"), Fault::FreezeWatch);
    eventually("the rule is taken", || async { t.try_rule("r", spec.clone()).await }).await;
    let first = eventually("the template is there", || async {
        templates(&t.infra, &t.namespace).await?.pop().ok_or_else(|| "it isn't".to_owned())
    })
    .await;
    proxy.hit(created).await;
    delete_now(&api, &first.name_any()).await;
    relist(proxy, "resourceclaimtemplates").await;
    proxy.remove(frozen);
    proxy.remove(created);
    eventually("there is a template again", || async {
        templates(&t.infra, &t.namespace).await?.pop().map(drop).ok_or_else(|| "there is none".to_owned())
    })
    .await;
    t.companion().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_whose_marking_is_answered_after_its_end_is_no_ghost() {
    let stage = Stage::shared().await;
    let t = stage.tenant("ghost-node", &["a"]).await;
    let nodes = t.nodes();
    let name = t.node("late");
    // The write that makes it the tenant's.
    let patch = Matching::verb(Verb::Patch, "nodes").name(&name);
    let owned = patch.body(&format!("\"{}\":\"{}\"", keys::NODE_TENANT, t.id)).succeeded().times(1);
    let marked = stage.manager.fault(owned, Fault::HoldAnswer(None));
    stage.o.plane.infra.apply(&[dpu(&name, &t.node("a"))]).unwrap();
    until("it is marked", &nodes, &name, |node| {
        node.labels().get(keys::NODE_TENANT).map(drop).ok_or_else(|| "it isn't".to_owned())
    })
    .await;
    stage.manager.hit(marked).await;
    delete_now(&nodes, &name).await;
    tokio::time::sleep(TAKEN_IN).await;
    stage.manager.remove(marked);
    // Its tenant can be deleted: no Node is left that would have to be released.
    t.delete().await;
}

/// The host that a rule's companions ask for, as it is in the infrastructure cluster.
async fn image(t: &Tenant, rule: &str) -> Result<String, String> {
    let rule = t.rules().get(rule).await.in_words()?;
    let rule = serde_json::to_value(&rule).in_words()?;
    Ok(rule["spec"]["template"]["spec"]["containers"][0]["image"].as_str().unwrap_or_default().to_owned())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rule_that_is_edited_before_its_status_is_answered_keeps_the_edit() {
    let stage = Stage::shared().await;
    let t = stage.tenant("edited", &["a"]).await;
    stage.agent(&t, &[]);
    t.own_rule("r", rule_for("app", "web")).await.unwrap();
    t.condition("r", "Synced", outrigger_api::conditions::Status::True, "StreamConnected").await;
    // The last status of a rule with one workload: nothing follows it that would show the rule once more.
    let status = Matching {
        verbs: vec![Verb::Patch],
        resource: Some("workloadrules/status".into()),
        ..Matching::all()
    };
    let held = stage
        .agents
        .fault(status.namespace(&t.source).body("\"ready\":1").succeeded().times(1), Fault::HoldAnswer(None));
    t.web("w1").await;
    t.companion().await;
    stage.agents.hit(held).await;
    until("the status is stored", &t.own_rules(), "r", |rule| {
        let ready = rule.status.and_then(|status| status.ready);
        holds(ready == Some(1), format!("{ready:?}"))
    })
    .await;
    t.own_rule("r", rule_with("/template/spec/containers/0/image", json!("edited"))).await.unwrap();
    tokio::time::sleep(TAKEN_IN).await;
    stage.agents.remove(held);
    eventually("the edit has arrived", || async {
        let image = image(&t, "r").await?;
        holds(image == "edited", image)
    })
    .await;
    eventually("the companion is made from it", || async {
        let all = t.companions().await?;
        let image = |pod: &Pod| pod.spec.as_ref().and_then(|spec| spec.containers[0].image.clone());
        match all.iter().map(image).collect::<Vec<_>>().as_slice() {
            [Some(image)] if image == "edited" => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn companions_follow_workloads_though_their_watch_lags() {
    let stage = Stage::shared().await;
    let replica = Replica::start(stage, "manager-lag").await;
    let t = stage.tenant("lag", &["a"]).await;
    t.rule("r", rule_for("app", "web")).await;
    replica.proxy.fault(Matching::watches("pods"), Fault::LagWatch(Duration::from_millis(1200)));
    let stream = replica.open_stream(&t, &["w1", "w2", "w3"]).await;
    t.ready(3).await;
    let creates =
        || replica.proxy.calls_of(&Matching::verb(Verb::Create, "pods").namespace(&t.namespace)).len();
    assert_eq!(creates(), 3, "answers tell what the watch hasn't shown");
    // Ended and back within the lag, and one that somebody deletes.
    t.sync(&stream, &["w2"]).await;
    t.sync(&stream, &["w1", "w2"]).await;
    let pods: Api<Pod> = t.pods();
    let labels = ListParams::default().labels(keys::RULE);
    let one = pods.list(&labels).await.unwrap().items.remove(0).name_any();
    delete_now(&pods, &one).await;
    eventually("there are just the two", || async {
        let all = pods.list(&labels).await.in_words()?.items;
        let leaving = all.iter().filter(|pod| pod.metadata.deletion_timestamp.is_some()).count();
        holds((all.len(), leaving) == (2, 0), format!("{} with {leaving} leaving", all.len()))
    })
    .await;
    t.ready(2).await;
    assert!(creates() <= 8, "{} creates", creates());
}
