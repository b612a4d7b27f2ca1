use std::path::{Path, PathBuf};

use axum::routing::get;
use axum::{Extension, Router};
use http_body_util::{BodyExt, Empty};
use hyper::client::conn::{http1, http2};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::*;
use crate::bind::Bind;
use crate::tls::ClientTls;

const SOON: Duration = Duration::from_secs(20);

struct Running {
    address: SocketAddr,
    drain: CancellationToken,
    force: CancellationToken,
    task: JoinHandle<()>,
}

fn serve(tls: Option<Arc<ServerTls>>, limits: Limits) -> Running {
    let listener = "127.0.0.1:0".parse::<Bind>().unwrap().listen().unwrap();
    let address = listener.address().unwrap();
    let (drain, force) = (CancellationToken::new(), CancellationToken::new());
    let mut server = Server::new("test", listener).limits(limits);
    if let Some(tls) = tls {
        server = server.tls(tls);
    }
    let router = Router::new()
        .route("/", get(async || "hello"))
        .route(
            "/slow",
            get(async || {
                tokio::time::sleep(Duration::from_millis(300)).await;
                "late"
            }),
        )
        .route("/never", get(async || std::future::pending::<&str>().await))
        .route("/peer", get(async |Extension(peer): Extension<Peer>| peer.certificates.len().to_string()));
    let task = tokio::spawn(server.run(router, drain.clone(), force.clone()));
    Running { address, drain, force, task }
}

/// One request over HTTP/1.1.
async fn ask<S>(stream: S, path: &str) -> Result<String, hyper::Error>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    let request = http::Request::get(path).header("host", "x").body(Empty::<&[u8]>::new()).unwrap();
    let body = sender.send_request(request).await?.into_body().collect().await?.to_bytes();
    Ok(String::from_utf8(body.to_vec()).unwrap())
}

/// A CA with a certificate for `127.0.0.1`, as files.
fn files(dir: &Path) -> (PathBuf, PathBuf, PathBuf) {
    let mut params = CertificateParams::new(vec![]).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let ca = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    let key = KeyPair::generate().unwrap();
    let cert = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap().signed_by(&key, &ca).unwrap();
    let paths = (dir.join("ca.crt"), dir.join("tls.crt"), dir.join("tls.key"));
    std::fs::write(&paths.0, ca.pem()).unwrap();
    std::fs::write(&paths.1, cert.pem()).unwrap();
    std::fs::write(&paths.2, key.serialize_pem()).unwrap();
    paths
}

#[tokio::test]
async fn tls_serves_both_versions_of_http_and_shows_who_asks() {
    let dir = tempfile::tempdir().unwrap();
    let (ca, cert, key) = files(dir.path());
    let tls = Arc::new(ServerTls::load(cert.clone(), key.clone(), Some(ca.clone())).unwrap());
    let server = serve(Some(tls), Limits::default());
    let connect = async |alpn: &[u8], identity: Option<(PathBuf, PathBuf)>| {
        let config = ClientTls { ca: ca.clone(), identity }.config(&[alpn]).unwrap();
        let stream = TcpStream::connect(server.address).await.unwrap();
        tokio_rustls::TlsConnector::from(Arc::new(config))
            .connect("127.0.0.1".try_into().unwrap(), stream)
            .await
    };
    let identity = || Some((cert.clone(), key.clone()));
    assert_eq!(ask(connect(b"http/1.1", identity()).await.unwrap(), "/peer").await.unwrap(), "1");

    let io = TokioIo::new(connect(b"h2", identity()).await.unwrap());
    let (mut sender, connection) = http2::handshake(TokioExecutor::new(), io).await.unwrap();
    tokio::spawn(connection);
    let request = http::Request::get("https://x/").body(Empty::<&[u8]>::new()).unwrap();
    let body = sender.send_request(request).await.unwrap().into_body().collect().await.unwrap().to_bytes();
    assert_eq!(&body[..], b"hello");

    // Without a certificate the handshake fails, in TLS 1.3 with the first read at the latest.
    let refused = match connect(b"http/1.1", None).await {
        Err(_) => true,
        Ok(stream) => ask(stream, "/").await.is_err(),
    };
    assert!(refused);
}

#[tokio::test]
async fn who_never_finishes_is_cut_off() {
    let dir = tempfile::tempdir().unwrap();
    let (_, cert, key) = files(dir.path());
    let tls = Arc::new(ServerTls::load(cert, key, None).unwrap());
    let short = Duration::from_millis(200);
    let limits = Limits { handshake: short, headers: short, ..Limits::default() };
    for (server, begin) in [
        (serve(Some(tls), limits.clone()), &b"\x16\x03\x01"[..]),
        (serve(None, limits), b"GET / HTTP/1.1\r\nHos"),
    ] {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        stream.write_all(begin).await.unwrap();
        let mut rest = Vec::new();
        let _ = timeout(SOON, stream.read_to_end(&mut rest)).await.expect("the server closes the connection");
    }
}

#[tokio::test]
async fn connections_over_the_limit_wait() {
    let server = serve(None, Limits { max_connections: 1, ..Limits::default() });
    let first = TcpStream::connect(server.address).await.unwrap();
    let second = TcpStream::connect(server.address).await.unwrap();
    assert!(timeout(Duration::from_millis(300), ask(second, "/")).await.is_err(), "no slot is free");
    drop(first);
    let third = TcpStream::connect(server.address).await.unwrap();
    assert_eq!(timeout(SOON, ask(third, "/")).await.unwrap().unwrap(), "hello");
}

#[tokio::test]
async fn a_drain_finishes_what_is_under_way_and_takes_no_more() {
    let server = serve(None, Limits::default());
    let stream = TcpStream::connect(server.address).await.unwrap();
    let slow = tokio::spawn(ask(stream, "/slow"));
    tokio::time::sleep(Duration::from_millis(100)).await;
    server.drain.cancel();
    assert_eq!(slow.await.unwrap().unwrap(), "late");
    timeout(SOON, server.task).await.expect("it ends").unwrap();
    assert!(TcpStream::connect(server.address).await.is_err());
}

#[tokio::test]
async fn what_never_finishes_is_dropped_in_the_end() {
    let server = serve(None, Limits::default());
    let stream = TcpStream::connect(server.address).await.unwrap();
    let never = tokio::spawn(ask(stream, "/never"));
    tokio::time::sleep(Duration::from_millis(100)).await;
    server.drain.cancel();
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(!server.task.is_finished());
    server.force.cancel();
    timeout(SOON, server.task).await.expect("it ends").unwrap();
    assert!(never.await.unwrap().is_err());
}

#[tokio::test]
async fn old_connections_are_asked_to_end() {
    let server = serve(None, Limits { max_age: Some(Duration::from_millis(200)), ..Limits::default() });
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    let mut rest = Vec::new();
    let read = timeout(SOON, stream.read_to_end(&mut rest)).await.expect("the server closes the connection");
    assert!(read.is_ok());
}
