//! Machines, and the objects that belong to them, as the API has them.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{Namespace, Node, Service};
use kube::core::PartialObjectMeta;
use kube::{Resource, ResourceExt};
use outrigger_api::machine::{MachineNodePoolStatus, MachineStatus};
use outrigger_api::{Machine, MachineNodePool};
use outrigger_core::machine::usage::{PodState, SeenReservation, TypeView};
use outrigger_core::machine::{self as domain, Mode, pool_name, usage};
use outrigger_core::map::{HashMap, remove_from};
use outrigger_core::reason::Cause;
use outrigger_core::{keys, machine};
use outrigger_runtime::cache::Change;
use outrigger_runtime::pod::Pod;
use parking_lot::RwLock;

use super::controller::Key;
use super::nodes::NodeSummary;
use super::pods::{PodSummary, Role, Slot};
use crate::computed::ComputedStatuses;

/// Age and name of a pool: who was first keeps a node.
type PoolAge = (Timestamp, String);

#[derive(Debug)]
pub(crate) struct MachineCache {
    core_namespace: String,
    inner: RwLock<MachineObjects>,
}

#[derive(Debug, Default)]
pub(super) struct MachineObjects {
    pub(super) machines: ByName<Machine>,
    pub(super) pools: ByName<MachineNodePool>,
    pub(super) sets: ByName<StatefulSet>,
    pub(super) services: ByName<Service>,
    pub(super) nodes: ByName<NodeSummary>,
    /// Namespaces whose guests count.
    labelled: BTreeSet<String>,
    pods: BTreeMap<(String, String), PodSummary>,
    by_slot: HashMap<Slot, BTreeSet<(String, String)>>,
    /// Pools that have a node, by the node.
    claims: BTreeMap<String, BTreeSet<PoolAge>>,
    machine_statuses: ComputedStatuses<String, MachineStatus>,
    pool_statuses: ComputedStatuses<String, MachineNodePoolStatus>,
}

/// What follows from a change of a Machine or a pool.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Touched {
    /// The keys that it concerns.
    pub keys: Vec<Key>,
    /// Its own, if its status has become another than the computed one.
    pub contested: Option<Key>,
}

type ByName<K> = BTreeMap<String, Arc<K>>;

/// Takes a change in. Returns what there was before, and what there is now.
fn take<K: Resource>(objects: &mut ByName<K>, change: Change<K>) -> (Option<Arc<K>>, Option<Arc<K>>) {
    match change {
        Change::Applied(mut object) => {
            object.meta_mut().managed_fields = None;
            let object = Arc::new(object);
            (objects.insert(object.name_any(), object.clone()), Some(object))
        }
        Change::Gone { name, .. } => (objects.remove(&name), None),
    }
}

/// Whether an object belongs to the controller with this uid.
pub(super) fn is_owned_by<K: Resource>(object: &K, uid: &str) -> bool {
    object.owner_references().iter().any(|owner| owner.controller == Some(true) && owner.uid == uid)
}

fn created<K: Resource>(object: &K) -> Timestamp {
    object.meta().creation_timestamp.as_ref().map_or(Timestamp::MAX, |time| time.0)
}

/// Whether nothing but the status of an object may have changed. Then there is nothing to do, unless the status differs from the computed
/// one, and the controller's own status write must not queue the key again at once, past its backoff.
fn only_status<K: Resource>(before: Option<&K>, now: Option<&K>) -> bool {
    let (Some(before), Some(now)) = (before.map(K::meta), now.map(K::meta)) else { return false };
    before.uid == now.uid
        && before.generation == now.generation
        && before.labels == now.labels
        && before.finalizers == now.finalizers
        && before.owner_references == now.owner_references
        && before.deletion_timestamp == now.deletion_timestamp
}

fn owners(object: &MachineNodePool) -> impl Iterator<Item = Key> {
    object.owner_references().iter().map(|owner| Key::Machine(owner.name.as_str().into()))
}

pub(super) fn group(machine: &Machine) -> Option<&str> {
    machine.labels().get(keys::MACHINE_GROUP).map(String::as_str).filter(|group| !group.is_empty())
}

impl MachineCache {
    pub(crate) fn new(core_namespace: &str) -> Self {
        Self { core_namespace: core_namespace.to_owned(), inner: RwLock::default() }
    }

