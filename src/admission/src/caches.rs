//! The state of the cluster as the watches have shown it. No request waits for the API server.

mod allocated;
mod devices;
mod machines;
mod namespaces;
mod offloading;
mod rules;
mod sizes;

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::hash::Hash;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::scheduling::v1::PriorityClass;
use kube::ResourceExt;
use kube::core::PartialObjectMeta;
use outrigger_api::{AdminWorkloadRule, Change, Tenant, WorkloadRule};
use outrigger_core::ids::TenantId;
use outrigger_core::keys;
use outrigger_core::tenant;
use parking_lot::RwLock;

pub use machines::CachedMachine;
pub use machines::has_ended;
pub use offloading::CachedOffloading;
pub use rules::CachedRule;

/// The caches. They may be stale. Who finds something missing waits for a change: see [`Caches::on_change`].
#[derive(Debug)]
pub struct Caches {
    namespaces: namespaces::Namespaces,
    tenants: RwLock<HashMap<TenantId, Arc<CachedTenant>>>,
    rules: RwLock<rules::Rules>,
    /// By name: all of them are in one namespace.
    admin_rules: RwLock<HashMap<String, CachedRule>>,
    nodes: RwLock<HashMap<String, Option<String>>>,
    claims: RwLock<HashMap<String, devices::Claims>>,
    priority_classes: RwLock<BTreeMap<String, bool>>,
    device_classes: RwLock<devices::Classes>,
    offloadings: RwLock<HashMap<String, CachedOffloading>>,
    allocated: allocated::Allocated,
    machines: machines::Machines,
    on_change: OnChange,
}

/// Is called after each change that a request may wait for.
struct OnChange(Box<dyn Fn() + Send + Sync>);

impl fmt::Debug for OnChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OnChange").finish_non_exhaustive()
    }
}

/// A tenant as the API has it.
#[derive(Debug)]
pub struct CachedTenant {
    /// `metadata.uid` and `metadata.generation`.
    version: (String, i64),
    /// What it says; `None` when it is not valid.
    pub tenant: Option<tenant::Tenant>,
}

impl Default for Caches {
    /// Empty caches, where the default label names the host of a DPU.
    fn default() -> Self {
        Self::new(keys::DPU_HOST)
    }
}

impl Caches {
    /// Empty caches. `host_label`: the Node label that names the host of a DPU.
    pub fn new(host_label: &str) -> Self {
        Self {
            namespaces: namespaces::Namespaces::default(),
            tenants: RwLock::default(),
            rules: RwLock::default(),
            admin_rules: RwLock::default(),
            nodes: RwLock::default(),
            claims: RwLock::default(),
            priority_classes: RwLock::default(),
            device_classes: RwLock::default(),
            offloadings: RwLock::default(),
            allocated: allocated::Allocated::new(host_label),
            machines: machines::Machines::default(),
            on_change: OnChange(Box::new(|| ())),
        }
    }

    /// Calls `notify` after each change that a request may wait for.
    #[must_use]
    pub fn on_change(self, notify: impl Fn() + Send + Sync + 'static) -> Self {
        Self { on_change: OnChange(Box::new(notify)), ..self }
    }

    fn changed(&self) {
        self.on_change.0();
    }

    /// A tenant.
    pub fn tenant(&self, id: &TenantId) -> Option<Arc<CachedTenant>> {
        self.tenants.read().get(id).cloned()
    }

    /// All other tenants that are valid.
    pub fn other_tenants(&self, id: &str) -> Vec<(TenantId, Arc<CachedTenant>)> {
        let tenants = self.tenants.read();
        let others = tenants.iter().filter(|(other, cached)| other.as_str() != id && cached.tenant.is_some());
        others.map(|(other, cached)| (other.clone(), cached.clone())).collect()
    }

    /// A rule.
    pub fn rule(&self, namespace: &str, name: &str) -> Option<CachedRule> {
        self.rules.read().get(&(namespace.to_owned(), name.to_owned())).cloned()
    }

    /// Size of all rules of a namespace but one, as [`WorkloadRule::size`] counts it.
    pub fn other_rules_size(&self, namespace: &str, name: &str) -> u64 {
        self.rules.read().size_without(namespace, name)
    }

    /// An admin rule.
    pub fn admin_rule(&self, name: &str) -> Option<CachedRule> {
        self.admin_rules.read().get(name).cloned()
    }

    /// The value of a Node's tenant label, where there is such a Node.
    pub fn node_owner(&self, node: &str) -> Option<Option<String>> {
        self.nodes.read().get(node).cloned()
    }

