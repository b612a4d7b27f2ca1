//! A running Pod that admission would refuse now, and the reports of it.

use outrigger_tests::control_plane::tool;
use outrigger_tests::eventually;
use outrigger_tests::outrigger::SYSTEM;
use serde_json::{Value, json};

use super::{BLUE, Stage};
use crate::deploy::with_component;

/// A Pod that its Tenant no longer allows.
pub(super) async fn existing(s: &Stage) {
    let allow = |accounts: Value| s.patch("tenant", BLUE, &json!({"spec": {"serviceAccounts": accounts}}));
    allow(json!(["builder"]));
    s.kubectl(&["create", "serviceaccount", "builder", "-n", "tenant-blue"]);
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "build", "namespace": "tenant-blue"},
        "spec": {"serviceAccountName": "builder", "containers": [{"name": "c", "image": "i"}]}});
    eventually("the webhook knows that the account is allowed", || async {
        s.infra().apply(std::slice::from_ref(&pod))
    })
    .await;
    s.finds("the Pod is allowed", &[]).await;
    allow(json!([]));
    let paths = ["spec.serviceAccount", "spec.serviceAccountName"];
    let refused = paths.map(|path| format!("running-refused Pod tenant-blue/build {path}"));
    s.finds("the Pod is no longer allowed", &refused.each_ref().map(String::as_str)).await;
    reports(s).await;
    s.kubectl(&["delete", "pod", "build", "-n", "tenant-blue"]);
    s.finds("it is gone", &[]).await;
    assert_eq!(written(s), Ok("reports: 1 written, 1 unchanged".to_owned()));
    assert_eq!(summary(s)["fail"], 0);
    s.kubectl(&["delete", "crd", "reports.openreports.io", "clusterreports.openreports.io"]);
}

/// What the scan prints, as the service account that the component gives it.
fn written(s: &Stage) -> Result<String, String> {
    let kubeconfig = s.outrigger.plane.dir.join("reports.kubeconfig");
    s.infra().service_account(SYSTEM, "outrigger-reports", &kubeconfig).unwrap();
    let output = s.run(&["--write-reports", "--kubeconfig", kubeconfig.to_str().unwrap()]);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
}

/// The summary of the Report of the tenant's namespace.
fn summary(s: &Stage) -> Value {
    let report = s.infra().get(&["reports.openreports.io", "outrigger", "-n", "tenant-blue"]).unwrap();
    report["summary"].clone()
}

/// The scan writes reports for dashboards, with the rights of the component, and nothing where nothing has changed.
async fn reports(s: &Stage) {
    let mut objects = with_component("infrastructure", "reports");
    objects.retain(|object| {
        object["metadata"]["name"] == "outrigger-reports" && object["kind"] != "NetworkPolicy"
    });
    s.infra().apply(&objects).unwrap();
    eventually("the kinds are missing, and nothing else", || async {
        let said = written(s).expect_err("there are no CRDs");
        if said.contains("are the CRDs of openreports.io installed") { Ok(()) } else { Err(said) }
    })
    .await;
    s.kubectl(&["apply", "--server-side", "-f", tool("openreports").unwrap().to_str().unwrap()]);
    eventually("the reports are written", || async { written(s).map(drop) }).await;
    let report = s.infra().get(&["reports.openreports.io", "outrigger", "-n", "tenant-blue"]).unwrap();
    let expected = json!({"pass": 0, "fail": 2, "warn": 0, "error": 0, "skip": 0});
    assert_eq!((&report["summary"], &report["source"]), (&expected, &json!("outrigger")), "{report}");
    let [result, _] = report["results"].as_array().unwrap().as_slice() else { panic!("{report}") };
    assert_eq!(
        (&result["policy"], &result["resources"][0]["name"]),
        (&json!("running-refused"), &json!("build"))
    );
    assert_eq!(written(s), Ok("reports: 0 written, 2 unchanged".to_owned()));
    // One that was made by hand from the command's output belongs to the scan from now on.
    let patch = json!({"summary": {"fail": 7}});
    s.infra().patch("report.openreports.io/outrigger", &["-n", "tenant-blue"], &patch).unwrap();
    assert_eq!(written(s), Ok("reports: 1 written, 1 unchanged".to_owned()));
    assert_eq!(summary(s), expected);
}
