//! Keeps a Pod in a tenant's namespace on that tenant's DPUs, whoever made the Pod.

use serde_json::Value;

use super::{PodContext, Report};
use crate::field::FieldError;
use crate::keys;
use crate::selector;

/// ANDs the tenant's node label into every term of the required node affinity, and tolerates the tenant's taint.
///
/// The affinity is what holds: the kubelet checks it again, also for a Pod that bypassed the scheduler. The toleration
/// only lets the Pod onto Nodes that others are kept from.
pub fn apply(pod: &mut Value, facts: &PodContext<'_>, _: &mut Report) -> Result<bool, FieldError> {
    let Some(tenant) = facts.tenant else { return Ok(false) };
    let required = selector::require(pod, keys::NODE_TENANT, tenant.as_str())?;
    let tolerated = selector::tolerate(pod, selector::toleration(keys::TENANT, tenant.as_str()))?;
    Ok(required || tolerated)
}
