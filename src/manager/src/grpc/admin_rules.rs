//! `universe.admin.workload.v1.AdminWorkloadRuleService`: the platform's rules, as custom resources in the namespace of admin
//! rules. For administrators alone.

use std::sync::Arc;

use kube::Client;
use kube::api::Api;
use outrigger_api::{AdminWorkloadRule, admin_rule_wire};
use outrigger_core::field::FieldError;
use outrigger_proto::admin;
use outrigger_proto::admin::admin_workload_rule_service_server::AdminWorkloadRuleService;
use outrigger_runtime::serve::Peer;
use outrigger_runtime::telemetry::called;
use tonic::{Request, Response, Status};
use tracing::Instrument;

use super::access::Access;
use super::verbs::{self, Wire};
use crate::state::Namespace;

/// Serves admin rules.
#[derive(Clone)]
pub struct AdminRules {
    /// The infrastructure cluster.
    pub client: Client,
    /// Who is an administrator.
    pub access: Arc<Access>,
    /// Where admin rules live.
    pub namespace: Namespace,
}

impl AdminRules {
    fn api<T>(&self, request: &Request<T>) -> Result<Api<AdminWorkloadRule>, Status> {
        self.access.admin(&self.access.caller(request.extensions().get::<Peer>())?)?;
        Ok(Api::namespaced(self.client.clone(), &self.namespace))
    }
}

impl Wire for AdminWorkloadRule {
    type Message = admin::Rule;

    fn read(rule: &admin::Rule) -> Result<Self, Vec<FieldError>> {
        Self::try_from(rule)
    }

    fn check(&self) -> Result<(), Vec<FieldError>> {
        self.compile().map(drop)
    }

    fn message(&self) -> admin::Rule {
        admin_rule_wire::message(self)
    }

    fn take_over(&mut self, wanted: &Self) -> bool {
        let changes = self.spec != wanted.spec;
        if changes {
            self.spec = wanted.spec.clone();
        }
        changes
    }
}

#[tonic::async_trait]
impl AdminWorkloadRuleService for AdminRules {
    async fn create(
        &self,
        request: Request<admin::CreateRequest>,
    ) -> Result<Response<admin::CreateResponse>, Status> {
        let api = self.api(&request)?;
        let span = called("/universe.admin.workload.v1.AdminWorkloadRuleService/Create", request.metadata());
        verbs::create(&api, request.get_ref().rule.as_ref()).instrument(span).await?;
        Ok(Response::new(admin::CreateResponse {}))
    }

    async fn update(
        &self,
        request: Request<admin::UpdateRequest>,
    ) -> Result<Response<admin::UpdateResponse>, Status> {
        let api = self.api(&request)?;
        let span = called("/universe.admin.workload.v1.AdminWorkloadRuleService/Update", request.metadata());
        verbs::update(&api, request.get_ref().rule.as_ref()).instrument(span).await?;
        Ok(Response::new(admin::UpdateResponse {}))
    }

    async fn delete(
        &self,
        request: Request<admin::DeleteRequest>,
    ) -> Result<Response<admin::DeleteResponse>, Status> {
        let api = self.api(&request)?;
        let span = called("/universe.admin.workload.v1.AdminWorkloadRuleService/Delete", request.metadata());
        verbs::delete(&api, &request.get_ref().id).instrument(span).await?;
        Ok(Response::new(admin::DeleteResponse {}))
    }

    async fn get(&self, request: Request<admin::GetRequest>) -> Result<Response<admin::GetResponse>, Status> {
        let api = self.api(&request)?;
        let span = called("/universe.admin.workload.v1.AdminWorkloadRuleService/Get", request.metadata());
        let rule = verbs::get(&api, &request.get_ref().id).instrument(span).await?;
        Ok(Response::new(admin::GetResponse { rule: Some(rule) }))
    }

    async fn list(
        &self,
        request: Request<admin::ListRequest>,
    ) -> Result<Response<admin::ListResponse>, Status> {
        let api = self.api(&request)?;
        let span = called("/universe.admin.workload.v1.AdminWorkloadRuleService/List", request.metadata());
        let admin::ListRequest { page_size, page_token } = request.into_inner();
        let (rules, next_page_token) = verbs::list(&api, page_size, page_token).instrument(span).await?;
        Ok(Response::new(admin::ListResponse { rules, next_page_token }))
    }
}
