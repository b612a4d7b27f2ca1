//! The hosts whose DPUs companions wait for: how many companions no DPU could run, without a look at each of them.
//!
//! Every step of a rule's companions asks, under the tenant's lock, and a tenant may have ten thousand companions without a node.

use outrigger_core::map::{HashMap, HashSet};

/// In place of a host for companions that any DPU may run. No host has this name.
pub(super) const ANY: &str = "";

/// Companions of a rule that have no node, by the host that they have to run on, or [`ANY`].
#[derive(Debug, Default)]
pub(super) struct WaitingHosts {
    hosts: HashMap<Box<str>, Host>,
    /// Hosts of which it isn't known whether they have a DPU, in this epoch.
    unseen: HashSet<Box<str>>,
    /// How many companions wait for the other hosts that have none.
    without: usize,
    epoch: u64,
}

#[derive(Debug)]
struct Host {
    companions: usize,
    /// Whether it has a DPU, unless it is `unseen`.
    has_dpu: bool,
}

impl WaitingHosts {
    /// A companion waits for the DPU of this host.
    pub(super) fn add(&mut self, host: &str) {
        match self.hosts.get_mut(host) {
            Some(known) => {
                known.companions += 1;
                self.without += usize::from(!known.has_dpu && !self.unseen.contains(host));
            }
            None => {
                self.hosts.insert(host.into(), Host { companions: 1, has_dpu: false });
                self.unseen.insert(host.into());
            }
        }
    }

    /// One of them waits no longer.
    pub(super) fn remove(&mut self, host: &str) {
        let Some(known) = self.hosts.get_mut(host) else { return };
        known.companions -= 1;
        self.without -= usize::from(!known.has_dpu && !self.unseen.contains(host));
        if known.companions == 0 {
            self.hosts.remove(host);
            self.unseen.remove(host);
        }
    }

    /// Nothing is known of any host.
    pub(super) fn forget(&mut self) {
        self.unseen = self.hosts.keys().cloned().collect();
        self.without = 0;
    }

    /// The hosts with a DPU that companions wait for, and how many do, as of the last call of [`Self::without_dpu`].
    pub(super) fn with_dpu(&self) -> impl Iterator<Item = (&str, usize)> {
        let with = self.hosts.iter().filter(|(name, host)| host.has_dpu && !self.unseen.contains(*name));
        with.map(|(name, host)| (&**name, host.companions))
    }

