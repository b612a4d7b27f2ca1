//! Offloading: NamespaceOffloadings, virtual nodes, and where the Pods of a namespace land. Names of Nodes begin with the
//! namespace's.

use std::process::Command;
use std::time::Duration;

use kube::ResourceExt;
use kube::api::{DeleteParams, ListParams};
use outrigger_api::NamespaceOffloading;
use outrigger_core::keys;
use outrigger_runtime::ready::Readiness;
use outrigger_runtime::watch::{Event, Watch};
use outrigger_tests::outrigger::Outrigger;
use outrigger_tests::shipped::fed;
use outrigger_tests::tenant::{Tenant, event, node_of};
use outrigger_tests::{InWords, always, create, dry_run, eventually, holds, is_gone, merge, until};
use serde_json::{Value, json};

pub(crate) mod stage;

use stage::*;

#[tokio::test]
async fn remote_runs_on_selected_virtual_nodes_only() {
    let s = Stage::new("off-remote").await;
    s.ask("Remote", true).unwrap();
    s.label(Some("true")).await;
    s.terms(1).await;
    s.deploy("any", 3, None);
    s.deploy("here", 1, Some("local"));
    s.deploy("there", 1, Some("eu"));
    assert_eq!(s.landed("any", 3).await, ["us", "us", "us"]);
    s.pending("here").await;
    s.pending("there").await;
    // A bare Pod too.
    let bare = pod("bare", json!({"nodeSelector": {"stage": s.name}}));
    create(&s.pods(), &bare).await.unwrap();
    until("it lands", &s.pods(), "bare", |pod| {
        holds(node_of(&pod) == s.node("us"), node_of(&pod).to_owned())
    })
    .await;
}

#[tokio::test]
async fn local_and_remote_runs_on_local_nodes_and_selected_virtual_ones() {
    let s = Stage::new("off-both").await;
    s.ask("LocalAndRemote", true).unwrap();
    s.terms(2).await;
    s.deploy("any", 4, None);
    s.deploy("here", 1, Some("local"));
    s.deploy("selected", 1, Some("us"));
    s.deploy("there", 1, Some("eu"));
    assert!(s.landed("any", 4).await.iter().all(|region| region != "eu"));
    assert_eq!(s.landed("here", 1).await, ["local"]);
    assert_eq!(s.landed("selected", 1).await, ["us"]);
    s.pending("there").await;
    // Without a selector every virtual node will do, and the affinity is left alone.
    s.ask("LocalAndRemote", false).unwrap();
    s.terms(0).await;
    s.tolerated(true).await;
    s.deploy("anywhere", 1, Some("eu"));
    assert_eq!(s.landed("anywhere", 1).await, ["eu"]);
}

#[tokio::test]
async fn local_runs_as_if_there_were_no_virtual_nodes() {
    let s = Stage::new("off-local").await;
    s.ask("Local", true).unwrap();
    s.phase("NoClusterSelected").await;
    s.label(None).await;
    s.deploy("any", 2, None);
    s.deploy("there", 1, Some("us"));
    assert_eq!(s.landed("any", 2).await, ["local", "local"]);
    s.pending("there").await;
    let left = s.admitted().await.unwrap();
    assert!(!tolerates(&left) && left["spec"].get("affinity").is_none(), "{left}");
    let object = s.objects().get("offloading").await.unwrap();
    assert!(object.finalizers().is_empty(), "there is nothing to take off");
}

#[tokio::test]
async fn a_daemonset_keeps_each_pod_on_its_own_node() {
    let s = Stage::new("off-daemon").await;
    s.ask("LocalAndRemote", true).unwrap();
    s.terms(2).await;
    let daemons = json!({"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "d", "namespace": s.name},
        "spec": {"selector": {"matchLabels": {"app": "d"}}, "template": {"metadata": {"labels": {"app": "d"}},
            "spec": {"nodeSelector": {"stage": s.name}, "containers": [{"name": "c", "image": "i"}],
                "tolerations": [{"key": keys::NOT_ALLOWED, "operator": "Exists"}]}}}});
    s.outrigger.plane.infra.apply(&[daemons]).unwrap();
    // The one for eu waits: its node is not selected, and it may go to no other.
    let mut regions = s.landed("d", 2).await;
    regions.sort_unstable();
    assert_eq!(regions, ["local", "us"]);
    s.outrigger.plane.infra.kubectl(&["label", "node", &s.node("eu"), "region=us", "--overwrite"]).unwrap();
    let mut regions = s.landed("d", 3).await;
    regions.sort_unstable();
    assert_eq!(regions, ["eu", "local", "us"]);
    let all = s.pods().list(&ListParams::default().labels("app=d")).await.unwrap().items;
    for pod in all {
        let node = node_of(&pod).to_owned();
        let spec = serde_json::to_value(pod).unwrap();
        let pin = json!([{"key": "metadata.name", "operator": "In", "values": [node]}]);
        for term in spec.pointer(REQUIRED).unwrap().as_array().unwrap() {
            assert_eq!(term["matchFields"], pin);
        }
    }
}

