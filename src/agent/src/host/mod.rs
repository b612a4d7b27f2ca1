//! The endpoint for hosts: what their plugin asks ([`outrigger_api::prepare`]): may the Pods of these claims start?
//!
//! **In**: a question by HTTPS, with a token of the host's plugin. **Out**: an answer for each claim, when all Pods may start, or after
//! [`HOLD`]. The token names the caller's Node (`callers`), and only Pods of that Node are answered for. The answer is computed from
//! what the agent has in memory anyway (`Board`), and events wake a held question: nothing is polled, and the API server is asked
//! about the token only.

mod callers;
mod slots;

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use clap::Args;
use futures::future::join_all;
use http::StatusCode;
use http_body_util::{BodyExt, Limited};
use outrigger_api::prepare::{self, Answer, Claim, HOLD, MAX_CLAIMS, MAX_QUESTION, Prepared, Question};
use outrigger_core::keys;
use outrigger_core::reason::Cause;
use outrigger_runtime::Process;
use outrigger_runtime::bind::Bind;
use outrigger_runtime::callers::bearer;
use outrigger_runtime::environment::Clock;
use outrigger_runtime::serve::{Limits, Peer, Server, host};
use outrigger_runtime::tls::ServerTls;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info};

use self::callers::{Callers, Denied};
use self::slots::{Most, Slots};
use crate::companions::{Board, ClaimName, Start};
use crate::context::Context;
use crate::metrics::{Metrics, PrepareOutcome};

/// Maximum number of connections. A host has one; beyond that the one that has been idle longest is closed, and opened again when it
/// is needed.
pub const CONNECTIONS: usize = 256;

/// Flow-control windows of a stream and of a connection, in bytes: what a connection may leave unread. HTTP/2 has no smaller one for a
/// connection.
const WINDOW: u32 = 16 << 10;
/// As [`WINDOW`], of a connection.
pub const CONNECTION_WINDOW: u32 = 4 * WINDOW;

/// Questions that are being read, and claims about which questions are held. A host's plugin has 256 calls in progress at most.
const READ: Most = Most { of_node: 64, in_all: READ_IN_ALL, nodes: CONNECTIONS };
/// As [`READ`]. Half of the connections hold no question, so that one of them may be closed for a host that has none.
const HELD: Most = Most { of_node: 256, in_all: HELD_IN_ALL, nodes: CONNECTIONS / 2 };
/// Maximum number of questions that are being read.
pub const READ_IN_ALL: usize = 256;
/// Maximum number of claims about which questions are held.
pub const HELD_IN_ALL: usize = 2048;
/// What a held claim takes: its names twice, and the task that waits for it.
pub const HELD_BYTES: usize = 2 << 10;

/// Maximum number of connections of one address.
const CONNECTIONS_OF_ADDRESS: usize = 8;

/// Longest time for the body of a question.
const BODY: Duration = Duration::from_secs(2);

/// Settings of the endpoint for hosts.
#[derive(Debug, Clone, Args)]
pub(crate) struct HostArgs {
    /// Address of the HTTPS port on which the plugin on hosts (outrigger host) asks whether Pods may start, :PORT or IP:PORT. It has
    /// the certificate of --gate-address. Without it no Pod of a rule with the ordering BeforeStart starts that has a claim.
    #[arg(long, env = "OUTRIGGER_HOST_ADDRESS", value_name = "ADDRESS")]
    pub(crate) host_address: Option<Bind>,

    /// Namespace of the service account outrigger-host, whose tokens callers of that port need, and of the ConfigMap outrigger-agent-ca,
    /// in which the agent publishes the CA of a certificate that it signs itself.
    #[arg(
        long,
        env = "OUTRIGGER_HOST_NAMESPACE",
        default_value = keys::HOST_NAMESPACE,
        value_name = "NAMESPACE"
    )]
    pub(crate) host_namespace: String,
}

