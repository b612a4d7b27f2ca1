//! What tests and the demo need: a real control plane, Outrigger running on it, and tenants.
//!
//! Everything is a real process: etcd, two API servers with their controllers and schedulers, the `outrigger` binary.
//! All of them listen on loopback only and end with the test process, however it ends.
// It is for tests: a failure here is a failure of the test.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

pub mod attacks;
pub mod browser;
pub mod collector;
pub mod console;
pub mod control_plane;
pub mod cost;
pub mod crowd;
pub mod devices;
pub mod etcd;
pub mod faults;
pub mod front;
pub mod gate;
pub mod generator;
pub mod held;
pub mod history;
pub mod invariants;
pub mod issued;
pub mod kubelet;
pub mod load;
pub mod marked;
pub mod normal;
pub mod openmetrics;
pub mod outrigger;
pub mod page;
pub mod pki;
pub mod plugin;
pub mod queries;
pub mod rack;
pub mod report;
pub mod reviews;
pub mod role;
pub mod scenarios;
pub mod shipped;
pub mod stream;
pub mod tenant;
pub mod user;
pub mod watch;
pub mod wire;
pub mod wrapped;
pub mod writes;

use std::fmt::{Debug, Display};
use std::future::Future;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// The top of the work tree.
pub fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().expect("the work tree is there")
}

/// How long something may take on a busy machine of two cores. Not a measure of anything: it only ends a test that would
/// never end.
pub const PATIENCE: Duration = Duration::from_secs(240);

/// The least and the longest time between two questions of [`eventually`].
const SHORTEST: Duration = Duration::from_millis(30);
const LONGEST: Duration = Duration::from_millis(500);

/// Asks again and again until the answer is `Ok`, and panics with the last answer when that takes longer than
/// [`PATIENCE`].
pub async fn eventually<T, E: Display, F>(what: &str, ask: impl FnMut() -> F) -> T
where
    F: Future<Output = Result<T, E>>,
{
    within(Instant::now(), PATIENCE, what, ask).await
}

/// How long who has waited so long for an answer waits for the next one. Who has waited for long can wait a little longer: questions cost the
/// API server time, which other tests need.
fn pause(waited: Duration) -> Duration {
    (waited / 4).clamp(SHORTEST, LONGEST)
}

/// As [`eventually`], with another deadline: so long after something began.
pub async fn within<T, E: Display, F>(
    began: Instant,
    limit: Duration,
    what: &str,
    ask: impl FnMut() -> F,
) -> T
where
    F: Future<Output = Result<T, E>>,
{
    let answer = answered(limit.saturating_sub(began.elapsed()), ask).await;
    answer.unwrap_or_else(|last| panic!("{what}: not after {limit:?}; the last answer: {last}"))
}

/// Asks again and again until the answer is `Ok`, or returns the last answer when that takes longer than this.
pub async fn answered<T, E, F>(patience: Duration, mut ask: impl FnMut() -> F) -> Result<T, E>
where
    F: Future<Output = Result<T, E>>,
{
    let began = Instant::now();
    loop {
        match ask().await {
            Ok(answer) => return Ok(answer),
            Err(last) if began.elapsed() > patience => return Err(last),
            Err(_) => tokio::time::sleep(pause(began.elapsed())).await,
        }
    }
}

/// The message of a refusal. Asks again if the API server has waited too long for the webhook: it isn't optimized here, and the
/// machine may be busy.
pub async fn refusal<F>(mut ask: impl FnMut() -> F) -> String
where
    F: Future<Output = Result<(), String>>,
{
    eventually("the webhook answers in time", || {
        let asked = ask();
        async {
            let error = asked.await.expect_err("it is refused");
            if error.contains("context deadline exceeded") { Err(error) } else { Ok(error) }
        }
    })
    .await
}

/// `Ok` when it is so, else what was seen instead.
pub fn holds(is: bool, seen: impl Into<String>) -> Result<(), String> {
    if is { Ok(()) } else { Err(seen.into()) }
}

/// Errors as the words in which [`eventually`] tells what was last.
pub trait InWords<T> {
    /// The same result, with the error and its causes as text.
    fn in_words(self) -> Result<T, String>;
}

impl<T, E: Display> InWords<T> for Result<T, E> {
    fn in_words(self) -> Result<T, String> {
        self.map_err(|error| format!("{error:#}"))
    }
}

/// Creates an object, which may be JSON.
pub async fn create<K>(api: &Api<K>, object: &impl Serialize) -> kube::Result<K>
where
    K: Clone + DeserializeOwned + Debug + Serialize,
{
    create_with(api, object, false).await
}

/// As [`create`]; nothing is stored.
pub async fn dry_run<K>(api: &Api<K>, object: &impl Serialize) -> kube::Result<K>
where
    K: Clone + DeserializeOwned + Debug + Serialize,
{
    create_with(api, object, true).await
}

async fn create_with<K>(api: &Api<K>, object: &impl Serialize, dry_run: bool) -> kube::Result<K>
where
    K: Clone + DeserializeOwned + Debug + Serialize,
{
    let object =
        serde_json::to_value(object).and_then(serde_json::from_value).expect("an object of the kind");
    api.create(&PostParams { dry_run, ..PostParams::default() }, &object).await
}

/// Changes an object by a merge patch.
pub async fn merge<K>(api: &Api<K>, name: &str, patch: Value) -> kube::Result<K>
where
    K: Clone + DeserializeOwned + Debug,
{
    api.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await
}

/// As [`merge`], of the object's status.
pub async fn merge_status<K>(api: &Api<K>, name: &str, status: Value) -> kube::Result<K>
where
    K: Clone + DeserializeOwned + Debug,
{
    api.patch_status(name, &PatchParams::default(), &Patch::Merge(json!({"status": status}))).await
}

/// Waits until an object's state is as wanted, and returns what `read` makes of it.
pub async fn until<K, T>(what: &str, api: &Api<K>, name: &str, read: impl Fn(K) -> Result<T, String>) -> T
where
    K: Clone + DeserializeOwned + Debug,
{
    eventually(what, || async { read(api.get(name).await.in_words()?) }).await
}

/// Waits until an object no longer exists.
pub async fn is_gone<K: Clone + DeserializeOwned + Debug>(api: &Api<K>, name: &str) {
    eventually(&format!("{name} is gone"), || async {
        let left = api.get_opt(name).await.in_words()?;
        holds(left.is_none(), format!("{left:?}"))
    })
    .await;
}

/// The condition of this type in the status of an object, which may be JSON; null without one.
pub fn condition_of(object: &impl Serialize, kind: &str) -> Value {
    let mut object = serde_json::to_value(object).expect("an object");
    let mut conditions = object["status"]["conditions"].as_array_mut().into_iter().flatten();
    conditions.find(|condition| condition["type"] == kind).map(Value::take).unwrap_or_default()
}

/// Whether an object has a condition that is true.
pub fn is_true(object: &impl Serialize, kind: &str) -> bool {
    condition_of(object, kind)["status"] == "True"
}

/// Makes sure that something stays true for a while.
pub async fn always<F>(what: &str, time: Duration, mut ask: impl FnMut() -> F)
where
    F: Future<Output = Result<(), String>>,
{
    let began = Instant::now();
    while began.elapsed() < time {
        if let Err(answer) = ask().await {
            panic!("{what}: {answer}");
        }
        tokio::time::sleep((time / 10).clamp(SHORTEST, LONGEST / 2)).await;
    }
}
