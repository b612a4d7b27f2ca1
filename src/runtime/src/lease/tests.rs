use std::sync::atomic::AtomicBool;

use http::{Method, Request, Response};
use kube::client::Body;
use parking_lot::Mutex;
use serde_json::Value;
use tokio::task::JoinHandle;
use tower::{BoxError, service_fn};

use super::*;

#[derive(Clone, Default)]
struct Server {
    lease: Arc<Mutex<Option<Value>>>,
    version: Arc<AtomicI64>,
    patches: Arc<AtomicI64>,
    /// No request is answered.
    hangs: Arc<AtomicBool>,
    /// Delay of patches.
    slow: Duration,
    /// The Lease of a concurrent write just before the next patch.
    overtaken_by: Arc<Mutex<Option<Value>>>,
}

impl Server {
    fn client(&self) -> Client {
        let this = self.clone();
        Client::new(service_fn(move |request| this.clone().answer(request)), "default")
    }

    async fn answer(self, request: Request<Body>) -> Result<Response<Body>, BoxError> {
        let watches = request.uri().query().is_some_and(|query| query.contains("watch=true"));
        if watches || self.hangs.load(Ordering::Relaxed) {
            std::future::pending::<()>().await;
        }
        let method = request.method().clone();
        let lists = request.uri().path().ends_with("/leases") && method == Method::GET;
        let body = request.into_body().collect_bytes().await?;
        let body: Value = serde_json::from_slice(&body).unwrap_or_default();
        if method == Method::PATCH {
            tokio::time::sleep(self.slow).await;
            self.patches.fetch_add(1, Ordering::Relaxed);
        }
        let mut lease = self.lease.lock();
        let next = || self.version.fetch_add(1, Ordering::Relaxed);
        if method == Method::PATCH
            && let Some(other) = self.overtaken_by.lock().take()
        {
            *lease = Some(other);
            next();
        }
        let version = self.version.load(Ordering::Relaxed).to_string();
        let expected = body["metadata"]["resourceVersion"].as_str();
        if method == Method::PATCH && expected.is_some_and(|expected| expected != version) {
            let status = crate::fake_api::failure(409, "Conflict");
            return Ok(Response::builder().status(409).body(Body::from(status.to_string().into_bytes()))?);
        }
        if method != Method::GET {
            next();
        }
        if method == Method::POST {
            *lease = Some(body);
        } else if let Some(lease) = lease.as_mut().filter(|_| method == Method::PATCH) {
            json_patch::merge(lease, &body);
        }
        let meta = json!({"name": "l", "namespace": "n", "uid": "u",
            "resourceVersion": self.version.load(Ordering::Relaxed).to_string()});
        let (status, answer) = match &*lease {
            _ if lists => (200, json!({"metadata": {"resourceVersion": "1"}, "items": []})),
            Some(lease) => {
                let mut lease = lease.clone();
                lease["metadata"] = meta;
                (200, lease)
            }
            None => (404, json!({"kind": "Status", "status": "Failure", "code": 404, "reason": "NotFound"})),
        };
        Ok(Response::builder().status(status).body(Body::from(answer.to_string().into_bytes()))?)
    }

    fn holder(&self) -> Option<String> {
        self.lease.lock().as_ref()?["spec"]["holderIdentity"].as_str().map(str::to_owned)
    }

    /// A replica that takes part in the election until it is drained.
    fn replica(&self) -> Replica {
        let args = args();
        let (leadership, drain) = (Leadership::default(), CancellationToken::new());
        let run =
            tokio::spawn(lead(self.client(), args, leadership.clone(), Environment::system(), drain.clone()));
        Replica { leadership, drain, run }
    }
}

fn args() -> LeaseArgs {
    LeaseArgs {
        namespace: "n".to_owned(),
        name: "l".to_owned(),
        identity: "me".to_owned(),
        field_manager: "test".to_owned(),
    }
}

struct Replica {
    leadership: Leadership,
    drain: CancellationToken,
    run: JoinHandle<()>,
}

