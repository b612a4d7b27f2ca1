//! Offline decisions: which webhooks the API server would call, and the result.

use std::collections::BTreeMap;

use json_patch::Patch;
use serde_json::Value;

use super::{Requirement, WEBHOOKS, Webhook};
use crate::decision::{Admission, CacheStale, Context, Decision};
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
    let (mut patch, mut warnings, mut audit, mut reserve) = (Patch(Vec::new()), Vec::new(), Vec::new(), None);
    let mutating = WEBHOOKS.iter().filter(|webhook| webhook.endpoint.mutates);
    if let Some(webhook) = mutating.clone().find(|webhook| webhook.matches(cx, request, labels)) {
        let before = request.object.clone();
        let admission = webhook.endpoint.decide(cx, request)?;
        let Decision::Allow { patch: change, warnings: more, audit: told } = admission.decision else {
            return Ok(admission);
        };
        // The object that is validated is the API server's: the original with the patch applied.
        request.object = before;
        request.sizes = None;
        if let Err(error) = json_patch::patch(&mut request.object, &change) {
            return Ok(Decision::deny(500, format!("the patch can't be applied: {error}")).into());
        }
        (patch, audit) = (change, told);
        warnings.extend(more);
    }
    for webhook in WEBHOOKS.iter().filter(|webhook| !webhook.endpoint.mutates) {
        if !webhook.matches(cx, request, labels) {
            continue;
        }
        let admission = webhook.endpoint.decide(cx, request)?;
        let Decision::Allow { warnings: more, .. } = admission.decision else { return Ok(admission) };
        warnings.extend(more);
        reserve = reserve.or(admission.reserve);
    }
    Ok(Admission { reserve, ..Decision::Allow { patch, warnings, audit }.into() })
}

impl Webhook {
    /// Whether the API server calls this webhook for a request.
    pub(super) fn matches(
        &self,
        cx: Context<'_>,
        request: &Request,
        labels: Option<&BTreeMap<&str, &str>>,
    ) -> bool {
        let kind = &request.kind;
        let is_ruled = self.rules.iter().any(|rule| {
            let is_resource = |(resource, of): &(&str, &str)| {
                let sub_resource = resource.split_once('/').map_or("", |(_, sub)| sub);
                *of == kind.kind && sub_resource == request.sub_resource
            };
            rule.operations.contains(&&*request.operation) && rule.resources.iter().any(is_resource)
        });
        let has_label = |object: &Value, (key, value): (&str, &str)| {
            let labels = object.pointer("/metadata/labels");
            labels.and_then(|labels| labels.get(key)).is_some_and(|found| found == value)
        };
        self.api == (&*kind.group, &*kind.version)
            && is_ruled
            && self.namespaces.iter().all(|requirement| requirement.holds(cx, request, labels))
            && self.object.is_none_or(|label| {
                has_label(&request.object, label) || has_label(&request.old_object, label)
            })
            && self.condition.as_ref().is_none_or(|condition| (condition.holds)(request))
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
