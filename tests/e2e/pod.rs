//! `outrigger explain pod` on a real cluster: which steps changed a Pod, and what would refuse it now.

use std::path::Path;

use outrigger_core::keys;
use outrigger_tests::outrigger::Outrigger;
use outrigger_tests::tenant::Tenant;
use outrigger_tests::{dry_run, eventually, holds};
use serde_json::{Value, json};

/// The exit code, and the report about a Pod.
fn explained(
    o: &Outrigger,
    kubeconfig: &Path,
    namespace: &str,
    name: &str,
) -> Result<(Option<i32>, Value), String> {
    let kubeconfig = format!("--kubeconfig={}", kubeconfig.display());
    o.report(&["explain", "pod", name, "-n", namespace, &kubeconfig])
}

fn names<'a>(list: &'a Value, field: &str) -> Vec<&'a str> {
    list.as_array().unwrap().iter().filter_map(|entry| entry[field].as_str()).collect()
}

#[tokio::test]
async fn the_steps_that_changed_a_pod_are_reported_and_what_would_refuse_it_now() {
    let o = Outrigger::shared().await;
    let (t, companion) = Tenant::with_companion(o, "whypod").await;
    let infra = &o.plane.infra;
    let (code, report) =
        explained(o, &infra.kubeconfig, &t.namespace, companion.metadata.name.as_deref().unwrap()).unwrap();
    assert_eq!(code, Some(0), "{report}");
    assert_eq!(names(&report["creation"]["steps"], "step"), ["companion", "isolation"], "{report}");
    assert_eq!(report["creation"]["steps"][0]["generation"], 1);
    assert_eq!((&report["stored"]["patch"], &report["notes"]), (&json!([]), &json!([])), "{report}");
    // Each step has its own changes, and the Pod shows them.
    let operations = |at: usize| report["creation"]["steps"][at]["operations"].to_string();
    assert!(operations(0).contains(keys::DPU_HOST) && !operations(0).contains(keys::NODE_TENANT), "{report}");
    assert!(
        operations(1).contains(keys::NODE_TENANT) && operations(1).contains("/spec/tolerations"),
        "{report}"
    );
    assert_eq!(names(&report["recorded"], "step"), ["companion", "isolation"], "{report}");
    assert_eq!(names(&report["roles"], "role"), ["Companion", "TenantPod"], "{report}");
    assert_eq!(
        (&report["roles"][0]["name"], &report["roles"][0]["problems"]),
        (&json!("r"), &json!([])),
        "{report}"
    );
    assert!(names(&report["policies"], "policy").contains(&"outrigger-pods"), "{report}");

    // What a user applied, by what was allowed then.
    let class = format!("{}-high", t.id);
    infra
        .apply(&[
            json!({"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": class},
            "value": 1000}),
        ])
        .unwrap();
    t.set(json!({"priorityClasses": [class]})).await.unwrap();
    let pod = json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "applied", "namespace": t.namespace},
        "spec": {"priorityClassName": class, "containers": [{"name": "c", "image": "i"}]}})
    .to_string();
    eventually("the class is allowed", || async {
        infra.kubectl_with(&["apply", "-f", "-"], &pod).map_err(|error| error.to_string())
    })
    .await;
    let (code, report) = explained(o, &infra.kubeconfig, &t.namespace, "applied").unwrap();
    assert_eq!(code, Some(0), "{report}");
    assert_eq!(report["creation"]["from"], "what kubectl apply was given");
    assert_eq!(names(&report["creation"]["steps"], "step"), ["isolation"], "{report}");
    assert_eq!(report["stored"]["patch"], json!([]), "{report}");

    t.set(json!({"priorityClasses": []})).await.unwrap();
    let (code, report) = explained(o, &infra.kubeconfig, &t.namespace, "applied").unwrap();
    let refusal = &report["creation"]["refusal"];
    assert_eq!((code, &refusal["code"], &refusal["name"]), (Some(3), &json!(403), &json!(t.id)), "{report}");
    assert!(refusal["message"].as_str().unwrap().starts_with("spec.priorityClassName"), "{refusal}");
    let by = json!([refusal["webhook"], refusal["step"], refusal["fields"]]);
    assert_eq!(by, json!(["pods.outrigger.dev", "validation", ["spec.priorityClassName"]]), "{refusal}");
    // The webhook itself says so too.
    let mut again: Value = serde_json::from_str(&pod).unwrap();
    again["metadata"]["name"] = json!("again");
    let message = refusal["message"].as_str().unwrap();
    eventually("such Pods are refused", || async {
        match dry_run(&t.pods(), &again).await {
            Ok(_) => Err("admitted".to_owned()),
            Err(error) => holds(error.to_string().contains(message), error.to_string()),
        }
    })
    .await;
}

#[tokio::test]
async fn who_may_read_one_namespace_learns_what_is_in_it_and_what_is_missing() {
    let o = Outrigger::shared().await;
    let (t, companion) = Tenant::with_companion(o, "whypod-view").await;
    let infra = &o.plane.infra;
    let file = o.plane.dir.join("whypod-viewer.kubeconfig");
    infra.reader(&t.namespace, "viewer", &["pods", "workloadrules"], &file).unwrap();
    let name = companion.metadata.name.unwrap();
    let (code, report) =
        eventually("the right works", || async { explained(o, &file, &t.namespace, &name) }).await;
    // The steps are those that the Pod shows; what admission would do now isn't known, which is no refusal.
    assert_eq!(code, Some(0), "{report}");
    assert_eq!(names(&report["recorded"], "step"), ["companion", "isolation"], "{report}");
    assert!(report["stored"]["unknown"].is_string() && report["stored"].get("refusal").is_none(), "{report}");
    let notes = report["notes"].to_string();
    for kind in ["tenants", "namespaces", "nodes", "validatingadmissionpolicies"] {
        assert!(notes.contains(kind), "{kind}: {notes}");
    }
    let kubeconfig = format!("--kubeconfig={}", file.display());
    let output = o.output(&["explain", "pod", "nobody", "-n", &t.namespace, &kubeconfig]).unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains(&format!("there is no Pod {}/nobody", t.namespace)), "{said}");
}
