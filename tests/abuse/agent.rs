//! The agent: what leaves the cluster, and what a manager or the tenant's own users can do to it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures::{StreamExt, stream};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::events::v1::Event;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, ListParams, WatchParams};
use outrigger_api::rule_wire;
use outrigger_core::keys::COMPANIONS_GATE;
use outrigger_proto::companion::companion_service_server::CompanionServiceServer;
use outrigger_proto::companion::{Companion, CompanionState};
use outrigger_proto::v1;
use outrigger_proto::v1::workload_rule_service_server::{WorkloadRuleService, WorkloadRuleServiceServer};
use outrigger_proto::v1::workload_service_server::{WorkloadService, WorkloadServiceServer};
use outrigger_tests::cost::{forget_peak, peak, process, resident};
use outrigger_tests::history::modified;
use outrigger_tests::outrigger::{Outrigger, get};
use outrigger_tests::tenant::{Tenant, annotation, rule_for, rule_with};
use outrigger_tests::{InWords, always, create, eventually, holds};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status, Streaming};

use crate::abuse::companions::{ScriptedManager, companion, has, pod, workload};
use crate::abuse::{alone, is_modest};

const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

fn term(annotation: &str) -> Value {
    let key = format!(".state.extra.annotations['{annotation}']");
    json!([{"matchExpressions": [{"key": key, "operator": "Exists"}]}])
}

async fn injected(t: &Tenant, rule: &str, fact: &str) -> Result<String, String> {
    let all = t.companions().await?;
    let of = |pod: &&Pod| pod.owner_references().iter().any(|owner| owner.name == rule);
    let companion = all.iter().find(of).ok_or("there is none")?;
    annotation(companion, fact).map(str::to_owned).ok_or_else(|| "it has no such fact".to_owned())
}

#[tokio::test]
async fn annotations_leave_the_cluster_as_rules_of_the_tenant_name_them_and_secrets_never() {
    let t = Tenant::new(Outrigger::shared().await, "ab-facts", &[("a", 1)]).await;
    // Somebody in the infrastructure cluster would like to know more.
    let facts = json!([{"workloadKey": format!(".state.extra.annotations['{LAST_APPLIED}']"), "asAnnotation": {"name": "applied"}},
        {"workloadKey": ".state.extra.annotations['example.com/secret']", "asAnnotation": {"name": "secret"}},
        {"asAnnotation": {"name": "all"}}]);
    t.rule("curious", rule_with("/workloadInfoInject", facts)).await;
    // And so would somebody who may write rules in the tenant's cluster.
    let whole = rule_with(
        "/workloadInfoInject/0",
        json!({"workloadKey": format!(".state.extra.annotations['{LAST_APPLIED}']"), "asAnnotation": {"name": "applied"}}),
    );
    t.own_rule("whole", whole).await.unwrap();
    let pod = json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "w", "labels": {"app": "web"}, "annotations": {LAST_APPLIED: "SECRET",
            "example.com/secret": "SECRET", "example.com/named": "public"}},
        "spec": {"nodeName": t.node("a"), "containers": [{"name": "c", "image": "i", "env": [{"name": "K", "value": "SECRET"}]}]}});
    create(&t.work(), &pod).await.unwrap();
    let known = async || {
        let (all, whole) =
            (injected(&t, "curious", "all").await?, injected(&t, "whole", "entire-workload").await?);
        Ok::<_, String>([all, whole])
    };
    let before = eventually("both have companions", known).await;
    assert!(before.iter().all(|fact| fact.contains("\"w\"") && !fact.contains("public")), "{before:?}");

    // A rule names one key: it is sent, and the others are not.
    t.own_rule("named", json!({"workloadTerms": term("example.com/named"), "template": outrigger_tests::tenant::template(),
        "workloadInfoInject": [{"workloadKey": ".state.extra.annotations['example.com/named']", "asAnnotation": {"name": "it"}}]}))
        .await
        .unwrap();
    let it = eventually("the rule that names it gets it", || injected(&t, "named", "it")).await;
    assert_eq!(it, "public");
    eventually("and all others see it", || async {
        let facts = known().await?;
        holds(facts.iter().all(|fact| fact.contains("public")), format!("{facts:?}"))
    })
    .await;
    for pod in t.companions().await.unwrap() {
        let text = serde_json::to_string(&pod.metadata).unwrap();
        assert!(!text.contains("SECRET"), "{text}");
    }
}

