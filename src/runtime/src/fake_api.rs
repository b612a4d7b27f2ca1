//! A fake API server for unit tests.

use std::collections::HashMap;
use std::sync::Arc;

use http::{Request, Response};
use kube::Client;
use kube::client::Body;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tower::{BoxError, service_fn};

/// A request: path with its query, and body.
pub type Call = (String, Value);

/// A fake API server with a response for each method and path. Other requests fail with the status 418, which clients handle in no
/// special way.
#[derive(Debug, Clone, Default)]
pub struct FakeApi(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    answers: HashMap<(String, String), (u16, Value)>,
    calls: Vec<(String, Call)>,
}

impl FakeApi {
    /// Sets the response to a method and path, for any query.
    pub fn answers(&self, method: &str, path: &str, code: u16, body: Value) {
        self.0.lock().answers.insert((method.to_owned(), path.to_owned()), (code, body));
    }

    /// The requests with this method so far.
    pub fn calls(&self, method: &str) -> Vec<Call> {
        let state = self.0.lock();
        state.calls.iter().filter(|(other, _)| other == method).map(|(_, call)| call.clone()).collect()
    }

    /// A client of it.
    pub fn client(&self) -> Client {
        let this = self.clone();
        Client::new(service_fn(move |request| this.clone().answer(request)), "default")
    }

    async fn answer(self, request: Request<Body>) -> Result<Response<Body>, BoxError> {
        let (parts, body) = request.into_parts();
        let body: Value = serde_json::from_slice(&body.collect_bytes().await?).unwrap_or_default();
        let mut state = self.0.lock();
        let method = parts.method.as_str().to_owned();
        state.calls.push((method.clone(), (parts.uri.to_string(), body)));
        let (code, answer) = state
            .answers
            .get(&(method, parts.uri.path().to_owned()))
            .cloned()
            .unwrap_or_else(|| (418, failure(418, "Teapot")));
        Ok(Response::builder().status(code).body(Body::from(answer.to_string().into_bytes()))?)
    }
}

/// The API server's response for an object that does not exist.
pub fn not_found() -> Value {
    failure(404, "NotFound")
}

/// An error response of the API server.
pub fn failure(code: u16, reason: &str) -> Value {
    json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "code": code, "reason": reason,
        "message": reason})
}
