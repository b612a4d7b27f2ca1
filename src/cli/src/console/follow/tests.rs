use clap::{Args, Command, FromArgMatches};
use http::{Request, Response};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use kube::client::Body;
use outrigger_runtime::fake_api::failure;
use outrigger_webhook::settings::AdmissionArgs;
use serde_json::json;
use tokio::sync::Semaphore;
use tower::{BoxError, service_fn};

use super::super::turns::Turns;
use super::*;
use crate::explain::live::Clients;
use crate::explain::view::ViewArgs;
use crate::sent::AnnotationArgs;

const INTERVAL: Duration = Duration::from_secs(10);

/// The statuses that the API server answers with, and how often it was asked.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Answers {
    list: u16,
    watch: u16,
    review: u16,
    lists: usize,
    watches: usize,
}

type Bytes = UnsyncBoxBody<axum::body::Bytes, BoxError>;

fn full(body: &Value) -> Bytes {
    Full::from(body.to_string()).map_err(Into::into).boxed_unsync()
}

/// A cluster with one DPU, whose Nodes are kept.
struct Cluster {
    answers: Arc<Mutex<Answers>>,
    shared: Arc<Shared>,
    _tasks: JoinSet<()>,
}

async fn answer(answers: Arc<Mutex<Answers>>, request: Request<Body>) -> Result<Response<Bytes>, BoxError> {
    let (parts, body) = request.into_parts();
    let body: Value = serde_json::from_slice(&body.collect_bytes().await?).unwrap_or_default();
    let mut answers = answers.lock();
    let refused = |code| (code, full(&failure(code, "no")));
    let (code, body) = match parts.uri.path() {
        "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews" if answers.review == 201 => {
            let allowed = match body.pointer("/spec/resourceAttributes/verb").and_then(Value::as_str) {
                Some("list") => answers.list == 200,
                _ => answers.watch == 200,
            };
            (201, full(&json!({"spec": {}, "status": {"allowed": allowed}})))
        }
        "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews" => refused(answers.review),
        _ if parts.uri.query().unwrap_or_default().contains("watch=true") => {
            answers.watches += 1;
            match answers.watch {
                // A watch in which nothing happens.
                200 => (200, StreamBody::new(futures::stream::pending()).boxed_unsync()),
                code => refused(code),
            }
        }
        _ => {
            answers.lists += 1;
            let node = json!({"metadata": {"name": "dpu-a", "labels": {keys::DPU_HOST: "a"}}});
            match answers.list {
                200 => (200, full(&json!({"metadata": {"resourceVersion": "7"}, "items": [node]}))),
                code => refused(code),
            }
        }
    };
    Ok(Response::builder().status(code).body(body)?)
}

impl Cluster {
    fn new(list: u16, watch: u16) -> Self {
        let answers = Arc::new(Mutex::new(Answers { list, watch, review: 201, ..Answers::default() }));
        let asked = answers.clone();
        let service = service_fn(move |request| answer(asked.clone(), request));
        let client = kube::Client::new(service, "default");
        let args = AdmissionArgs::augment_args(Command::new("x").no_binary_name(true));
        let source = Source {
            clients: Clients::of(client.clone()),
            view: ViewArgs::default(),
            annotations: AnnotationArgs::default(),
            admission: AdmissionArgs::from_arg_matches(&args.get_matches_from([""; 0])).unwrap(),
            system_namespace: None,
            interval: INTERVAL,
            namespace: None,
            asker: None,
            turns: Turns::of(Arc::new(Semaphore::new(1))),
        };
        let shared =
            Arc::new(Shared { source: Arc::new(source), rows: Mutex::default(), changed: Notify::new() });
        let mut tasks = JoinSet::new();
        tasks.spawn(shared.clone().keep(node_keeper(client, Default::default())));
        Self { answers, shared, _tasks: tasks }
    }

    fn set(&self, change: impl FnOnce(&mut Answers)) {
        change(&mut self.answers.lock());
    }

