//! Tenants and DPUs as the API has them, and which callers may act for which tenant.

use outrigger_core::map::{HashMap, remove_from};
use std::collections::{BTreeMap, BTreeSet};
use std::hash::Hash;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, ResourceQuota};
use kube::ResourceExt;
use outrigger_api::Tenant;
use outrigger_core::field::FieldError;
use outrigger_core::host::HostLabels;
use outrigger_core::ids::TenantId;
use outrigger_core::index::OwnDpus;
use outrigger_core::keys;
use outrigger_core::progress::HostDpu;
use outrigger_core::quantity::Quantity;
use outrigger_core::reason::Cause;
use outrigger_core::rule::Rule;
use outrigger_core::steps::step;
use outrigger_core::tenant::nodes::{HostClaims, Ownership};
use outrigger_core::tenant::{self, Identity};
use outrigger_core::unplaced;
use outrigger_runtime::cache::Change;
use parking_lot::RwLock;
use tonic::Status;

use super::listeners::{Listener, Listeners, Topic};
use crate::dpu::Dpu;
use crate::identity::Caller;

/// The type of a Tenant's condition about its level of enforcement.
pub(crate) const ENFORCED: &str = "Enforced";

/// What is known of tenants and DPUs. One for the whole process.
#[derive(Debug)]
pub(crate) struct Registry {
    data: RwLock<RegistryData>,
    /// Node labels that name the host of a DPU.
    host_labels: HostLabels,
    /// Identities that may act for every tenant.
    admins: Vec<Identity>,
    /// Those who hear of changes of what [`Registry::authorize`] depends on.
    listeners: Arc<Listeners>,
}

#[derive(Debug, Default)]
struct RegistryData {
    tenants: BTreeMap<TenantId, Arc<TenantEntry>>,
    /// Who lists an identity.
    by_identity: HashMap<Identity, BTreeSet<TenantId>>,
    /// Who lays claim to a host, and isn't being deleted.
    by_host: HashMap<String, BTreeSet<TenantId>>,
    nodes: BTreeMap<String, Arc<Dpu>>,
    /// Nodes by the host they sit in.
    in_host: HashMap<String, BTreeSet<String>>,
    /// Nodes by the tenant that their label names.
    of_owner: HashMap<String, BTreeSet<String>>,
    /// What of each namespace has reached its limit, in words.
    quotas: HashMap<String, Vec<String>>,
    /// How often the host or the owner of a DPU has changed.
    epoch: u64,
}

#[derive(Debug)]
pub(crate) struct TenantEntry {
    pub object: Arc<Tenant>,
    /// The tenant, or its validation errors.
    pub tenant: Result<Arc<tenant::Tenant>, Vec<FieldError>>,
}

impl TenantEntry {
    pub(crate) fn deleting(&self) -> bool {
        self.object.metadata.deletion_timestamp.is_some()
    }

    /// Whether its deletion waits for the manager.
    pub(crate) fn has_finalizer(&self) -> bool {
        self.object.finalizers().iter().any(|f| f == keys::TENANT_FINALIZER)
    }

    /// Since when its level of enforcement has been below Enforce, as its status says; `None` where it isn't.
    pub(crate) fn below_enforce_since(&self) -> Option<Timestamp> {
        let conditions = &self.object.status.as_ref()?.conditions;
        let enforced = conditions.iter().find(|c| c.type_ == ENFORCED && c.status == "False")?;
        Some(enforced.last_transition_time.0)
    }

    /// What a limit has refused, as its stream's status says.
    fn refused(&self) -> Option<&str> {
        self.object.status.as_ref()?.stream.as_ref()?.refused.as_deref()
    }

    /// Everything but its status.
    fn relevant(&self) -> impl PartialEq + '_ {
        let metadata = &self.object.metadata;
        let finalizers = self.object.finalizers();
        (metadata.uid.as_deref(), metadata.generation, self.deleting(), finalizers, self.tenant.as_ref())
    }
}

/// The keys that a change of a Tenant concerns.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Touched {
    /// Nodes whose owner may have changed.
    pub nodes: Vec<String>,
    /// Tenants whose namespace or status may have.
    pub tenants: BTreeSet<TenantId>,
}

