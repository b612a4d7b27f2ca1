use std::collections::VecDeque;
use std::sync::Arc;

use futures::StreamExt;
use http::{Request, Response};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use k8s_openapi::api::core::v1::Namespace;
use kube::client::Body;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tower::{BoxError, service_fn};

use super::*;
use crate::ready::Readiness;

/// A response of the API server below.
#[derive(Debug, Clone)]
enum Answer {
    /// A page of a list: names, resourceVersion, and whether there is more.
    Page(&'static [&'static str], u32, bool),
    /// A watch that shows this and ends.
    Watch(Vec<Value>),
    /// A watch that shows this and then nothing.
    Silent(Vec<Value>),
    Status(u16, &'static str),
}

/// An API server with these responses, one after the other, its client, and the requests that it received.
struct Server {
    asked: Arc<Mutex<Vec<String>>>,
    client: Client,
}

fn status(code: u16, reason: &str) -> Value {
    json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": "no", "reason": "", "code": code,
        "details": {"causes": [{"reason": reason, "message": "no"}]}})
}

/// One whose name begins with `strange` can't be decoded.
fn namespace(name: &str, version: u32) -> Value {
    let spec = if name.starts_with("strange") { json!(7) } else { json!({}) };
    json!({"metadata": {"name": name, "uid": name, "resourceVersion": version.to_string()}, "spec": spec})
}

fn event(kind: &str, name: &str, version: u32) -> Value {
    json!({"type": kind, "object": namespace(name, version)})
}

fn bookmark(version: u32) -> Value {
    json!({"type": "BOOKMARK", "object": {"apiVersion": "v1", "kind": "Namespace",
        "metadata": {"resourceVersion": version.to_string()}}})
}

impl Server {
    fn new(answers: impl IntoIterator<Item = Answer>) -> Self {
        let answers = Arc::new(Mutex::new(answers.into_iter().collect::<VecDeque<_>>()));
        let asked = Arc::new(Mutex::new(Vec::new()));
        let note = asked.clone();
        let service = service_fn(move |request: Request<Body>| {
            let query = request.uri().query().unwrap_or_default().to_owned();
            let of =
                |name: &str| query.split('&').find_map(|pair| pair.strip_prefix(name)).map(str::to_owned);
            note.lock().push(match of("continue=") {
                _ if query.contains("watch=true") => {
                    assert!(query.contains("allowWatchBookmarks=true"), "{query}");
                    format!("watch {}", of("resourceVersion=").unwrap_or_default())
                }
                Some(token) => format!("list {token}"),
                None => "list".to_owned(),
            });
            let next = answers.lock().pop_front();
            async move { respond(next).await }
        });
        Self { asked, client: Client::new(crate::calls::limited(service), "default") }
    }

    /// Follows namespaces until nothing more is answered. Returns what was shown, and whether it became ready.
    async fn follow(&self, optional: bool) -> (Vec<String>, bool) {
        self.follow_with(|watch| Watch { optional, ..watch }).await
    }

    /// The same with other settings.
    async fn follow_with(
        &self,
        set: impl FnOnce(Watch<Namespace>) -> Watch<Namespace>,
    ) -> (Vec<String>, bool) {
        let readiness = Readiness::default();
        let ready = readiness.wait_for("test namespaces");
        let mut seen = Vec::new();
        let sink = |event: Event<Namespace>| {
            seen.push(match event {
                Event::ListStarted => "list".to_owned(),
                Event::Listed(object) => format!("={}", object.name_any()),
                Event::ListCompleted { version } => format!("listed {version}"),
                Event::Applied(object) => format!("+{}", object.name_any()),
                Event::Deleted(object) => format!("-{}", object.name_any()),
                Event::Unreadable(Unreadable { name, deleted: false, .. }) => format!("?{name}"),
                Event::Unreadable(Unreadable { name, .. }) => format!("-?{name}"),
                Event::Bookmark { version } => format!("at {version}"),
                Event::Failed(failed) => format!("failed {}", failed.status.unwrap_or_default()),
            });
        };
        let watch = set(Watch::all(&self.client, "test namespaces"));
        let _ = tokio::time::timeout(Duration::from_secs(600), watch.follow(ready, sink)).await;
        (seen, readiness.is_ready())
    }

