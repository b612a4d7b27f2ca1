//! The events of watches on both sides.

use std::time::Duration;

use futures::{AsyncBufReadExt, TryStreamExt};
use http::Request;
use kube::Client;
use serde_json::Value;
use tokio::task::JoinHandle;

use crate::model::operations::{KINDS, object, path};
use crate::model::pair::{ALL, Pair, get, post};

/// Name of the object whose creation ends the comparison.
const LAST: &str = "zz-last";

/// Watches on both sides: of each kind, of all objects and of red ones.
pub(crate) struct Watches(Vec<(String, Reading, Reading)>);

/// A task that reads the events of a watch.
type Reading = JoinHandle<Vec<Value>>;

impl Watches {
    /// Opens them from a list on.
    pub(crate) async fn open(pair: &mut Pair) -> Self {
        let mut all = Vec::new();
        for (kind, (_, _, name)) in KINDS.iter().enumerate() {
            let (real, model) =
                pair.both("list", |_| get(&format!("{}?labelSelector={ALL}", path(kind)))).await;
            let version = |list: &Value| list["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
            let (real, model) = (version(&real.unwrap()), version(&model.unwrap()));
            for selector in [ALL.to_owned(), format!("{ALL},color=red")] {
                let watch = |from: &str| {
                    get(&format!(
                        "{}?watch=true&allowWatchBookmarks=true&timeoutSeconds=290&resourceVersion={from}&labelSelector={selector}",
                        path(kind)
                    ))
                };
                let reals = tokio::spawn(read(pair.real.clone(), watch(&real)));
                let models = tokio::spawn(read(pair.model.clone(), watch(&model)));
                all.push((format!("{name} {selector}"), reals, models));
            }
        }
        Self(all)
    }

    /// Compares all events so far. Returns how many there were.
    pub(crate) async fn compare(self, pair: &mut Pair) -> usize {
        for kind in 0..KINDS.len() {
            let last = object(kind, LAST, "red");
            let (real, model) = (pair.real.clone(), pair.model.clone());
            for client in [real, model] {
                client.request::<Value>(post(&path(kind), &last)).await.unwrap();
            }
        }
        let mut shown = 0;
        for (what, real, model) in self.0 {
            let wait = Duration::from_secs(60);
            let real = tokio::time::timeout(wait, real).await.expect("the last event").unwrap();
            let model = tokio::time::timeout(wait, model).await.expect("the last event").unwrap();
            shown += real.len();
            let short = |all: &[Value]| {
                let short =
                    |event: &Value| format!("{} {}", event["type"], event["object"]["metadata"]["name"]);
                all.iter().map(short).collect::<Vec<_>>()
            };
            if short(&real) != short(&model) {
                let (real, model) = (short(&real), short(&model));
                let at =
                    real.iter().zip(&model).position(|(a, b)| a != b).unwrap_or(real.len().min(model.len()));
                pair.differs(format!(
                    "watch of {what}: event {at} of {} and {}: {:?} and {:?}",
                    real.len(),
                    model.len(),
                    real.get(at),
                    model.get(at)
                ));
                continue;
            }
            for (real, model) in real.iter().zip(&model) {
                pair.compare(
                    &format!("watch of {what}: {}", real["type"]),
                    &real["object"],
                    &model["object"],
                );
            }
        }
        shown
    }
}

/// The events of a watch up to the last object.
async fn read(client: Client, request: Request<Vec<u8>>) -> Vec<Value> {
    let mut lines = client.request_stream(request).await.expect("a watch").lines();
    let mut events = Vec::new();
    while let Some(line) = lines.try_next().await.expect("a line") {
        let event: Value = serde_json::from_str(&line).expect("an event");
        if event["object"]["metadata"]["name"] == LAST {
            break;
        }
        if event["type"] != "BOOKMARK" {
            events.push(event);
        }
    }
    events
}
