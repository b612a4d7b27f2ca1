//! Admission under load: every request is counted, every failure kept with its words.

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use k8s_openapi::api::core::v1::Pod;
use kube::api::Api;
use parking_lot::Mutex;
use serde_json::json;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval, timeout};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::ClientConfig;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::front::Front;
use crate::{InWords, dry_run, eventually, holds};

/// The version of HTTP that a client speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Http {
    /// HTTP/1.1, one request after the other. What the API server speaks with webhooks.
    One,
    /// HTTP/2, a request every so often whether or not those before have been answered.
    Two,
}

/// A client of the webhook's port.
#[derive(Debug, Clone)]
pub struct Asker {
    /// Where it connects.
    pub port: u16,
    /// The name that it verifies.
    pub name: &'static str,
    /// What it speaks.
    pub http: Http,
    /// Requests a second.
    pub per_second: u64,
    /// After so many requests it connects again.
    pub requests: u32,
    /// The namespace of the Pods that it asks about.
    pub namespace: &'static str,
    /// The CA bundle, read again for each connection.
    pub trust: watch::Receiver<Arc<ClientConfig>>,
    /// What it connects through, where the test kills replicas: a request that was open at one of them is lost, and sent again.
    pub killing: Option<&'static Front>,
}

/// Requests that come all the time, until [`Load::end`].
#[derive(Debug)]
pub struct Load {
    counts: Arc<Counts>,
    began: Instant,
    end: CancellationToken,
    tasks: TaskTracker,
}

#[derive(Debug, Default)]
struct Counts {
    answered: AtomicU64,
    handshakes: AtomicU64,
    created: AtomicU64,
    shown: Mutex<BTreeSet<Vec<u8>>>,
    failures: Mutex<Vec<String>>,
    lost: AtomicU64,
    refused: AtomicU64,
    lost_creates: AtomicU64,
}

/// What went wrong: on which connection, by its own port, whether a request was open there, and how.
struct Failure {
    port: u16,
    open: bool,
    why: String,
}

impl Counts {
    /// Counts a failure. Whether it comes from the death of a replica that the test has killed.
    fn fail(&self, asker: &Asker, failure: Failure) -> bool {
        let killed = asker.killing.is_some_and(|front| front.led_to_killed(failure.port));
        match (killed, failure.open) {
            (true, true) => drop(self.lost.fetch_add(1, Ordering::Relaxed)),
            (true, false) => drop(self.refused.fetch_add(1, Ordering::Relaxed)),
            (false, _) => self.failures.lock().push(format!("webhook, {:?}: {}", asker.http, failure.why)),
        }
        killed
    }

    /// The same for a failure of the API server's: how it says that the connection to a webhook has ended, or wasn't taken.
    fn fail_create(&self, killing: Option<&Front>, error: String) -> bool {
        // The last is what Go's client says of all other requests on a connection when a write has found it broken.
        const ENDED: [&str; 6] = [
            "EOF",
            "connection reset",
            "connection refused",
            "connection lost",
            "broken pipe",
            "connection force closed",
        ];
        let killed = killing.is_some_and(Front::has_killed)
            && error.contains("failed calling webhook")
            && ENDED.iter().any(|words| error.contains(words));
        if killed {
            self.lost_creates.fetch_add(1, Ordering::Relaxed);
        } else {
            self.failures.lock().push(format!("API server: {error}"));
        }
        killed
    }
}

/// What killed replicas have cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Losses {
    /// Requests that were open at a killed replica. Each was sent again, and answered.
    pub lost: u64,
    /// Connections that were led to a killed replica before a request was sent on them.
    pub refused: u64,
    /// Pods that the API server refused because it had lost a webhook's connection. Each was created by a later attempt.
    pub creates: u64,
}

impl Load {
    /// Begins, when a first request through the API server has succeeded: these Pods are created in dry run, so many a
    /// second by each of so many clients.
    pub async fn begin(pods: Api<Pod>, clients: u64, per_second: u64) -> Self {
        Self::begin_while_killing(pods, clients, per_second, None).await
    }

