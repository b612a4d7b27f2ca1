//! Traffic of those who attack: for tests of what it does, and for the bench of what it costs others.

use std::collections::VecDeque;
use std::net::Ipv4Addr;
use std::time::Duration;

use bytes::Bytes;
use futures::future::poll_fn;
use http::uri::PathAndQuery;
use outrigger_runtime::tls::ClientTls;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinSet;
use tokio_rustls::client::TlsStream;
use tonic::transport::Channel;

use crate::stream::about;
use crate::wire::Raw;

/// The method of the workload stream.
pub const STREAM: &str = "/universe.workload.v1.WorkloadService/WorkloadStream";

/// Bytes of each body that [`hold`] sends.
const BODY: usize = 4 << 20;

/// A connection of TLS that speaks this protocol.
pub async fn dial(tls: &ClientTls, port: u16, alpn: &[u8]) -> anyhow::Result<TlsStream<TcpStream>> {
    dial_by_name(tls, port, "127.0.0.1", &[alpn]).await
}

/// As [`dial`], from another address of loopback: the server counts its connections apart.
pub async fn dial_from(
    from: Ipv4Addr,
    tls: &ClientTls,
    port: u16,
    alpn: &[u8],
) -> anyhow::Result<TlsStream<TcpStream>> {
    let socket = TcpSocket::new_v4()?;
    socket.bind((from, 0).into())?;
    let stream = socket.connect((Ipv4Addr::LOCALHOST, port).into()).await?;
    secured(tls, stream, "127.0.0.1", &[alpn]).await
}

/// As [`dial`], to a server of this name that speaks one of these protocols.
pub async fn dial_by_name(
    tls: &ClientTls,
    port: u16,
    name: &str,
    alpn: &[&[u8]],
) -> anyhow::Result<TlsStream<TcpStream>> {
    secured(tls, TcpStream::connect(("127.0.0.1", port)).await?, name, alpn).await
}

async fn secured(
    tls: &ClientTls,
    stream: TcpStream,
    name: &str,
    alpn: &[&[u8]],
) -> anyhow::Result<TlsStream<TcpStream>> {
    let config = std::sync::Arc::new(tls.config(alpn)?);
    Ok(tokio_rustls::TlsConnector::from(config).connect(name.to_owned().try_into()?, stream).await?)
}

/// One connection of HTTP/2 with as many requests to a path as it may have, each with a body that comes and never ends. It lasts as
/// long as what is returned.
pub async fn hold(tls: &ClientTls, port: u16, path: &str) -> anyhow::Result<JoinSet<()>> {
    let (mut sender, connection) = h2::client::handshake(dial(tls, port, b"h2").await?).await?;
    let url = format!("https://x{path}");
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        let _ = connection.await;
    });
    tasks.spawn(async move {
        let mut bodies = JoinSet::new();
        for _ in 0..100 {
            let Ok(ready) = sender.ready().await else { break };
            sender = ready;
            let request = http::Request::post(&url).body(()).expect("a request");
            let Ok((answer, mut body)) = sender.send_request(request, false) else { break };
            bodies.spawn(async move {
                let mut left = BODY;
                while left > 0 {
                    body.reserve_capacity(left.min(16 << 10));
                    let Some(Ok(room)) = poll_fn(|cx| body.poll_capacity(cx)).await else { return };
                    if body.send_data(Bytes::from(vec![b' '; room]), false).is_err() {
                        return;
                    }
                    left -= room;
                }
                let _ = answer.await;
            });
        }
        while bodies.join_next().await.is_some() {}
    });
    Ok(tasks)
}

/// Connections of HTTP/1.1 from one address that have sent a request each, and stay open.
pub async fn occupy(
    from: Ipv4Addr,
    tls: &ClientTls,
    port: u16,
    count: usize,
) -> anyhow::Result<Vec<TlsStream<TcpStream>>> {
    let mut all = Vec::new();
    for _ in 0..count {
        let mut stream = dial_from(from, tls, port, b"http/1.1").await?;
        stream.write_all(b"GET /nothing HTTP/1.1\r\nhost: x\r\n\r\n").await?;
        let mut answer = [0; 1];
        stream.read_exact(&mut answer).await?;
        all.push(stream);
    }
    Ok(all)
}

/// Opens so many connections a second from one address that say nothing, until it is aborted.
pub async fn flood(from: Ipv4Addr, port: u16, per_second: u32) {
    const KEPT: usize = 200;
    let mut ticks = tokio::time::interval(Duration::from_secs(1) / per_second);
    let mut open = VecDeque::new();
    loop {
        ticks.tick().await;
        let Ok(socket) = TcpSocket::new_v4() else { continue };
        if socket.bind((from, 0).into()).is_ok()
            && let Ok(stream) = socket.connect((Ipv4Addr::LOCALHOST, port).into()).await
        {
            open.push_back(stream);
        }
        if open.len() > KEPT {
            open.pop_front();
        }
    }
}

/// A sync of so many workloads, each of which is these bytes.
pub fn sync(count: usize, workload: &[u8]) -> Bytes {
    let mut entry = vec![0x0a];
    prost::encoding::encode_varint(workload.len() as u64, &mut entry);
    entry.extend(workload);
    let mut message = vec![0x1a];
    prost::encoding::encode_varint((entry.len() * count) as u64, &mut message);
    message.extend(entry.repeat(count));
    message.into()
}

/// Sends one message of these bytes over the workload stream of a tenant.
pub async fn say(channel: Channel, tenant: &str, message: Bytes) -> Result<(), tonic::Status> {
    let mut client = tonic::client::Grpc::new(channel);
    let request = about(tenant, tokio_stream::once(message));
    client.ready().await.map_err(|error| tonic::Status::unavailable(error.to_string()))?;
    let path = PathAndQuery::from_static(STREAM);
    client.client_streaming::<_, Bytes, Bytes, Raw>(request, path, Raw).await.map(drop)
}

/// A rule whose template is small as text and has 100,000 values.
pub fn rule_of_values(name: &str) -> Value {
    json!({"apiVersion": "workload.universe.nvidia.com/v1alpha1", "kind": "WorkloadRule", "metadata": {"name": name},
        "spec": {"dpuSelectionPolicy": "Any", "workloadTerms": [{"matchExpressions": [{"key": "@", "operator": "Exists"}]}],
            "template": {"apiVersion": "v1", "kind": "Pod", "junk": vec![json!({"a": 0}); 50_000],
                "spec": {"containers": [{"name": "c", "image": "i"}]}}}})
}

/// A Pod with one node selector term of 60,000 expressions.
pub fn pod_of_expressions() -> Value {
    let exists = vec![json!({"key": "a", "operator": "Exists"}); 60_000];
    json!({"metadata": {"generateName": "p-"}, "spec": {"containers": [{"name": "c", "image": "i"}], "affinity": {
        "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": exists}]}}}}})
}
