use std::collections::BTreeSet;

use outrigger_api::rule_wire;
use outrigger_core::keys;
use outrigger_proto::v1::workload_rule_service_server::{WorkloadRuleService, WorkloadRuleServiceServer};
use outrigger_runtime::environment::Environment;
use outrigger_runtime::events::Events;
use outrigger_runtime::fake_api::{FakeApi, not_found};
use outrigger_runtime::tls::ClientTls;
use parking_lot::{Mutex, MutexGuard};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use tonic::metadata::AsciiMetadataValue;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response};

use super::*;
use crate::annotations::{Allowed, Selection};
use crate::connect::Connector;
use crate::first::Publishing;
use crate::metrics::Metrics;

mod stale;

const RULE: &str = "/apis/workload.universe.nvidia.com/v1alpha1/namespaces/universe/workloadrules/r";

/// A manager whose lists may be stale and whose responses to writes may be lost.
#[derive(Clone, Default)]
struct Manager(Arc<Mutex<ManagerState>>);

#[derive(Default)]
struct ManagerState {
    /// The rules of the API server.
    stored: HashMap<String, v1::Rule>,
    /// Lists are made from an empty cache.
    stale: bool,
    /// A write is executed after its deadline.
    late: bool,
    /// These writes.
    pending: Vec<v1::Rule>,
    /// The response to the next write is lost.
    lose_response: bool,
    /// Writes of these rules fail with these codes.
    rejected: HashMap<String, Code>,
    /// Lists return these rules instead; with `endless`, each page refers to another.
    listed: Option<Vec<v1::Rule>>,
    endless: bool,
    /// Number of calls about another version of a rule.
    aborted: usize,
    /// Updates are answered and change nothing, as if the manager dropped the fields that they change.
    drops_updates: bool,
}

#[tonic::async_trait]
impl WorkloadRuleService for Manager {
    async fn create(
        &self,
        request: Request<v1::CreateRequest>,
    ) -> Result<Response<v1::CreateResponse>, Status> {
        let rule = request.into_inner().rule.unwrap();
        let mut rules = self.0.lock();
        if let Some(code) = rules.rejected.get(&rule.id) {
            return Err(Status::new(*code, "rejected by a policy"));
        }
        if rules.late {
            rules.pending.push(rule);
            return Err(Status::deadline_exceeded("no answer"));
        }
        if rules.stored.contains_key(&rule.id) {
            return Err(Status::already_exists("it exists"));
        }
        rules.store(rule);
        if std::mem::take(&mut rules.lose_response) {
            return Err(Status::unavailable("no answer"));
        }
        Ok(Response::new(v1::CreateResponse {}))
    }

    async fn update(
        &self,
        request: Request<v1::UpdateRequest>,
    ) -> Result<Response<v1::UpdateResponse>, Status> {
        let rule = request.into_inner().rule.unwrap();
        let mut rules = self.0.lock();
        // Nothing is written, and no version compared, where nothing changes.
        let is_same = |stored: &v1::Rule| stored.data == rule.data && stored.origin == rule.origin;
        if !rules.stored.get(&rule.id).is_some_and(is_same) {
            rules.expect(&rule.id, &rule.etag)?;
            if !rules.drops_updates {
                rules.store(rule);
            }
        }
        Ok(Response::new(v1::UpdateResponse {}))
    }

    async fn delete(
        &self,
        request: Request<v1::DeleteRequest>,
    ) -> Result<Response<v1::DeleteResponse>, Status> {
        let v1::DeleteRequest { id, etag } = request.into_inner();
        let mut rules = self.0.lock();
        rules.expect(&id, &etag)?;
        rules.stored.remove(&id);
        Ok(Response::new(v1::DeleteResponse {}))
    }

    async fn get(&self, request: Request<v1::GetRequest>) -> Result<Response<v1::GetResponse>, Status> {
        let rule = self.0.lock().stored.get(&request.into_inner().id).cloned();
        let rule = rule.ok_or_else(|| Status::not_found("there is none"))?;
        Ok(Response::new(v1::GetResponse { rule: Some(listed(&rule)) }))
    }

    async fn list(&self, _: Request<v1::ListRequest>) -> Result<Response<v1::ListResponse>, Status> {
        let rules = self.0.lock();
        if let Some(listed) = &rules.listed {
            let next_page_token = if rules.endless { "more".to_owned() } else { String::new() };
            return Ok(Response::new(v1::ListResponse { rules: listed.clone(), next_page_token }));
        }
        let shown = rules.stored.values().filter(|_| !rules.stale);
        Ok(Response::new(v1::ListResponse {
            rules: shown.map(listed).collect(),
            ..v1::ListResponse::default()
        }))
    }
}