    /// As [`Self::begin`]. Where replicas behind this front are killed, a Pod that is refused for that is created again.
    pub async fn begin_while_killing(
        pods: Api<Pod>,
        clients: u64,
        per_second: u64,
        killing: Option<&'static Front>,
    ) -> Self {
        eventually("the first Pod is admitted", || create(pods.clone())).await;
        let this = Self {
            counts: Arc::default(),
            began: Instant::now(),
            end: CancellationToken::new(),
            tasks: TaskTracker::new(),
        };
        for _ in 0..clients {
            let (counts, end, pods) = (this.counts.clone(), this.end.clone(), pods.clone());
            this.tasks.spawn(async move {
                let mut ticks = ticks(per_second);
                while !end.is_cancelled() {
                    ticks.tick().await;
                    while let Err(error) = create_once(&pods, &counts).await {
                        if !counts.fail_create(killing, error) {
                            break;
                        }
                        tokio::time::sleep(AGAIN).await;
                    }
                }
            });
        }
        this
    }

    /// Has one more client ask the webhook.
    pub fn ask(&self, asker: Asker) {
        let (counts, end) = (self.counts.clone(), self.end.clone());
        self.tasks.spawn(async move {
            let mut ticks = ticks(asker.per_second);
            while !end.is_cancelled() {
                if let Err(failure) = connection(&asker, &mut ticks, &counts, &end).await {
                    let open = failure.open;
                    if counts.fail(&asker, failure) && open {
                        again(&asker, &counts).await;
                    }
                    tokio::time::sleep(AGAIN).await;
                }
            }
        });
    }

    /// Runs something beside it that sees to its own end by the token.
    pub fn beside<F>(&self, task: impl FnOnce(CancellationToken) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.tasks.spawn(task(self.end.clone()));
    }

    /// What killed replicas have cost so far.
    pub fn losses(&self) -> Losses {
        let count = |of: &AtomicU64| of.load(Ordering::Relaxed);
        let Counts { lost, refused, lost_creates, .. } = &*self.counts;
        Losses { lost: count(lost), refused: count(refused), creates: count(lost_creates) }
    }

    /// Reviews that have been answered so far.
    pub fn answered(&self) -> u64 {
        self.counts.answered.load(Ordering::Relaxed)
    }

    /// Which certificates have been shown so far.
    pub fn shown(&self) -> usize {
        self.counts.shown.lock().len()
    }

    /// Waits until one more certificate than these has been shown.
    pub async fn another_is_shown(&self, before: usize) {
        eventually("another certificate is shown", || async {
            let shown = self.shown();
            holds(shown > before, format!("{shown} certificates"))
        })
        .await;
    }

    /// Ends, and says how much there was. Before, it waits until there was enough for a failure to show, however slow the machine is.
    pub async fn end(self) -> String {
        eventually("there was enough load to say anything", || async {
            let Counts { handshakes, created, failures, .. } = &*self.counts;
            let (handshakes, created) = (handshakes.load(Ordering::Relaxed), created.load(Ordering::Relaxed));
            let answered = self.answered();
            let enough = answered > 500 && handshakes > 10 && created > 20;
            let so_far = format!("{answered} reviews over {handshakes} connections, {created} Pods");
            holds(enough || !failures.lock().is_empty(), so_far)
        })
        .await;
        self.end.cancel();
        self.tasks.close();
        self.tasks.wait().await;
        let count = |of: &AtomicU64| of.load(Ordering::Relaxed);
        let (answered, created) = (count(&self.counts.answered), count(&self.counts.created));
        let handshakes = count(&self.counts.handshakes);
        let seconds = self.began.elapsed().as_secs_f64();
        let mut failures: BTreeMap<String, usize> = BTreeMap::new();
        for failure in self.counts.failures.lock().drain(..) {
            *failures.entry(failure).or_default() += 1;
        }
        assert!(failures.is_empty(), "of {answered} reviews and {created} Pods failed: {failures:#?}");
        format!(
            "{answered} reviews in {seconds:.0} s ({:.0}/s) over {handshakes} TLS connections, {created} Pods by the API \
             server ({:.0}/s), {} certificates",
            answered as f64 / seconds,
            created as f64 / seconds,
            self.shown(),
        )
    }
}

fn ticks(per_second: u64) -> Interval {
    let mut ticks = interval(Duration::from_micros(1_000_000 / per_second));
    // A pause of the machine is made up for: it is the count that matters.
    ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
    ticks
}

