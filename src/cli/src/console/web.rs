//! Answers requests of browsers.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::{Extension, Request, State};
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderMap, HeaderName, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderValue, StatusCode, Uri};
use axum::middleware::{self, Next};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use futures::stream;
use maud::html;
use tokio::time::timeout;

use super::door::{self, Door, LOGIN, LOGOUT};
use super::managers::{self, Ask, Failure};
use super::metrics::Metrics;
use super::page::{self, View, notice};
use super::query::Query;
use super::sessions::Session;
use super::what_if::{self, Form};
use super::{chain, views, workloads};
use crate::companion::PodName;

/// Most streams of events at once.
pub(super) const VIEWERS: usize = 32;

/// Most bytes of a path with its query.
pub(super) const URL: usize = 4096;

/// Most bytes of a form. Percent-encoding takes up to three bytes for each of a text.
pub(super) const FORM: usize = 2 << 20;

/// Most bytes of the form of the login: a token.
const LOGIN_FORM: usize = 64 << 10;

/// Longest time for the body of a form.
const FORM_TIME: Duration = Duration::from_secs(10);

/// How long a stream of events lasts. The browser opens the next by itself.
pub(super) const STREAM: Duration = Duration::from_secs(600);

/// How long a request waits for others of its session.
const REQUEST_WAIT: Duration = Duration::from_secs(30);

/// How often a page that is open counts as a look, without a change. Less than [`super::store::KEPT`].
const LOOK: Duration = Duration::from_secs(10);

pub(super) const EVENTS: &str = "/events";

/// The query of [`EVENTS`] for at most one event in each interval.
const SLOW: &str = "slow";

/// The content type of pages.
pub(super) const HTML: &str = "text/html; charset=utf-8";

/// The style sheet needs no session: the page of the login has it.
pub(super) const STYLE_PATH: &str = "/console.css";
pub(super) const SCRIPT_PATH: &str = "/console.js";

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

type Shared = State<Arc<Door>>;

/// What is counted.
type Counted = Extension<Arc<Metrics>>;

/// In whose session a request is answered.
type In = Extension<Arc<Session>>;

pub(super) fn router(door: Arc<Door>, metrics: Arc<Metrics>) -> Router {
    let mut router = Router::new()
        .route(STYLE_PATH, get(|| async { ([(CONTENT_TYPE, "text/css; charset=utf-8")], STYLE) }))
        .route(SCRIPT_PATH, get(|| async { ([(CONTENT_TYPE, "text/javascript; charset=utf-8")], SCRIPT) }))
        .route(EVENTS, get(events));
    for view in View::ALL {
        let page = async move |Extension(session): In, request: Request| {
            let query = Query::read(request.uri().query().unwrap_or_default());
            let html = session.page(*view, &query).await;
            ([(CONTENT_TYPE, HTML)], html)
        };
        router = router.route(view.path(), get(page));
    }
    let router = router
        .route(View::WhatIf.path(), post(predict))
        .route(LOGIN, get(async |State(door): Shared| door.login_page()).post(login))
        .route(LOGOUT, post(async |State(door): Shared, headers: HeaderMap| door.logout(&headers)));
    let guard = middleware::from_fn_with_state(door.clone(), guard);
    router.layer(guard).layer(middleware::from_fn(count)).layer(Extension(metrics)).with_state(door)
}

impl Session {
    async fn page(&self, view: View, query: &Query) -> String {
        let reading = self.store.reading().await;
        let rows = match &reading.data {
            _ if matches!(view, View::Chain | View::Workloads) => {
                let tenants = reading.data.iter().flat_map(|data| data.tenants.keys());
                let tenants = tenants.map(String::as_str).collect();
                if view == View::Chain {
                    self.chain(query, tenants).await
                } else {
                    self.workloads(query, tenants).await
                }
            }
            _ if view == View::WhatIf => what_if::form(&Form::of_tenant(&query.tenant)),
            Some(data) if view == View::Tenants && data.tenants.contains_key(&query.tenant) => {
                let served = self.served(&query.tenant).await;
                html! { (served) (views::rows(view, query, data)) }
            }
            Some(data) => views::rows(view, query, data),
            None => html! {},
        };
        let of_one = view == View::Tenants && !query.tenant.is_empty() && self.store.asks_managers();
        let slow = of_one || matches!(view, View::Chain | View::Workloads);
        page::page(view, query, self.user(), &reading, &rows, slow).into_string()
    }

