//! Names of companions and of what is made for them.

use serde_json::Value;
use sha2::{Digest, Sha256};

use super::hash_canonical;
use crate::ids::{RuleName, TenantId, hex};
use crate::index::CompanionKey;

/// Name of the companion of a rule for a workload, the latter given as its label value, and for a DPU, where the key has one. It is a DNS
/// label, so the Pod's hostname is its whole name.
///
/// The companions of an admin rule share a namespace, so theirs depends on the tenant too: two tenants may have workloads
/// of one id.
pub fn name(key: &CompanionKey, tenant: &TenantId) -> String {
    hashed(key, key.rule.is_admin().then_some(tenant))
}

/// The same of a tenant's own rule, where the tenant doesn't matter.
pub fn own_name(key: &CompanionKey) -> String {
    hashed(key, None)
}

fn hashed(key: &CompanionKey, tenant: Option<&TenantId>) -> String {
    let mut hash = Sha256::new();
    hash.update(key.rule.as_str());
    hash.update([0]);
    hash.update(key.workload.as_bytes());
    if let Some(tenant) = tenant {
        hash.update([0]);
        hash.update(tenant.as_str());
    }
    readable(&key.rule, hash)
}

/// The beginning of a rule's name, and 16 hex digits.
fn readable(rule: &RuleName, hash: Sha256) -> String {
    const READABLE: usize = 46;
    let readable: String =
        rule.as_str().chars().take(READABLE).map(|c| if c == '.' { '-' } else { c }).collect();
    format!("{}-{}", readable.trim_end_matches('-'), hex(&hash.finalize(), 16))
}

/// Name of the ResourceClaimTemplate for one device claim of a rule.
pub(crate) fn device_template_name(rule: &RuleName, uid: &str, claim: &str, spec: &Value) -> String {
    let mut hash = Sha256::new();
    for part in [rule.as_str(), uid, claim] {
        hash.update(part);
        hash.update([0]);
    }
    hash_canonical(spec, &mut hash);
    readable(rule, hash)
}
