//! The webhook is replaced, and no request is refused for it.

use std::sync::Arc;

use outrigger_runtime::tls::ClientTls;
use outrigger_tests::load::{Asker, Http, Load, Losses};
use outrigger_tests::tenant::Tenant;
use outrigger_tests::{eventually, holds};
use tokio::sync::watch;

use crate::rolling::{Installed, ROUNDS, alone};

/// Namespace of the tenant that Pods are created for.
const NAMESPACE: &str = "tenant-load";

/// Pods a second that are created through the API server, by each of so many clients.
const CREATES: (u64, u64) = (4, 15);

/// Who asks the webhook itself: how, requests a second, and requests of one connection.
pub(crate) const ASKERS: [(Http, u64, u32); 8] = [
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

/// The same with 1,000 reviews a second.
const MANY: [(Http, u64, u32); 10] = [
    (Http::One, 100, u32::MAX),
    (Http::One, 100, u32::MAX),
    (Http::One, 100, u32::MAX),
    (Http::One, 1, u32::MAX),
    (Http::One, 20, 1),
    (Http::One, 20, 1),
    (Http::Two, 200, u32::MAX),
    (Http::Two, 200, u32::MAX),
    (Http::Two, 200, u32::MAX),
    (Http::Two, 60, 10),
];

/// Begins to ask. `killing`: the test kills replicas.
pub(crate) async fn begin(installed: &'static Installed, askers: &[(Http, u64, u32)], killing: bool) -> Load {
    let o = &installed.outrigger;
    let t = Tenant::without_agent(o, "load", &[("a", 1)]).await;
    assert_eq!(t.namespace, NAMESPACE);
    let killing = killing.then_some(&installed.webhooks);
    let load = Load::begin_while_killing(t.pods(), CREATES.0, CREATES.1, killing).await;
    let tls = ClientTls { ca: o.authority.file(), identity: None };
    let (sender, trust) = watch::channel(Arc::new(tls.config(&[]).unwrap()));
    load.beside(|end| async move {
        end.cancelled().await;
        drop(sender);
    });
    for &(http, per_second, requests) in askers {
        load.ask(Asker {
            port: installed.webhooks.port,
            name: "127.0.0.1",
            http,
            per_second,
            requests,
            namespace: NAMESPACE,
            trust: trust.clone(),
            killing,
        });
    }
    load
}

/// Waits until so many more reviews have been answered.
pub(crate) async fn more(load: &Load, reviews: u64) {
    let wanted = load.answered() + reviews;
    eventually(&format!("{reviews} more reviews are answered"), || async {
        let answered = load.answered();
        holds(answered >= wanted, format!("{answered} of {wanted}"))
    })
    .await;
}

async fn all_are_replaced(askers: &[(Http, u64, u32)]) {
    let (_one, installed) = alone().await;
    let load = begin(installed, askers, false).await;
    let mut replicas = installed.replicas.lock().await;
    for _ in 0..ROUNDS {
        replicas.webhook.roll(&installed.outrigger, &installed.webhooks).await;
    }
    let (connections, late) = installed.webhooks.connections();
    println!("{}; {connections} connections, {late} of them to replicas that were ending", load.end().await);
    assert!(late > 0, "nothing came late");
}

#[tokio::test(flavor = "multi_thread")]
async fn no_admission_fails_while_every_webhook_is_replaced() {
    all_are_replaced(&ASKERS).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "long"]
async fn no_admission_of_a_thousand_a_second_fails_while_every_webhook_is_replaced() {
    all_are_replaced(&MANY).await;
}

/// A request that was open at the killed replica is lost, and so is a connection that was still led there. The load counts every other
/// failure as one of the webhook's, and sends what was lost again, until it is answered.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "long"]
async fn of_a_thousand_admissions_a_second_only_those_open_at_a_killed_webhook_are_lost() {
    let (_one, installed) = alone().await;
    let load = begin(installed, &MANY, true).await;
    more(&load, 2_000).await;
    let mut replicas = installed.replicas.lock().await;
    let mut before = load.losses();
    assert_eq!(before, Losses { lost: 0, refused: 0, creates: 0 });
    for round in 0..ROUNDS {
        replicas.webhook.kill(&installed.outrigger, &installed.webhooks).await;
        more(&load, 2_000).await;
        let now = load.losses();
        println!("round {round}: {now:?} in all");
        assert!(now.lost > before.lost || now.refused > before.refused, "nothing was killed under load");
        before = now;
    }
    println!("{}, {before:?}", load.end().await);
}
