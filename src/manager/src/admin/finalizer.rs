//! The finalizer on admin rules whose companions live in another namespace: no owner reference reaches there, so they have to
//! be gone before the rule is.

use std::time::Duration;

use kube::Client;
use kube::api::{Api, Patch};
use outrigger_api::AdminWorkloadRule;
use outrigger_core::admin::AdminNamespaces;
use outrigger_core::ids::RuleName;
use outrigger_core::keys;
use serde_json::json;
use tracing::info;

use super::{AdminRuleEntry, cleanup};
use crate::writes;

/// How often companions that have been told to go are looked for.
const PAUSE: Duration = Duration::from_secs(1);

/// One step: puts the finalizer on a rule that needs it, or deletes the companions of one that is being deleted and then
/// takes it off. Returns when to look again.
///
/// Companions are deleted here also for tenants that another replica serves, or nobody does.
///
/// # Errors
/// When the API server can't be asked, or refuses.
pub(super) async fn step(
    client: &Client,
    namespaces: &AdminNamespaces,
    name: &RuleName,
    entry: &AdminRuleEntry,
) -> Result<Option<Duration>, kube::Error> {
    let ours = |finalizer: &String| finalizer == keys::ADMIN_RULE_FINALIZER;
    let has = entry.finalizers.iter().any(ours);
    let wanted: Vec<String> = match (entry.deleting, has) {
        (true, true) => {
            let left = cleanup::of_rule(client, &namespaces.resources, name).await?;
            if left > 0 {
                return Ok(Some(PAUSE));
            }
            entry.finalizers.iter().filter(|finalizer| !ours(finalizer)).cloned().collect()
        }
        (false, false) if !namespaces.owned() => {
            entry.finalizers.iter().cloned().chain([keys::ADMIN_RULE_FINALIZER.to_owned()]).collect()
        }
        _ => return Ok(None),
    };
    let rules: Api<AdminWorkloadRule> = Api::namespaced(client.clone(), &namespaces.rules);
    // The list is replaced as a whole: only if nobody has changed it meanwhile.
    let patch = json!({"metadata":
        {"uid": entry.uid, "resourceVersion": entry.resource_version, "finalizers": wanted}});
    match rules.patch(name.as_str(), &writes::patch(), &Patch::Merge(&patch)).await {
        Ok(_) => {
            info!(rule = %name, namespace = %namespaces.rules, finalizers = ?wanted, "finalizers written");
            Ok(None)
        }
        // Gone, or written by somebody else since: the watch shows it.
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(None),
        Err(error) => Err(error),
    }
}