/// What follows from a change of a Node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct NodeChange {
    /// The tenants that it concerns.
    pub concerned: Vec<TenantId>,
    /// Whether its host, its owner or its marks are other than before.
    pub changed: bool,
    /// Hosts whose DPU may take companions now, or no longer.
    pub hosts: BTreeSet<String>,
}

impl Registry {
    pub(crate) fn new(host_labels: HostLabels, admins: Vec<Identity>) -> Self {
        Self { data: RwLock::default(), host_labels, admins, listeners: Arc::default() }
    }

    /// The Node labels that name the host of a DPU.
    pub(crate) fn host_labels(&self) -> &HostLabels {
        &self.host_labels
    }

    /// Changes, from now on, of what [`Self::authorize`] depends on for this caller and tenant.
    pub(crate) fn changes(&self, caller: &Caller, id: &TenantId) -> Listener {
        let names = match caller {
            Caller::Local => &[][..],
            Caller::Certificate { names, .. } => names,
        };
        let identities = names.iter().cloned().map(Topic::Identity);
        self.listeners.listen(identities.chain([Topic::Tenant(id.clone())]).collect())
    }

    pub(crate) fn get(&self, id: &TenantId) -> Option<Arc<TenantEntry>> {
        self.data.read().tenants.get(id).cloned()
    }

    pub(crate) fn ids(&self) -> Vec<TenantId> {
        self.data.read().tenants.keys().cloned().collect()
    }

    pub(crate) fn dpu(&self, node: &str) -> Option<Arc<Dpu>> {
        self.data.read().nodes.get(node).cloned()
    }

    /// Every Node that is a DPU or carries Outrigger's marks.
    pub(crate) fn dpus(&self) -> Vec<(String, Arc<Dpu>)> {
        self.data.read().nodes.iter().map(|(name, dpu)| (name.clone(), dpu.clone())).collect()
    }

    /// The Nodes whose label names a tenant, in alphabetical order.
    pub(crate) fn dpus_of(&self, tenant: &TenantId) -> Vec<(String, Arc<Dpu>)> {
        let data = self.data.read();
        data.dpus(data.of_owner.get(tenant.as_str()))
    }

    /// The Nodes that sit in a host, in alphabetical order.
    pub(crate) fn dpus_in(&self, host: &str) -> Vec<(String, Arc<Dpu>)> {
        let data = self.data.read();
        data.dpus(data.in_host.get(host))
    }

    /// How often an answer of [`Self::has_dpu`] may have become another one.
    pub(crate) fn dpu_epoch(&self) -> u64 {
        self.data.read().epoch
    }

    pub(crate) fn has_dpu(&self, tenant: &TenantId, host: &str) -> bool {
        let data = self.data.read();
        let owned = |node: &String| {
            step();
            data.nodes.get(node).is_some_and(|dpu| dpu.marks.owner.as_deref() == Some(tenant.as_str()))
        };
        data.in_host.get(host).is_some_and(|nodes| nodes.iter().any(owned))
    }

    /// The DPUs in a host, as far as they are a tenant's.
    pub(crate) fn own_dpus(&self, tenant: &TenantId, host: &str) -> OwnDpus {
        let dpus = self.dpus_in(host).into_iter().map(|(name, dpu)| (name, dpu.for_tenant(tenant.as_str())));
        let (own, others): (Vec<_>, Vec<_>) = dpus.partition(|(_, dpu)| dpu.is_settled());
        let data = self.data.read();
        let listed = data.claimants(host).any(|claimant| claimant == tenant);
        let has_rivals = data.claimants(host).any(|claimant| claimant != tenant);
        OwnDpus {
            nodes: own.into_iter().map(|(name, _)| name.into()).collect(),
            hands_over: others.iter().any(|(_, dpu)| dpu.owned || listed) && !has_rivals,
        }
    }

    /// The DPU of a host, or the one of these with a name, as far as a tenant may use it.
    pub(crate) fn host_dpu(&self, tenant: &TenantId, host: &str, name: Option<&str>) -> HostDpu {
        let data = self.data.read();
        let entry = data.tenants.get(tenant).and_then(|entry| entry.tenant.as_ref().ok());
        let listed = entry.is_some_and(|tenant| tenant.hosts.contains(host));
        let here = data.in_host.get(host).into_iter().flatten();
        let here =
            here.filter(|node| name.is_none_or(|name| name == *node)).filter_map(|node| data.nodes.get(node));
        let dpus = here.map(|dpu| {
            step();
            dpu.for_tenant(tenant.as_str())
        });
        HostDpu::of(host, dpus, listed, || data.claimants(host).any(|other| other != tenant))
    }