    /// How many Nodes are a tenant's.
    pub fn dpus_of(&self, id: &TenantId) -> usize {
        self.nodes.read().values().filter(|owner| owner.as_deref() == Some(id.as_str())).count()
    }

    /// The PriorityClass that the API server gives to Pods without one.
    pub fn default_priority_class(&self) -> Option<String> {
        let classes = self.priority_classes.read();
        classes.iter().find(|(_, default)| **default).map(|(name, _)| name.clone())
    }

    /// Takes in a tenant.
    pub fn apply_tenant(&self, change: Change<Tenant>) {
        let (name, tenant) = match change {
            Change::Applied(tenant) => (tenant.name_any(), Some(tenant)),
            Change::Gone { name, .. } => (name, None),
        };
        let Ok(id) = TenantId::new(&name) else { return };
        let cached = match tenant {
            None => None,
            Some(tenant) => {
                let version =
                    (tenant.uid().unwrap_or_default(), tenant.metadata.generation.unwrap_or_default());
                // A tenant's status changes far more often than its spec.
                if self.tenants.read().get(&id).is_some_and(|known| known.version == version) {
                    return;
                }
                Some(Arc::new(CachedTenant { version, tenant: tenant.compile().ok() }))
            }
        };
        put(&self.tenants, id, cached);
        self.changed();
    }

    /// Takes in a rule.
    pub fn apply_rule(&self, change: Change<WorkloadRule>) {
        let rule = match change {
            Change::Applied(rule) => rule,
            Change::Gone { namespace, name, .. } => {
                self.rules.write().remove((namespace, name));
                return self.changed();
            }
        };
        let key = (rule.namespace().unwrap_or_default(), rule.name_any());
        let uid = rule.metadata.uid.clone().unwrap_or_default();
        let generation = rule.metadata.generation.unwrap_or_default();
        let known = |cached: &CachedRule| cached.uid == uid && cached.generation == generation;
        // A rule's status changes far more often than its spec.
        if self.rules.read().get(&key).is_some_and(known) {
            return;
        }
        let size = rule.size();
        let rule = rule.compile().ok().map(|rule| Arc::new(rule.for_admission()));
        self.rules.write().insert(key, CachedRule { uid, generation, size, rule });
        self.changed();
    }

    /// Takes in an admin rule.
    pub fn apply_admin_rule(&self, change: Change<AdminWorkloadRule>) {
        let rule = match change {
            Change::Applied(rule) => rule,
            Change::Gone { name, .. } => {
                self.admin_rules.write().remove(&name);
                return self.changed();
            }
        };
        let uid = rule.metadata.uid.clone().unwrap_or_default();
        let generation = rule.metadata.generation.unwrap_or_default();
        let known = |cached: &CachedRule| cached.uid == uid && cached.generation == generation;
        if self.admin_rules.read().get(&rule.name_any()).is_some_and(known) {
            return;
        }
        let compiled = rule.compile().ok().map(|admin| Arc::new(admin.rule.for_admission()));
        self.admin_rules
            .write()
            .insert(rule.name_any(), CachedRule { uid, generation, size: 0, rule: compiled });
        self.changed();
    }

    /// Takes in a Node: only its tenant and its host are kept.
    pub fn node(&self, change: Change<PartialObjectMeta<Node>>) {
        self.allocated.node(&change);
        let (name, owner) = match change {
            Change::Applied(node) => (node.name_any(), Some(node.labels().get(keys::NODE_TENANT).cloned())),
            Change::Gone { name, .. } => (name, None),
        };
        // Kubelets write their Nodes all the time, and no request waits for that.
        if self.nodes.read().get(&name) == owner.as_ref() {
            return;
        }
        put(&self.nodes, name, owner);
        self.changed();
    }

    /// Takes in a PriorityClass.
    pub fn priority_class(&self, change: Change<PriorityClass>) {
        let (name, default) = match change {
            Change::Applied(class) => (class.name_any(), class.global_default),
            Change::Gone { name, .. } => (name, None),
        };
        self.priority_classes.write().insert(name, default.unwrap_or_default());
        self.changed();
    }
}

/// Sets or removes an entry.
fn put<K: Hash + Eq, V>(map: &RwLock<HashMap<K, V>>, key: K, value: Option<V>) {
    let mut map = map.write();
    match value {
        Some(value) => map.insert(key, value),
        None => map.remove(&key),
    };
}
