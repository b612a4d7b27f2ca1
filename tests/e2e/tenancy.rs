//! Tenants: their namespaces, their DPUs and how those change hands, their limits, and what a Tenant may not be.

use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::{Namespace, Node, Pod, ResourceQuota};
use k8s_openapi::api::rbac::v1::RoleBinding;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, ListParams, PostParams};
use outrigger_api::conditions::Status;
use outrigger_api::{Tenant as Object, WorkloadRule};
use outrigger_core::keys;
use outrigger_proto::v1::workload_stream_request::Message;
use outrigger_tests::outrigger::{Outrigger, tenant_identity};
use outrigger_tests::stream::{set_label, sync, update};
use outrigger_tests::tenant::{
    Tenant, namespace, node_of, rule, rule_for, rule_with, takes_pods, tenant, tenant_is,
};
use outrigger_tests::{InWords, PATIENCE, create, eventually, holds, merge, until};
use serde_json::{Value, json};
use tonic::Code;

/// Whose a Node is: its label, and the values of our taints.
async fn marks(nodes: &Api<Node>, name: &str) -> (Option<String>, Vec<String>, Vec<String>) {
    let node = nodes.get(name).await.unwrap();
    let taints = node.spec.as_ref().and_then(|s| s.taints.clone()).unwrap_or_default();
    let of = |key: &str| -> Vec<String> {
        taints.iter().filter(|t| t.key == key).map(|t| t.value.clone().unwrap_or_default()).collect()
    };
    (node.labels().get(keys::NODE_TENANT).cloned(), of(keys::TENANT), of(keys::HANDOVER))
}

async fn belongs(nodes: &Api<Node>, name: &str, owner: Option<&str>) {
    eventually(&format!("{name} belongs to {owner:?}"), || async {
        let found = marks(nodes, name).await;
        let wanted = owner.map(str::to_owned);
        holds(found == (wanted.clone(), wanted.into_iter().collect(), vec![]), format!("{found:?}"))
    })
    .await;
}

#[tokio::test]
async fn a_tenant_gets_its_namespace_its_limits_and_its_dpus() {
    let o = Outrigger::shared().await;
    let t = Tenant::without_agent(o, "tn-new", &[("a", 2), ("b", 1)]).await;
    t.set(json!({"podSecurity": "restricted", "limits": {"companions": 7, "rules": 3}})).await.unwrap();
    let namespaces: Api<Namespace> = Api::all(t.infra.clone());
    until("the namespace has its level", &namespaces, "tenant-tn-new", |namespace| {
        let labels = namespace.labels();
        if labels.get(keys::POD_SECURITY_ENFORCE).is_some_and(|level| level == "restricted")
            && labels.get(keys::TENANT).is_some_and(|id| id == "tn-new")
        {
            return Ok(());
        }
        Err(format!("{labels:?}"))
    })
    .await;
    let quotas: Api<ResourceQuota> = Api::namespaced(t.infra.clone(), &t.namespace);
    until("the quota has its limits", &quotas, "outrigger", |quota| {
        let hard = serde_json::to_value(quota.spec.unwrap().hard).unwrap();
        let wanted = json!({"pods": "7", "count/workloadrules.workload.universe.nvidia.com": "3",
            "count/resourceclaims.resource.k8s.io": "119"});
        holds(hard == wanted, hard.to_string())
    })
    .await;
    let bindings: Api<RoleBinding> = Api::namespaced(t.infra.clone(), &t.namespace);
    assert_eq!(bindings.get("outrigger-manager").await.unwrap().role_ref.name, "outrigger-manager-tenant");
    let nodes = t.nodes();
    for name in ["a-dpu1", "a-dpu2", "b-dpu1"] {
        belongs(&nodes, &t.node(name), Some("tn-new")).await;
    }
    assert_eq!(t.is("Ready", Status::True, "Served").await, "3 DPUs");
    // What somebody takes away comes back.
    let remove = format!("{}-", keys::TENANT);
    o.plane.infra.kubectl(&["taint", "node", &t.node("a-dpu1"), &remove]).unwrap();
    belongs(&nodes, &t.node("a-dpu1"), Some("tn-new")).await;
    // What a user sees.
    let table = o.plane.infra.kubectl(&["get", "tenant", "tn-new"]).unwrap();
    assert!(
        table
            .starts_with("NAME     NAMESPACE       DPUS   CONNECTED   WORKLOADS   READY   ENFORCEMENT   AGE"),
        "{table}"
    );
    let explained = o.plane.infra.kubectl(&["explain", "tenant.spec.hosts"]).unwrap();
    assert!(explained.contains("A DPU is assigned"), "{explained}");
}

