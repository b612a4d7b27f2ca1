//! Whether what a companion was made for is gone, as the API server says: that it isn't known here is no reason to delete anything.

use k8s_openapi::api::core::v1::Node;
use kube::api::Api;
use outrigger_core::companion::{DeleteReason, Observed};
use outrigger_core::fault;

use super::Companion;
use crate::companions::refusal::WriteFailure;
use crate::dpu::Dpu;
use crate::writes::found;

impl Companion<'_> {
    /// Asks whether what has to be gone where the companion with this uid is deleted for this reason is gone.
    pub(super) async fn confirm_gone(&self, reason: DeleteReason, uid: &str) -> Result<(), WriteFailure> {
        match reason {
            DeleteReason::RuleDeleted | DeleteReason::OtherRule
                if !fault("absence-of-a-rule-is-believed") =>
            {
                self.confirm_rule_deleted(uid).await
            }
            DeleteReason::DpuGone => self.confirm_dpu_gone(uid).await,
            _ => Ok(()),
        }
    }

    /// Asks whether the rule that the companion with this uid was made for is deleted. The rules' cache may be older than the
    /// companions': that it lacks the rule, or has another one of that name, is no reason to delete anything.
    async fn confirm_rule_deleted(&self, uid: &str) -> Result<(), WriteFailure> {
        let Some(Observed { rule_uid, .. }) = self.known(uid) else { return Err(WriteFailure::CacheStale) };
        let (rule, tenant) = (self.state.rule_id(&self.id.key.rule), &self.location.tenant);
        match self.deleted_rules.is_deleted(self.context, &rule, &rule_uid, tenant).await {
            Ok(true) => Ok(()),
            Ok(false) => Err(WriteFailure::Transient(
                "the companion's rule exists and is not in the cache yet".to_owned(),
            )),
            Err(error) => {
                Err(WriteFailure::Transient(format!("the companion's rule can't be read: {error}")))
            }
        }
    }

    /// Asks whether the DPU of the companion with this uid is no longer in the host that the companion serves, or no longer the tenant's. The
    /// cache of Nodes may be older than that of companions.
    async fn confirm_dpu_gone(&self, uid: &str) -> Result<(), WriteFailure> {
        let (Some(Observed { host, .. }), Some(name)) = (self.known(uid), self.id.key.dpu()) else {
            return Err(WriteFailure::CacheStale);
        };
        let nodes: Api<Node> = Api::all(self.context.client.clone());
        let node = found(nodes.get(name).await).map_err(|error| {
            WriteFailure::Transient(format!("the Node of the companion's DPU can't be read: {error}"))
        })?;
        let dpu = node.and_then(|node| Dpu::of(&node, self.context.caches.registry.host_labels()));
        let tenant = self.location.tenant.as_str();
        if dpu.is_some_and(|dpu| dpu.host == host && dpu.for_tenant(tenant).is_settled())
            && !fault("absence-of-a-dpu-is-believed")
        {
            return Err(WriteFailure::Transient(
                "the companion's DPU exists and is not in the cache yet".to_owned(),
            ));
        }
        Ok(())
    }
}
