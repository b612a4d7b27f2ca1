//! The scheduled scan as a Pod of its CronJob: the shipped container on a Node, with the rights of its own account and nothing else.

use outrigger_tests::control_plane::{Cluster, tool};
use outrigger_tests::outrigger::SYSTEM;
use outrigger_tests::tenant::account;
use outrigger_tests::{InWords, eventually, holds, is_true};
use serde_json::{Value, json};

use super::shared::{DPU, turn};
use super::workloads::runs;

const NAME: &str = "outrigger-reports";

/// A Pod whose service account the Tenant has to allow.
fn build() -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "build", "namespace": "tenant-blue"},
        "spec": {"serviceAccountName": "builder", "terminationGracePeriodSeconds": 1,
            "containers": [runs("echo here")]}})
}

/// Starts a Job of the CronJob, as its controller does at the time that it names, and waits until it is complete. Returns its Pod.
async fn scanned(infra: &Cluster) -> Value {
    infra.kubectl(&["create", "job", "scan", &format!("--from=cronjob/{NAME}"), "-n", SYSTEM]).unwrap();
    let pods = ["pods", "-n", SYSTEM, "-l", "batch.kubernetes.io/job-name=scan"];
    eventually("the scan has ended", || async {
        let job = infra.get(&["job", "scan", "-n", SYSTEM]).in_words()?;
        let says = || infra.kubectl(&["logs", "job/scan", "-n", SYSTEM]);
        // There is no second attempt.
        assert!(!is_true(&job, "Failed"), "{:?}: {}", says(), job["status"]);
        let pods = infra.get(&pods).in_words()?["items"].take();
        holds(is_true(&job, "Complete"), pods.to_string()).map(|()| pods[0].clone())
    })
    .await
}

#[tokio::test]
async fn a_pod_of_the_scheduled_scan_reports_what_admission_would_refuse_now() {
    let turn = turn().await;
    let (rack, infra) = (turn.rack, &turn.rack.plane.infra);
    infra
        .kubectl(&["apply", "--server-side", "-f", &tool("openreports").unwrap().display().to_string()])
        .unwrap();
    infra.established().unwrap();
    // Established kinds are refused with 429 until their storage is ready, and the scan has one attempt.
    let kinds = ["reports.openreports.io,clusterreports.openreports.io", "-A"];
    eventually("the API server lists reports", || async { infra.get(&kinds).in_words() }).await;
    let mut objects =
        rack.overlay("deploy/overlays/infrastructure", &["cert-manager", "reports"], "").unwrap();
    objects.retain(|object| object["metadata"]["name"] == NAME);
    infra.apply(&objects).unwrap();

    let allow = |accounts: Value| {
        infra.patch("tenant/blue", &[], &json!({"spec": {"serviceAccounts": accounts}})).unwrap();
    };
    allow(json!(["builder"]));
    infra.apply(&[account("tenant-blue", "builder")]).unwrap();
    eventually("the Pod is admitted", || async { infra.apply(&[build()]).in_words() }).await;
    allow(Value::Null);

    let pod = scanned(infra).await;
    assert_ne!(pod["spec"]["nodeName"], DPU.name);
    let said = infra.kubectl(&["logs", "job/scan", "-n", SYSTEM]).unwrap();
    assert!(said.contains("reports: ") && said.ends_with(" written, 0 unchanged\n"), "{said}");
    let report = infra.get(&["reports.openreports.io", "outrigger", "-n", "tenant-blue"]).unwrap();
    let mut results = report["results"].as_array().into_iter().flatten();
    let is_its =
        |result: &Value| result["policy"] == "running-refused" && result["resources"][0]["name"] == "build";
    assert!(results.any(is_its), "{report}");

    // The Job is owned by the CronJob, and is deleted with it.
    infra.kubectl(&["delete", "cronjob", NAME, "-n", SYSTEM]).unwrap();
    infra.kubectl(&["delete", "pod", "build", "-n", "tenant-blue", "--wait=false"]).unwrap();
    infra.kubectl(&["delete", "crd", "reports.openreports.io", "clusterreports.openreports.io"]).unwrap();
}
