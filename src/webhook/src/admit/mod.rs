//! The decision about one request: pure but for the caches, and without waiting. A cache that is behind is an answer of
//! its own, and waiting for it is the caller's.

mod admin;
mod bindings;
mod claims;
mod entries;
pub mod guests;
pub mod machines;
mod mutate;
mod offloading;
mod pods;
mod rules;
mod tenants;

pub use entries::{decide, kind_named};
pub use guests::validate_guest;
pub use machines::validate_machine;
pub use mutate::mutate_pod;

use outrigger_core::admin::AdminNamespaces;
use outrigger_core::field::FieldError;
use outrigger_core::ids::TenantId;
use outrigger_core::validate;

use crate::caches::Caches;
use crate::review::{Decision, Request};

/// What an administrator decides.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Users whose word on workloads is taken: the manager's.
    pub managers: Vec<String>,
    /// Users who may bind Pods to Nodes: the schedulers'.
    pub binders: Vec<String>,
    /// Schedulers that a tenant's Pod may ask for by name.
    pub schedulers: Vec<String>,
    /// Node label that names the host of a DPU.
    pub host_label: String,
    /// RuntimeClass whose Pods offloading leaves alone. Empty: none.
    pub exempt_runtime_class: String,
    /// Where admin rules and their companions live.
    pub admin: AdminNamespaces,
    /// Where reservations are, and the ledgers of slots.
    pub core_namespace: String,
}

/// A cache doesn't know yet what the request takes for granted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}; try again")]
pub struct Behind(String);

/// Decides about one request, which it may change on the way, but not when a cache is behind: the same request can be
/// asked about again then.
pub type Admit = fn(&Caches, &Settings, &mut Request) -> Result<Decision, Behind>;

/// Validates what the API server sends of Pods: themselves, their subresources, and their bindings.
///
/// # Errors
/// [`Behind`] when a cache has to catch up first.
pub fn validate_pod(caches: &Caches, settings: &Settings, request: &mut Request) -> Result<Decision, Behind> {
    if let Err(denied) = expect_kind(request, &[("", "v1", "Pod"), ("", "v1", "Binding")]) {
        return Ok(denied);
    }
    if request.kind.kind == "Binding" {
        bindings::validate(caches, settings, request)
    } else {
        pods::validate(caches, settings, request)
    }
}

/// Validates ResourceClaims and their templates in tenants' namespaces.
///
/// # Errors
/// [`Behind`] when a cache has to catch up first.
pub fn validate_claim(
    caches: &Caches,
    settings: &Settings,
    request: &mut Request,
) -> Result<Decision, Behind> {
    const GROUP: &str = "resource.k8s.io";
    if let Err(denied) =
        expect_kind(request, &[(GROUP, "v1", "ResourceClaim"), (GROUP, "v1", "ResourceClaimTemplate")])
    {
        return Ok(denied);
    }
    claims::validate(caches, settings, request)
}

/// Validates Tenants.
///
/// # Errors
/// Never: what the caches don't show is settled by the controller.
pub fn validate_tenant(
    caches: &Caches,
    settings: &Settings,
    request: &mut Request,
) -> Result<Decision, Behind> {
    if let Err(denied) = expect_kind(request, &[("outrigger.dev", "v1alpha1", "Tenant")]) {
        return Ok(denied);
    }
    Ok(tenants::validate(caches, settings, request))
}

/// Validates WorkloadRules.
///
/// # Errors
/// Never: what isn't known yet is judged again when a companion is made.
pub fn validate_rule(
    caches: &Caches,
    settings: &Settings,
    request: &mut Request,
) -> Result<Decision, Behind> {
    if let Err(denied) = expect_kind(request, &[rules::KIND]) {
        return Ok(denied);
    }
    Ok(rules::validate(caches, settings, request))
}

/// Validates NamespaceOffloadings.
///
/// # Errors
/// Never: the object tells everything.
pub fn validate_offloading(_: &Caches, _: &Settings, request: &mut Request) -> Result<Decision, Behind> {
    if let Err(denied) = expect_kind(request, &[offloading::KIND]) {
        return Ok(denied);
    }
    Ok(offloading::validate(request))
}

/// Validates AdminWorkloadRules.
///
/// # Errors
/// Never: all that they are held to is in them.
pub fn validate_admin_rule(
    _: &Caches,
    settings: &Settings,
    request: &mut Request,
) -> Result<Decision, Behind> {
    if let Err(denied) = expect_kind(request, &[admin::KIND]) {
        return Ok(denied);
    }
    Ok(admin::validate(settings, request))
}

/// A request of another kind is one that the webhook's configuration should not have sent.
fn expect_kind(request: &Request, kinds: &[(&str, &str, &str)]) -> Result<(), Decision> {
    let kind = &request.kind;
    if kinds.contains(&(&kind.group, &kind.version, &kind.kind)) {
        return Ok(());
    }
    let name = |group: &str, version: &str, kind: &str| {
        if group.is_empty() { format!("{version}/{kind}") } else { format!("{group}/{version}/{kind}") }
    };
    let wanted: Vec<String> = kinds.iter().map(|(g, v, k)| name(g, v, k)).collect();
    let sent = name(&kind.group, &kind.version, &kind.kind);
    Err(deny(
        400,
        format!("this path admits {}, not {sent}: correct the webhook's configuration", wanted.join(" and ")),
    ))
}

/// Whose namespace it is. Only what is in tenants' namespaces is sent here, so one that isn't a tenant's is one that isn't
/// known yet.
fn owner(caches: &Caches, namespace: &str) -> Result<TenantId, Behind> {
    caches
        .owner(namespace)
        .ok_or_else(|| Behind(format!("namespace {namespace} is not known yet to belong to a tenant")))
}

/// Whether Outrigger's manager asks.
fn is_manager(settings: &Settings, request: &Request) -> bool {
    settings.managers.contains(&request.user_info.username)
}

fn deny(code: u16, message: String) -> Decision {
    Decision::Deny { code, message, causes: Vec::new() }
}

/// Refuses for what is wrong with some fields.
fn deny_fields(code: u16, faults: &[FieldError]) -> Decision {
    let causes = faults.iter().take(validate::MAX_FAULTS).cloned().collect();
    Decision::Deny { code, message: validate::message(faults), causes }
}

/// Allowed where nothing is wrong.
fn verdict(faults: &[FieldError]) -> Decision {
    if faults.is_empty() { Decision::allow() } else { deny_fields(403, faults) }
}

#[cfg(test)]
pub(crate) mod tests;
