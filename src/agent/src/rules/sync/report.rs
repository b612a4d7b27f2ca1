//! What the tenant is told, in the status of its rules.

use std::io;

use kube::api::Patch;
use kube::{Resource, ResourceExt};
use outrigger_api::WorkloadRule;
use outrigger_core::keys;
use serde_json::json;
use tracing::{debug, warn};

use super::super::status::{Found, compute};
use super::{Memory, Syncer, params};

impl Syncer {
    /// Writes a rule's status in the tenant's cluster, if it is another.
    pub(super) async fn tell(&self, memory: &mut Memory, rule: &WorkloadRule, found: &Found) {
        let status = compute(rule, found, self.context.environment.clock.wall());
        if rule.status.as_ref() == Some(&status) || rule.metadata.deletion_timestamp.is_some() {
            return;
        }
        let uid = rule.uid().unwrap_or_default();
        if !memory.budget.take(&uid, size(rule), self.context.environment.clock.now()) {
            debug!(rule = %rule.name_any(), "its status is written later: statuses are written too often");
            return;
        }
        let patch = json!({"metadata": {"uid": rule.uid()}, "status": status});
        match self.api().patch_status(&rule.name_any(), &params(), &Patch::Merge(&patch)).await {
            Ok(written) => {
                let before = rule.status.clone().unwrap_or_default();
                for (reason, message) in status.news(&before) {
                    self.context
                        .events
                        .publish(true, reason, "SyncRule", &message, &rule.object_ref(&()))
                        .await;
                }
                self.store.learn(written);
            }
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {}
            Err(error) => warn!(rule = %rule.name_any(), %error, "its status could not be written"),
        }
    }

    /// Nothing can be written in the infrastructure cluster: rules say so, and those that are given up may go.
    pub(super) async fn out_of_reach(&self, memory: &mut Memory, why: &Found) {
        for rule in self.store.all() {
            if rule.metadata.deletion_timestamp.is_none() {
                self.tell(memory, &rule, why).await;
            } else if rule.annotations().contains_key(keys::ABANDON)
                && rule.finalizers().iter().any(|f| f == keys::RULE_FINALIZER)
            {
                warn!(rule = %rule.name_any(), "abandoned: it may still be in the infrastructure cluster");
                self.finalizer(&rule, false).await;
            }
        }
    }
}

/// Bytes that a rule has in etcd, about.
fn size(rule: &WorkloadRule) -> usize {
    struct Count(usize);
    impl io::Write for Count {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0 = self.0.saturating_add(bytes.len());
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let mut count = Count(0);
    // What can't be written counts as far as it could.
    let _ = serde_json::to_writer(&mut count, rule);
    count.0
}