    /// Why the scheduler has found no Node for a companion, and what of its template is the reason. `host`: the one whose DPU it has to
    /// run on, and `name` the one of these.
    pub(crate) fn why_unplaced(
        &self,
        tenant: &TenantId,
        (host, name): (Option<&str>, Option<&str>),
        rule: &Rule,
        message: &str,
    ) -> (Cause, String) {
        let own = self.dpus_of(tenant);
        let fits = |(node, dpu): &&(String, Arc<Dpu>)| {
            (host.is_none() || dpu.host.as_deref() == host) && name.is_none_or(|name| name == node)
        };
        unplaced::why(message, rule.wants(), own.iter().filter(fits).map(|(_, dpu)| &dpu.node))
    }

    /// What of a tenant's namespace has reached its limit.
    pub(crate) fn full(&self, namespace: &str) -> Vec<String> {
        self.data.read().quotas.get(namespace).cloned().unwrap_or_default()
    }

    /// Whether the caller may act for a tenant now, and the tenant. Returns PERMISSION_DENIED, with the same message after the
    /// same work whether there is such a tenant or not, so that names can't be guessed; to administrators NOT_FOUND.
    /// FAILED_PRECONDITION when the tenant can't be served.
    pub(crate) fn authorize(&self, caller: &Caller, id: &TenantId) -> Result<Arc<tenant::Tenant>, Status> {
        let data = self.data.read();
        // Only the caller's names decide. The tenant that the call names is looked up for those who may act for it.
        if !self.is_admin(caller) && data.tenant_of(caller) != Some(id) {
            return Err(Status::permission_denied(format!(
                "the client certificate may not speak for tenant {id}"
            )));
        }
        let Some(entry) = data.tenants.get(id) else {
            return Err(Status::not_found(format!("there is no tenant {id}; create a Tenant of that name")));
        };
        if entry.deleting() {
            return Err(Status::failed_precondition(format!("tenant {id} is being deleted")));
        }
        entry.tenant.as_ref().map(Arc::clone).map_err(|_| {
            Status::failed_precondition(format!("tenant {id} is not valid: see its Accepted condition"))
        })
    }

    /// Whether the caller may act for every tenant, and for the platform.
    pub(crate) fn is_admin(&self, caller: &Caller) -> bool {
        *caller == Caller::Local || caller.is_one_of(&self.admins)
    }

    /// Identities of a tenant that another one has too; neither can be served by them.
    pub(crate) fn shared_identities(&self, id: &TenantId) -> Vec<(Identity, TenantId)> {
        let data = self.data.read();
        let Some(Ok(own)) = data.tenants.get(id).map(|entry| entry.tenant.as_ref()) else {
            return Vec::new();
        };
        let mut shared = Vec::new();
        for identity in &own.identities {
            shared.extend(data.who_else(identity, id).map(|other| (identity.clone(), other.clone())));
        }
        shared
    }

    /// Other tenants that lay claim to a host, in alphabetical order.
    pub(crate) fn rivals(&self, host: &str, id: &TenantId) -> Vec<TenantId> {
        self.data.read().claimants(host).filter(|other| *other != id).cloned().collect()
    }

    /// The tenant that a DPU should be assigned to.
    pub(crate) fn verdict(&self, dpu: &Dpu) -> Ownership {
        let data = self.data.read();
        let owner = dpu.marks.owner.as_deref();
        let tenants: Vec<&TenantId> = dpu.host.iter().flat_map(|host| data.claimants(host)).collect();
        let entry =
            owner.and_then(|owner| TenantId::new(owner).ok()).and_then(|owner| data.tenants.get(&owner));
        if entry.is_some_and(|entry| entry.tenant.is_err() && !entry.deleting()) {
            // Its hosts are unknown while its spec is invalid. That is no reason to delete its Pods.
            return Ownership::Foreign;
        }
        HostClaims { tenants, owner_exists: entry.is_some() }.verdict(owner)
    }

