//! A Pod that exists: its changes, its binding, its status, its end.

use http::Method;
use kube::ResourceExt;
use outrigger_cases::{changed, merged};
use outrigger_core::keys;
use outrigger_tests::tenant::rule_for;
use outrigger_tests::{eventually, holds};
use serde_json::{Value, json};

use super::stage::*;

#[tokio::test]
async fn a_pod_that_is_there_is_held_to_what_changes() {
    let s = Stage::new("late").await;
    let rule = s.t.rule("r", rule_for("app", "nobody")).await.uid().unwrap();
    let map = s.map().await;
    let gated = json!({"spec": {"schedulingGates": [{"name": "example.com/wait"}]}});
    let slow = json!({"metadata": {"finalizers": ["batch.kubernetes.io/job-tracking"],
        "annotations": {"pod-delete.stage.kwok.x-k8s.io/delay": "10m"}}});
    let sized = json!({"container": {"resources": {"requests": {"cpu": "100m"}, "limits": {"cpu": "1"}}}});
    for (name, more) in [("gated", &gated), ("leaving", &slow), ("running", &sized)] {
        s.mallory.post(&s.pods(), &changed(&good(name), more)).await.unwrap();
    }
    // What a kubelet says that can resize.
    let able = json!([{"op": "add", "path": "/status/containerStatuses/0/resources", "value": {}}]);
    let status = format!("{}/status", s.pod("running"));
    eventually("it runs", || s.admin.patch(&status, &able)).await;
    s.placed("leaving").await;
    s.mallory.delete(&s.pod("leaving")).await.unwrap();
    let leaving = s.admin.get(&s.pod("leaving")).await.unwrap();
    assert!(leaving["metadata"]["deletionTimestamp"].is_string(), "{leaving}");

    let mut failures = Failures::default();
    for name in ["running", "gated", "leaving"] {
        let pod = s.pod(name);
        let changes = s.requests("changes", &[("$POD", &pod), ("$RULE", &rule), ("$MAP", &map)]);
        failures.attempts(&s.mallory, name, &changes).await;
    }
    failures.attempts(&s.mallory, "late", &s.requests("late changes", &[])).await;
    let updates = s.requests("updates", &[]);
    let pod = s.admin.get(&s.pod("gated")).await.unwrap();
    let bodies = updates.iter().map(|update| merged(&pod, &update.body));
    for (update, answer) in updates.iter().zip(&webhook(&s, "UPDATE", &pod, bodies).await) {
        failures.check(&format!("{}, to the webhook", update.body), answer, &update.says);
    }
    failures.none();
    for name in ["running", "gated", "leaving"] {
        let pod = s.admin.get(&s.pod(name)).await.unwrap();
        assert_eq!(pod["spec"]["ephemeralContainers"][0]["name"], json!("d"), "{pod}");
        assert_eq!(pod["metadata"]["labels"][keys::TENANT], Value::Null, "{pod}");
    }
    let pod = s.admin.get(&s.pod("running")).await.unwrap();
    let container = &pod["spec"]["containers"][0];
    assert_eq!(container["resources"]["requests"]["cpu"], json!("600m"), "{pod}");
    assert_eq!(container["securityContext"], Value::Null, "{pod}");
    assert_eq!(s.placed("gated").await, s.own);
}

