//! `universe.workload.v1.WorkloadRuleService`: a tenant's rules, as custom resources in its namespace.

use std::sync::Arc;

use kube::api::{Api, ListParams};
use kube::{Client, ResourceExt};
use outrigger_api::{WorkloadRule, rule_wire};
use outrigger_core::field::FieldError;
use outrigger_core::ids::RuleName;
use outrigger_core::keys;
use outrigger_core::tenant::Tenant;
use outrigger_proto::v1;
use outrigger_proto::v1::workload_rule_service_server::WorkloadRuleService;
use prost::Message;
use tonic::{Request, Response, Status};

use super::access::{Access, Admitted};
use super::status::{invalid, refused};
use crate::state::{RuleEntry, Space, Spaces};
use crate::writes;

/// Largest answer of a List without pages, in bytes: each rule may have half a mebibyte.
const MAX_LIST: usize = 64 << 20;
/// Most rules of a page.
const MAX_PAGE: u32 = 500;
/// How often an update is tried while others write the same rule.
const ATTEMPTS: usize = 10;

/// Serves rules.
#[derive(Clone)]
pub struct Rules {
    /// The infrastructure cluster.
    pub client: Client,
    /// Who may speak for whom.
    pub access: Arc<Access>,
    /// Rules as they are known: brief lists are made from this alone.
    pub spaces: Arc<Spaces>,
}

impl Rules {
    fn api<T>(&self, request: &Request<T>) -> Result<Api<WorkloadRule>, Status> {
        let Admitted { tenant, .. } = self.access.tenant(request)?;
        Ok(self.rules_of(&tenant))
    }

    fn rules_of(&self, tenant: &Tenant) -> Api<WorkloadRule> {
        Api::namespaced(self.client.clone(), &tenant.namespace)
    }
}

/// The custom resource that a message asks for, if it can be served.
async fn read(api: &Api<WorkloadRule>, rule: Option<&v1::Rule>) -> Result<WorkloadRule, Status> {
    let rule = rule.ok_or_else(|| invalid(&[FieldError::new("rule", "is missing")]))?;
    let object = rule_wire::object(rule).map_err(|errors| invalid(&errors))?;
    let Err(errors) = object.compile() else { return Ok(object) };
    // The API server says what it would say to kubectl, so that both ways read the same; where it would take the rule
    // (its webhook is away, say), we don't.
    match api.create(&writes::dry_run(), &object).await {
        Err(error @ kube::Error::Api(_)) if is_about_fields(&error) => Err(refused(&error)),
        _ => Err(invalid(&errors)),
    }
}

fn is_about_fields(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if matches!(status.code, 400 | 413 | 422))
}

#[tonic::async_trait]
impl WorkloadRuleService for Rules {
    async fn create(
        &self,
        request: Request<v1::CreateRequest>,
    ) -> Result<Response<v1::CreateResponse>, Status> {
        let api = self.api(&request)?;
        let object = read(&api, request.get_ref().rule.as_ref()).await?;
        api.create(&writes::post(), &object).await.map_err(|e| refused(&e))?;
        Ok(Response::new(v1::CreateResponse {}))
    }

    async fn update(
        &self,
        request: Request<v1::UpdateRequest>,
    ) -> Result<Response<v1::UpdateResponse>, Status> {
        let api = self.api(&request)?;
        let object = read(&api, request.get_ref().rule.as_ref()).await?;
        let name = object.name_any();
        for _ in 0..ATTEMPTS {
            let mut found = api.get(&name).await.map_err(|e| refused(&e))?;
            let origin = rule_wire::origin(&object);
            if found.spec == object.spec && (origin.is_empty() || origin == rule_wire::origin(&found)) {
                return Ok(Response::new(v1::UpdateResponse {}));
            }
            found.spec = object.spec.clone();
            if !origin.is_empty() {
                found.annotations_mut().insert(keys::ORIGIN.to_owned(), origin);
            }
            match api.replace(&name, &writes::post(), &found).await {
                Ok(_) => return Ok(Response::new(v1::UpdateResponse {})),
                // Somebody else has written it since: its labels, say. Only the spec is ours to replace.
                Err(kube::Error::Api(status)) if status.is_conflict() => {}
                Err(error) => return Err(refused(&error)),
            }
        }
        Err(Status::aborted(format!("rule {name} is written by others all the time; try again")))
    }

    async fn delete(
        &self,
        request: Request<v1::DeleteRequest>,
    ) -> Result<Response<v1::DeleteResponse>, Status> {
        let api = self.api(&request)?;
        let id = &request.get_ref().id;
        name(id)?;
        match api.delete(id, &kube::api::DeleteParams::default()).await {
            Err(kube::Error::Api(status)) if status.is_not_found() => {}
            Err(error) => return Err(refused(&error)),
            Ok(_) => {}
        }
        Ok(Response::new(v1::DeleteResponse {}))
    }

    async fn get(&self, request: Request<v1::GetRequest>) -> Result<Response<v1::GetResponse>, Status> {
        let api = self.api(&request)?;
        let id = &request.get_ref().id;
        name(id)?;
        let rule = api.get(id).await.map_err(|e| refused(&e))?;
        Ok(Response::new(v1::GetResponse { rule: Some(rule_wire::message(&rule)) }))
    }

    async fn list(&self, request: Request<v1::ListRequest>) -> Result<Response<v1::ListResponse>, Status> {
        let Admitted { tenant, .. } = self.access.tenant(&request)?;
        if request.get_ref().brief {
            return Ok(Response::new(brief(&self.spaces.space(&tenant.namespace))));
        }
        let api = self.rules_of(&tenant);
        let v1::ListRequest { page_size, page_token, .. } = request.into_inner();
        let whole = page_size == 0 && page_token.is_empty();
        let size = match u32::try_from(page_size) {
            Ok(0) => MAX_PAGE,
            Ok(size) => size.min(MAX_PAGE),
            Err(_) => {
                return Err(invalid(&[FieldError::new(
                    "page_size",
                    format_args!("is {page_size}; use 0 or more"),
                )]));
            }
        };
        let mut params = ListParams::default().limit(size);
        params.continue_token = Some(page_token).filter(|token| !token.is_empty());
        let mut answer = v1::ListResponse::default();
        let mut bytes = 0;
        loop {
            let page = api.list(&params).await.map_err(|e| refused(&e))?;
            for rule in &page.items {
                let message = rule_wire::message(rule);
                bytes += message.encoded_len();
                if bytes > MAX_LIST {
                    let message =
                        format!("the rules have more than {MAX_LIST} bytes; ask for pages with page_size");
                    return Err(Status::resource_exhausted(message));
                }
                answer.rules.push(message);
            }
            let next = page.metadata.continue_.unwrap_or_default();
            if next.is_empty() || !whole {
                answer.next_page_token = next;
                return Ok(Response::new(answer));
            }
            params.continue_token = Some(next);
        }
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
    v1::ListResponse { rules: inner.rules.iter().map(rule).collect(), next_page_token: String::new() }
}

/// A rule's id is a name of an object, and goes into a URL.
fn name(id: &str) -> Result<(), Status> {
    RuleName::new(id).map(drop).map_err(|e| invalid(&[FieldError::new("id", e)]))
}
