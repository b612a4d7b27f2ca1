//! The state of one namespace: its tenant's workloads, its rules, their companions, and the tenant's stream.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use outrigger_core::companion::Observed;
use outrigger_core::fault;
use outrigger_core::ids::{RuleName, TenantId};
use outrigger_core::index::{CompanionKey, HostDpus, TenantIndex};
use outrigger_core::tenant::Limits;
use outrigger_core::tenant::hosts::HostNames;
use parking_lot::{Mutex, MutexGuard};

use super::annotations::Asked;
use super::companions::CompanionCache;
use super::lingering::LingeringAsked;
use super::outcomes::Outcomes;
use super::pauses::{FailurePauses, WritePauses};
use super::refusals::Refusals;
use super::rollout::Rollouts;
use super::rules::RuleEntry;
use super::shared::Forgettable;
use super::status_pace::StatusBytes;
use super::stream::{ObservedClaim, Stream};
use super::{CompanionId, Namespace, RuleId, SharedCompanions};
use crate::usage::Usage;

/// One namespace: its tenant's workloads, its rules, their companions.
#[derive(Debug)]
pub(crate) struct TenantState {
    pub namespace: Namespace,
    admin_rules: Namespace,
    data: Mutex<TenantData>,
}

#[derive(Debug, Default)]
pub(crate) struct TenantData {
    /// The tenant that the namespace belongs to. Nothing is created in a namespace without a tenant.
    pub tenant: Option<TenantId>,
    /// What its Tenant allows; `None` until that is known.
    pub limits: Option<Limits>,
    /// Names that its hosts have as Nodes of its cluster.
    pub host_names: Arc<HostNames>,
    pub index: TenantIndex,
    /// Every rule there is, also those that don't compile; and the admin rules that are about the tenant.
    pub rules: BTreeMap<RuleName, RuleEntry>,
    /// The companions of the tenant's own rules that exist.
    pub companions: CompanionCache,
    /// The companions of admin rules; `None` where another namespace of the tenant has them.
    pub admin_companions: Option<SharedCompanions>,
    /// Companions that can't be made for a reason that only a user can remove.
    pub refusals: Refusals,
    /// How long companions that keep failing wait before they are replaced.
    pub pauses: FailurePauses,
    /// How often facts are written into companions.
    pub facts: WritePauses,
    /// How often companions are created again that somebody else has deleted.
    pub creations: WritePauses,
    pub rollouts: Rollouts,
    pub lingering_asked: LingeringAsked,
    pub status_bytes: StatusBytes,
    pub outcomes: Outcomes,
    pub stream: Stream,
    pub usage: Usage,
    pub asked: Asked,
    /// The tenant is being deleted: nothing more is created for it.
    pub closing: bool,
}

impl TenantState {
    pub(super) fn new(namespace: Namespace, admin_rules: Namespace) -> Self {
        Self { namespace, admin_rules, data: Mutex::default() }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, TenantData> {
        self.data.lock()
    }

    pub(crate) fn ids(&self, keys: impl IntoIterator<Item = CompanionKey>) -> Vec<CompanionId> {
        keys.into_iter().map(|key| self.id(key)).collect()
    }

    pub(crate) fn id(&self, key: CompanionKey) -> CompanionId {
        CompanionId { namespace: self.namespace.clone(), key }
    }

    pub(crate) fn rule_ids(&self) -> Vec<RuleId> {
        self.lock().rules.keys().map(|name| self.rule_id(name)).collect()
    }

    /// A rule, cluster-wide.
    pub(crate) fn rule_id(&self, name: &RuleName) -> RuleId {
        let namespace = if name.is_admin() { &self.admin_rules } else { &self.namespace };
        RuleId { namespace: namespace.clone(), name: name.clone() }
    }
}

impl Forgettable for TenantState {
    fn is_unused(&mut self) -> bool {
        let data = self.data.get_mut();
        let has_companions = data.companions.keys().next().is_some();
        data.tenant.is_none() && data.rules.is_empty() && !has_companions && data.index.workloads() == 0
    }
}

impl TenantData {
    /// The rules in the namespace that stay.
    pub(crate) fn own_rules(&self) -> Vec<RuleName> {
        let own = self.rules.iter().filter(|(name, entry)| !name.is_admin() && !entry.deleting);
        own.map(|(name, _)| name.clone()).collect()
    }

