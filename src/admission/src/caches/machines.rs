//! Machines with their usage, and their guests.

use outrigger_core::map::{HashMap, HashSet, remove_from};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;
use outrigger_api::pod::Pod;
use outrigger_api::{Change, Machine};
use outrigger_core::field::FieldError;
use outrigger_core::keys;
use outrigger_core::machine::{self, Usage};
use outrigger_core::slots::{GRANT_SECONDS, Guests};
use parking_lot::RwLock;

use super::Caches;

/// How long the end of a guest is remembered. After that its grant has expired.
const REMEMBERED: Duration = Duration::from_secs(2 * GRANT_SECONDS);

/// Maximum number of remembered ends, about 10 MB. The slot of a forgotten guest becomes free when its grant expires.
const MOST_ENDS: usize = 1 << 16;

#[derive(Debug, Default)]
pub(super) struct Machines {
    machines: RwLock<HashMap<String, Arc<CachedMachine>>>,
    /// Uids of Machines that were deleted.
    ended: RwLock<Ends<String>>,
    guests: RwLock<Allocations>,
}

impl Machines {
    pub(super) fn count(&self) -> usize {
        self.machines.read().len()
    }
}

/// A Machine as the API has it.
#[derive(Debug)]
pub struct CachedMachine {
    /// `metadata.name`.
    pub name: String,
    /// `metadata.uid`.
    pub uid: String,
    /// `metadata.generation`.
    pub generation: i64,
    created: Option<Time>,
    /// Its group, where it has one.
    pub group: Option<String>,
    /// Names of the nodes in its pool.
    pub nodes: Vec<String>,
    /// The Machine, or its validation errors.
    pub machine: Result<machine::Machine, Vec<FieldError>>,
    /// The usage of its types, as its status has it.
    pub usages: HashMap<String, Usage>,
}

impl CachedMachine {
    /// Reads a Machine, its status included.
    fn of(object: &Machine) -> Self {
        let types = object.spec.machine_types.iter();
        Self {
            name: object.name_any(),
            uid: object.uid().unwrap_or_default(),
            generation: object.metadata.generation.unwrap_or_default(),
            created: object.creation_timestamp(),
            group: object.labels().get(keys::MACHINE_GROUP).cloned(),
            nodes: object.spec.node_pool.iter().map(|node| node.name.clone()).collect(),
            usages: types
                .filter_map(|type_| Some((type_.name.clone(), object.usage(&type_.name)?)))
                .collect(),
            machine: object.compile(),
        }
    }
}

/// Group and type.
type Slot = (String, String);

/// Guests and the slots that they take.
#[derive(Debug, Default)]
struct Allocations {
    /// Guests that have not ended, by namespace and name.
    live: HashMap<(String, String), Allocation>,
    /// The same by what they take.
    by_slot: HashMap<Slot, HashSet<(String, String)>>,
    /// Uids of guests that have ended, oldest first, and when that was seen.
    ended: Ends<(Slot, String)>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Allocation {
    uid: String,
    slot: Slot,
}

impl Allocations {
    fn put(&mut self, pod: (String, String), new: Option<Allocation>, now: Duration) {
        let before = self.live.get(&pod);
        if before == new.as_ref() {
            return;
        }
        if let Some(Allocation { uid, slot }) = before.cloned() {
            remove_from(&mut self.by_slot, &slot, |pods| pods.remove(&pod));
            if new.as_ref().is_none_or(|new| new.uid != uid) {
                self.ended.add((slot, uid), now);
            }
        }
        match new {
            Some(new) => {
                self.by_slot.entry(new.slot.clone()).or_default().insert(pod.clone());
                self.live.insert(pod, new);
            }
            None => drop(self.live.remove(&pod)),
        }
    }
}

/// What has ended lately, oldest first, each with the time at which the end was seen.
#[derive(Debug)]
struct Ends<T>(VecDeque<(Duration, T)>);

impl<T> Default for Ends<T> {
    fn default() -> Self {
        Self(VecDeque::new())
    }
}

impl<T> Ends<T> {
    fn add(&mut self, ended: T, now: Duration) {
        let is_old = |(at, _): &(Duration, T)| now.saturating_sub(*at) > REMEMBERED;
        while self.0.front().is_some_and(is_old) || self.0.len() >= MOST_ENDS {
            self.0.pop_front();
        }
        self.0.push_back((now, ended));
    }

    fn iter(&self) -> impl Iterator<Item = &T> {
        self.0.iter().map(|(_, ended)| ended)
    }
}

impl Caches {
    /// The Machine of a group; of several the oldest.
    pub fn machine(&self, group: &str) -> Option<Arc<CachedMachine>> {
        let machines = self.machines.machines.read();
        let own = machines.values().filter(|machine| machine.group.as_deref() == Some(group));
        own.min_by(|a, b| (&a.created, &a.name).cmp(&(&b.created, &b.name))).cloned()
    }

