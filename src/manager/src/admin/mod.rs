//! Admin rules: the platform's own, for the workloads of all tenants or of some.
//!
//! Each admin rule is added to the state of every tenant that it is about, beside the tenant's own rules, under a name that
//! can't be one of theirs. So everything that holds for a tenant's rules holds for these: the replica that serves the tenant
//! creates the companions, none is deleted for a workload that has not been reported yet, and no tenant's companions wait for
//! another's. Only the companions that exist are known by tenant instead of by namespace
//! ([`crate::state::TenantStates::admin_companions_of`]), because companions of all tenants share one namespace.

mod cleanup;
mod finalizer;
mod status;

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use kube::ResourceExt;
use outrigger_api::admin_workload_rule::{TenantMatches, TenantSelector};
use outrigger_api::{AdminWorkloadRule, AdminWorkloadRuleStatus};
use outrigger_core::fault;
use outrigger_core::field::FieldError;
use outrigger_core::ids::{RuleName, TenantId};
use outrigger_core::index::CompanionKey;
use outrigger_core::rule::Rule;
use outrigger_core::steps;
use parking_lot::Mutex;

use crate::context::Context;
use crate::state::status_pace::Written;
use crate::state::{CompanionId, RuleEntry, RuleId, TenantData, TenantState};

pub(crate) use cleanup::release;
pub(crate) use status::step;

/// All admin rules. The lock is held while rules are added to states, so that of two concurrent changes the later one sees the
/// earlier. It is taken before any state's lock.
#[derive(Debug, Default)]
pub(crate) struct AdminRules(Mutex<BTreeMap<RuleName, AdminRuleEntry>>);

#[derive(Debug, Clone)]
pub(crate) struct AdminRuleEntry {
    pub(crate) object: Arc<AdminWorkloadRule>,
    /// The rule and the tenants that it is about, or its validation errors.
    pub(crate) compiled: Result<(Arc<Rule>, TenantSelector), Vec<FieldError>>,
    /// This replica's last write of the status.
    pub(crate) written: Option<WrittenEntries>,
}

/// A write of a rule's status by this replica, and all entries since then, those of other replicas among them.
pub(crate) type WrittenEntries = Written<BTreeMap<String, TenantMatches>>;

impl AdminRules {
    pub(crate) fn names(&self) -> Vec<RuleName> {
        self.0.lock().keys().cloned().collect()
    }

    pub(crate) fn get(&self, name: &RuleName) -> Option<AdminRuleEntry> {
        self.0.lock().get(name).cloned()
    }

    /// A rule exists and looks like this. Returns the companions that it may change.
    pub(crate) fn apply(&self, context: &Context, object: &AdminWorkloadRule) -> Vec<CompanionId> {
        let Ok(name) = RuleName::admin(&object.name_any()) else { return Vec::new() };
        let mut rules = self.0.lock();
        let before = rules.remove(&name);
        let spec = |entry: &AdminRuleEntry| (entry.object.uid(), entry.generation(), entry.deleting());
        let known = before.as_ref().map(spec);
        let entry = AdminRuleEntry::new(object, before);
        // Its status concerns no tenant, and changes with the companions of all of them.
        let only_status = known == Some(spec(&entry));
        let touched = if only_status { Vec::new() } else { update_states(context, &name, Some(&entry)) };
        rules.insert(name, entry);
        touched
    }

    /// This replica has written the status of this rule.
    pub(crate) fn wrote(&self, name: &RuleName, rule: &AdminWorkloadRule, written: WrittenEntries) {
        if let Some(entry) = self.0.lock().get_mut(name).filter(|entry| entry.object.uid() == rule.uid()) {
            entry.written = Some(written);
        }
    }

    /// A rule is deleted. Returns the companions that it had.
    pub(crate) fn remove(&self, context: &Context, name: &str) -> Vec<CompanionId> {
        let Ok(name) = RuleName::admin(name) else { return Vec::new() };
        let mut rules = self.0.lock();
        rules.remove(&name);
        update_states(context, &name, None)
    }

    /// The tenant of a namespace has changed: other rules may be about it now. Returns the companions and the rules that
    /// this concerns.
    pub(crate) fn update_admin_rules(
        &self,
        context: &Context,
        state: &TenantState,
    ) -> (Vec<CompanionId>, Vec<RuleId>) {
        let rules = self.0.lock();
        // All rules are added under one lock: companions of rules that are still missing would look like those of deleted rules.
        let mut data = state.lock();
        let mut touched = assign_admin_companions(context, state, &mut data);
        let mut names = Vec::new();
        for (name, entry) in rules.iter() {
            let before = data.rules.contains_key(name);
            touched.extend(update_state(context, &mut data, name, Some(entry)));
            if before != data.rules.contains_key(name) {
                names.push(context.states.admin_rule_id(name));
            }
        }
        (state.ids(touched), names)
    }
}

