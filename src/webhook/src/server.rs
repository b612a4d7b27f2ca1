//! The HTTP side: bodies in, bodies out.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::{DefaultBodyLimit, FromRequestParts, State};
use axum::http::request::Parts;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, post};
use outrigger_runtime::ready::Readiness;
use outrigger_runtime::telemetry::follow_headers;
use tokio::time::{Instant, timeout_at};
use tracing::field::Empty;
use tracing::{Instrument, Span, debug, debug_span, info, warn};

use crate::admit::guests::{self, Outcome};
use crate::admit::{self, Admit, Settings, machines};
use crate::caches::Caches;
use crate::ledger::{Ledgers, NoClaim};
use crate::metrics::{Metrics, Verdict, Webhook};
use crate::review::{self, Decision, Request};
use crate::{GUEST_NAMESPACES, GUESTS, MACHINES};

/// Largest body. A review carries the object and the old one, each at most 3 MiB at the API server, and as JSON.
pub const MAX_BODY: usize = 8 << 20;

/// How long a request waits for a cache that is behind. The configuration's timeoutSeconds is 10; the API server's own
/// client gives up after 30 s or less, with all webhooks and etcd in it.
const PATIENCE: Duration = Duration::from_secs(2);

#[derive(Debug)]
struct App {
    caches: Arc<Caches>,
    settings: Settings,
    metrics: Arc<Metrics>,
    readiness: Readiness,
    ledgers: Arc<Ledgers>,
}

/// The webhook's paths.
pub fn router(
    caches: Arc<Caches>,
    settings: Settings,
    metrics: Arc<Metrics>,
    readiness: Readiness,
    ledgers: Arc<Ledgers>,
) -> Router {
    let app = Arc::new(App { caches, settings, metrics, readiness, ledgers });
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
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .with_state(app)
}

/// One path: reviews in, this decision out.
fn serve(webhook: Webhook, admit: Admit) -> MethodRouter<Arc<App>> {
    post(
        move |State(app): State<Arc<App>>, Traced(span): Traced, body: Result<Bytes, BytesRejection>| async move {
            span.record("webhook", tracing::field::debug(webhook));
            app.answer(webhook, admit, body).instrument(span).await
        },
    )
}

/// The span of a request, in the trace that the API server has begun, if it has. It names the request and the verdict, and
/// nothing of the object.
struct Traced(Span);

impl<S: Sync> FromRequestParts<S> for Traced {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        let span =
            debug_span!("admission", otel.kind = "server", webhook = Empty, uid = Empty, verdict = Empty);
        follow_headers(&span, &parts.headers);
        Ok(Self(span))
    }
}

impl App {
    async fn answer(&self, webhook: Webhook, admit: Admit, body: Result<Bytes, BytesRejection>) -> Response {
        let began = Instant::now();
        let body = match body {
            Ok(body) => body,
            Err(rejection) => {
                self.metrics.answered(webhook, Verdict::Invalid, began.elapsed());
                let status = rejection.status();
                let message = if status == StatusCode::PAYLOAD_TOO_LARGE {
                    format!("the body has more than {MAX_BODY} bytes\n")
                } else {
                    format!("the body could not be read: {rejection}\n")
                };
                return (status, message).into_response();
            }
        };
        let mut request = match review::read(&body) {
            Ok(request) => request,
            Err(error) => {
                self.metrics.answered(webhook, Verdict::Invalid, began.elapsed());
                // It has no uid that could be told.
                warn!(?webhook, error = error.to_string().as_str(), "no review");
                return (StatusCode::BAD_REQUEST, format!("{error}\n")).into_response();
            }
        };
        drop(body);
        Span::current().record("uid", cut(&request.uid));
        let (mut decision, mut verdict) = match unlisted(&self.readiness, webhook, &request) {
            None => self.decide(admit, &mut request, began).await,
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
        match review::write(&request.uid, &decision) {
            Ok(body) => ([(header::CONTENT_TYPE, "application/json")], body).into_response(),
            Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
        }
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

    async fn decide(&self, admit: Admit, request: &mut Request, began: Instant) -> (Decision, Verdict) {
        let mut answer = admit(&self.caches, &self.settings, request);
        if answer.is_err() {
            // Rare. From here on no change is missed: the caches are asked again before the first wait.
            let mut changes = self.caches.changes();
            loop {
                changes.mark_unchanged();
                answer = admit(&self.caches, &self.settings, request);
                let done = answer.is_ok();
                if done || !matches!(timeout_at(began + PATIENCE, changes.changed()).await, Ok(Ok(()))) {
                    break;
                }
            }
        }
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
mod tests {
    use outrigger_core::keys;
    use serde_json::json;

    use super::*;

    #[test]
    fn nothing_is_given_out_by_what_is_not_listed_yet() {
        let labels = json!({keys::MACHINE_GROUP: "g", keys::MACHINE_TYPE: "t", keys::POD_ROLE: "guest"});
        let request = |operation: &str, labels: &serde_json::Value| -> Request {
            let object = json!({"metadata": {"name": "p", "labels": labels}});
            serde_json::from_value(json!({"uid": "r", "operation": operation, "namespace": "n",
                "kind": {"version": "v1", "kind": "Pod"}, "object": object}))
            .unwrap()
        };
        let guest = request("CREATE", &labels);
        let readiness = Readiness::default();
        let (listed, other) = (readiness.wait_for(GUESTS), readiness.wait_for("nodes"));
        for webhook in [Webhook::MutatePods, Webhook::ValidateGuests] {
            let refused = unlisted(&readiness, webhook, &guest);
            assert!(
                matches!(&refused, Some(Decision::Deny { code: 503, message, .. }) if message.contains("all guests yet")),
                "{refused:?}"
            );
            assert!(unlisted(&readiness, webhook, &request("UPDATE", &labels)).is_none());
            assert!(unlisted(&readiness, webhook, &request("CREATE", &json!({}))).is_none());
        }
        listed.done();
        readiness.end();
        assert!(unlisted(&readiness, Webhook::ValidateGuests, &guest).is_none(), "it ends, and knows all");
        drop(other);
    }
}
