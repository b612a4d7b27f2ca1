//! The state of the manager, in memory and synchronous: a [`TenantState`] for each namespace with its tenant's workloads, its rules
//! and their companions. Each event is a method call that returns the keys to reconcile, so all of it is testable without a cluster.
//!
//! Modules here know nothing of controllers, services and watches, which all build upon them.
//!
//! Each state has its own lock, held for microseconds and never across an await: one tenant's load doesn't delay the others.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use outrigger_core::admin::AdminNamespaces;
use outrigger_core::ids::{RuleName, TenantId};
use outrigger_core::index::CompanionKey;
use outrigger_core::map::{HashMap, remove_from};
use outrigger_core::template::Kind;
use parking_lot::{Mutex, RwLock};

use self::companions::CompanionCache;
use self::shared::{Forgettable, Shared};
use crate::queue::{Group, Key};

pub(crate) mod annotations;
pub(crate) mod companions;
mod lingering;
pub(crate) mod listeners;
pub(crate) mod outcomes;
pub(crate) mod pauses;
pub(crate) mod refusals;
pub(crate) mod registry;
pub(crate) mod rollout;
mod rules;
mod shared;
pub(crate) mod status_pace;
pub(crate) mod stream;
mod tenant;
pub(crate) mod validation;

pub(crate) use refusals::{Refusal, Why};
pub(crate) use rules::{RuleEntry, WrittenStatus};
pub(crate) use tenant::{TenantData, TenantState};

/// A namespace of the infrastructure cluster, by name.
pub(crate) type Namespace = Arc<str>;

/// A companion, cluster-wide.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct CompanionId {
    /// The namespace of the tenant whose workload it serves. A tenant's own rule and its companion live there too.
    pub namespace: Namespace,
    pub key: CompanionKey,
}

impl fmt::Display for CompanionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.namespace, self.key.rule, self.key.workload)
    }
}

impl Key for CompanionId {
    fn group(&self) -> Group {
        self.namespace.clone()
    }
}

/// A rule, cluster-wide.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct RuleId {
    /// The rule's namespace: the tenant's, or that of admin rules.
    pub namespace: Namespace,
    pub name: RuleName,
}

impl fmt::Display for RuleId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

impl Key for RuleId {
    fn group(&self) -> Group {
        self.namespace.clone()
    }
}

#[derive(Debug, Default)]
pub(crate) struct TenantStates {
    admin: AdminNamespaces,
    by_namespace: Shared<Namespace, TenantState>,
    by_tenant: RwLock<HashMap<TenantId, BTreeSet<Namespace>>>,
    admin_companions: Shared<TenantId, Mutex<CompanionCache>>,
    /// The tenant of each companion of an admin rule, by the companion's kind and name: all of them are in one namespace.
    admin_owners: RwLock<HashMap<(Kind, Box<str>), TenantId>>,
}

/// The companions of admin rules that one tenant has. They may be seen before its namespace is, and outlive it.
pub(crate) type SharedCompanions = Arc<Mutex<CompanionCache>>;

impl Forgettable for Mutex<CompanionCache> {
    fn is_unused(&mut self) -> bool {
        self.get_mut().keys().next().is_none()
    }
}

impl TenantStates {
    /// None yet. `admin`: where admin rules and their companions live.
    pub(crate) fn new(admin: AdminNamespaces) -> Self {
        Self { admin, ..Self::default() }
    }

    pub(crate) fn admin(&self) -> &AdminNamespaces {
        &self.admin
    }

    pub(crate) fn admin_rule_id(&self, name: &RuleName) -> RuleId {
        RuleId { namespace: self.admin.rules.clone(), name: name.clone() }
    }

    /// The companions of admin rules that a tenant has. Its lock is taken after a state's.
    pub(crate) fn admin_companions_of(&self, tenant: &TenantId) -> SharedCompanions {
        let known = self.admin_companions.get(tenant);
        known.unwrap_or_else(|| self.admin_companions.get_or_make(tenant.clone(), Mutex::default))
    }

    /// A companion of an admin rule belongs to this tenant, or is deleted. Returns the tenant that it belonged to.
    pub(crate) fn set_admin_owner(
        &self,
        (kind, name): (Kind, &str),
        tenant: Option<&TenantId>,
    ) -> Option<TenantId> {
        let (mut owners, key) = (self.admin_owners.write(), (kind, name.into()));
        match tenant {
            Some(tenant) => owners.insert(key, tenant.clone()),
            None => owners.remove(&key),
        }
    }