    fn asked(&self) -> Vec<String> {
        self.asked.lock().clone()
    }
}

type Bytes = UnsyncBoxBody<axum::body::Bytes, BoxError>;

fn full(bytes: Vec<u8>) -> Bytes {
    Full::from(bytes).map_err(Into::into).boxed_unsync()
}

async fn respond(answer: Option<Answer>) -> Result<Response<Bytes>, BoxError> {
    let (code, body) = match answer {
        None => std::future::pending().await,
        Some(Answer::Status(code, reason)) => (code, full(status(code, reason).to_string().into_bytes())),
        Some(Answer::Page(names, version, more)) => {
            let items: Vec<_> = names.iter().map(|name| namespace(name, 1)).collect();
            let list = json!({"kind": "NamespaceList", "apiVersion": "v1", "items": items, "metadata": {
                "resourceVersion": version.to_string(), "continue": if more { "more" } else { "" }}});
            (200, full(list.to_string().into_bytes()))
        }
        Some(Answer::Watch(events)) => (200, full(lines(&events))),
        Some(Answer::Silent(events)) => {
            let frames =
                futures::stream::iter([Ok::<_, BoxError>(http_body::Frame::data(lines(&events).into()))]);
            (200, StreamBody::new(frames.chain(futures::stream::pending())).boxed_unsync())
        }
    };
    Ok(Response::builder().status(code).body(body)?)
}

fn lines(events: &[Value]) -> Vec<u8> {
    events.iter().flat_map(|event| format!("{event}\n").into_bytes()).collect()
}

#[tokio::test(start_paused = true)]
async fn a_watch_continues_from_its_resource_version() {
    let server = Server::new([
        Answer::Page(&["a"], 3, true),
        Answer::Page(&["b"], 3, false),
        Answer::Watch(vec![event("ADDED", "c", 5), event("DELETED", "a", 6)]),
        Answer::Watch(vec![bookmark(9)]),
        Answer::Status(503, ""),
        Answer::Watch(vec![event("MODIFIED", "b", 10)]),
    ]);
    let (seen, ready) = server.follow(false).await;
    assert!(ready);
    let expected = ["list", "=a", "=b", "listed 3", "+c", "-a", "at 9", "failed 503", "at 9", "+b"];
    assert_eq!(seen[..10], expected, "a failure is over when the watch is open again");
    assert_eq!(server.asked()[..6], ["list", "list more", "watch 3", "watch 6", "watch 9", "watch 9"]);
}

