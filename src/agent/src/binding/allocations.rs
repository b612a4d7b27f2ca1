//! The claims of Pods that aren't bound before their companions are Ready, and which of these Pods aren't bound yet.
//!
//! A Pod and its claim arrive on different watches, in any order.

use std::collections::HashSet;

use outrigger_core::gate::Hold;
use outrigger_core::ids::WorkloadId;
use outrigger_core::map::HashMap;
use outrigger_runtime::pod::Pod;

use super::Allocation;
use crate::companions::ClaimName;

/// See the [module](self).
#[derive(Debug, Default)]
pub(crate) struct Allocations {
    claims: HashMap<ClaimName, Allocation>,
    /// Those of them that are deleted, and whose Pods' ends haven't been seen.
    gone: HashSet<ClaimName>,
    /// The claims of Pods that aren't bound, and the other way round.
    unbound: HashMap<WorkloadId, ClaimName>,
    pods: HashMap<ClaimName, WorkloadId>,
}

impl Allocations {
    /// Records a state of a Pod. Returns the allocation of its claim while it isn't bound.
    pub(crate) fn pod(&mut self, id: &WorkloadId, pod: &Pod) -> Option<Allocation> {
        let spec = pod.spec.as_ref();
        let bound = spec.is_some_and(|spec| spec.node_name.as_deref().is_some_and(|node| !node.is_empty()));
        let binds = spec.is_some_and(|spec| spec.held == Some(Hold::Binding));
        let claim = if bound || !binds { None } else { ClaimName::of(pod) };
        let Some(claim) = claim else {
            self.forget(id);
            return None;
        };
        if self.unbound.get(id) != Some(&claim) {
            self.forget(id);
            self.unbound.insert(id.clone(), claim.clone());
            self.pods.insert(claim.clone(), id.clone());
        }
        self.of(id, &claim)
    }

    /// Forgets a Pod.
    pub(crate) fn forget(&mut self, id: &WorkloadId) {
        if let Some(claim) = self.unbound.remove(id)
            && self.pods.get(&claim) == Some(id)
        {
            self.pods.remove(&claim);
            if self.gone.remove(&claim) {
                self.claims.remove(&claim);
            }
        }
    }

    /// Records a state of a claim. Returns its Pod if that isn't bound, with its allocation.
    pub(crate) fn claim(
        &mut self,
        name: ClaimName,
        now: Option<Allocation>,
    ) -> Option<(WorkloadId, Option<Allocation>)> {
        self.gone.remove(&name);
        match now {
            Some(now) => _ = self.claims.insert(name.clone(), now),
            None => _ = self.claims.remove(&name),
        }
        let id = self.pods.get(&name)?.clone();
        let allocation = self.of(&id, &name);
        Some((id, allocation))
    }

    /// A claim is deleted. A Pod that isn't bound keeps its allocation: a claim is deleted with its Pod, whose end arrives on another
    /// watch. Until then its companions would count as those of a workload that has moved.
    pub(crate) fn claim_gone(&mut self, name: ClaimName) {
        if self.pods.get(&name).is_some_and(|id| self.of(id, &name).is_some()) {
            self.gone.insert(name);
        } else {
            self.claims.remove(&name);
        }
    }

    /// A claim is that of the Pod that it was generated for, whatever Pods say.
    fn of(&self, id: &WorkloadId, claim: &ClaimName) -> Option<Allocation> {
        self.claims.get(claim).filter(|allocation| allocation.pod == *id).cloned()
    }
}

#[cfg(test)]
mod tests {
    use outrigger_core::keys;
    use serde_json::json;

    use super::*;
    use crate::tests::{claim, id, object};

    fn pod(uid: &str, node: &str, of: Hold, claim: &str) -> Pod {
        let ours = keys::COMPANIONS_CLAIM;
        object(json!({"metadata": {"name": uid, "namespace": "n", "uid": uid},
            "spec": {"nodeName": node, "resourceClaims": [{"name": ours, "resourceClaimTemplateName": of.template()}]},
            "status": {"resourceClaimStatuses": [{"name": ours, "resourceClaimName": claim}]}}))
    }

    fn allocation(pod: &str, node: &str) -> Allocation {
        let text = str::to_owned;
        let (uid, version) = (text("c"), text("1"));
        Allocation { uid, version, pod: id(pod), node: text(node), device: text("d"), decided: false }
    }

    #[test]
    fn pod_and_claim_meet_in_any_order() {
        let mut all = Allocations::default();
        assert_eq!(all.claim(claim("c"), Some(allocation("a", "h"))), None);
        assert_eq!(all.pod(&id("a"), &pod("a", "", Hold::Binding, "c")), Some(allocation("a", "h")));
        let mut all = Allocations::default();
        assert_eq!(all.pod(&id("a"), &pod("a", "", Hold::Binding, "c")), None);
        let found = all.claim(claim("c"), Some(allocation("a", "h")));
        assert_eq!(found, Some((id("a"), Some(allocation("a", "h")))));
        assert_eq!(all.claim(claim("c"), None), Some((id("a"), None)), "the scheduler chooses again");
    }

    #[test]
    fn a_pod_keeps_the_node_of_a_claim_that_is_deleted_before_it() {
        let mut all = Allocations::default();
        let waits = pod("a", "", Hold::Binding, "c");
        all.pod(&id("a"), &waits);
        all.claim(claim("c"), Some(allocation("a", "h")));
        all.claim_gone(claim("c"));
        assert_eq!(all.pod(&id("a"), &waits), Some(allocation("a", "h")));
        // Another claim of the Pod decides, and so does a new one of that name.
        assert_eq!(all.pod(&id("a"), &pod("a", "", Hold::Binding, "d")), None);
        assert!(all.claims.is_empty() && all.gone.is_empty());
        all.claim(claim("d"), Some(allocation("a", "h")));
        all.claim_gone(claim("d"));
        assert_eq!(all.claim(claim("d"), None), Some((id("a"), None)));
        all.claim(claim("d"), Some(allocation("a", "h")));
        all.claim_gone(claim("d"));
        all.forget(&id("a"));
        all.claim_gone(claim("d"));
        assert!(all.claims.is_empty() && all.gone.is_empty() && all.pods.is_empty());
    }

    #[test]
    fn a_pod_that_is_bound_or_doesn_t_wait_for_that_has_no_allocation() {
        let mut all = Allocations::default();
        all.claim(claim("c"), Some(allocation("a", "h")));
        assert!(all.pod(&id("a"), &pod("a", "", Hold::Binding, "c")).is_some());
        assert_eq!(all.pod(&id("a"), &pod("a", "h", Hold::Binding, "c")), None);
        assert_eq!(all.pod(&id("a"), &pod("a", "", Hold::Start, "c")), None);
        assert_eq!(all.claim(claim("c"), None), None);
        assert!(all.pods.is_empty() && all.unbound.is_empty() && all.claims.is_empty());
    }

    #[test]
    fn a_claim_that_was_generated_for_another_pod_counts_for_nothing() {
        let mut all = Allocations::default();
        all.claim(claim("c"), Some(allocation("other", "h")));
        assert_eq!(all.pod(&id("a"), &pod("a", "", Hold::Binding, "c")), None);
        all.forget(&id("a"));
        assert!(all.pods.is_empty() && all.unbound.is_empty());
    }
}
