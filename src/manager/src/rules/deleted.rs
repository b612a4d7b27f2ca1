//! Whether a companion's rule is deleted, as the API server says.
//!
//! A rule that the cache lacks may only be missing there: the watch of rules may be stale the watch of companions, or
//! may be failing. Nothing is deleted because one kind's cache lacks an object of another kind.

use outrigger_core::map::HashMap;
use std::time::Duration;

use kube::api::Api;
use kube::{Client, ResourceExt};
use outrigger_api::{AdminWorkloadRule, Tenant, WorkloadRule};
use outrigger_core::ids::TenantId;
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::context::Context;
use crate::state::RuleId;
use crate::writes::found;

/// How long a deleted rule is remembered, so that a rule with many companions costs one read and not one for each.
const REMEMBERED: Duration = Duration::from_secs(600);

/// Rules that the API server has said to be deleted, by uid. A uid is never used again, so an entry never becomes wrong.
#[derive(Debug, Default)]
pub(crate) struct DeletedRules {
    confirmed: Mutex<HashMap<String, Instant>>,
}

impl DeletedRules {
    /// Whether the rule with this uid is deleted, or is an admin rule that is no longer about the tenant.
    pub(crate) async fn is_deleted(
        &self,
        context: &Context,
        rule: &RuleId,
        uid: &str,
        tenant: &TenantId,
    ) -> Result<bool, kube::Error> {
        if self.confirmed.lock().contains_key(uid) {
            return Ok(true);
        }
        let gone = if rule.name.is_admin() {
            let rules: Api<AdminWorkloadRule> = Api::namespaced(context.client.clone(), &rule.namespace);
            match found(rules.get(rule.name.as_str()).await)?.filter(|live| is_live(live, uid)) {
                None => true,
                // This may change again, so it is not remembered.
                Some(live) => return is_for_others(&context.client, &live, tenant).await,
            }
        } else {
            // One that is being deleted may wait for its companions. The garbage collector deletes those.
            state(&context.client, rule).await?.is_none_or(|(live, _)| live != uid)
        };
        if gone {
            let (mut confirmed, now) = (self.confirmed.lock(), context.environment.clock.now());
            confirmed.retain(|_, at| now.duration_since(*at) < REMEMBERED);
            confirmed.insert(uid.to_owned(), now);
        }
        Ok(gone)
    }
}

/// The uid and the generation of a rule, as the API server has it.
pub(crate) async fn state(client: &Client, rule: &RuleId) -> Result<Option<(String, i64)>, kube::Error> {
    let (client, name) = (client.clone(), rule.name.as_str());
    let metadata = if rule.name.is_admin() {
        let rules: Api<AdminWorkloadRule> = Api::namespaced(client, &rule.namespace);
        found(rules.get_metadata(name).await)?.map(|rule| rule.metadata)
    } else {
        let rules: Api<WorkloadRule> = Api::namespaced(client, &rule.namespace);
        found(rules.get_metadata(name).await)?.map(|rule| rule.metadata)
    };
    Ok(metadata.map(|of| (of.uid.unwrap_or_default(), of.generation.unwrap_or_default())))
}

/// Whether an admin rule is the one with this uid and stays. The companions of one that is being deleted are deleted first:
/// it may have no other way to reach them than its finalizer.
fn is_live(rule: &AdminWorkloadRule, uid: &str) -> bool {
    rule.uid().as_deref() == Some(uid) && rule.metadata.deletion_timestamp.is_none()
}

/// Whether an admin rule is about other tenants only. One that is not valid may be about anybody.
async fn is_for_others(
    client: &Client,
    rule: &AdminWorkloadRule,
    tenant: &TenantId,
) -> Result<bool, kube::Error> {
    let Ok(rule) = rule.compile() else { return Ok(false) };
    let tenants: Api<Tenant> = Api::all(client.clone());
    let live = found(tenants.get(tenant.as_str()).await)?;
    Ok(live.is_none_or(|live| !rule.tenants.selects(tenant, live.labels())))
}

