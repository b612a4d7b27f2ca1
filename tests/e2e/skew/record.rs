//! Makes a recording of what the agent says. Once for each version whose messages say something new:
//!
//! `cargo test -p outrigger-tests --test suites e2e:: -- --ignored record`, for the last of the recordings there is, and the file gets its version in its name.

use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Body;
use axum::routing::post;
use http_body_util::BodyExt;
use outrigger_proto::v1::WorkloadChunkedStreamRequest;
use outrigger_proto::v1::workload_chunked_stream_request::Message as Kind;
use outrigger_tests::outrigger::Outrigger;
use outrigger_tests::tenant::Tenant;
use outrigger_tests::wire::{messages, serve};
use outrigger_tests::{eventually, holds};
use prost::Message as _;
use tokio_util::sync::CancellationToken;

#[tokio::test]
#[ignore = "makes a file of the source"]
async fn record() {
    let o = Outrigger::shared().await;
    let t = Tenant::without_agent(o, super::CHUNKED.tenant, &[("a", 1)]).await;
    let heard = Arc::new(Mutex::new(Vec::new()));
    let (to, end) = (heard.clone(), CancellationToken::new());
    let stream = async move |mut body: Body| {
        to.lock().unwrap().clear();
        while let Some(Ok(frame)) = body.frame().await {
            to.lock().unwrap().extend_from_slice(&frame.into_data().unwrap_or_default());
        }
    };
    let path = format!("/universe.workload.v1.WorkloadService/{}", super::CHUNKED.method);
    let router = Router::new().route(&path, post(stream));
    t.web("first").await;
    super::agent(&t, serve(router, end.clone()));
    // Whole messages: a frame may end anywhere, but never for long.
    let received = async |what: &str, is: &dyn Fn(&[Kind]) -> bool| {
        eventually(what, || async {
            let bytes = heard.lock().unwrap().clone();
            let kinds: Vec<Kind> = messages(bytes.into())
                .into_iter()
                .filter_map(|message| WorkloadChunkedStreamRequest::decode(message).unwrap().message)
                .collect();
            holds(is(&kinds), format!("{} messages", kinds.len()))
        })
        .await;
    };
    let ready = |name: &'static str| {
        move |kinds: &[Kind]| {
            kinds.iter().any(|kind| match kind {
                Kind::WorkloadUpdate(update) => {
                    update.workload_metadata.as_ref().is_some_and(|m| m.resource_name == name)
                        && update.workload_state.as_ref().is_some_and(|s| s.ready)
                }
                _ => false,
            })
        }
    };
    received("a sync", &|kinds| kinds.iter().any(|kind| matches!(kind, Kind::WorkloadSyncEnd(_)))).await;
    t.web("second").await;
    received("second is ready", &ready("second")).await;
    t.end("first").await;
    received("the end of first", &|kinds| kinds.iter().any(|kind| matches!(kind, Kind::WorkloadDelete(_))))
        .await;
    std::fs::write(super::CHUNKED.file(), heard.lock().unwrap().as_slice()).unwrap();
    end.cancel();
    o.plane.command(&format!("term agent-{}", super::CHUNKED.tenant)).unwrap();
}
