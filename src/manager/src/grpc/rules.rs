//! `universe.workload.v1.WorkloadRuleService`: a tenant's rules, as custom resources in its namespace.

use std::sync::Arc;

use kube::Client;
use kube::ResourceExt;
use kube::api::Api;
use outrigger_api::{WorkloadRule, rule_wire};
use outrigger_core::field::FieldError;
use outrigger_core::ids::RuleName;
use outrigger_core::keys;
use outrigger_core::tenant::Tenant;
use outrigger_proto::v1;
use outrigger_proto::v1::workload_rule_service_server::WorkloadRuleService;
use outrigger_runtime::telemetry::called;
use tonic::{Request, Response, Status};
use tracing::Instrument;

use super::access::Admitted;
use super::verbs::{self, Wire};
use crate::state::{RuleEntry, Space, Spaces};

/// Serves rules.
#[derive(Clone)]
pub struct Rules {
    /// The infrastructure cluster.
    pub client: Client,
    /// Rules as they are known: brief lists are made from this alone.
    pub spaces: Arc<Spaces>,
}

impl Rules {
    fn api<T>(&self, request: &Request<T>) -> Result<Api<WorkloadRule>, Status> {
        let Admitted { tenant, .. } = super::admitted(request)?;
        Ok(self.rules_of(&tenant))
    }

    fn rules_of(&self, tenant: &Tenant) -> Api<WorkloadRule> {
        Api::namespaced(self.client.clone(), &tenant.namespace)
    }
}

impl Wire for WorkloadRule {
    type Message = v1::Rule;

    fn read(rule: &v1::Rule) -> Result<Self, Vec<FieldError>> {
        Self::try_from(rule)
    }

    fn check(&self) -> Result<(), Vec<FieldError>> {
        self.compile().map(drop)
    }

    fn message(&self) -> v1::Rule {
        rule_wire::message(self)
    }

    fn take_over(&mut self, wanted: &Self) -> bool {
        let origin = rule_wire::origin(wanted);
        if self.spec == wanted.spec && (origin.is_empty() || origin == rule_wire::origin(self)) {
            return false;
        }
        self.spec = wanted.spec.clone();
        if !origin.is_empty() {
            self.annotations_mut().insert(keys::ORIGIN.to_owned(), origin);
        }
        true
    }
}

#[tonic::async_trait]
impl WorkloadRuleService for Rules {
    async fn create(
        &self,
        request: Request<v1::CreateRequest>,
    ) -> Result<Response<v1::CreateResponse>, Status> {
        let api = self.api(&request)?;
        let span = called("/universe.workload.v1.WorkloadRuleService/Create", request.metadata());
        verbs::create(&api, request.get_ref().rule.as_ref()).instrument(span).await?;
        Ok(Response::new(v1::CreateResponse {}))
    }

    async fn update(
        &self,
        request: Request<v1::UpdateRequest>,
    ) -> Result<Response<v1::UpdateResponse>, Status> {
        let api = self.api(&request)?;
        let span = called("/universe.workload.v1.WorkloadRuleService/Update", request.metadata());
        verbs::update(&api, request.get_ref().rule.as_ref()).instrument(span).await?;
        Ok(Response::new(v1::UpdateResponse {}))
    }

    async fn delete(
        &self,
        request: Request<v1::DeleteRequest>,
    ) -> Result<Response<v1::DeleteResponse>, Status> {
        let api = self.api(&request)?;
        let span = called("/universe.workload.v1.WorkloadRuleService/Delete", request.metadata());
        verbs::delete(&api, &request.get_ref().id).instrument(span).await?;
        Ok(Response::new(v1::DeleteResponse {}))
    }

    async fn get(&self, request: Request<v1::GetRequest>) -> Result<Response<v1::GetResponse>, Status> {
        let api = self.api(&request)?;
        let span = called("/universe.workload.v1.WorkloadRuleService/Get", request.metadata());
        let rule = verbs::get(&api, &request.get_ref().id).instrument(span).await?;
        Ok(Response::new(v1::GetResponse { rule: Some(rule) }))
    }

    async fn list(&self, request: Request<v1::ListRequest>) -> Result<Response<v1::ListResponse>, Status> {
        let Admitted { tenant, .. } = super::admitted(&request)?;
        let span = called("/universe.workload.v1.WorkloadRuleService/List", request.metadata());
        if request.get_ref().brief {
            return Ok(Response::new(brief(&self.spaces.space(&tenant.namespace))));
        }
        let v1::ListRequest { page_size, page_token, .. } = request.into_inner();
        let (rules, next_page_token) =
            verbs::list(&self.rules_of(&tenant), page_size, page_token).instrument(span).await?;
        Ok(Response::new(v1::ListResponse { rules, next_page_token }))
    }
}

/// Rules without what they say, as the watch has shown them.
fn brief(space: &Space) -> v1::ListResponse {
    let inner = space.lock();
    let rule = |(name, entry): (&RuleName, &RuleEntry)| v1::Rule {
        id: name.to_string(),
        data: None,
        origin: entry.origin.clone(),
        revision: entry.revision.clone(),
        status: Some(rule_wire::status_message(&entry.status, entry.generation)),
    };
    let own = inner.rules.iter().filter(|(name, _)| !name.is_admin());
    v1::ListResponse { rules: own.map(rule).collect(), next_page_token: String::new() }
}