    /// A tenant has changed. Most changes are of its status, and touch nothing: each stream that begins or ends makes one.
    pub(crate) fn tenant(&self, change: Change<Tenant>) -> Touched {
        let (name, object) = match change {
            Change::Applied(object) => (object.name_any(), Some(object)),
            Change::Gone { name, .. } => (name, None),
        };
        let Ok(id) = TenantId::new(&name) else { return Touched::default() };
        let new = object.map(|object| {
            let tenant = object.compile().map(Arc::new);
            Arc::new(TenantEntry { object: Arc::new(object), tenant })
        });
        let mut data = self.data.write();
        let old = match &new {
            Some(new) => data.tenants.insert(id.clone(), new.clone()),
            None => data.tenants.remove(&id),
        };
        if old.as_deref().map(TenantEntry::relevant) == new.as_deref().map(TenantEntry::relevant) {
            let [before, now] = [&old, &new].map(|entry| entry.as_ref().and_then(|entry| entry.refused()));
            let changed = if before == now { None } else { Some(id) };
            return Touched { nodes: Vec::new(), tenants: changed.into_iter().collect() };
        }
        let mut touched = Touched { nodes: Vec::new(), tenants: BTreeSet::from([id.clone()]) };
        let mut hosts: BTreeSet<&String> = BTreeSet::new();
        let mut topics = BTreeSet::from([Topic::Tenant(id.clone())]);
        for (entry, add) in [(&old, false), (&new, true)] {
            let Some(Ok(tenant)) = entry.as_ref().map(|entry| entry.tenant.as_ref()) else { continue };
            let deleting = entry.as_ref().is_some_and(|entry| entry.deleting());
            hosts.extend(&tenant.hosts);
            topics.extend(tenant.identities.iter().cloned().map(Topic::Identity));
            for identity in &tenant.identities {
                touched.tenants.extend(list(&mut data.by_identity, identity, &id, add));
            }
            for host in &tenant.hosts {
                touched.tenants.extend(list(&mut data.by_host, host, &id, add && !deleting));
            }
        }
        let in_hosts = hosts.iter().filter_map(|host| data.in_host.get(*host));
        let concerned: BTreeSet<&String> = data
            .of_owner
            .get(id.as_str())
            .into_iter()
            .chain(in_hosts)
            .flatten()
            .inspect(|_| step())
            .collect();
        touched.nodes = concerned.into_iter().cloned().collect();
        drop(data);
        self.listeners.notify(&topics);
        touched
    }

    /// A Node exists, or is deleted.
    pub(crate) fn node(&self, name: &str, node: Option<&Node>) -> NodeChange {
        let new = node.and_then(|node| Dpu::of(node, &self.host_labels)).map(Arc::new);
        let mut data = self.data.write();
        let RegistryData { nodes, in_host, of_owner, .. } = &mut *data;
        let old = match &new {
            Some(new) => nodes.insert(name.to_owned(), new.clone()),
            None => nodes.remove(name),
        };
        let lists = |of: fn(&Dpu) -> Option<&str>| (old.as_deref().and_then(of), new.as_deref().and_then(of));
        moved(in_host, name, lists(|dpu| dpu.host.as_deref()));
        moved(of_owner, name, lists(|dpu| dpu.marks.owner.as_deref()));
        let matter = |dpu: &Dpu| (dpu.host.clone(), dpu.marks.clone());
        let changed = old.as_deref().map(matter) != new.as_deref().map(matter);
        data.epoch += u64::from(changed);
        let mut concerned = BTreeSet::new();
        for dpu in old.iter().chain(&new) {
            concerned.extend(dpu.marks.owner.as_deref().and_then(|owner| TenantId::new(owner).ok()));
            concerned.extend(dpu.host.iter().flat_map(|host| data.claimants(host)).cloned());
        }
        let differs = changed
            || match (&old, &new) {
                (Some(old), Some(new)) => (old.ready, &old.node) != (new.ready, &new.node),
                (old, new) => old.is_some() != new.is_some(),
            };
        let hosts = old.iter().chain(&new).filter(|_| differs).filter_map(|dpu| dpu.host.clone()).collect();
        NodeChange { concerned: concerned.into_iter().collect(), changed, hosts }
    }

