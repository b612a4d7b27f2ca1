//! Admission under load: every request is counted, every failure kept with its words.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioIo;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, PostParams};
use outrigger_runtime::tls::ClientTls;
use outrigger_tests::eventually;
use outrigger_tests::outrigger::Outrigger;
use parking_lot::Mutex;
use serde_json::json;
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, interval};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::ClientConfig;
use tokio_rustls::rustls::client::Resumption;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::{NAMESPACE, WEBHOOK, bundles};

/// Requests a second, straight at the webhook and through the API server.
const PER_SECOND: (u64, u64) = (500, 20);
/// Who asks the webhook; each has a connection of its own.
const CLIENTS: u64 = 10;
/// A connection ends after so many requests: that is ten handshakes a second, each verified anew.
const REQUESTS: u32 = 50;

/// Requests that come all the time.
pub(crate) struct Load {
    counts: Arc<Counts>,
    began: Instant,
    end: CancellationToken,
    tasks: TaskTracker,
}

#[derive(Default)]
struct Counts {
    answered: AtomicU64,
    handshakes: AtomicU64,
    created: AtomicU64,
    shown: Mutex<BTreeSet<Vec<u8>>>,
    failures: Mutex<Vec<String>>,
}

impl Load {
    /// Begins, when a first request through the API server has succeeded.
    pub(crate) async fn begin(outrigger: &'static Outrigger, ports: &[u16]) -> Self {
        let pods: Api<Pod> = Api::namespaced(outrigger.plane.infra.client().await, NAMESPACE);
        eventually("the first Pod is admitted", || create(pods.clone())).await;
        let (tell, trust) = watch::channel(config(outrigger, &bundle(outrigger).await));
        let this = Self {
            counts: Arc::default(),
            began: Instant::now(),
            end: CancellationToken::new(),
            tasks: TaskTracker::new(),
        };
        let end = this.end.clone();
        this.tasks.spawn(async move {
            let mut last = String::new();
            while !end.is_cancelled() {
                let now = bundle(outrigger).await;
                if now != last {
                    tell.send_replace(config(outrigger, &now));
                    last = now;
                }
                tokio::time::sleep(Duration::from_millis(500)).await;
            }
        });
        for client in 0..CLIENTS {
            let port = ports[usize::try_from(client).unwrap() % ports.len()];
            let asking = ask(port, trust.clone(), this.counts.clone(), this.end.clone());
            this.tasks.spawn(asking);
        }
        let (counts, end) = (this.counts.clone(), this.end.clone());
        this.tasks.spawn(async move {
            let mut ticks = ticks(PER_SECOND.1);
            while !end.is_cancelled() {
                ticks.tick().await;
                match create(pods.clone()).await {
                    Ok(()) => drop(counts.created.fetch_add(1, Ordering::Relaxed)),
                    Err(error) => counts.failures.lock().push(format!("API server: {error}")),
                }
            }
        });
        this.tasks.close();
        this
    }

    /// Which certificates have been shown so far.
    pub(crate) fn shown(&self) -> usize {
        self.counts.shown.lock().len()
    }

    /// Waits until one more certificate than these has been shown.
    pub(crate) async fn another_is_shown(&self, before: usize) {
        eventually("another certificate is shown", || async {
            let shown = self.shown();
            if shown > before { Ok(()) } else { Err(format!("{shown} certificates")) }
        })
        .await;
    }

    /// Ends, and fails if a single request did.
    pub(crate) async fn end(self) {
        self.end.cancel();
        self.tasks.wait().await;
        let count = |of: &AtomicU64| of.load(Ordering::Relaxed);
        let (answered, created) = (count(&self.counts.answered), count(&self.counts.created));
        let handshakes = count(&self.counts.handshakes);
        let seconds = self.began.elapsed().as_secs_f64();
        println!(
            "{answered} reviews in {seconds:.0} s ({:.0}/s) over {handshakes} TLS connections, {created} Pods by the API \
             server, {} certificates",
            answered as f64 / seconds,
            self.shown(),
        );
        let failures = self.counts.failures.lock();
        assert!(failures.is_empty(), "{} failed: {:#?}", failures.len(), &failures[..failures.len().min(5)]);
        assert!(answered > 1000 && handshakes > 20 && created > 20, "too few to say anything");
    }
}

