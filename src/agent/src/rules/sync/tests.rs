use std::collections::HashMap;

use outrigger_api::rule_wire;
use outrigger_proto::v1::workload_rule_service_server::{WorkloadRuleService, WorkloadRuleServiceServer};
use outrigger_runtime::environment::Environment;
use outrigger_runtime::events::Events;
use outrigger_runtime::fake_api::{FakeApi, not_found};
use outrigger_runtime::tls::ClientTls;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use tonic::metadata::AsciiMetadataValue;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response};

use super::*;
use crate::connect::Connector;
use crate::metrics::Metrics;

const RULE: &str = "/apis/workload.universe.nvidia.com/v1alpha1/namespaces/universe/workloadrules/r";

/// A manager, of which the lists may be behind and the answers to writes may be lost.
#[derive(Clone, Default)]
struct Manager(Arc<Mutex<Rules>>);

#[derive(Default)]
struct Rules {
    /// What the API server has.
    stored: HashMap<String, v1::Rule>,
    /// Lists are made from a cache that shows nothing yet.
    behind: bool,
    /// A write is carried out when its caller has given up already.
    late: bool,
    /// Those that are.
    under_way: Vec<v1::Rule>,
    /// The answer to the next write is lost.
    mute: bool,
    /// Writes of these rules are refused so.
    refused: HashMap<String, Code>,
    /// Lists say this, whatever there is; each page says that there is another.
    says: Option<Vec<v1::Rule>>,
    endless: bool,
}

#[tonic::async_trait]
impl WorkloadRuleService for Manager {
    async fn create(
        &self,
        request: Request<v1::CreateRequest>,
    ) -> Result<Response<v1::CreateResponse>, Status> {
        let rule = request.into_inner().rule.unwrap();
        let mut rules = self.0.lock();
        if let Some(code) = rules.refused.get(&rule.id) {
            return Err(Status::new(*code, "a policy of somebody else says no"));
        }
        if rules.late {
            rules.under_way.push(rule);
            return Err(Status::deadline_exceeded("no answer"));
        }
        if rules.stored.contains_key(&rule.id) {
            return Err(Status::already_exists("it exists"));
        }
        rules.stored.insert(rule.id.clone(), rule);
        if std::mem::take(&mut rules.mute) {
            return Err(Status::unavailable("no answer"));
        }
        Ok(Response::new(v1::CreateResponse {}))
    }

    async fn update(&self, _: Request<v1::UpdateRequest>) -> Result<Response<v1::UpdateResponse>, Status> {
        Ok(Response::new(v1::UpdateResponse {}))
    }

    async fn delete(
        &self,
        request: Request<v1::DeleteRequest>,
    ) -> Result<Response<v1::DeleteResponse>, Status> {
        self.0.lock().stored.remove(&request.into_inner().id);
        Ok(Response::new(v1::DeleteResponse {}))
    }

    async fn get(&self, request: Request<v1::GetRequest>) -> Result<Response<v1::GetResponse>, Status> {
        let rule = self.0.lock().stored.get(&request.into_inner().id).cloned();
        let rule = rule.ok_or_else(|| Status::not_found("there is none"))?;
        Ok(Response::new(v1::GetResponse { rule: Some(told(&rule)) }))
    }

    async fn list(&self, _: Request<v1::ListRequest>) -> Result<Response<v1::ListResponse>, Status> {
        let rules = self.0.lock();
        if let Some(says) = &rules.says {
            let next_page_token = if rules.endless { "more".to_owned() } else { String::new() };
            return Ok(Response::new(v1::ListResponse { rules: says.clone(), next_page_token }));
        }
        let shown = rules.stored.values().filter(|_| !rules.behind);
        Ok(Response::new(v1::ListResponse {
            rules: shown.map(told).collect(),
            ..v1::ListResponse::default()
        }))
    }
}

/// A rule as a manager tells it.
fn told(rule: &v1::Rule) -> v1::Rule {
    let revision = rule.data.as_ref().map(rule_wire::revision).unwrap_or_default();
    v1::Rule { revision, ..rule.clone() }
}

/// An agent between a tenant's cluster and a manager.
struct World {
    api: FakeApi,
    manager: Manager,
    syncer: Syncer,
    memory: Memory,
}