    /// The view of a workload, of one of these tenants.
    async fn chain(&self, query: &Query, tenants: Vec<&str>) -> maud::Markup {
        if query.tenant.is_empty() && self.store.tenant().is_none() && tenants.len() > 1 {
            return which(View::Chain, query, &tenants);
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

    /// The workloads of one of these tenants, as managers know them.
    async fn workloads(&self, query: &Query, tenants: Vec<&str>) -> maud::Markup {
        if !self.store.asks_managers() {
            return notice(&Failure::NotConfigured.to_string());
        }
        let named = [query.tenant.as_str(), self.store.tenant().unwrap_or_default()];
        let named = named.into_iter().find(|tenant| !tenant.is_empty());
        let tenant = match (named, tenants.as_slice()) {
            (Some(tenant), _) | (None, &[tenant]) => tenant,
            (None, []) => {
                return notice("Name the tenant in the filter: Tenants are not visible, or there are none.");
            }
            (None, _) => return which(View::Workloads, query, &tenants),
        };
        let ask =
            Ask { text: &query.text, cause: &query.cause, after: &query.after, ..Ask::of_tenant(tenant) };
        workloads::rows(query, tenant, &self.store.workloads(ask, managers::DEADLINE).await)
    }

    /// Which manager serves a tenant, if managers are asked.
    async fn served(&self, tenant: &str) -> maud::Markup {
        if !self.store.asks_managers() {
            return html! {};
        }
        let ask = Ask { limit: 1, ..Ask::of_tenant(tenant) };
        workloads::served(&self.store.workloads(ask, managers::BRIEF).await)
    }
}

/// The tenants to choose from.
fn which(view: View, query: &Query, tenants: &[&str]) -> maud::Markup {
    let of = |tenant: &str| Query { tenant: tenant.to_owned(), after: String::new(), ..query.clone() };
    html! {
        p { "Workloads of which tenant?" }
        ul {
            @for tenant in tenants.iter().take(super::query::PAGE) {
                li { a href=(of(tenant).url(view.path())) { (tenant) } }
            }
        }
    }
}

/// Counts requests by route and outcome.
async fn count(Extension(metrics): Counted, request: Request, next: Next) -> Response {
    let path = request.uri().path().to_owned();
    let answer = next.run(request).await;
    metrics.requested(&path, answer.status());
    answer
}

/// Lets only those through who have a session, and sets the headers of all answers.
async fn guard(State(door): Shared, request: Request, next: Next) -> Response {
    let (mut parts, body) = request.into_parts();
    let mut response = match door.enter(&parts).await {
        Err(refusal) => refusal,
        Ok(None) => next.run(Request::from_parts(parts, body)).await,
        Ok(Some(session)) => {
            let turn = match parts.uri.path() {
                EVENTS => None,
                _ => Some(timeout(REQUEST_WAIT, session.requests.clone().acquire_owned()).await),
            };
            parts.extensions.insert(session);
            match turn {
                None | Some(Ok(Ok(_))) => next.run(Request::from_parts(parts, body)).await,
                Some(_) => {
                    let why = "too many requests of this session are being answered; try again later\n";
                    (StatusCode::TOO_MANY_REQUESTS, why).into_response()
                }
            }
        }
    };
    for (name, value) in HEADERS {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}

/// The prediction for the rules in a form, which changes nothing: a form has room for them, and a URL hasn't.
async fn predict(Extension(session): In, request: Request) -> Response {
    let form = match received(request.into_body()).await {
        Ok(form) => form,
        Err((status, why)) => return (status, why).into_response(),
    };
    let report = session.store.predict(&form.tenant, &form.rules).await;
    let rows = html! { (what_if::form(&form)) (what_if::answer(&report)) };
    let query = Query::of_tenant(&form.tenant);
    let reading = session.store.reading().await;
    let html = page::page(View::WhatIf, &query, session.user(), &reading, &rows, false).into_string();
    ([(CONTENT_TYPE, HTML)], html).into_response()
}

/// Begins a session for whoever sends a token.
async fn login(State(door): Shared, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let address = door::address(&parts);
    let body = match bounded(body, LOGIN_FORM).await {
        Ok(body) => body,
        Err((status, why)) => return (status, why).into_response(),
    };
    let field = |wanted: &str| form_urlencoded::parse(&body).find(|(name, _)| name == wanted);
    let [token, namespace] =
        ["token", "namespace"].map(|name| field(name).map(|(_, value)| value).unwrap_or_default());
    door.login(address, &token, &namespace).await
}

/// Reads a form within its bounds.
async fn received(body: Body) -> Result<Form, (StatusCode, String)> {
    let body = bounded(body, FORM).await?;
    Form::read(&body).map_err(|why| (StatusCode::PAYLOAD_TOO_LARGE, why))
}

/// Reads at most so many bytes of a form.
async fn bounded(body: Body, most: usize) -> Result<axum::body::Bytes, (StatusCode, String)> {
    let late = |_| (StatusCode::REQUEST_TIMEOUT, "the form has taken too long\n".to_owned());
    let body = timeout(FORM_TIME, to_bytes(body, most)).await.map_err(late)?;
    body.map_err(|error| (StatusCode::PAYLOAD_TOO_LARGE, format!("a form may have {most} bytes: {error}\n")))
}

/// An event for each reading. An open stream is what makes the console go on watching.
///
/// With the query `slow` there is at most one in each interval: for pages that ask for more than the reading. The stream ends with the
/// session, and when the session's user may no longer read.
async fn events(
    State(door): Shared,
    Extension(metrics): Counted,
    Extension(session): In,
    uri: Uri,
) -> Response {
    let Ok(permit) = session.viewers.clone().try_acquire_owned() else {
        let why = "too many pages are open already\n";
        return (StatusCode::SERVICE_UNAVAILABLE, why).into_response();
    };
    let pause = if uri.query() == Some(SLOW) { session.store.interval() } else { Duration::ZERO };
    let revision = session.store.revision.subscribe();
    let open = (permit, metrics.stream());
    let state = (door, session, revision, open, [Duration::ZERO, pause]);
    let readings = stream::unfold(state, async |(door, session, mut revision, open, [after, pause])| {
        let next = async {
            tokio::time::sleep(after).await;
            loop {
                let changed = timeout(LOOK, revision.changed()).await.is_ok();
                let admitted = door.admits(&session).await?;
                if admitted {
                    session.store.look();
                }
                if changed {
                    return Some(*revision.borrow_and_update());
                }
            }
        };
        let now = tokio::select! {
            now = next => now?,
            () = session.ended.cancelled() => return None,
        };
        let event = Event::default().event("reading").data(now.to_string());
        Some((Ok::<_, Infallible>(event), (door, session, revision, open, [pause; 2])))
    });
    Sse::new(readings).keep_alive(KeepAlive::default()).into_response()
}

#[cfg(test)]
mod tests;
#[cfg(test)]
mod users;
