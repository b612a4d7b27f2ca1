//! The state of the cluster as the watches have shown it. No request waits for the API server.

mod allocated;
mod devices;
mod machines;
mod namespaces;
mod offloading;
mod rules;
mod sizes;
mod specs;

use outrigger_core::map::HashMap;
use std::collections::BTreeMap;
use std::fmt;
use std::hash::Hash;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::scheduling::v1::PriorityClass;
use kube::ResourceExt;
use kube::core::PartialObjectMeta;
use outrigger_api::Change;
use outrigger_core::ids::TenantId;
use outrigger_core::keys;
use outrigger_core::offloading::Offloading;
use outrigger_core::tenant::Tenant;
use parking_lot::RwLock;

pub use machines::CachedMachine;
pub use machines::has_ended;
pub use rules::RuleSpec;
pub use specs::Cached;
use specs::Specs;

/// The caches. They may be stale. A request that depends on a missing object waits for a change: see [`Caches::on_change`].
#[derive(Debug, Default)]
pub struct Caches {
    namespaces: namespaces::Namespaces,
    /// Tenants; `None` for one that is not valid.
    tenants: Specs<TenantId, Option<Arc<Tenant>>>,
    rules: rules::Rules,
    nodes: RwLock<HashMap<String, Option<String>>>,
    claims: RwLock<HashMap<String, devices::Claims>>,
    priority_classes: RwLock<BTreeMap<String, bool>>,
    device_classes: RwLock<devices::Classes>,
    offloadings: Specs<String, Arc<Offloading>>,
    allocated: allocated::Allocated,
    machines: machines::Machines,
    on_change: OnChange,
}

/// Is called after each change that a request may wait for.
#[derive(Default)]
struct OnChange(Option<Box<dyn Fn() + Send + Sync>>);

impl fmt::Debug for OnChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OnChange").finish_non_exhaustive()
    }
}

impl Caches {
    /// Empty caches. `host_label`: the Node label that names the host of a DPU.
    pub fn new(host_label: &str) -> Self {
        Self { allocated: allocated::Allocated::new(host_label), ..Self::default() }
    }

    /// Calls `notify` after each change that a request may wait for.
    #[must_use]
    pub fn on_change(self, notify: impl Fn() + Send + Sync + 'static) -> Self {
        Self { on_change: OnChange(Some(Box::new(notify))), ..self }
    }

    fn changed(&self) {
        if let OnChange(Some(notify)) = &self.on_change {
            notify();
        }
    }

    /// A tenant; without its spec where that is not valid.
    pub fn tenant(&self, id: &TenantId) -> Option<Option<Arc<Tenant>>> {
        self.tenants.get(id).map(|cached| cached.spec)
    }

    /// All other tenants that are valid.
    pub fn other_tenants(&self, id: &str) -> Vec<(TenantId, Arc<Tenant>)> {
        self.tenants.all(|tenants| {
            let others = tenants.iter().filter(|(other, _)| other.as_str() != id);
            others.filter_map(|(other, cached)| Some((other.clone(), cached.spec.clone()?))).collect()
        })
    }

    /// The value of a Node's tenant label, where there is such a Node.
    pub fn node_owner(&self, node: &str) -> Option<Option<String>> {
        self.nodes.read().get(node).cloned()
    }

    /// The number of Nodes of a tenant.
    pub fn dpus_of(&self, id: &TenantId) -> usize {
        self.nodes.read().values().filter(|owner| owner.as_deref() == Some(id.as_str())).count()
    }

    /// The PriorityClass that the API server gives to Pods without one.
    pub fn default_priority_class(&self) -> Option<String> {
        let classes = self.priority_classes.read();
        classes.iter().find(|(_, default)| **default).map(|(name, _)| name.clone())
    }

    /// Takes in a tenant.
    pub fn apply_tenant(&self, change: Change<outrigger_api::Tenant>) {
        let (_, name, tenant) = change.into_parts();
        let Ok(id) = TenantId::new(&name) else { return };
        if self.tenants.apply(id, tenant, |tenant| tenant.compile().ok().map(Arc::new)).0 {
            self.changed();
        }
    }

    /// Takes in a Node: only its tenant and its host are kept.
    pub fn node(&self, change: Change<PartialObjectMeta<Node>>) {
        let (_, name, node) = change.into_parts();
        self.allocated.node(&name, node.as_ref());
        let owner = node.map(|node| node.labels().get(keys::NODE_TENANT).cloned());
        // Kubelets write their Nodes all the time, and no request waits for that.
        if self.nodes.read().get(&name) == owner.as_ref() {
            return;
        }
        put(&self.nodes, name, owner);
        self.changed();
    }

    /// Takes in a PriorityClass.
    pub fn priority_class(&self, change: Change<PriorityClass>) {
        let (_, name, class) = change.into_parts();
        let default = class.and_then(|class| class.global_default).unwrap_or_default();
        self.priority_classes.write().insert(name, default);
        self.changed();
    }
}

fn put<K: Hash + Eq, V>(map: &RwLock<HashMap<K, V>>, key: K, value: Option<V>) {
    let mut map = map.write();
    match value {
        Some(value) => map.insert(key, value),
        None => map.remove(&key),
    };
}