/// The endpoint without its port.
pub(crate) struct Hosts {
    board: Arc<Board>,
    callers: Callers,
    read: Slots,
    held: Slots,
    metrics: Metrics,
    clock: Clock,
    drain: CancellationToken,
}

impl Hosts {
    pub(crate) fn new(process: &Process, context: &Context, board: Arc<Board>, namespace: &str) -> Self {
        let user = format!("system:serviceaccount:{namespace}:{}", keys::HOST_PLUGIN);
        let clock = context.environment.clock;
        Self {
            board,
            callers: Callers::new(
                context.client.clone(),
                clock,
                user,
                process.readiness.warning("tokens of hosts"),
            ),
            read: Slots::new(READ),
            held: Slots::new(HELD),
            metrics: context.metrics.clone(),
            clock,
            drain: context.drain.clone(),
        }
    }

    /// Serves it. Hosts have tokens, and no certificates: those are for the callers of the gate.
    pub(crate) fn serve(self, process: &Process, address: &Bind, tls: Arc<ServerTls>) -> anyhow::Result<()> {
        let listener = address.listen().context("--host-address")?;
        let limits = Limits {
            max_connections: CONNECTIONS,
            per_address: Some(CONNECTIONS_OF_ADDRESS),
            address_of: host,
            request: HOLD + Duration::from_secs(10),
            streams: false,
            max_streams: u32::try_from(HELD.of_node).unwrap_or(u32::MAX).saturating_add(8),
            window: WINDOW,
            connection_window: Some(CONNECTION_WINDOW),
            ..Limits::default()
        };
        process.serve(Server::new("hosts", listener).open_tls(tls).limits(limits), self.router());
        Ok(())
    }

    /// What it serves.
    pub(crate) fn router(self) -> Router {
        Router::new().route(prepare::PATH, post(answer)).with_state(Arc::new(self))
    }

    async fn prepare(&self, request: Request) -> Result<Answer, Refusal> {
        let address = request.extensions().get::<Peer>().and_then(|peer| peer.address).map(|a| a.ip());
        let token = bearer(request.headers()).ok_or_else(|| Refusal::from(Denied::NoToken))?;
        let node = self.callers.node(address, token).await?;
        let question = {
            let _slot = self.read.take(&node, 1).ok_or_else(Refusal::busy)?;
            read(request.into_body()).await?
        };
        let claims: Vec<(ClaimName, String)> = question.claims.into_iter().map(named).collect();
        let starts = self.answer_or_hold(&node, &claims).await?;
        let answers = claims.into_iter().zip(starts).map(|((claim, uid), start)| {
            let outcome = PrepareOutcome::from(&start);
            self.metrics.prepared(outcome);
            let answer = answered(uid, start);
            match outcome {
                PrepareOutcome::Elsewhere => {
                    info!(node = %node, namespace = claim.namespace, claim = claim.name, "refused a claim of another Node's Pod");
                }
                _ => debug!(node = %node, namespace = claim.namespace, claim = claim.name, cause = answer.cause, "answered for a claim"),
            }
            answer
        });
        Ok(Answer { claims: answers.collect() })
    }

    /// Whether the Pods of these claims may start. The question is held only where one may not, and only as far as questions may be held:
    /// however many Pods wait, those that may start are answered for.
    async fn answer_or_hold(
        &self,
        node: &Arc<str>,
        claims: &[(ClaimName, String)],
    ) -> Result<Vec<Start>, Refusal> {
        let now = self.starts(node, claims, self.clock.now()).await;
        let ready = now.iter().filter(|start| matches!(start, Start::Ready)).count();
        if ready == claims.len() {
            return Ok(now);
        }
        let Some(_slot) = self.held.take(node, claims.len()) else {
            // Those that may start do, and the others are asked about again.
            return if ready > 0 { Ok(now) } else { Err(Refusal::busy()) };
        };
        let _held = self.metrics.prepare_held();
        let until = self.clock.now() + HOLD;
        Ok(tokio::select! {
            starts = self.starts(node, claims, until) => starts,
            // What is known now, so that the host can ask the next agent.
            () = self.drain.cancelled() => self.starts(node, claims, self.clock.now()).await,
        })
    }