#[tokio::test]
async fn a_namespace_is_adopted_only_when_it_is_labeled_for_that() {
    let o = Outrigger::shared().await;
    let tenants: Api<Object> = Api::all(o.plane.infra.client().await);
    let plain = namespace("tn-there");
    o.plane.infra.apply(&[plain, tenant("tn-adopt", json!({"namespace": "tn-there"}))]).unwrap();
    let message = tenant_is(&tenants, "tn-adopt", "NamespaceReady", Status::False, "NotOurs").await;
    assert!(message.contains("outrigger.dev/tenant=tn-adopt"), "{message}");
    o.plane.infra.kubectl(&["label", "namespace", "tn-there", "outrigger.dev/tenant=tn-adopt"]).unwrap();
    tenant_is(&tenants, "tn-adopt", "Ready", Status::True, "Served").await;
    // It was there before, so it stays, without Pods.
    o.plane.infra.kubectl(&["delete", "tenant", "tn-adopt", "--timeout=60s"]).unwrap();
    o.plane.infra.kubectl(&["get", "namespace", "tn-there"]).unwrap();
    // A manager that doesn't know of the deletion writes a rule that its agent sends. Rules of others stay.
    let rules: Api<WorkloadRule> = Api::namespaced(o.plane.infra.client().await, "tn-there");
    for (name, manager) in [("others", "kubectl-create"), ("late", keys::MANAGER)] {
        let params = PostParams { field_manager: Some(manager.to_owned()), ..PostParams::default() };
        let rule = serde_json::from_value(rule("tn-there", name, rule_for("app", "web"))).unwrap();
        rules.create(&params, &rule).await.unwrap();
    }
    eventually("the manager's rule is deleted", || async {
        let found = rules.get_metadata_opt("late").await.in_words()?;
        holds(found.is_none(), "it is there".to_owned())
    })
    .await;
    assert_eq!(rules.get("others").await.unwrap().metadata.deletion_timestamp, None);
}

