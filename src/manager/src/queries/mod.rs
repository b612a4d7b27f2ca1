//! Queries: which workloads of a tenant this replica knows, and how their companions are. People and dashboards ask, not agents.
//!
//! **In**: `GET /v1/tenants/TENANT/workloads` by HTTPS, with a bearer token of a user of the infrastructure cluster. **Out**: a page of
//! workloads in JSON ([`page`]). The API server says whose token it is, and whether that user may `list` the resource
//! `workloads.outrigger.dev` in the tenant's namespace; both answers are used for ten seconds. Nothing is written, and nothing is read but
//! what is in memory. Who may not ask about a tenant doesn't learn whether there is one: a tenant that doesn't exist causes the same
//! calls as one that does, so neither the answer nor its time differs.

mod ask;
mod page;
mod users;

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Path, Request, State};
use axum::http::header::{CACHE_CONTROL, WWW_AUTHENTICATE, X_CONTENT_TYPE_OPTIONS};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use outrigger_core::ids::TenantId;
use outrigger_core::tenant::usual_namespace;
use outrigger_runtime::Process;
use outrigger_runtime::bind::Bind;
use outrigger_runtime::bucket::Rate;
use outrigger_runtime::callers::rights::{Right, Rights};
use outrigger_runtime::callers::{Caller, Callers, Denied, bearer};
use outrigger_runtime::environment::Clock;
use outrigger_runtime::ready::Readiness;
use outrigger_runtime::serve::{Limits, Peer, Server};
use outrigger_runtime::tls::ServerTls;
use serde_json::json;
use tokio::time::timeout;
use tracing::{debug, info};

use self::ask::Ask;
use self::page::{Answer, Pages};
use self::users::Users;
use crate::context::Context;
use crate::metrics::QueryOutcome;
use crate::state::TenantState;

/// Maximum number of connections, and of one address: a proxy or a dashboard may ask for all of its users.
const CONNECTIONS: usize = 64;
const CONNECTIONS_OF_ADDRESS: usize = 16;

/// Maximum number of open requests of a connection of HTTP/2.
const STREAMS: u32 = 16;

/// Flow-control window of a stream, in bytes. Requests have no body that is read.
const WINDOW: u32 = 16 << 10;

/// Longest time for an answer. It is longer than that of two reviews, each with the wait for it.
const DEADLINE: Duration = Duration::from_secs(25);

/// The right that a user needs in a tenant's namespace. The resource exists in roles only.
const RIGHT: Right<'static> =
    Right { verb: "list", group: "outrigger.dev", resource: "workloads", namespace: None, named: "" };

/// What queries are answered from.
struct Queries {
    context: Arc<Context>,
    readiness: Readiness,
    callers: Callers,
    rights: Rights,
    users: Users,
    pages: Arc<Pages>,
}

/// A query that isn't answered.
#[derive(Debug, PartialEq)]
struct Refusal {
    status: StatusCode,
    outcome: QueryOutcome,
    message: String,
}

impl Refusal {
    fn new(status: StatusCode, outcome: QueryOutcome, message: impl Into<String>) -> Self {
        Self { status, outcome, message: message.into() }
    }

    fn busy(message: &str) -> Self {
        Self::new(StatusCode::TOO_MANY_REQUESTS, QueryOutcome::Busy, message)
    }
}

impl From<Denied> for Refusal {
    fn from(denied: Denied) -> Self {
        match denied {
            Denied::NotAccepted => Self::new(
                StatusCode::UNAUTHORIZED,
                QueryOutcome::NotAccepted,
                "the API server of the infrastructure cluster doesn't accept the token; send a valid one as Authorization: Bearer",
            ),
            Denied::Busy => {
                Self::busy("too many tokens of this address, or of all, have to be reviewed; ask again later")
            }
            Denied::Failed => Self::new(
                StatusCode::SERVICE_UNAVAILABLE,
                QueryOutcome::Failed,
                "the API server could not review the caller; the manager's log says why",
            ),
        }
    }
}

/// Serves queries at an address, with the manager's certificate.
pub(crate) fn serve(
    process: &Process,
    context: &Arc<Context>,
    address: &Bind,
    tls: Arc<ServerTls>,
) -> anyhow::Result<()> {
    use anyhow::Context as _;
    let listener = address.listen().context("--query-address")?;
    let limits = Limits {
        max_connections: CONNECTIONS,
        per_address: Some(CONNECTIONS_OF_ADDRESS),
        request: DEADLINE + Duration::from_secs(10),
        streams: false,
        max_streams: STREAMS,
        window: WINDOW,
        ..Limits::default()
    };
    let router = router(process, context);
    process.serve(Server::new("queries", listener).open_tls(tls).limits(limits), router);
    Ok(())
}

/// The rate of reviews of an address: that many a minute, and a sixth of them at once.
fn reviews(minute: u32) -> Rate {
    let minute = f64::from(minute);
    Rate { burst: minute / 6.0, minute }
}

fn router(process: &Process, context: &Arc<Context>) -> Router {
    let queries = Queries::new(&process.readiness, context);
    // Every other path is refused in the same way to everybody.
    Router::new().route("/v1/tenants/{tenant}/workloads", get(workloads)).with_state(Arc::new(queries))
}