#[tokio::test]
async fn only_the_scheduler_binds_and_only_to_own_dpus() {
    let s = Stage::new("binds").await;
    let plain = json!({"metadata": {"name": "binds-plain"}, "spec": {"taints": [{"key": "x", "effect": "NoSchedule"}]}});
    s.admin.post(NODES, &plain).await.unwrap();
    // A Pod that the scheduler leaves alone: it fits nowhere.
    let nowhere = json!({"spec": {"nodeSelector": {"nowhere": "x"}}});
    s.mallory.post(&s.pods(), &merged(&good("p"), &nowhere)).await.unwrap();
    let scheduler = User::new(s.t.outrigger, "system:kube-scheduler", &[]).await;
    let mut failures = Failures::default();
    let (of_pod, old) = (format!("{}/binding", s.pod("p")), format!("{}/bindings", s.ns));
    for way in [&of_pod, &old] {
        for (user, name) in [(&s.mallory, "mallory-binds"), (&s.admin, "admin")] {
            failures.attempts(user, way, &s.requests("bindings", &[("$WAY", way), ("$USER", name)])).await;
        }
    }
    failures.attempts(&scheduler, "an old view", &s.requests("late bindings", &[("$WAY", &of_pod)])).await;
    failures.none();
    let binding = json!({"metadata": {"name": "p"}, "target": {"kind": "Node", "name": s.own}});
    scheduler.post(&of_pod, &binding).await.unwrap();
    assert_eq!(s.placed("p").await, s.own);
}

#[tokio::test]
async fn a_companion_keeps_what_outrigger_wrote_on_it() {
    let s = Stage::with_agent("marks").await;
    s.t.rule("r", rule_for("app", "web")).await;
    s.t.web("w").await;
    let pod = s.pod(&s.t.companion().await.name_any());
    let before = s.admin.get(&pod).await.unwrap();
    let mut failures = Failures::default();
    let labels = [keys::TENANT, keys::RULE, keys::WORKLOAD];
    let annotations =
        [keys::RULE_UID, keys::RULE_GENERATION, keys::TEMPLATE_HASH, keys::HOST, keys::INJECTED];
    for (map, list) in [("labels", &labels[..]), ("annotations", &annotations)] {
        for &key in list.iter().chain(&[keys::NODE_TENANT, keys::WORKLOAD_ENDED, "x.outrigger.dev/y"]) {
            let there = before["metadata"][map][key].is_string();
            assert_eq!(there, list.contains(&key), "{key}");
            let words =
                [format!("metadata.{map}[{key}]"), "only Outrigger itself may change keys".to_owned()];
            for value in [json!("x"), Value::Null] {
                if there || !value.is_null() {
                    let patch = json!({"metadata": {map: {key: value}}});
                    failures.check(&patch.to_string(), &s.mallory.patch(&pod, &patch).await, &words);
                    let by_status = s.mallory.patch(&format!("{pod}/status"), &patch).await;
                    failures.check(&format!("{patch} by status"), &by_status, &words);
                }
            }
        }
        // Network plugins write annotations by the status.
        let by_status: &[_] = if map == "labels" { &["status: is written by kubelets"] } else { &[] };
        for (sub, words) in [("", &[][..]), ("/status", by_status)] {
            let patch = json!({"metadata": {map: {"outrigger.dev.example.com/x": sub.replace('/', "x")}}});
            let answer = s.mallory.patch(&format!("{pod}{sub}"), &patch).await;
            failures.check(&format!("{patch} by {sub:?}"), &answer, words);
        }
    }
    let map = s.map().await;
    failures
        .attempts(&s.mallory, "a companion", &s.requests("companion", &[("$POD", &pod), ("$MAP", &map)]))
        .await;
    failures.none();
    let after = s.admin.get(&pod).await.unwrap();
    assert_eq!(after["metadata"]["uid"], before["metadata"]["uid"]);
    assert_eq!(after["metadata"]["ownerReferences"][0], before["metadata"]["ownerReferences"][0]);
    // A fact that is written over is put right again.
    let other = json!({"metadata": {"annotations": {"workload-name": "other"}}});
    s.mallory.patch(&pod, &other).await.unwrap();
    eventually("the fact is true again", || async {
        let pod = s.admin.get(&pod).await?;
        let fact = &pod["metadata"]["annotations"]["workload-name"];
        holds(*fact == json!("w"), fact.to_string())
    })
    .await;
}

