use std::convert::Infallible;
use std::task::{Context, Poll};

use axum::body::Bytes;
use axum::routing::{get, post};
use axum::{Extension, Router};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;

use super::*;
use crate::bind::Bind;
use crate::testing::{Authority, Mount, Running, SOON, ask, ask_http2};
use crate::tls::ClientTls;

const SHORT: Duration = Duration::from_millis(200);

fn router() -> Router {
    Router::new()
        .route("/", get(async || "hello"))
        .route("/body", post(async |body: Bytes| body.len().to_string()))
        .route(
            "/slow",
            get(async || {
                tokio::time::sleep(Duration::from_millis(300)).await;
                "late"
            }),
        )
        .route("/never", get(async || std::future::pending::<&str>().await))
        .route(
            "/peer",
            get(async |Extension(peer): Extension<Peer>| {
                format!("{} {}", peer.certificates.len(), peer.address.is_some())
            }),
        )
}

fn serve(tls: Option<Arc<ServerTls>>, limits: Limits) -> Running {
    crate::testing::serve(router(), tls, limits)
}

/// A server certificate, with its CA in the same directory as `ca`.
fn encrypted() -> (Mount, Arc<ServerTls>) {
    let (mut mount, authority) = (Mount::new(), Authority::new());
    mount.publish_pair(&authority.pair());
    std::fs::write(mount.path("ca"), authority.pem()).unwrap();
    let tls = mount.tls(false);
    (mount, tls)
}

/// A certificate for server and client, with its CA.
fn mutual() -> Mount {
    let (mut mount, authority) = (Mount::new(), Authority::new());
    let (cert, key) = authority.pair();
    mount.publish(&[("tls.crt", &cert), ("tls.key", &key), ("ca.crt", &authority.pem())]);
    mount
}

/// Reads until the server closes the connection.
async fn closed(mut stream: impl AsyncRead + Unpin) -> String {
    let mut rest = Vec::new();
    let _ = timeout(SOON, stream.read_to_end(&mut rest)).await.expect("the server closes the connection");
    String::from_utf8_lossy(&rest).into_owned()
}

#[tokio::test]
async fn tls_serves_both_versions_of_http_and_passes_the_client_on() {
    let mount = mutual();
    let (identity, ca) = (Some(mount.pair()), mount.path("ca.crt"));
    let server = serve(Some(mount.tls(true)), Limits::default());
    let client = |alpn: &[u8], identity| {
        let alpn: &[&[u8]] = if alpn.is_empty() { &[] } else { &[alpn] };
        Arc::new(ClientTls { ca: ca.clone(), identity }.config(alpn).unwrap())
    };
    // A client without ALPN uses HTTP/1.1.
    for alpn in [&b"http/1.1"[..], b""] {
        let stream = server.connect_tls(&client(alpn, identity.clone())).await.unwrap();
        assert_eq!(ask(stream, "/peer").await.unwrap(), "1 true");
    }
    let stream = server.connect_tls(&client(b"h2", identity)).await.unwrap();
    assert_eq!(ask_http2(stream, "/peer").await.unwrap().1, "1 true");

    // Without a certificate the handshake fails, in TLS 1.3 with the first read at the latest.
    let refused = match server.connect_tls(&client(b"http/1.1", None)).await {
        Err(_) => true,
        Ok(stream) => ask(stream, "/").await.is_err(),
    };
    assert!(refused);
}

#[tokio::test]
async fn unfinished_handshakes_and_headers_time_out() {
    let (_mount, tls) = encrypted();
    let limits = Limits { handshake: SHORT, headers: SHORT, ..Limits::default() };
    let (encrypted, plain) = (serve(Some(tls), limits.clone()), serve(None, limits));
    for (server, begin) in [
        (&encrypted, &b""[..]),
        (&encrypted, b"\x16\x03\x01"),
        (&plain, b""),
        (&plain, b"P"),
        (&plain, b"PRI * HTTP/2.0\r\n"),
        (&plain, b"GET / HTTP/1.1\r\nHos"),
    ] {
        let mut stream = server.connect().await;
        stream.write_all(begin).await.unwrap();
        closed(stream).await;
    }
}

