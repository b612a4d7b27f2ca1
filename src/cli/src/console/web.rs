//! Answers requests of browsers.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::http::header::{
    ALLOW, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderName, LOCATION, REFERRER_POLICY,
    SET_COOKIE, X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderValue, Method, StatusCode};
use axum::middleware::{self, Next};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use futures::stream;
use maud::html;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::access::Access;
use super::page::{self, View, notice};
use super::query::Query;
use super::store::Store;
use super::what_if::{self, Form};
use super::{chain, views};
use crate::companion::PodName;

/// Most streams of events at once.
pub(super) const VIEWERS: usize = 32;

/// Most bytes of a path with its query.
pub(super) const URL: usize = 4096;

/// Most bytes of a form. Percent-encoding takes up to three bytes for each of a text.
pub(super) const FORM: usize = 2 << 20;

/// Longest time for the body of a form.
const FORM_TIME: Duration = Duration::from_secs(10);

/// How long a stream of events lasts. The browser opens the next by itself.
pub(super) const STREAM: Duration = Duration::from_secs(600);

const STYLE: &str = include_str!("assets/console.css");
const SCRIPT: &str = include_str!("assets/console.js");

/// Only the console's own files are loaded, no script or style is in a page, and no other site shows a page in a frame.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
                      form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

/// Headers of all answers. A stricter policy on referrers would let browsers hide the origin of the console's own form too.
const HEADERS: [(HeaderName, &str); 6] = [
    (CONTENT_SECURITY_POLICY, POLICY),
    (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (REFERRER_POLICY, "same-origin"),
    (CACHE_CONTROL, "no-store"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
];

struct Console {
    store: Arc<Store>,
    access: Access,
    viewers: Arc<Semaphore>,
}

type Shared = State<Arc<Console>>;

pub(super) fn router(store: Arc<Store>, access: Access) -> Router {
    let console = Arc::new(Console { store, access, viewers: Arc::new(Semaphore::new(VIEWERS)) });
    let mut router = Router::new()
        .route("/console.css", get(|| async { ([(CONTENT_TYPE, "text/css; charset=utf-8")], STYLE) }))
        .route("/console.js", get(|| async { ([(CONTENT_TYPE, "text/javascript; charset=utf-8")], SCRIPT) }))
        .route("/events", get(events));
    for view in View::ALL {
        let page = async move |State(console): Shared, request: Request| {
            let query = Query::read(request.uri().query().unwrap_or_default());
            let html = console.page(*view, &query).await;
            ([(CONTENT_TYPE, "text/html; charset=utf-8")], html)
        };
        router = router.route(view.path(), get(page));
    }
    let router = router.route(View::WhatIf.path(), post(predict));
    router.layer(middleware::from_fn_with_state(console.clone(), guard)).with_state(console)
}

impl Console {
    async fn page(&self, view: View, query: &Query) -> String {
        let reading = self.store.reading().await;
        let rows = match &reading.data {
            _ if view == View::Chain => {
                let tenants = reading.data.iter().flat_map(|data| data.tenants.keys());
                self.chain(query, tenants.map(String::as_str).collect()).await
            }
            _ if view == View::WhatIf => what_if::form(&Form::of_tenant(&query.tenant)),
            Some(data) => views::rows(view, query, data),
            None => html! {},
        };
        page::page(view, query, &reading, &rows).into_string()
    }

    /// The view of a workload, of one of these tenants.
    async fn chain(&self, query: &Query, tenants: Vec<&str>) -> maud::Markup {
        if query.tenant.is_empty() && self.store.tenant().is_none() && tenants.len() > 1 {
            return html! {
                p { "Workloads of which tenant?" }
                ul {
                    @for tenant in tenants.iter().take(super::query::PAGE) {
                        li { a href=(Query { tenant: (*tenant).to_owned(), ..query.clone() }.url("/chain")) { (tenant) } }
                    }
                }
            };
        }
        let workload = match query.workload.as_str() {
            "" => None,
            text => match PodName::parse(text) {
                Ok(name) => Some(name),
                Err(why) => return notice(&format!("Workload: {why}")),
            },
        };
        let answer = self.store.ask(&query.tenant, workload).await;
        chain::rows(query, &answer)
    }
}

/// Lets only the session's browser through, and sets the headers of all answers.
async fn guard(State(console): Shared, request: Request, next: Next) -> Response {
    let mut response = match refusal(&console.access, &request) {
        Some(refusal) => refusal,
        None => next.run(request).await,
    };
    for (name, value) in HEADERS {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}

/// The answer to a request that gets no page: the exchange of the token too.
fn refusal(access: &Access, request: &Request) -> Option<Response> {
    let (url, headers) = (request.uri(), request.headers());
    if !access.is_own_host(headers) {
        return Some((StatusCode::FORBIDDEN, "the host is not this console's\n").into_response());
    }
    let is_form = *request.method() == Method::POST && url.path() == View::WhatIf.path();
    if *request.method() != Method::GET && !is_form {
        let answer = (StatusCode::METHOD_NOT_ALLOWED, [(ALLOW, "GET")], "the console only reads\n");
        return Some(answer.into_response());
    }
    if url.path_and_query().is_some_and(|whole| whole.as_str().len() > URL) {
        let why = format!("the URL has more than {URL} bytes\n");
        return Some((StatusCode::URI_TOO_LONG, why).into_response());
    }
    if access.has_session(headers) {
        let why = "another page has caused the request; open the console by itself\n";
        let foreign = Access::is_foreign(headers) || is_form && !access.is_own_form(headers);
        return foreign.then(|| (StatusCode::FORBIDDEN, why).into_response());
    }
    let query = url.query().unwrap_or_default();
    let token = form_urlencoded::parse(query.as_bytes()).find(|(name, _)| name == "token");
    if let Some(cookie) = token.and_then(|(_, token)| access.exchange(&token)) {
        // The browser's history keeps the URL without the token.
        let answer = (StatusCode::SEE_OTHER, [(LOCATION, "/".to_owned()), (SET_COOKIE, cookie)]);
        return Some(answer.into_response());
    }
    let why = "no session: open the URL that `outrigger console` has printed. It works once; start the command again for another\n";
    Some((StatusCode::UNAUTHORIZED, why).into_response())
}

/// The prediction for the rules in a form, which changes nothing: a form has room for them, and a URL hasn't.
async fn predict(State(console): Shared, request: Request) -> Response {
    let form = match received(request.into_body()).await {
        Ok(form) => form,
        Err((status, why)) => return (status, why).into_response(),
    };
    let report = console.store.predict(&form.tenant, what_if::PLACE, &form.rules).await;
    let rows = html! { (what_if::form(&form)) (what_if::answer(&report)) };
    let query = Query::of_tenant(&form.tenant);
    let html = page::page(View::WhatIf, &query, &console.store.reading().await, &rows).into_string();
    ([(CONTENT_TYPE, "text/html; charset=utf-8")], html).into_response()
}

/// Reads a form within its bounds.
async fn received(body: Body) -> Result<Form, (StatusCode, String)> {
    let late = |_| (StatusCode::REQUEST_TIMEOUT, "the form has taken too long\n".to_owned());
    let body = timeout(FORM_TIME, to_bytes(body, FORM)).await.map_err(late)?;
    let large = |error| (StatusCode::PAYLOAD_TOO_LARGE, format!("a form may have {FORM} bytes: {error}\n"));
    Form::read(&body.map_err(large)?).map_err(|why| (StatusCode::PAYLOAD_TOO_LARGE, why))
}

/// An event for each reading. An open stream is what makes the console read again.
async fn events(State(console): Shared) -> Response {
    let Ok(permit) = console.viewers.clone().try_acquire_owned() else {
        let why = format!("{VIEWERS} pages are open already\n");
        return (StatusCode::SERVICE_UNAVAILABLE, why).into_response();
    };
    let store = console.store.clone();
    let revision = store.revision.subscribe();
    let readings = stream::unfold((store, revision, permit), async |(store, mut revision, permit)| {
        // At most one page in `interval` begins the read that all of them wait for.
        while timeout(store.interval(), revision.changed()).await.is_err() {
            store.is_reading();
        }
        let now = *revision.borrow_and_update();
        let event = Event::default().event("reading").data(now.to_string());
        Some((Ok::<_, Infallible>(event), (store, revision, permit)))
    });
    Sse::new(readings).keep_alive(KeepAlive::default()).into_response()
}

#[cfg(test)]
mod tests;