#[tokio::test]
async fn pods_of_the_exempt_runtime_class_are_left_alone() {
    let s = Stage::new("off-exempt").await;
    let class = json!({"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "liqo"}, "handler": "h"});
    s.outrigger.plane.infra.apply(&[class]).unwrap();
    s.ask("Remote", true).unwrap();
    s.terms(1).await;
    let exempt = pod("exempt", json!({"runtimeClassName": "liqo", "nodeSelector": {"stage": s.name}}));
    let exempt = eventually("the class is known", || async {
        let pod = exempt.clone();
        create(&s.pods(), &pod).await.in_words()
    })
    .await;
    let exempt = serde_json::to_value(exempt).unwrap();
    assert!(!tolerates(&exempt) && exempt.pointer(REQUIRED).is_none(), "{exempt}");
}

#[tokio::test]
async fn what_comes_before_its_namespaceoffloading_is_refused_and_made_later() {
    let s = Stage::new("off-early").await;
    // Labelled by hand; nobody takes that off, because nobody knows better.
    let label = format!("{}=true", keys::OFFLOADED);
    s.outrigger.plane.infra.kubectl(&["label", "namespace", s.name, &label]).unwrap();
    let refusal = eventually("Pods are refused", || async {
        s.admitted().await.err().ok_or_else(|| "they are taken".to_owned())
    })
    .await;
    assert!(
        refusal.contains("NamespaceOffloading offloading is missing in namespace off-early")
            && refusal.contains("try again"),
        "{refusal}"
    );
    s.deploy("early", 2, None);
    eventually("the Deployment can't make Pods", || async {
        let events = s.outrigger.plane.infra.kubectl(&["get", "events", "-n", s.name]).in_words()?;
        holds(events.contains("FailedCreate") && events.contains("is missing in namespace"), events)
    })
    .await;
    s.ask("Remote", true).unwrap();
    assert_eq!(s.landed("early", 2).await, ["us", "us"]);
}

#[tokio::test]
async fn a_deleted_namespaceoffloading_takes_the_label_along() {
    let s = Stage::new("off-gone").await;
    s.ask("Remote", true).unwrap();
    s.terms(1).await;
    s.objects().delete("offloading", &DeleteParams::default()).await.unwrap();
    is_gone(&s.objects(), "offloading").await;
    s.label(None).await;
    s.tolerated(false).await;
    // And a namespace with one goes as a whole.
    s.ask("Remote", true).unwrap();
    s.phase("Ready").await;
    s.outrigger.plane.infra.kubectl(&["delete", "namespace", s.name, "--timeout=100s"]).unwrap();
}

#[tokio::test]
async fn the_status_says_what_is_selected_and_is_written_for_a_reason_only() {
    let s = Stage::new("off-status").await;
    s.ask("Remote", true).unwrap();
    let object = s.phase("Ready").await;
    assert_eq!(object.finalizers(), [keys::OFFLOADING_FINALIZER]);
    let status = object.status.unwrap();
    // Other tests' virtual nodes may be in us-1 too.
    let condition = &status.remote_namespaces_conditions["us-1"][0];
    assert_eq!((condition.type_.as_str(), condition.status.as_str()), ("OffloadingRequired", "True"));
    assert!(condition.last_transition_time.is_some());
    let table = s.outrigger.plane.infra.kubectl(&["get", "nsoff", "-n", s.name]).unwrap();
    let head: Vec<&str> = table.lines().next().unwrap().split_whitespace().collect();
    assert_eq!(head, ["NAME", "NAMESPACEMAPPINGSTRATEGY", "PODOFFLOADINGSTRATEGY", "OFFLOADINGPHASE", "AGE"]);
    assert!(table.contains("DefaultName") && table.contains("Remote") && table.contains("Ready"), "{table}");
    // A selector of this stage only, so that other tests' nodes don't matter.
    let stage = |value: &str| {
        offloading(
            s.name,
            json!({"podOffloadingStrategy": "Remote", "clusterSelector": {"nodeSelectorTerms": [
            {"matchExpressions": [{"key": "stage", "operator": "In", "values": [value]}]}]}}),
        )
    };
    s.outrigger.plane.infra.apply(&[stage(s.name)]).unwrap();
    let object = eventually("both are selected", || async {
        let object = s.phase("Ready").await;
        let conditions = object.status.clone().unwrap().remote_namespaces_conditions;
        let clusters: Vec<&String> = conditions.keys().collect();
        if clusters == ["off-status-eu", "us-1"] { Ok(object) } else { Err(format!("{clusters:?}")) }
    })
    .await;
    let namespace = s.label(Some("true")).await;
    // Something changes that nothing depends on.
    for round in ["1", "2", "3"] {
        let label = format!("example.com/round={round}");
        s.outrigger.plane.infra.kubectl(&["label", "node", &s.node("us"), &label, "--overwrite"]).unwrap();
        always("nothing is written", Duration::from_millis(500), || async {
            let now = s.objects().get("offloading").await.in_words()?;
            let versions = (now.resource_version(), s.label(Some("true")).await.resource_version());
            holds(
                versions == (object.resource_version(), namespace.resource_version()),
                format!("{versions:?}"),
            )
        })
        .await;
    }
    // A label that somebody takes off comes back, and clusters that are no longer selected leave the status.
    let label = format!("{}-", keys::OFFLOADED);
    s.outrigger.plane.infra.kubectl(&["label", "namespace", s.name, &label]).unwrap();
    s.label(Some("true")).await;
    s.outrigger.plane.infra.kubectl(&["label", "node", &s.node("us"), "stage=other", "--overwrite"]).unwrap();
    eventually("one is left", || async {
        let conditions = s.phase("Ready").await.status.unwrap().remote_namespaces_conditions;
        holds(conditions.len() == 1, format!("{conditions:?}"))
    })
    .await;
    s.outrigger.plane.infra.apply(&[stage("nowhere")]).unwrap();
    s.phase("NoClusterSelected").await;
    let message = event(&s.client, s.name, "NoClusterSelected").await;
    assert!(message.ends_with("virtual nodes, none of them is selected"), "{message}");
}

#[tokio::test]
async fn a_contradiction_is_shown_to_whoever_makes_the_pod() {
    let s = Stage::new("off-warn").await;
    s.ask("Remote", true).unwrap();
    s.terms(1).await;
    let create = |region: &str| {
        let pod = pod("p", json!({"nodeSelector": {"region": region}}));
        let command = s.outrigger.plane.infra.kubectl_command();
        let (program, first) = command.split_first().unwrap();
        let mut command = Command::new(program);
        command.args(first).args(["create", "--dry-run=server", "-n", s.name, "-f", "-"]);
        let output = fed(&mut command, pod.to_string().as_bytes()).unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    assert_eq!(create("us"), "");
    assert_eq!(
        create("eu").trim(),
        "Warning: no node can match this Pod: it asks for region In [eu], its NamespaceOffloading for region In [us]"
    );
}

#[tokio::test]
async fn what_a_namespaceoffloading_may_not_be_is_refused() {
    let s = Stage::new("off-valid").await;
    let apply = |object: &Value| s.outrigger.plane.infra.apply(std::slice::from_ref(object)).in_words();
    let with = |spec: Value| offloading(s.name, spec);
    let mut other = with(json!({}));
    other["metadata"]["name"] = json!("other");
    let term = |e: Value| json!({"clusterSelector": {"nodeSelectorTerms": [{"matchExpressions": [e]}]}});
    let mut system = with(json!({}));
    system["metadata"]["namespace"] = json!("kube-system");
    for (object, words) in [
        (other, "NamespaceOffloading name must match offloading"),
        (
            with(json!({"namespaceMappingStrategy": "SelectedName"})),
            "RemoteNamespaceName value cannot be empty",
        ),
        (with(json!({"podOffloadingStrategy": "Perhaps"})), "spec.podOffloadingStrategy"),
        (with(term(json!({"key": "a", "operator": "Has"}))), "matchExpressions[0].operator"),
        (
            with(term(json!({"key": "a", "operator": "Gt", "values": ["x"]}))),
            "values: is [x]; Gt needs one integer",
        ),
        (system, "metadata.namespace: is \"kube-system\""),
    ] {
        let error = apply(&object).unwrap_err();
        assert!(error.contains(words), "{object}: {error}");
    }
    // Defaults are filled in.
    apply(&with(json!({}))).unwrap();
    let spec = s.objects().get("offloading").await.unwrap().spec;
    assert_eq!(
        (spec.namespace_mapping_strategy.as_str(), spec.pod_offloading_strategy.as_str()),
        ("DefaultName", "LocalAndRemote")
    );
    let patch = async |patch: Value| merge(&s.objects(), "offloading", patch).await.map(drop).in_words();
    let error = patch(json!({"spec": {"namespaceMappingStrategy": "EnforceSameName"}})).await.unwrap_err();
    assert!(
        error.contains("The NamespaceMappingStrategy value cannot be modified after creation"),
        "{error}"
    );
    let error = patch(json!({"spec": {"remoteNamespaceName": "x"}})).await.unwrap_err();
    assert!(error.contains("The RemoteNamespaceName value cannot be modified after creation"), "{error}");
    // Unless it is asked not to look, and was before.
    let skip = json!({"metadata": {"labels": {keys::WEBHOOK_SKIP: "true"}}});
    let mut both = skip.clone();
    both["spec"] = json!({"remoteNamespaceName": "x"});
    let error = patch(both.clone()).await.unwrap_err();
    assert!(error.contains("cannot be modified after creation"), "{error}");
    patch(skip).await.unwrap();
    patch(both).await.unwrap();
    patch(json!({"metadata": {"labels": null}})).await.unwrap();
    let strict = ["-n", s.name, "--warnings-as-errors"];
    let remote = json!({"spec": {"podOffloadingStrategy": "Remote"}});
    let warned = s.outrigger.plane.infra.patch("nsoff/offloading", &strict, &remote).unwrap_err().to_string();
    assert!(warned.contains("more restrictive setting"), "{warned}");
}

#[tokio::test]
async fn a_tenants_namespace_that_is_offloaded_has_both() {
    let t = Tenant::without_agent(Outrigger::shared().await, "off-tenant", &[("a", 1)]).await;
    let infra = &t.outrigger.plane.infra;
    infra.apply(&[offloading(&t.namespace, json!({"podOffloadingStrategy": "LocalAndRemote", "clusterSelector":
        {"nodeSelectorTerms": [{"matchExpressions": [{"key": "region", "operator": "In", "values": ["us"]}]}]}}))])
        .unwrap();
    let made = eventually("the Pod gets both", || async {
        let pod = dry_run(&t.pods(), &pod("p", json!({}))).await.in_words()?;
        let pod = serde_json::to_value(pod).unwrap();
        if tolerates(&pod) { Ok(pod) } else { Err(pod["spec"].to_string()) }
    })
    .await;
    let tenant = json!({"key": keys::NODE_TENANT, "operator": "In", "values": ["off-tenant"]});
    let terms = made.pointer(REQUIRED).unwrap().as_array().unwrap();
    assert_eq!(terms.len(), 2);
    assert!(
        terms.iter().all(|term| term["matchExpressions"].as_array().unwrap().contains(&tenant)),
        "{terms:?}"
    );
    // It still runs on its own DPU, and nowhere else.
    create(&t.pods(), &pod("p", json!({}))).await.unwrap();
    until("it runs on the tenant's DPU", &t.pods(), "p", |pod| {
        holds(node_of(&pod) == t.node("a-dpu1"), node_of(&pod).to_owned())
    })
    .await;
}

#[tokio::test]
async fn a_cluster_without_the_kind_keeps_nobody_waiting_and_may_get_it_later() {
    // The tenant cluster has no NamespaceOffloadings.
    let o = Outrigger::shared().await;
    let client = o.plane.tenant.client().await;
    let readiness = Readiness::default();
    let (sender, mut seen) = tokio::sync::mpsc::unbounded_channel();
    let ready = readiness.wait_for("offloadings");
    let watch = Watch::<NamespaceOffloading>::all(&client, "offloadings").optional();
    let watch = tokio::spawn(watch.follow(ready, move |event| {
        if let Event::Listed(object) | Event::Applied(object) = event {
            let _ = sender.send(object.namespace());
        }
    }));
    readiness.done().await;
    assert!(seen.try_recv().is_err());
    o.plane.tenant.apply_file("deploy/crds/namespaceoffloadings.offloading.liqo.io.yaml").unwrap();
    o.plane.tenant.established().unwrap();
    let object = offloading("default", json!({}));
    eventually("it is taken", || async { o.plane.tenant.apply(std::slice::from_ref(&object)) }).await;
    let namespace = tokio::time::timeout(outrigger_tests::PATIENCE, seen.recv()).await.unwrap();
    assert_eq!(namespace.flatten().as_deref(), Some("default"));
    watch.abort();
}
