//! The decision about one request: pure but for the caches, and without waiting. A cache that is behind is an answer of
//! its own, and waiting for it is the caller's.

use outrigger_core::companion;
use outrigger_core::field::FieldError;
use outrigger_core::ids::{RuleName, TenantId};
use outrigger_core::keys;
use outrigger_core::mutate::{self, Facts};
use serde_json::Value;

use crate::caches::{CachedRule, Caches};
use crate::review::{Decision, Request};

/// What an administrator decides.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Users whose word on workloads is taken: the manager's.
    pub managers: Vec<String>,
    /// Node label that names the host of a DPU.
    pub host_label: String,
}

/// A cache doesn't know yet what the request takes for granted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}; try again")]
pub struct Behind(String);

/// Decides about the creation of a Pod. The request's object is changed on the way, but not when a cache is behind: the
/// same request can be asked about again then.
///
/// # Errors
/// [`Behind`] when a cache has to catch up first.
pub fn mutate_pod(caches: &Caches, settings: &Settings, request: &mut Request) -> Result<Decision, Behind> {
    let kind = &request.kind;
    if !kind.group.is_empty() || kind.version != "v1" || kind.kind != "Pod" {
        let sent = [kind.group.as_str(), &kind.version, &kind.kind].join("/");
        return Ok(deny(
            400,
            format!("this path admits v1/Pod, not {sent}: correct the webhook's configuration"),
        ));
    }
    if request.operation != "CREATE" || !request.sub_resource.is_empty() {
        // Placement and facts are decided once, at creation.
        return Ok(Decision::allow());
    }
    // Only Pods in tenants' namespaces are sent here, so one that isn't a tenant's is one that isn't known yet.
    let Some(tenant) = caches.tenant(&request.namespace) else {
        return Err(Behind(format!(
            "namespace {} is not known yet to belong to a tenant",
            request.namespace
        )));
    };
    let rule = match rule_of(caches, settings, request)? {
        Ok(rule) => rule,
        Err(denied) => return Ok(denied),
    };
    Ok(apply(&mut request.object, &tenant, rule.as_ref(), settings))
}

fn apply(object: &mut Value, tenant: &TenantId, rule: Option<&CachedRule>, settings: &Settings) -> Decision {
    if rule.is_none()
        && let Err(error) = mutate::refuse_own_keys(object)
    {
        return deny(403, error.to_string());
    }
    let facts = Facts {
        tenant: Some(tenant),
        rule: rule.and_then(|r| r.rule.as_deref()),
        host_label: &settings.host_label,
    };
    match mutate::patch(object, &facts) {
        Ok((patch, report)) => Decision::Allow { patch, warnings: report.warnings },
        Err(error) => deny(422, error.to_string()),
    }
}

/// The rule whose companion the Pod is. `None` for everybody else's Pods: only the manager's word makes a companion.
fn rule_of(
    caches: &Caches,
    settings: &Settings,
    request: &Request,
) -> Result<Result<Option<CachedRule>, Decision>, Behind> {
    let pod = &request.object;
    if !settings.managers.contains(&request.user_info.username) {
        return Ok(Ok(None));
    }
    let Some((name, uid)) = companion::owner(pod) else { return Ok(Ok(None)) };
    let made_by = match made_by(pod) {
        Ok(generation) => generation,
        Err(error) => return Ok(Err(deny(422, error.to_string()))),
    };
    let cached = caches
        .rule(&request.namespace, name.as_str())
        .filter(|cached| cached.uid == uid && cached.generation >= made_by)
        .ok_or_else(|| behind(&name, made_by))?;
    if cached.rule.is_none() {
        let message = format!("WorkloadRule {name}: is not valid any more; see its Accepted condition");
        return Ok(Err(deny(422, message)));
    }
    Ok(Ok(Some(cached)))
}

fn behind(name: &RuleName, generation: i64) -> Behind {
    Behind(format!("WorkloadRule {name} of generation {generation} is not known yet"))
}

/// The generation of the rule that the manager made the companion from.
fn made_by(pod: &Value) -> Result<i64, FieldError> {
    let text =
        pod.get("metadata").and_then(|m| m.get("annotations")).and_then(|a| a.get(keys::RULE_GENERATION));
    text.and_then(Value::as_str).and_then(|text| text.parse().ok()).ok_or_else(|| {
        FieldError::new(format_args!("metadata.annotations[{}]", keys::RULE_GENERATION), "must be an integer")
    })
}

fn deny(code: u16, message: String) -> Decision {
    Decision::Deny { code, message }
}

#[cfg(test)]
mod tests;
