//! How companions are, sent by a manager and reported at the Pods of workloads: what an agent writes of it, and what no manager can
//! make it write.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Pod, PodCondition};
use k8s_openapi::api::events::v1::Event;
use kube::ResourceExt;
use kube::api::{Api, ListParams, Patch, PatchParams, WatchParams};
use outrigger_core::keys::{AGENT, COMPANIONS_CONDITION, COMPANIONS_GATE};
use outrigger_core::reason::{Cause, MAX_MESSAGE, MAX_REASON};
use outrigger_proto::companion::companion_service_server::{CompanionService, CompanionServiceServer};
use outrigger_proto::companion::watch_response::Message;
use outrigger_proto::companion::{
    Companion, CompanionState, Synced, WatchRequest, WatchResponse, WorkloadCompanions,
};
use outrigger_proto::v1;
use outrigger_proto::v1::workload_service_server::{WorkloadService, WorkloadServiceServer};
use outrigger_tests::control_plane::config;
use outrigger_tests::history::modified;
use outrigger_tests::outrigger::{Outrigger, SYSTEM, get};
use outrigger_tests::tenant::{Tenant, account, binding, is_ready};
use outrigger_tests::{InWords, always, create, eventually, holds, is_gone, until};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status, Streaming};

use crate::abuse::is_modest;

type Sent = Result<WatchResponse, Status>;

/// A manager that receives workloads, and sends about companions what the test says.
#[derive(Clone, Default)]
pub(crate) struct ScriptedManager {
    sent: Arc<Mutex<BTreeMap<String, Vec<Companion>>>>,
    streams: Arc<Mutex<Vec<mpsc::UnboundedSender<Sent>>>>,
    end: CancellationToken,
}

impl ScriptedManager {
    /// Starts it; without the call, as managers of earlier versions are, or with it.
    pub(crate) async fn start(has_call: bool) -> (Self, u16) {
        let this = Self::default();
        let port = this.serve(0, has_call).await;
        (this, port)
    }

    /// Serves on this port, until [`Self::stop`].
    async fn serve(&self, port: u16, has_call: bool) -> u16 {
        let listener = tokio::net::TcpListener::bind(("127.0.0.1", port)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let mut routes = Routes::new(WorkloadServiceServer::new(self.clone()));
        if has_call {
            let service = CompanionServiceServer::new(self.clone()).max_encoding_message_size(1 << 30);
            routes = routes.add_service(service);
        }
        let end = self.end.clone();
        tokio::spawn(async move {
            let server = Server::builder().add_routes(routes);
            tokio::select! {
                _ = server.serve_with_incoming(TcpIncoming::from(listener)) => {}
                () = end.cancelled() => {}
            }
        });
        port
    }

    /// Sends the companions of a workload, and keeps them for later calls.
    fn report(&self, pod: &Pod, companions: Vec<Companion>) {
        let id = pod.uid().unwrap();
        self.sent.lock().insert(id.clone(), companions.clone());
        self.send(&workload(id, companions));
    }

    /// Sends a message on all open calls.
    pub(crate) fn send(&self, message: &Message) {
        self.streams.lock().retain(|stream| stream.send(Ok(response(message.clone()))).is_ok());
    }

    /// Waits until an agent listens.
    pub(crate) async fn is_heard(&self) {
        eventually("an agent listens", || async { holds(!self.streams.lock().is_empty(), "none") }).await;
    }

    /// Ends all calls, and takes no more.
    pub(crate) fn stop(&self) {
        self.end.cancel();
        self.streams.lock().clear();
    }
}

fn response(message: Message) -> WatchResponse {
    WatchResponse { message: Some(message) }
}

/// What the manager says of a workload.
pub(crate) fn workload(workload_id: String, companions: Vec<Companion>) -> Message {
    Message::Workload(WorkloadCompanions { workload_id, companions, ..WorkloadCompanions::default() })
}

#[tonic::async_trait]
impl CompanionService for ScriptedManager {
    type WatchStream = UnboundedReceiverStream<Sent>;

    async fn watch(&self, request: Request<WatchRequest>) -> Result<Response<Self::WatchStream>, Status> {
        if !request.metadata().contains_key("tenant-id") {
            return Err(Status::invalid_argument("no tenant"));
        }
        let (sender, receiver) = mpsc::unbounded_channel();
        let sent = self.sent.lock().clone();
        for (id, companions) in sent {
            let _ = sender.send(Ok(response(workload(id, companions))));
        }
        let _ = sender.send(Ok(response(Message::Synced(Synced {}))));
        self.streams.lock().push(sender);
        Ok(Response::new(UnboundedReceiverStream::new(receiver)))
    }
}

#[tonic::async_trait]
impl WorkloadService for ScriptedManager {
    async fn workload_stream(
        &self,
        _: Request<Streaming<v1::WorkloadStreamRequest>>,
    ) -> Result<Response<v1::WorkloadStreamResponse>, Status> {
        Err(Status::unimplemented("only chunks"))
    }