fn ticks(per_second: u64) -> tokio::time::Interval {
    let mut ticks = interval(Duration::from_micros(1_000_000 / per_second));
    // A pause of the machine is made up for: it is the count that matters.
    ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
    ticks
}

/// What the API server trusts now.
async fn bundle(outrigger: &'static Outrigger) -> String {
    let mut all =
        tokio::task::spawn_blocking(move || tokio::runtime::Handle::current().block_on(bundles(outrigger)))
            .await
            .unwrap();
    // While it is being written the entries differ; the API server takes each for its own requests.
    all.pop().unwrap()
}

fn config(outrigger: &Outrigger, bundle: &str) -> Arc<ClientConfig> {
    let ca: PathBuf = outrigger.plane.dir.join("load-ca.crt");
    std::fs::write(&ca, bundle).unwrap();
    let mut config = ClientTls { ca, identity: None }.config(&[b"http/1.1"]).unwrap();
    config.resumption = Resumption::disabled();
    Arc::new(config)
}

/// Creates a Pod in the tenant's namespace, without its being kept.
async fn create(pods: Api<Pod>) -> Result<(), String> {
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"generateName": "load-"},
        "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let params = PostParams { dry_run: true, ..PostParams::default() };
    let pod = pods.create(&params, &serde_json::from_value(pod).unwrap()).await.map_err(|e| e.to_string())?;
    if pod.spec.is_some_and(|spec| spec.affinity.is_some()) { Ok(()) } else { Err("not placed".to_owned()) }
}

/// One client of the webhook's port.
async fn ask(
    port: u16,
    trust: watch::Receiver<Arc<ClientConfig>>,
    counts: Arc<Counts>,
    end: CancellationToken,
) {
    let mut ticks = ticks(PER_SECOND.0 / CLIENTS);
    while !end.is_cancelled() {
        let config = trust.borrow().clone();
        if let Err(error) = connection(port, config, &mut ticks, &counts, &end).await {
            counts.failures.lock().push(format!("webhook: {error}"));
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}

async fn connection(
    port: u16,
    config: Arc<ClientConfig>,
    ticks: &mut tokio::time::Interval,
    counts: &Counts,
    end: &CancellationToken,
) -> Result<(), String> {
    let text = |e: &dyn std::fmt::Display| e.to_string();
    let stream = tokio::net::TcpStream::connect(("127.0.0.1", port)).await.map_err(|e| text(&e))?;
    let name = WEBHOOK.try_into().unwrap();
    let stream = TlsConnector::from(config).connect(name, stream).await.map_err(|e| text(&e))?;
    let shown = stream.get_ref().1.peer_certificates().unwrap_or_default()[0].to_vec();
    counts.shown.lock().insert(shown);
    counts.handshakes.fetch_add(1, Ordering::Relaxed);
    let (mut sender, driving) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(|e| text(&e))?;
    tokio::spawn(driving);
    let body = Bytes::from(
        json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
            "uid": "0df28fbd-5f5f-11e8-bc74-36e6bb280816", "kind": {"group": "", "version": "v1", "kind": "Pod"},
            "resource": {"group": "", "version": "v1", "resource": "pods"},
            "name": "p", "namespace": NAMESPACE, "operation": "CREATE", "dryRun": true,
            "userInfo": {"username": "someone", "groups": ["system:authenticated"]},
            "object": {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": NAMESPACE},
                "spec": {"containers": [{"name": "c", "image": "i"}]}}}})
        .to_string(),
    );
    for _ in 0..REQUESTS {
        ticks.tick().await;
        if end.is_cancelled() {
            break;
        }
        let request = http::Request::post("/mutate/pods?timeout=10s")
            .header("host", WEBHOOK)
            .header("content-type", "application/json")
            .body(Full::new(body.clone()))
            .unwrap();
        let response = sender.send_request(request).await.map_err(|e| text(&e))?;
        let answer = response.into_body().collect().await.map_err(|e| text(&e))?.to_bytes();
        if !answer.windows(14).any(|window| window == b"\"allowed\":true") {
            return Err(String::from_utf8_lossy(&answer).into_owned());
        }
        counts.answered.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}