/// Other clients insert and remove entries of its lists, in the same request as they change something else.
#[tokio::test]
async fn a_pod_from_before_its_tenant_keeps_what_it_had_wherever_that_stands() {
    let o = Outrigger::shared().await;
    let tenants: Api<Object> = Api::all(o.plane.infra.client().await);
    o.plane.infra.apply(&[namespace("tn-older")]).unwrap();
    takes_pods(&o.plane.infra.client().await, "tn-older").await;
    let pods: Api<Pod> = Api::namespaced(o.plane.infra.client().await, "tn-older");
    let everything = json!({"operator": "Exists", "effect": "NoExecute"});
    let named = |key: &str| json!({"key": key, "operator": "Exists"});
    let old = json!({"metadata": {"name": "old", "finalizers": ["x.example/first", "x.example/hold"]},
        "spec": {"nodeSelector": {"nowhere": "x"}, "hostNetwork": true, "tolerations": [named("a"), everything],
            "containers": [{"name": "c", "image": "i"}]}});
    create(&pods, &old).await.unwrap();
    o.plane.infra.kubectl(&["label", "namespace", "tn-older", "outrigger.dev/tenant=tn-older"]).unwrap();
    o.plane.infra.apply(&[tenant("tn-older", json!({"namespace": "tn-older"}))]).unwrap();
    tenant_is(&tenants, "tn-older", "Ready", Status::True, "Served").await;
    let patch = async |patch: Value| merge(&pods, "old", patch).await.in_words();
    let finalizer = |name: &str| json!({"metadata": {"finalizers": [name, "x.example/hold"], "annotations": {"x": name}}});
    eventually("new finalizers are refused", || async {
        let answer = patch(finalizer("x.example/new")).await;
        holds(answer.as_ref().is_err_and(|error| error.contains("finalizers[0]: is")), format!("{answer:?}"))
    })
    .await;
    patch(json!({"metadata": {"finalizers": ["x.example/hold"], "annotations": {"done": "true"}}}))
        .await
        .unwrap();
    patch(json!({"metadata": {"finalizers": ["batch.kubernetes.io/job-tracking", "x.example/hold"]}}))
        .await
        .unwrap();
    let tolerations =
        async |tolerations: &[Value]| patch(json!({"spec": {"tolerations": tolerations}})).await;
    // The API server has added two, which have to stay.
    let stored = serde_json::to_value(pods.get("old").await.unwrap()).unwrap();
    let all = stored["spec"]["tolerations"].as_array().unwrap().clone();
    let refused = tolerations(&[&all[..], &[everything]].concat()).await.unwrap_err();
    assert!(refused.contains("has no key"), "{refused}");
    tolerations(&[&[named("b")], &all[..]].concat()).await.unwrap();
    patch(json!({"metadata": {"finalizers": null}})).await.unwrap();
    o.plane.infra.kubectl(&["delete", "tenant", "tn-older", "--timeout=60s"]).unwrap();
}

#[tokio::test]
async fn a_dpu_changes_hands_only_when_the_former_tenants_pods_are_gone() {
    let o = Outrigger::shared().await;
    let red = Tenant::new(o, "ho-red", &[("a", 1)]).await;
    let blue = Tenant::without_agent(o, "ho-blue", &[]).await;
    let (host, node) = (red.node("a"), red.node("a-dpu1"));
    let nodes = red.nodes();
    // A companion that takes its time to go.
    red.rule(
        "slow",
        rule_with("/template/metadata/annotations", json!({"pod-delete.stage.kwok.x-k8s.io/delay": "4s"})),
    )
    .await;
    red.web("w").await;
    assert_eq!(node_of(&red.companion().await), node);

    // The new tenant can't claim the host before the former one has let it go.
    let error = blue.set(json!({"hosts": [host]})).await.unwrap_err();
    assert!(error.contains("spec.hosts[0]") && error.contains("\"ho-red\""), "{error}");
    red.set(json!({"hosts": []})).await.unwrap();
    eventually("the host can be claimed", || blue.set(json!({"hosts": [host]}))).await;
    // The new tenant's Pod waits for the DPU.
    blue.rule(
        "next",
        json!({"dpuSelectionPolicy": "Any", "template": outrigger_tests::tenant::template(),
        "workloadTerms": [{"matchExpressions": [{"key": ".metadata.resourceName", "operator": "Exists"}]}]}),
    )
    .await;
    let (_sender, _call) = blue.opens_stream([update("x", "nowhere")]).await;

    // From here on: never both. Read in this order a Pod that goes is seen no later than the label that comes.
    let on_node = async |t: &Tenant| -> usize {
        let params = ListParams::default().fields(&format!("spec.nodeName={node}"));
        t.pods().list(&params).await.unwrap().items.len()
    };
    let (mut cordoned, mut nobodys, began) = (false, false, Instant::now());
    loop {
        let before = marks(&nodes, &node).await;
        let (reds, blues) = (on_node(&red).await, on_node(&blue).await);
        assert!(reds == 0 || blues == 0, "both run there");
        if marks(&nodes, &node).await != before {
            // It moved on while we looked: what was seen belongs to neither state.
            continue;
        }
        let (owner, taints, handover) = before;
        match owner.as_deref() {
            Some("ho-red") => assert!(blues == 0 && taints == ["ho-red"]),
            Some("ho-blue") => assert!(reds == 0 && taints == ["ho-blue"]),
            _ => assert!(reds == 0 && blues == 0 && taints == ["ho-red"]),
        }
        cordoned |= owner.as_deref() == Some("ho-red") && !handover.is_empty() && reds > 0;
        nobodys |= owner.is_none();
        if owner.as_deref() == Some("ho-blue") && blues > 0 {
            break;
        }
        assert!(began.elapsed() < PATIENCE, "{owner:?} {handover:?} {reds} {blues}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(cordoned, "it waited for the Pod that took its time");
    assert!(nobodys, "no tenant owns it in between");
    belongs(&nodes, &node, Some("ho-blue")).await;
    assert_eq!(node_of(&blue.companion().await), node);
    assert!(red.is("Ready", Status::True, "Served").await.starts_with("0 DPUs"));
}

#[tokio::test]
async fn a_dpu_is_given_back_whatever_its_pods_hold() {
    let t = Tenant::without_agent(Outrigger::shared().await, "ho-hold", &[("a", 1)]).await;
    let nodes = t.nodes();
    let pod = |name: &str, metadata: Value, grace: i64| {
        let mut pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata,
            "spec": {"terminationGracePeriodSeconds": grace, "containers": [{"name": "c", "image": "i"}]}});
        pod["metadata"]["name"] = json!(name);
        serde_json::from_value(pod).unwrap()
    };
    let params = PostParams::default();
    // One whose finalizer nobody takes off, and one that wants ten years.
    let held = json!({"finalizers": ["batch.kubernetes.io/job-tracking"]});
    let slow = json!({"annotations": {"pod-delete.stage.kwok.x-k8s.io/delay": "5s"}});
    t.pods().create(&params, &pod("held", held, 30)).await.unwrap();
    t.pods().create(&params, &pod("slow", slow, 315_360_000)).await.unwrap();
    eventually("both run there", || async {
        let all = t.pods().list(&ListParams::default()).await.in_words()?.items;
        let there = all.iter().filter(|pod| node_of(pod) == t.node("a-dpu1")).count();
        holds(there == 2, format!("{there}"))
    })
    .await;
    t.set(json!({"hosts": []})).await.unwrap();
    eventually("it is given less time", || async {
        let slow = t.pods().get("slow").await.in_words()?.metadata;
        match slow.deletion_grace_period_seconds {
            Some(left) if left <= 300 => Ok(()),
            left => Err(format!("{left:?}")),
        }
    })
    .await;
    belongs(&nodes, &t.node("a-dpu1"), None).await;
}

