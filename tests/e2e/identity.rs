//! Who may speak for whom over gRPC: client certificates of every sort.

use std::time::{Duration, Instant};

use outrigger_runtime::tls::ClientTls;
use outrigger_tests::outrigger::{ADMIN, Outrigger, tenant_identity};
use outrigger_tests::pki::Authority;
use outrigger_tests::stream::{Opened, stream, sync};
use outrigger_tests::tenant::Tenant;
use outrigger_tests::{InWords, eventually, holds};
use rcgen::{BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, KeyUsagePurpose, SanType};
use serde_json::json;
use time::OffsetDateTime;
use tonic::{Code, Status};

/// Opens a stream, says something, and ends it in order: how the manager answers.
async fn call(outrigger: &Outrigger, tls: &ClientTls, tenant: &str) -> Result<(), Status> {
    let opened = stream(outrigger.grpc_port, tls, &[tenant.as_bytes()]).await;
    let (sender, call) = opened.map_err(|e| Status::unavailable(format!("{e:#}")))?;
    let _ = sender.send(sync([])).await;
    drop(sender);
    call.await.unwrap()
}

#[tokio::test]
async fn a_certificate_speaks_for_its_own_tenant_alone() {
    let o = Outrigger::shared().await;
    let red = Tenant::without_agent(o, "id-red", &[]).await;
    let _blue = Tenant::without_agent(o, "id-blue", &[]).await;
    let own = o.client_tls("id-red", &[&tenant_identity("id-red")]);
    call(o, &own, "id-red").await.unwrap();
    // Another's, and one that isn't there: the same words.
    let other = call(o, &own, "id-blue").await.unwrap_err();
    let nobody = call(o, &own, "id-nobody").await.unwrap_err();
    assert_eq!((other.code(), nobody.code()), (Code::PermissionDenied, Code::PermissionDenied));
    assert_eq!(other.message().replace("id-blue", "T"), nobody.message().replace("id-nobody", "T"));
    // The log has both: who, and for whom.
    let log = std::fs::read_to_string(o.plane.log("manager")).unwrap();
    let line = log.lines().find(|line| line.contains("refused call") && line.contains("id-blue")).unwrap();
    assert!(line.contains("spiffe://outrigger/tenant/id-red"), "{line}");
    // The administrator may, and gets the true reason.
    let admin = o.client_tls("id-admin", &[ADMIN]);
    call(o, &admin, "id-blue").await.unwrap();
    assert_eq!(call(o, &admin, "id-nobody").await.unwrap_err().code(), Code::NotFound);
    // A DNS name counts once the Tenant lists it; a certificate with a URI is called by that alone.
    let dns = o.client_tls("id-dns", &["agent.id-red.example"]);
    assert_eq!(call(o, &dns, "id-red").await.unwrap_err().code(), Code::PermissionDenied);
    red.set(json!({"identities": [tenant_identity("id-red"), "agent.id-red.example"]})).await.unwrap();
    eventually("the name is known", || async { call(o, &dns, "id-red").await }).await;
    let both = o.client_tls("id-both", &["agent.id-red.example", "spiffe://outrigger/stranger"]);
    assert_eq!(call(o, &both, "id-red").await.unwrap_err().code(), Code::PermissionDenied);
}

