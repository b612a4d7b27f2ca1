//! The host whose DPU a companion has to be on.

use super::{Action, DeleteReason, Home, Observed};
use crate::index::CompanionKey;
use crate::reason::Cause;
use crate::rule::Rule;
use crate::tenant::hosts::HostNames;
use crate::workload::Workload;

/// The host whose DPU the companion has to be on; `None` where any will do, and where it isn't known in which host the workload's node
/// is.
pub fn host<'a>(rule: &Rule, workload: &'a Workload, names: &'a HostNames) -> Option<&'a str> {
    workload.node_name.as_deref().filter(|_| rule.policy().is_by_host()).and_then(|node| names.host(node))
}

/// The refusal of a companion whose workload's node is in no host: the host of this name is another Node of the tenant's cluster, whose
/// companions the DPU there serves.
pub(super) fn unknown_host(rule: &Rule, workload: &Workload, home: &Home<'_>) -> Option<Action> {
    let names = home.host_names;
    let node = workload.node_name.as_deref().filter(|_| rule.policy().is_by_host())?;
    if names.host(node).is_some() {
        return None;
    }
    let other = names.node(node).unwrap_or_default();
    let message = format!(
        "the workload's node is {node:?}, and by spec.hostNames of the Tenant the host of this name is node {other:?}: have an entry for the \
         workload's node added there, or use dpuSelectionPolicy Any"
    );
    Some(Action::Refuse(Cause::HostNotListed, message))
}

/// Why a companion is deleted whose rule matches its workload and has its companions for it on other DPUs. `host`: the one of these.
pub(super) fn wrong_dpu(key: &CompanionKey, rule: &Rule, host: Option<&str>, o: &Observed) -> DeleteReason {
    if o.host.as_deref() != host {
        return DeleteReason::Moved;
    }
    match key.dpu() {
        Some(_) if rule.policy().is_on_all() => DeleteReason::DpuGone,
        _ => DeleteReason::Unmatched,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::Value;

    use super::*;
    use crate::companion::tests::of_rule;
    use crate::companion::{plan, replace_reason};
    use crate::ids::TenantId;
    use crate::index::Desired;
    use crate::index::tests::key;
    use crate::keys;
    use crate::rule::tests::{compiled, named};
    use crate::rule::{DpuSelectionPolicy, RuleSpec};
    use crate::workload::tests::nginx;

    /// What there is to do for a companion of a workload on this node, whose rule has this policy. `entries`: nodes with their hosts.
    /// `host`: the host of the companion that exists.
    fn planned(
        policy: DpuSelectionPolicy,
        entries: &[(&str, &str)],
        node: &str,
        host: Option<&str>,
    ) -> Action {
        let mut host_names = HostNames::default();
        entries.iter().for_each(|(node, host)| host_names.insert(node, host).unwrap());
        let rule = compiled(RuleSpec { policy, ..named("r") });
        let workload = Arc::new(Workload { node_name: Some(node.to_owned()), ..nginx() });
        let tenant = TenantId::new("blue").unwrap();
        let home = Home { tenant: &tenant, namespace: "n", owned: true, host_names: &host_names };
        let observed = host.map(|host| Observed { host: Some(host.into()), ..of_rule(&rule) });
        let desired = Desired::Wanted { rule: &rule, workload: &workload };
        plan(&key("r", workload.id.as_str()), &desired, observed.as_ref(), &home)
    }

    fn created(action: &Action) -> &Value {
        let Action::Create(pod) = action else { panic!("{action:?}") };
        &pod["metadata"]["annotations"][keys::HOST]
    }

    #[test]
    fn a_companion_is_for_the_host_that_its_workloads_node_is() {
        use DpuSelectionPolicy::{Any, SameNode};
        let entries = [("worker-1", "serial-1"), ("worker-2", "serial-2")];
        for (node, host) in [("worker-1", "serial-1"), ("other", "other")] {
            assert_eq!(created(&planned(SameNode, &entries, node, None)), host);
        }
        // The DPU there is that of worker-1.
        let Action::Refuse(cause, message) = planned(SameNode, &entries, "serial-1", None) else { panic!() };
        assert_eq!(cause, Cause::HostNotListed);
        assert!(
            message.contains("node is \"serial-1\"") && message.contains("is node \"worker-1\""),
            "{message}"
        );
        assert_eq!(*created(&planned(Any, &entries, "serial-1", None)), Value::Null);
    }

    #[test]
    fn a_companion_whose_workloads_node_is_another_host_now_is_replaced() {
        let same = DpuSelectionPolicy::SameNode;
        let of = |entries: &[(&str, &str)], node: &str, host: &str| planned(same, entries, node, Some(host));
        assert_eq!(of(&[("n", "h")], "n", "h"), Action::Nothing);
        for (entries, node) in [(&[("n", "i")][..], "n"), (&[], "n"), (&[("other", "h")], "h")] {
            let action = of(entries, node, "h");
            assert!(
                matches!(action, Action::Delete { reason: DeleteReason::Moved, .. }),
                "{entries:?} {action:?}"
            );
        }
        // One of an earlier template doesn't wait for its turn.
        let rule = compiled(RuleSpec { policy: same, ..named("r") });
        let hash = "earlier".to_owned();
        let (host, content_hash) = (Some("h".to_owned()), Some(hash.clone()));
        let earlier = Observed { host, content_hash, template_hash: hash, ..of_rule(&rule) };
        for host in [None, Some("i")] {
            assert_eq!(replace_reason(&rule, host, &earlier), Some(DeleteReason::Moved));
        }
    }
}