    /// How many companions wait for hosts without a DPU. `epoch`: the number of changes of DPUs by now; `has_dpu` is asked about hosts
    /// that are new since the last call, and about all of them in another epoch.
    pub(super) fn without_dpu(&mut self, epoch: u64, has_dpu: impl Fn(&str) -> bool) -> usize {
        if self.epoch != epoch {
            self.epoch = epoch;
            self.forget();
        }
        for host in std::mem::take(&mut self.unseen) {
            if let Some(known) = self.hosts.get_mut(&host) {
                known.has_dpu = *host == *ANY || has_dpu(&host);
                self.without += if known.has_dpu { 0 } else { known.companions };
            }
        }
        self.without
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::collections::BTreeSet;

    use outrigger_core::companion::Observed;
    use outrigger_core::index::CompanionKey;
    use outrigger_core::template::Kind;
    use proptest::prelude::*;

    use super::super::CompanionCache;
    use crate::fixtures;
    use crate::state::rollout::Availability;

    fn key(workload: usize) -> CompanionKey {
        fixtures::key(&workload.to_string())
    }

    /// What a look at each companion says.
    fn naive(cache: &CompanionCache, has_dpu: impl Fn(&str) -> bool) -> Availability {
        let rule = key(0).rule;
        let counts = cache.counts(&rule);
        let existing = cache.of_rule(&rule).filter(|(_, o)| o.ended.is_none()).count();
        let without = cache.of_rule(&rule).filter(|(_, o)| {
            let excused = o.first || o.host.as_deref().is_some_and(|host| !has_dpu(host));
            o.unplaced && o.ended.is_none() && excused
        });
        let available = usize::try_from(counts.ready + counts.idle).unwrap();
        let unready = existing.saturating_sub(available).saturating_sub(without.count());
        Availability { existing, unready, ..Availability::default() }
    }

    /// The same of those that wait for a host on which another one runs.
    fn crowded(cache: &CompanionCache, has_dpu: impl Fn(&str) -> bool) -> usize {
        let rule = key(0).rule;
        let all: Vec<_> = cache.of_rule(&rule).map(|(_, o)| o).filter(|o| o.ended.is_none()).collect();
        let waits = |o: &&&Observed| o.unplaced && !o.first && o.host.as_deref().is_none_or(&has_dpu);
        let runs = |host: &Option<String>| all.iter().any(|o| o.host == *host && o.ready && !o.terminating);
        all.iter().filter(waits).filter(|o| runs(&o.host)).count()
    }

    #[derive(Debug, Clone)]
    enum Event {
        Applied(usize, Box<Observed>),
        Deleted(usize),
        Deleting(usize),
        /// The hosts that have a DPU from now on.
        Dpus(BTreeSet<u8>),
        /// The cache belongs to another tenant.
        Tenant,
    }

    fn event() -> impl Strategy<Value = Event> {
        let observed = (any::<[bool; 5]>(), proptest::option::of(0_u8..4)).prop_map(
            |([ready, unplaced, ended, claim, first], host)| Observed {
                uid: "u".into(),
                kind: if claim { Kind::Claim } else { Kind::Pod },
                ready,
                unplaced,
                first,
                ended: ended.then_some(1),
                host: host.map(|host| host.to_string()),
                ..Observed::default()
            },
        );
        prop_oneof![
            6 => (0_usize..6, observed).prop_map(|(workload, observed)| Event::Applied(workload, Box::new(observed))),
            1 => (0_usize..6).prop_map(Event::Deleted),
            1 => (0_usize..6).prop_map(Event::Deleting),
            2 => proptest::collection::btree_set(0_u8..4, 0..4).prop_map(Event::Dpus),
            1 => Just(Event::Tenant),
        ]
    }

    proptest! {
        #[test]
        fn counts_by_host_say_what_a_look_at_each_companion_says(
            events in proptest::collection::vec((event(), any::<bool>()), 1..40),
        ) {
            let (mut cache, mut dpus, mut epoch) = (CompanionCache::default(), BTreeSet::new(), 0);
            for (event, asked) in events {
                match event {
                    Event::Applied(workload, observed) => {
                        cache.applied(&workload.to_string(), key(workload), *observed);
                    }
                    Event::Deleted(workload) => {
                        cache.deleted(Kind::Pod, &workload.to_string());
                    }
                    Event::Deleting(workload) => cache.deleting(&key(workload), "u"),
                    Event::Dpus(now) => (dpus, epoch) = (now, epoch + 1),
                    Event::Tenant => {
                        dpus.clear();
                        cache.forget_dpus();
                    }
                }
                let has_dpu = |host: &str| dpus.contains(&host.parse::<u8>().unwrap());
                if asked {
                    prop_assert_eq!(cache.availability(&key(0).rule, epoch, has_dpu), naive(&cache, has_dpu));
                    prop_assert_eq!(cache.crowded(&key(0).rule, |_, _| true), crowded(&cache, has_dpu));
                }
            }
        }
    }

    #[test]
    fn a_question_costs_what_has_changed_and_not_what_there_is() {
        const COMPANIONS: usize = 10_000;
        let mut cache = CompanionCache::default();
        let asked = Cell::new(0);
        let has_dpu = |_: &str| {
            asked.set(asked.get() + 1);
            true
        };
        for i in 0..COMPANIONS {
            let host = Some(format!("h{}", i % 100));
            let observed = Observed { unplaced: true, host, ..Observed::default() };
            cache.applied(&i.to_string(), key(i), observed);
            let availability = cache.availability(&key(0).rule, 0, has_dpu);
            assert_eq!(
                availability,
                Availability { existing: i + 1, unready: i + 1, ..Availability::default() }
            );
        }
        assert_eq!(asked.get(), 100, "once for each host");
        cache.availability(&key(0).rule, 1, has_dpu);
        assert_eq!(asked.get(), 200, "DPUs have changed");
    }
}