/// Creates a Pod in a tenant's namespace, without its being kept.
async fn create(pods: Api<Pod>) -> Result<(), String> {
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"generateName": "load-"},
        "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let pod = dry_run(&pods, &pod).await.in_words()?;
    holds(pod.spec.is_some_and(|spec| spec.affinity.is_some()), "not placed")
}

/// The pause before something is tried again.
const AGAIN: Duration = Duration::from_millis(50);

async fn create_once(pods: &Api<Pod>, counts: &Counts) -> Result<(), String> {
    create(pods.clone()).await?;
    counts.created.fetch_add(1, Ordering::Relaxed);
    Ok(())
}

/// Requests that an HTTP/2 connection has under way at once: fewer than the webhook allows.
const AT_ONCE: usize = 12;

/// A connection of either version.
enum Sender {
    One(http1::SendRequest<Full<Bytes>>),
    Two(http2::SendRequest<Full<Bytes>>),
}

impl Sender {
    /// Waits until it takes a request; false when the other end has closed it.
    async fn ready(&mut self) -> bool {
        match self {
            Self::One(sender) => sender.ready().await.is_ok(),
            Self::Two(sender) => sender.ready().await.is_ok(),
        }
    }
}

/// How long a client waits for a connection, and for each answer: the API server gives a webhook 30 s at most.
const PATIENCE: Duration = Duration::from_secs(30);

/// What takes longer than [`PATIENCE`] has failed.
fn in_time<T>(
    what: &str,
    wait: impl Future<Output = Result<T, String>>,
) -> impl Future<Output = Result<T, String>> {
    let limited = timeout(PATIENCE, Box::pin(wait));
    async move { limited.await.unwrap_or_else(|_| Err(format!("{what}: not after {PATIENCE:?}"))) }
}

/// A connection, and its own port.
async fn connect(asker: &Asker, counts: &Counts) -> Result<(Sender, u16), Failure> {
    let failure = |port| move |why| Failure { port, open: false, why };
    let stream = TcpStream::connect(("127.0.0.1", asker.port)).await.in_words().map_err(failure(0))?;
    let port = stream.local_addr().map_or(0, |address| address.port());
    Ok((in_time("a handshake", secure(asker, counts, stream)).await.map_err(failure(port))?, port))
}

async fn secure(asker: &Asker, counts: &Counts, stream: TcpStream) -> Result<Sender, String> {
    let mut config = ClientConfig::clone(&asker.trust.borrow());
    let two = asker.http == Http::Two;
    config.alpn_protocols = vec![if two { b"h2".to_vec() } else { b"http/1.1".to_vec() }];
    let name = asker.name.try_into().unwrap();
    let stream: TlsStream<_> = TlsConnector::from(Arc::new(config)).connect(name, stream).await.in_words()?;
    let shown = stream.get_ref().1.peer_certificates().unwrap_or_default()[0].to_vec();
    counts.shown.lock().insert(shown);
    counts.handshakes.fetch_add(1, Ordering::Relaxed);
    let stream = TokioIo::new(stream);
    if two {
        let (sender, driving) = http2::handshake(TokioExecutor::new(), stream).await.in_words()?;
        tokio::spawn(driving);
        Ok(Sender::Two(sender))
    } else {
        let (sender, driving) = http1::handshake(stream).await.in_words()?;
        tokio::spawn(driving);
        Ok(Sender::One(sender))
    }
}

