//! `universe.workload.v1.WorkloadRuleService`: a tenant's rules, as custom resources in its namespace.

use std::sync::Arc;

use kube::ResourceExt;
use kube::api::Api;
use outrigger_api::{WorkloadRule, rule_wire};
use outrigger_core::field::FieldError;
use outrigger_core::ids::RuleName;
use outrigger_core::keys;
use outrigger_core::tenant::Tenant;
use outrigger_proto::v1;
use outrigger_proto::v1::workload_rule_service_server::WorkloadRuleService;
use tonic::{Request, Response, Status};

use super::Answer;
use super::access::{Access, Admitted};
use super::verbs::{self, Wire};
use crate::state::{RuleEntry, TenantState};

#[derive(Clone)]
pub(super) struct Rules(pub Arc<Access>);

impl Rules {
    fn api<T>(&self, request: &Request<T>) -> Result<Api<WorkloadRule>, Status> {
        let tenant = self.tenant(request)?;
        Ok(self.rules_of(&tenant))
    }

    /// The tenant that a call is about. Fails as [`no_namespace`].
    fn tenant<T>(&self, request: &Request<T>) -> Result<Arc<Tenant>, Status> {
        let Admitted { id, tenant, .. } = super::admitted(request)?;
        if self.0.context.states.tenant_of(&tenant.namespace).as_ref() == Some(&id) {
            Ok(tenant)
        } else {
            Err(self.0.no_namespace(&id))
        }
    }

    fn rules_of(&self, tenant: &Tenant) -> Api<WorkloadRule> {
        Api::namespaced(self.0.context.client.clone(), &tenant.namespace)
    }
}

impl Wire for WorkloadRule {
    type Message = v1::Rule;

    fn check(&self) -> Result<(), Vec<FieldError>> {
        self.compile().map(drop)
    }

    fn message(&self) -> v1::Rule {
        rule_wire::message(self)
    }

    fn etag(message: &v1::Rule) -> &str {
        &message.etag
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
    async fn create(&self, request: Request<v1::CreateRequest>) -> Answer<v1::CreateResponse> {
        verbs::create(&self.api(&request)?, request.get_ref().rule.as_ref()).await
    }

    async fn update(&self, request: Request<v1::UpdateRequest>) -> Answer<v1::UpdateResponse> {
        verbs::update(&self.api(&request)?, request.get_ref().rule.as_ref()).await
    }

    async fn delete(&self, request: Request<v1::DeleteRequest>) -> Answer<v1::DeleteResponse> {
        let v1::DeleteRequest { id, etag } = request.get_ref();
        verbs::delete(&self.api(&request)?, id, etag).await
    }

    async fn get(&self, request: Request<v1::GetRequest>) -> Answer<v1::GetResponse> {
        let mut rule = verbs::get(&self.api(&request)?, &request.get_ref().id).await?;
        hide(&mut rule, &super::admitted(&request)?.tenant.namespace);
        Ok(Response::new(v1::GetResponse { rule: Some(rule) }))
    }

    async fn list(&self, request: Request<v1::ListRequest>) -> Answer<v1::ListResponse> {
        let tenant = self.tenant(&request)?;
        if request.get_ref().brief {
            let mut brief = brief(&self.0.context.states.state(&tenant.namespace));
            brief.rules.iter_mut().for_each(|rule| hide(rule, &tenant.namespace));
            return Ok(Response::new(brief));
        }
        let v1::ListRequest { page_size, page_token, .. } = request.into_inner();
        let (mut rules, next_page_token) =
            verbs::list(&self.rules_of(&tenant), page_size, page_token).await?;
        rules.iter_mut().for_each(|rule| hide(rule, &tenant.namespace));
        Ok(Response::new(v1::ListResponse { rules, next_page_token }))
    }
}

/// Rules without what they say, as the watch has shown them.
fn brief(state: &TenantState) -> v1::ListResponse {
    let data = state.lock();
    let rule = |(name, entry): (&RuleName, &RuleEntry)| v1::Rule {
        id: name.to_string(),
        data: None,
        origin: entry.origin.clone(),
        revision: entry.revision.clone(),
        etag: entry.etag.clone(),
        status: Some(rule_wire::status_message(&entry.status, entry.generation)),
    };
    let own = data.rules.iter().filter(|(name, _)| !name.is_admin());
    v1::ListResponse { rules: own.map(rule).collect(), next_page_token: String::new() }
}

/// Removes the name of the tenant's namespace from the words of the API server, which the tenant's own cluster would show to everybody
/// there.
fn hide(rule: &mut v1::Rule, namespace: &str) {
    let (place, quoted) = (format!("{namespace}/"), format!("\"{namespace}\""));
    for condition in rule.status.iter_mut().flat_map(|status| &mut status.conditions) {
        let message = &mut condition.message;
        if message.contains(namespace) {
            *message = message.replace(&place, "").replace(&quoted, "of the tenant");
        }
    }
}

#[cfg(test)]
mod tests {
    use outrigger_core::ids::TenantId;
    use outrigger_runtime::cache::Change;
    use outrigger_runtime::fake_api::FakeApi;
    use outrigger_runtime::ready::Readiness;
    use tonic::Code;

