//! Machines with their usage, the namespaces whose guests get slots, and the guests.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;
use kube::core::PartialObjectMeta;
use outrigger_api::Machine;
use outrigger_core::field::FieldError;
use outrigger_core::keys;
use outrigger_core::machine::{self, Usage};
use outrigger_core::slots::{GRANT_SECONDS, Guests};
use outrigger_runtime::cache::Change;
use outrigger_runtime::pod::Pod;
use parking_lot::RwLock;

use super::Caches;

/// How long the end of a guest is remembered. After that no grant is left that it could concern.
const REMEMBERED: Duration = Duration::from_secs(2 * GRANT_SECONDS);

/// Most ends that are remembered, about 10 MB. Of one that is forgotten the slot is free only when its grant's time is over.
const MOST_ENDS: usize = 1 << 16;

/// What is cached of Machines and guests.
#[derive(Debug, Default)]
pub(super) struct Machines {
    injected: RwLock<HashSet<String>>,
    machines: RwLock<HashMap<String, Arc<CachedMachine>>>,
    /// Uids of Machines that have gone, oldest first.
    ended: RwLock<VecDeque<(Instant, String)>>,
    guests: RwLock<Seats>,
}

impl Machines {
    /// How many there are.
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
    /// `metadata.creationTimestamp`.
    created: Option<Time>,
    /// Its group, where it has one.
    pub group: Option<String>,
    /// Names of the nodes in its pool.
    pub nodes: Vec<String>,
    /// What it says, or what is wrong with it.
    pub machine: Result<machine::Machine, Vec<FieldError>>,
    /// How its types are used, as somebody has counted.
    pub usages: HashMap<String, Usage>,
}

/// Group and type.
type Slot = (String, String);

/// Who sits where.
#[derive(Debug, Default)]
struct Seats {
    /// Guests that have not ended, by namespace and name.
    live: HashMap<(String, String), Seat>,
    /// The same by what they take.
    by_slot: HashMap<Slot, HashSet<(String, String)>>,
    /// Uids of guests that have ended, oldest first.
    ended: VecDeque<(Instant, Slot, String)>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Seat {
    uid: String,
    slot: Slot,
}

impl Seats {
    fn put(&mut self, pod: (String, String), seat: Option<Seat>, now: Instant) {
        let before = self.live.get(&pod);
        if before == seat.as_ref() {
            return;
        }
        if let Some(Seat { uid, slot }) = before.cloned() {
            if let Some(pods) = self.by_slot.get_mut(&slot) {
                pods.remove(&pod);
                if pods.is_empty() {
                    self.by_slot.remove(&slot);
                }
            }
            if seat.as_ref().is_none_or(|seat| seat.uid != uid) {
                self.end(slot, uid, now);
            }
        }
        match seat {
            Some(seat) => {
                self.by_slot.entry(seat.slot.clone()).or_default().insert(pod.clone());
                self.live.insert(pod, seat);
            }
            None => drop(self.live.remove(&pod)),
        }
    }

    fn end(&mut self, slot: Slot, uid: String, now: Instant) {
        let old = |(at, _, _): &(Instant, Slot, String)| now.duration_since(*at) > REMEMBERED;
        while self.ended.front().is_some_and(old) || self.ended.len() >= MOST_ENDS {
            self.ended.pop_front();
        }
        self.ended.push_back((now, slot, uid));
    }
}

impl Caches {
    /// Whether guests in the namespace get slots: whether its label says so.
    pub fn is_injected(&self, namespace: &str) -> bool {
        self.machines.injected.read().contains(namespace)
    }

    /// The Machine of a group: of several the oldest.
    pub fn machine(&self, group: &str) -> Option<Arc<CachedMachine>> {
        let machines = self.machines.machines.read();
        let own = machines.values().filter(|machine| machine.group.as_deref() == Some(group));
        own.min_by(|a, b| (&a.created, &a.name).cmp(&(&b.created, &b.name))).cloned()
    }