    async fn workload_chunked_stream(
        &self,
        request: Request<Streaming<v1::WorkloadChunkedStreamRequest>>,
    ) -> Result<Response<v1::WorkloadStreamResponse>, Status> {
        let mut stream = request.into_inner();
        tokio::select! {
            () = self.end.cancelled() => {}
            () = async { while let Ok(Some(_)) = stream.message().await {} } => {}
        }
        Ok(Response::new(v1::WorkloadStreamResponse {}))
    }
}

/// A companion before which its workload isn't ready.
pub(crate) fn companion(state: CompanionState, reason: &str, message: &str) -> Companion {
    Companion {
        rule: "firewall".into(),
        state: state.into(),
        reason: reason.into(),
        message: message.into(),
        before_ready: true,
        ..Companion::default()
    }
}

/// Creates a Pod with or without the readiness gate, which nobody schedules.
pub(crate) async fn pod(t: &Tenant, name: &str, gated: bool) -> Pod {
    let gates = if gated { json!([{"conditionType": COMPANIONS_GATE}]) } else { json!([]) };
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {"schedulerName": "nobody", "readinessGates": gates, "containers": [{"name": "c", "image": "i"}]}});
    create(&t.work(), &pod).await.unwrap()
}

/// The conditions of a Pod.
fn conditions(pod: &Pod) -> BTreeMap<&str, &PodCondition> {
    let all = pod.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    all.iter().map(|condition| (condition.type_.as_str(), condition)).collect()
}

/// Waits until a condition of a Pod has this status and reason, and returns it.
pub(crate) async fn has(t: &Tenant, name: &str, kind: &str, status: &str, reason: &str) -> PodCondition {
    until(&format!("{name}: {kind} is {status} {reason}"), &t.work(), name, |pod| {
        let all = conditions(&pod);
        let found = all.get(kind).ok_or_else(|| format!("{:?}", all.keys()))?;
        let is = found.status == status && found.reason.as_deref() == Some(reason);
        if is { Ok((*found).clone()) } else { Err(format!("{found:?}")) }
    })
    .await
}