    use super::*;
    use crate::fixtures;
    use crate::identity::Caller;

    #[tokio::test]
    async fn rules_of_a_namespace_that_another_tenant_has_are_not_served() {
        let api = FakeApi::default();
        let context = fixtures::context(api.client());
        let tenant = fixtures::tenant_claimed(1, "me");
        context.caches.registry.tenant(Change::Applied(fixtures::object(tenant)));
        let state = fixtures::served_tenant(&context);
        state.lock().apply_rule(&fixtures::object(fixtures::rule()));
        let rules = Rules(Arc::new(Access::new(&context, &Readiness::default())));
        let id = TenantId::new("blue").unwrap();
        let tenant = context.caches.registry.authorize(&Caller::Local, &id).unwrap();
        let about = |extensions: &mut tonic::Extensions| {
            let (id, tenant) = (id.clone(), tenant.clone());
            extensions.insert(Some(Admitted { caller: Caller::Local, id, tenant }));
        };
        let listed = async || {
            let mut request = Request::new(v1::ListRequest { brief: true, ..Default::default() });
            about(request.extensions_mut());
            rules.list(request).await.map(|answer| answer.into_inner().rules.len()).map_err(|s| s.code())
        };
        let deleted = async || {
            let mut request = Request::new(v1::DeleteRequest { id: "r".into(), ..Default::default() });
            about(request.extensions_mut());
            rules.delete(request).await.err().map(|status| status.code())
        };
        assert_eq!(listed().await, Ok(1), "the control");
        for other in [TenantId::new("red").ok(), None] {
            context.states.set_tenant("tenant-blue", other);
            assert_eq!(listed().await, Err(Code::Unavailable));
            assert_eq!(deleted().await, Some(Code::Unavailable));
        }
        assert!(api.calls("DELETE").is_empty());
        context.states.set_tenant("tenant-blue", Some(id.clone()));
        let _ = deleted().await;
        assert_eq!(api.calls("DELETE").len(), 1, "the control");
    }

    #[test]
    fn the_name_of_the_namespace_stays_in_the_infrastructure_cluster() {
        let hidden = |message: &str| {
            let condition = v1::RuleCondition { message: message.into(), ..Default::default() };
            let status = v1::RuleStatus { conditions: vec![condition], ..Default::default() };
            let mut rule = v1::Rule { status: Some(status), ..Default::default() };
            hide(&mut rule, "tenant-blue");
            rule.status.unwrap().conditions.remove(0).message
        };
        let account =
            hidden("error looking up service account tenant-blue/x: serviceaccount \"x\" not found");
        assert_eq!(account, "error looking up service account x: serviceaccount \"x\" not found");
        assert_eq!(hidden("in the namespace \"tenant-blue\""), "in the namespace of the tenant");
        assert_eq!(hidden("a tenant-blue-c is not ready"), "a tenant-blue-c is not ready");
    }
}