    /// A Machine exists, or is deleted. Returns the keys that this concerns; so do the other methods.
    pub(crate) fn machine(&self, change: Change<Machine>) -> Touched {
        let mut inner = self.inner.write();
        let (before, now) = take(&mut inner.machines, change);
        if only_status(before.as_deref(), now.as_deref()) {
            let statuses = &inner.machine_statuses;
            let other = now.filter(|machine| statuses.differs(&machine.name_any(), machine.status.clone()));
            let contested = other.map(|machine| Key::Machine(machine.name_any().into()));
            return Touched { contested, ..Touched::default() };
        }
        if let (Some(before), None) = (&before, &now) {
            inner.machine_statuses.forget(&before.name_any());
        }
        let mut names: BTreeSet<String> = BTreeSet::new();
        for object in before.iter().chain(&now) {
            names.insert(object.name_any());
            // Another one may have waited for its group.
            names.extend(group(object).into_iter().flat_map(|group| inner.of_group(group)));
        }
        let keys = names.into_iter().map(|name| Key::Machine(name.into())).collect();
        Touched { keys, contested: None }
    }

    /// The status that a Machine should have.
    pub(super) fn machine_status(&self, name: String, status: MachineStatus) {
        let mut inner = self.inner.write();
        let exists = inner.machines.contains_key(&name);
        inner.machine_statuses.set(name, status, exists);
    }

    /// The status that a pool should have.
    pub(super) fn pool_status(&self, name: String, status: MachineNodePoolStatus) {
        let mut inner = self.inner.write();
        let exists = inner.pools.contains_key(&name);
        inner.pool_statuses.set(name, status, exists);
    }

    pub(crate) fn pool(&self, change: Change<MachineNodePool>) -> Touched {
        let mut inner = self.inner.write();
        let (before, now) = take(&mut inner.pools, change);
        let mut touched = BTreeSet::new();
        if only_status(before.as_deref(), now.as_deref()) {
            let says = |pool: &MachineNodePool| pool.status.as_ref().map(|status| status.conditions.clone());
            // Their Machine says what they say.
            if before.as_deref().map(says) != now.as_deref().map(says) {
                touched.extend(now.iter().flat_map(|pool| owners(pool)));
            }
            let statuses = &inner.pool_statuses;
            let other = now.filter(|pool| statuses.differs(&pool.name_any(), pool.status.clone()));
            let contested = other.map(|pool| Key::Pool(pool.name_any().into()));
            return Touched { keys: touched.into_iter().collect(), contested };
        }
        if let (Some(before), None) = (&before, &now) {
            inner.pool_statuses.forget(&before.name_any());
        }
        for (object, is) in [(&before, false), (&now, true)] {
            let Some(object) = object else { continue };
            let claim = (created(&**object), object.name_any());
            touched.insert(Key::Pool(claim.1.as_str().into()));
            touched.extend(owners(object));
            let group = &object.spec.machine_group_name;
            // Another one may have waited for its group, or a Machine for its name.
            touched.extend(inner.of_group(group).into_iter().map(|name| Key::Machine(name.into())));
            touched.extend(inner.pools_of(group).map(|(_, name)| Key::Pool(name.into())));
            for node in &object.spec.node_pool {
                let claims = inner.claims.entry(node.name.clone()).or_default();
                if is {
                    claims.insert(claim.clone());
                } else {
                    claims.remove(&claim);
                }
                touched.extend(claims.iter().map(|(_, name)| Key::Pool(name.as_str().into())));
                if claims.is_empty() {
                    inner.claims.remove(&node.name);
                }
            }
        }
        if let (Some(before), None) = (&before, &now) {
            // Its Nodes may have been marked again after it had cleaned them.
            touched.extend(inner.without_pool([before.spec.machine_group_name.clone()]));
        }
        Touched { keys: touched.into_iter().collect(), contested: None }
    }

    pub(crate) fn node(&self, name: &str, node: Option<&Node>) -> Vec<Key> {
        let new = node.map(|node| Arc::new(NodeSummary::of(node)));
        let mut inner = self.inner.write();
        let old = match &new {
            Some(new) => inner.nodes.insert(name.to_owned(), new.clone()),
            None => inner.nodes.remove(name),
        };
        let same = match (&old, &new) {
            (Some(old), Some(new)) => old.is_same_as(new),
            (None, None) => true,
            _ => false,
        };
        if same {
            return Vec::new();
        }
        let mut touched: BTreeSet<Key> = BTreeSet::new();
        let pools = inner.claims.get(name).into_iter().flatten().map(|(_, pool)| pool.clone());
        let groups: BTreeSet<String> = old.iter().chain(&new).flat_map(|node| node.groups()).collect();
        touched.extend(new.iter().flat_map(|node| inner.without_pool(node.groups())));
        for pool in pools.chain(groups.iter().map(|group| pool_name(group))) {
            if let Some(object) = inner.pools.get(&pool) {
                touched.extend(owners(object));
                touched.insert(Key::Pool(pool.into()));
            }
        }
        touched.into_iter().collect()
    }

