use std::time::Duration;

use axum::Router;
use axum::routing::get;
use rustls::{ClientConfig, HandshakeKind};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{sleep, timeout};

use super::*;
use crate::serve::Limits;
use crate::testing::{Authority, Mount, Running, SOON, ask, serve, serve_open, settings};

fn hello() -> Router {
    Router::new().route("/", get(async || "hello"))
}

/// A client of this authority, which keeps sessions to resume.
fn client(dir: &tempfile::TempDir, authority: &Authority, identity: Option<&Mount>) -> Arc<ClientConfig> {
    let ca = dir.path().join("ca.crt");
    std::fs::write(&ca, authority.pem()).unwrap();
    Arc::new(ClientTls { ca, identity: identity.map(Mount::pair) }.config(&[b"http/1.1"]).unwrap())
}

/// The certificate that the server shows now.
async fn shown(server: &Running, config: &Arc<ClientConfig>) -> Vec<u8> {
    let stream = server.connect_tls(config).await.unwrap();
    stream.get_ref().1.peer_certificates().unwrap()[0].to_vec()
}

fn der(pem: &str) -> Vec<u8> {
    chain(pem.as_bytes()).unwrap()[0].to_vec()
}

#[test]
fn a_swapped_secret_is_used_and_a_broken_one_is_not() {
    let (mut mount, authority) = (Mount::new(), Authority::new());
    mount.publish_pair(&authority.pair());
    let tls = mount.tls(false);
    let first = tls.config();
    assert!(!tls.refresh(), "nothing has changed");

    mount.publish_pair(&authority.pair());
    assert!(tls.refresh());
    let second = tls.config();
    assert!(!Arc::ptr_eq(&first, &second));

    let (cert, _) = authority.pair();
    let (_, foreign) = authority.pair();
    for broken in
        [("no certificate".to_owned(), foreign.clone()), (cert.clone(), foreign), (cert, String::new())]
    {
        mount.publish_pair(&broken);
        assert!(!tls.refresh());
        assert!(Arc::ptr_eq(&second, &tls.config()), "the last good one stays");
    }
    assert_eq!(tls.failures.get(), 3);
    tls.refresh();
    assert_eq!(tls.failures.get(), 3, "the same failure counts once");
    std::fs::remove_file(mount.path("..data")).unwrap();
    assert!(!tls.refresh());
    mount.publish_pair(&authority.pair());
    assert!(tls.refresh());
}

#[tokio::test]
async fn clients_see_the_new_certificate_and_never_a_broken_one() {
    let (mut mount, authority) = (Mount::new(), Authority::new());
    let dir = tempfile::tempdir().unwrap();
    let config = client(&dir, &authority, None);
    let (first, second, third) = (authority.pair(), authority.pair(), authority.pair());
    mount.publish_pair(&first);
    let args = ServerTlsArgs {
        tls_cert_file: Some(mount.path("tls.crt")),
        tls_key_file: Some(mount.path("tls.key")),
        tls_reload_interval: Duration::from_millis(20),
        ..settings()
    };
    let tls = args.load().unwrap().unwrap();
    let server = serve(hello(), Some(tls.clone()), Limits::default());
    tokio::spawn(tls.clone().follow());
    assert_eq!(shown(&server, &config).await, der(&first.0));
    let old = server.connect_tls(&config).await.unwrap();

    // A resumed session shows no certificate of its own but the one it began with: each look is a new client.
    let fresh = || client(&dir, &authority, None);
    let until = async |pem: &str| {
        while shown(&server, &fresh()).await != der(pem) {
            sleep(Duration::from_millis(5)).await;
        }
    };
    mount.publish_pair(&second);
    timeout(SOON, until(&second.0)).await.expect("the new certificate is shown");
    assert_eq!(ask(old, "/").await.unwrap(), "hello", "connections outlive their certificate");

    mount.publish_pair(&(third.0.clone(), first.1));
    timeout(SOON, async {
        while tls.failures.get() == 0 {
            sleep(Duration::from_millis(5)).await;
        }
    })
    .await
    .expect("the foreign key is noticed");
    assert_eq!(shown(&server, &fresh()).await, der(&second.0));

    mount.publish_pair(&third);
    timeout(SOON, until(&third.0)).await.expect("the mended one is shown");
}