async fn workloads(
    State(queries): State<Arc<Queries>>,
    Path(tenant): Path<String>,
    request: Request,
) -> Response {
    let clock: Clock = queries.context.environment.clock;
    let began = clock.now();
    let answer = match timeout(DEADLINE, queries.answer(&tenant, request)).await {
        Ok(answer) => answer,
        Err(_) => Err(Refusal::new(
            StatusCode::SERVICE_UNAVAILABLE,
            QueryOutcome::Failed,
            format!("there was no answer within {} s; ask again", DEADLINE.as_secs()),
        )),
    };
    let outcome = answer.as_ref().map_or_else(|refusal| refusal.outcome, |_| QueryOutcome::Answered);
    queries.context.telemetry.metrics.queried(outcome, clock.now() - began);
    let mut response = match answer {
        Ok(answer) => axum::Json(answer).into_response(),
        Err(Refusal { status, message, .. }) => {
            debug!(%status, reason = message, "refused a query");
            (status, axum::Json(json!({"message": message}))).into_response()
        }
    };
    let headers = response.headers_mut();
    if outcome == QueryOutcome::NotAccepted {
        headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

impl Queries {
    fn new(readiness: &Readiness, context: &Arc<Context>) -> Self {
        let (client, clock) = (&context.client, context.environment.clock);
        Self {
            context: context.clone(),
            readiness: readiness.clone(),
            callers: Callers::new(client.clone(), clock, None, readiness.warning("tokens of queries"))
                .reviewing(reviews(context.replica.args.query_reviews_per_minute)),
            rights: Rights::new(client.clone(), clock, readiness.warning("rights of queries")),
            users: Users::new(clock),
            pages: Arc::new(Pages::new(clock)),
        }
    }

    async fn answer(&self, tenant: &str, request: Request) -> Result<Answer, Refusal> {
        let address = request.extensions().get::<Peer>().and_then(|peer| peer.address).map(|a| a.ip());
        let token = bearer(request.headers()).ok_or(Denied::NotAccepted)?;
        let caller = self.callers.caller(address, token).await?;
        let _turn = self.users.turn(&caller).await?;
        let ask = Ask::read(request.uri().query().unwrap_or_default()).map_err(|error| {
            Refusal::new(StatusCode::BAD_REQUEST, QueryOutcome::Invalid, error.to_string())
        })?;
        if !self.readiness.is_ready() {
            let why = "this replica has not listed all objects yet; ask again";
            return Err(Refusal::new(StatusCode::SERVICE_UNAVAILABLE, QueryOutcome::Failed, why));
        }
        let (id, state) = self.authorized(&caller, tenant).await?;
        let (pages, replica) = (self.pages.clone(), self.context.replica.identity.clone());
        let now = self.context.environment.clock.wall();
        let (of, asked) = (id.clone(), state.clone());
        let page = tokio::task::spawn_blocking(move || pages.page(&asked, &of, &replica, &ask, now)).await;
        let page = page.map_err(|_| {
            let why = "the query could not be answered; the manager's log says why";
            Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, QueryOutcome::Failed, why)
        })?;
        let answer = page.ok_or_else(|| self.elsewhere(&id))?;
        debug!(user = caller.name(), tenant = %id, "answered a query");
        Ok(answer)
    }

    /// The tenant of this name and its state, if the caller may ask about it. Only those who may ask about all, or about the namespace that
    /// the tenant would have, learn that there is no such tenant.
    async fn authorized(
        &self,
        caller: &Caller,
        tenant: &str,
    ) -> Result<(TenantId, Arc<TenantState>), Refusal> {
        let id = TenantId::new(tenant).ok();
        let entry = id.as_ref().and_then(|id| self.context.caches.registry.get(id));
        // A tenant that doesn't exist is asked about as one that does. What no tenant can be called is asked about in all namespaces:
        // everybody knows that there is none.
        let namespace = match &entry {
            Some(entry) => Some(entry.object.target_namespace()),
            None => id.as_ref().map(|id| usual_namespace(id.as_str())),
        };
        let right = Right { namespace: namespace.as_deref(), named: tenant, ..RIGHT };
        let has = self.rights.has(caller, right).await?;
        if !has {
            info!(user = caller.name(), "refused a query: the user lacks the right");
            let why = format!(
                "the user may not list workloads.outrigger.dev in the namespace of tenant {tenant:?}; bind the ClusterRole \
                 outrigger-workloads there"
            );
            return Err(Refusal::new(StatusCode::FORBIDDEN, QueryOutcome::Forbidden, why));
        }
        let known = entry.and(id).zip(namespace);
        let known = known.and_then(|(id, own)| {
            let state = self.context.states.of_tenant(&id, &own)?;
            Some((id, state))
        });
        known.ok_or_else(|| {
            let why = format!("there is no tenant {tenant:?} with a namespace");
            Refusal::new(StatusCode::NOT_FOUND, QueryOutcome::NotFound, why)
        })
    }

    /// This replica doesn't know the tenant's workloads: who does.
    fn elsewhere(&self, id: &TenantId) -> Refusal {
        let entry = self.context.caches.registry.get(id);
        let stream =
            entry.as_ref().and_then(|entry| entry.object.status.as_ref()).and_then(|s| s.stream.as_ref());
        let holder = stream.map(|stream| stream.holder.as_str()).filter(|holder| !holder.is_empty());
        let me = &*self.context.replica.identity;
        match holder.filter(|holder| *holder != me) {
            Some(holder) => Refusal::new(
                StatusCode::MISDIRECTED_REQUEST,
                QueryOutcome::Elsewhere,
                format!("replica {holder} serves tenant {id}, and this is {me}; ask that one"),
            ),
            None => Refusal::new(
                StatusCode::SERVICE_UNAVAILABLE,
                QueryOutcome::Elsewhere,
                format!("the agent of tenant {id} is not connected, or has not sent all workloads yet"),
            ),
        }
    }
}

#[cfg(test)]
mod tests;
