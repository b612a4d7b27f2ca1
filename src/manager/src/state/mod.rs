//! What the manager knows, in memory and synchronously: a [`TenantState`] for each namespace with its tenant's workloads, its
//! rules and their companions. Everything that happens outside comes in as a method call here and returns the keys that
//! have to be looked at again, so all of it is testable without a cluster.
//!
//! Each state has its own lock, held for microseconds and never across an await: one tenant's flood is not another's
//! pause.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use kube::ResourceExt;
use outrigger_api::{WorkloadRule, rule_wire};
use outrigger_core::admin::AdminNamespaces;
use outrigger_core::ids::{RuleName, TenantId};
use outrigger_core::index::{CompanionKey, Desired, TenantIndex};
use outrigger_core::rollout::UpdateStrategy;
use outrigger_core::rule::Rule;
use parking_lot::{Mutex, MutexGuard, RwLock};

use crate::queue::Key;
use crate::state::companions::CompanionCache;
use crate::state::pauses::{AnnotationPauses, FailurePauses};
use crate::state::registry::Registry;
use crate::state::rollout::{Rollouts, Standing};
use crate::state::stream::{ObservedClaim, Stream};
use crate::state::validation::TemplateValidation;
use crate::usage::Usage;

pub mod companions;
pub mod pauses;
pub mod registry;
pub mod rollout;
mod rules;
pub mod stream;
pub mod validation;

pub use rules::{Refusal, RuleEntry};

/// A namespace of the infrastructure cluster, by name.
pub type Namespace = Arc<str>;

/// A companion, cluster-wide.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CompanionId {
    /// The namespace of the tenant whose workload it serves. A tenant's own rule and its companion live there too.
    pub namespace: Namespace,
    /// The companion within it.
    pub key: CompanionKey,
}

impl Key for CompanionId {
    type Group = Namespace;

    fn group(&self) -> Namespace {
        self.namespace.clone()
    }
}

impl Key for RuleId {
    type Group = Namespace;

    fn group(&self) -> Namespace {
        self.namespace.clone()
    }
}

/// A rule, cluster-wide.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RuleId {
    /// The rule's namespace: the tenant's, or that of admin rules.
    pub namespace: Namespace,
    /// The rule within it.
    pub name: RuleName,
}

/// All namespaces that matter.
#[derive(Debug, Default)]
pub struct TenantStates {
    admin: AdminNamespaces,
    by_namespace: RwLock<HashMap<Namespace, Arc<TenantState>>>,
    by_tenant: RwLock<HashMap<TenantId, BTreeSet<Namespace>>>,
    admin_companions: RwLock<HashMap<TenantId, SharedCompanions>>,
}

/// The companions of admin rules that one tenant has. They may be seen before its namespace is, and outlive it.
pub type SharedCompanions = Arc<Mutex<CompanionCache>>;

impl TenantStates {
    /// None yet. `admin`: where admin rules and their companions live.
    pub fn new(admin: AdminNamespaces) -> Self {
        Self { admin, ..Self::default() }
    }

    /// Where admin rules and their companions live.
    pub fn admin(&self) -> &AdminNamespaces {
        &self.admin
    }

    /// The companions of admin rules that a tenant has. Its lock is taken after a state's.
    pub fn admin_companions_of(&self, tenant: &TenantId) -> SharedCompanions {
        if let Some(store) = self.admin_companions.read().get(tenant) {
            return store.clone();
        }
        self.admin_companions.write().entry(tenant.clone()).or_default().clone()
    }

    /// Those of all tenants, in the order of their ids.
    pub fn all_admin_companions(&self) -> Vec<(TenantId, SharedCompanions)> {
        let stores = self.admin_companions.read();
        let mut all: Vec<_> = stores.iter().map(|(tenant, store)| (tenant.clone(), store.clone())).collect();
        all.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
        all
    }

    /// The state of a namespace, made when it is asked for the first time.
    pub fn state(&self, namespace: &str) -> Arc<TenantState> {
        if let Some(state) = self.known(namespace) {
            return state;
        }
        let mut states = self.by_namespace.write();
        let namespace: Namespace = namespace.into();
        let admin_rules = self.admin.rules.clone();
        states
            .entry(namespace.clone())
            .or_insert_with(|| Arc::new(TenantState::new(namespace, admin_rules)))
            .clone()
    }

    /// The state of a namespace, if it was asked for before.
    pub fn known(&self, namespace: &str) -> Option<Arc<TenantState>> {
        self.by_namespace.read().get(namespace).cloned()
    }

    /// Every state there is.
    pub fn all(&self) -> Vec<Arc<TenantState>> {
        self.by_namespace.read().values().cloned().collect()
    }

