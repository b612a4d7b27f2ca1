//! The finalizer on admin rules whose companions live in another namespace: no owner reference reaches there, so they have to
//! be deleted before the rule is.

use std::time::Duration;

use kube::ResourceExt;
use kube::api::Api;
use outrigger_api::AdminWorkloadRule;
use outrigger_core::keys;
use tracing::info;

use super::{AdminRuleEntry, cleanup};
use crate::context::Context;
use crate::state::RuleId;
use crate::writes;

/// Pause between two looks for companions that are being deleted.
const PAUSE: Duration = Duration::from_secs(1);

/// One step: adds the finalizer to a rule that needs it, or deletes the companions of a rule that is being deleted and then
/// removes it. Returns when to look again.
///
/// Companions are deleted here also for tenants that another replica serves, or none does.
pub(super) async fn step(
    context: &Context,
    id: &RuleId,
    entry: &AdminRuleEntry,
) -> Result<Option<Duration>, kube::Error> {
    let namespaces = context.states.admin();
    let has = entry.object.finalizers().iter().any(|finalizer| finalizer == keys::ADMIN_RULE_FINALIZER);
    let rules: Api<AdminWorkloadRule> = Api::namespaced(context.client.clone(), &id.namespace);
    let uid = entry.object.uid().unwrap_or_default();
    if entry.deleting() && has && cleanup::of_rule(&rules, &uid, &namespaces.resources, &id.name).await? > 0 {
        return Ok(Some(PAUSE));
    }
    let wanted = !entry.deleting() && (has || !namespaces.owned());
    match writes::finalizer(&rules, &*entry.object, keys::ADMIN_RULE_FINALIZER, wanted).await {
        Ok(None) => {}
        Ok(Some(_)) => {
            info!(rule = %id.name, namespace = %id.namespace, present = wanted, "finalizer written");
        }
        // Deleted, or written by others since: the watch shows it.
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {}
        Err(error) => return Err(error),
    }
    Ok(None)
}