/// One connection, from its first request to its last or until the other end closes it.
async fn connection(
    asker: &Asker,
    ticks: &mut Interval,
    counts: &Arc<Counts>,
    end: &CancellationToken,
) -> Result<(), Failure> {
    let (mut sender, port) = connect(asker, counts).await?;
    let body = review(asker.namespace);
    let under_way = TaskTracker::new();
    for _ in 0..asker.requests {
        ticks.tick().await;
        // Where the server allows no more at once, Go's client opens another connection. This one waits.
        while under_way.len() >= AT_ONCE {
            ticks.tick().await;
        }
        let taken = in_time("a connection that takes a request", async { Ok(sender.ready().await) });
        if end.is_cancelled() || !taken.await.map_err(|why| Failure { port, open: false, why })? {
            break;
        }
        match &mut sender {
            Sender::One(sender) => match answered(sender.send_request(request(asker, &body))).await {
                Ok(true) => drop(counts.answered.fetch_add(1, Ordering::Relaxed)),
                Ok(false) => break,
                Err(why) => return Err(Failure { port, open: true, why }),
            },
            Sender::Two(sender) => {
                let (mut sender, request, counts) = (sender.clone(), request(asker, &body), counts.clone());
                let asker = asker.clone();
                under_way.spawn(async move {
                    match answered(sender.send_request(request)).await {
                        Ok(true) => drop(counts.answered.fetch_add(1, Ordering::Relaxed)),
                        Ok(false) => again(&asker, &counts).await,
                        Err(why) => {
                            if counts.fail(&asker, Failure { port, open: true, why }) {
                                again(&asker, &counts).await;
                            }
                        }
                    }
                });
            }
        }
    }
    under_way.close();
    under_way.wait().await;
    Ok(())
}

/// Asks once more, on a connection of its own: what one that was closing has not taken, or what was lost with a replica. Where the
/// new connection leads to a killed replica too, on another one.
async fn again(asker: &Asker, counts: &Counts) {
    while let Err(failure) = once(asker, counts).await {
        if !counts.fail(asker, failure) {
            return;
        }
        tokio::time::sleep(AGAIN).await;
    }
    counts.answered.fetch_add(1, Ordering::Relaxed);
}

async fn once(asker: &Asker, counts: &Counts) -> Result<(), Failure> {
    let (mut sender, port) = connect(asker, counts).await?;
    let request = request(asker, &review(asker.namespace));
    let answer = match &mut sender {
        Sender::One(sender) => answered(sender.send_request(request)).await,
        Sender::Two(sender) => answered(sender.send_request(request)).await,
    };
    match answer {
        Ok(true) => Ok(()),
        Ok(false) => {
            let why = "a new connection has not taken a request".to_owned();
            Err(Failure { port, open: false, why })
        }
        Err(why) => Err(Failure { port, open: true, why }),
    }
}

fn request(asker: &Asker, body: &Bytes) -> Request<Full<Bytes>> {
    let path = "/mutate/pods?timeout=3s";
    let request = match asker.http {
        Http::One => Request::post(path).header("host", asker.name),
        Http::Two => Request::post(format!("https://{}{path}", asker.name)),
    };
    request.header("content-type", "application/json").body(Full::new(body.clone())).unwrap()
}

/// Whether a request was answered with a yes, or not taken: never sent because the connection was closed before, or
/// sent after what the server has said, by GOAWAY, to have taken (RFC 9113, 6.8). Then any client may send it again, and
/// Go's does. Everything else is a failure.
async fn answered(sent: impl Future<Output = hyper::Result<Response<Incoming>>>) -> Result<bool, String> {
    let answer = async {
        let response = match sent.await {
            Ok(response) => response,
            Err(error) if error.is_canceled() || is_not_taken(&error) => return Ok(false),
            Err(error) => return Err(format!("{error:?}")),
        };
        let answer = response.into_body().collect().await.in_words()?.to_bytes();
        if answer.windows(14).any(|window| window == b"\"allowed\":true") {
            Ok(true)
        } else {
            Err(String::from_utf8_lossy(&answer).into_owned())
        }
    };
    in_time("an answer", answer).await
}

fn is_not_taken(error: &hyper::Error) -> bool {
    let error = error.source().and_then(|source| source.downcast_ref::<h2::Error>());
    error.is_some_and(|e| e.is_go_away() && e.is_remote() && e.reason() == Some(h2::Reason::NO_ERROR))
}

/// A review of a Pod that is to be placed.
fn review(namespace: &str) -> Bytes {
    json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
        "uid": "0df28fbd-5f5f-11e8-bc74-36e6bb280816", "kind": {"group": "", "version": "v1", "kind": "Pod"},
        "resource": {"group": "", "version": "v1", "resource": "pods"},
        "name": "p", "namespace": namespace, "operation": "CREATE", "dryRun": true,
        "userInfo": {"username": "someone", "groups": ["system:authenticated"]},
        "object": {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": namespace},
            "spec": {"containers": [{"name": "c", "image": "i"}]}}}})
    .to_string()
    .into()
}
