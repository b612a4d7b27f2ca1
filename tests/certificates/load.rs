//! Admission under load, by clients that trust what the configurations say at each moment, as the API server does.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use kube::api::Api;
use outrigger_runtime::tls::ClientTls;
use outrigger_tests::load::{Asker, Http, Load};
use outrigger_tests::outrigger::Outrigger;
use tokio::sync::watch;
use tokio_rustls::rustls::ClientConfig;
use tokio_rustls::rustls::client::Resumption;

use crate::certificates::{NAMESPACE, WEBHOOK, bundles};

/// Requests a second, straight at the webhook and through the API server.
const PER_SECOND: (u64, u64) = (200, 20);
/// Who asks the webhook; each has a connection of its own.
const CLIENTS: u64 = 10;
/// A connection ends after so many requests: that is ten handshakes a second, each verified again.
const REQUESTS: u32 = 20;

/// Begins, when a first request through the API server has succeeded.
pub(crate) async fn begin(outrigger: &'static Outrigger, ports: &[u16]) -> Load {
    let pods = Api::namespaced(outrigger.plane.infra.client().await, NAMESPACE);
    let load = Load::begin(pods, 1, PER_SECOND.1).await;
    let (sender, trust) = watch::channel(config(outrigger, &bundle(outrigger).await));
    load.beside(|end| async move {
        let mut last = String::new();
        while !end.is_cancelled() {
            let now = bundle(outrigger).await;
            if now != last {
                sender.send_replace(config(outrigger, &now));
                last = now;
            }
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    });
    for client in 0..CLIENTS {
        load.ask(Asker {
            port: ports[usize::try_from(client).unwrap() % ports.len()],
            name: WEBHOOK,
            http: Http::One,
            per_second: PER_SECOND.0 / CLIENTS,
            requests: REQUESTS,
            namespace: NAMESPACE,
            trust: trust.clone(),
            killing: None,
        });
    }
    load
}

/// What the API server trusts now.
async fn bundle(outrigger: &'static Outrigger) -> String {
    let mut all =
        tokio::task::spawn_blocking(move || bundles(&outrigger.plane.infra)).await.unwrap().unwrap();
    // While it is being written the entries differ; the API server takes each for its own requests.
    all.pop().unwrap()
}

fn config(outrigger: &Outrigger, bundle: &str) -> Arc<ClientConfig> {
    let ca: PathBuf = outrigger.plane.dir.join("load-ca.crt");
    std::fs::write(&ca, bundle).unwrap();
    let mut config = ClientTls { ca, identity: None }.config(&[]).unwrap();
    config.resumption = Resumption::disabled();
    Arc::new(config)
}