fn listed(rule: &v1::Rule) -> v1::Rule {
    let revision = rule.data.as_ref().map(rule_wire::revision).unwrap_or_default();
    v1::Rule { etag: revision.clone(), revision, ..rule.clone() }
}

impl ManagerState {
    fn store(&mut self, rule: v1::Rule) {
        self.stored.insert(rule.id.clone(), rule);
    }

    /// Fails if a rule has another etag than a call says; counts the call then.
    fn expect(&mut self, id: &str, etag: &str) -> Result<(), Status> {
        if self.stored.get(id).is_some_and(|stored| listed(stored).etag != etag) {
            self.aborted += 1;
            return Err(Status::aborted("it has another etag"));
        }
        Ok(())
    }
}

/// An agent with a fake API server and a fake manager.
struct Fixture {
    api: FakeApi,
    manager: Manager,
    syncer: Syncer,
    memory: Memory,
}

impl Fixture {
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
            connector: Connector::to(address, ClientTls::default(), None, None),
            tenant: AsciiMetadataValue::from_static("blue"),
            events: Arc::new(Events::new(api.client(), "test", None)),
            metrics: Metrics::default(),
            drain: CancellationToken::new(),
            channel: tokio::sync::watch::Sender::new(None),
            asked: tokio::sync::watch::Sender::new(BTreeSet::new()),
        };
        let syncer = Syncer {
            context: Arc::new(context),
            namespace: "universe".to_owned(),
            store: Arc::default(),
            workloads: Arc::default(),
            enforcement: Enforcement {
                served: true,
                devices: tokio::sync::watch::channel(Publishing::Off).1,
            },
            interval: Duration::from_secs(5),
            concurrency: 1,
        };
        let memory = Memory::new(syncer.enforcement.clone().now(), Instant::now());
        Self { api, manager, syncer, memory }
    }

    async fn round(&mut self) -> Result<bool, Code> {
        self.syncer.round(&mut self.memory).await.map_err(|status| status.code())
    }

    /// Applies the rule to the tenant's cluster and the cache.
    fn apply_rule(&self, finalizer: bool, deleted: bool) {
        self.apply(rule(finalizer, deleted));
    }

    /// Applies a rule to the tenant's cluster and the cache. Writes of its finalizers and its status succeed.
    fn apply(&self, rule: Value) {
        let path = format!("{}{}", RULE.trim_end_matches('r'), rule["metadata"]["name"].as_str().unwrap());
        let mut written = rule.clone();
        written["metadata"]["resourceVersion"] = json!("1000");
        self.api.answers("PATCH", &format!("{path}/status"), 200, written);
        self.api.answers("GET", &path, 200, rule.clone());
        let rule: WorkloadRule = serde_json::from_value(rule).unwrap();
        self.syncer.store.watch()(outrigger_runtime::watch::Event::Applied(rule));
    }

    /// Returns the written finalizers, in order.
    fn finalizers(&self) -> Vec<Value> {
        let patches = self.api.calls("PATCH").into_iter().map(|(_, body)| body);
        patches.filter_map(|body| body.pointer("/metadata/finalizers").cloned()).collect()
    }

    fn manager(&self) -> MutexGuard<'_, ManagerState> {
        self.manager.0.lock()
    }

    fn is_stored(&self) -> bool {
        self.manager().stored.contains_key("r")
    }
}

/// Returns the rule `r`. Its resourceVersion grows with the finalizer and the deletion.
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

/// Returns the rule `r` of the infrastructure cluster, made of a rule with this uid; empty for one that somebody else has made.
fn made_of(origin: &str) -> v1::Rule {
    let wire = rule_wire::message(&serde_json::from_value(rule(true, false)).unwrap());
    v1::Rule { origin: origin.to_owned(), ..wire }
}

#[tokio::test]
async fn a_rule_created_without_a_response_is_deleted_in_both_clusters() {
    let mut fixture = Fixture::new().await;
    fixture.apply_rule(false, false);
    fixture.api.answers("PATCH", RULE, 200, rule(true, false));
    fixture.manager().lose_response = true;
    assert_eq!(fixture.round().await, Ok(false));
    assert!(fixture.is_stored(), "it was created nevertheless");
    // The tenant deletes it before the manager lists it.
    fixture.apply_rule(true, true);
    fixture.memory.rules.values_mut().for_each(|rule| rule.unconfirmed = None);
    fixture.manager().stale = true;
    assert_eq!(fixture.round().await, Ok(true));
    assert!(!fixture.is_stored());
    assert_eq!(fixture.finalizers(), [json!([keys::RULE_FINALIZER]), json!([])]);
}

