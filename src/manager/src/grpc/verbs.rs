//! The five verbs on rules of either kind: custom resources in one namespace.

use std::fmt::Debug;

use kube::api::{Api, DeleteParams, ListParams};
use kube::{Resource, ResourceExt};
use outrigger_api::rule_wire;
use outrigger_core::field::FieldError;
use outrigger_core::ids::RuleName;
use prost::Message;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tonic::Status;

use super::Answer;
use super::limits::{LIST_BYTES, LIST_PAGE};
use super::status::{invalid, refused};
use crate::writes::{self, Version};

/// Attempts at an update while others write the same rule.
const ATTEMPTS: usize = 10;

/// A rule as the API has it, and the message that carries it.
pub(super) trait Wire:
    Resource<DynamicType = ()>
    + Clone
    + Debug
    + Serialize
    + DeserializeOwned
    + for<'a> TryFrom<&'a Self::Message, Error = Vec<FieldError>>
{
    type Message: Message;

    /// Whether it can be served.
    fn check(&self) -> Result<(), Vec<FieldError>>;

    /// The custom resource as a message.
    fn message(&self) -> Self::Message;

    /// The version that a message says it is of, or is to replace; empty for any.
    fn etag(message: &Self::Message) -> &str;

    /// Takes over what a message has asked for. Whether that changes anything.
    fn take_over(&mut self, wanted: &Self) -> bool;
}

/// The custom resource that a message asks for, if it can be served.
async fn read<R: Wire>(api: &Api<R>, rule: Option<&R::Message>) -> Result<R, Status> {
    let rule = rule.ok_or_else(|| invalid(&[FieldError::new("rule", "is missing")]))?;
    let object = R::try_from(rule).map_err(|errors| invalid(&errors))?;
    let Err(errors) = object.check() else { return Ok(object) };
    // A dry run gets the words that kubectl would get, so that both ways read the same. The rule is refused also where the API
    // server would accept it, for example because its webhook is unavailable.
    match api.create(&writes::dry_run(), &object).await {
        Err(error) if is_about_fields(&error) => Err(refused(&error)),
        _ => Err(invalid(&errors)),
    }
}

fn is_about_fields(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if matches!(status.code, 400 | 413 | 422))
}

pub(super) async fn create<R: Wire, A: Default>(api: &Api<R>, rule: Option<&R::Message>) -> Answer<A> {
    let object: R = read(api, rule).await?;
    api.create(&writes::post(), &object).await.map(|_| A::default().into()).map_err(|e| refused(&e))
}

pub(super) async fn update<R: Wire, A: Default>(api: &Api<R>, rule: Option<&R::Message>) -> Answer<A> {
    let object: R = read(api, rule).await?;
    let name = object.name_any();
    let etag = rule.map(R::etag).unwrap_or_default();
    for _ in 0..ATTEMPTS {
        let mut found = api.get(&name).await.map_err(|e| refused(&e))?;
        let version = rule_wire::etag(found.meta());
        if !found.take_over(&object) {
            return Ok(A::default().into());
        }
        expect(&name, etag, &version)?;
        match api.replace(&name, &writes::post(), &found).await {
            Ok(_) => return Ok(A::default().into()),
            // Others have written the rule since, for example its labels. Only the spec is replaced here.
            Err(kube::Error::Api(status)) if status.is_conflict() => {}
            Err(error) => return Err(refused(&error)),
        }
    }
    Err(contended(&name))
}

/// Deletes a rule: this version of it, if `etag` isn't empty.
pub(super) async fn delete<R: Wire, A: Default>(api: &Api<R>, id: &str, etag: &str) -> Answer<A> {
    name(id)?;
    for _ in 0..ATTEMPTS {
        let mut params = DeleteParams::default();
        if !etag.is_empty() {
            let found = writes::found(api.get(id).await).map_err(|e| refused(&e))?;
            let Some(found) = found else { return Ok(A::default().into()) };
            expect(id, etag, &rule_wire::etag(found.meta()))?;
            params = Version::of(&found).deletion();
        }
        match writes::found(api.delete(id, &params).await) {
            Ok(_) => return Ok(A::default().into()),
            // Others have written the rule since.
            Err(kube::Error::Api(status)) if status.is_conflict() => {}
            Err(error) => return Err(refused(&error)),
        }
    }
    Err(contended(id))
}

fn contended(name: &str) -> Status {
    Status::aborted(format!("rule {name} is written by others all the time; try again"))
}

/// Refuses a call that is about another version of a rule. So a call that is executed late, for example one of an agent that has been
/// killed since, doesn't undo what was written after it was sent.
fn expect(name: &str, etag: &str, found: &str) -> Result<(), Status> {
    if etag.is_empty() || etag == found {
        return Ok(());
    }
    Err(Status::aborted(format!(
        "etag: rule {name} has been written since and has the etag {found}; get the rule again"
    )))
}

pub(super) async fn get<R: Wire>(api: &Api<R>, id: &str) -> Result<R::Message, Status> {
    name(id)?;
    api.get(id).await.map(|rule| rule.message()).map_err(|e| refused(&e))
}

/// All rules, or a page of at most [`LIST_PAGE`] of them, and the token of the next page.
pub(super) async fn list<R: Wire>(
    api: &Api<R>,
    page_size: i32,
    page_token: String,
) -> Result<(Vec<R::Message>, String), Status> {
    let whole = page_size == 0 && page_token.is_empty();
    let size = match u32::try_from(page_size) {
        Ok(0) => LIST_PAGE,
        Ok(size) => size.min(LIST_PAGE),
        Err(_) => {
            return Err(invalid(&[FieldError::new(
                "page_size",
                format_args!("is {page_size}; use 0 or more"),
            )]));
        }
    };
    let mut params = ListParams::default().limit(size);
    params.continue_token = Some(page_token).filter(|token| !token.is_empty());
    let mut rules = Vec::new();
    let mut bytes = 0;
    loop {
        let page = api.list(&params).await.map_err(|e| refused(&e))?;
        for rule in &page.items {
            let message = rule.message();
            bytes += message.encoded_len();
            if bytes > LIST_BYTES {
                let message = format!(
                    "the first {} rules have {bytes} bytes, at most {LIST_BYTES} are allowed in one answer; ask for pages with \
                     page_size",
                    rules.len() + 1
                );
                return Err(Status::resource_exhausted(message));
            }
            rules.push(message);
        }
        let next = page.metadata.continue_.unwrap_or_default();
        if next.is_empty() || !whole {
            return Ok((rules, next));
        }
        params.continue_token = Some(next);
    }
}

/// A rule's id is a name of an object, and goes into a URL.
fn name(id: &str) -> Result<(), Status> {
    RuleName::new(id).map(drop).map_err(|e| invalid(&[FieldError::new("id", e)]))
}