impl World {
    async fn new() -> Self {
        let (api, manager) = (FakeApi::default(), Manager::default());
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
        let service = WorkloadRuleServiceServer::new(manager.clone());
        let server = Server::builder().add_service(service);
        tokio::spawn(server.serve_with_incoming(TcpIncoming::from(listener)));
        let context = Context {
            client: api.client(),
            environment: Environment::system(),
            connector: Connector::to(address, ClientTls::default(), None),
            tenant: AsciiMetadataValue::from_static("blue"),
            events: Arc::new(Events::new(api.client(), "test", None)),
            metrics: Metrics::default(),
            drain: CancellationToken::new(),
        };
        let syncer = Syncer {
            context: Arc::new(context),
            namespace: "universe".to_owned(),
            store: Arc::default(),
            workloads: Arc::default(),
            interval: Duration::from_secs(5),
            at_once: 1,
        };
        Self { api, manager, syncer, memory: Memory::new(Instant::now()) }
    }

    async fn round(&mut self) -> Result<bool, Code> {
        self.syncer.round(&mut self.memory).await.map_err(|status| status.code())
    }

    /// The tenant's cluster has the rule like this, and the watch shows it.
    fn has(&self, finalizer: bool, deleted: bool) {
        self.shows(rule(finalizer, deleted));
    }

    /// The tenant's cluster has this rule, and the watch shows it. Writes of its finalizers and its status are carried out.
    fn shows(&self, rule: Value) {
        let path = format!("{}{}", RULE.trim_end_matches('r'), rule["metadata"]["name"].as_str().unwrap());
        let mut written = rule.clone();
        written["metadata"]["resourceVersion"] = json!("1000");
        self.api.answers("PATCH", &format!("{path}/status"), 200, written);
        self.api.answers("GET", &path, 200, rule.clone());
        let rule: WorkloadRule = serde_json::from_value(rule).unwrap();
        self.syncer.store.watch()(outrigger_runtime::watch::Event::Applied(rule));
    }

    /// The finalizers that were written, in order.
    fn finalizers(&self) -> Vec<Value> {
        let patches = self.api.calls("PATCH").into_iter().map(|(_, body)| body);
        patches.filter_map(|body| body.pointer("/metadata/finalizers").cloned()).collect()
    }

    fn is_there(&self) -> bool {
        self.manager.0.lock().stored.contains_key("r")
    }
}

/// Versions grow as the rule gets its finalizer and is deleted.
fn rule(finalizer: bool, deleted: bool) -> Value {
    let finalizers = if finalizer { vec![keys::RULE_FINALIZER] } else { vec![] };
    let version = 1 + i32::from(finalizer) + 2 * i32::from(deleted);
    json!({"apiVersion": "workload.universe.nvidia.com/v1alpha1", "kind": "WorkloadRule",
        "metadata": {"name": "r", "namespace": "universe", "uid": "u", "generation": 1, "finalizers": finalizers,
            "resourceVersion": version.to_string(),
            "deletionTimestamp": deleted.then_some("2026-01-01T00:00:00Z")},
        "spec": {"workloadTerms": [{"matchExpressions": [{"key": "@", "operator": "Exists"}]}],
            "template": {"apiVersion": "v1", "kind": "Pod", "spec": {"containers": [{"name": "c"}]}}}})
}

#[tokio::test]
async fn a_rule_whose_creation_was_not_answered_is_deleted_in_both_clusters() {
    let mut world = World::new().await;
    world.has(false, false);
    world.api.answers("PATCH", RULE, 200, rule(true, false));
    world.manager.0.lock().mute = true;
    assert_eq!(world.round().await, Ok(false));
    assert!(world.is_there(), "it was made all the same");
    // It is deleted here, while the manager's list doesn't show it yet.
    world.has(true, true);
    world.memory.unsure.clear();
    world.manager.0.lock().behind = true;
    assert_eq!(world.round().await, Ok(true));
    assert!(!world.is_there());
    assert_eq!(world.finalizers(), [json!([keys::RULE_FINALIZER]), json!([])]);
}