#[tokio::test]
async fn what_is_no_clients_certificate_is_refused() {
    let o = Outrigger::shared().await;
    let _t = Tenant::without_agent(o, "id-bad", &[]).await;
    let own = tenant_identity("id-bad");
    let issue = |file: &str, change: &dyn Fn(&mut CertificateParams)| {
        let pair = o.authority.issue_with(file, &[&own], change).unwrap();
        ClientTls { ca: o.authority.file(), identity: Some((pair.cert, pair.key)) }
    };
    call(o, &issue("id-good", &|_| {}), "id-bad").await.unwrap();

    let two = issue("id-two", &|params| {
        params.subject_alt_names.push(SanType::URI("spiffe://outrigger/tenant/id-other".try_into().unwrap()));
    });
    let status = call(o, &two, "id-bad").await.unwrap_err();
    assert_eq!(status.code(), Code::Unauthenticated);
    assert!(status.message().contains("2 URI SANs"), "{status}");
    let signer = issue("id-signer", &|params| params.key_usages = vec![KeyUsagePurpose::KeyCertSign]);
    let status = call(o, &signer, "id-bad").await.unwrap_err();
    assert!(status.message().contains("may sign certificates"), "{status}");

    // TLS itself has these: no call gets through, and none is answered as if it had.
    let now = OffsetDateTime::now_utc();
    let ca = issue("id-ca", &|params| params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained));
    let server = issue("id-server", &|params| {
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    });
    let expired = issue("id-expired", &|params| params.not_after = now - Duration::from_secs(60));
    let future = issue("id-future", &|params| params.not_before = now + Duration::from_secs(3600));
    let stranger = Authority::new(&o.plane.dir.join("pki-stranger"), "stranger").unwrap();
    let pair = stranger.issue("id-unknown", &[&own]).unwrap();
    let unknown = ClientTls { ca: o.authority.file(), identity: Some((pair.cert, pair.key)) };
    for (what, tls) in
        [("ca", ca), ("server", server), ("expired", expired), ("future", future), ("unknown CA", unknown)]
    {
        let status = call(o, &tls, "id-bad").await.unwrap_err();
        assert!(
            matches!(status.code(), Code::Unavailable | Code::Unknown | Code::Cancelled | Code::Internal),
            "{what}: {status}"
        );
    }
}

/// How long after `since` the manager has ended the stream, and its words. What must end within 10 s.
async fn ends(since: Instant, opened: Opened) -> (Duration, Status) {
    let (sender, call) = opened;
    let status =
        tokio::time::timeout(Duration::from_secs(30), call).await.expect("it ends").unwrap().unwrap_err();
    drop(sender);
    (since.elapsed(), status)
}

#[tokio::test]
async fn a_stream_ends_with_its_certificate() {
    let o = Outrigger::shared().await;
    let _t = Tenant::without_agent(o, "id-short", &[]).await;
    let life = Duration::from_secs(4);
    let end = OffsetDateTime::now_utc() + life;
    let began = Instant::now();
    let pair = o
        .authority
        .issue_with("id-short", &[&tenant_identity("id-short")], |params| params.not_after = end)
        .unwrap();
    let tls = ClientTls { ca: o.authority.file(), identity: Some((pair.cert, pair.key)) };
    let opened = stream(o.grpc_port, &tls, &[b"id-short"]).await.unwrap();
    opened.0.send(sync([])).await.unwrap();
    let (after, status) = ends(began, opened).await;
    assert_eq!(status.code(), Code::Unauthenticated, "{status}");
    assert!(status.message().contains("has expired"), "{status}");
    assert!(after > life - Duration::from_secs(2), "not before: {after:?}");
}

#[tokio::test]
async fn a_stream_ends_with_its_identity() {
    let t = Tenant::without_agent(Outrigger::shared().await, "id-gone", &[]).await;
    let opened = t.opens_stream([]).await;
    eventually("it is connected", || async {
        let status = t.object().get("id-gone").await.in_words()?.status.unwrap_or_default();
        let stream = status.stream.ok_or("no stream")?;
        holds(stream.connected && stream.last_sync.is_some(), format!("{stream:?}"))
    })
    .await;
    t.set(json!({"identities": ["somebody.else.example"]})).await.unwrap();
    let (_, status) = ends(Instant::now(), opened).await;
    assert_eq!(status.code(), Code::PermissionDenied, "{status}");
    eventually("the status says so", || async {
        let status = t.object().get("id-gone").await.in_words()?.status.unwrap_or_default();
        holds(status.stream.as_ref().is_some_and(|s| !s.connected && s.claim == 1), format!("{status:?}"))
    })
    .await;
}
