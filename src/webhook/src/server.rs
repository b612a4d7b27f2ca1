//! The HTTP side: bodies in, bodies out.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{self, FromRequestParts, State};
use axum::http::request::Parts;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, post};
use outrigger_core::bounds::Excess;
use outrigger_runtime::ready::Readiness;
use outrigger_runtime::serve::Peer;
use outrigger_runtime::telemetry::link_headers;
use tokio::task::JoinError;
use tokio::time::{Instant, timeout_at};
use tracing::field::Empty;
use tracing::{Instrument, Span, debug, debug_span, info, warn};

use crate::admit::guests::{self, Outcome};
use crate::admit::{self, Admit, Behind, Settings, machines};
use crate::budget::{BODIES, Budget, LARGE_TREES, NoBody, TREES, Tree, of_one};
use crate::caches::Caches;
use crate::ledger::{Ledgers, NoClaim};
use crate::metrics::{Metrics, Verdict, Webhook};
use crate::review::{self, Decision, Request, ReviewError};
use crate::{GUEST_NAMESPACES, GUESTS, MACHINES};

/// Largest body.
pub const MAX_BODY: usize = review::BOUNDS.bytes;

/// How long a request waits for a cache that is behind. The configuration's timeoutSeconds is 10; the API server's own
/// client gives up after 30 s or less, with all webhooks and etcd in it.
const PATIENCE: Duration = Duration::from_secs(2);

/// Who may ask the paths that write: `/validate/guests` and `/validate/machines`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Writers {
    /// Whoever reaches the port.
    Anybody,
    /// Who has shown a certificate that was verified: the API server.
    Certified,
}

#[derive(Debug)]
struct App {
    caches: Arc<Caches>,
    settings: Settings,
    metrics: Arc<Metrics>,
    readiness: Readiness,
    ledgers: Arc<Ledgers>,
    budget: Arc<Budget>,
    writers: Writers,
}

/// The webhook's paths.
pub fn router(
    caches: Arc<Caches>,
    settings: Settings,
    metrics: Arc<Metrics>,
    readiness: Readiness,
    ledgers: Arc<Ledgers>,
    writers: Writers,
) -> Router {
    let budget = Arc::new(Budget::default());
    let app = Arc::new(App { caches, settings, metrics, readiness, ledgers, budget, writers });
    Router::new()
        .route("/mutate/pods", serve(Webhook::MutatePods, admit::mutate_pod))
        .route("/validate/pods", serve(Webhook::ValidatePods, admit::validate_pod))
        .route("/validate/resourceclaims", serve(Webhook::ValidateClaims, admit::validate_claim))
        .route("/validate/resourceclaimtemplates", serve(Webhook::ValidateClaims, admit::validate_claim))
        .route("/validate/workloadrules", serve(Webhook::ValidateRules, admit::validate_rule))
        .route("/validate/adminworkloadrules", serve(Webhook::ValidateAdminRules, admit::validate_admin_rule))
        .route("/validate/tenants", serve(Webhook::ValidateTenants, admit::validate_tenant))
        .route(
            "/validate/namespaceoffloadings",
            serve(Webhook::ValidateOffloadings, admit::validate_offloading),
        )
        .route("/validate/machines", serve(Webhook::ValidateMachines, admit::validate_machine))
        .route("/validate/guests", serve(Webhook::ValidateGuests, admit::validate_guest))
        .with_state(app)
}

/// One path: reviews in, this decision out.
fn serve(webhook: Webhook, admit: Admit) -> MethodRouter<Arc<App>> {
    post(move |State(app): State<Arc<App>>, Traced(span): Traced, request: extract::Request| async move {
        span.record("webhook", tracing::field::debug(webhook));
        app.answer(webhook, admit, request).instrument(span).await
    })
}

/// The span of a request. It names the request and the verdict, and nothing of the object. To a trace that the API server says it
/// has begun there is a link: whoever reaches the port can say so.
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

/// A review that is to be judged, and when all of it was there.
struct Read {
    request: Request,
    tree: Tree,
    began: Instant,
}