/// Waits for a condition under the paused clock.
async fn until(is: impl Fn() -> bool) {
    while !is() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_leader_without_responses_stops_before_its_lease_expires() {
    let server = Server::default();
    let replica = server.replica();
    replica.leadership.gained().await;
    assert_eq!(server.holder().as_deref(), Some("me"));
    let began = Instant::now();
    server.hangs.store(true, Ordering::Relaxed);
    until(|| !replica.leadership.leads()).await;
    assert!(began.elapsed() < DURATION, "{:?}", began.elapsed());
    // The API server responds again.
    server.hangs.store(false, Ordering::Relaxed);
    replica.leadership.gained().await;
}

#[tokio::test(start_paused = true)]
async fn a_replica_that_shuts_down_while_it_acquires_the_lease_releases_it() {
    let server = Server { slow: Duration::from_secs(1), ..Server::default() };
    *server.lease.lock() = Some(json!({"spec": {}}));
    let replica = server.replica();
    // The write that acquires it is in progress.
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!((server.holder(), server.patches.load(Ordering::Relaxed)), (None, 0));
    replica.drain.cancel();
    replica.run.await.unwrap();
    assert_eq!((server.holder(), server.patches.load(Ordering::Relaxed)), (None, 2), "acquired and released");
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_shuts_down_finishes_its_work_and_releases_only_its_own_lease() {
    let server = Server::default();
    let replica = server.replica();
    replica.leadership.gained().await;
    let (leadership, seen) = (replica.leadership.clone(), server.clone());
    let work = tokio::spawn(leadership.work(async move {
        tokio::time::sleep(FINISH / 2).await;
        seen.holder()
    }));
    replica.drain.cancel();
    until(|| !replica.leadership.leads()).await;
    assert_eq!(work.await.unwrap().as_deref(), Some("me"), "the lease is still held when the work ends");
    replica.run.await.unwrap();
    assert_eq!(server.holder(), None);

    let replica = server.replica();
    replica.leadership.gained().await;
    // Work that never ends delays nothing, and another replica has acquired the lease.
    let _work = tokio::spawn(replica.leadership.work(std::future::pending::<()>()));
    if let Some(lease) = server.lease.lock().as_mut() {
        lease["spec"]["holderIdentity"] = json!("other");
    }
    replica.drain.cancel();
    replica.run.await.unwrap();
    assert_eq!(server.holder().as_deref(), Some("other"));
}

/// A Lease of another replica, renewed by its clock at that time.
fn others(renewed: k8s_openapi::jiff::Timestamp, seconds: u64) -> Value {
    let at = k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime(renewed);
    json!({"spec": {"holderIdentity": "other", "acquireTime": at, "renewTime": at, "leaseDurationSeconds": seconds}})
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_another_replica_has_just_taken_is_not_taken_from_it() {
    let server = Server::default();
    let dead = k8s_openapi::jiff::Timestamp::UNIX_EPOCH;
    *server.lease.lock() = Some(others(dead, 1));
    let fresh = others(k8s_openapi::jiff::Timestamp::now(), 3600);
    *server.overtaken_by.lock() = Some(fresh.clone());
    let replica = server.replica();
    // It finds that the Lease has expired, and its write is too late.
    until(|| server.overtaken_by.lock().is_none()).await;
    until(|| server.patches.load(Ordering::Relaxed) > 0).await;
    replica.drain.cancel();
    replica.run.await.unwrap();
    let spec = server.lease.lock().as_ref().unwrap()["spec"].clone();
    assert_eq!(spec, fresh["spec"]);
}

#[tokio::test(start_paused = true)]
async fn a_lease_ends_by_the_clock_of_who_waits_for_it() {
    use k8s_openapi::jiff::{SignedDuration, Timestamp};
    let server = Server::default();
    // The holder's clock is an hour behind.
    let renew = || {
        let now = Timestamp::now() - SignedDuration::from_hours(1);
        *server.lease.lock() = Some(others(now, 5));
        server.version.fetch_add(1, Ordering::Relaxed);
    };
    renew();
    let replica = server.replica();
    for _ in 0..20 {
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert_eq!(server.holder().as_deref(), Some("other"), "it is renewed all the time");
        renew();
    }
    assert!(!replica.leadership.leads());
    // It is no longer renewed.
    tokio::time::timeout(Duration::from_secs(60), replica.leadership.gained()).await.unwrap();
    assert_eq!(server.holder().as_deref(), Some("me"));
    replica.drain.cancel();
    replica.run.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_a_watch_shows_to_be_renewed_lasts_from_then_on() {
    let leases = Api::namespaced(Server::default().client(), "n");
    let (args, environment, leadership) = (args(), Environment::system(), Leadership::default());
    let mut election =
        Election { leases, args, leadership, environment, state: LeaseState::Unknown, until: None };
    let began = election.environment.clock.now();
    for (version, renewed) in [(1, 0), (2, 4), (3, 8), (4, 8)] {
        let at = k8s_openapi::jiff::Timestamp::from_second(renewed).unwrap();
        let mut lease = others(at, 5);
        lease["metadata"] = json!({"name": "l", "uid": "u", "resourceVersion": version.to_string()});
        election.observe(serde_json::from_value(lease).unwrap());
        // What changes its metadata alone renews nothing.
        let ends = began + Duration::from_secs(u64::try_from(renewed).unwrap() + 5);
        assert_eq!(election.due(), ends, "{version}");
        tokio::time::advance(Duration::from_secs(4)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_leader_stays_leader_when_others_write_metadata_of_its_lease() {
    let server = Server::default();
    let replica = server.replica();
    replica.leadership.gained().await;
    let before = server.patches.load(Ordering::Relaxed);
    let lease = server.lease.lock().clone();
    *server.overtaken_by.lock() = lease;
    until(|| server.patches.load(Ordering::Relaxed) >= before + 2).await;
    assert!(server.overtaken_by.lock().is_none() && replica.leadership.leads());
    assert_eq!(server.holder().as_deref(), Some("me"));
}

/// With a running clock, which advances between two reads, unlike the paused one.
#[tokio::test]
async fn a_lease_that_does_not_exist_is_created_at_once() {
    let server = Server::default();
    let replica = server.replica();
    tokio::time::timeout(Duration::from_secs(20), replica.leadership.gained()).await.unwrap();
    assert_eq!(server.holder().as_deref(), Some("me"));
    replica.drain.cancel();
    replica.run.await.unwrap();
}
