//! A generator of load for webhooks: AdmissionReviews over HTTP/1.1 with TLS keep-alive, as an API server sends them.
//!
//! The closed loop sends the next request of a connection when the last is answered: it shows throughput. The open loop sends at a
//! constant rate and counts from the time when a request was due, so that a pause of the server counts for all requests that it
//! delays: it shows latency.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hdrhistogram::Histogram;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::SendRequest;
use hyper_util::rt::TokioIo;
use outrigger_runtime::tls::ClientTls;
use tokio::time::Instant;

/// How long each loop lasts.
pub const ROUND: Duration = Duration::from_secs(3);

/// A server under load, and what is sent to it.
#[derive(Debug, Clone)]
pub struct Target {
    port: u16,
    config: Arc<tokio_rustls::rustls::ClientConfig>,
    path: String,
    body: Bytes,
}

impl Target {
    /// The server on this port of loopback, whose certificate this CA has signed.
    pub fn new(port: u16, ca: &Path, path: &str, body: Bytes) -> Self {
        let config = ClientTls { ca: ca.to_owned(), identity: None }.config(&[b"http/1.1"]).unwrap();
        Self { port, config: Arc::new(config), path: format!("{path}?timeout=3s"), body }
    }

    async fn connect(&self) -> SendRequest<Full<Bytes>> {
        let stream = tokio::net::TcpStream::connect(("127.0.0.1", self.port)).await.unwrap();
        stream.set_nodelay(true).unwrap();
        let connector = tokio_rustls::TlsConnector::from(self.config.clone());
        let stream = connector.connect("127.0.0.1".try_into().unwrap(), stream).await.unwrap();
        let (sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        sender
    }

    /// Panics when the answer is a refusal.
    async fn ask(&self, sender: &mut SendRequest<Full<Bytes>>) {
        let request = http::Request::post(&self.path)
            .header("host", "webhook")
            .header("content-type", "application/json")
            .body(Full::new(self.body.clone()))
            .unwrap();
        // The end of an answer shows before the connection takes the next request: on a busy machine a moment before.
        sender.ready().await.unwrap();
        let response = sender.send_request(request).await.unwrap();
        let answer = response.into_body().collect().await.unwrap().to_bytes();
        assert!(answer.windows(14).any(|w| w == b"\"allowed\":true"), "{answer:?}");
    }
}

/// Nanoseconds of all requests.
pub type Times = Histogram<u64>;

/// The time in milliseconds within which this part of the requests, 0 to 1, was answered.
pub fn milliseconds(times: &Times, quantile: f64) -> f64 {
    times.value_at_quantile(quantile) as f64 / 1e6
}

async fn all(tasks: Vec<tokio::task::JoinHandle<Times>>) -> Times {
    let mut all = Times::new(3).unwrap();
    for task in tasks {
        all.add(task.await.unwrap()).unwrap();
    }
    all
}

fn record(times: &mut Times, since: Instant) {
    times.record(u64::try_from(since.elapsed().as_nanos()).unwrap()).unwrap();
}

/// The next request of a connection follows the last answer.
pub async fn closed_loop(target: &Target, connections: usize) -> Times {
    let end = Instant::now() + ROUND;
    let client = |target: Target| async move {
        let (mut sender, mut times) = (target.connect().await, Times::new(3).unwrap());
        while Instant::now() < end {
            let began = Instant::now();
            target.ask(&mut sender).await;
            record(&mut times, began);
        }
        times
    };
    all((0..connections).map(|_| tokio::spawn(client(target.clone()))).collect()).await
}

/// A request is due each time, whether or not the last is answered. A thread of its own says when, because tokio's timers are
/// exact to a millisecond only.
pub async fn open_loop(target: &Target, (rate, connections): (u32, usize)) -> Times {
    let (mut ticks, mut tasks) = (Vec::new(), Vec::new());
    for _ in 0..connections {
        let (tick, mut due) = tokio::sync::mpsc::unbounded_channel::<Instant>();
        let (target, mut sender) = (target.clone(), target.connect().await);
        ticks.push(tick);
        tasks.push(tokio::spawn(async move {
            let mut times = Times::new(3).unwrap();
            while let Some(due) = due.recv().await {
                target.ask(&mut sender).await;
                record(&mut times, due);
            }
            times
        }));
    }
    std::thread::spawn(move || {
        let (start, step) = (Instant::now(), Duration::from_secs(1) / rate);
        for (i, tick) in (0..rate * u32::try_from(ROUND.as_secs()).unwrap()).zip(ticks.iter().cycle()) {
            let due = start + step * i;
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            tick.send(due).unwrap();
        }
    });
    all(tasks).await
}