/// What an authority has issued to a client.
fn identity(authority: &Authority) -> Mount {
    let mut mount = Mount::new();
    mount.publish_pair(&authority.pair());
    mount
}

async fn served(server: &Running, config: &Arc<ClientConfig>) -> bool {
    match server.connect_tls(config).await {
        Err(_) => false,
        Ok(stream) => ask(stream, "/").await.is_ok(),
    }
}

#[tokio::test]
async fn the_client_ca_changes_while_we_run() {
    let (mut mount, server_ca) = (Mount::new(), Authority::new());
    let (first, second) = (Authority::new(), Authority::new());
    let dir = tempfile::tempdir().unwrap();
    let (cert, key) = server_ca.pair();
    mount.publish(&[("tls.crt", &cert), ("tls.key", &key), ("ca.crt", &first.pem())]);
    let (one, two) = (identity(&first), identity(&second));
    let (one, two) = (client(&dir, &server_ca, Some(&one)), client(&dir, &server_ca, Some(&two)));

    let tls = mount.tls(true);
    let server = serve(hello(), Some(tls.clone()), Limits::default());
    assert_eq!((served(&server, &one).await, served(&server, &two).await), (true, false));

    mount.publish(&[("tls.crt", &cert), ("tls.key", &key), ("ca.crt", &second.pem())]);
    assert!(tls.refresh());
    assert_eq!((served(&server, &one).await, served(&server, &two).await), (false, true));

    // The last valid CA stays in use.
    mount.publish(&[("tls.crt", &cert), ("tls.key", &key), ("ca.crt", "")]);
    assert!(!tls.refresh());
    assert_eq!((served(&server, &one).await, served(&server, &two).await), (false, true));
}

#[tokio::test]
async fn clients_may_be_asked_only_and_what_they_show_is_verified() {
    let (mut mount, server_ca) = (Mount::new(), Authority::new());
    let (first, second) = (Authority::new(), Authority::new());
    let dir = tempfile::tempdir().unwrap();
    let (cert, key) = server_ca.pair();
    mount.publish(&[("tls.crt", &cert), ("tls.key", &key), ("ca.crt", &first.pem())]);
    let args = ServerTlsArgs {
        tls_cert_file: Some(mount.path("tls.crt")),
        tls_key_file: Some(mount.path("tls.key")),
        tls_client_ca_file: Some(mount.path("ca.crt")),
        ..settings()
    };
    let tls = args.load_asking().unwrap().unwrap();
    let shown = axum::Router::new().route(
        "/",
        axum::routing::get(async |axum::Extension(peer): axum::Extension<crate::serve::Peer>| {
            peer.certificates.len().to_string()
        }),
    );
    let server = serve(shown, Some(tls.clone()), Limits::default());
    let asks = async |authority: Option<&Authority>| {
        let identity = authority.map(identity);
        let config = client(&dir, &server_ca, identity.as_ref());
        match server.connect_tls(&config).await {
            Ok(stream) => ask(stream, "/").await.ok(),
            Err(_) => None,
        }
    };
    let [none, one] = ["0", "1"].map(|count| Some(count.to_owned()));
    assert_eq!(
        [asks(None).await, asks(Some(&first)).await, asks(Some(&second)).await],
        [none.clone(), one.clone(), None]
    );
    mount.publish(&[("tls.crt", &cert), ("tls.key", &key), ("ca.crt", &second.pem())]);
    assert!(tls.refresh());
    assert_eq!([asks(None).await, asks(Some(&first)).await, asks(Some(&second)).await], [none, None, one]);
}