#[tokio::test]
async fn the_finalizer_stays_while_an_unconfirmed_creation_may_be_executed() {
    let mut fixture = Fixture::new().await;
    fixture.apply_rule(false, false);
    fixture.api.answers("PATCH", RULE, 200, rule(true, false));
    fixture.manager().late = true;
    assert_eq!(fixture.round().await, Ok(false));
    fixture.apply_rule(true, true);
    assert_eq!(fixture.round().await, Ok(false));
    assert_eq!(fixture.finalizers().len(), 1, "the creation may still be executed");
    let late = fixture.manager().pending.pop().unwrap();
    fixture.manager().store(late);
    assert_eq!(fixture.round().await, Ok(true));
    assert!(!fixture.is_stored(), "it was created and is deleted");
    fixture.memory.rules.values_mut().for_each(|rule| rule.unconfirmed = Some(Instant::now()));
    assert_eq!(fixture.round().await, Ok(false));
    assert_eq!(fixture.finalizers().last(), Some(&json!([])));
}

#[tokio::test]
async fn a_rule_from_an_earlier_call_is_owned() {
    let mut fixture = Fixture::new().await;
    fixture.apply_rule(false, false);
    fixture.api.answers("PATCH", RULE, 200, rule(true, false));
    fixture.manager().stale = true;
    fixture.manager().store(made_of("u"));
    assert_eq!(fixture.round().await, Ok(true));
    assert_eq!(fixture.finalizers(), [json!([keys::RULE_FINALIZER])], "it keeps its finalizer");
}

#[tokio::test]
async fn a_name_that_only_the_list_lacks_is_not_tried_again_at_once() {
    let mut fixture = Fixture::new().await;
    fixture.apply_rule(false, false);
    fixture.api.answers("PATCH", RULE, 200, rule(true, false));
    fixture.api.answers("GET", RULE, 200, rule(true, false));
    fixture.manager().stale = true;
    fixture.manager().store(made_of(""));
    let added_and_removed = [json!([keys::RULE_FINALIZER]), json!([])];
    for version in ["9", "10", "11"] {
        assert_eq!(fixture.round().await, Ok(true));
        assert_eq!(fixture.finalizers(), added_and_removed, "{version}");
        // The watch shows that the finalizer is removed, which begins the next round.
        let mut without = rule(false, false);
        without["metadata"]["resourceVersion"] = json!(version);
        fixture.apply(without);
    }
    // When the list has the other rule, the conflict is reported.
    fixture.manager().stale = false;
    assert_eq!(fixture.round().await, Ok(false));
    assert!(fixture.reasons("r").contains(&"NameTaken".to_owned()), "{:?}", fixture.reasons("r"));
    assert_eq!(fixture.finalizers(), added_and_removed);
}

#[tokio::test]
async fn a_rule_that_only_the_cache_lacks_is_not_an_orphan() {
    let mut fixture = Fixture::new().await;
    fixture.manager().store(made_of("u"));
    fixture.api.answers("GET", RULE, 200, rule(true, false));
    assert_eq!(fixture.round().await, Ok(false));
    fixture.api.answers("GET", RULE, 503, json!({}));
    assert_eq!(fixture.round().await, Ok(false));
    assert!(fixture.is_stored());
    fixture.api.answers("GET", RULE, 404, not_found());
    assert_eq!(fixture.round().await, Ok(true));
    assert!(!fixture.is_stored());
}

#[tokio::test]
async fn a_rule_that_an_administrator_has_written_is_no_orphan() {
    let mut fixture = Fixture::new().await;
    fixture.manager().store(made_of(""));
    fixture.api.answers("GET", RULE, 404, not_found());
    assert_eq!(fixture.round().await, Ok(false));
    assert!(fixture.is_stored());
}

/// Returns another rule, with the finalizer.
fn named(name: &str) -> Value {
    let mut rule = rule(true, false);
    rule["metadata"]["name"] = name.into();
    rule["metadata"]["uid"] = name.into();
    rule
}

impl Fixture {
    /// Returns the reasons in the last written status of a rule.
    fn reasons(&self, name: &str) -> Vec<String> {
        let path = format!("/{name}/status");
        let last = self
            .api
            .calls("PATCH")
            .into_iter()
            .rfind(|(uri, _)| uri.split('?').next().unwrap().ends_with(&path));
        let conditions = last.map(|(_, body)| body["status"]["conditions"].clone()).unwrap_or_default();
        let all = conditions.as_array().into_iter().flatten();
        all.map(|c| c["reason"].as_str().unwrap().to_owned()).collect()
    }

    fn status_writes(&self) -> usize {
        self.api.calls("PATCH").iter().filter(|(uri, _)| uri.contains("/status")).count()
    }
}

