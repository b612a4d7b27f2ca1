use std::sync::Arc;

use futures::{SinkExt, StreamExt};
use rcgen::{CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls_pki_types::PrivateKeyDer;
use rustls_pki_types::pem::PemObject;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::handshake::server::{ErrorResponse, Request, Response};

use super::*;

const NAME: &str = "outrigger-webhook.outrigger-system.svc";

/// A CA, and a server with a certificate of it.
fn server() -> (Vec<u8>, TlsAcceptor) {
    let mut params = CertificateParams::new(vec![]).unwrap();
    params.is_ca = IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let ca = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    let key = KeyPair::generate().unwrap();
    let leaf = CertificateParams::new(vec![NAME.to_owned()]).unwrap().signed_by(&key, &ca).unwrap();
    let config =
        rustls::ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(
                vec![leaf.der().clone()],
                PrivateKeyDer::from_pem_slice(key.serialize_pem().as_bytes()).unwrap(),
            )
            .unwrap();
    (ca.pem().into_bytes(), TlsAcceptor::from(Arc::new(config)))
}

/// An API server that forwards one port of one Pod: each frame begins with its channel, data is 0 and errors are 1, and the
/// first of each channel has the port.
async fn forward(listener: TcpListener, port: u16, acceptor: TlsAcceptor) {
    let (stream, _) = listener.accept().await.unwrap();
    let mut asked = String::new();
    #[allow(clippy::result_large_err)] // tungstenite's type
    let protocol = |request: &Request, mut response: Response| -> Result<Response, ErrorResponse> {
        asked = request.uri().to_string();
        let named = request.headers()["sec-websocket-protocol"].to_str().unwrap();
        let first = named.split(',').next().unwrap().trim().parse().unwrap();
        response.headers_mut().insert("sec-websocket-protocol", first);
        Ok(response)
    };
    let socket = tokio_tungstenite::accept_hdr_async(stream, protocol).await.unwrap();
    assert!(asked.starts_with("/api/v1/namespaces/ns/pods/p/portforward?"), "{asked}");
    let (mut to, mut from) = socket.split();
    for channel in [0, 1] {
        let [low, high] = port.to_le_bytes();
        to.send(Message::binary(vec![channel, low, high])).await.unwrap();
    }
    let (near, far) = tokio::io::duplex(64 * 1024);
    tokio::spawn(async move { acceptor.accept(far).await.map(drop) });
    let (mut reads, mut writes) = tokio::io::split(near);
    let outward = async {
        let mut buffer = vec![0; 16 * 1024];
        while let Ok(n @ 1..) = reads.read(&mut buffer).await {
            to.send(Message::binary([&[0], &buffer[..n]].concat())).await.unwrap();
        }
    };
    let inward = async {
        while let Some(Ok(message)) = from.next().await {
            let data = message.into_data();
            if data.first() == Some(&0) && writes.write_all(&data[1..]).await.is_err() {
                break;
            }
        }
    };
    tokio::join!(outward, inward);
}

#[tokio::test]
async fn a_pod_is_asked_through_the_api_server() {
    let (ca, acceptor) = server();
    let (other, _) = server();
    for (trusted, expected) in [(&ca, true), (&other, false)] {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let client = Client::try_from(kube::Config::new(url.parse().unwrap())).unwrap();
        let serving = tokio::spawn(forward(listener, 9443, acceptor.clone()));
        let shown = forwarded(&client, ("ns", "p", 9443), trusted, NAME).await.unwrap();
        assert_eq!(shown.verdict == Verdict::Trusted, expected, "{:?}", shown.verdict);
        serving.abort();
    }
    // Nobody is there.
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let client = Client::try_from(kube::Config::new(format!("http://{closed}").parse().unwrap())).unwrap();
    assert!(matches!(outcome(&forwarded(&client, ("ns", "p", 1), &ca, NAME).await), Outcome::Failed(_)));
}
