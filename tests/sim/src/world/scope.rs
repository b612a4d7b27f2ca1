//! What a history has beside what all have. Seeds before [`Scope::FIRST`] have nothing of it, so their histories stay as they are; of the
//! others each leaves some of it out.

use jiff::Timestamp;
use outrigger_runtime::environment::Environment;

use crate::older::Side;

/// What a history has besides.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Scope {
    /// Rules have several terms, values and operators, read annotations and Nodes, inject facts, and have terms of their own for DPUs.
    pub selectors: bool,
    /// Administrators write rules in a tenant's namespace of the infrastructure cluster.
    pub foreign: bool,
    /// Pages of lists have one to four objects.
    pub pages: bool,
    /// Clusters are restored with later revisions while processes live.
    pub restores: bool,
    /// Companions start slowly or never, and templates are refused.
    pub starts: bool,
    /// Companions and workloads fail, users delete companions, and administrators taint Nodes.
    pub failures: bool,
    /// Workloads have owners, whose rollouts are slow.
    pub owners: bool,
    /// Rules have orderings: Pods get gates and claims, and hosts ask before they start Pods.
    pub orderings: bool,
    /// Rules change in their image or their devices only, and many workloads have the same companions.
    pub changes: bool,
    /// Workloads have PodDisruptionBudgets.
    pub budgets: bool,
    /// Nodes of DPUs are drained and restarted, and companions take a while to end.
    pub drains: bool,
    /// Kubelets take their time before they ask whether a Pod may start.
    pub slow_kubelets: bool,
    /// Managers are killed immediately after they have deleted a companion.
    pub crashes: bool,
    /// Hosts have two DPUs, of which one is primary, both or none are, and rules ask for the primary one.
    pub primaries: bool,
    /// Nodes of tenants' clusters have other names than their hosts, by entries of the Tenants that change.
    pub names: bool,
    /// Templates ask for cpu and memory, and rules change in these only.
    pub resizes: bool,
    /// API servers don't serve the subresource `resize`.
    pub without_resize: bool,
    /// Rules have a companion on each DPU of a host. Hosts have two, which are cordoned and put into other hosts.
    pub all_dpus: bool,
    /// Rules have other images changed in place, and change in these only.
    pub updates: bool,
    /// Queues hold Pods of tenants back with scheduling gates, and let them go later.
    pub queues: bool,
    /// The side that is of the release before until it is upgraded. Then nothing happens that the protocol of that release can't say.
    pub older: Option<Side>,
    /// Watches of every kind that a process has stand still, some for longer than a watch may be silent. Events are fewer meanwhile.
    pub freezes: bool,
    /// Nodes of DPUs are lost for a while: their kubelets can't be reached, or can't run containers.
    pub losses: bool,
    /// DPUs and hosts reboot: the containers of their Pods start again.
    pub reboots: bool,
    /// Drains cordon a Node, evict its Pods as far as PodDisruptionBudgets permit that, and uncordon it. Hosts are drained too.
    pub evictions: bool,
    /// Rules compare numbers: labels of workloads, and those of DPUs.
    pub numbers: bool,
    /// Of the platform's rules one has the ordering `BeforeReady`, and the other one `BeforeStart`.
    pub platform_orderings: bool,
}

impl Scope {
    /// The first seed whose history has more.
    pub const FIRST: u64 = 2000;

    /// The scope of the history of a seed. It draws no number of the history's own.
    pub fn of(seed: u64) -> Self {
        const OTHER: u64 = 0x5c0_7e0f;
        if seed < Self::FIRST {
            return Self::default();
        }
        let random = Environment::simulated(seed ^ OTHER, Timestamp::UNIX_EPOCH).random;
        let has = |of_six: u64| random.seed() % 6 < of_six;
        let scope = Self {
            selectors: has(4),
            foreign: has(3),
            pages: has(2),
            restores: has(3),
            starts: has(4),
            failures: has(4),
            owners: has(4),
            orderings: has(4),
            changes: has(4),
            budgets: has(3),
            drains: has(4),
            slow_kubelets: has(3),
            crashes: has(3),
            primaries: has(2),
            names: has(2),
            resizes: has(3),
            without_resize: has(1),
            all_dpus: has(2),
            updates: has(2),
            queues: has(2),
            older: has(1).then(|| if has(3) { Side::Agents } else { Side::Managers }),
            freezes: has(2),
            losses: has(2),
            reboots: has(2),
            evictions: has(2),
            numbers: has(1),
            platform_orderings: has(2),
        };
        if scope.older.is_some() { scope.without_additions() } else { scope }
    }

    /// What is left of it without what was added to the protocol, or to the values of its fields, after the release before: which annotations
    /// an agent sends, groups of workloads, orderings, further policies, changes in place, and workloads with scheduling gates. Rules of
    /// administrators in a tenant's namespace are left out because an agent's deletion names no version there: a late one may be of theirs.
    fn without_additions(self) -> Self {
        Self {
            selectors: false,
            foreign: false,
            owners: false,
            orderings: false,
            budgets: false,
            primaries: false,
            resizes: false,
            all_dpus: false,
            updates: false,
            queues: false,
            ..self
        }
    }

    /// Whether something happens to Nodes by events of their own.
    pub fn has_node_events(&self) -> bool {
        self.losses || self.reboots || self.evictions
    }

    /// Whether it has anything.
    pub fn is_wide(&self) -> bool {
        *self != Self::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_six_histories_one_has_older_peers_and_nothing_that_they_cannot_say() {
        let scopes: Vec<Scope> = (Scope::FIRST..Scope::FIRST + 600).map(Scope::of).collect();
        let of = |side| scopes.iter().filter(move |scope| scope.older == side).count();
        let (agents, managers) = (of(Some(Side::Agents)), of(Some(Side::Managers)));
        assert!((20..=80).contains(&agents) && (20..=80).contains(&managers), "{agents}, {managers}");
        for scope in scopes.iter().filter(|scope| scope.older.is_some()) {
            assert_eq!(scope.without_additions(), *scope);
            assert!(!scope.orderings && !scope.queues && !scope.owners, "{scope:?}");
        }
        // The others go on to have these.
        assert!(scopes.iter().any(|scope| scope.older.is_none() && scope.orderings && scope.queues));
        assert!((0..Scope::FIRST).all(|seed| Scope::of(seed).older.is_none()));
    }
}
