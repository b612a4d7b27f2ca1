//! Validation of bindings: whoever binds a Pod decides where it runs.

use serde_json::Value;

use super::{Behind, Settings, deny, owner};
use crate::caches::Caches;
use crate::review::{Decision, Request};

/// Only schedulers bind, and only to the tenant's own Nodes: a scheduler may have an old view of whose a Node is.
pub(super) fn validate(caches: &Caches, settings: &Settings, request: &Request) -> Result<Decision, Behind> {
    let user = &request.user_info.username;
    if !settings.binders.contains(user) {
        let message = format!(
            "target: only the scheduler binds Pods in a tenant's namespace, not {user:?}; use node affinity"
        );
        return Ok(deny(403, message));
    }
    let tenant = owner(caches, &request.namespace)?;
    let node = request.object.pointer("/target/name").and_then(Value::as_str).unwrap_or_default();
    let owner = caches.node_owner(node).ok_or_else(|| Behind(format!("Node {node:?} is not known yet")))?;
    if owner.as_deref() == Some(tenant.as_str()) {
        return Ok(Decision::allow());
    }
    let whose = owner.map_or_else(|| "nobody".to_owned(), |owner| format!("tenant {owner:?}"));
    Ok(deny(403, format!("target.name: is {node:?}, which belongs to {whose}, not to tenant {tenant:?}")))
}