    /// The state of a tenant: that of its namespace. Where several namespaces carry the tenant's label, `tenant-<id>`
    /// comes first, then the first in the alphabet, so that every replica picks the same.
    pub fn of_tenant(&self, tenant: &TenantId) -> Option<Arc<TenantState>> {
        let namespace = {
            let by_tenant = self.by_tenant.read();
            let namespaces = by_tenant.get(tenant)?;
            let usual = format!("tenant-{tenant}");
            namespaces.get(usual.as_str()).or_else(|| namespaces.first())?.clone()
        };
        Some(self.state(&namespace))
    }

    /// The states of all namespaces that carry a tenant's label: one, unless somebody has labeled more.
    pub fn of(&self, tenant: &TenantId) -> Vec<Arc<TenantState>> {
        let namespaces = self.by_tenant.read().get(tenant).cloned().unwrap_or_default();
        namespaces.iter().map(|namespace| self.state(namespace)).collect()
    }

    /// Whose namespace it is.
    pub fn tenant_of(&self, namespace: &str) -> Option<TenantId> {
        let state = self.by_namespace.read().get(namespace).cloned()?;
        state.lock().tenant.clone()
    }

    /// A namespace belongs to this tenant, or to none. Returns what has to be looked at again.
    pub fn set_tenant(&self, namespace: &str, tenant: Option<TenantId>) -> Vec<CompanionId> {
        let state = self.state(namespace);
        let mut data = state.lock();
        if data.tenant == tenant {
            return Vec::new();
        }
        {
            let mut by_tenant = self.by_tenant.write();
            if let Some(old) = &data.tenant
                && let Some(namespaces) = by_tenant.get_mut(old)
            {
                namespaces.remove(namespace);
                if namespaces.is_empty() {
                    by_tenant.remove(old);
                }
            }
            if let Some(new) = &tenant {
                by_tenant.entry(new.clone()).or_default().insert(state.namespace.clone());
            }
        }
        data.change_tenant(tenant);
        state.ids(data.companion_keys())
    }
}

/// One namespace: its tenant's workloads, its rules, their companions.
#[derive(Debug)]
pub struct TenantState {
    /// The namespace's name.
    pub namespace: Namespace,
    admin_rules: Namespace,
    data: Mutex<TenantData>,
}

/// What is behind a state's lock.
#[derive(Debug, Default)]
pub struct TenantData {
    /// Whose namespace it is. Nothing happens in a namespace of nobody.
    pub tenant: Option<TenantId>,
    /// Workloads and compiled rules.
    pub index: TenantIndex,
    /// Every rule there is, also those that don't compile; and the admin rules that are about the tenant.
    pub rules: HashMap<RuleName, RuleEntry>,
    /// The companions of the tenant's own rules that exist.
    pub companions: CompanionCache,
    /// Those of admin rules; `None` where they are not looked after from this namespace.
    pub admin_companions: Option<SharedCompanions>,
    /// Companions that can't be made for a reason that only a user can remove.
    pub refusals: BTreeMap<CompanionKey, Refusal>,
    /// How long companions that keep failing wait before they are replaced.
    pub pauses: FailurePauses,
    /// How often facts are written into companions.
    pub facts: AnnotationPauses,
    /// Companions that are being brought to a new template.
    pub rollouts: Rollouts,
    /// The tenant's stream.
    pub stream: Stream,
    /// How much its workloads take.
    pub usage: Usage,
    /// The tenant is being deleted: nothing is made for it any more.
    pub closing: bool,
}

impl TenantState {
    fn new(namespace: Namespace, admin_rules: Namespace) -> Self {
        Self { namespace, admin_rules, data: Mutex::default() }
    }

    /// The lock, for a moment.
    pub fn lock(&self) -> MutexGuard<'_, TenantData> {
        self.data.lock()
    }

    /// Keys of this state, cluster-wide.
    pub fn ids(&self, keys: impl IntoIterator<Item = CompanionKey>) -> Vec<CompanionId> {
        keys.into_iter().map(|key| CompanionId { namespace: self.namespace.clone(), key }).collect()
    }

    /// All rules of this state, cluster-wide.
    pub fn rule_ids(&self) -> Vec<RuleId> {
        self.lock().rules.keys().map(|name| self.rule_id(name)).collect()
    }

    /// A rule, cluster-wide.
    pub fn rule_id(&self, name: &RuleName) -> RuleId {
        let namespace = if name.is_admin() { &self.admin_rules } else { &self.namespace };
        RuleId { namespace: namespace.clone(), name: name.clone() }
    }
}

