//! `universe.admin.workload.v1.AdminWorkloadRuleService`: the platform's rules, as custom resources in the namespace of admin
//! rules. For administrators alone.

use std::sync::Arc;

use kube::api::Api;
use outrigger_api::{AdminWorkloadRule, admin_rule_wire};
use outrigger_core::field::FieldError;
use outrigger_proto::admin;
use outrigger_proto::admin::admin_workload_rule_service_server::AdminWorkloadRuleService;
use outrigger_runtime::serve::Peer;
use tonic::{Request, Response, Status};

use super::Answer;
use super::access::Access;
use super::verbs::{self, Wire};
use crate::context::Context;

#[derive(Clone)]
pub(super) struct AdminRules(pub Arc<Access>);

impl AdminRules {
    fn api<T>(&self, request: &Request<T>) -> Result<Api<AdminWorkloadRule>, Status> {
        self.0.admin(&self.0.caller(request.extensions().get::<Peer>())?)?;
        let Context { client, replica, .. } = &*self.0.context;
        Ok(Api::namespaced(client.clone(), &replica.args.admin_rules_namespace))
    }
}

impl Wire for AdminWorkloadRule {
    type Message = admin::Rule;

    fn check(&self) -> Result<(), Vec<FieldError>> {
        self.compile().map(drop)
    }

    fn message(&self) -> admin::Rule {
        admin_rule_wire::message(self)
    }

    fn etag(message: &admin::Rule) -> &str {
        &message.etag
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
    async fn create(&self, request: Request<admin::CreateRequest>) -> Answer<admin::CreateResponse> {
        verbs::create(&self.api(&request)?, request.get_ref().rule.as_ref()).await
    }

    async fn update(&self, request: Request<admin::UpdateRequest>) -> Answer<admin::UpdateResponse> {
        verbs::update(&self.api(&request)?, request.get_ref().rule.as_ref()).await
    }

    async fn delete(&self, request: Request<admin::DeleteRequest>) -> Answer<admin::DeleteResponse> {
        let admin::DeleteRequest { id, etag } = request.get_ref();
        verbs::delete(&self.api(&request)?, id, etag).await
    }

    async fn get(&self, request: Request<admin::GetRequest>) -> Answer<admin::GetResponse> {
        let rule = verbs::get(&self.api(&request)?, &request.get_ref().id).await?;
        Ok(Response::new(admin::GetResponse { rule: Some(rule) }))
    }

    async fn list(&self, request: Request<admin::ListRequest>) -> Answer<admin::ListResponse> {
        let api = self.api(&request)?;
        let admin::ListRequest { page_size, page_token } = request.into_inner();
        let (rules, next_page_token) = verbs::list(&api, page_size, page_token).await?;
        Ok(Response::new(admin::ListResponse { rules, next_page_token }))
    }
}
