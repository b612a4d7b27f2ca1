//! Certificates that webhook and manager sign themselves: Secret, bundles, and what is served.

use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::api::Api;
use outrigger_core::keys;
use outrigger_runtime::tls::ClientTls;
use outrigger_tests::attacks::dial_by_name;
use outrigger_tests::issued::{bundles, count};
use outrigger_tests::outrigger::{SYSTEM, get, ports};
use outrigger_tests::{InWords, holds, merge};
use serde_json::json;

use crate::crash::run::Run;
use crate::crash::site::Part;

/// Takes everything out of a Secret.
async fn empty(run: &Run, secret: &str) -> Result<(), String> {
    let secrets: Api<Secret> = Api::namespaced(run.infra.clone(), SYSTEM);
    merge(&secrets, secret, json!({"data": null})).await.map(drop).in_words()
}

/// The CA certificates that a Secret says to trust.
async fn trusted(run: &Run, secret: &str) -> Result<String, String> {
    let secrets: Api<Secret> = Api::namespaced(run.infra.clone(), SYSTEM);
    let data = secrets.get(secret).await.in_words()?.data.unwrap_or_default();
    let bundle = data.get("ca.crt").ok_or("no CA")?.0.clone();
    String::from_utf8(bundle).in_words()
}

/// Whether a server shows a certificate that these CAs vouch for.
async fn verifies(run: &Run, bundle: &str, port: u16, name: &str) -> Result<(), String> {
    let file = run.outrigger().plane.dir.join(format!("{}-ca.crt", run.id));
    std::fs::write(&file, bundle).in_words()?;
    let tls = ClientTls { ca: file, identity: None };
    dial_by_name(&tls, port, name, &[b"h2"]).await.map(drop).in_words()
}

/// Starts the run's own process with these arguments.
fn start(run: &Run, part: &str, more: &[String]) -> Result<(), String> {
    let (site, infra) = (run.site, &run.outrigger().plane.infra);
    let account = site.proxied(Part::Own).proxy.account(infra, &format!("outrigger-{part}")).in_words()?;
    let all = [&["--tls=self-signed".to_owned(), account], more].concat();
    run.outrigger().run_bare(&site.process(Part::Own, &run.id), part, &all).in_words()
}

async fn ready(run: &Run, admin: u16) -> Result<bool, String> {
    run.reach("it is ready", || async {
        let (status, body) = get(admin, "/readyz?verbose").await?;
        holds(status == 200, body)
    })
    .await
}

/// The manager makes a CA, publishes it, and publishes it again when somebody has taken it away.
pub(crate) async fn manager(run: &Run) -> Result<(), String> {
    let maps: Api<ConfigMap> = Api::namespaced(run.infra.clone(), SYSTEM);
    empty(run, keys::MANAGER_SELF_SIGNED).await?;
    merge(&maps, keys::CA_CONFIG_MAP, json!({"data": null})).await.in_words()?;
    let [port, admin] = ports().in_words()?;
    run.begin();
    let args = [
        format!("--bind-address=tcp://127.0.0.1:{port}"),
        format!("--admin-address=127.0.0.1:{admin}"),
        format!("--tls-client-ca-file={}", run.outrigger().authority.file().display()),
    ];
    start(run, "manager", &args)?;
    let published = || async {
        let data = maps.get(keys::CA_CONFIG_MAP).await.in_words()?.data.unwrap_or_default();
        let bundle = data.get("ca.crt").ok_or("nothing is published")?;
        if count(bundle) != 1 || *bundle != trusted(run, keys::MANAGER_SELF_SIGNED).await? {
            return Err(format!("{} CAs are published", count(bundle)));
        }
        verifies(run, bundle, port, "outrigger-manager.outrigger-system.svc").await
    };
    run.reach("its CA is published", published).await?;
    ready(run, admin).await?;
    merge(&maps, keys::CA_CONFIG_MAP, json!({"data": null})).await.in_words()?;
    run.thaw();
    run.reach("its CA is published again", published).await?;
    Ok(())
}

/// The webhook makes a CA, and adds it to what the API server trusts already.
pub(crate) async fn webhook(run: &Run) -> Result<(), String> {
    let outrigger = run.outrigger();
    empty(run, keys::WEBHOOK_SELF_SIGNED).await?;
    let configurations = outrigger.webhook_configurations().in_words()?;
    outrigger.plane.infra.apply(&configurations).in_words()?;
    let [port, admin] = ports().in_words()?;
    run.begin();
    let args = [
        format!("--bind-address=127.0.0.1:{port}"),
        format!("--admin-address=127.0.0.1:{admin}"),
        "--self-signed-inherit".to_owned(),
    ];
    start(run, "webhook", &args)?;
    let published = || async {
        let all = bundles(&outrigger.plane.infra).in_words()?;
        let [bundle] = all.as_slice() else { return Err(format!("{} different bundles", all.len())) };
        // The one that was there, and its own.
        if count(bundle) != 2 || *bundle != trusted(run, keys::WEBHOOK_SELF_SIGNED).await? {
            return Err(format!("{} CAs are published", count(bundle)));
        }
        verifies(run, bundle, port, "outrigger-webhook.outrigger-system.svc").await
    };
    run.reach("its CA is published", published).await?;
    ready(run, admin).await?;
    run.thaw();
    run.reach("its CA is published", published).await?;
    Ok(())
}