    /// How many slots a type has; none where nobody has counted them.
    pub fn slots(&self, group: &str, type_: &str) -> u32 {
        let machine = self.machine(group);
        machine.and_then(|machine| machine.usages.get(type_).map(Usage::slots)).unwrap_or_default()
    }

    /// All Machines but the one of this name.
    pub fn other_machines(&self, name: &str) -> Vec<Arc<CachedMachine>> {
        self.machines.machines.read().values().filter(|machine| machine.name != name).cloned().collect()
    }

    /// How many guests of a type have a slot, the one of this name aside.
    pub fn other_guests(&self, group: &str, type_: &str, namespace: &str, name: &str) -> usize {
        let seats = self.machines.guests.read();
        let injected = self.machines.injected.read();
        let pods = seats.by_slot.get(&(group.to_owned(), type_.to_owned()));
        pods.into_iter()
            .flatten()
            .filter(|pod| injected.contains(&pod.0) && (&*pod.0, &*pod.1) != (namespace, name))
            .count()
    }

    /// The guests of a type.
    pub fn guests(&self, group: &str, type_: &str) -> Guests {
        let seats = self.machines.guests.read();
        let injected = self.machines.injected.read();
        let slot = (group.to_owned(), type_.to_owned());
        let pods = seats.by_slot.get(&slot).into_iter().flatten();
        Guests {
            live: pods
                .filter(|pod| injected.contains(&pod.0))
                .map(|(ns, pod)| format!("{ns}/{pod}"))
                .collect(),
            gone: seats.ended.iter().filter(|end| end.1 == slot).map(|end| end.2.clone()).collect(),
            unnamed: 0,
        }
    }

    /// A namespace whose guests get slots, or did.
    pub fn injected_namespace(&self, change: Change<PartialObjectMeta<Namespace>>) {
        let (name, injected) = match change {
            Change::Applied(namespace) => {
                let label = namespace.labels().get(keys::INJECT_RESOURCE);
                (namespace.name_any(), label.is_some_and(|label| label == keys::INJECT_ENABLED))
            }
            Change::Gone { name, .. } => (name, false),
        };
        if injected {
            self.machines.injected.write().insert(name);
        } else {
            self.machines.injected.write().remove(&name);
        }
        self.changed();
    }

    /// A Machine, its status included.
    pub fn apply_machine(&self, change: Change<Machine>) {
        let object = match change {
            Change::Applied(object) => object,
            Change::Gone { name, .. } => {
                self.end(self.machines.machines.write().remove(&name).as_deref());
                return self.changed();
            }
        };
        let types = object.spec.machine_types.iter();
        let cached = CachedMachine {
            name: object.name_any(),
            uid: object.uid().unwrap_or_default(),
            generation: object.metadata.generation.unwrap_or_default(),
            created: object.creation_timestamp(),
            group: object.labels().get(keys::MACHINE_GROUP).cloned(),
            nodes: object.spec.node_pool.iter().map(|node| node.name.clone()).collect(),
            usages: types.filter_map(|t| Some((t.name.clone(), object.usage(&t.name)?))).collect(),
            machine: object.compile(),
        };
        let mut machines = self.machines.machines.write();
        let uid = cached.uid.clone();
        let before = machines.insert(cached.name.clone(), Arc::new(cached));
        drop(machines);
        self.end(before.as_deref().filter(|before| before.uid != uid));
        self.changed();
    }

    fn end(&self, machine: Option<&CachedMachine>) {
        let Some(machine) = machine else { return };
        let (mut ended, now) = (self.machines.ended.write(), Instant::now());
        while ended.front().is_some_and(|(at, _)| now.duration_since(*at) > REMEMBERED) {
            ended.pop_front();
        }
        ended.push_back((now, machine.uid.clone()));
    }

    /// Uids of Machines that have gone lately.
    pub fn ended_machines(&self) -> HashSet<String> {
        self.machines.ended.read().iter().map(|(_, uid)| uid.clone()).collect()
    }