fn agent(t: &Tenant, port: u16, more: &[&str]) {
    let [insecure, address, _] = Tenant::in_plain_text(&format!("http://127.0.0.1:{port}"));
    let more = more.iter().map(ToString::to_string);
    t.start_agent(&[insecure, address].into_iter().chain(more).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_says_why_it_waits_and_keeps_it_while_the_manager_is_away() {
    let o = Outrigger::shared().await;
    let t = Tenant::without_agent(o, "ab-reported", &[]).await;
    let (gated, plain) = (pod(&t, "gated", true).await, pod(&t, "plain", false).await);
    let (manager, port) = ScriptedManager::start(true).await;
    let refused = companion(CompanionState::Refused, "QuotaExceeded", "the quota of Pods is used up: 4 of 4");
    let unordered = Companion { before_ready: false, ..refused.clone() };
    manager.report(&gated, vec![refused.clone()]);
    manager.report(&plain, vec![unordered]);
    agent(&t, port, &["--report-companions-after=1s"]);

    let condition = has(&t, "gated", COMPANIONS_GATE, "False", "QuotaExceeded").await;
    assert_eq!(condition.message.as_deref(), Some("rule firewall: the quota of Pods is used up: 4 of 4"));
    assert!(condition.last_transition_time.is_some(), "{condition:?}");
    has(&t, "gated", COMPANIONS_CONDITION, "False", "QuotaExceeded").await;
    has(&t, "plain", COMPANIONS_CONDITION, "False", "QuotaExceeded").await;
    let events: Api<Event> = Api::namespaced(t.cluster.clone(), &t.source);
    eventually("an Event reports it", || async {
        let all = events.list(&ListParams::default()).await.in_words()?;
        let about = |event: &&Event| event.regarding.as_ref().is_some_and(|about| about.uid == gated.uid());
        let events: Vec<_> =
            all.iter().filter(about).map(|event| (&event.type_, &event.reason, &event.note)).collect();
        let is = |note: &Option<String>| note.as_ref().is_some_and(|note| note.contains("is used up"));
        holds(events.iter().any(|(_, _, note)| is(note)), format!("{events:?}"))
    })
    .await;

    manager.report(&gated, vec![companion(CompanionState::Ready, "", "")]);
    let opened = has(&t, "gated", COMPANIONS_GATE, "True", "Ready").await;
    has(&t, "gated", COMPANIONS_CONDITION, "True", "Ready").await;
    let all = t.work().get("plain").await.unwrap();
    assert!(!conditions(&all).contains_key(COMPANIONS_GATE), "it has no such gate");

    // The manager is away: what it said last stays, with its time.
    manager.stop();
    always("the conditions stay", Duration::from_secs(3), || async {
        let pod = t.work().get("gated").await.in_words()?;
        let now = conditions(&pod)[COMPANIONS_GATE];
        holds(*now == opened, format!("{now:?}"))
    })
    .await;
    o.plane.command("term agent-ab-reported").unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn with_an_old_manager_a_gate_stays_closed_and_says_why() {
    let o = Outrigger::shared().await;
    let t = Tenant::without_agent(o, "ab-old", &[]).await;
    pod(&t, "gated", true).await;
    let plain = pod(&t, "plain", false).await;
    let (_manager, port) = ScriptedManager::start(false).await;
    let admin = {
        let [insecure, address, _] = Tenant::in_plain_text(&format!("http://127.0.0.1:{port}"));
        t.start_agent_with_admin(&[insecure, address])
    };
    let condition = has(&t, "gated", COMPANIONS_GATE, "False", "ManagerTooOld").await;
    assert_eq!(condition.message, Some(Cause::ManagerTooOld.message()));
    let (_, ready) = get(admin, "/readyz?verbose").await.unwrap();
    assert!(ready.contains("the manager does not tell how companions are"), "{ready}");
    let now = t.work().get("plain").await.unwrap();
    assert_eq!(now.resource_version(), plain.resource_version(), "nothing is written of others");
    o.plane.command("term agent-ab-old").unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hostile_manager_writes_nothing_but_these_conditions_and_not_often() {
    let o = Outrigger::shared().await;
    let t = Tenant::without_agent(o, "ab-hostile", &[]).await;
    let other = Tenant::without_agent(o, "ab-others", &[]).await;
    let (gated, foreign) = (pod(&t, "gated", true).await, pod(&other, "foreign", true).await);
    let (manager, port) = ScriptedManager::start(true).await;
    let writes = modified(t.work(), WatchParams::default(), gated.resource_version().unwrap());
    agent(&t, port, &["--report-companions-after=0s"]);
    manager.is_heard().await;
    let hostile = |n: usize| Companion {
        rule: format!("{n}\u{1b}[31m{}", "r".repeat(1000)),
        since: "2001-01-01T00:00:00Z".into(),
        ..companion(
            if n.is_multiple_of(2) { CompanionState::Ready } else { CompanionState::Failed },
            &"Reason".repeat(100),
            &format!("{n}\u{202e}\u{7}{}", "m".repeat(10_000)),
        )
    };
    for n in 0..6_000 {
        manager.send(&workload(gated.uid().unwrap(), vec![hostile(n); 3]));
        manager.send(&workload(foreign.uid().unwrap(), vec![hostile(n)]));
        manager.send(&workload(format!("{n}{}", "u".repeat(300)), vec![hostile(n)]));
    }
    manager.send(&workload(gated.uid().unwrap(), vec![companion(CompanionState::Lost, "", "the last")]));
    let last = has(&t, "gated", COMPANIONS_GATE, "False", "Lost").await;
    assert_eq!(last.message.as_deref(), Some("rule firewall: the last"));
    // Messages that would take a hundred times the memory when they are decoded.
    manager.send(&workload(gated.uid().unwrap(), vec![Companion::default(); 1_000_000]));
    manager.streams.lock().clear();
    manager.is_heard().await;
    is_modest("agent", "--tenant-id=ab-hostile");
    o.plane.command("term agent-ab-hostile").unwrap();

    const REASONS: [&str; 5] = ["Unknown", "Ready", "Lost", "NoCompanion", "ManagerUnreachable"];
    let writes = writes.lock().clone();
    assert!((1..50).contains(&writes.len()), "{} writes", writes.len());
    for written in &writes {
        assert_eq!((&written.spec, &written.metadata.labels), (&gated.spec, &gated.metadata.labels));
        assert_eq!(written.annotations(), gated.annotations());
        for (kind, condition) in conditions(written) {
            assert!([COMPANIONS_CONDITION, COMPANIONS_GATE].contains(&kind), "{condition:?}");
            let (reason, message) =
                (condition.reason.as_deref().unwrap(), condition.message.as_deref().unwrap());
            assert!(message.len() <= 1024 && REASONS.contains(&reason), "{condition:?}");
            assert!(!message.contains(['\u{1b}', '\u{202e}', '\u{7}']), "{message:?}");
            let time = condition.last_transition_time.as_ref().unwrap().0.to_string();
            assert!(!time.starts_with("2001"), "the manager's clock");
        }
    }
    let now = other.work().get("foreign").await.unwrap();
    assert_eq!(now.resource_version(), foreign.resource_version(), "the agent doesn't watch it");
}

/// The end of a Pod can't be stored beside a condition that fills the object, and then the Pod is never deleted.
#[tokio::test(flavor = "multi_thread")]
async fn a_stolen_account_of_the_agent_keeps_no_pod_from_ending() {
    let o = Outrigger::shared().await;
    let t = Tenant::without_agent(o, "ab-stolen", &[("a", 1)]).await;
    t.start("w", "a", json!({})).await;
    until("the Pod runs", &t.work(), "w", |pod| holds(is_ready(&pod), format!("{:?}", pod.status))).await;
    let kubeconfig = o.plane.dir.join("ab-stolen.kubeconfig");
    o.plane.tenant.service_account(SYSTEM, "outrigger-agent", &kubeconfig).unwrap();
    let stolen = kube::Client::try_from(config(&kubeconfig).await).unwrap();
    let stolen: Api<Pod> = Api::namespaced(stolen, &t.source);
    let write = async |field: &str, size: usize| {
        let mut condition =
            json!({"type": COMPANIONS_CONDITION, "status": "False", "reason": "R", "message": "m"});
        condition[field] = json!("x".repeat(size));
        let patch = json!({"status": {"conditions": [condition]}});
        let params = PatchParams { field_manager: Some(AGENT.to_owned()), ..PatchParams::default() };
        stolen.patch_status("w", &params, &Patch::Strategic(patch)).await
    };
    for (field, size) in [("message", 1_200_000), ("reason", 1_200_000), ("status", 1_200_000)] {
        let refused = write(field, size).await.unwrap_err().to_string();
        assert!(refused.contains("'outrigger-agent-conditions'"), "{field}: {refused}");
    }
    // Each apply would leave its manager's entry in the object.
    let apply = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "w"},
        "status": {"conditions": [{"type": COMPANIONS_CONDITION, "status": "False"}]}});
    let refused =
        stolen.patch_status("w", &PatchParams::apply("somebody").force(), &Patch::Apply(apply)).await;
    let refused = refused.unwrap_err().to_string();
    assert!(
        refused.contains("metadata.managedFields: the agent writes as outrigger-agent only"),
        "{refused}"
    );
    // What the agent itself writes has room.
    write("message", MAX_MESSAGE).await.unwrap();
    write("reason", MAX_REASON).await.unwrap();
    t.end("w").await;
    is_gone(&t.work(), "w").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_role_the_agent_says_so_once_and_goes_on() {
    let o = Outrigger::shared().await;
    let t = Tenant::without_agent(o, "ab-role", &[]).await;
    let before = pod(&t, "gated", true).await;
    let has = |role: &str| binding(&format!("ab-role-{role}"), Some(&t.source), role, (SYSTEM, "ab-role"));
    let objects = [account(SYSTEM, "ab-role"), has("outrigger-agent"), has("outrigger-agent-rules")];
    o.plane.tenant.apply(&objects).unwrap();
    let kubeconfig = o.plane.dir.join("ab-role.kubeconfig");
    o.plane.tenant.service_account(SYSTEM, "ab-role", &kubeconfig).unwrap();
    let (manager, port) = ScriptedManager::start(true).await;
    manager.report(&before, vec![companion(CompanionState::Ready, "", "")]);
    let [insecure, address, _] = Tenant::in_plain_text(&format!("http://127.0.0.1:{port}"));
    let admin = t.start_agent_with_admin(&[
        insecure,
        address,
        format!("--kubeconfig={}", kubeconfig.display()),
        "--debug-endpoints".to_owned(),
    ]);
    eventually("it says so", || async {
        let (_, ready) = get(admin, "/readyz?verbose").await?;
        holds(ready.contains("the agent may not write conditions of Pods"), ready)
    })
    .await;
    let forbidden = async || -> Result<f64, String> {
        let text = Outrigger::metrics_of(admin).await?;
        let line = text
            .lines()
            .find(|line| line.starts_with("outrigger_agent_condition_writes_total{outcome=\"Forbidden\"}"));
        let count = line.and_then(|line| line.rsplit(' ').next()).ok_or_else(|| text.clone())?;
        count.parse::<f64>().in_words()
    };
    for round in 0..20 {
        let state = if round % 2 == 0 { CompanionState::Failed } else { CompanionState::Ready };
        manager.report(&before, vec![companion(state, "", "")]);
        tokio::task::yield_now().await;
    }
    always("it tries no more", Duration::from_secs(2), || async {
        let count = forbidden().await?;
        holds(count == 1.0, count.to_string())
    })
    .await;
    // It goes on with everything else.
    let more = pod(&t, "more", false).await;
    eventually("the agent takes new Pods in", || async {
        let (_, state) = get(admin, "/debug/state").await?;
        let state: Value = serde_json::from_str(&state).in_words()?;
        holds(state["agent"]["workloads"] == 2, format!("{state} {}", more.name_any()))
    })
    .await;
    o.plane.command("term agent-ab-role").unwrap();
}