    /// Those of all tenants, in the order of their ids.
    pub(crate) fn all_admin_companions(&self) -> Vec<(TenantId, SharedCompanions)> {
        self.admin_companions.all()
    }

    /// The state of a namespace, made when it is asked for. One of a namespace that isn't a tenant's, and has neither rules nor companions,
    /// is forgotten when nobody has it.
    pub(crate) fn state(&self, namespace: &str) -> Arc<TenantState> {
        if let Some(state) = self.known(namespace) {
            return state;
        }
        let namespace: Namespace = namespace.into();
        self.by_namespace
            .get_or_make(namespace.clone(), || TenantState::new(namespace, self.admin.rules.clone()))
    }

    /// The state of a namespace, if there is one.
    pub(crate) fn known(&self, namespace: &str) -> Option<Arc<TenantState>> {
        self.by_namespace.get(namespace)
    }

    pub(crate) fn all(&self) -> Vec<Arc<TenantState>> {
        self.by_namespace.all().into_iter().map(|(_, state)| state).collect()
    }

    /// The state of the namespace that a Tenant names as its own, if that carries the tenant's label. Somebody may have labeled others too.
    pub(crate) fn of_tenant(&self, tenant: &TenantId, own: &str) -> Option<Arc<TenantState>> {
        let state = self.known(own)?;
        let is_its = state.lock().tenant.as_ref() == Some(tenant);
        is_its.then_some(state)
    }

    /// The states of all namespaces that carry a tenant's label: one, unless somebody has labeled more.
    pub(crate) fn of(&self, tenant: &TenantId) -> Vec<Arc<TenantState>> {
        let namespaces = self.by_tenant.read().get(tenant).cloned().unwrap_or_default();
        namespaces.iter().map(|namespace| self.state(namespace)).collect()
    }

    pub(crate) fn tenant_of(&self, namespace: &str) -> Option<TenantId> {
        let state = self.known(namespace)?;
        state.lock().tenant.clone()
    }

    /// A namespace belongs to this tenant, or to none. Returns the companions that this concerns.
    pub(crate) fn set_tenant(&self, namespace: &str, tenant: Option<TenantId>) -> Vec<CompanionId> {
        let state = self.state(namespace);
        let mut data = state.lock();
        if data.tenant == tenant {
            return Vec::new();
        }
        {
            let mut by_tenant = self.by_tenant.write();
            if let Some(old) = &data.tenant {
                remove_from(&mut by_tenant, old, |namespaces| namespaces.remove(namespace));
            }
            if let Some(new) = &tenant {
                by_tenant.entry(new.clone()).or_default().insert(state.namespace.clone());
            }
        }
        data.change_tenant(tenant);
        state.ids(data.companion_keys())
    }
}

#[cfg(test)]
mod tests {
    use outrigger_core::companion::Observed;

    use super::*;
    use crate::fixtures;

    #[test]
    fn namespaces_of_former_tenants_are_forgotten_when_nothing_refers_to_them() {
        let (states, blue) = (TenantStates::default(), TenantId::new("blue").unwrap());
        states.set_tenant("of a tenant", Some(blue.clone()));
        states.state("with a rule").lock().apply_rule(&fixtures::object(fixtures::rule()));
        let with_companion = states.state("with a companion");
        with_companion.lock().companions.applied("p", fixtures::key("w"), Observed::default());
        drop(with_companion);
        states.admin_companions_of(&blue).lock().applied("p", fixtures::key("w"), Observed::default());
        let in_use = states.state("in use");
        for i in 0..1000 {
            let (namespace, tenant) = (format!("n{i}"), TenantId::new(&format!("t{i}")).unwrap());
            states.set_tenant(&namespace, Some(tenant.clone()));
            drop(states.admin_companions_of(&tenant));
            states.set_tenant(&namespace, None);
        }
        let all = (states.all().len(), states.all_admin_companions().len());
        assert!(all.0 <= 32 && all.1 <= 32, "{all:?}");
        for namespace in ["of a tenant", "with a rule", "with a companion"] {
            assert!(states.known(namespace).is_some(), "{namespace}");
        }
        assert!(Arc::ptr_eq(&in_use, &states.state("in use")));
        assert_eq!(states.admin_companions_of(&blue).lock().keys().count(), 1);
    }
}