    async fn starts(&self, node: &str, claims: &[(ClaimName, String)], until: Instant) -> Vec<Start> {
        join_all(claims.iter().map(|(claim, _)| self.board.start(node, claim, until))).await
    }
}

fn named(claim: Claim) -> (ClaimName, String) {
    (ClaimName { namespace: claim.namespace, name: claim.name }, claim.uid)
}

/// A Pod of another Node is answered for as one that doesn't exist, so the answer says nothing of other Nodes.
fn answered(uid: String, start: Start) -> Prepared {
    let (ready, cause, message) = match start {
        Start::Ready => (true, String::new(), String::new()),
        Start::Waits { cause, message } => (false, cause, message),
        Start::Elsewhere => (false, Cause::PodUnknown.to_string(), Cause::PodUnknown.message()),
    };
    Prepared { uid, ready, cause, message }
}

async fn answer(State(hosts): State<Arc<Hosts>>, request: Request) -> Response {
    match hosts.prepare(request).await {
        Ok(answer) => axum::Json(answer).into_response(),
        Err(Refusal { status, text, outcome }) => {
            debug!(%status, text, "refused a question");
            hosts.metrics.prepared(outcome);
            (status, text).into_response()
        }
    }
}

/// A question that isn't answered.
#[derive(Debug)]
struct Refusal {
    status: StatusCode,
    text: String,
    outcome: PrepareOutcome,
}

impl Refusal {
    fn busy() -> Self {
        let text = format!(
            "too many claims are asked about: {} of one host and {} in all may be; ask again later",
            HELD.of_node, HELD.in_all
        );
        Self { status: StatusCode::TOO_MANY_REQUESTS, text, outcome: PrepareOutcome::Busy }
    }

    fn invalid(status: StatusCode, text: String) -> Self {
        Self { status, text, outcome: PrepareOutcome::Refused }
    }
}

impl From<Denied> for Refusal {
    fn from(denied: Denied) -> Self {
        let (status, outcome) = match denied {
            Denied::NoToken | Denied::NotAccepted | Denied::OtherUser | Denied::NoNode => {
                (StatusCode::UNAUTHORIZED, PrepareOutcome::Refused)
            }
            Denied::Busy => (StatusCode::TOO_MANY_REQUESTS, PrepareOutcome::Busy),
            Denied::Failed => (StatusCode::SERVICE_UNAVAILABLE, PrepareOutcome::Failed),
        };
        Self { status, text: denied.to_string(), outcome }
    }
}