#[tokio::test]
async fn one_certificate_serves_clients_with_and_without_certificates_on_two_ports() {
    let (mut mount, authority, clients) = (Mount::new(), Authority::new(), Authority::new());
    let dir = tempfile::tempdir().unwrap();
    let publish = |mount: &mut Mount| {
        let (cert, key) = authority.pair();
        mount.publish(&[("tls.crt", &cert), ("tls.key", &key), ("ca.crt", &clients.pem())]);
    };
    publish(&mut mount);
    let tls = mount.tls(true);
    let (verified, open) =
        (serve(hello(), Some(tls.clone()), Limits::default()), serve_open(hello(), tls.clone()));
    let (nobody, known) =
        (client(&dir, &authority, None), client(&dir, &authority, Some(&identity(&clients))));
    assert_eq!((served(&verified, &nobody).await, served(&verified, &known).await), (false, true));
    assert_eq!((served(&open, &nobody).await, served(&open, &known).await), (true, true));
    // A session of the open port is none at the other one, and both show the new certificate.
    assert!(!served(&verified, &nobody).await);
    publish(&mut mount);
    assert!(tls.refresh());
    assert_eq!(shown(&open, &nobody).await, shown(&verified, &known).await);
    assert!(served(&open, &nobody).await && !served(&verified, &nobody).await);
}

#[tokio::test]
async fn connections_end_when_the_ca_of_their_certificate_is_withdrawn() {
    let (mut mount, server_ca) = (Mount::new(), Authority::new());
    let (first, second) = (Authority::new(), Authority::new());
    let dir = tempfile::tempdir().unwrap();
    let (cert, key) = server_ca.pair();
    let both = format!("{}{}", first.pem(), second.pem());
    mount.publish(&[("tls.crt", &cert), ("tls.key", &key), ("ca.crt", &both)]);
    let tls = mount.tls(true);
    let server = serve(hello(), Some(tls.clone()), Limits::default());
    let connect = async |authority: &Authority| {
        let identity = identity(authority);
        server.connect_tls(&client(&dir, &server_ca, Some(&identity))).await.unwrap()
    };
    let (mut withdrawn, kept) = (connect(&first).await, connect(&second).await);

    // A new certificate of our own is nothing to clients.
    let (cert, key) = server_ca.pair();
    mount.publish(&[("tls.crt", &cert), ("tls.key", &key), ("ca.crt", &both)]);
    assert!(tls.refresh());
    withdrawn.write_all(b"GET / HTTP/1.1\r\nhost: h\r\n\r\n").await.unwrap();
    let mut answer = [0; 12];
    withdrawn.read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer, b"HTTP/1.1 200");

    mount.publish(&[("tls.crt", &cert), ("tls.key", &key), ("ca.crt", &second.pem())]);
    assert!(tls.refresh());
    let mut rest = Vec::new();
    let _ = timeout(SOON, withdrawn.read_to_end(&mut rest)).await.expect("the connection is closed");
    assert_eq!(ask(kept, "/").await.unwrap(), "hello", "the other CA is still trusted");
}

#[tokio::test]
async fn sessions_are_resumed_only_where_clients_are_not_verified() {
    let (mut mount, authority) = (Mount::new(), Authority::new());
    let (cert, key) = authority.pair();
    mount.publish(&[("tls.crt", &cert), ("tls.key", &key), ("ca.crt", &authority.pem())]);
    let dir = tempfile::tempdir().unwrap();
    for (verified, expected) in [(false, HandshakeKind::Resumed), (true, HandshakeKind::Full)] {
        let server = serve(hello(), Some(mount.tls(verified)), Limits::default());
        let config = client(&dir, &authority, Some(&mount));
        // Tickets come with the first answer.
        assert!(served(&server, &config).await);
        let stream = server.connect_tls(&config).await.unwrap();
        assert_eq!(stream.get_ref().1.handshake_kind(), Some(expected));
    }
}

