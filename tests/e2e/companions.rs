//! What a tenant hears of its companions, and what its agent writes on workloads.

use kube::ResourceExt;
use kube::api::DeleteParams;
use outrigger_api::conditions::Status;
use outrigger_core::keys;
use outrigger_core::reason::Cause;
use outrigger_proto::companion::CompanionState::{Lost, NoDpu, Pending, Ready, Refused, Starting};
use outrigger_proto::v1::workload_stream_request::Message;
use outrigger_tests::outrigger::Outrigger;
use outrigger_tests::stream::update;
use outrigger_tests::tenant::{Tenant, admin_rule, is_ready, rule_for, rule_with};
use outrigger_tests::{create, eventually, gate, held, holds, until};
use serde_json::json;

/// Says whether the one companion is ready.
async fn set(t: &Tenant, up: bool) {
    let companion = eventually("there is a companion", || async {
        t.companions().await?.pop().ok_or_else(|| "none".to_owned())
    })
    .await;
    held::set(t, &companion, up);
}

#[tokio::test]
async fn a_tenant_hears_how_its_companion_comes_up_is_lost_and_goes() {
    let t = Tenant::without_agent(Outrigger::shared().await, "dl-life", &[("a", 1)]).await;
    t.rule("r", held::rule("web", "Parallel")).await;
    let opened = t.opens_stream(t.on_a(&["w"])).await;
    let watch = t.watches().await;
    watch.receives("w", &[(Starting, "Starting")]).await;
    set(&t, true).await;
    let ready = watch.receives("w", &[(Ready, "")]).await.remove(0);
    assert_eq!((ready.rule.as_str(), ready.message.as_str(), ready.before_ready), ("r", "", false));
    set(&t, false).await;
    let lost = watch.receives("w", &[(Lost, "Lost")]).await.remove(0);
    assert_eq!(lost.message, Cause::Lost.message());
    assert!(lost.since >= ready.since, "{lost:?} {ready:?}");
    // A new reader hears the same first.
    let other = t.watches().await;
    assert_eq!(other.heard().workloads["w"], [lost]);
    assert!(other.heard().hosts[&t.node("a")].dpu_ready, "{other:?}");

    t.rules().delete("r", &DeleteParams::default()).await.unwrap();
    for watch in [&watch, &other] {
        watch.receives("w", &[]).await;
    }
    // The stream of workloads ends: nobody knows any longer.
    drop(opened.0);
    let status = watch.call.await.unwrap();
    assert_eq!(status.code(), tonic::Code::Unavailable, "{status}");
}

#[tokio::test]
async fn a_tenant_hears_for_which_node_of_a_workload_its_companions_are() {
    let t = Tenant::without_agent(Outrigger::shared().await, "dl-node", &[("a", 1), ("b", 1)]).await;
    t.rule("r", rule_with("/dpuSelectionPolicy", json!("Any"))).await;
    let opened = t.opens_stream([update("w", "")]).await;
    let watch = t.watches().await;
    watch.receives("w", &[(Ready, "")]).await;
    assert_eq!(watch.heard().nodes["w"].as_deref(), Some(""), "it has none");
    let companion = t.companion().await;
    // The same companion serves it everywhere, and that is said again for each Node.
    for node in [t.node("a"), t.node("b")] {
        opened.0.send(Message::WorkloadUpdate(update("w", &node))).await.unwrap();
        watch
            .says("it is about the next Node", |heard| {
                holds(heard.nodes["w"].as_ref() == Some(&node), format!("{:?}", heard.nodes))
            })
            .await;
        watch.receives("w", &[(Ready, "")]).await;
    }
    assert_eq!(t.companion().await.uid(), companion.uid());
}

