//! Workloads that Kubernetes schedules as a gang (KEP-4671): its own PodGroups, which are off by default.

use kube::api::DeleteParams;
use outrigger_core::keys;
use outrigger_tests::control_plane::ControlPlane;
use outrigger_tests::held::go;
use outrigger_tests::outrigger::Outrigger;
use outrigger_tests::tenant::{Tenant, annotation};
use outrigger_tests::{InWords, condition_of, eventually, holds, is_gone};
use serde_json::{Value, json};

use crate::e2e::before_binding::{allocated, has_rule, waiting};
use crate::e2e::companions_first::{enforces, pod, scheduled};

/// The version of PodGroups in Kubernetes 1.36.
pub(crate) const VERSION: &str = "scheduling.k8s.io/v1alpha2";

/// Starts the programs of the tenant's cluster again, with PodGroups and these features.
pub(crate) async fn switch_on(plane: &ControlPlane, more: &[&str]) {
    let state = std::fs::read_to_string(plane.dir.join("state.json")).unwrap();
    let state: Value = serde_json::from_str(&state).unwrap();
    // The socket of etcd is named relative to there.
    let place = format!("--chdir={}", plane.dir.join("etcd").display());
    let features = [&["GenericWorkload", "GangScheduling"], more].concat();
    let gates = features.iter().map(|name| format!("{name}=true")).collect::<Vec<_>>().join(",");
    let gates = format!("--feature-gates={gates}");
    for program in ["kube-apiserver", "kube-controller-manager", "kube-scheduler"] {
        let name = format!("tenant/{program}");
        let own: Vec<String> = serde_json::from_value(state["commands"][&name].clone()).unwrap();
        let mut args = [vec!["env".to_owned(), place.clone()], own, vec![gates.clone()]].concat();
        if program == "kube-apiserver" {
            args.push(format!("--runtime-config={VERSION}=true"));
        }
        plane.command(&format!("stop {name}")).unwrap();
        plane.run(&format!("gangs-{program}"), &args, &[]).unwrap();
    }
    eventually("PodGroups are there", || async { plane.tenant.read(&format!("/apis/{VERSION}")) }).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "long"]
async fn companions_of_a_gang_are_created_for_all_or_none_and_each_pod_is_bound_after_its_own() {
    let plane = ControlPlane::start().unwrap();
    switch_on(&plane, &[]).await;
    let o = Outrigger::new(plane).unwrap().started().await.unwrap().of_one_test();
    let t = Tenant::without_agent(*o, "gangs", &[("a", 1), ("b", 1)]).await;
    enforces(&t, &[("a", "40"), ("b", "40")]).await;
    has_rule(&t, "ring").await;
    let cluster = &t.outrigger.plane.tenant;
    let group = json!({"apiVersion": VERSION, "kind": "PodGroup",
        "metadata": {"name": "gang", "namespace": t.source},
        "spec": {"schedulingPolicy": {"gang": {"minCount": 3}}}});
    let member = |name: &str, spec: Value| {
        let mut member = pod(name, "ring", spec);
        (member["apiVersion"], member["kind"]) = (json!("v1"), json!("Pod"));
        member["metadata"]["namespace"] = json!(t.source);
        member["spec"]["schedulingGroup"] = json!({"podGroupName": "gang"});
        member
    };
    let nowhere = json!({"nodeSelector": {"example.com/nowhere": "yes"}});
    let names = ["g0", "g1", "g2"];
    cluster.apply(&[group, member("g0", json!({})), member("g1", json!({})), member("g2", nowhere)]).unwrap();
    eventually("the gang can't be scheduled", || async {
        let path = format!("/apis/{VERSION}/namespaces/{}/podgroups/gang", t.source);
        let scheduled = condition_of(&cluster.read(&path).in_words()?, "PodGroupScheduled");
        holds(scheduled["status"] == "False", scheduled.to_string())
    })
    .await;
    eventually("one of its Pods finds no Node", || async {
        let unplaced = condition_of(&t.work().get("g2").await.in_words()?, "PodScheduled");
        holds(unplaced.to_string().contains("node affinity/selector"), unplaced.to_string())
    })
    .await;
    for name in names {
        assert!(allocated(&t, name).await.is_err(), "{name}");
    }
    assert_eq!(t.companions().await.unwrap().len(), 0);

    t.work().delete("g2", &DeleteParams::default().grace_period(0)).await.unwrap();
    is_gone(&t.work(), "g2").await;
    cluster.apply(&[member("g2", json!({}))]).unwrap();
    let companions = waiting(&t, &names, &[]).await;
    go(&t, &companions["g0"]);
    scheduled(&t, "g0").await;

    // What fails after that is scheduled again by itself, and the others stay as they are.
    let first = annotation(&companions["g1"], keys::HOST).unwrap().to_owned();
    t.outrigger.plane.infra.cordon(&format!("{first}-dpu1"), true);
    eventually("g1 goes elsewhere", || async {
        let node = allocated(&t, "g1").await?;
        holds(node != first, node)
    })
    .await;
    let companions = waiting(&t, &["g1", "g2"], &["g0"]).await;
    for (name, companion) in &companions {
        go(&t, companion);
        assert_ne!(scheduled(&t, name).await.0, first, "{name}");
    }
}
