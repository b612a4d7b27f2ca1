//! Managers of earlier versions, on the wire: the fields that they don't know they neither keep nor tell.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use axum::Router;
use outrigger_api::rule_wire;
use outrigger_proto::v1;
use outrigger_proto::v1::workload_rule_service_server::{WorkloadRuleService, WorkloadRuleServiceServer};
use outrigger_proto::v1::workload_service_server::{WorkloadService, WorkloadServiceServer};
use outrigger_proto::v1::workload_stream_request::Message as Kind;
use outrigger_tests::wire::serve;
use outrigger_tests::{eventually, holds};
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;
use tonic::{Request, Response, Status, Streaming};

/// A manager that knows less. It ends with the test.
#[derive(Clone, Default)]
pub(super) struct Older {
    /// Whether there is a service for rules at all.
    rules: bool,
    /// Whether it knows `origin`, `revision` and `brief`.
    knows_revisions: bool,
    state: Arc<Mutex<State>>,
    end: CancellationToken,
}

#[derive(Default)]
struct State {
    rules: BTreeMap<String, v1::Rule>,
    /// What was asked for, but for lists.
    calls: Vec<String>,
    /// Names of the workloads that it has received.
    workloads: Vec<String>,
    /// A rule that its list doesn't show yet: until somebody makes one of the same name.
    unseen: Option<String>,
    /// It keeps what it is given, all of it.
    keeps: bool,
    fails: bool,
}

impl Older {
    /// One from before there were rules on the wire.
    pub(super) fn without_rules() -> Self {
        Self::default()
    }

    /// One from before rules had their owners and their status in answers.
    pub(super) fn silent() -> Self {
        Self { rules: true, ..Self::default() }
    }

    /// One that knows revisions, and doesn't know `update_strategy`, `ordering` and `linger_seconds`.
    pub(super) fn forgetful() -> Self {
        Self { rules: true, knows_revisions: true, ..Self::default() }
    }

    pub(super) fn serve(&self) -> u16 {
        let mut routes = Routes::new(WorkloadServiceServer::new(self.clone()));
        if self.rules {
            routes = routes.add_service(WorkloadRuleServiceServer::new(self.clone()));
        }
        let router: Router = routes.into_axum_router();
        serve(router, self.end.clone())
    }

    /// Somebody else has made a rule.
    pub(super) fn has(&self, id: &str, template: &'static [u8]) {
        let data = v1::RuleData { rule_template: template.into(), ..v1::RuleData::default() };
        let rule = v1::Rule { id: id.to_owned(), data: Some(data), ..v1::Rule::default() };
        self.state.lock().unwrap().rules.insert(id.to_owned(), rule);
    }

    /// Somebody else has made a rule a moment ago.
    pub(super) fn has_unseen(&self, id: &str, template: &'static [u8]) {
        self.state.lock().unwrap().unseen = Some(id.to_owned());
        self.has(id, template);
    }

    /// It ends, and one that keeps everything takes its place.
    pub(super) fn is_upgraded(&self) {
        let mut state = self.state.lock().unwrap();
        state.keeps = true;
        state.fails = true;
    }

    pub(super) fn calls(&self) -> Vec<String> {
        self.state.lock().unwrap().calls.clone()
    }

    pub(super) fn are(&self, calls: &[&str]) -> Result<(), String> {
        let now = self.calls();
        holds(now == calls, format!("{now:?}"))
    }

    pub(super) async fn eventually(&self, calls: &[&str]) {
        eventually(&format!("{calls:?}"), || async { self.are(calls) }).await;
    }

    /// Waits until it has received these workloads.
    pub(super) async fn hears(&self, names: &[&str]) {
        eventually(&format!("{names:?} are received"), || async {
            let heard = self.state.lock().unwrap().workloads.clone();
            holds(names.iter().all(|name| heard.iter().any(|h| h == name)), format!("{heard:?}"))
        })
        .await;
    }