    /// A ResourceQuota of a tenant's namespace has changed. Whether that matters.
    pub(crate) fn quota(&self, change: Change<ResourceQuota>) -> (String, bool) {
        let (namespace, full) = match change {
            Change::Applied(quota) => (quota.namespace().unwrap_or_default(), full(&quota)),
            Change::Gone { namespace, .. } => (namespace, Vec::new()),
        };
        let mut data = self.data.write();
        let before = if full.is_empty() {
            data.quotas.remove(&namespace)
        } else {
            data.quotas.insert(namespace.clone(), full.clone())
        };
        let changed = before.unwrap_or_default() != full;
        (namespace, changed)
    }
}

impl RegistryData {
    /// The tenant whose agent calls. An identity that two tenants list is valid for neither: no tenant is better than the wrong one.
    fn tenant_of(&self, caller: &Caller) -> Option<&TenantId> {
        let Caller::Certificate { names, .. } = caller else { return None };
        let listed = names.iter().filter_map(|name| self.by_identity.get(name));
        let mut tenants = listed.flatten().inspect(|_| step());
        let first = tenants.next()?;
        tenants.all(|other| other == first).then_some(first)
    }

    fn who_else<'a>(&'a self, identity: &Identity, id: &'a TenantId) -> impl Iterator<Item = &'a TenantId> {
        self.by_identity
            .get(identity)
            .into_iter()
            .flatten()
            .inspect(|_| step())
            .filter(move |other| *other != id)
    }

    /// Nodes by their names.
    fn dpus(&self, names: Option<&BTreeSet<String>>) -> Vec<(String, Arc<Dpu>)> {
        let names = names.into_iter().flatten().inspect(|_| step());
        names.filter_map(|name| Some((name.clone(), self.nodes.get(name)?.clone()))).collect()
    }

    fn claimants(&self, host: &str) -> impl Iterator<Item = &TenantId> {
        self.by_host.get(host).into_iter().flatten().inspect(|_| step())
    }
}

/// Moves a Node from the list that it was on to the one that it belongs to now.
fn moved(
    lists: &mut HashMap<String, BTreeSet<String>>,
    node: &str,
    (before, now): (Option<&str>, Option<&str>),
) {
    if before == now {
        return;
    }
    if let Some(before) = before {
        remove_from(lists, before, |nodes| nodes.remove(node));
    }
    if let Some(now) = now {
        lists.entry(now.to_owned()).or_default().insert(node.to_owned());
    }
}

/// Adds a tenant to a list, or removes it. Returns the other tenants on the list.
fn list<K: Clone + Eq + Hash>(
    lists: &mut HashMap<K, BTreeSet<TenantId>>,
    key: &K,
    id: &TenantId,
    add: bool,
) -> Vec<TenantId> {
    if add {
        lists.entry(key.clone()).or_default().insert(id.clone());
    } else {
        remove_from(lists, key, |list| list.remove(id));
    }
    step();
    lists.get(key).into_iter().flatten().inspect(|_| step()).filter(|other| *other != id).cloned().collect()
}

/// ResourceClaims, as quotas count them.
pub(crate) const CLAIMS: &str = "count/resourceclaims.resource.k8s.io";

/// What a quota has no room left for.
fn full(quota: &ResourceQuota) -> Vec<String> {
    let status = quota.status.clone().unwrap_or_default();
    let used = status.used.unwrap_or_default();
    let mut full = Vec::new();
    for (resource, hard) in status.hard.unwrap_or_default() {
        let used = used.get(&resource).and_then(|used| count(&used.0));
        let (Some(used), Some(hard)) = (used, count(&hard.0)) else { continue };
        // A limit of 0 is no limit that has been reached: the tenant is to have none.
        if hard > 0 && used >= hard {
            let limit = match resource.as_str() {
                "pods" => "limits.companions",
                CLAIMS => "limits.companions (claims)",
                _ => "limits.rules",
            };
            full.push(format!("spec.{limit}: {used} of {hard}"));
        }
    }
    full
}

/// A number of objects as a Quantity, which the API server writes with a suffix where it has only zeros (`10k`).
pub(crate) fn count(quantity: &str) -> Option<u64> {
    let quantity: Quantity = quantity.parse().ok()?;
    quantity.holds(&Quantity::whole(1)).filter(|count| Quantity::whole(*count) == quantity)
}

#[cfg(test)]
mod tests;