#[tokio::test]
async fn the_finalizer_stays_while_an_unanswered_creation_may_still_be_carried_out() {
    let mut world = World::new().await;
    world.has(false, false);
    world.api.answers("PATCH", RULE, 200, rule(true, false));
    world.manager.0.lock().late = true;
    assert_eq!(world.round().await, Ok(false));
    world.has(true, true);
    assert_eq!(world.round().await, Ok(false));
    assert_eq!(world.finalizers().len(), 1, "nothing is there, and something may come");
    {
        let mut rules = world.manager.0.lock();
        let rule = rules.under_way.pop().unwrap();
        rules.stored.insert(rule.id.clone(), rule);
    }
    assert_eq!(world.round().await, Ok(true));
    assert!(!world.is_there(), "it has come, and is deleted");
    for until in world.memory.unsure.values_mut() {
        *until = Instant::now();
    }
    assert_eq!(world.round().await, Ok(false));
    assert_eq!(world.finalizers().last(), Some(&json!([])));
}

#[tokio::test]
async fn a_rule_that_exists_by_an_earlier_call_of_ours_is_ours() {
    let mut world = World::new().await;
    world.has(false, false);
    world.api.answers("PATCH", RULE, 200, rule(true, false));
    let wire = rule_wire::message(&serde_json::from_value(rule(false, false)).unwrap());
    let made = v1::Rule { origin: "u".to_owned(), ..wire };
    {
        let mut rules = world.manager.0.lock();
        rules.behind = true;
        rules.stored.insert("r".to_owned(), made);
    }
    assert_eq!(world.round().await, Ok(true));
    assert_eq!(world.finalizers(), [json!([keys::RULE_FINALIZER])], "it keeps its finalizer");
}

#[tokio::test]
async fn a_rule_that_only_the_watch_lacks_is_not_deleted_in_the_infrastructure_cluster() {
    let mut world = World::new().await;
    let wire = rule_wire::message(&serde_json::from_value(rule(true, false)).unwrap());
    world.manager.0.lock().stored.insert("r".to_owned(), v1::Rule { origin: "u".to_owned(), ..wire });
    world.api.answers("GET", RULE, 200, rule(true, false));
    assert_eq!(world.round().await, Ok(false));
    world.api.answers("GET", RULE, 503, json!({}));
    assert_eq!(world.round().await, Ok(false));
    assert!(world.is_there());
    world.api.answers("GET", RULE, 404, not_found());
    assert_eq!(world.round().await, Ok(true));
    assert!(!world.is_there());
}

/// Another rule, with our finalizer.
fn named(name: &str) -> Value {
    let mut rule = rule(true, false);
    rule["metadata"]["name"] = name.into();
    rule["metadata"]["uid"] = name.into();
    rule
}

impl World {
    /// Reasons in the status that was last written for a rule.
    fn told(&self, name: &str) -> Vec<String> {
        let path = format!("/{name}/status");
        let last = self
            .api
            .calls("PATCH")
            .into_iter()
            .rfind(|(uri, _)| uri.split('?').next().unwrap().ends_with(&path));
        let conditions = last.map(|(_, body)| body["status"]["conditions"].clone()).unwrap_or_default();
        let reasons = conditions.as_array().into_iter().flatten();
        reasons.map(|c| c["reason"].as_str().unwrap().to_owned()).collect()
    }

    fn statuses(&self) -> usize {
        self.api.calls("PATCH").iter().filter(|(uri, _)| uri.contains("/status")).count()
    }
}

#[tokio::test]
async fn a_rule_that_is_refused_keeps_no_other_from_being_synced() {
    for (code, expected) in [
        (Code::PermissionDenied, vec!["Forbidden", "Forbidden"]),
        (Code::Unavailable, vec!["Failing"]),
        (Code::Internal, vec!["Failing"]),
    ] {
        let mut world = World::new().await;
        for name in ["a", "r", "z"] {
            world.shows(named(name));
        }
        world.manager.0.lock().refused.insert("r".to_owned(), code);
        let orphan = v1::Rule { id: "orphan".to_owned(), origin: "gone".to_owned(), ..v1::Rule::default() };
        world.manager.0.lock().stored.insert("orphan".to_owned(), orphan);
        world.api.answers("GET", &format!("{}orphan", RULE.trim_end_matches('r')), 404, not_found());
        for _ in 0..IN_VAIN {
            assert_eq!(world.round().await.err(), None, "{code:?}");
        }
        let mut there: Vec<String> = world.manager.0.lock().stored.keys().cloned().collect();
        there.sort();
        assert_eq!(there, ["a", "z"], "{code:?}");
        assert_eq!(world.told("r"), expected, "{code:?}");
        assert!(world.told("a").iter().all(|reason| reason == "Pending"));
    }
    // Who isn't known is refused everywhere.
    let mut world = World::new().await;
    world.shows(named("r"));
    world.manager.0.lock().refused.insert("r".to_owned(), Code::Unauthenticated);
    assert_eq!(world.round().await, Err(Code::Unauthenticated));
}