    /// A guest, or a Pod that was one.
    pub fn guest(&self, change: Change<Pod>) {
        let (pod, seat) = match change {
            Change::Applied(pod) => {
                let labels = pod.labels();
                let seat = match (labels.get(keys::MACHINE_GROUP), labels.get(keys::MACHINE_TYPE)) {
                    (Some(group), Some(type_))
                        if labels.get(keys::POD_ROLE).is_some_and(|role| role == keys::GUEST)
                            && !has_ended(&pod) =>
                    {
                        let uid = pod.uid().unwrap_or_default();
                        Some(Seat { uid, slot: (group.clone(), type_.clone()) })
                    }
                    _ => None,
                };
                ((pod.namespace().unwrap_or_default(), pod.name_any()), seat)
            }
            Change::Gone { namespace, name, .. } => ((namespace, name), None),
        };
        // Nobody waits for a guest.
        self.machines.guests.write().put(pod, seat, Instant::now());
    }
}

/// Whether a Pod has succeeded or failed, and so gives its slot back.
pub(crate) fn has_ended(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(name: &str, uid: &str, phase: &str) -> Change<Pod> {
        let labels = json!({keys::MACHINE_GROUP: "g", keys::MACHINE_TYPE: "t", keys::POD_ROLE: "guest"});
        let metadata = json!({"name": name, "namespace": "n", "uid": uid, "labels": labels});
        Change::Applied(
            serde_json::from_value(json!({"metadata": metadata, "status": {"phase": phase}})).unwrap(),
        )
    }

    fn gone(name: &str) -> Change<Pod> {
        Change::Gone { namespace: "n".into(), name: name.into(), uid: String::new() }
    }

    #[test]
    fn a_guest_has_its_slot_until_it_ends() {
        let caches = Caches::default();
        let label =
            json!({"metadata": {"name": "n", "labels": {keys::INJECT_RESOURCE: keys::INJECT_ENABLED}}});
        let namespace = || Change::Applied(serde_json::from_value(label.clone()).unwrap());
        caches.guest(pod("a", "1", "Pending"));
        assert_eq!(caches.guests("g", "t"), Guests::default(), "the namespace isn't labelled");
        caches.injected_namespace(namespace());
        caches.guest(pod("b", "2", "Running"));
        caches.guest(pod("c", "3", "Running"));
        assert_eq!(caches.guests("g", "t").live, ["n/a", "n/b", "n/c"].map(String::from).into());
        assert_eq!(caches.other_guests("g", "t", "n", "a"), 2);
        assert_eq!(caches.other_guests("g", "t", "n", "x"), 3);
        assert_eq!(caches.guests("g", "other"), Guests::default());
        // One ends, one goes, one is another of the same name.
        caches.guest(pod("a", "1", "Succeeded"));
        caches.guest(gone("b"));
        caches.guest(pod("c", "4", "Pending"));
        let guests = caches.guests("g", "t");
        assert_eq!(guests.live, ["n/c"].map(String::from).into());
        assert_eq!(guests.gone, ["1", "2", "3"].map(String::from).into());
        caches.guest(gone("c"));
        caches.guest(gone("never-seen"));
        assert_eq!(caches.guests("g", "t").live.len(), 0);
        assert!(caches.machines.guests.read().by_slot.is_empty());
    }

    #[test]
    fn ends_are_forgotten_in_time() {
        let mut seats = Seats::default();
        let began = Instant::now();
        let slot = || ("g".to_owned(), "t".to_owned());
        seats.end(slot(), "old".into(), began);
        seats.end(slot(), "new".into(), began + REMEMBERED);
        assert_eq!(seats.ended.len(), 2);
        seats.end(slot(), "newer".into(), began + REMEMBERED + Duration::from_secs(1));
        assert_eq!(seats.ended.len(), 2);
        for i in 0..MOST_ENDS {
            seats.end(slot(), i.to_string(), began + REMEMBERED);
        }
        assert_eq!(seats.ended.len(), MOST_ENDS);
    }
}