    /// A Pod with the label of a role.
    pub(crate) fn pod(&self, change: Change<Pod>) -> Vec<Key> {
        let (id, new) = match change {
            Change::Applied(pod) => {
                let id = (pod.namespace().unwrap_or_default(), pod.name_any());
                let seen = PodSummary::of(&pod, &self.core_namespace);
                (id, seen)
            }
            Change::Gone { namespace, name, .. } => ((namespace, name), None),
        };
        let mut inner = self.inner.write();
        let old = inner.pods.remove(&id);
        let mut slots = BTreeSet::new();
        if old != new {
            slots.extend(old.iter().chain(&new).map(|pod| pod.slot.clone()));
        }
        if let Some(old) = &old {
            remove_from(&mut inner.by_slot, &old.slot, |ids| ids.remove(&id));
        }
        if let Some(new) = new {
            inner.by_slot.entry(new.slot.clone()).or_default().insert(id.clone());
            inner.pods.insert(id, new);
        }
        let groups = slots.iter().flat_map(|(group, _)| inner.of_group(group));
        groups.map(|name| Key::Machine(name.into())).collect()
    }

    /// A Namespace exists, or is deleted. Its guests take slots if it has the label.
    pub(crate) fn namespace(&self, name: &str, namespace: Option<&PartialObjectMeta<Namespace>>) -> Vec<Key> {
        let label = namespace.and_then(|namespace| namespace.labels().get(keys::INJECT_RESOURCE));
        let mut inner = self.inner.write();
        let changed = if label.is_some_and(|label| label == keys::INJECT_ENABLED) {
            inner.labelled.insert(name.to_owned())
        } else {
            inner.labelled.remove(name)
        };
        if changed { inner.all_machines() } else { Vec::new() }
    }

    pub(crate) fn set(&self, change: Change<StatefulSet>) -> Vec<Key> {
        let mut inner = self.inner.write();
        let both = take(&mut inner.sets, change);
        inner.concerned(both)
    }

    pub(crate) fn service(&self, change: Change<Service>) -> Vec<Key> {
        let mut inner = self.inner.write();
        let both = take(&mut inner.services, change);
        inner.concerned(both)
    }

    pub(crate) fn all(&self) -> Vec<Key> {
        let inner = self.inner.read();
        let pools = inner.pools.keys().map(|name| Key::Pool(name.as_str().into()));
        let groups: BTreeSet<String> = inner.nodes.values().flat_map(|node| node.groups()).collect();
        inner.all_machines().into_iter().chain(pools).chain(inner.without_pool(groups)).collect()
    }

    /// The object with a name among those that `of` selects.
    pub(super) fn get<K>(&self, of: fn(&MachineObjects) -> &ByName<K>, name: &str) -> Option<Arc<K>> {
        of(&self.inner.read()).get(name).cloned()
    }

    /// The objects that belong to the Machine with a uid, among those that `of` selects.
    pub(super) fn owned<K>(&self, of: fn(&MachineObjects) -> &ByName<K>, uid: &str) -> Vec<Arc<K>>
    where
        K: Resource<DynamicType = ()>,
    {
        of(&self.inner.read()).values().filter(|object| is_owned_by(&***object, uid)).cloned().collect()
    }

    /// The Machine that a group belongs to: the oldest that names it, where several do.
    pub(super) fn first_of(&self, group: &str) -> Option<String> {
        let inner = self.inner.read();
        let age = |name: &String| inner.machines.get(name).map(|machine| created(&**machine));
        inner.of_group(group).into_iter().min_by_key(|name| (age(name), name.clone()))
    }

    /// The pool that a node belongs to: the oldest that has it.
    pub(super) fn owner_of(&self, node: &str) -> Option<String> {
        self.inner.read().owner_of(node).cloned()
    }

    /// The pool that marks nodes for a group: the oldest that names it, also while it is being deleted and cleans them.
    pub(super) fn first_pool_of(&self, group: &str) -> Option<String> {
        self.inner.read().pools_of(group).min().map(|(_, name)| name)
    }