#[tokio::test]
async fn a_rejected_rule_does_not_affect_the_others() {
    for (code, expected) in [
        (Code::PermissionDenied, vec!["Forbidden", "Forbidden"]),
        (Code::Unavailable, vec!["Failing"]),
        (Code::Internal, vec!["Failing"]),
    ] {
        let mut fixture = Fixture::new().await;
        for name in ["a", "r", "z"] {
            fixture.apply(named(name));
        }
        fixture.manager().rejected.insert("r".to_owned(), code);
        let orphan = v1::Rule { id: "orphan".to_owned(), origin: "gone".to_owned(), ..v1::Rule::default() };
        fixture.manager().store(orphan);
        fixture.api.answers("GET", &format!("{}orphan", RULE.trim_end_matches('r')), 404, not_found());
        for _ in 0..REPORT_AFTER {
            assert_eq!(fixture.round().await.err(), None, "{code:?}");
        }
        let mut stored: Vec<String> = fixture.manager().stored.keys().cloned().collect();
        stored.sort();
        assert_eq!(stored, ["a", "z"], "{code:?}");
        assert_eq!(fixture.reasons("r"), expected, "{code:?}");
        assert!(fixture.reasons("a").iter().all(|reason| reason == "Pending"));
    }
    // An unauthenticated agent can write no rule.
    let mut fixture = Fixture::new().await;
    fixture.apply(named("r"));
    fixture.manager().rejected.insert("r".to_owned(), Code::Unauthenticated);
    assert_eq!(fixture.round().await, Err(Code::Unauthenticated));
}

#[tokio::test]
async fn the_size_and_the_pages_of_a_list_are_limited() {
    let mut fixture = Fixture::new().await;
    fixture.manager().listed = Some(vec![v1::Rule::default(); 90_000]);
    assert_eq!(fixture.round().await, Ok(false));
    fixture.manager().listed = Some(vec![v1::Rule::default(); 110_000]);
    assert_eq!(fixture.round().await, Err(Code::OutOfRange));
    fixture.manager().listed = Some(vec![v1::Rule::default()]);
    fixture.manager().endless = true;
    assert_eq!(fixture.round().await, Err(Code::OutOfRange));
}

#[tokio::test]
async fn names_from_the_manager_are_validated_before_they_are_requested() {
    let mut fixture = Fixture::new().await;
    let rule = |id: String| v1::Rule { id, origin: "x".to_owned(), ..v1::Rule::default() };
    let names = ["../../../../v1/secrets/x".to_owned(), "a?b=c".to_owned(), String::new()];
    let many = (0..500).map(|i| format!("zz{i}"));
    fixture.manager().listed = Some(names.into_iter().chain(many).map(rule).collect());
    assert_eq!(fixture.round().await, Ok(false));
    let asked = fixture.api.calls("GET");
    assert!(asked.len() <= MAX_ORPHANS, "{}", asked.len());
    let prefix = RULE.trim_end_matches('r');
    assert!(
        asked.iter().all(|(path, _)| path.strip_prefix(prefix).is_some_and(|id| id.starts_with("zz"))),
        "{asked:?}"
    );
}

#[tokio::test]
async fn status_writes_are_limited_if_the_manager_changes_the_status_constantly() {
    let mut fixture = Fixture::new().await;
    fixture.apply(named("r"));
    let rule: WorkloadRule = serde_json::from_value(named("r")).unwrap();
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
        let changed = v1::Rule { origin: "r".to_owned(), status: Some(status), ..rule_wire::message(&rule) };
        fixture.manager().listed = Some(vec![changed]);
        assert_eq!(fixture.round().await, Ok(false));
    }
    assert!((10..40).contains(&fixture.status_writes()), "{} status writes", fixture.status_writes());
    for (_, body) in fixture.api.calls("PATCH") {
        let text = body.to_string();
        assert!(text.len() < 2000, "{}", text.len());
        assert!(!text.contains("2026-01-01T00:"), "the manager's clock is not used");
        assert_eq!(body["status"]["conditions"].as_array().unwrap().len(), 1);
        assert!(body.as_object().unwrap().keys().all(|key| key == "metadata" || key == "status"));
    }
    assert!(fixture.memory.budget.take_deferred());
}

#[tokio::test]
async fn a_rule_waits_until_its_annotations_are_sent() {
    let mut fixture = Fixture::new().await;
    let mut rule = named("r");
    rule["spec"]["workloadTerms"][0]["matchExpressions"][0]["key"] = ".state.extra.annotations.x".into();
    fixture.apply(rule);
    assert_eq!(fixture.round().await, Ok(false));
    assert!(!fixture.is_stored());
    assert_eq!(fixture.reasons("r"), ["Pending"]);
    let selection = Selection::new(&Allowed::default(), ["x".to_owned()].into(), &BTreeSet::new());
    fixture.syncer.workloads.set_complete(&selection);
    assert_eq!(fixture.round().await, Ok(true));
    assert!(fixture.is_stored());
}
