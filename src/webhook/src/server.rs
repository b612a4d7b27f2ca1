//! The HTTP server: reads reviews, has them decided, makes reservations, and writes answers.

use std::convert::Infallible;
use std::sync::Arc;

use axum::Router;
use axum::extract::{self, FromRequestParts, State};
use axum::http::request::Parts;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, post};
use outrigger_admission::caches::Caches;
use outrigger_admission::review::{self, Request, ReviewError};
use outrigger_admission::webhooks::{self, Endpoint};
use outrigger_admission::{Admission, CONTRADICTION, CacheStale, Context, Decision, Reservation, Settings};
use outrigger_core::bounds::Excess;
use outrigger_runtime::environment::Clock;
use outrigger_runtime::ready::Readiness;
use outrigger_runtime::serve::Peer;
use outrigger_runtime::telemetry::link_headers;
use tokio::sync::watch;
use tokio::task::JoinError;
use tokio::time::{Instant, timeout_at};
use tracing::field::Empty;
use tracing::{Instrument, Span, debug, debug_span, info, warn};

use crate::budget::{BODIES, Budget, LARGE_TREES, NoBody, PATIENCE, TREES, Tree, of_one};
use crate::ledger::Ledgers;
use crate::metrics::{Metrics, Verdict};

/// Largest body.
pub const MAX_BODY: usize = review::BOUNDS.bytes;

/// Which clients may call the paths that write: `/validate/guests` and `/validate/machines`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Writers {
    /// Every client that reaches the port.
    Anybody,
    /// Clients with a verified certificate: the API server.
    Certified,
}

/// Decides and answers requests.
#[derive(Debug)]
pub struct AdmissionService {
    /// The state of the cluster.
    pub caches: Arc<Caches>,
    /// Changes when the caches do.
    pub changes: watch::Receiver<()>,
    /// The settings.
    pub settings: Settings,
    /// The metrics.
    pub metrics: Metrics,
    /// Which watches have been listed.
    pub readiness: Readiness,
    /// Where reservations are made.
    pub ledgers: Arc<Ledgers>,
    /// What all requests together may hold.
    pub budget: Arc<Budget>,
    /// Which clients may call the paths that write.
    pub writers: Writers,
    /// The time.
    pub clock: Clock,
}

fn serve(endpoint: &'static Endpoint) -> MethodRouter<Arc<AdmissionService>> {
    type Service = State<Arc<AdmissionService>>;
    post(move |State(service): Service, Traced(span): Traced, request: extract::Request| async move {
        span.record("webhook", endpoint.label);
        service.answer(endpoint, request).instrument(span).await
    })
}

/// The span of a request. It names the request and the verdict, and nothing of the object. The API server's own trace, where it
/// has one, is linked and not continued: every client that reaches the port can claim one.
struct Traced(Span);

impl<S: Sync> FromRequestParts<S> for Traced {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        let span =
            debug_span!("admission", otel.kind = "server", webhook = Empty, uid = Empty, verdict = Empty);
        link_headers(&span, &parts.headers);
        Ok(Self(span))
    }
}

/// A review that has been read, with its part of the budget, the time at which all of it was there, and how long it may wait.
struct Received {
    request: Request,
    tree: Tree,
    began: Instant,
    until: Instant,
}

/// A request that was not decided: what is wrong with it, and its uid, by which the API server tells the user.
struct Rejection {
    verdict: Verdict,
    uid: Option<String>,
    status: StatusCode,
    message: String,
}

impl Rejection {
    fn plain(status: StatusCode, why: String) -> Self {
        Self { verdict: Verdict::Invalid, uid: None, status, message: why }
    }

    fn review(verdict: Verdict, uid: Option<&str>, status: StatusCode, message: String) -> Self {
        Self { verdict, uid: uid.map(str::to_owned), status, message }
    }

    /// The answer to a review, so that the API server tells the user. A plain answer where the review's uid is unknown, or the
    /// endpoint advises: but not to what is too large, because its author would choose that the call fails.
    fn response(self, endpoint: &Endpoint) -> Response {
        let refuses = !endpoint.advises || self.status == StatusCode::PAYLOAD_TOO_LARGE;
        match self.uid.filter(|_| refuses) {
            Some(uid) => written(review::write(&uid, &Decision::deny(self.status.as_u16(), self.message))),
            None => failed(self.status, self.message),
        }
    }