#[tokio::test(start_paused = true)]
async fn a_resource_version_that_is_lost_is_listed_again() {
    let gone = json!({"type": "ERROR", "object": status(410, "Expired")});
    for lost in [
        Answer::Watch(vec![gone]),
        Answer::Status(410, "Expired"),
        // The storage was restored: the resourceVersion is in its future, or the watch is silent.
        Answer::Status(504, "ResourceVersionTooLarge"),
        Answer::Silent(Vec::new()),
        Answer::Silent(vec![bookmark(3)]),
    ] {
        let server = Server::new([
            Answer::Page(&["a"], 3, false),
            lost.clone(),
            Answer::Page(&["b"], 2, false),
            Answer::Watch(vec![event("ADDED", "c", 4)]),
        ]);
        let (mut seen, _) = server.follow(false).await;
        seen.retain(|seen| seen != "at 3");
        assert_eq!(seen[..7], ["list", "=a", "listed 3", "list", "=b", "listed 2", "+c"], "{lost:?}");
        assert_eq!(server.asked()[..4], ["list", "watch 3", "list", "watch 2"], "{lost:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_is_lost_after_each_list_lists_less_and_less_often() {
    let lost = [Answer::Page(&["a"], 3, false), Answer::Status(410, "Expired")];
    let server = Server::new(std::iter::repeat_n(lost, 1000).flatten());
    server.follow(false).await;
    let lists = server.asked().iter().filter(|asked| *asked == "list").count();
    assert!((40..80).contains(&lists), "{lists} lists in ten minutes");
}

#[tokio::test(start_paused = true)]
async fn an_object_that_cannot_be_decoded_stops_no_other() {
    let server = Server::new([
        Answer::Page(&["a", "strange", "b"], 3, false),
        Answer::Watch(vec![
            event("MODIFIED", "strange", 4),
            event("DELETED", "strange", 5),
            event("ADDED", "c", 6),
        ]),
    ]);
    let (seen, ready) = server.follow(false).await;
    assert!(ready);
    let expected = ["list", "=a", "?strange", "=b", "listed 3", "?strange", "-?strange", "+c"];
    assert_eq!(seen[..8], expected);
    assert_eq!(server.asked()[..3], ["list", "watch 3", "watch 6"]);
}

#[tokio::test(start_paused = true)]
async fn a_first_list_that_has_to_be_complete_fails_and_later_ones_leave_objects_out() {
    let server = Server::new([
        Answer::Page(&["a", "strange"], 3, false),
        Answer::Page(&["a"], 4, false),
        Answer::Watch(vec![event("MODIFIED", "strange", 5)]),
        Answer::Status(410, "Expired"),
        Answer::Page(&["strange"], 6, false),
    ]);
    let (seen, ready) = server.follow_with(Watch::complete).await;
    assert!(ready);
    let expected =
        ["list", "=a", "failed 0", "list", "=a", "listed 4", "?strange", "list", "?strange", "listed 6"];
    assert_eq!(seen[..10], expected);
}

#[tokio::test(start_paused = true)]
async fn a_list_that_is_made_once_names_an_object_that_cannot_be_decoded() {
    let server = Server::new([Answer::Page(&["a", "strange"], 3, false)]);
    let namespaces: Api<Namespace> = Api::all(server.client.clone());
    let error = list(&namespaces, ListParams::default(), drop).await.unwrap_err();
    let error = std::error::Error::source(&error).unwrap().to_string();
    assert!(
        error.starts_with("object strange can't be decoded; correct or delete it: invalid type"),
        "{error}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_list_that_fails_starts_again() {
    let server = Server::new([
        Answer::Status(500, ""),
        Answer::Page(&["a"], 3, true),
        Answer::Status(410, "Expired"),
        Answer::Page(&["b"], 4, false),
    ]);
    let (seen, ready) = server.follow(false).await;
    assert!(ready);
    let expected = ["list", "failed 500", "list", "=a", "failed 410", "list", "=b", "listed 4"];
    assert_eq!(seen[..8], expected);
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_never_makes_progress_is_listed_again() {
    let refused = std::iter::repeat_n(Answer::Status(503, ""), 5);
    let server = Server::new([Answer::Page(&[], 3, false)].into_iter().chain(refused).chain([Answer::Page(
        &["b"],
        4,
        false,
    )]));
    let (seen, _) = server.follow(false).await;
    let failed = [0, 1, 2, 3, 4].map(|i| seen[2 + i].as_str());
    assert_eq!((&seen[..2], failed), (&["list", "listed 3"].map(str::to_owned)[..], ["failed 503"; 5]));
    assert_eq!(seen[7..10], ["list", "=b", "listed 4"]);
}

#[tokio::test(start_paused = true)]
async fn an_optional_kind_does_not_delay_readiness_and_is_found_later() {
    for (optional, code, expected) in
        [(true, 404, true), (false, 404, false), (true, 403, false), (true, 503, false)]
    {
        let server = Server::new([Answer::Status(code, ""), Answer::Status(code, "")]);
        let (seen, ready) = server.follow(optional).await;
        assert_eq!((ready, seen.len() >= 2), (expected, true), "{optional} {code}");
    }
    let server = Server::new([Answer::Status(404, ""), Answer::Page(&["a"], 1, false)]);
    let (seen, ready) = server.follow(true).await;
    assert_eq!(
        (seen[..4].to_vec(), ready),
        (["list", "list", "=a", "listed 1"].map(str::to_owned).to_vec(), true)
    );
}

#[tokio::test(start_paused = true)]
async fn failures_in_a_row_have_exponential_backoff_with_a_limit() {
    let server = Server::new(std::iter::repeat_n(Answer::Status(500, ""), 1000));
    server.follow(false).await;
    let tries = server.asked().len();
    // 600 s with pauses of at most 15 s, of which jitter only takes away.
    assert!((40..80).contains(&tries), "{tries} tries in ten minutes");
}
