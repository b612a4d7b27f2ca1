//! `certs/` on the real cert-manager.

use k8s_openapi::api::core::v1::Secret;
use kube::api::Api;
use outrigger_tests::kubelet::Mount;
use outrigger_tests::outrigger::{Outrigger, SYSTEM, get, ports};
use outrigger_tests::page::Page;
use outrigger_tests::{eventually, holds, is_true};
use serde_json::json;

use crate::certificates::load;
use crate::certificates::{alone, configurations, injected, remove_configurations, secret, start_webhook};

const CERTIFICATES: [&str; 4] =
    ["outrigger-serving-ca", "outrigger-webhook", "outrigger-manager", "outrigger-agent-ca"];

/// Waits until a Certificate is issued and nothing more is under way.
async fn issued(outrigger: &Outrigger, name: &str) {
    eventually(&format!("{name} is issued"), || async {
        let certificate = outrigger.plane.infra.get(&["certificate", name, "-n", SYSTEM]).unwrap();
        let is_issued = is_true(&certificate, "Ready") && !is_true(&certificate, "Issuing");
        holds(is_issued, certificate["status"].to_string())
    })
    .await;
}

/// What `cmctl renew` does, and waits for it.
async fn renew(outrigger: &Outrigger, name: &str, of: &str) {
    let before = secret(outrigger, of, "tls.crt").unwrap();
    let issuing = json!({"status": {"conditions": [{"type": "Issuing", "status": "True", "reason": "ManuallyTriggered",
        "message": "renewed by a test", "lastTransitionTime": "2026-01-01T00:00:00Z"}]}});
    let at = ["-n", SYSTEM, "--subresource=status"];
    outrigger.plane.infra.patch(&format!("certificate/{name}"), &at, &issuing).unwrap();
    eventually(&format!("{name} is renewed"), || async {
        if secret(outrigger, of, "tls.crt").unwrap() == before { Err("the same".to_owned()) } else { Ok(()) }
    })
    .await;
    issued(outrigger, name).await;
}

/// The commands of a section of a page of the documentation.
pub(crate) fn commands(page: &str, section: &str) -> Vec<String> {
    let page = Page::read(&format!("docs/{page}")).unwrap();
    let commands: Vec<String> = page.commands(section).into_iter().map(str::to_owned).collect();
    assert!(!commands.is_empty(), "{section} has no commands");
    commands
}

/// Runs commands of the documentation, `kubectl` being that of the control plane.
pub(crate) fn run(outrigger: &Outrigger, commands: &str) {
    let kubectl: Vec<String> =
        outrigger.plane.infra.kubectl_command().iter().map(|word| format!("'{word}'")).collect();
    let script = format!("set -euo pipefail\nkubectl() {{ {} \"$@\"; }}\n{commands}", kubectl.join(" "));
    let output = std::process::Command::new("bash")
        .args(["-c", &script])
        .current_dir(outrigger_tests::root())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{commands}: {said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn cert_manager_issues_renews_and_changes_the_ca_and_no_admission_fails() {
    let (_one, o) = alone().await;
    let infra = &o.plane.infra;
    infra.kubectl(&["apply", "-k", &outrigger_tests::root().join("certs").display().to_string()]).unwrap();
    infra.apply_file("certs/examples/agent.yaml").unwrap();
    for name in CERTIFICATES.iter().chain(&["outrigger-agent-blue"]) {
        issued(o, name).await;
    }
    let serving = secret(o, "outrigger-webhook-tls", "ca.crt").unwrap();
    assert_eq!(secret(o, "outrigger-manager-tls", "ca.crt").unwrap(), serving);
    let agents = secret(o, "outrigger-agent-ca", "ca.crt").unwrap();
    assert_eq!(secret(o, "outrigger-agent-blue-tls", "ca.crt").unwrap(), agents);
    assert_ne!(agents, serving);

    let [port, admin] = ports().unwrap();
    infra.apply(&configurations(port)).unwrap();
    injected(o, "the CA is injected", |bundle| bundle == serving).await;
    let mount = std::sync::Arc::new(Mount::new(o.plane.dir.join("webhook-tls")));
    let secrets: Api<Secret> = Api::namespaced(infra.client().await, SYSTEM);
    let kubelet = mount.clone();
    let kubelet = tokio::spawn(async move { kubelet.follow(&secrets, "outrigger-webhook-tls").await });
    eventually("the Secret is mounted", || async { holds(mount.path("tls.key").exists(), "not yet") }).await;
    let files = |key: &str, file: &str| format!("--tls-{key}-file={}", mount.path(file).display());
    let more = [files("cert", "tls.crt"), files("key", "tls.key"), "--tls-reload-interval=200ms".to_owned()];
    start_webhook(o, "webhook-files", port, admin, &more);
    o.ready_at("webhook-files", admin).await;

    let load = load::begin(o, &[port]).await;
    for _ in 0..3 {
        let before = load.shown();
        renew(o, "outrigger-webhook", "outrigger-webhook-tls").await;
        load.another_is_shown(before).await;
    }
    // The CA with its own key: nothing else has to change, and what it signs from then on is trusted.
    renew(o, "outrigger-serving-ca", "outrigger-serving-ca").await;
    assert_eq!(injected(o, "trust is as it was", |_| true).await, serving);
    let before = load.shown();
    renew(o, "outrigger-webhook", "outrigger-webhook-tls").await;
    load.another_is_shown(before).await;

    // Another CA, by the commands of the documentation.
    let first = secret(o, "outrigger-webhook-tls", "ca.crt").unwrap();
    let steps = commands("certificates.md", "Replacing a CA");
    let [trust, sign, forget] = steps.as_slice() else { panic!("three steps: {steps:?}") };
    run(o, trust);
    let new = secret(o, "outrigger-serving-ca-2", "tls.crt").unwrap();
    injected(o, "both CAs are trusted", |b| b.contains(first.trim()) && b.contains(new.trim())).await;
    let before = load.shown();
    run(o, sign);
    for name in ["outrigger-webhook", "outrigger-manager"] {
        renew(o, name, &format!("{name}-tls")).await;
    }
    load.another_is_shown(before).await;
    let second = secret(o, "outrigger-webhook-tls", "ca.crt").unwrap();
    assert_eq!(second, new);
    run(o, forget);
    injected(o, "the new CA alone is trusted", |bundle| bundle == second).await;
    println!("{}", load.end().await);

    let (_, metrics) = get(admin, "/metrics").await.unwrap();
    assert!(metrics.contains("outrigger_tls_certificate_not_after_seconds{use=\"serving\"}"), "{metrics}");
    assert!(metrics.contains("outrigger_tls_reload_failures_total 0\n"), "{metrics}");
    kubelet.abort();
    o.plane.command("term webhook-files").unwrap();
    remove_configurations(o);
}