/// An answer before anything was decided: a status and what is wrong, or a review's answer.
struct Turned(Verdict, Box<Response>);

impl Turned {
    fn plain(status: StatusCode, why: String) -> Self {
        Self(Verdict::Invalid, Box::new((status, why + "\n").into_response()))
    }

    /// As the answer to a review, so that the API server tells the user; plainly where its uid can't be told.
    fn away(verdict: Verdict, uid: Option<&str>, status: StatusCode, message: String) -> Self {
        let Some(uid) = uid else { return Self(verdict, Box::new((status, message + "\n").into_response())) };
        Self(verdict, Box::new(written(review::write(uid, &deny(status, message)))))
    }
}

fn deny(status: StatusCode, message: String) -> Decision {
    Decision::Deny { code: status.as_u16(), message, causes: Vec::new() }
}

fn written(answer: Result<Vec<u8>, serde_json::Error>) -> Response {
    match answer {
        Ok(body) => ([(header::CONTENT_TYPE, "application/json")], body).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

/// Does what is large apart from the workers that answer everybody.
async fn apart<T: Send + 'static>(
    large: bool,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, JoinError> {
    if large { tokio::task::spawn_blocking(work).await } else { Ok(work()) }
}

impl App {
    async fn answer(self: Arc<Self>, webhook: Webhook, admit: Admit, request: extract::Request) -> Response {
        let began = Instant::now();
        let answered = match self.read(webhook, request).await {
            Ok(Read { request, tree, began }) => {
                let large = tree.large.is_some();
                let judged = self.judged(webhook, admit, request, large, began).await;
                // The answer of a large review is large too, and what it was made of takes its time to go.
                match judged {
                    Ok((request, decision)) => apart(large, move || {
                        let answer = review::write(&request.uid, &decision);
                        drop((request, decision, tree));
                        answer
                    })
                    .await
                    .map(written),
                    Err(broken) => Err(broken),
                }
            }
            Err(Turned(verdict, response)) => {
                self.metrics.answered(webhook, verdict, began.elapsed());
                Ok(*response)
            }
        };
        answered.unwrap_or_else(|broken| {
            (StatusCode::INTERNAL_SERVER_ERROR, format!("the review could not be judged: {broken}\n"))
                .into_response()
        })
    }

    /// Reads a review, when there is room for it.
    async fn read(&self, webhook: Webhook, request: extract::Request) -> Result<Read, Turned> {
        let peer = request.extensions().get::<Peer>().cloned().unwrap_or_default();
        let from = peer.address.map(|address| address.ip());
        let body = self.budget.read(request.into_body(), from).await.map_err(no_body)?;
        let began = Instant::now();
        let measured = match review::measure(&body.bytes) {
            Ok(measured) => measured,
            Err(error) => {
                let located = apart(true, move || error.located(&body.bytes)).await;
                return Err(located.map_or_else(|broken| unread(&broken), |error| turn_away(webhook, &error)));
            }
        };
        // What is changed is there three times: itself, and what may change of it before and after.
        let copies = if webhook == Webhook::MutatePods { 3 } else { 1 };
        let Some(tree) = self.budget.tree(measured, copies).await else {
            let message = format!(
                "too many reviews are under way: their objects may weigh {TREES} bytes together, those of large reviews \
                 {LARGE_TREES}, and this one weighs {}; try again",
                measured.weight()
            );
            let uid = review::uid(&body.bytes);
            return Err(Turned::away(
                Verdict::Crowded,
                uid.as_deref(),
                StatusCode::SERVICE_UNAVAILABLE,
                message,
            ));
        };
        let read = apart(tree.large.is_some(), move || {
            let read = review::read_measured(&body.bytes);
            drop(body);
            read
        });
        let request = match read.await {
            Ok(Ok(request)) => request,
            Ok(Err(error)) => return Err(turn_away(webhook, &error)),
            Err(broken) => return Err(unread(&broken)),
        };
        Span::current().record("uid", cut(&request.uid));
        if self.writers == Writers::Certified && webhook.writes() && peer.certificates.is_empty() {
            let message = "whoever asks here has to show a certificate, which this client did not: have the API server show one to \
                           webhooks (docs/installation.md), or run the webhook without --tls-client-auth";
            warn!(uid = cut(&request.uid), ?webhook, address = ?peer.address, "refused: no client certificate");
            return Err(Turned::away(
                Verdict::Denied,
                Some(&request.uid),
                StatusCode::FORBIDDEN,
                message.to_owned(),
            ));
        }
        Ok(Read { request, tree, began })
    }

    /// Decides, and tells of it.
    async fn judged(
        self: &Arc<Self>,
        webhook: Webhook,
        admit: Admit,
        mut request: Request,
        large: bool,
        began: Instant,
    ) -> Result<(Request, Decision), JoinError> {
        let (mut decision, mut verdict) = match unlisted(&self.readiness, webhook, &request) {
            None => {
                let decided;
                (request, decided) = self.decide(admit, request, large, began).await?;
                decided
            }
            Some(refused) => {
                request.guest = (webhook == Webhook::ValidateGuests).then_some(Outcome::Unavailable);
                (refused, Verdict::Behind)
            }
        };
        if matches!(decision, Decision::Allow { .. })
            && let Err(refused) = self.take(webhook, &mut request).await
        {
            (decision, verdict) = (refused, Verdict::Denied);
        }
        if let Some(outcome) = request.guest.filter(|_| request.dry_run != Some(true)) {
            self.metrics.guest(outcome);
        }
        Span::current().record("verdict", tracing::field::debug(verdict));
        self.metrics.answered(webhook, verdict, began.elapsed());
        log(webhook, &request, &decision);
        Ok((request, decision))
    }

    /// Takes what goes with a yes and can be had once only.
    async fn take(&self, webhook: Webhook, request: &mut Request) -> Result<(), Decision> {
        match webhook {
            Webhook::ValidateGuests => {
                let (outcome, answer) = match guests::taking(&self.caches, request) {
                    Ok(None) => return Ok(()),
                    Ok(Some(taking)) => match self.ledgers.take(&taking).await {
                        Ok(()) => (Outcome::Admitted, Ok(())),
                        Err((outcome, refused)) => (outcome, Err(refused)),
                    },
                    Err((outcome, refused)) => (outcome, Err(refused)),
                };
                request.guest = Some(outcome);
                answer
            }
            Webhook::ValidateMachines => {
                let Some(claim) = machines::claim(request) else { return Ok(()) };
                match self.ledgers.claim(&claim, request.dry_run == Some(true)).await {
                    Ok(()) => Ok(()),
                    Err(NoClaim::Conflict(conflict)) => Err(machines::refuse(&claim, request, &conflict)),
                    Err(NoClaim::Unavailable(why)) => Err(machines::unavailable(&why)),
                }
            }
            _ => Ok(()),
        }
    }

    async fn ask(
        self: &Arc<Self>,
        admit: Admit,
        mut request: Request,
        large: bool,
    ) -> Result<(Request, Result<Decision, Behind>), JoinError> {
        let app = self.clone();
        apart(large, move || {
            let answer = admit(&app.caches, &app.settings, &mut request);
            (request, answer)
        })
        .await
    }

    async fn decide(
        self: &Arc<Self>,
        admit: Admit,
        request: Request,
        large: bool,
        began: Instant,
    ) -> Result<(Request, (Decision, Verdict)), JoinError> {
        let (mut request, mut answer) = self.ask(admit, request, large).await?;
        if answer.is_err() {
            // Rare. From here on no change is missed: the caches are asked again before the first wait.
            let mut changes = self.caches.changes();
            loop {
                changes.mark_unchanged();
                (request, answer) = self.ask(admit, request, large).await?;
                let done = answer.is_ok();
                if done || !matches!(timeout_at(began + PATIENCE, changes.changed()).await, Ok(Ok(()))) {
                    break;
                }
            }
        }
        let decided = self.verdict(answer);
        Ok((request, decided))
    }

    fn verdict(&self, answer: Result<Decision, Behind>) -> (Decision, Verdict) {
        match answer {
            Ok(decision) => {
                let verdict = match &decision {
                    Decision::Deny { .. } => Verdict::Denied,
                    Decision::Allow { patch, .. } if patch.0.is_empty() => Verdict::Allowed,
                    Decision::Allow { .. } => Verdict::Patched,
                };
                (decision, verdict)
            }
            Err(behind) => {
                let missing = self.readiness.missing();
                let message = if missing.is_empty() {
                    behind.to_string()
                } else {
                    format!("{behind} (this replica is not ready: {})", missing.join(", "))
                };
                (Decision::Deny { code: 503, message, causes: Vec::new() }, Verdict::Behind)
            }
        }
    }
}

fn no_body(why: NoBody) -> Turned {
    match why {
        NoBody::Crowded(beginning) => Turned::away(
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
            Turned::plain(StatusCode::BAD_REQUEST, format!("the body could not be read: {why}"))
        }
        NoBody::TooLarge(beginning, found) => {
            let excess = Excess::Bytes { found, most: MAX_BODY };
            let uid = review::uid(&beginning);
            Turned::away(
                Verdict::Denied,
                uid.as_deref(),
                StatusCode::PAYLOAD_TOO_LARGE,
                review::beyond(&excess),
            )
        }
    }
}

/// What isn't read, because the task that was to read it has ended.
fn unread(broken: &JoinError) -> Turned {
    Turned::plain(StatusCode::INTERNAL_SERVER_ERROR, format!("the body can't be read: {broken}"))
}

/// What isn't read, because it is too large or no review.
fn turn_away(webhook: Webhook, error: &ReviewError) -> Turned {
    if let ReviewError::Beyond { uid, .. } = error {
        info!(uid = uid.as_deref().map(cut), ?webhook, reason = error.to_string().as_str(), "denied");
        return Turned::away(
            Verdict::Denied,
            uid.as_deref(),
            StatusCode::PAYLOAD_TOO_LARGE,
            error.to_string(),
        );
    }
    // It has no uid that could be told.
    warn!(?webhook, error = error.to_string().as_str(), "no review");
    Turned::plain(StatusCode::BAD_REQUEST, error.to_string())
}

/// Refuses a new guest, or a Machine, while a watch that decides about it has not been listed: what it doesn't show yet would
/// be given away, or be told not to exist.
fn unlisted(readiness: &Readiness, webhook: Webhook, request: &Request) -> Option<Decision> {
    let needed: &[&str] = match webhook {
        Webhook::MutatePods | Webhook::ValidateGuests
            if request.operation == "CREATE"
                && request.sub_resource.is_empty()
                && guests::guest(&request.object).is_some() =>
        {
            &[MACHINES, GUESTS, GUEST_NAMESPACES]
        }
        Webhook::ValidateMachines if machines::claim(request).is_some() => &[MACHINES],
        _ => return None,
    };
    let missing: Vec<&str> = readiness.missing().into_iter().filter(|task| needed.contains(task)).collect();
    (!missing.is_empty()).then(|| {
        let message = format!(
            "this replica of the webhook has only just begun and doesn't know all {} yet; try again",
            missing.join(", ")
        );
        Decision::Deny { code: 503, message, causes: Vec::new() }
    })
}

/// Denials are for the operator too. The object itself is never logged: it may hold secrets. Every line about a request names
/// it: whoever adds one adds `uid` to it.
fn log(webhook: Webhook, request: &Request, decision: &Decision) {
    let (uid, namespace, user) =
        (cut(&request.uid), cut(&request.namespace), cut(&request.user_info.username));
    match decision {
        Decision::Deny { code, message, .. } => {
            info!(uid, ?webhook, namespace, user, code, reason = message.as_str(), "denied");
        }
        Decision::Allow { patch, .. } => {
            debug!(uid, ?webhook, namespace, user, operations = patch.0.len(), "allowed");
        }
    }
}

/// The beginning of a name: those of Kubernetes are shorter, and who else calls may call itself anything.
fn cut(name: &str) -> &str {
    &name[..name.floor_char_boundary(253)]
}

#[cfg(test)]
mod tests;