#[tokio::test]
async fn without_a_filter_that_can_be_used_nothing_is_reported() {
    let o = Outrigger::shared().await;
    let t = Tenant::without_agent(o, "ab-filter", &[("a", 1)]).await;
    t.own_rule("r", rule_for("app", "web")).await.unwrap();
    t.web("w").await;
    let config = |text: &str| {
        json!({"apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": "workload-plugin-config", "namespace": t.source}, "data": {"config": text}})
    };
    let start = || o.start_agent_with("ab-filter", &[format!("--rules-namespace={}", t.source)]).unwrap();
    let nothing = async |what: &str| {
        let events: Api<Event> = Api::namespaced(t.cluster.clone(), &t.source);
        eventually(&format!("{what}: it is said"), || async {
            let all = events.list(&ListParams::default()).await.in_words()?;
            let notes = all.items.iter().filter_map(|event| event.note.as_deref());
            let reported = notes.clone().any(|note| note.contains(what));
            reported.then_some(()).ok_or_else(|| format!("{:?}", notes.collect::<Vec<_>>()))
        })
        .await;
        always("nothing is sent", Duration::from_millis(500), || async {
            let all = t.companions().await?;
            holds(all.is_empty(), all.len().to_string())
        })
        .await;
    };
    start();
    nothing("not found; create it").await;
    o.plane.tenant.apply(&[config("namespaces: ['a/b']")]).unwrap();
    nothing("is not a namespace name").await;
    // It is mended, at once, without a restart.
    o.plane.tenant.apply(&[config(&format!("namespaces: [{}]", t.source))]).unwrap();
    t.ready(1).await;
    // It is deleted: the manager receives that.
    o.plane.tenant.kubectl(&["delete", "configmap", "workload-plugin-config", "-n", &t.source]).unwrap();
    t.web("x").await;
    t.ready(2).await;
    o.plane.command("term agent-ab-filter").unwrap();
}

/// Each has some 25,000 values, and 1.2 MB: a page of them, decoded as what it is, takes more than the agent may have.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "long"]
async fn large_pods_do_not_exhaust_the_agent() {
    let _alone = alone().await;
    const PODS: usize = 32;
    let o = Outrigger::shared().await;
    let t = Tenant::without_agent(o, "ab-large", &[("a", 1)]).await;
    let env: Vec<Value> =
        (0..24_000).map(|i| json!({"name": format!("V{i}"), "value": "x".repeat(16)})).collect();
    for i in 0..PODS {
        let pod = json!({"metadata": {"name": format!("large-{i}"), "labels": {"app": "large"}},
            "spec": {"schedulerName": "nobody", "containers": [{"name": "c", "image": "i", "env": env}]}});
        create(&t.work(), &pod).await.unwrap();
    }
    t.start_agent(&[]);
    t.own_rule("r", rule_for("app", "web")).await.unwrap();
    t.web("w").await;
    t.companion().await;
    is_modest("agent", "--tenant-id=ab-large");
    o.plane.command("term agent-ab-large").unwrap();
    let gone = DeleteParams::default().grace_period(0);
    t.work().delete_collection(&gone, &ListParams::default().labels("app=large")).await.unwrap();
}

/// A manager that says whatever it likes.
#[derive(Clone)]
struct Hostile {
    /// How often it has been asked for its rules.
    lists: Arc<AtomicUsize>,
    /// The rules that it says there are, for the so manieth time.
    says: Arc<dyn Fn(usize) -> Vec<v1::Rule> + Send + Sync>,
    /// What else it has been asked.
    asked: Arc<Mutex<Vec<String>>>,
    /// What it says of companions.
    companions: ScriptedManager,
}

impl Hostile {
    async fn start(says: impl Fn(usize) -> Vec<v1::Rule> + Send + Sync + 'static) -> (Self, u16) {
        let this = Self {
            lists: Arc::default(),
            says: Arc::new(says),
            asked: Arc::default(),
            companions: ScriptedManager::default(),
        };
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let server = Server::builder()
            .add_service(WorkloadRuleServiceServer::new(this.clone()).max_encoding_message_size(1 << 30))
            .add_service(WorkloadServiceServer::new(this.clone()))
            .add_service(CompanionServiceServer::new(this.companions.clone()));
        tokio::spawn(server.serve_with_incoming(TcpIncoming::from(listener)));
        (this, port)
    }

    async fn asked_so_often(&self, more: usize) {
        let wanted = self.lists.load(Ordering::Relaxed) + more;
        eventually("the agent goes on asking", || async {
            let now = self.lists.load(Ordering::Relaxed);
            holds(now >= wanted, now.to_string())
        })
        .await;
    }

    fn note(&self, what: impl Into<String>) {
        self.asked.lock().push(what.into());
    }
}

/// What a call returns.
type Answer<T> = Result<Response<T>, Status>;