#[tokio::test]
async fn a_connection_without_a_request_times_out() {
    let (mount, tls) = encrypted();
    let ca = mount.path("ca");
    let server = serve(Some(tls), Limits { headers: SHORT, ..Limits::default() });
    for alpn in [&b"http/1.1"[..], b"h2"] {
        let config = ClientTls { ca: ca.clone(), identity: None }.config(&[alpn]).unwrap();
        closed(server.connect_tls(&Arc::new(config)).await.unwrap()).await;
    }
}

#[tokio::test]
async fn an_endless_body_times_out() {
    let server = serve(None, Limits { request: SHORT, ..Limits::default() });
    let mut stream = server.connect().await;
    stream.write_all(b"POST /body HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nhalf").await.unwrap();
    let answer = closed(stream).await;
    assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
}

#[tokio::test]
async fn a_connection_can_be_idle_longer_than_the_timeout_of_its_first_headers() {
    let server = serve(None, Limits { headers: SHORT, ..Limits::default() });
    let mut stream = server.connect().await;
    let mut buffer = [0; 1024];
    for pause in [Duration::ZERO, SHORT * 3] {
        tokio::time::sleep(pause).await;
        stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
        let read = timeout(SOON, stream.read(&mut buffer)).await.unwrap().unwrap();
        assert!(buffer[..read].starts_with(b"HTTP/1.1 200 "), "after {pause:?}");
    }
    let server = serve(None, Limits { idle: SHORT, ..Limits::default() });
    let mut stream = server.connect().await;
    stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
    assert!(closed(stream).await.ends_with("hello"));
}

#[tokio::test]
async fn a_request_can_be_received_byte_by_byte() {
    let server = serve(None, Limits::default());
    let mut stream = server.connect().await;
    for byte in b"POST /body HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 3\r\n\r\nabc" {
        stream.write_all(&[*byte]).await.unwrap();
        tokio::task::yield_now().await;
    }
    assert!(closed(stream).await.ends_with("\r\n\r\n3"));
}

#[tokio::test]
async fn connections_over_the_limit_wait_for_requests_in_progress() {
    let server = serve(None, Limits { max_connections: 1, ..Limits::default() });
    let first = tokio::spawn(ask(server.connect().await, "/never"));
    tokio::time::sleep(Duration::from_millis(100)).await;
    let second = tokio::spawn(ask(server.connect().await, "/"));
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(!second.is_finished() && !first.is_finished(), "no slot is free");
    first.abort();
    let answer = timeout(SOON, second).await.expect("the waiting connection is served").unwrap();
    assert_eq!(answer.unwrap(), "hello");
}

#[tokio::test]
async fn idle_connections_are_closed_for_new_ones() {
    let (mount, tls) = encrypted();
    let ca = mount.path("ca");
    let server = serve(Some(tls), Limits { max_connections: 3, ..Limits::default() });
    let config = Arc::new(ClientTls { ca, identity: None }.config(&[b"http/1.1"]).unwrap());
    let kept = server.connect_tls(&config).await.unwrap();
    let never = tokio::spawn(ask(kept, "/never"));
    tokio::time::sleep(Duration::from_millis(100)).await;
    let mut idle = Vec::new();
    for _ in 0..20 {
        // Some send nothing, some nothing after their handshake.
        idle.push(server.connect().await);
        let stream = server.connect_tls(&config).await.unwrap();
        assert_eq!(timeout(SOON, ask(stream, "/")).await.expect("there is room").unwrap(), "hello");
    }
    for stream in idle.into_iter().take(17) {
        closed(stream).await;
    }
    assert!(!never.is_finished(), "a connection with a request in progress is never closed for others");
}

