//! A companion's life, row by row of the life cycle that the README describes.

use std::time::Duration;

use kube::ResourceExt;
use kube::api::{Api, DeleteParams};
use outrigger_api::conditions::Status;
use outrigger_core::keys;
use outrigger_core::workload::Workload;
use outrigger_tests::outrigger::Outrigger;
use outrigger_tests::tenant::{Tenant, annotation, is_ready, node_of, rule_for, rule_with, template};
use outrigger_tests::{InWords, always, create, eventually, holds, merge, merge_status};
use serde_json::json;

#[tokio::test]
async fn a_workload_that_matches_gets_a_companion_on_a_dpu_of_its_host() {
    let t = Tenant::new(Outrigger::shared().await, "create", &[("a", 2), ("b", 1)]).await;
    let rule = t.rule("rule1", rule_for("app", "web")).await;
    t.start("other", "a", json!({"app": "db"})).await;
    let work = t.web("web").await;
    let c = t.companion().await;

    assert!(node_of(&c).starts_with(&t.node("a-dpu")), "on {}", node_of(&c));
    assert_eq!(annotation(&c, "workload-name"), Some("web"));
    assert_eq!(annotation(&c, "tenant-node-name"), Some(t.node("a").as_str()));
    assert_eq!(annotation(&c, "version"), None, "a fact that the workload lacks is not injected");
    assert_eq!(annotation(&c, keys::WORKLOAD), None, "the transport is taken out");
    let whole: Workload = serde_json::from_str(annotation(&c, "entire-workload").unwrap()).unwrap();
    assert_eq!(whole.id.as_str(), work.uid().unwrap());
    assert_eq!((whole.resource_name.as_str(), whole.resource_namespace.as_str()), ("web", t.source.as_str()));

    let owner = &c.owner_references()[0];
    assert_eq!((owner.name.as_str(), &owner.uid), ("rule1", &rule.uid().unwrap()));
    assert_eq!(c.labels()[keys::TENANT], "create");
    assert_eq!(c.labels()["app"], "companion");
    assert!(c.spec.as_ref().unwrap().scheduling_gates.is_none());

    t.condition("rule1", "Accepted", Status::True, "Valid").await;
    t.condition("rule1", "Synced", Status::True, "StreamConnected").await;
    t.condition("rule1", "Ready", Status::True, "AllReady").await;
    let status = t.rules().get("rule1").await.unwrap().status.unwrap();
    assert_eq!((status.matched, status.created, status.ready), (Some(1), Some(1), Some(1)));
    assert_eq!(status.observed_generation, rule.metadata.generation);
}

#[tokio::test]
async fn a_companion_for_the_primary_dpu_waits_for_it_and_takes_no_other() {
    let t = Tenant::new(Outrigger::shared().await, "primary", &[("a", 2)]).await;
    let mut spec = rule_for("app", "web");
    spec["dpuSelectionPolicy"] = json!("SameNodePrimary");
    t.rule("r", spec).await;
    let workloads = ["w1", "w2", "w3"];
    for name in workloads {
        t.web(name).await;
    }
    let label = format!("no DPU has node affinity {} In [true]", keys::PRIMARY);
    t.condition_says("r", "Ready", Status::False, "NoMatchingDPU", &[&label]).await;
    let primary = format!("{}-dpu2", t.node("a"));
    let labelled = json!({"metadata": {"labels": {(keys::PRIMARY): "true"}}});
    t.outrigger.plane.infra.patch(&format!("node/{primary}"), &[], &labelled).unwrap();
    for companion in t.ready(workloads.len()).await {
        assert_eq!(node_of(&companion), primary);
    }
    t.condition("r", "Ready", Status::True, "AllReady").await;
}

#[tokio::test]
async fn a_rule_that_comes_later_serves_what_runs_already() {
    let t = Tenant::new(Outrigger::shared().await, "later", &[("a", 1), ("b", 1)]).await;
    t.web("w1").await;
    t.start("w2", "b", json!({"app": "web"})).await;
    t.rule("r", rule_for("app", "web")).await;
    let mut companions = t.ready(2).await;
    companions.sort_by_key(|c| annotation(c, "workload-name").map(str::to_owned));
    assert_eq!(node_of(&companions[0]), t.node("a-dpu1"));
    assert_eq!(node_of(&companions[1]), t.node("b-dpu1"));
}