#[tokio::test]
async fn taints_of_others_survive() {
    let o = Outrigger::shared().await;
    let t = Tenant::without_agent(o, "tn-taint", &[("a", 1)]).await;
    let nodes = t.nodes();
    let (host, node) = (t.node("a"), t.node("a-dpu1"));
    o.plane.infra.kubectl(&["taint", "node", &node, "example.com/mine=x:NoExecute"]).unwrap();
    // The node lifecycle controller adds and removes a taint of its own with each of these.
    let (plane, name) = (&o.plane, node.clone());
    let cordoning = async {
        for cordoned in [true, false, true, false, true] {
            plane.infra.cordon(&name, cordoned);
            tokio::time::sleep(Duration::from_millis(400)).await;
        }
    };
    let moving = async {
        t.set(json!({"hosts": []})).await.unwrap();
        belongs(&nodes, &node, None).await;
        t.set(json!({"hosts": [host]})).await.unwrap();
        belongs(&nodes, &node, Some("tn-taint")).await;
    };
    tokio::join!(cordoning, moving);
    eventually("the taints of all owners are there", || async {
        let taints = nodes.get(&node).await.in_words()?.spec.unwrap().taints.unwrap_or_default();
        let mut keys: Vec<&str> = taints.iter().map(|t| t.key.as_str()).collect();
        keys.sort_unstable();
        let wanted = ["example.com/mine", "node.kubernetes.io/unschedulable", keys::TENANT];
        holds(keys == wanted, format!("{keys:?}"))
    })
    .await;
}