    /// A rule as it is kept.
    fn keep(&self, what: &str, rule: Option<v1::Rule>) {
        let mut rule = rule.unwrap_or_default();
        let mut state = self.state.lock().unwrap();
        if let Some(data) = &mut rule.data
            && !state.keeps
        {
            data.update_strategy = None;
            data.ordering.clear();
            data.linger_seconds = 0;
        }
        let data = rule.data.clone().unwrap_or_default();
        rule.revision = if self.knows_revisions { rule_wire::revision(&data) } else { String::new() };
        if !self.knows_revisions {
            rule.origin = String::new();
        }
        state.calls.push(format!("{what} {}", rule.id));
        state.rules.insert(rule.id.clone(), rule);
    }
}

/// What a call returns.
type Answer<T> = Result<Response<T>, Status>;

#[tonic::async_trait]
impl WorkloadService for Older {
    async fn workload_stream(
        &self,
        request: Request<Streaming<v1::WorkloadStreamRequest>>,
    ) -> Answer<v1::WorkloadStreamResponse> {
        let mut stream = request.into_inner();
        while let Some(message) = stream.message().await? {
            let updates = match message.message {
                Some(Kind::WorkloadSync(sync)) => sync.workload_updates,
                Some(Kind::WorkloadUpdate(update)) => vec![update],
                _ => Vec::new(),
            };
            let names = updates.into_iter().filter_map(|u| Some(u.workload_metadata?.resource_name));
            self.state.lock().unwrap().workloads.extend(names);
        }
        Ok(Response::new(v1::WorkloadStreamResponse {}))
    }

    /// None of them takes chunks.
    async fn workload_chunked_stream(
        &self,
        _: Request<Streaming<v1::WorkloadChunkedStreamRequest>>,
    ) -> Answer<v1::WorkloadStreamResponse> {
        Err(Status::unimplemented(""))
    }
}

#[tonic::async_trait]
impl WorkloadRuleService for Older {
    async fn create(&self, request: Request<v1::CreateRequest>) -> Answer<v1::CreateResponse> {
        let rule = request.into_inner().rule;
        {
            let mut state = self.state.lock().unwrap();
            if let Some(id) = rule.as_ref().map(|rule| &rule.id)
                && state.rules.contains_key(id)
            {
                state.unseen = None;
                state.calls.push(format!("refused {id}"));
                return Err(Status::already_exists("there is one"));
            }
        }
        self.keep("create", rule);
        Ok(Response::new(v1::CreateResponse {}))
    }

    async fn update(&self, request: Request<v1::UpdateRequest>) -> Answer<v1::UpdateResponse> {
        self.keep("update", request.into_inner().rule);
        Ok(Response::new(v1::UpdateResponse {}))
    }

    async fn delete(&self, request: Request<v1::DeleteRequest>) -> Answer<v1::DeleteResponse> {
        let id = request.into_inner().id;
        let mut state = self.state.lock().unwrap();
        state.rules.remove(&id);
        state.calls.push(format!("delete {id}"));
        Ok(Response::new(v1::DeleteResponse {}))
    }

    async fn get(&self, request: Request<v1::GetRequest>) -> Answer<v1::GetResponse> {
        let rule = self.state.lock().unwrap().rules.get(&request.into_inner().id).cloned();
        let rule = rule.ok_or_else(|| Status::not_found("there is no such rule"))?;
        Ok(Response::new(v1::GetResponse { rule: Some(rule) }))
    }

    async fn list(&self, request: Request<v1::ListRequest>) -> Answer<v1::ListResponse> {
        let brief = self.knows_revisions && request.into_inner().brief;
        let mut rules: Vec<v1::Rule> = {
            let mut state = self.state.lock().unwrap();
            if std::mem::take(&mut state.fails) {
                return Err(Status::unavailable("going down"));
            }
            let seen = state.rules.values().filter(|rule| Some(&rule.id) != state.unseen.as_ref());
            seen.cloned().collect()
        };
        for rule in rules.iter_mut().filter(|_| brief) {
            rule.data = None;
        }
        Ok(Response::new(v1::ListResponse { rules, next_page_token: String::new() }))
    }
}