    /// All companions that exist, those of admin rules too.
    pub(crate) fn companion_keys(&self) -> Vec<CompanionKey> {
        let mut keys: Vec<_> = self.companions.keys().collect();
        if let Some(store) = &self.admin_companions {
            keys.extend(store.lock().keys());
        }
        keys
    }

    /// The companions of a rule for a workload that are on single DPUs, or should be.
    pub(crate) fn on_dpus(&self, key: &CompanionKey) -> BTreeSet<CompanionKey> {
        let exist =
            self.read_companions(&key.rule, |companions| companions.on_dpus(key).collect::<BTreeSet<_>>());
        let Some(mut all) = exist else { return BTreeSet::new() };
        all.extend(self.index.companions_of(key).into_iter().filter(|key| key.dpu().is_some()));
        all
    }

    /// What `f` reads of the companions of a rule; `None` where another namespace of the tenant has them, and looks after them.
    pub(crate) fn read_companions<R>(
        &self,
        rule: &RuleName,
        f: impl FnOnce(&CompanionCache) -> R,
    ) -> Option<R> {
        if rule.is_admin() {
            self.admin_companions.as_ref().map(|store| f(&store.lock()))
        } else {
            Some(f(&self.companions))
        }
    }

    /// What `f` reads of a companion; `None` where it doesn't exist, or another namespace of the tenant has it.
    pub(crate) fn read_companion<R>(&self, key: &CompanionKey, f: impl FnOnce(&Observed) -> R) -> Option<R> {
        self.read_companions(&key.rule, |companions| companions.get(key).map(f)).flatten()
    }

    /// The same as [`Self::read_companions`], for changes.
    pub(crate) fn with_companions<R>(
        &mut self,
        rule: &RuleName,
        f: impl FnOnce(&mut CompanionCache) -> R,
    ) -> Option<R> {
        if rule.is_admin() {
            self.admin_companions.as_ref().map(|store| f(&mut store.lock()))
        } else {
            Some(f(&mut self.companions))
        }
    }

    /// Hosts have these names as Nodes of the tenant's cluster from now on. Returns the companions that this may concern: any, because
    /// such changes are rare. What was refused is tried again.
    pub(crate) fn set_host_names(&mut self, names: &Arc<HostNames>) -> Vec<CompanionKey> {
        if self.host_names == *names {
            return Vec::new();
        }
        self.host_names = names.clone();
        self.index.dpus.names = names.clone();
        if fault("companions-of-renamed-hosts-stay") {
            return Vec::new();
        }
        let mut keys = self.companion_keys();
        keys.extend(self.index.matches());
        keys.sort_unstable();
        keys.dedup();
        keys.iter().for_each(|key| self.refusals.remove(key));
        keys
    }

    /// Whether this replica creates companions and writes statuses for this namespace. `leads`: it leads, and so acts for tenants
    /// that no replica serves.
    pub(crate) fn acts(&self, leads: bool) -> bool {
        self.tenant.is_some() && !self.closing && self.stream.acts(leads)
    }

    /// A Tenant's status shows the holder of the claim on its stream. Returns whether this replica has lost it, or it is another
    /// Tenant: the tenant's workloads are forgotten then, because they are stale from now on.
    pub(crate) fn claim_observed(&mut self, shown: ObservedClaim<'_>, me: &str) -> bool {
        let lost = self.stream.observed(shown, me);
        if lost {
            self.forget_workloads();
        }
        lost
    }

    fn forget_workloads(&mut self) {
        let mut index = TenantIndex::default();
        index.limit(self.index.most());
        index.dpus = std::mem::take(&mut self.index.dpus);
        for rule in self.index.rules() {
            index.apply_rule(rule.clone());
        }
        self.index = index;
        self.usage = Usage::default();
        self.refusals.clear();
        self.rollouts = Rollouts::default();
        self.companions.forget_all_missing();
        if let Some(store) = &self.admin_companions {
            store.lock().forget_all_missing();
        }
        self.lingering_asked = LingeringAsked::default();
        self.outcomes.forget_workloads();
    }

    /// The workloads of another tenant say nothing about this one's.
    pub(super) fn change_tenant(&mut self, tenant: Option<TenantId>) {
        self.forget_workloads();
        self.outcomes.change_tenant();
        self.admin_companions = None;
        self.companions.forget_dpus();
        self.tenant = tenant;
        self.limits = None;
        self.host_names = Arc::default();
        self.index.dpus = HostDpus::default();
        self.stream.restart();
    }
}
