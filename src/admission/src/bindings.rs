//! Validation of bindings: a binding decides on which Node a Pod runs.

use outrigger_core::json::text;

use crate::decision::Decision;
use crate::handler::{Admission, CacheStale, Context, Refusal};
use crate::review::Request;

/// Allows bindings by schedulers, and only to the tenant's own Nodes: a scheduler's view of a Node's owner may be old.
pub(crate) fn validate(cx: Context<'_>, request: &Request) -> Result<Admission, Refusal> {
    let user = &request.user_info.username;
    if !cx.settings.binders.contains(user) {
        let message = format!(
            "target: only the scheduler binds Pods in a tenant's namespace, not {user:?}; use node affinity"
        );
        return Ok(Decision::deny(403, message).into());
    }
    let tenant = cx.owner(request)?;
    let node = text(&request.object, "/target/name");
    let stale = || CacheStale(format!("Node {node:?} is not known yet"));
    let owner = cx.caches.node_owner(node).ok_or_else(stale)?;
    if owner.as_deref() == Some(tenant.as_str()) {
        return Ok(Decision::allow().into());
    }
    let owner = owner.map_or_else(|| "nobody".to_owned(), |owner| format!("tenant {owner:?}"));
    let message = format!("target.name: is {node:?}, which belongs to {owner}, not to tenant {tenant:?}");
    Ok(Decision::deny(403, message).into())
}
