//! Offline decisions: which webhooks the API server would call, and the result.

use std::collections::BTreeMap;
use std::fmt;

use json_patch::Patch;
use outrigger_core::json::label;
use serde::Serialize;
use serde_json::Value;

use super::{Requirement, WEBHOOKS, Webhook};
use crate::decision::Decision;
use crate::handler::{Admission, CacheStale, Context};
use crate::review::{Kind, Request};

/// The kind of this name that some webhook is called for.
pub fn kind_named(name: &str) -> Option<Kind> {
    let mut kinds = WEBHOOKS.iter().flat_map(Webhook::kinds);
    let (group, version, kind) = kinds.find(|(_, _, kind)| *kind == name)?;
    let text = |text: &str| text.to_owned();
    Some(Kind { group: text(group), version: text(version), kind: text(kind) })
}

/// Decides about a request as the API server does with the shipped configurations: the object is mutated, then the result is
/// validated by every webhook that matches. A request that no webhook matches is allowed.
///
/// `labels`: those of the request's namespace; `None` where they are unknown, and then every selector matches.
///
/// # Errors
/// [`CacheStale`] where a cache doesn't show yet what the request depends on. The request is unusable then.
pub fn decide(
    cx: Context<'_>,
    request: &mut Request,
    labels: Option<&BTreeMap<&str, &str>>,
) -> Result<Admission, CacheStale> {
    decide_observed(cx, request, labels, &mut |_, _| ())
}

/// As [`decide`]; calls `observer` with each answer of a webhook and the webhook's name. The last answer decides.
///
/// # Errors
/// Those of [`decide`].
pub fn decide_observed(
    cx: Context<'_>,
    request: &mut Request,
    labels: Option<&BTreeMap<&str, &str>>,
    observer: &mut dyn FnMut(&str, &Decision),
) -> Result<Admission, CacheStale> {
    let (mut patch, mut warnings, mut audit, mut reserve) = (Patch(Vec::new()), Vec::new(), Vec::new(), None);
    let mutating = WEBHOOKS.iter().filter(|webhook| webhook.endpoint.mutates);
    if let Some(webhook) = mutating.clone().find(|webhook| webhook.matches(cx, request, labels)) {
        let before = request.object.clone();
        let admission = webhook.endpoint.decide(cx, request)?;
        observer(&webhook.full_name(), &admission.decision);
        let Decision::Allow { patch: change, warnings: more, audit: origins } = admission.decision else {
            return Ok(admission);
        };
        // The object that is validated is the API server's: the original with the patch applied.
        request.object = before;
        request.sizes = None;
        if let Err(error) = json_patch::patch(&mut request.object, &change) {
            return Ok(Decision::deny(500, format!("the patch can't be applied: {error}")).into());
        }
        (patch, audit) = (change, origins);
        warnings.extend(more);
    }
    for webhook in WEBHOOKS.iter().filter(|webhook| !webhook.endpoint.mutates) {
        if !webhook.matches(cx, request, labels) {
            continue;
        }
        let admission = webhook.endpoint.decide(cx, request)?;
        observer(&webhook.full_name(), &admission.decision);
        let Decision::Allow { warnings: more, audit: origins, .. } = admission.decision else {
            return Ok(admission);
        };
        warnings.extend(more);
        audit.extend(origins);
        reserve = reserve.or(admission.reserve);
    }
    Ok(Admission { reserve, ..Decision::Allow { patch, warnings, audit }.into() })
}

/// A webhook that the API server calls for requests of one kind, or why not for this one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Call {
    /// Its name in the configuration.
    pub webhook: String,
    /// It changes the object; otherwise it validates the result.
    pub mutates: bool,
    /// Why it isn't called; `None` if it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why_not: Option<String>,
}

/// The webhooks for the kind and operation of a request, in the order in which they would be called. `labels` as for [`decide`].
pub fn calls(cx: Context<'_>, request: &Request, labels: Option<&BTreeMap<&str, &str>>) -> Vec<Call> {
    let called = WEBHOOKS.iter().filter(|webhook| webhook.is_for(request)).map(|webhook| Call {
        webhook: webhook.full_name(),
        mutates: webhook.endpoint.mutates,
        why_not: webhook.why_not(cx, request, labels),
    });
    let mut calls: Vec<Call> = called.collect();
    calls.sort_by_key(|call| !call.mutates);
    calls
}

impl Webhook {
    /// Whether the API server calls this webhook for a request.
    pub(super) fn matches(
        &self,
        cx: Context<'_>,
        request: &Request,
        labels: Option<&BTreeMap<&str, &str>>,
    ) -> bool {
        self.is_for(request) && self.why_not(cx, request, labels).is_none()
    }

    /// The first selector of a webhook that [is for](Self::is_for) a request and doesn't match, in words.
    fn why_not(
        &self,
        cx: Context<'_>,
        request: &Request,
        labels: Option<&BTreeMap<&str, &str>>,
    ) -> Option<String> {
        if let Some(requirement) = self.namespaces.iter().find(|r| !r.holds(cx, request, labels)) {
            return Some(format!("the namespace {requirement}"));
        }
        if let Some((key, value)) = self.object.filter(|_| !self.is_for_object(request)) {
            return Some(format!("the object doesn't have the label {key}: {value}"));
        }
        let condition = self.condition.as_ref().filter(|condition| !(condition.holds)(request))?;
        Some(format!("its match condition {} isn't met", condition.name))
    }

    /// Whether it is for the request's kind and operation.
    fn is_for(&self, request: &Request) -> bool {
        let kind = &request.kind;
        let is_ruled = self.rules.iter().any(|rule| {
            let is_resource = |(resource, of): &(&str, &str)| {
                let sub_resource = resource.split_once('/').map_or("", |(_, sub)| sub);
                *of == kind.kind && sub_resource == request.sub_resource
            };
            rule.operations.contains(&&*request.operation) && rule.resources.iter().any(is_resource)
        });
        self.api == (&*kind.group, &*kind.version) && is_ruled
    }

    fn is_for_object(&self, request: &Request) -> bool {
        let has_label = |object: &Value, (key, value): (&str, &str)| label(object, key) == Some(value);
        self.object
            .is_none_or(|label| has_label(&request.object, label) || has_label(&request.old_object, label))
    }
}

/// Why it doesn't hold for a namespace, after "the namespace".
impl fmt::Display for Requirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exists(key) => write!(f, "doesn't have the label {key}"),
            Self::DoesNotExist(key) => write!(f, "has the label {key}"),
            Self::Is(key, value) => write!(f, "doesn't have the label {key}: {value}"),
            Self::IsNot(key, value) => write!(f, "has the label {key}: {value}"),
            Self::NameNotIn(_) => f.write_str("is the cluster's or Outrigger's own"),
            Self::AdminResources => f.write_str("isn't that of the companions of admin rules"),
        }
    }
}

impl Requirement {
    fn holds(self, cx: Context<'_>, request: &Request, labels: Option<&BTreeMap<&str, &str>>) -> bool {
        let label = |key: &str, holds: &dyn Fn(Option<&str>) -> bool| {
            labels.is_none_or(|labels| holds(labels.get(key).copied()))
        };
        match self {
            Self::Exists(key) => label(key, &|found| found.is_some()),
            Self::DoesNotExist(key) => label(key, &|found| found.is_none()),
            Self::Is(key, value) => label(key, &|found| found == Some(value)),
            Self::IsNot(key, value) => label(key, &|found| found != Some(value)),
            Self::NameNotIn(names) => !names.contains(&request.namespace.as_str()),
            Self::AdminResources => *request.namespace == *cx.settings.admin.resources,
        }
    }
}
