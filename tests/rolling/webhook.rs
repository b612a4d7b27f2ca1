//! The webhook is replaced, and no request is refused for it.

use std::sync::Arc;

use outrigger_runtime::tls::ClientTls;
use outrigger_tests::load::{Asker, Http, Load};
use outrigger_tests::tenant::Tenant;
use tokio::sync::watch;

use crate::{ROUNDS, alone};

/// Namespace of the tenant that Pods are created for.
const NAMESPACE: &str = "tenant-load";

/// Pods a second that are created through the API server, by each of so many clients.
const CREATES: (u64, u64) = (4, 15);

/// Who asks the webhook itself: how, requests a second, and requests of one connection.
const ASKERS: [(Http, u64, u32); 8] = [
    // Connections that are never given up by the client.
    (Http::One, 40, u32::MAX),
    (Http::One, 40, u32::MAX),
    // Idle nearly all the time.
    (Http::One, 1, u32::MAX),
    // One for each request.
    (Http::One, 20, 1),
    (Http::One, 20, 1),
    (Http::Two, 60, u32::MAX),
    (Http::Two, 60, u32::MAX),
    (Http::Two, 20, 10),
];

#[tokio::test(flavor = "multi_thread")]
async fn no_admission_fails_while_every_webhook_is_replaced() {
    let (_one, installed) = alone().await;
    let o = &installed.outrigger;
    let t = Tenant::without_agent(o, "load", &[("a", 1)]).await;
    assert_eq!(t.namespace, NAMESPACE);
    let load = Load::begin(t.pods(), CREATES.0, CREATES.1).await;
    let tls = ClientTls { ca: o.authority.file(), identity: None };
    let (_trusted, trust) = watch::channel(Arc::new(tls.config(&[]).unwrap()));
    for (http, per_second, requests) in ASKERS {
        load.ask(Asker {
            port: installed.webhooks.port,
            name: "127.0.0.1",
            http,
            per_second,
            requests,
            namespace: NAMESPACE,
            trust: trust.clone(),
        });
    }
    let mut replicas = installed.replicas.lock().await;
    for _ in 0..ROUNDS {
        replicas.webhook.roll(o, &installed.webhooks).await;
    }
    let (connections, late) = installed.webhooks.connections();
    println!("{}; {connections} connections, {late} of them to replicas that were ending", load.end().await);
    assert!(late > 0, "nothing came late");
}
