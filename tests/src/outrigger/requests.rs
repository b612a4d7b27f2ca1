//! Single requests on loopback.

use std::time::Duration;

use http_body_util::{BodyExt, Full};
use tokio::io::{AsyncRead, AsyncWrite};

use crate::InWords;

/// How long an answer on loopback may take.
const ANSWER: Duration = Duration::from_secs(10);

/// A plain GET on loopback: status and body.
pub async fn get(port: u16, path: &str) -> Result<(u16, String), String> {
    ask(port, http::Method::GET, path, "").await
}

/// A plain request on loopback: status and body of the answer.
pub async fn ask(port: u16, method: http::Method, path: &str, body: &str) -> Result<(u16, String), String> {
    // A process that hangs accepts connections and answers nothing: whoever asks again and again has to get that far.
    let answer = tokio::time::timeout(ANSWER, ask_once(port, method, path, body)).await;
    answer.map_err(|_| format!("no answer to {path} on port {port} within {ANSWER:?}"))?
}

async fn ask_once(port: u16, method: http::Method, path: &str, body: &str) -> Result<(u16, String), String> {
    let stream = tokio::net::TcpStream::connect(("127.0.0.1", port)).await.in_words()?;
    let request = http::Request::builder().method(method).uri(path);
    exchange(stream, request, bytes::Bytes::copy_from_slice(body.as_bytes())).await
}

/// One request on a connection of HTTP/1.1: status and body of the answer.
pub(crate) async fn exchange(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    request: http::request::Builder,
    body: bytes::Bytes,
) -> Result<(u16, String), String> {
    let io = hyper_util::rt::TokioIo::new(stream);
    let (mut sender, connection) = hyper::client::conn::http1::handshake(io).await.in_words()?;
    tokio::spawn(connection);
    let request = request.header("host", "127.0.0.1").body(Full::new(body)).in_words()?;
    let response = sender.send_request(request).await.in_words()?;
    let status = response.status().as_u16();
    let body = response.into_body().collect().await.in_words()?.to_bytes();
    Ok((status, String::from_utf8_lossy(&body).into_owned()))
}