    /// The number of slots of a type; 0 while they have not been counted.
    pub fn slots(&self, group: &str, type_: &str) -> u32 {
        let machine = self.machine(group);
        machine.and_then(|machine| machine.usages.get(type_).map(Usage::slots)).unwrap_or_default()
    }

    /// All Machines but the one with this name.
    pub fn other_machines(&self, name: &str) -> Vec<Arc<CachedMachine>> {
        self.machines.machines.read().values().filter(|machine| machine.name != name).cloned().collect()
    }

    /// The number of guests of a type with a slot, without the one with this name.
    pub fn other_guests(&self, group: &str, type_: &str, namespace: &str, name: &str) -> usize {
        let own = (namespace.to_owned(), name.to_owned());
        self.with_guests(group, type_, |pods| pods.filter(|pod| **pod != own).count())
    }

    /// The guests of a type.
    pub fn guests(&self, group: &str, type_: &str) -> Guests {
        let live = self.with_guests(group, type_, |pods| {
            pods.map(|(namespace, pod)| format!("{namespace}/{pod}")).collect()
        });
        let allocations = self.machines.guests.read();
        let ended = allocations.ended.iter().filter(|(slot, _)| (&*slot.0, &*slot.1) == (group, type_));
        Guests { live, gone: ended.map(|(_, uid)| uid.clone()).collect(), unnamed: 0 }
    }

    /// Calls `count` with namespace and name of each guest of a type that has a slot.
    fn with_guests<T>(
        &self,
        group: &str,
        type_: &str,
        count: impl FnOnce(&mut dyn Iterator<Item = &(String, String)>) -> T,
    ) -> T {
        let (allocations, namespaces) = (self.machines.guests.read(), self.namespaces.read());
        let pods = allocations.by_slot.get(&(group.to_owned(), type_.to_owned()));
        let counts = |pod: &&(String, String)| namespaces.get(&pod.0).is_some_and(|labels| labels.injected);
        count(&mut pods.into_iter().flatten().filter(counts))
    }

    /// Takes in a Machine, its status included. `now`: the time since the process began.
    pub fn apply_machine(&self, change: Change<Machine>, now: Duration) {
        let (_, name, object) = change.into_parts();
        let cached = object.map(|object| CachedMachine::of(&object));
        let uid = cached.as_ref().map(|cached| cached.uid.clone());
        let mut machines = self.machines.machines.write();
        let before = match cached {
            Some(cached) => machines.insert(name, Arc::new(cached)),
            None => machines.remove(&name),
        };
        drop(machines);
        if let Some(before) = before.filter(|before| Some(&before.uid) != uid.as_ref()) {
            self.machines.ended.write().add(before.uid.clone(), now);
        }
        self.changed();
    }

    /// Uids of Machines that were deleted lately.
    pub fn ended_machines(&self) -> HashSet<String> {
        self.machines.ended.read().iter().cloned().collect()
    }