    /// How many rows are shown after a time.
    async fn rows_after(&self, time: Duration) -> usize {
        sleep(time).await;
        self.shared.rows.lock().len()
    }

    /// How often lists and watches were asked for in so many intervals.
    async fn asked_in(&self, intervals: u32) -> (usize, usize) {
        let count = || {
            let answers = self.answers.lock();
            (answers.lists, answers.watches)
        };
        let before = count();
        sleep(intervals * INTERVAL).await;
        let after = count();
        (after.0 - before.0, after.1 - before.1)
    }

    fn notes(&self) -> Vec<String> {
        let mut rows = self.shared.rows.lock();
        rows.installation = Some(crate::status::report::Report::default());
        rows.infrastructure = true;
        let report = rows.picture().unwrap().data().report;
        report.not_visible.into_iter().filter(|note| note.starts_with("nodes")).collect()
    }
}

#[tokio::test(start_paused = true)]
async fn what_may_not_be_watched_is_listed_until_it_may_be_watched() {
    let cluster = Cluster::new(200, 403);
    assert_eq!(cluster.rows_after(INTERVAL / 2).await, 1);
    let (lists, watches) = cluster.asked_in(6).await;
    assert!((5..=7).contains(&lists) && watches == 0, "{lists} {watches}");
    cluster.set(|answers| answers.watch = 200);
    assert_eq!(cluster.rows_after(2 * INTERVAL).await, 1);
    assert_eq!(cluster.asked_in(4).await, (0, 0), "one watch is open");
    cluster.set(|answers| (answers.list, answers.watch) = (403, 403));
    assert_eq!(cluster.rows_after(2 * INTERVAL).await, 0);
    assert!(cluster.notes()[0].contains("no"), "{:?}", cluster.notes());
}

#[tokio::test(start_paused = true)]
async fn a_right_that_is_taken_away_hides_rows_although_the_watch_is_open() {
    let cluster = Cluster::new(200, 200);
    assert_eq!(cluster.rows_after(INTERVAL / 2).await, 1);
    cluster.set(|answers| answers.list = 403);
    assert_eq!(cluster.rows_after(INTERVAL).await, 0);
    cluster.set(|answers| answers.list = 200);
    assert_eq!(cluster.rows_after(2 * INTERVAL).await, 1);
    assert_eq!(cluster.notes(), [""; 0]);
    // Whoever doesn't hear about rights doesn't show rows for ever.
    cluster.set(|answers| (answers.review, answers.list) = (500, 500));
    assert_eq!(cluster.rows_after(2 * INTERVAL).await, 1);
    assert_eq!(cluster.rows_after(2 * INTERVAL).await, 0);
    // A list that the API server answers says it too.
    cluster.set(|answers| answers.list = 200);
    assert_eq!(cluster.rows_after(2 * INTERVAL).await, 1);
}

#[tokio::test(start_paused = true)]
async fn whoever_may_not_ask_about_rights_is_shown_what_may_be_listed() {
    let cluster = Cluster::new(200, 200);
    cluster.set(|answers| answers.review = 403);
    assert_eq!(cluster.rows_after(6 * INTERVAL).await, 1);
    cluster.set(|answers| answers.list = 401);
    assert_eq!(cluster.rows_after(INTERVAL).await, 0);
}

#[tokio::test(start_paused = true)]
async fn a_refusal_that_is_over_leaves_rows_as_they_are() {
    for code in [401, 403] {
        let cluster = Cluster::new(200, code);
        assert_eq!(cluster.rows_after(INTERVAL / 2).await, 1, "{code}");
        cluster.set(|answers| answers.watch = 200);
        for _ in 0..6 {
            assert_eq!(cluster.rows_after(INTERVAL).await, 1, "{code}");
        }
        assert_eq!((cluster.notes(), cluster.asked_in(4).await), (vec![], (0, 0)), "{code}");
    }
}