#[cfg(test)]
mod tests {
    use outrigger_core::ids::RuleName;
    use serde_json::json;

    use super::*;
    use crate::fixtures;
    use outrigger_runtime::fake_api::{FakeApi, not_found};

    const RULES: &str = "/apis/workload.universe.nvidia.com/v1alpha1/namespaces/n/workloadrules/r";
    const ADMIN_RULES: &str = "/apis/workload.universe.nvidia.com/v1alpha1/namespaces/n/adminworkloadrules/r";
    const TENANT: &str = "/apis/outrigger.dev/v1alpha1/tenants/blue";

    async fn asked(api: &FakeApi, name: RuleName, uid: &str) -> Option<bool> {
        let rule = RuleId { namespace: "n".into(), name };
        let blue = TenantId::new("blue").unwrap();
        DeletedRules::default().is_deleted(&fixtures::context(api.client()), &rule, uid, &blue).await.ok()
    }

    #[tokio::test]
    async fn a_rule_is_gone_when_the_api_server_says_so_and_not_before() {
        let api = FakeApi::default();
        let name = || RuleName::new("r").unwrap();
        let rule = json!({"metadata": {"name": "r", "namespace": "n", "uid": "u"}});
        api.answers("GET", RULES, 200, rule);
        assert_eq!(asked(&api, name(), "u").await, Some(false));
        assert_eq!(asked(&api, name(), "earlier").await, Some(true), "another rule of that name");
        api.answers("GET", RULES, 404, not_found());
        assert_eq!(asked(&api, name(), "u").await, Some(true));
        // The definition isn't served yet, say: that says nothing about the rule.
        for (code, reason) in [(404, ""), (503, "ServiceUnavailable"), (403, "Forbidden")] {
            let status = json!({"kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": "no"});
            api.answers("GET", RULES, code, status);
            assert_eq!(asked(&api, name(), "u").await, None, "{code} {reason}");
        }
    }

    #[tokio::test]
    async fn an_admin_rule_is_as_good_as_gone_for_a_tenant_that_it_does_not_select() {
        let api = FakeApi::default();
        let name = || RuleName::admin("r").unwrap();
        let rule = |deleted: Option<&str>| {
            let mut rule = fixtures::admin_rule();
            rule["metadata"]["deletionTimestamp"] = json!(deleted);
            rule["spec"]["tenantSelector"] = json!({"matchLabels": {"tier": "gold"}});
            rule
        };
        let tenant = |tier: &str| json!({"metadata": {"name": "blue", "labels": {"tier": tier}}, "spec": {}});
        api.answers("GET", ADMIN_RULES, 200, rule(None));
        for (tier, gone) in [("gold", false), ("silver", true)] {
            api.answers("GET", TENANT, 200, tenant(tier));
            assert_eq!(asked(&api, name(), "u").await, Some(gone), "{tier}");
        }
        api.answers("GET", TENANT, 503, json!({}));
        assert_eq!(asked(&api, name(), "u").await, None);
        api.answers("GET", ADMIN_RULES, 200, rule(Some("2026-01-01T00:00:00Z")));
        assert_eq!(asked(&api, name(), "u").await, Some(true));
    }

    #[tokio::test]
    async fn a_rule_with_many_companions_is_asked_about_once() {
        let api = FakeApi::default();
        api.answers("GET", RULES, 404, not_found());
        let (gone, rule) =
            (DeletedRules::default(), RuleId { namespace: "n".into(), name: RuleName::new("r").unwrap() });
        let blue = TenantId::new("blue").unwrap();
        for _ in 0..3 {
            assert!(gone.is_deleted(&fixtures::context(api.client()), &rule, "u", &blue).await.unwrap());
        }
        assert_eq!(api.calls("GET").len(), 1);
    }
}