/// Companions of admin rules belong to the state of the namespace that the Tenant names, and to no other namespace that may
/// carry the tenant's label.
fn assign_admin_companions(
    context: &Context,
    state: &TenantState,
    data: &mut TenantData,
) -> Vec<CompanionKey> {
    let tenant = data.tenant.clone().filter(|tenant| is_home(context, tenant, state));
    let store = tenant.map(|tenant| context.states.admin_companions_of(&tenant));
    let new = store.is_some() && data.admin_companions.is_none();
    data.admin_companions = store;
    if new { data.companion_keys() } else { Vec::new() }
}

fn is_home(context: &Context, tenant: &TenantId, state: &TenantState) -> bool {
    context
        .caches
        .registry
        .get(tenant)
        .is_some_and(|entry| *entry.object.target_namespace() == *state.namespace)
}

fn update_states(context: &Context, name: &RuleName, entry: Option<&AdminRuleEntry>) -> Vec<CompanionId> {
    let file = |state: &Arc<TenantState>| {
        steps::step();
        state.ids(update_state(context, &mut state.lock(), name, entry))
    };
    context.states.all().iter().flat_map(file).collect()
}

/// Adds a rule to a state, or removes it. Returns the companions that this concerns: none where nothing changes.
fn update_state(
    context: &Context,
    data: &mut TenantData,
    name: &RuleName,
    entry: Option<&AdminRuleEntry>,
) -> Vec<CompanionKey> {
    match entry.filter(|entry| !entry.deleting() && is_about(context, entry, data)) {
        Some(entry) => {
            let rule = entry.compiled.as_ref().ok().map(|(rule, _)| rule.clone());
            data.set_admin_rule(name, entry.filed(), rule)
        }
        None if data.rules.contains_key(name) => {
            let mut keys = data.remove_rule(name);
            if let Some(store) = &data.admin_companions {
                keys.extend(store.lock().of_rule(name).map(|(key, _)| key));
            }
            keys
        }
        None => Vec::new(),
    }
}

/// Whether a rule is about the workloads of a state's tenant. An invalid rule may be about any tenant: it is in every state,
/// where it keeps the companions that exist and creates none.
fn is_about(context: &Context, entry: &AdminRuleEntry, data: &TenantData) -> bool {
    let Some(tenant) = data.tenant.as_ref().filter(|_| data.admin_companions.is_some()) else {
        return false;
    };
    match &entry.compiled {
        Ok((_, selector)) => {
            let known = context.caches.registry.get(tenant);
            known.is_some_and(|known| {
                selector.selects(tenant, known.object.labels()) || fault("admin-rule-is-for-all-tenants")
            })
        }
        Err(_) => true,
    }
}

impl AdminRuleEntry {
    /// The rule as the API has it. It is compiled again only if its spec has changed.
    fn new(object: &AdminWorkloadRule, before: Option<Self>) -> Self {
        // A rule's status changes far more often than its spec.
        let before = before.filter(|before| before.object.uid() == object.uid());
        let written = before.as_ref().and_then(|before| before.written.clone());
        let same = before.filter(|before| before.object.metadata.generation == object.metadata.generation);
        Self {
            compiled: same.map_or_else(
                || object.compile().map(|admin| (Arc::new(admin.rule), admin.tenants)),
                |before| before.compiled,
            ),
            object: Arc::new(object.clone()),
            written,
        }
    }

    fn generation(&self) -> i64 {
        self.object.metadata.generation.unwrap_or_default()
    }

    fn deleting(&self) -> bool {
        self.object.metadata.deletion_timestamp.is_some()
    }

    /// It has an entry for each tenant, so it is read where it is.
    fn status(&self) -> &AdminWorkloadRuleStatus {
        static NONE: LazyLock<AdminWorkloadRuleStatus> = LazyLock::new(AdminWorkloadRuleStatus::default);
        self.object.status.as_ref().unwrap_or(&NONE)
    }

    fn errors(&self) -> &[FieldError] {
        self.compiled.as_ref().err().map_or(&[], Vec::as_slice)
    }

    /// The entry that states hold.
    fn filed(&self) -> RuleEntry {
        RuleEntry {
            uid: self.object.uid().unwrap_or_default(),
            generation: self.generation(),
            errors: self.errors().to_vec(),
            deleting: self.deleting(),
            ..RuleEntry::default()
        }
    }
}

#[cfg(test)]
mod tests;