#[tokio::test]
async fn a_deleted_tenant_gives_everything_back() {
    let t = Tenant::with_rule_only(Outrigger::shared().await, "tn-gone").await;
    let (_sender, call) = t.opens_stream(t.on_a(&["w"])).await;
    t.companion().await;
    t.object().delete("tn-gone", &DeleteParams::default()).await.unwrap();
    let status = call.await.unwrap().unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition, "{status}");
    let nodes = t.nodes();
    belongs(&nodes, &t.node("a-dpu1"), None).await;
    eventually("all of it is gone", || async {
        let namespaces: Api<Namespace> = Api::all(t.infra.clone());
        let left = namespaces.get_opt("tenant-tn-gone").await.in_words()?.is_some();
        let tenant = t.object().get_opt("tn-gone").await.in_words()?;
        if left || tenant.is_some() { Err(format!("{left} {tenant:?}")) } else { Ok(()) }
    })
    .await;
}

#[tokio::test]
async fn what_a_tenant_may_not_be_is_refused_with_its_path() {
    let o = Outrigger::shared().await;
    let _t = Tenant::without_agent(o, "bad-one", &[("a", 0)]).await;
    let long = "x".repeat(57);
    let apply =
        |name: &str, spec: Value| o.plane.infra.apply(&[tenant(name, spec)]).err().map(|e| e.to_string());
    let mine = tenant_identity("bad-one");
    for (name, spec, path, words) in [
        (long.as_str(), json!({}), "metadata.name", "56"),
        ("Bad_Two", json!({}), "metadata.name", "RFC 1123"),
        ("bad.two", json!({}), "metadata.name", "DNS label"),
        ("bad-two", json!({"namespace": "tenant-bad-one"}), "spec.namespace", "\"bad-one\""),
        ("bad-two", json!({"namespace": "kube-system"}), "spec.namespace", "reserved for Kubernetes"),
        ("bad-two", json!({"namespace": "No"}), "spec.namespace", "not a namespace name"),
        ("bad-two", json!({"identities": ["spiffe://x/y", "spiffe://x/y"]}), "spec.identities", "uplicate"),
        ("bad-two", json!({"identities": ["spiffe://x"]}), "spec.identities[0]", "TRUST-DOMAIN/PATH"),
        ("bad-two", json!({"identities": ["*.example.com"]}), "spec.identities[0]", "wildcard"),
        ("bad-two", json!({"identities": ["spiffe://x/y", mine]}), "spec.identities[1]", "\"bad-one\""),
        ("bad-two", json!({"hosts": ["h", "h"]}), "spec.hosts", "uplicate"),
        ("bad-two", json!({"hosts": ["h", "bad-one-a"]}), "spec.hosts[1]", "\"bad-one\""),
        ("bad-two", json!({"hosts": ["Host"]}), "spec.hosts[0]", "not a name"),
        ("bad-two", json!({"podSecurity": "loose"}), "spec.podSecurity", "baseline"),
        ("bad-two", json!({"limits": {"rules": -1}}), "spec.limits.rules", "0"),
        ("bad-two", json!({"deviceClasses": ["warp-drive"]}), "spec.deviceClasses[0]", "no such DeviceClass"),
        ("bad-one", json!({"namespace": "elsewhere"}), "spec.namespace", "is immutable"),
    ] {
        let error = eventually("the webhook knows the first tenant", || async {
            apply(name, spec.clone()).ok_or(format!("{name} {spec} was taken"))
        })
        .await;
        assert!(error.contains(path) && error.contains(words), "{name} {spec}: {error}");
    }
}