    /// Takes in a guest, or a Pod that was one. `now`: the time since the process began.
    pub fn guest(&self, change: Change<Pod>, now: Duration) {
        let (namespace, name, pod) = change.into_parts();
        let allocation = pod.filter(holds_slot).and_then(|pod| {
            let label = |key| pod.labels().get(key).cloned();
            label(keys::POD_ROLE).filter(|role| role == keys::GUEST)?;
            let slot = (label(keys::MACHINE_GROUP)?, label(keys::MACHINE_TYPE)?);
            Some(Allocation { uid: pod.uid().unwrap_or_default(), slot })
        });
        // No request waits for a guest.
        self.machines.guests.write().put((namespace, name), allocation, now);
    }
}

/// Whether a guest has its slot: it has neither succeeded nor failed, and has no scheduling gates. Kubernetes adds no gate to a Pod that
/// exists, so a guest that has its slot keeps it until it ends.
pub fn holds_slot(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    !matches!(phase, Some("Succeeded" | "Failed")) && !pod.is_gated()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::applied;
    use serde_json::json;

    const NOW: Duration = Duration::ZERO;

    fn pod(name: &str, uid: &str, phase: &str) -> Change<Pod> {
        let labels = json!({keys::MACHINE_GROUP: "g", keys::MACHINE_TYPE: "t", keys::POD_ROLE: "guest"});
        let metadata = json!({"name": name, "namespace": "n", "uid": uid, "labels": labels});
        applied(json!({"metadata": metadata, "status": {"phase": phase}}))
    }

    fn gone(name: &str) -> Change<Pod> {
        Change::Gone { namespace: "n".into(), name: name.into(), uid: String::new() }
    }

    #[test]
    fn a_guest_has_its_slot_until_it_ends() {
        let caches = Caches::default();
        let label =
            json!({"metadata": {"name": "n", "labels": {keys::INJECT_RESOURCE: keys::INJECT_ENABLED}}});
        let namespace = || applied(label.clone());
        caches.guest(pod("a", "1", "Pending"), NOW);
        assert_eq!(caches.guests("g", "t"), Guests::default(), "the namespace isn't labelled");
        caches.namespace(namespace());
        caches.guest(pod("b", "2", "Running"), NOW);
        caches.guest(pod("c", "3", "Running"), NOW);
        assert_eq!(
            caches.guests("g", "t").live,
            ["n/a", "n/b", "n/c"].map(String::from).into_iter().collect()
        );
        assert_eq!(caches.other_guests("g", "t", "n", "a"), 2);
        assert_eq!(caches.other_guests("g", "t", "n", "x"), 3);
        assert_eq!(caches.guests("g", "other"), Guests::default());
        // One ends, one is deleted, one is replaced by another Pod of the same name.
        caches.guest(pod("a", "1", "Succeeded"), NOW);
        caches.guest(gone("b"), NOW);
        caches.guest(pod("c", "4", "Pending"), NOW);
        let guests = caches.guests("g", "t");
        assert_eq!(guests.live, ["n/c"].map(String::from).into_iter().collect());
        assert_eq!(guests.gone, ["1", "2", "3"].map(String::from).into_iter().collect());
        caches.guest(gone("c"), NOW);
        caches.guest(gone("never-seen"), NOW);
        assert_eq!(caches.guests("g", "t").live.len(), 0);
        assert!(caches.machines.guests.read().by_slot.is_empty());
    }

    #[test]
    fn a_guest_with_scheduling_gates_has_no_slot_yet() {
        let gated = |gates: serde_json::Value| {
            let pod = json!({"metadata": {"name": "a"}, "spec": {"schedulingGates": gates}, "status": {"phase": "Pending"}});
            holds_slot(&serde_json::from_value(pod).unwrap())
        };
        assert!(!gated(json!([{"name": "kueue.x-k8s.io/admission"}])));
        assert!(gated(json!([])) && gated(json!(null)));
    }

    #[test]
    fn a_machine_that_is_deleted_or_replaced_has_ended() {
        let caches = Caches::default();
        let machine = |uid: &str| {
            let spec = json!({"gvk": {"group": "g", "version": "v1", "kind": "K"}, "nodePool": [], "machineTypes": []});
            let metadata = json!({"name": "m", "uid": uid});
            applied(json!({"metadata": metadata, "spec": spec}))
        };
        let ended = |uids: &[&str]| {
            assert_eq!(caches.ended_machines(), uids.iter().map(ToString::to_string).collect());
        };
        caches.apply_machine(machine("1"), NOW);
        caches.apply_machine(machine("1"), NOW);
        ended(&[]);
        caches.apply_machine(machine("2"), NOW);
        ended(&["1"]);
        caches
            .apply_machine(Change::Gone { namespace: String::new(), name: "m".into(), uid: "2".into() }, NOW);
        ended(&["1", "2"]);
    }

    #[test]
    fn a_type_has_the_slots_that_the_status_of_its_machine_counts() {
        let caches = Caches::default();
        let type_ = |name: &str| json!({"name": name, "spec": {"cpu": "1", "memory": "1Gi"}, "available": 9});
        let usage = json!({"slots": 3, "maximum": 9, "reserved": 0, "used": 0, "waiting": 0});
        let machine = json!({
            "metadata": {"name": "m", "uid": "1", "labels": {keys::MACHINE_GROUP: "g"}},
            "spec": {"nodePool": [], "machineTypes": [type_("counted"), type_("new")]},
            "status": {"availableMachines": [{"name": "counted", "usage": usage}]}});
        caches.apply_machine(applied(machine), NOW);
        let slots = [("g", "counted"), ("g", "new"), ("other", "counted")].map(|(g, t)| caches.slots(g, t));
        assert_eq!(slots, [3, 0, 0]);
    }

    #[test]
    fn ends_are_forgotten_in_time() {
        let mut ends = Ends::default();
        ends.add("old".to_owned(), NOW);
        // A replica that sees a grant when it is almost over for the others counts it for as long again.
        ends.add("new".into(), Duration::from_secs(2 * GRANT_SECONDS));
        assert_eq!(ends.0.len(), 2);
        ends.add("newer".into(), REMEMBERED + Duration::from_secs(1));
        assert_eq!(ends.0.len(), 2);
        for i in 0..MOST_ENDS {
            ends.add(i.to_string(), REMEMBERED);
        }
        assert_eq!(ends.0.len(), MOST_ENDS);
    }
}