async fn read(body: Body) -> Result<Question, Refusal> {
    let invalid = Refusal::invalid;
    let body = timeout(BODY, Limited::new(body, MAX_QUESTION).collect()).await;
    let body = body.map_err(|_| invalid(StatusCode::REQUEST_TIMEOUT, "the body took too long".to_owned()))?;
    let body = body.map_err(|error| {
        invalid(
            StatusCode::PAYLOAD_TOO_LARGE,
            format!("the body can't be read; it may have {MAX_QUESTION} bytes: {error}"),
        )
    })?;
    let question: Question = serde_json::from_slice(&body.to_bytes())
        .map_err(|error| invalid(StatusCode::BAD_REQUEST, format!("the body is no question: {error}")))?;
    let count = question.claims.len();
    if count > MAX_CLAIMS {
        let text = format!("claims: has {count} entries; send at most {MAX_CLAIMS}");
        return Err(invalid(StatusCode::BAD_REQUEST, text));
    }
    Ok(question)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_of_another_node_is_answered_for_as_an_unknown_one() {
        let elsewhere = answered("u".to_owned(), Start::Elsewhere);
        assert!(!elsewhere.ready);
        assert_eq!((elsewhere.cause.as_str(), elsewhere.uid.as_str()), ("PodUnknown", "u"));
        let waits = Start::Waits { cause: "NoDPU".to_owned(), message: "why".to_owned() };
        let waits = answered("u".to_owned(), waits);
        assert_eq!((waits.ready, waits.cause.as_str(), waits.message.as_str()), (false, "NoDPU", "why"));
        assert!(answered("u".to_owned(), Start::Ready).ready);
    }

    #[tokio::test(start_paused = true)]
    async fn however_many_pods_wait_one_that_may_start_is_answered_for_at_once() {
        let (clock, metrics) = (Clock::system(), Metrics::default());
        let board = Arc::new(Board::new(clock, Duration::from_secs(15), metrics.clone()));
        let ours = keys::COMPANIONS_CLAIM;
        let pod = serde_json::json!({"metadata": {"name": "p", "namespace": "n", "uid": "p"},
            "spec": {"nodeName": "a", "resourceClaims": [{"name": ours, "resourceClaimTemplateName": ours}]},
            "status": {"resourceClaimStatuses": [{"name": ours, "resourceClaimName": "ready"}]}});
        let id = outrigger_core::ids::WorkloadId::new("p").unwrap();
        board.expect(Vec::new());
        board.apply(&id, &serde_json::from_value(pod).unwrap());
        board.permit(&id);
        let warning = outrigger_runtime::ready::Readiness::default().warning("tokens");
        let client = outrigger_runtime::fake_api::FakeApi::default().client();
        let hosts = Hosts {
            board,
            callers: Callers::new(client, clock, "user".to_owned(), warning),
            read: Slots::new(READ),
            held: Slots::new(HELD),
            metrics,
            clock,
            drain: CancellationToken::new(),
        };
        // All questions that may be held are.
        let each = HELD_IN_ALL / HELD.nodes;
        let held: Vec<_> =
            (0..HELD.nodes).map(|node| hosts.held.take(&format!("n{node}").into(), each).unwrap()).collect();
        let (node, begin) = (Arc::from("a"), Instant::now());
        let ask = async |names: &[&str]| {
            let claim = |name: &&str| {
                (ClaimName { namespace: "n".to_owned(), name: (*name).to_owned() }, String::new())
            };
            let claims: Vec<_> = names.iter().map(claim).collect();
            let starts = hosts.answer_or_hold(&node, &claims).await.map_err(|refusal| refusal.status)?;
            Ok(starts.iter().map(|start| matches!(start, Start::Ready)).collect::<Vec<_>>())
        };
        assert_eq!(ask(&["ready"]).await, Ok(vec![true]));
        assert_eq!(ask(&["waits"]).await, Err(StatusCode::TOO_MANY_REQUESTS));
        assert_eq!(ask(&["waits", "ready"]).await, Ok(vec![false, true]));
        assert_eq!(begin.elapsed(), Duration::ZERO);
        drop(held);
        assert_eq!(ask(&["waits", "ready"]).await, Ok(vec![false, true]));
        assert_eq!(begin.elapsed(), HOLD, "it is held");
    }

    #[tokio::test]
    async fn a_question_is_bounded() {
        let status =
            async |body: String| read(Body::from(body)).await.map(|q| q.claims.len()).map_err(|r| r.status);
        let claims = |count: usize| {
            let claim =
                |n: usize| Claim { namespace: "n".into(), name: format!("c{n}"), uid: format!("u{n}") };
            serde_json::to_string(&Question { claims: (0..count).map(claim).collect() }).unwrap()
        };
        assert_eq!(status(claims(MAX_CLAIMS)).await, Ok(MAX_CLAIMS));
        assert_eq!(status(claims(MAX_CLAIMS + 1)).await, Err(StatusCode::BAD_REQUEST));
        assert_eq!(status("{}".to_owned()).await, Err(StatusCode::BAD_REQUEST));
        assert_eq!(status(" ".repeat(MAX_QUESTION + 1)).await, Err(StatusCode::PAYLOAD_TOO_LARGE));
    }
}