impl TenantData {
    /// A rule exists and looks like this. Returns the companions it may change.
    pub fn apply_rule(&mut self, object: &WorkloadRule) -> Vec<CompanionKey> {
        let Ok(name) = RuleName::new(&object.name_any()) else { return Vec::new() };
        let mut entry = RuleEntry {
            uid: object.metadata.uid.clone().unwrap_or_default(),
            generation: object.metadata.generation.unwrap_or_default(),
            resource_version: object.resource_version().unwrap_or_default(),
            status: object.status.clone().unwrap_or_default(),
            errors: Vec::new(),
            validation: TemplateValidation::default(),
            deleting: object.metadata.deletion_timestamp.is_some(),
            revision: String::new(),
            origin: rule_wire::origin(object),
        };
        if object.metadata.deletion_timestamp.is_some() {
            // It only waits for its companions to go (foreground deletion); it must not get new ones.
            self.rules.insert(name.clone(), entry);
            return self.index.remove_rule(&name);
        }
        if let Some(known) = self.rules.get_mut(&name)
            && known.uid == entry.uid
            && known.generation == entry.generation
        {
            // Only its status or metadata changed. Another replica may have tried it out: what was held back goes on.
            let passed =
                !known.validation.has_passed() && known.errors.is_empty() && entry.is_told_accepted();
            let refused = known.validation.refusal().is_some();
            if passed {
                known.validation = TemplateValidation::passed();
            }
            known.status = entry.status;
            known.resource_version = entry.resource_version;
            known.origin = entry.origin;
            return if passed { self.released(&name, refused) } else { Vec::new() };
        }
        entry.revision = rule_wire::message(object).revision;
        let keys = match object.compile() {
            Ok(rule) => {
                entry.validation = self.validation_of(&rule, &entry);
                self.rules.insert(name.clone(), entry);
                self.index.apply_rule(Arc::new(rule))
            }
            // A rule that can't be served any more keeps the companions it has.
            Err(errors) => {
                self.rules.insert(name.clone(), RuleEntry { errors, ..entry });
                self.index.remove_rule(&name)
            }
        };
        self.forget_refusals(&name);
        self.rollouts.restart(&name);
        keys
    }

    /// An admin rule is about the tenant and says this; `None` when it can't be served. Returns the companions it may change:
    /// none when it was known.
    pub(crate) fn file_rule(
        &mut self,
        name: &RuleName,
        entry: RuleEntry,
        rule: Option<Arc<Rule>>,
    ) -> Vec<CompanionKey> {
        let known = self.rules.get(name);
        if known.is_some_and(|known| known.uid == entry.uid && known.generation == entry.generation) {
            return Vec::new();
        }
        let validation = rule.as_ref().map(|rule| self.validation_of(rule, &entry)).unwrap_or_default();
        self.rules.insert(name.clone(), RuleEntry { validation, ..entry });
        self.forget_refusals(name);
        self.rollouts.restart(name);
        match rule {
            Some(rule) => self.index.apply_rule(rule),
            None => self.index.remove_rule(name),
        }
    }

    /// All companions that exist, those of admin rules too.
    pub fn companion_keys(&self) -> Vec<CompanionKey> {
        let mut keys: Vec<_> = self.companions.keys().cloned().collect();
        if let Some(store) = &self.admin_companions {
            keys.extend(store.lock().keys().cloned());
        }
        keys
    }

