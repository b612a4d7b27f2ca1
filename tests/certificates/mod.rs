//! Certificates, and webhooks that aren't there. A control plane of its own, with the real cert-manager; the tests change
//! what all requests go through, so they run one after the other.

mod cert_manager;
mod cold_start;
mod load;
mod self_signed;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use outrigger_core::keys;
use outrigger_tests::control_plane::ControlPlane;
use outrigger_tests::issued::{self, bundles, count};
use outrigger_tests::outrigger::{Outrigger, SYSTEM};
use outrigger_tests::tenant::{namespace, tenant};
use outrigger_tests::{eventually, shipped};
use serde_json::{Value, json};
use tokio::sync::{Mutex, MutexGuard, OnceCell};

/// Whose namespace requests are about.
const TENANT: &str = "load";
const NAMESPACE: &str = "tenant-load";

/// The name that the API server verifies.
const WEBHOOK: &str = "outrigger-webhook.outrigger-system.svc";

/// A control plane with cert-manager, definitions, roles, policies and a tenant's namespace, and no webhook
/// configurations. Whoever has it has it alone.
async fn alone() -> (MutexGuard<'static, ()>, &'static Outrigger) {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::const_new(());
    static SHARED: OnceCell<Outrigger> = OnceCell::const_new();
    let one = ONE_AT_A_TIME.lock().await;
    let outrigger = SHARED
        .get_or_init(async || {
            let outrigger = Outrigger::new(ControlPlane::start_with(&["--cert-manager"]).unwrap()).unwrap();
            outrigger.define().unwrap();
            let infra = &outrigger.plane.infra;
            infra.apply_file("webhooks/policies.yaml").unwrap();
            let mut namespace = namespace(NAMESPACE);
            namespace["metadata"]["labels"] = json!({keys::TENANT: TENANT});
            infra
                .apply(&[tenant(TENANT, json!({})), namespace, issued::to_loopback("outrigger-webhook")])
                .unwrap();
            outrigger
        })
        .await;
    (one, outrigger)
}

/// The shipped configurations, the port apart.
fn configurations(port: u16) -> Vec<Value> {
    let all = shipped::webhook_configurations().unwrap().into_iter();
    all.map(|configuration| issued::on_port(configuration, port).unwrap()).collect()
}

/// Takes the configurations out again.
fn remove_configurations(outrigger: &Outrigger) {
    let kinds = "mutatingwebhookconfiguration,validatingwebhookconfiguration";
    outrigger.plane.infra.kubectl(&["delete", kinds, "outrigger"]).unwrap();
}

/// Waits until all entries carry this bundle.
async fn injected(outrigger: &Outrigger, what: &str, is_it: impl Fn(&str) -> bool) -> String {
    eventually(what, || async {
        match bundles(&outrigger.plane.infra).unwrap().as_slice() {
            [one] if is_it(one) => Ok(one.clone()),
            other => Err(format!("{other:?}")),
        }
    })
    .await
}

/// A key of a Secret, decoded.
fn secret(outrigger: &Outrigger, name: &str, key: &str) -> Option<String> {
    let [value] = secrets(outrigger, name, [key]);
    value
}

/// Some values of a Secret, all of the same moment.
fn secrets<const N: usize>(outrigger: &Outrigger, name: &str, keys: [&str; N]) -> [Option<String>; N] {
    let secret = outrigger.plane.infra.read(&format!("/api/v1/namespaces/{SYSTEM}/secrets/{name}")).unwrap();
    keys.map(|key| {
        let data = STANDARD.decode(secret["data"][key].as_str()?).unwrap();
        Some(String::from_utf8(data).unwrap())
    })
}

/// Starts a webhook under its service account.
fn start_webhook(outrigger: &Outrigger, name: &str, port: u16, admin: u16, more: &[String]) {
    let own = [format!("--bind-address=127.0.0.1:{port}"), format!("--admin-address=127.0.0.1:{admin}")];
    outrigger.run_bare(name, "webhook", &[&own, more].concat()).unwrap();
}
