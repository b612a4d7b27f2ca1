//! The CA of the agents' certificates is withdrawn while their streams are open.

use outrigger_tests::control_plane::replace;
use outrigger_tests::outrigger::tenant_identity;
use outrigger_tests::pki::Authority;
use outrigger_tests::stream::stream;
use outrigger_tests::{eventually, holds};

use crate::outages::stage::{StreamedTenant, stage};

#[tokio::test]
async fn streams_end_when_the_ca_of_their_certificates_is_withdrawn_and_come_back_with_it() {
    let (_turn, o) = stage().await;
    let other = Authority::new(&o.plane.dir.join("other-ca"), "other").unwrap();
    let ca = o.plane.dir.join("clients.crt");
    replace(&ca, &o.authority.pem()).unwrap();
    let args = [format!("--tls-client-ca-file={}", ca.display()), "--tls-reload-interval=200ms".to_owned()];
    let (port, _) = o.another_manager("manager-ca", &args).await;
    let mut t = StreamedTenant::new(o, "withdrawn").await;
    let before = t.sync_at(port, &["w1", "w2"]).await;
    let tls = o.client_tls("withdrawn", &[&tenant_identity("withdrawn")]);
    let (_sender, call) = stream(port, &tls, &[b"withdrawn"]).await.unwrap();

    replace(&ca, &other.pem()).unwrap();
    // Without an end of its own this waits until patience ends.
    let ended = eventually("the stream has ended", || async { holds(call.is_finished(), "it is open") });
    ended.await;
    assert!(call.await.unwrap().is_err());
    let refused = match stream(port, &tls, &[b"withdrawn"]).await {
        Err(_) => true,
        Ok((_sender, call)) => call.await.unwrap().is_err(),
    };
    assert!(refused, "a certificate of the withdrawn CA was taken");
    assert_eq!(t.are(&["w1", "w2"]).await.unwrap(), before, "companions stay");

    replace(&ca, &o.authority.pem()).unwrap();
    t.hang_up().await;
    let after = t.sync_at(port, &["w1", "w2"]).await;
    assert_eq!(after, before);
    o.plane.command("term manager-ca").unwrap();
}