#[tonic::async_trait]
impl WorkloadRuleService for Hostile {
    async fn create(&self, request: Request<v1::CreateRequest>) -> Answer<v1::CreateResponse> {
        self.note(format!("create {}", request.into_inner().rule.unwrap_or_default().id));
        Ok(Response::new(v1::CreateResponse {}))
    }

    async fn update(&self, request: Request<v1::UpdateRequest>) -> Answer<v1::UpdateResponse> {
        self.note(format!("update {}", request.into_inner().rule.unwrap_or_default().id));
        Ok(Response::new(v1::UpdateResponse {}))
    }

    async fn delete(&self, request: Request<v1::DeleteRequest>) -> Answer<v1::DeleteResponse> {
        self.note(format!("delete {}", request.into_inner().id));
        Ok(Response::new(v1::DeleteResponse {}))
    }

    async fn get(&self, _: Request<v1::GetRequest>) -> Answer<v1::GetResponse> {
        Err(Status::not_found("there is none"))
    }

    async fn list(&self, _: Request<v1::ListRequest>) -> Answer<v1::ListResponse> {
        let rules = (self.says)(self.lists.fetch_add(1, Ordering::Relaxed));
        Ok(Response::new(v1::ListResponse { rules, ..v1::ListResponse::default() }))
    }
}

#[tonic::async_trait]
impl WorkloadService for Hostile {
    async fn workload_stream(
        &self,
        request: Request<Streaming<v1::WorkloadStreamRequest>>,
    ) -> Answer<v1::WorkloadStreamResponse> {
        let mut stream = request.into_inner();
        while stream.message().await?.is_some() {}
        Ok(Response::new(v1::WorkloadStreamResponse {}))
    }

    async fn workload_chunked_stream(
        &self,
        request: Request<Streaming<v1::WorkloadChunkedStreamRequest>>,
    ) -> Answer<v1::WorkloadStreamResponse> {
        let mut stream = request.into_inner();
        while stream.message().await?.is_some() {}
        Ok(Response::new(v1::WorkloadStreamResponse {}))
    }
}

/// Starts the tenant's agent, and returns its admin port.
fn agent_of(t: &Tenant, port: u16) -> u16 {
    let [insecure, address, _] = Tenant::in_plain_text(&format!("http://127.0.0.1:{port}"));
    let more = ["--periodic-check-interval=50ms".to_owned(), "--debug-endpoints".to_owned()];
    t.start_agent_with_admin(&[&[insecure, address], &more[..]].concat())
}

/// Pods about which a manager sends as much as an agent reads.
const REPORTED: usize = 800;
/// Pods about which it sends messages before it waits until the agent has read them.
const AT_ONCE: usize = 200;
/// What the agent may keep of each, in bytes. The names of all rules would take 148 KiB.
const KEPT: u64 = 64 << 10;

/// Creates these Pods, which nobody schedules. Returns their uids, and for each part of them a Pod by which it is seen that the agent
/// has read what the manager says of that part.
async fn reported_pods(t: &Tenant) -> (Vec<String>, Vec<Pod>) {
    let made = stream::iter(0..REPORTED)
        .map(|i| async move { pod(t, &format!("reported-{i}"), false).await.uid().unwrap() });
    let uids = made.buffer_unordered(16).collect().await;
    let marks =
        stream::iter(0..REPORTED / AT_ONCE).then(|i| async move { pod(t, &format!("mark-{i}"), true).await });
    (uids, marks.collect().await)
}