    pub(super) fn marked(&self, group: &str) -> Vec<(String, Arc<NodeSummary>)> {
        let inner = self.inner.read();
        let marked = inner.nodes.iter().filter(|(_, node)| node.groups().contains(group));
        marked.map(|(name, node)| (name.clone(), node.clone())).collect()
    }

    /// What keeps the container of a reservation of a type from running, where that is so.
    pub(super) fn trouble(&self, group: &str, type_: &str) -> Option<Cause> {
        let inner = self.inner.read();
        let pods = inner.by_slot.get(&(group.to_owned(), type_.to_owned()));
        pods.into_iter().flatten().find_map(|id| inner.pods.get(id)?.trouble)
    }

    /// The guests and reservations of a type of a Machine.
    pub(super) fn seen(
        &self,
        machine: &domain::Machine,
        group: &str,
        type_: &machine::MachineType,
    ) -> TypeView {
        let inner = self.inner.read();
        let pool = pool_name(group);
        let mut room = DefaultHasher::new();
        (type_.available, type_.resources()).hash(&mut room);
        let mut ready: BTreeSet<&str> = BTreeSet::new();
        let mut in_pool = false;
        for entry in machine.pool.iter().filter(|entry| entry.types.contains(&type_.name)) {
            in_pool = true;
            let node = inner.nodes.get(&entry.name);
            let takes = entry.mode == Mode::Ready
                && node.is_some_and(|node| node.ready)
                && inner.owner_of(&entry.name) == Some(&pool);
            (&entry.name, takes, node.map(|node| node.size)).hash(&mut room);
            if takes {
                ready.insert(&entry.name);
            }
        }
        let is_ready = |pod: &PodState| pod.node.as_deref().is_some_and(|node| ready.contains(node));
        let mut seen =
            TypeView { maximum: type_.available, in_pool, room: room.finish(), ..TypeView::default() };
        let slot = (group.to_owned(), type_.name.clone());
        for id in inner.by_slot.get(&slot).into_iter().flatten() {
            let Some(pod) = inner.pods.get(id) else { continue };
            match &pod.role {
                Role::Guest if !inner.labelled.contains(&id.0) => {}
                Role::Guest => match pod.state.as_guest() {
                    usage::Guest::Used => seen.used += 1,
                    usage::Guest::Waiting => seen.waiting += 1,
                    usage::Guest::Gated => seen.gated += 1,
                    usage::Guest::Leaving if is_ready(&pod.state) => seen.leaving += 1,
                    usage::Guest::Leaving | usage::Guest::Nothing => {}
                },
                Role::Reservation(ordinal) => seen.reservations.push(SeenReservation {
                    ordinal: *ordinal,
                    state: pod.state.as_reservation(),
                    on_ready_node: is_ready(&pod.state),
                }),
            }
        }
        seen
    }
}

impl MachineObjects {
    fn of_group<'a>(&'a self, name: &'a str) -> Vec<String> {
        let of = self.machines.values().filter(|machine| group(machine) == Some(name));
        of.map(|machine| machine.name_any()).collect()
    }

    fn pools_of<'a>(&'a self, group: &'a str) -> impl Iterator<Item = PoolAge> + 'a {
        let of = self.pools.values().filter(move |pool| pool.spec.machine_group_name == group);
        of.map(|pool| (created(&**pool), pool.name_any()))
    }

    /// The keys of those of these groups that have no pool.
    fn without_pool(&self, groups: impl IntoIterator<Item = String>) -> Vec<Key> {
        let without = groups.into_iter().filter(|group| self.pools_of(group).next().is_none());
        without.map(|group| Key::Left(group.into())).collect()
    }

    /// The Machines of the group that an object is labelled with, also when others own the object and it is in their way.
    fn concerned<K: Resource>(&self, (before, now): (Option<Arc<K>>, Option<Arc<K>>)) -> Vec<Key> {
        let label = |object: &Arc<K>| object.labels().get(keys::MACHINE_GROUP).cloned();
        let groups: BTreeSet<String> = before.iter().chain(&now).filter_map(label).collect();
        let names = groups.iter().flat_map(|group| self.of_group(group));
        names.map(|name| Key::Machine(name.into())).collect()
    }

    fn all_machines(&self) -> Vec<Key> {
        self.machines.keys().map(|name| Key::Machine(name.as_str().into())).collect()
    }

    fn owner_of(&self, node: &str) -> Option<&String> {
        self.claims.get(node)?.first().map(|(_, pool)| pool)
    }
}

#[cfg(test)]
mod tests;