#[tokio::test]
async fn a_list_is_measured_before_it_is_decoded_and_has_an_end() {
    let mut world = World::new().await;
    world.manager.0.lock().says = Some(vec![v1::Rule::default(); 90_000]);
    assert_eq!(world.round().await, Ok(false));
    world.manager.0.lock().says = Some(vec![v1::Rule::default(); 110_000]);
    assert_eq!(world.round().await, Err(Code::OutOfRange));
    {
        let mut rules = world.manager.0.lock();
        rules.says = Some(vec![v1::Rule::default()]);
        rules.endless = true;
    }
    assert_eq!(world.round().await, Err(Code::OutOfRange));
}

#[tokio::test]
async fn a_manager_does_not_choose_what_is_asked_of_the_tenants_cluster() {
    let mut world = World::new().await;
    let rule = |id: String| v1::Rule { id, origin: "x".to_owned(), ..v1::Rule::default() };
    let names = ["../../../../v1/secrets/x".to_owned(), "a?b=c".to_owned(), String::new()];
    let many = (0..500).map(|i| format!("zz{i}"));
    world.manager.0.lock().says = Some(names.into_iter().chain(many).map(rule).collect());
    assert_eq!(world.round().await, Ok(false));
    let asked = world.api.calls("GET");
    assert!(asked.len() <= MOST_ORPHANS, "{}", asked.len());
    let prefix = RULE.trim_end_matches('r');
    assert!(
        asked.iter().all(|(path, _)| path.strip_prefix(prefix).is_some_and(|id| id.starts_with("zz"))),
        "{asked:?}"
    );
}

#[tokio::test]
async fn a_manager_that_says_something_else_all_the_time_writes_little() {
    let mut world = World::new().await;
    world.shows(named("r"));
    let ours: WorkloadRule = serde_json::from_value(named("r")).unwrap();
    for round in 0..100 {
        let condition = v1::RuleCondition {
            r#type: "Ready".to_owned(),
            status: if round % 2 == 0 { "True" } else { "False" }.to_owned(),
            reason: "R".to_owned(),
            message: round.to_string().repeat(3000),
            last_transition_time: format!("2026-01-01T00:{:02}:00Z", round % 60),
        };
        let mut conditions = vec![condition.clone()];
        conditions
            .extend((0..1000).map(|i| v1::RuleCondition { r#type: format!("T{i}"), ..condition.clone() }));
        conditions.truncate(10);
        let status =
            v1::RuleStatus { current: true, matched: round, conditions, ..v1::RuleStatus::default() };
        let said = v1::Rule { origin: "r".to_owned(), status: Some(status), ..rule_wire::message(&ours) };
        world.manager.0.lock().says = Some(vec![said]);
        assert_eq!(world.round().await, Ok(false));
    }
    assert!((10..40).contains(&world.statuses()), "{} writes in a moment", world.statuses());
    for (_, body) in world.api.calls("PATCH") {
        let text = body.to_string();
        assert!(text.len() < 2000, "{}", text.len());
        assert!(!text.contains("2026-01-01T00:"), "the manager's clock");
        assert_eq!(body["status"]["conditions"].as_array().unwrap().len(), 1);
        assert!(body.as_object().unwrap().keys().all(|key| key == "metadata" || key == "status"));
    }
    assert!(world.memory.budget.held());
}

#[tokio::test]
async fn a_rule_waits_until_the_annotations_that_it_names_are_told() {
    let mut world = World::new().await;
    let mut rule = named("r");
    rule["spec"]["workloadTerms"][0]["matchExpressions"][0]["key"] = ".state.extra.annotations.x".into();
    world.shows(rule);
    assert_eq!(world.round().await, Ok(false));
    assert!(!world.is_there());
    assert_eq!(world.told("r"), ["Pending"]);
    let selection = crate::annotations::Selection::new(Arc::new([]), ["x".to_owned()].into());
    world.syncer.workloads.covers(&selection);
    assert_eq!(world.round().await, Ok(true));
    assert!(world.is_there());
}