#[tokio::test]
async fn a_request_has_one_deadline_in_both_versions_of_http() {
    let limits = Limits { request: SHORT, headers: SHORT, streams: false, ..Limits::default() };
    let server = serve(None, limits);
    // A second request with endless headers.
    let mut stream = server.connect().await;
    stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
    let read = timeout(SOON, stream.read(&mut [0; 1024])).await.unwrap().unwrap();
    assert!(read > 0);
    stream.write_all(b"GET / HTTP/1.1\r\nHo").await.unwrap();
    closed(stream).await;
    // An endless body in HTTP/2: there is a response, and then the connection is closed.
    let (mut sender, connection) = h2::client::handshake(server.connect().await).await.unwrap();
    let connection = tokio::spawn(connection);
    let request = http::Request::post("http://x/body").body(()).unwrap();
    let (answer, mut body) = sender.send_request(request, false).unwrap();
    body.send_data(Bytes::from_static(b"half"), false).unwrap();
    let answer = timeout(SOON, answer).await.expect("it is answered").unwrap();
    assert_eq!(answer.status(), 503);
    let text = collected(answer.into_body()).await;
    assert!(text.contains("longer than 0.2 s"), "{text}");
    // A response that the client does not read: its window has no room for a byte.
    let mut builder = h2::client::Builder::new();
    builder.initial_window_size(0);
    let (mut other, second) = builder.handshake::<_, Bytes>(server.connect().await).await.unwrap();
    let second = tokio::spawn(second);
    let (answer, _) = other.send_request(http::Request::get("http://x/").body(()).unwrap(), true).unwrap();
    let answer = timeout(SOON, answer).await.unwrap().unwrap();
    assert_eq!(answer.status(), 200);
    let _ = timeout(SOON, second).await.expect("the server closes the connection");
    drop((sender, connection, answer));
}

