use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use clap::{Args, Command, FromArgMatches};
use http::{Request, Response};
use kube::client::Body;
use serde_json::json;
use tower::{BoxError, service_fn};

use super::*;

/// A cluster that answers so many requests, and can't be reached afterwards. It has no objects.
fn cluster(answers: usize) -> Client {
    let left = Arc::new(AtomicUsize::new(answers));
    Client::new(
        service_fn(move |request: Request<Body>| {
            let take = |left: usize| left.checked_sub(1);
            let is_up = left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok();
            async move {
                let (code, body) = match request.uri().path() {
                    _ if !is_up => return Err(BoxError::from("the connection is broken")),
                    "/version" => (
                        200,
                        json!({"major": "1", "minor": "36", "gitVersion": "v1.36.0", "gitCommit": "", "gitTreeState": "",
                            "buildDate": "", "goVersion": "", "compiler": "", "platform": ""}),
                    ),
                    _ => (
                        403,
                        json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "code": 403,
                        "reason": "Forbidden", "message": "forbidden"}),
                    ),
                };
                let body = Body::from(body.to_string().into_bytes());
                Ok::<_, BoxError>(Response::builder().status(code).body(body)?)
            }
        }),
        "default",
    )
}

async fn read(answers: usize) -> Result<Report, InputError> {
    let matches =
        AdmissionArgs::augment_args(Command::new("status").no_binary_name(true)).get_matches_from([""; 0]);
    let admission = AdmissionArgs::from_arg_matches(&matches).unwrap();
    report(cluster(answers), None, &admission, None).await
}

#[tokio::test(start_paused = true)]
async fn a_cluster_that_goes_away_while_it_is_read_is_not_one_that_shows_nothing() {
    let shown = read(usize::MAX).await.unwrap();
    assert!(shown.tenants.is_none() && !shown.not_visible.is_empty(), "{:?}", shown.not_visible);
    for answers in 0..4 {
        let error = read(answers).await.unwrap_err().to_string();
        assert!(error.contains("the cluster"), "after {answers} answers: {error}");
    }
}