    fn broken(error: &JoinError) -> Self {
        Self::plain(StatusCode::INTERNAL_SERVER_ERROR, format!("the review could not be decided: {error}"))
    }
}

/// The failure of a call.
fn failed(status: StatusCode, message: String) -> Response {
    (status, message + "\n").into_response()
}

fn written(answer: Result<Vec<u8>, serde_json::Error>) -> Response {
    match answer {
        Ok(body) => ([(header::CONTENT_TYPE, "application/json")], body).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

/// Works on a large review on a thread of its own, so that the workers stay free for all others. Whoever asked may hang up meanwhile, and
/// the work goes on: what it holds of the budget has to be its own.
async fn apart<T: Send + 'static>(
    large: bool,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Rejection> {
    if !large {
        return Ok(work());
    }
    tokio::task::spawn_blocking(work).await.map_err(|error| Rejection::broken(&error))
}

impl AdmissionService {
    /// The webhook's paths.
    pub fn router(self) -> Router {
        self.router_of(webhooks::endpoints())
    }

    /// The paths of these endpoints.
    pub fn router_of(self, endpoints: Vec<&'static Endpoint>) -> Router {
        let mut router = Router::new();
        for endpoint in endpoints {
            for path in std::iter::once(&endpoint.path).chain(endpoint.aliases) {
                router = router.route(path, serve(endpoint));
            }
        }
        router.with_state(Arc::new(self))
    }

    async fn answer(self: Arc<Self>, endpoint: &'static Endpoint, request: extract::Request) -> Response {
        let began = self.clock.now();
        let received = match self.receive(endpoint, request).await {
            Ok(received) => received,
            Err(rejection) => {
                self.metrics.answered(endpoint, rejection.verdict, self.clock.now() - began);
                return rejection.response(endpoint);
            }
        };
        let Received { request, tree, began, until } = received;
        let answered = match self.judge(endpoint, request, tree, (began, until)).await {
            Ok((_, _, Decision::Deny { code, message, .. })) if endpoint.advises && code != CONTRADICTION => {
                let status = StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
                return failed(status, message);
            }
            // The answer to a large review is large too, and to free the review takes time.
            Ok((request, tree, decision)) => {
                apart(tree.large.is_some(), move || {
                    let answer = review::write(&request.uid, &decision);
                    drop((request, decision, tree));
                    answer
                })
                .await
            }
            Err(broken) => Err(broken),
        };
        answered.map_or_else(|rejection| rejection.response(endpoint), written)
    }

    /// Reads a review, when there is room for it.
    async fn receive(
        &self,
        endpoint: &'static Endpoint,
        request: extract::Request,
    ) -> Result<Received, Rejection> {
        let peer = request.extensions().get::<Peer>().cloned().unwrap_or_default();
        let from = peer.address.map(|address| address.ip());
        let until = self.clock.now() + PATIENCE;
        let body = self.budget.read(request.into_body(), from, until).await.map_err(no_body)?;
        let began = self.clock.now();
        let measured = match review::measure(&body.bytes) {
            Ok(measured) => measured,
            Err(error) => {
                let located = apart(true, move || error.located(&body.bytes)).await?;
                return Err(unreadable(endpoint, &located));
            }
        };
        // A mutation holds three copies: the object, what may change of it, and the text of the patch.
        let copies = if endpoint.mutates { 3 } else { 1 };
        let Some(tree) = self.budget.tree(measured, copies, until).await else {
            let message = format!(
                "too many reviews are under way: their objects may weigh {TREES} bytes together, those of large reviews \
                 {LARGE_TREES}, and this one weighs {}; try again",
                measured.weight()
            );
            let (uid, code) = (review::uid(&body.bytes), StatusCode::SERVICE_UNAVAILABLE);
            return Err(Rejection::review(Verdict::Crowded, uid.as_deref(), code, message));
        };
        let read = apart(tree.large.is_some(), move || {
            let read = review::read_measured(&body.bytes);
            drop(body);
            (read, tree)
        });
        let (read, tree) = read.await?;
        let request = read.map_err(|error| unreadable(endpoint, &error))?;
        Span::current().record("uid", cut(&request.uid));
        if self.writers == Writers::Certified && endpoint.writes && peer.certificates.is_empty() {
            let message = "a client of this path has to show a certificate, and this one did not: configure the API server to show one to \
                           webhooks (docs/installation.md), or run the webhook without --tls-client-auth";
            let address = peer.address.map(tracing::field::display);
            warn!(
                uid = cut(&request.uid),
                webhook = endpoint.label,
                address,
                "refused: client has no certificate"
            );
            let uid = Some(request.uid.as_str());
            return Err(Rejection::review(Verdict::Denied, uid, StatusCode::FORBIDDEN, message.to_owned()));
        }
        Ok(Received { request, tree, began, until })
    }

    /// Decides about a request, makes the reservation that an admitted object needs, and reports the decision.
    async fn judge(
        self: &Arc<Self>,
        endpoint: &'static Endpoint,
        request: Request,
        tree: Tree,
        (began, until): (Instant, Instant),
    ) -> Result<(Request, Tree, Decision), Rejection> {
        let (mut request, mut tree, mut admission, mut verdict) =
            match endpoint.unlisted(&request, || self.readiness.missing()) {
                Some(refused) => (request, tree, refused, Verdict::Behind),
                None => self.decide(endpoint, request, tree, until).await?,
            };
        if let (Decision::Allow { .. }, Some(reservation)) = (&admission.decision, admission.reserve.take()) {
            // The API server may take seconds. Tenants create guests, and must not keep all others from the budget meanwhile.
            if let Reservation::Slot(slot) = &reservation {
                let texts = [&slot.name, &slot.namespace, &slot.ask.pod, &slot.ask.uid];
                let more: usize = texts.iter().map(|text| text.len()).sum();
                (request, tree) =
                    apart(tree.large.is_some(), move || without_objects(request, tree, more)).await?;
            }
            match self.ledgers.reserve(&reservation).await {
                Ok(outcome) => admission.guest = outcome,
                Err(refused) => (admission, verdict) = (refused, Verdict::Denied),
            }
        }
        if let Some(outcome) = admission.guest.filter(|_| request.dry_run != Some(true)) {
            self.metrics.guest(outcome);
        }
        Span::current().record("verdict", tracing::field::debug(verdict));
        self.metrics.answered(endpoint, verdict, self.clock.now() - began);
        log(endpoint, &request, &admission.decision);
        Ok((request, tree, admission.decision))
    }

    /// Decides about a request. Where a cache is stale, the decision waits for it until this time, if the budget has room for that.
    async fn decide(
        self: &Arc<Self>,
        endpoint: &'static Endpoint,
        request: Request,
        tree: Tree,
        until: Instant,
    ) -> Result<(Request, Tree, Admission, Verdict), Rejection> {
        let (mut request, mut tree, mut answer) = self.ask(endpoint, request, tree).await?;
        if answer.is_err() && self.budget.wait(&mut tree) {
            // Rare. From here on no change is missed: the caches are asked again before the first wait.
            let mut changes = self.changes.clone();
            loop {
                changes.mark_unchanged();
                (request, tree, answer) = self.ask(endpoint, request, tree).await?;
                let done = answer.is_ok();
                if done || !matches!(timeout_at(until, changes.changed()).await, Ok(Ok(()))) {
                    break;
                }
            }
        }
        let (admission, verdict) = match answer {
            Ok(admission) => {
                let verdict = match &admission.decision {
                    Decision::Deny { .. } => Verdict::Denied,
                    admitted if admitted.would_deny() => Verdict::WouldDeny,
                    Decision::Allow { patch, .. } if patch.0.is_empty() => Verdict::Allowed,
                    Decision::Allow { .. } => Verdict::Patched,
                };
                (admission, verdict)
            }
            Err(stale) => {
                let missing = self.readiness.missing();
                let message = if missing.is_empty() {
                    stale.to_string()
                } else {
                    format!("{stale} (this replica is not ready: {})", missing.join(", "))
                };
                (Decision::deny(503, message).into(), Verdict::Behind)
            }
        };
        Ok((request, tree, admission, verdict))
    }

    async fn ask(
        self: &Arc<Self>,
        endpoint: &'static Endpoint,
        mut request: Request,
        tree: Tree,
    ) -> Result<(Request, Tree, Result<Admission, CacheStale>), Rejection> {
        let this = self.clone();
        apart(tree.large.is_some(), move || {
            let steps = this.metrics.steps(this.clock);
            let now = Some(this.clock.unix());
            let cx = Context { steps: &steps, now, ..Context::new(&this.caches, &this.settings) };
            let answer = endpoint.decide(cx, &mut request);
            (request, tree, answer)
        })
        .await
    }
}

/// What the answer and the log need of a request that is decided, with the part of the budget that this takes. `more`: bytes of the request that
/// something else needs.
fn without_objects(mut request: Request, mut tree: Tree, more: usize) -> (Request, Tree) {
    (request.object, request.old_object, request.user_info.groups) = Default::default();
    let Request { uid, kind, sub_resource, namespace, operation, user_info, .. } = &request;
    let texts = [uid, &kind.group, &kind.version, &kind.kind, sub_resource, namespace, operation];
    let bytes = texts.iter().map(|text| text.len()).sum::<usize>() + user_info.username.len();
    tree.shrink(bytes + more);
    (request, tree)
}

fn no_body(why: NoBody) -> Rejection {
    match why {
        NoBody::Crowded(beginning) => Rejection::review(
            Verdict::Crowded,
            review::uid(&beginning).as_deref(),
            StatusCode::SERVICE_UNAVAILABLE,
            format!(
                "there is no room for the body: all bodies together may have {BODIES} bytes, those from one address \
                 {}, and one that is slow to come makes room for others; try again",
                of_one(BODIES)
            ),
        ),
        NoBody::Broken(why) => {
            Rejection::plain(StatusCode::BAD_REQUEST, format!("the body could not be read: {why}"))
        }
        NoBody::TooLarge(beginning, found) => {
            let excess = Excess::Bytes(found, MAX_BODY);
            let (uid, code) = (review::uid(&beginning), StatusCode::PAYLOAD_TOO_LARGE);
            Rejection::review(Verdict::Denied, uid.as_deref(), code, review::beyond(&excess))
        }
    }
}

/// Rejects a body that is too large, or no review.
fn unreadable(endpoint: &Endpoint, error: &ReviewError) -> Rejection {
    let (webhook, message) = (endpoint.label, error.to_string());
    if let ReviewError::Beyond { uid, .. } = error {
        info!(uid = uid.as_deref().map(cut), webhook, reason = message, "denied");
        return Rejection::review(Verdict::Denied, uid.as_deref(), StatusCode::PAYLOAD_TOO_LARGE, message);
    }
    // It has no uid.
    warn!(webhook, error = message, "body is no review");
    Rejection::plain(StatusCode::BAD_REQUEST, message)
}

/// Logs a decision; denials are for the operator too. The object itself is never logged: it may hold secrets. Every line about
/// a request carries its `uid`.
fn log(endpoint: &Endpoint, request: &Request, decision: &Decision) {
    let (uid, namespace, user) =
        (cut(&request.uid), cut(&request.namespace), cut(&request.user_info.username));
    let webhook = endpoint.label;
    match decision {
        Decision::Deny { code, message, .. } => {
            info!(uid, webhook, namespace, user, code, reason = message, "denied");
        }
        Decision::Allow { warnings, .. } if decision.would_deny() => {
            info!(uid, webhook, namespace, user, reason = warnings.join("; "), "admitted below Enforce");
        }
        Decision::Allow { patch, .. } => {
            debug!(uid, webhook, namespace, user, operations = patch.0.len(), "allowed");
        }
    }
}

/// The beginning of a name: those of Kubernetes are shorter, and other clients may send any text.
fn cut(name: &str) -> &str {
    &name[..name.floor_char_boundary(253)]
}

#[cfg(test)]
mod tests;