#[tokio::test]
async fn a_response_that_the_client_does_not_read_times_out() {
    let router = Router::new().route("/large", get(async || vec![b'x'; 64 << 20]));
    let server = crate::testing::serve(router, None, Limits { request: SHORT, ..Limits::default() });
    let mut stream = server.connect().await;
    stream.write_all(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
    stream.readable().await.unwrap();
    // A drain waits for open requests, and so for ever unless the connection times out.
    server.drain.cancel();
    timeout(SOON, server.task).await.expect("the connection is closed").unwrap();
}

async fn collected(mut body: h2::RecvStream) -> String {
    let mut text = Vec::new();
    while let Some(data) = body.data().await {
        text.extend_from_slice(&data.unwrap());
    }
    String::from_utf8(text).unwrap()
}

#[tokio::test]
async fn a_drain_finishes_open_requests_and_accepts_no_more() {
    let server = serve(None, Limits::default());
    let slow = tokio::spawn(ask(server.connect().await, "/slow"));
    let silent = server.connect().await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    server.drain.cancel();
    assert_eq!(slow.await.unwrap().unwrap(), "late");
    closed(silent).await;
    timeout(SOON, server.task).await.expect("it ends").unwrap();
    assert!(TcpStream::connect(server.address).await.is_err());
}

#[tokio::test]
async fn a_server_that_shuts_down_asks_clients_to_reconnect() {
    let listener = "127.0.0.1:0".parse::<Bind>().unwrap().listen().unwrap();
    let address = listener.address().unwrap();
    let [leaving, drain, force] = [(); 3].map(|()| CancellationToken::new());
    let server = Server::new("test", listener).leaving(leaving.clone());
    let task = tokio::spawn(server.run(router(), drain.clone(), force));
    let request = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n";
    let mut kept = TcpStream::connect(address).await.unwrap();
    kept.write_all(request).await.unwrap();
    let mut answer = [0; 1024];
    let read = timeout(SOON, kept.read(&mut answer)).await.unwrap().unwrap();
    assert!(!String::from_utf8_lossy(&answer[..read]).contains("connection: close"));

    leaving.cancel();
    // Idle connections stay open: their clients may be about to send a request.
    tokio::time::sleep(SHORT).await;
    let fresh = TcpStream::connect(address).await.unwrap();
    for mut stream in [kept, fresh] {
        stream.write_all(request).await.unwrap();
        let answer = closed(stream).await;
        assert!(answer.contains("connection: close") && answer.ends_with("hello"), "{answer}");
    }
    let (headers, body) = ask_http2(TcpStream::connect(address).await.unwrap(), "/").await.unwrap();
    assert!(!headers.contains_key("connection") && body == "hello", "HTTP/2 has no such header");
    drain.cancel();
    timeout(SOON, task).await.expect("it ends").unwrap();
}

#[tokio::test]
async fn force_closes_what_never_finishes() {
    let server = serve(None, Limits::default());
    let never = tokio::spawn(ask(server.connect().await, "/never"));
    tokio::time::sleep(Duration::from_millis(100)).await;
    server.drain.cancel();
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(!server.task.is_finished());
    server.force.cancel();
    timeout(SOON, server.task).await.expect("it ends").unwrap();
    assert!(never.await.unwrap().is_err());
}

#[tokio::test]
async fn old_connections_are_closed_gracefully() {
    let server = serve(None, Limits { max_age: Some(SHORT), age_grace: SOON * 9, ..Limits::default() });
    let mut idle = server.connect().await;
    idle.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
    assert!(closed(idle).await.ends_with("hello"));
    let busy = ask_http2(server.connect().await, "/slow");
    assert_eq!(timeout(SOON, busy).await.unwrap().unwrap().1, "late", "open requests are finished");
}

#[tokio::test]
async fn endless_streams_of_old_connections_are_closed_forcibly() {
    let server = serve(None, Limits { max_age: Some(SHORT), age_grace: SHORT, ..Limits::default() });
    let never = ask_http2(server.connect().await, "/never");
    assert!(timeout(SOON, never).await.expect("the server closes the connection").is_err());
}

#[tokio::test]
async fn unix_sockets_are_served() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let bind: Bind = format!("unix://{}", path.display()).parse().unwrap();
    let (drain, force) = (CancellationToken::new(), CancellationToken::new());
    let server = Server::new("test", bind.listen().unwrap());
    let task = tokio::spawn(server.run(router(), drain.clone(), force));
    let connect = async || UnixStream::connect(&path).await.unwrap();
    assert_eq!(ask(connect().await, "/peer").await.unwrap(), "0 false");
    assert_eq!(ask_http2(connect().await, "/").await.unwrap().1, "hello");
    drain.cancel();
    timeout(SOON, task).await.expect("it ends").unwrap();
}

#[derive(Clone)]
struct Greeter;

impl tonic::server::NamedService for Greeter {
    const NAME: &'static str = "test.Greeter";
}

impl tower::Service<http::Request<tonic::body::Body>> for Greeter {
    type Response = http::Response<tonic::body::Body>;
    type Error = Infallible;
    type Future = std::future::Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<tonic::body::Body>) -> Self::Future {
        let peer = request.extensions().get::<Peer>().unwrap();
        let status = tonic::Status::already_exists(format!("{}", peer.certificates.len()));
        std::future::ready(Ok(status.into_http()))
    }
}

#[tokio::test]
async fn grpc_is_served() {
    let mount = mutual();
    let routes = tonic::service::Routes::new(Greeter).into_axum_router();
    let server = crate::testing::serve(routes, Some(mount.tls(true)), Limits::default());
    let client = ClientTls { ca: mount.path("ca.crt"), identity: Some(mount.pair()) };
    let config = client.config(&[b"h2"]).unwrap();
    let stream = server.connect_tls(&Arc::new(config)).await.unwrap();
    let (headers, _) = ask_http2(stream, "/test.Greeter/Greet").await.unwrap();
    assert_eq!(
        (&headers["grpc-status"], &headers["grpc-message"]),
        (&"6".parse().unwrap(), &"1".parse().unwrap())
    );
}