    /// The companions among which those of this rule are; `None` where they are not looked after from here.
    pub(crate) fn among<R>(
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

    /// Companions that wait no longer, because the API server takes their template; `refused`: it didn't before, so that some
    /// were not made.
    pub(crate) fn released(&mut self, name: &RuleName, refused: bool) -> Vec<CompanionKey> {
        let mut held = self.rollouts.restart(name);
        if refused {
            let key = |workload| CompanionKey { rule: name.clone(), workload };
            held.extend(self.index.workloads_of(name).map(|w| key(w.id.label_value().into())));
        }
        held
    }

    /// Companions whose turn has come in any rollout.
    pub fn all_turns(&mut self, registry: &Registry) -> Vec<CompanionKey> {
        let rules = self.rollouts.waiting();
        rules.iter().flat_map(|rule| self.turns(rule, registry)).collect()
    }

    /// The workloads are known for the first time. Companions that should be there and aren't are down, whatever took them
    /// away: a rollout that another process began goes on from there.
    pub fn first_sync(&mut self, keys: &[CompanionKey]) {
        for key in keys {
            let wanted = matches!(self.index.desired(key), Desired::Wanted { .. });
            if wanted && self.among(&key.rule, |companions| companions.get(key).is_none()) == Some(true) {
                self.rollouts.missing(key);
            }
        }
    }

    /// A template that has been tried out is not tried again: neither here, nor after a restart.
    fn validation_of(&self, rule: &Rule, entry: &RuleEntry) -> TemplateValidation {
        let known = self.rules.get(rule.name()).filter(|known| known.uid == entry.uid);
        let same = |known: &&Arc<Rule>| known.template_hash() == rule.template_hash();
        match (known, self.index.rule(rule.name()).filter(same)) {
            (Some(known), Some(_)) => known.validation.clone(),
            _ if entry.is_told_accepted() => TemplateValidation::passed(),
            _ => TemplateValidation::default(),
        }
    }

    /// Whether a companion of an earlier template may be replaced now; otherwise it waits for its turn.
    pub fn may_replace(&mut self, key: &CompanionKey, registry: &Registry) -> bool {
        let (Some(rule), Some(entry)) = (self.index.rule(&key.rule), self.rules.get(&key.rule)) else {
            return false;
        };
        if !entry.validation.has_passed() {
            self.rollouts.wait(key);
            return false;
        }
        let strategy = rule.update();
        let serves =
            |companions: &mut CompanionCache| companions.get(key).is_some_and(|o| o.ready && !o.terminating);
        let ready = self.among(&key.rule, serves).unwrap_or_default();
        let standing = self.standing(&key.rule, registry);
        self.rollouts.ask(key, ready, strategy, standing)
    }

    /// Companions whose turn in a rollout has come.
    pub fn turns(&mut self, rule: &RuleName, registry: &Registry) -> Vec<CompanionKey> {
        if !self.rollouts.waits(rule)
            || !self.rules.get(rule).is_some_and(|entry| entry.validation.has_passed())
        {
            return Vec::new();
        }
        let Some(strategy) = self.index.rule(rule).map(|rule| rule.update()) else { return Vec::new() };
        if strategy == UpdateStrategy::OnDelete {
            return Vec::new();
        }
        let standing = self.standing(rule, registry);
        self.rollouts.next(rule, strategy, standing)
    }

    /// A companion may be other than before.
    pub fn saw_companion(&mut self, key: &CompanionKey) {
        if self.rollouts.concerns(key) {
            let now = self.among(&key.rule, |companions| companions.get(key).cloned()).flatten();
            self.rollouts.saw(key, now.as_ref());
        }
    }

    fn standing(&mut self, rule: &RuleName, registry: &Registry) -> Standing {
        let tenant = self.tenant.clone();
        let has_dpu = |host: &str| tenant.as_ref().is_some_and(|tenant| registry.has_dpu(tenant, host));
        self.among(rule, |companions| companions.standing(rule, has_dpu)).unwrap_or_default()
    }

    /// Companions of a rule that can't be made, in the order of their workloads. A tenant may have as many as matches, so the others
    /// are not looked at.
    pub fn refusals_of<'a>(
        &'a self,
        rule: &'a RuleName,
    ) -> impl Iterator<Item = (&'a CompanionKey, &'a Refusal)> {
        let first = CompanionKey { rule: rule.clone(), workload: Arc::default() };
        self.refusals.range(first..).take_while(move |(key, _)| key.rule == *rule)
    }

    fn forget_refusals(&mut self, rule: &RuleName) {
        let keys: Vec<CompanionKey> = self.refusals_of(rule).map(|(key, _)| key.clone()).collect();
        for key in keys {
            self.refusals.remove(&key);
        }
    }

    /// A rule is gone. Returns the companions that it had; the garbage collector takes them.
    pub fn remove_rule(&mut self, name: &RuleName) -> Vec<CompanionKey> {
        self.rules.remove(name);
        self.rollouts.forget(name);
        self.forget_refusals(name);
        self.index.remove_rule(name)
    }

    /// Whether this replica makes and tells what is to be made and told in this namespace; `leads`: it leads, and so
    /// cares for tenants that nobody serves.
    pub fn acts(&self, leads: bool) -> bool {
        self.tenant.is_some() && !self.closing && self.stream.acts(leads)
    }

    /// A Tenant's status shows who holds the claim on its stream. Whether that took it from this replica, or it is another
    /// Tenant: what is known of the tenant's workloads is out of date from now on, and forgotten.
    pub fn saw_claim(&mut self, shown: ObservedClaim<'_>, me: &str) -> bool {
        let lost = self.stream.saw(shown, me);
        if lost {
            self.forget_workloads();
        }
        lost
    }

    fn forget_workloads(&mut self) {
        let mut index = TenantIndex::default();
        index.limit(self.index.most());
        for rule in self.index.rules() {
            index.apply_rule(rule.clone());
        }
        self.index = index;
        self.usage = Usage::default();
        self.refusals.clear();
        self.rollouts = Rollouts::default();
    }

    /// The workloads of another tenant say nothing about this one's.
    fn change_tenant(&mut self, tenant: Option<TenantId>) {
        self.forget_workloads();
        self.admin_companions = None;
        self.tenant = tenant;
        self.stream.restart();
    }
}