#[tokio::test]
async fn it_goes_when_the_workload_goes_or_no_longer_matches_or_has_ended() {
    let t = Tenant::with_rule(Outrigger::shared().await, "goes").await;
    for name in ["deleted", "relabelled", "ended"] {
        t.web(name).await;
    }
    t.ready(3).await;
    t.end("deleted").await;
    t.ready(2).await;
    t.change("relabelled", json!({"metadata": {"labels": {"app": "db"}}})).await;
    t.ready(1).await;
    merge_status(&t.work(), "ended", json!({"phase": "Succeeded"})).await.unwrap();
    t.ready(0).await;
    t.condition("r", "Matched", Status::False, "NoMatch").await;
}

#[tokio::test]
async fn a_changed_fact_is_patched_in_place() {
    let t = Tenant::with_rule(Outrigger::shared().await, "facts").await;
    t.start("w", "a", json!({"app": "web", "version": "1"})).await;
    let before = t.companion().await;
    let version = |wanted: Option<&'static str>| {
        let t = &t;
        eventually("the fact has changed", move || async move {
            let c = t.companion().await;
            let is = annotation(&c, "version");
            if is == wanted { Ok(c) } else { Err(format!("{is:?}")) }
        })
    };
    version(Some("1")).await;
    t.change("w", json!({"metadata": {"labels": {"version": "2"}}})).await;
    version(Some("2")).await;
    t.change("w", json!({"metadata": {"labels": {"version": null}}})).await;
    let after = version(None).await;
    assert_eq!(before.uid(), after.uid(), "the same Pod");
    // An injection that the rule no longer asks for is taken away, in place too.
    t.rule("r", rule_with("/workloadInfoInject", json!([]))).await;
    eventually("the facts are gone", || async {
        let c = t.companion().await;
        holds(annotation(&c, "entire-workload").is_none() && c.uid() == before.uid(), "there")
    })
    .await;
}

#[tokio::test]
async fn a_changed_template_replaces_it_one_at_a_time() {
    let (t, before) = Tenant::with_companion(Outrigger::shared().await, "template").await;
    t.rule("r", rule_with("/template/spec/containers/0/image", json!("newer"))).await;
    let after = t.replaced(&before).await;
    assert_eq!(after.name_any(), before.name_any(), "one name, one companion");
    assert_eq!(after.spec.unwrap().containers[0].image.as_deref(), Some("newer"));
}

#[tokio::test]
async fn a_deleted_rule_takes_its_companions_along_and_a_recreated_one_brings_new_ones() {
    let (t, before) = Tenant::with_companion(Outrigger::shared().await, "rulegone").await;
    t.rules().delete("r", &DeleteParams::default()).await.unwrap();
    t.ready(0).await;
    t.rule("r", rule_for("app", "web")).await;
    assert_ne!(t.companion().await.uid(), before.uid());
}

#[tokio::test]
async fn a_companion_that_was_deleted_or_has_failed_is_made_again() {
    let t = Tenant::with_rule(Outrigger::shared().await, "again").await;
    t.web("w").await;
    let first = t.companion().await;
    t.pods().delete(&first.name_any(), &DeleteParams::default()).await.unwrap();
    let second = t.replaced(&first).await;
    let failed =
        json!({"phase": "Failed", "reason": "Evicted", "conditions": [{"type": "Ready", "status": "False"}]});
    merge_status(&t.pods(), &second.name_any(), failed).await.unwrap();
    t.replaced(&second).await;
}

#[tokio::test]
async fn any_needs_no_node_and_takes_any_dpu_of_the_tenant() {
    let t = Tenant::new(Outrigger::shared().await, "anydpu", &[("a", 1)]).await;
    t.rule("any", rule_with("/dpuSelectionPolicy", json!("Any"))).await;
    t.rule("same", rule_for("app", "web")).await;
    // One Pod that a queue holds back, and one that no scheduler places.
    for (name, gates) in [("queued", json!([{"name": "example.com/queue"}])), ("unbound", json!([]))] {
        let pod = json!({"metadata": {"name": name, "labels": {"app": "web"}}, "spec": {"schedulerName": "nobody",
            "schedulingGates": gates, "containers": [{"name": "c", "image": "i"}]}});
        create(&t.work(), &pod).await.unwrap();
    }
    let c = t.companion().await;
    assert_eq!(c.owner_references()[0].name, "any", "SameNode waits for the node");
    assert_eq!(node_of(&c), t.node("a-dpu1"));
    let unbound = t.work().get("unbound").await.unwrap().uid();
    assert_eq!(
        c.labels().get(keys::WORKLOAD),
        unbound.as_ref(),
        "the queue decides when the other one is due"
    );
    merge(&t.work(), "queued", json!({"spec": {"schedulingGates": null}})).await.unwrap();
    t.ready(2).await;
}