#[tokio::test]
async fn limits_are_enforced_and_reported() {
    let o = Outrigger::shared().await;
    let t = Tenant::without_agent(o, "tn-limit", &[("a", 1)]).await;
    t.set(json!({"limits": {"companions": 2, "rules": 1, "workloads": 3, "workloadBytes": 1000}}))
        .await
        .unwrap();
    let quotas: Api<ResourceQuota> = Api::namespaced(t.infra.clone(), &t.namespace);
    eventually("the quota counts", || async {
        let hard = quotas.get("outrigger").await.in_words()?.status.unwrap_or_default().hard;
        holds(hard.unwrap_or_default().get("pods").is_some_and(|q| q.0 == "2"), "not yet")
    })
    .await;
    t.rule("r", rule_for("app", "web")).await;
    let (sender, call) = t.opens_stream(t.on_a(&["w0", "w1", "w2"])).await;
    // Companions and rules: the quota says no, the rule and the Tenant say so.
    t.condition_says("r", "Ready", Status::False, "Refused", &["exceeded quota"]).await;
    t.reaches_limits(&["spec.limits.companions: 2 of 2", "spec.limits.rules: 1 of 1"]).await;
    let rule = rule(&t.namespace, "another", rule_for("app", "other"));
    let error = o.plane.infra.apply(&[rule]).unwrap_err().to_string();
    assert!(error.contains("exceeded quota"), "{error}");
    // Workloads: the stream ends with the reason, and what was there stays.
    sender.send(Message::WorkloadUpdate(update("w3", &t.node("a")))).await.unwrap();
    let status = call.await.unwrap().unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted);
    assert_eq!(status.message(), "Tenant spec.limits.workloads: 4 would be used, at most 3 are allowed");
    t.reaches_limits(&["spec.limits.workloads: 4 would be used"]).await;
    assert_eq!(t.companions().await.unwrap().len(), 2);
    // One that has no room is refused alone: the stream goes on, and its agent is asked to send it again when there is room.
    let large = update(&"w".repeat(250), &"n".repeat(900));
    let (sender, call) = t.opens_stream([large]).await;
    t.reaches_limits(&["1 workload is not served", "spec.limits.workloadBytes"]).await;
    t.condition_says("r", "Synced", Status::False, "LimitReached", &["1 workload is not served"]).await;
    sender.send(Message::WorkloadUpdate(update("w0", &t.node("a")))).await.unwrap();
    t.condition_says("r", "Matched", Status::True, "Matches", &["1 of 1 known"]).await;
    // More is allowed: the next sync is taken, and the conditions follow.
    t.set(json!({"limits": {"companions": 10, "rules": 10, "workloads": 10, "workloadBytes": 10000}}))
        .await
        .unwrap();
    let status = call.await.unwrap().unwrap_err();
    assert_eq!(status.code(), Code::Unavailable, "{status}");
    let (sender, _call) = t.opens_stream([]).await;
    sender.send(sync(t.on_a(&["w0", "w1", "w2", "w3"]))).await.unwrap();
    t.is("WithinLimits", Status::True, "Within").await;
}

#[tokio::test]
async fn a_flood_of_one_tenant_leaves_the_other_served() {
    let o = Outrigger::shared().await;
    let loud = Tenant::without_agent(o, "fl-loud", &[("a", 1)]).await;
    let quiet = Tenant::without_agent(o, "fl-quiet", &[("a", 1)]).await;
    for tenant in [&loud, &quiet] {
        tenant.rule("r", rule_for("app", "web")).await;
    }
    let ((shout, shouting), (say, _saying)) = (loud.opens_stream([]).await, quiet.opens_stream([]).await);
    // As fast as it is let: facts of companions that change all the time, each of them a write.
    let node = loud.node("a");
    let flood = tokio::spawn(async move {
        for round in 0.. {
            for i in 0..50 {
                let mut update = update(&format!("w{i}"), &node);
                set_label(&mut update, "version", &round.to_string());
                if shout.send(Message::WorkloadUpdate(update)).await.is_err() {
                    return;
                }
            }
        }
    });
    eventually("the flood is under way", || async {
        let n = loud.companions().await?.len();
        holds(n == 50, n.to_string())
    })
    .await;
    for i in 0..10 {
        say.send(Message::WorkloadUpdate(update(&format!("x{i}"), &quiet.node("a")))).await.unwrap();
    }
    quiet.ready(10).await;
    assert!(!flood.is_finished() && !shouting.is_finished(), "it is slowed down and not closed");
    flood.abort();
}