#[test]
fn what_can_not_be_used_is_named() {
    let (mut mount, authority) = (Mount::new(), Authority::new());
    let fails = |mount: &Mount, ca: Option<PathBuf>| {
        let error = ServerTls::load(mount.path("tls.crt"), mount.path("tls.key"), ca).unwrap_err();
        format!("{error:#}")
    };
    let error = fails(&mount, None);
    assert!(error.contains("tls.crt can't be read"), "{error}");
    let ((cert, key), (_, foreign)) = (authority.pair(), authority.pair());
    for (cert, key, ca, expected) in [
        ("", &*key, None, "tls.crt can't be used: there is no certificate"),
        (&*cert, "", None, "tls.key can't be used: there is no private key"),
        (&*cert, &*foreign, None, "tls.key can't be used together"),
        (&*cert, &*key, Some("x"), "ca.crt can't be used: there is no certificate"),
        (
            &*cert,
            &*key,
            Some("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----"),
            "ca.crt can't be used",
        ),
    ] {
        mount.publish(&[("tls.crt", cert), ("tls.key", key), ("ca.crt", ca.unwrap_or_default())]);
        let error = fails(&mount, ca.map(|_| mount.path("ca.crt")));
        assert!(error.contains(expected), "{error}");
    }
    let missing = ClientTls { ca: mount.path("none.crt"), identity: None }.config(&[]).unwrap_err();
    assert!(format!("{missing:#}").contains("none.crt can't be read"), "{missing:#}");
}

#[test]
fn settings_that_can_not_be_meant_are_refused() {
    let half = ServerTlsArgs { tls_cert_file: Some("x".into()), ..settings() };
    assert!(half.load().unwrap_err().to_string().contains("needed together"));
    let never = ServerTlsArgs { tls_reload_interval: Duration::ZERO, ..settings() };
    assert!(never.load().unwrap_err().to_string().contains("--tls-reload-interval"));
    assert!(settings::<ServerTlsArgs>().load().unwrap().is_none());
}

#[test]
fn the_end_of_a_certificate_is_shown() {
    let (mut mount, authority) = (Mount::new(), Authority::new());
    mount.publish_pair(&authority.pair());
    let tls = mount.tls(false);
    let mut registry = crate::admin::registry();
    tls.register(&mut registry, &Readiness::default());
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
    let line = format!(
        "outrigger_tls_certificate_not_after_seconds{{use=\"serving\"}} {}\n",
        Validity::of(&first_certificate(&mount.path("tls.crt")).unwrap()).unwrap().not_after
    );
    assert!(text.contains(&line), "{text}");
}

#[tokio::test]
async fn what_is_given_is_served_and_nothing_before_it() {
    let authority = Authority::new();
    let dir = tempfile::tempdir().unwrap();
    let config = client(&dir, &authority, None);
    let tls = Arc::new(ServerTls::given(None).unwrap());
    let server = serve(hello(), Some(tls.clone()), Limits::default());
    assert!(!served(&server, &config).await, "there is no certificate yet");
    let (first, second) = (authority.pair(), authority.pair());
    tls.give(first.0.as_bytes(), first.1.as_bytes());
    assert_eq!(shown(&server, &config).await, der(&first.0));
    tls.give(second.0.as_bytes(), first.1.as_bytes());
    let fresh = client(&dir, &authority, None);
    assert_eq!(shown(&server, &fresh).await, der(&first.0), "a foreign key leaves the last good one");
    tls.give(second.0.as_bytes(), second.1.as_bytes());
    let fresh = client(&dir, &authority, None);
    assert_eq!(shown(&server, &fresh).await, der(&second.0));
}

#[test]
fn the_client_ca_that_ends_last_counts() {
    let (mut mount, authority) = (Mount::new(), Authority::new());
    let (old, new) = (Authority::of("old", (-60, 600)), Authority::of("new", (-60, 1200)));
    let end = Validity::of(&CertificateDer::from_pem_slice(new.pem().as_bytes()).unwrap()).unwrap().not_after;
    let (cert, key) = authority.pair();
    mount.publish(&[("tls.crt", &cert), ("tls.key", &key), ("ca.crt", &(new.pem() + &old.pem()))]);
    let tls = mount.tls(true);
    assert_eq!(tls.client_ca.not_after(), Some(end));
}