#[tokio::test]
async fn a_host_without_dpu_leaves_it_pending_and_the_rule_says_why() {
    let t = Tenant::new(Outrigger::shared().await, "nodpu", &[("a", 1), ("bare", 0)]).await;
    t.rule("r", rule_for("app", "web")).await;
    t.start("w", "bare", json!({"app": "web"})).await;
    let message = t.condition("r", "Ready", Status::False, "NoDPU").await;
    let host = t.node("bare");
    assert!(message.contains("0 of 1") && message.contains(&format!("is in host {host}")), "{message}");
    let all = t.companions().await.unwrap();
    assert!(all.len() == 1 && !is_ready(&all[0]));
}

#[tokio::test]
async fn a_lost_stream_keeps_everything_and_the_next_sync_repairs() {
    let t = Tenant::with_rule(Outrigger::shared().await, "lost").await;
    t.web("w1").await;
    t.web("w2").await;
    t.ready(2).await;
    let plane = &t.outrigger.plane;
    plane.command("stop agent-lost").unwrap();
    t.condition_says("r", "Synced", Status::Unknown, "StreamLost", &["since"]).await;
    t.end("w1").await;
    t.web("w3").await;
    always("both companions stay", Duration::from_secs(1), || async {
        let n = t.companions().await?.len();
        holds(n == 2, format!("{n} companions"))
    })
    .await;
    plane.command("start agent-lost").unwrap();
    t.serves(&["w2", "w3"]).await;
    t.ready(2).await;
    t.condition("r", "Synced", Status::True, "StreamConnected").await;
}

#[tokio::test]
async fn a_refusal_by_quota_is_reported_and_tried_again() {
    let t = Tenant::new(Outrigger::shared().await, "quota", &[("a", 1)]).await;
    let quota = json!({"apiVersion": "v1", "kind": "ResourceQuota",
        "metadata": {"name": "q", "namespace": t.namespace}, "spec": {"hard": {"pods": "1"}}});
    t.outrigger.plane.infra.apply(&[quota]).unwrap();
    let quotas: Api<k8s_openapi::api::core::v1::ResourceQuota> =
        Api::namespaced(t.infra.clone(), &t.namespace);
    eventually("the quota counts", || async {
        let status = quotas.get("q").await.in_words()?.status.unwrap_or_default();
        holds(status.hard.is_some(), "no status")
    })
    .await;
    t.rule("r", rule_for("app", "web")).await;
    t.web("w1").await;
    t.companion().await;
    t.web("w2").await;
    t.condition_says("r", "Ready", Status::False, "Refused", &["exceeded quota"]).await;
    let note = t.event("CompanionRefused").await;
    assert!(note.contains("exceeded quota"), "{note}");
    assert_eq!(t.companions().await.unwrap().len(), 1);
    // A new generation of the rule is tried at once; the quota has grown meanwhile.
    let more = json!({"spec": {"hard": {"pods": "5"}}});
    merge(&quotas, "q", more).await.unwrap();
    t.rule("r", rule_with("/workloadInfoInject", json!([]))).await;
    t.ready(2).await;
    t.condition("r", "Ready", Status::True, "AllReady").await;
}

#[tokio::test]
async fn a_template_that_the_api_server_refuses_is_reported_with_its_path() {
    let t = Tenant::new(Outrigger::shared().await, "badtmpl", &[("a", 1)]).await;
    t.rule("r", rule_with("/template/spec/containers/0/imagePullPolicy", json!("Perhaps"))).await;
    t.web("w").await;
    let path = "spec.template.spec.containers[0].imagePullPolicy";
    t.condition_says("r", "Ready", Status::False, "Refused", &[path]).await;
    t.condition_says("r", "Accepted", Status::False, "Refused", &[path]).await;
    // Mended, it is made.
    t.rule("r", rule_for("app", "web")).await;
    t.companion().await;
}