#[tokio::test]
async fn nobody_but_those_who_know_writes_a_status() {
    let s = Stage::new("status").await;
    // Gated, so that no failed attempt takes a nomination away.
    let gated = json!({"spec": {"schedulingGates": [{"name": "example.com/wait"}]}});
    s.mallory.post(&s.pods(), &changed(&good("pending"), &gated)).await.unwrap();
    s.mallory.post(&s.pods(), &good("p")).await.unwrap();
    s.placed("p").await;
    let pod = s.pod("p");
    let rows = s.requests("status", &[("$POD", &pod)]);
    let mut failures = Failures::default();
    failures.attempts(&s.mallory, "the user", &rows).await;
    // A kubelet writes statuses, and no finalizers with them.
    let kubelet = User::kubelet(s.t.outrigger, &s.own).await;
    let finalizer = json!({"metadata": {"finalizers": ["example.com/stay"]}});
    let answer = kubelet.patch(&format!("{pod}/status"), &finalizer).await;
    failures.check("a kubelet's finalizer", &answer, &["metadata.finalizers: gets example.com/stay"]);
    let answer = kubelet.patch(&format!("{pod}/status"), &json!({"status": {"message": "well"}})).await;
    failures.check("a kubelet's status", &answer, &[""; 0]);
    failures.none();
}

#[tokio::test]
async fn a_pod_is_not_forgotten_while_it_may_run() {
    let s = Stage::new("force").await;
    let slow = json!({"metadata": {"annotations": {"pod-delete.stage.kwok.x-k8s.io/delay": "10m"}}});
    let mut failures = Failures::default();
    for name in ["deleted", "evicted", "gentle"] {
        s.mallory.post(&s.pods(), &merged(&good(name), &slow)).await.unwrap();
        s.placed(name).await;
    }
    let now = json!({"gracePeriodSeconds": 0});
    let answer = s.mallory.ask(Method::DELETE, &s.pod("deleted"), &now).await;
    failures.check("force", &answer, &["gracePeriodSeconds: is 0"]);
    let evict = json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "evicted"}, "deleteOptions": now});
    let answer = s.mallory.post(&format!("{}/eviction", s.pod("evicted")), &evict).await;
    failures.check("eviction by force", &answer, &["gracePeriodSeconds: is 0"]);
    failures.check("with a grace period", &s.mallory.delete(&s.pod("gentle")).await, &[""; 0]);
    let answer = s.mallory.ask(Method::DELETE, &s.pods(), &now).await;
    failures.check("all of them", &answer, &["gracePeriodSeconds: is 0"]);
    failures.none();
}

#[tokio::test]
async fn a_dpu_is_given_back_whatever_a_deletion_waits_for() {
    let s = Stage::new("hostage").await;
    let map = s.map().await;
    let job = json!({"metadata": {"finalizers": ["batch.kubernetes.io/job-tracking"], "ownerReferences": [
        {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": map, "controller": true}]}});
    s.mallory.post(&s.pods(), &merged(&good("job"), &job)).await.unwrap();
    let pod = s.mallory.post(&s.pods(), &good("parent")).await.unwrap();
    // A child that never goes holds a parent that is deleted in the foreground.
    let child = json!({"metadata": {"name": "child", "finalizers": ["example.com/stay"], "ownerReferences": [
        {"apiVersion": "v1", "kind": "Pod", "name": "parent", "uid": pod["metadata"]["uid"], "blockOwnerDeletion": true}]}});
    s.mallory.post(&format!("{}/configmaps", s.ns), &child).await.unwrap();
    for name in ["job", "parent"] {
        s.placed(name).await;
    }
    let foreground = json!({"propagationPolicy": "Foreground"});
    s.mallory.ask(Method::DELETE, &s.pod("parent"), &foreground).await.unwrap();
    s.admin.patch(&format!("{TENANTS}/hostage"), &json!({"spec": {"hosts": []}})).await.unwrap();
    eventually("no tenant owns the DPU", || async {
        let node = s.admin.get(&format!("{NODES}/{}", s.own)).await?;
        let owner = &node["metadata"]["labels"][keys::NODE_TENANT];
        holds(owner.is_null(), owner.to_string())
    })
    .await;
}