/// Sends, about each of these Pods, that so many rules with names as long as names can be have companions for it, in both orders.
async fn send_many_names(t: &Tenant, manager: &Hostile, uids: &[String], marks: &[Pod]) {
    let named = |i: usize| Companion {
        rule: format!("{i:03}{}", "r".repeat(250)),
        before_start: true,
        ..companion(CompanionState::Lost, "", &"m".repeat(600))
    };
    let companions: Vec<Companion> = (0..256).map(named).collect();
    for (uids, mark) in uids.chunks(AT_ONCE).zip(marks) {
        for uid in uids {
            manager.companions.send(&workload(uid.clone(), companions.clone()));
        }
        manager
            .companions
            .send(&workload(mark.uid().unwrap(), vec![companion(CompanionState::Lost, "", "read")]));
        has(t, &mark.name_any(), COMPANIONS_GATE, "False", "Lost").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hostile_manager_does_not_fill_the_tenants_etcd() {
    let _alone = alone().await;
    let o = Outrigger::shared().await;
    let t = Tenant::without_agent(o, "ab-words", &[]).await;
    let mut rule = t.own_rule("r", rule_for("app", "web")).await.unwrap();
    let wire = v1::Rule { origin: rule.uid().unwrap(), ..rule_wire::message(&rule) };
    let (manager, port) = Hostile::start(move |nth| {
        let kinds = ["Accepted", "Synced", "Matched", "Ready"].map(str::to_owned).into_iter();
        let condition = |kind: String| v1::RuleCondition {
            r#type: kind,
            status: if nth % 2 == 0 { "True" } else { "False" }.to_owned(),
            reason: "Reason".repeat(100),
            message: format!("{nth}\u{1b}[31m{}", "m".repeat(100_000)),
            last_transition_time: format!("2001-01-01T00:{:02}:{:02}Z", nth / 60 % 60, nth % 60),
        };
        let conditions = kinds.chain((0..50).map(|i| format!("Other{i}"))).map(condition).collect();
        let status = v1::RuleStatus {
            current: true,
            matched: i64::try_from(nth).unwrap(),
            conditions,
            ..v1::RuleStatus::default()
        };
        vec![v1::Rule { data: None, status: Some(status), ..wire.clone() }]
    })
    .await;
    // Whatever is written of rules from now on.
    let writes = modified(t.own_rules(), WatchParams::default(), rule.resource_version().unwrap());
    let began = Instant::now();
    agent_of(&t, port);
    manager.asked_so_often(60).await;
    is_modest("agent", "--tenant-id=ab-words");
    o.plane.command("term agent-ab-words").unwrap();
    let writes = writes.lock().clone();
    // Twenty at once, and one every five seconds, and a few of the agent's own: fewer than the answers, each of which has another status.
    let most = 20 + began.elapsed().as_secs() / 5 + 4;
    assert!((3..=most).contains(&(writes.len() as u64)), "{} writes, not {most}", writes.len());
    for written in &writes {
        let status = written.status.clone().unwrap_or_default();
        assert!(serde_json::to_string(&status).unwrap().len() < 8000, "{status:?}");
        for condition in &status.conditions {
            assert!(["Accepted", "Synced", "Matched", "Ready"].contains(&condition.type_.as_str()));
            assert!(condition.message.len() <= 1024 && condition.reason.len() <= 128);
            assert!(!condition.message.contains('\u{1b}'));
            assert!(!condition.last_transition_time.0.to_string().starts_with("2001"), "the manager's clock");
        }
        // And nothing else of it has changed.
        rule.metadata.finalizers.clone_from(&written.metadata.finalizers);
        assert_eq!((&written.spec, written.annotations()), (&rule.spec, rule.annotations()));
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "long"]
async fn a_hostile_manager_does_not_exhaust_the_agent() {
    let _alone = alone().await;
    let o = Outrigger::shared().await;
    let t = Tenant::without_agent(o, "ab-many", &[]).await;
    t.own_rule("r", rule_for("app", "web")).await.unwrap();
    let (uids, marks) = reported_pods(&t).await;
    let (manager, port) = Hostile::start(|nth| match nth % 3 {
        // Two bytes each on the wire, and some hundred in memory.
        0 => vec![v1::Rule::default(); 2_000_000],
        1 => vec![v1::Rule {
            status: Some(v1::RuleStatus {
                conditions: vec![v1::RuleCondition::default(); 1_000_000],
                ..Default::default()
            }),
            ..Default::default()
        }],
        // Rules that nobody here has, as if an agent had made them.
        _ => (0..10_000)
            .map(|i| v1::Rule { id: format!("x{i}"), origin: "u".to_owned(), ..Default::default() })
            .collect(),
    })
    .await;
    let admin = agent_of(&t, port);
    manager.asked_so_often(9).await;
    is_modest("agent", "--tenant-id=ab-many");
    eventually("the agent has all Pods", || async {
        let (_, state) = get(admin, "/debug/state").await?;
        let state: Value = serde_json::from_str(&state).in_words()?;
        holds(state["agent"]["workloads"] == uids.len() + marks.len(), state.to_string())
    })
    .await;
    manager.companions.is_heard().await;
    let agent = process("--tenant-id=ab-many");
    let before = resident(agent);
    forget_peak(agent);
    send_many_names(&t, &manager, &uids, &marks).await;
    let kept = peak(agent).saturating_sub(before) / REPORTED as u64;
    assert!(kept < KEPT, "the agent takes {kept} bytes for each Pod");
    o.plane.command("term agent-ab-many").unwrap();
    let gone = DeleteParams::default().grace_period(0);
    t.work().delete_collection(&gone, &ListParams::default()).await.unwrap();
    let asked = manager.asked.lock().clone();
    assert!(asked.iter().any(|what| what.starts_with("delete x")), "unowned rules are deleted: {asked:?}");
}