#[tokio::test]
async fn a_rule_that_is_wrong_says_where_and_keeps_its_companions() {
    let (t, before) = Tenant::with_companion(Outrigger::shared().await, "badrule").await;
    let mut spec = rule_for("app", "web");
    spec["workloadTerms"][0]["matchExpressions"] = json!([
        {"key": ".spec.nodeName", "operator": "Exists"},
        {"key": ".state.ready", "operator": "Gt", "values": ["x"]}]);
    spec["template"]["spec"] = json!({"nodeName": "x"});
    let parts = [
        "spec.workloadTerms[0].matchExpressions[0].key: \".spec.nodeName\"",
        "spec.workloadTerms[0].matchExpressions[1].values[0]: \"x\"",
        "spec.template.spec.nodeName",
        "spec.template.spec.containers",
    ];
    let error = t.try_rule("r", spec.clone()).await.unwrap_err();
    for part in parts {
        assert!(error.contains(part), "{part} is not in: {error}");
    }
    // One that got in while the webhook was away.
    let selector = json!({"matchExpressions": [
        {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": [t.namespace]}]});
    let patch = json!([{"op": "add", "path": "/webhooks/2/namespaceSelector", "value": selector}]);
    t.outrigger.plane.infra.patch("validatingwebhookconfiguration/outrigger", &[], &patch).unwrap();
    eventually("nobody checks rules there", || t.try_rule("r", spec.clone())).await;
    let message = t.condition("r", "Accepted", Status::False, "Invalid").await;
    for part in parts {
        assert!(message.contains(part), "{part} is not in: {message}");
    }
    always("the companion stays", Duration::from_millis(500), || async {
        let all = t.companions().await?;
        holds(all.len() == 1 && all[0].uid() == before.uid(), format!("{} companions", all.len()))
    })
    .await;
}

#[tokio::test]
async fn facts_that_are_too_large_are_reported_with_both_sizes() {
    let t = Tenant::new(Outrigger::shared().await, "large", &[("a", 1)]).await;
    let mut spec = rule_for("app", "web");
    let big = ".state.extra.annotations.big";
    spec["workloadInfoInject"] =
        json!([{"workloadKey": big, "asAnnotation": {"name": "one"}}, {"asAnnotation": {"name": "two"}}]);
    t.own_rule("r", spec).await.unwrap();
    let pod = json!({"metadata": {"name": "w", "labels": {"app": "web"}, "annotations": {"big": "x".repeat(140_000)}},
        "spec": {"nodeName": t.node("a"), "containers": [{"name": "c", "image": "i"}]}});
    create(&t.work(), &pod).await.unwrap();
    let message = t.condition("r", "Ready", Status::False, "Refused").await;
    assert!(message.contains("at most 262144") && message.contains("bytes"), "{message}");
    assert!(t.companions().await.unwrap().is_empty());
}

#[tokio::test]
async fn a_template_keeps_fields_and_selectors_of_its_own() {
    let t = Tenant::new(Outrigger::shared().await, "keeps", &[("a", 2)]).await;
    t.outrigger.plane.infra.kubectl(&["label", "node", &t.node("a-dpu2"), "flavour=fast"]).unwrap();
    let mut spec = rule_for("app", "web");
    let mut pod = template();
    pod["spec"]["nodeSelector"] = json!({"flavour": "fast"});
    pod["spec"]["affinity"] = json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution":
        {"nodeSelectorTerms": [
            {"matchExpressions": [{"key": "flavour", "operator": "In", "values": ["slow"]}]},
            {"matchExpressions": [{"key": "flavour", "operator": "In", "values": ["fast"]}]}]}}});
    pod["spec"]["tolerations"] = json!([{"key": "mine", "operator": "Exists"}]);
    spec["template"] = pod;
    t.rule("r", spec).await;
    t.web("w").await;
    let c = t.companion().await;
    assert_eq!(node_of(&c), t.node("a-dpu2"));
    let spec = serde_json::to_value(c.spec.unwrap()).unwrap();
    let terms = &spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"];
    // One term for each label that may name the host.
    for (i, term) in terms.as_array().unwrap().iter().enumerate() {
        let keys: Vec<_> =
            term["matchExpressions"].as_array().unwrap().iter().map(|e| e["key"].as_str().unwrap()).collect();
        let host = [&[keys::DPU_NODE_NAME][..], &[keys::DPU_NODE_NAME, keys::DPU_HOST]][i % 2];
        assert_eq!(keys, [&["flavour"], host, &[keys::NODE_TENANT]].concat());
    }
    assert_eq!(terms.as_array().map(Vec::len), Some(4));
    assert_eq!(spec["tolerations"][0], json!({"key": "mine", "operator": "Exists"}));
}
