//! Rules of both kinds, as the manager files them for a tenant.

use std::collections::BTreeMap;
use std::sync::Arc;

use clap::ValueEnum;
use outrigger_api::{AdminWorkloadRule, WorkloadRule};
use outrigger_core::ids::{RuleName, Scope, TenantId};
use outrigger_core::rule::Rule;
use outrigger_core::{companion, keys};
use serde::Serialize;

use crate::files::{InputError, Object};

/// A kind of rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
pub(crate) enum RuleKind {
    /// Those of a tenant.
    #[value(name = "WorkloadRule")]
    WorkloadRule,
    /// Those of the platform.
    #[value(name = "AdminWorkloadRule")]
    AdminWorkloadRule,
}

impl RuleKind {
    /// The kind of an object, if it is a rule.
    pub(crate) fn of(object: &Object) -> Option<Self> {
        [Self::WorkloadRule, Self::AdminWorkloadRule].into_iter().find(|kind| kind.is(object))
    }

    pub(crate) fn is(self, object: &Object) -> bool {
        object.is(keys::WORKLOAD_GROUP, companion::kind(self.scope()))
    }

    pub(crate) fn scope(self) -> Scope {
        match self {
            Self::WorkloadRule => Scope::Tenant,
            Self::AdminWorkloadRule => Scope::Admin,
        }
    }

    /// The kind of a rule of this name.
    pub(crate) fn named(name: &RuleName) -> Self {
        if name.is_admin() { Self::AdminWorkloadRule } else { Self::WorkloadRule }
    }

    /// The name of a rule of this kind; `None` where no rule can have it.
    pub(crate) fn name(self, name: &str) -> Option<RuleName> {
        match self {
            Self::WorkloadRule => RuleName::new(name).ok(),
            Self::AdminWorkloadRule => RuleName::admin(name).ok(),
        }
    }
}

/// A rule of either kind.
#[derive(Debug, Clone)]
pub(crate) enum AnyRule {
    Own(WorkloadRule),
    Admin(AdminWorkloadRule),
}

/// What a rule is to a tenant.
pub(crate) enum Filing {
    /// It makes companions.
    Served(Arc<Rule>),
    /// It is not valid: it keeps the companions that it has, and makes none.
    Invalid,
    /// It is about other tenants, or is being deleted: as if there were none.
    Elsewhere,
}

impl AnyRule {
    pub(crate) fn read(object: &Object) -> Result<Self, InputError> {
        Ok(if RuleKind::AdminWorkloadRule.is(object) {
            Self::Admin(object.read()?)
        } else {
            Self::Own(object.read()?)
        })
    }

    /// Whether it is being deleted, and so makes no companions.
    fn is_being_deleted(&self) -> bool {
        let metadata = match self {
            Self::Own(rule) => &rule.metadata,
            Self::Admin(rule) => &rule.metadata,
        };
        metadata.deletion_timestamp.is_some()
    }

    /// Whether both say the same, with the schema's defaults.
    pub(crate) fn same_spec(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Own(a), Self::Own(b)) => a.spec == b.spec,
            (Self::Admin(a), Self::Admin(b)) => a.spec == b.spec,
            _ => false,
        }
    }

    /// What it is to a tenant with these labels; `None` for labels where there is no Tenant. As at the manager, an invalid admin rule
    /// may be about any tenant.
    pub(crate) fn filing(&self, tenant: &TenantId, labels: Option<&BTreeMap<String, String>>) -> Filing {
        match self {
            // It keeps the companions that it has until the garbage collector, or its finalizer, deletes them.
            _ if self.is_being_deleted() => Filing::Elsewhere,
            Self::Own(rule) => rule.compile().map_or(Filing::Invalid, |rule| Filing::Served(Arc::new(rule))),
            Self::Admin(rule) => match (rule.compile(), labels) {
                (_, None) => Filing::Elsewhere,
                (Err(_), _) => Filing::Invalid,
                (Ok(admin), Some(labels)) if admin.tenants.selects(tenant, labels) => {
                    Filing::Served(Arc::new(admin.rule))
                }
                (Ok(_), _) => Filing::Elsewhere,
            },
        }
    }
}
