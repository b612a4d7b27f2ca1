//! A fake API server for unit tests.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use http::header::DATE;
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
    effects: HashMap<(String, String), Effect>,
    calls: Vec<(String, Call)>,
    date: Option<String>,
}

/// What happens while a request is answered.
#[derive(Clone)]
struct Effect(Arc<dyn Fn() + Send + Sync>);

impl fmt::Debug for Effect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Effect").finish_non_exhaustive()
    }
}

impl FakeApi {
    /// Sets the response to a method and path, for any query.
    pub fn answers(&self, method: &str, path: &str, code: u16, body: Value) {
        self.0.lock().answers.insert((method.to_owned(), path.to_owned()), (code, body));
    }

    /// Calls `effect` at each request with this method and path, before it is answered: what others do meanwhile.
    pub fn meanwhile(&self, method: &str, path: &str, effect: impl Fn() + Send + Sync + 'static) {
        self.0.lock().effects.insert((method.to_owned(), path.to_owned()), Effect(Arc::new(effect)));
    }

    /// Sets the header `Date` of all responses. Without it they have none.
    pub fn date(&self, date: &str) {
        self.0.lock().date = Some(date.to_owned());
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
        let request = (parts.method.as_str().to_owned(), parts.uri.path().to_owned());
        let effect = {
            let mut state = self.0.lock();
            state.calls.push((request.0.clone(), (parts.uri.to_string(), body)));
            state.effects.get(&request).cloned()
        };
        // It may send requests itself, so the state isn't locked.
        if let Some(Effect(effect)) = effect {
            effect();
        }
        let state = self.0.lock();
        let (code, answer) =
            state.answers.get(&request).cloned().unwrap_or_else(|| (418, failure(418, "Teapot")));
        let mut response = Response::builder().status(code);
        if let Some(date) = &state.date {
            response = response.header(DATE, date);
        }
        Ok(response.body(Body::from(answer.to_string().into_bytes()))?)
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
