//! Reports states in the status of the tenant's rules.

use kube::api::Patch;
use kube::{Resource, ResourceExt};
use outrigger_api::WorkloadRule;
use outrigger_core::{keys, validate};
use serde_json::json;
use tracing::{debug, warn};

use super::super::status::{SyncState, compute, report_ordering};
use super::reconcile::has_finalizer;
use super::{Memory, Syncer};
use crate::writes;

impl Syncer {
    /// Writes a rule's status in the tenant's cluster if it differs.
    pub(super) async fn report(&self, memory: &mut Memory, rule: &WorkloadRule, state: &SyncState) {
        let status = compute(rule, state, self.context.environment.clock.wall());
        let status = report_ordering(rule, status, memory.enforces.complains(rule));
        if rule.status.as_ref() == Some(&status) || rule.metadata.deletion_timestamp.is_some() {
            return;
        }
        let uid = rule.uid().unwrap_or_default();
        if !memory.budget.take(&uid, validate::json_bytes(rule), self.context.environment.clock.now()) {
            debug!(rule = %rule.name_any(), "deferred a status write: the rate limit is exceeded");
            return;
        }
        let patch = json!({"metadata": {"uid": rule.uid()}, "status": status});
        match self.api().patch_status(&rule.name_any(), &writes::patch(), &Patch::Merge(&patch)).await {
            Ok(written) => {
                let before = rule.status.clone().unwrap_or_default();
                for (reason, message) in status.news(&before) {
                    self.context
                        .events
                        .publish(true, reason, "SyncRule", &message, &rule.object_ref(&()))
                        .await;
                }
                self.store.apply_response(written);
            }
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {}
            Err(error) => warn!(rule = %rule.name_any(), %error, "failed to write the status of a rule"),
        }
    }

    /// Reports that the infrastructure cluster can't be written, and removes the finalizer of rules that are marked as abandoned.
    pub(super) async fn report_unreachable(&self, memory: &mut Memory, state: &SyncState) {
        for rule in self.store.all() {
            if rule.metadata.deletion_timestamp.is_none() {
                self.report(memory, &rule, state).await;
            } else if rule.annotations().contains_key(keys::ABANDON) && has_finalizer(&rule) {
                warn!(rule = %rule.name_any(), "abandoned a rule that may still exist in the infrastructure cluster");
                self.set_finalizer(&rule, false).await;
            }
        }
    }
}
