//! The namespace and the name of a companion.

use outrigger_core::companion::{self, Home};
use outrigger_core::ids::TenantId;
use outrigger_core::tenant::hosts::HostNames;

use crate::state::{CompanionId, Namespace, TenantStates};

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CompanionLocation {
    pub(crate) tenant: TenantId,
    /// Its namespace: the tenant's, or that of all companions of admin rules.
    pub(crate) namespace: Namespace,
    pub(crate) name: String,
    /// See [`TenantStates::resources`].
    pub(crate) owned: bool,
}

impl CompanionLocation {
    /// `host_names`: of the tenant.
    pub(crate) fn home<'a>(&'a self, host_names: &'a HostNames) -> Home<'a> {
        Home { tenant: &self.tenant, namespace: &self.namespace, owned: self.owned, host_names }
    }
}

impl TenantStates {
    /// The namespace of the objects that are made for a rule in `namespace`, or for an admin rule; and whether the rule is in the same
    /// namespace, and so owns them.
    pub(crate) fn resources(&self, admin: bool, namespace: &Namespace) -> (Namespace, bool) {
        if admin { (self.admin().resources.clone(), self.admin().owned()) } else { (namespace.clone(), true) }
    }

    /// The location of a companion; `None` in a namespace without a tenant.
    pub(crate) fn location(&self, id: &CompanionId) -> Option<CompanionLocation> {
        let tenant = self.tenant_of(&id.namespace)?;
        let (namespace, owned) = self.resources(id.key.rule.is_admin(), &id.namespace);
        Some(CompanionLocation { name: companion::name(&id.key, &tenant), tenant, namespace, owned })
    }
}