#[tokio::test]
async fn a_tenant_hears_what_is_wrong_in_words_that_name_nothing_of_the_platform() {
    let o = Outrigger::shared().await;
    let t = Tenant::without_agent(o, "dl-wrong", &[("a", 1), ("b", 0)]).await;
    t.set(json!({"limits": {"companions": 1}})).await.unwrap();
    eventually("the quota is the limit", || async {
        let quotas = o.plane.infra.get(&["-n", &t.namespace, "resourcequota"]).map_err(|e| e.to_string())?;
        let hard = &quotas["items"][0]["status"]["hard"]["pods"];
        holds(hard == "1", hard.to_string())
    })
    .await;
    t.rule("r", rule_for("app", "web")).await;
    let mut workloads = t.on_a(&["first"]);
    let opened = t.opens_stream(workloads.clone()).await;
    let watch = t.watches().await;
    watch.receives("first", &[(Ready, "")]).await;
    workloads.extend([update("elsewhere", "")]);
    workloads.extend(t.on_a(&["second"]));
    opened.0.send(outrigger_tests::stream::sync(workloads)).await.unwrap();
    let refused = watch.receives("second", &[(Refused, "QuotaExceeded")]).await.remove(0);
    assert_eq!(refused.message, Cause::QuotaExceeded.message());
    watch.receives("elsewhere", &[(Pending, "WorkloadNotScheduled")]).await;
    t.set(json!({"limits": {"companions": 9}})).await.unwrap();
    watch.receives("second", &[(Ready, "")]).await;

    opened.0.send(outrigger_tests::stream::sync([update("lonely", &t.node("b"))])).await.unwrap();
    watch.receives("lonely", &[(NoDpu, "NoDPU")]).await;
    let heard = watch.heard();
    let host = |name: &str| (heard.hosts[&t.node(name)].dpu_ready, heard.hosts[&t.node(name)].reason.clone());
    assert_eq!((host("a"), host("b")), ((true, String::new()), (false, "NoDPU".to_owned())));
    // A DPU comes, and its Node's name is the platform's.
    o.plane.infra.apply(&[outrigger_tests::tenant::dpu("dl-wrong-secret-node", &t.node("b"))]).unwrap();
    watch.receives("lonely", &[(Ready, "")]).await;
    watch.says("the host has a DPU", |heard| holds(heard.hosts[&t.node("b")].dpu_ready, "not yet")).await;
    o.plane.infra.cordon("dl-wrong-secret-node", true);
    watch
        .says("its DPU takes no Pods", |heard| {
            let host = &heard.hosts[&t.node("b")];
            holds(!host.dpu_ready && host.reason == "DPUNotReady", format!("{host:?}"))
        })
        .await;
    let log = watch.heard().log;
    for secret in ["secret-node", &t.namespace, "exceeded quota", "untolerated", "a-dpu1"] {
        assert!(!log.contains(secret), "{secret}: {log}");
    }
}

#[tokio::test]
async fn of_a_companion_of_the_platform_a_tenant_hears_only_how_it_is() {
    let o = Outrigger::shared().await;
    let t = Tenant::without_agent(o, "dl-admin", &[("a", 1)]).await;
    let mut spec = rule_for("app", "web");
    spec["tenantSelector"] = json!({"matchExpressions": [
        {"key": keys::TENANT, "operator": "In", "values": [t.id]}]});
    spec["template"]["metadata"]["labels"]["confidential"] = json!("contents");
    let rule = admin_rule("universe", "dl-hidden", spec);
    o.plane.infra.apply(&[rule]).unwrap();
    let _opened = t.opens_stream(t.on_a(&["w"])).await;
    let watch = t.watches().await;
    let companion = watch.receives("w", &[(Ready, "")]).await.remove(0);
    assert_eq!((companion.rule.as_str(), companion.message.as_str()), ("", ""));
    o.plane.infra.kubectl(&["delete", "adminworkloadrule", "-n", "universe", "dl-hidden"]).unwrap();
    watch.receives("w", &[]).await;
    let log = watch.heard().log;
    for secret in ["dl-hidden", "confidential", "contents", "universe"] {
        assert!(!log.contains(secret), "{secret}: {log}");
    }
}

#[tokio::test]
async fn a_workload_waits_for_its_companion_and_says_why() {
    let t = Tenant::without_agent(Outrigger::shared().await, "dl-agent", &[("a", 1)]).await;
    gate::start_agent(&t, &[&t.source], &["--report-companions-after=1s".to_owned()]);
    t.own_rule("fw", held::rule("web", "BeforeReady")).await.unwrap();
    let pod = json!({"metadata": {"name": "w", "labels": {"app": "web"}},
        "spec": {"nodeName": t.node("a"), "containers": [{"name": "c", "image": "i"}]}});
    gate::is_added(&t, &pod).await;
    create(&t.work(), &pod).await.unwrap();
    t.pod_condition("w", keys::COMPANIONS_GATE, Status::False, "Starting").await;
    assert!(!is_ready(&t.work().get("w").await.unwrap()));
    set(&t, true).await;
    t.pod_condition("w", keys::COMPANIONS_GATE, Status::True, "Ready").await;
    until("the workload is ready", &t.work(), "w", |pod| holds(is_ready(&pod), "not yet")).await;
    set(&t, false).await;
    t.pod_condition("w", keys::COMPANIONS_CONDITION, Status::False, "Lost").await;
    set(&t, true).await;
    t.pod_condition("w", keys::COMPANIONS_CONDITION, Status::True, "Ready").await;
}
