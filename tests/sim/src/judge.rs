//! What must hold in every history, and what must hold when it has come to rest.
//!
//! The truth is what the tenants' clusters hold: their Pods and rules. A companion is wanted while its workload and its rule are
//! there, the rule matches, and the template is the companion's.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Weak};
use std::time::Duration;

use jiff::Timestamp;
use outrigger_core::keys;
use parking_lot::Mutex;
use serde_json::Value;

use crate::model::Commit;
use crate::world::{RULES_NAMESPACE, SHOP, TENANTS, World, text};

/// Processes write an object less often than this within a time: what is written again and again is a fight, or a loop.
const MOST_WRITES: u64 = 60;
const WINDOW: Duration = Duration::from_secs(10);

/// A companion: tenant, rule, and uid of the workload.
type Key = (&'static str, String, String);

#[derive(Default)]
struct Found {
    violations: Vec<String>,
    /// The newest state of each rule that the infrastructure cluster has had, and of each companion, by the number of its image.
    newest: BTreeMap<String, u64>,
    /// All workloads, by uid, and rules, by name, that have ever been there.
    known: BTreeSet<(&'static str, String)>,
    /// Those of which something has changed since the system came to rest the last time.
    changed: BTreeSet<(&'static str, String)>,
    /// An earlier state of a cluster was restored since then.
    restored: bool,
    /// Writes of processes, renewals of Leases left out.
    writes: u64,
    /// Writes of processes by object, since the beginning of a window of time.
    often: BTreeMap<(&'static str, Option<String>, String), (Timestamp, u64)>,
}

impl Found {
    /// Counts a write. Returns what is wrong if the same object was written too often.
    fn count(&mut self, commit: &Commit) -> Option<String> {
        if commit.client.is_empty() || commit.kind.plural == "leases" {
            return None;
        }
        self.writes += 1;
        let object = (commit.kind.plural, commit.namespace.clone(), commit.name.clone());
        let (since, writes) = self.often.entry(object).or_insert((commit.time, 0));
        if commit.time.duration_since(*since).unsigned_abs() > WINDOW {
            (*since, *writes) = (commit.time, 0);
        }
        *writes += 1;
        let Commit { kind, namespace, name, .. } = commit;
        (*writes == MOST_WRITES)
            .then(|| format!("{} {namespace:?}/{name} is written {writes} times in {WINDOW:?}", kind.plural))
    }
}

/// Judges a history.
pub struct Judge {
    world: Weak<World>,
    found: Mutex<Found>,
}

impl Judge {
    /// Judges all commits from now on, and writes them into the trace.
    pub fn watch(world: &Arc<World>) -> Arc<Self> {
        let judge = Arc::new(Self { world: Arc::downgrade(world), found: Mutex::default() });
        for (id, _) in TENANTS {
            let this = judge.clone();
            world.tenants[id].on_commit(move |commit| this.tenant(id, commit));
        }
        let this = judge.clone();
        world.infra.on_commit(move |commit| this.infra(commit));
        judge
    }

    /// What was violated.
    pub fn violations(&self) -> Vec<String> {
        self.found.lock().violations.clone()
    }

    fn count(&self, world: &World, commit: &Commit) {
        let violation = self.found.lock().count(commit);
        if let Some(violation) = violation {
            self.violation(world, violation);
        }
    }

    fn violation(&self, world: &World, what: String) {
        world.trace.line(&world.environment, format_args!("VIOLATION: {what}"));
        self.found.lock().violations.push(what);
    }

    /// A write in a tenant's cluster.
    fn tenant(&self, id: &'static str, commit: &Commit) {
        let Some(world) = self.world.upgrade() else { return };
        world.trace.commit(&world.environment, id, commit);
        let Some(object) = commit.new.as_ref().or(commit.old.as_ref()) else { return };
        self.count(&world, commit);
        let mut found = self.found.lock();
        let name = match commit.kind.plural {
            "pods" => text(object, "/metadata/uid").to_owned(),
            "workloadrules" => commit.name.clone(),
            _ => return,
        };
        found.known.insert((id, name.clone()));
        found.changed.insert((id, name));
    }

    /// A write in the infrastructure cluster.
    fn infra(&self, commit: &Commit) {
        let Some(world) = self.world.upgrade() else { return };
        world.trace.commit(&world.environment, "infra", commit);
        let Some(object) = commit.new.as_ref().or(commit.old.as_ref()) else { return };
        self.count(&world, commit);
        if commit.kind.plural == "workloadrules" && commit.new.is_some() {
            let image = text(object, "/spec/template/spec/containers/0/image");
            self.newer(&world, format!("the rule {:?}/{}", commit.namespace, commit.name), image);
        }
        if commit.kind.plural != "pods" {
            return;
        }
        let Some(key) = companion(object) else { return };
        if commit.old.is_none() {
            self.created(&world, &key, object);
            self.newer(&world, format!("the companion of {key:?}"), text(object, "/spec/containers/0/image"));
        }
        let leaving = |object: &Option<Arc<Value>>| {
            object.as_ref().is_none_or(|object| !object["metadata"]["deletionTimestamp"].is_null())
        };
        if commit.old.is_some() && !leaving(&commit.old) && leaving(&commit.new) {
            self.deleted(&world, commit, &key);
        }
    }

    fn created(&self, world: &World, key: &Key, object: &Value) {
        let (id, rule, workload) = key;
        let same = |other: &Arc<Value>| companion(other).as_ref() == Some(key);
        if world.infra.list("pods").iter().filter(|other| same(other)).count() > 1 {
            self.violation(world, format!("two companions of {key:?}"));
        }
        let known = |what: &String| self.found.lock().known.contains(&(*id, what.clone()));
        if !known(rule) || !known(workload) {
            self.violation(world, format!("a companion of {key:?}, which that tenant never had"));
        } else if !self.has_changed(id, rule)
            && !self.has_changed(id, workload)
            && !wanted(world).contains_key(key)
        {
            self.violation(world, format!("a companion of {key:?}, which isn't wanted since the last rest"));
        }
        let tenants = object["spec"]["affinity"].to_string();
        if !tenants.contains(keys::NODE_TENANT) {
            self.violation(
                world,
                format!("the companion of {key:?} isn't kept on its tenant's DPUs: {tenants}"),
            );
        }
    }

    /// What is written has this image. Users give rules images with growing numbers, so a smaller one is an earlier state.
    fn newer(&self, world: &World, what: String, image: &str) {
        let number = image.rsplit('-').next().and_then(|number| number.parse().ok()).unwrap_or_default();
        let mut found = self.found.lock();
        let before = found.newest.insert(what.clone(), number).unwrap_or_default();
        let restored = found.restored;
        drop(found);
        if number < before && !restored {
            self.violation(world, format!("{what} goes back from image {before} to {number}"));
        }
    }

    /// A cluster is restored from a snapshot: earlier states come back.
    pub fn restored(&self) {
        let mut found = self.found.lock();
        found.restored = true;
    }

    /// The system has come to rest.
    pub fn rested(&self) {
        let mut found = self.found.lock();
        found.changed.clear();
        if std::mem::take(&mut found.restored) {
            found.newest.clear();
        }
    }

    /// How much processes have written, renewals of Leases left out.
    pub fn writes(&self) -> u64 {
        self.found.lock().writes
    }

    /// Whether a workload or a rule may have changed since the system came to rest the last time.
    fn has_changed(&self, tenant: &'static str, what: &str) -> bool {
        let found = self.found.lock();
        found.restored || found.changed.contains(&(tenant, what.to_owned()))
    }

    /// A companion is deleted that is wanted. That is a violation if its workload has not changed since the last rest and its rule
    /// is in the infrastructure cluster as the companion shows it: every replica can know that. Otherwise it is none as long as the
    /// companion is created again: a replica that another one has superseded acts until it hears of that, and news about a workload
    /// may arrive one after the other.
    fn deleted(&self, world: &World, commit: &Commit, key: &Key) {
        let Some(old) = &commit.old else { return };
        let image = text(old, "/spec/containers/0/image");
        if wanted(world).get(key).is_none_or(|wanted| wanted != image) {
            return;
        }
        let rule = world.infra.get("workloadrules", commit.namespace.as_deref(), &key.1);
        let same = rule.is_some_and(|rule| {
            text(&rule, "/spec/template/spec/containers/0/image") == image
                && rule["metadata"]["deletionTimestamp"].is_null()
        });
        if same && commit.client.starts_with("manager") && !self.has_changed(key.0, &key.2) {
            self.violation(
                world,
                format!("{} deletes the companion of {key:?}, which is wanted", commit.client),
            );
        } else {
            world.trace.line(
                &world.environment,
                format_args!("NOTE: the companion of {key:?} is deleted, and wanted"),
            );
        }
    }

    /// How the companions differ from those that are wanted now. Empty when the system has come to rest.
    pub fn missing(&self) -> Vec<String> {
        let Some(world) = self.world.upgrade() else { return Vec::new() };
        let wanted = wanted(&world);
        let mut there: BTreeMap<Key, Vec<(String, bool)>> = BTreeMap::new();
        for pod in world.infra.list("pods") {
            let Some(key) = companion(&pod) else { continue };
            let ready =
                text(&pod, "/status/phase") == "Running" && pod["metadata"]["deletionTimestamp"].is_null();
            let image = text(&pod, "/spec/containers/0/image").to_owned();
            there.entry(key).or_default().push((image, ready));
        }
        let mut missing = Vec::new();
        for (key, image) in &wanted {
            match there.get(key).map(Vec::as_slice) {
                Some([(found, true)]) if found == image => {}
                found => missing.push(format!("{key:?}: wanted {image}, there is {found:?}")),
            }
        }
        let unwanted = there.keys().filter(|key| !wanted.contains_key(*key));
        missing.extend(unwanted.map(|key| format!("{key:?}: isn't wanted")));
        missing
    }
}

/// The companion that a Pod of the infrastructure cluster is.
fn companion(pod: &Value) -> Option<Key> {
    let namespace = text(pod, "/metadata/namespace");
    let (id, _) = TENANTS.into_iter().find(|(id, _)| namespace == format!("tenant-{id}"))?;
    let label = |key: &str| pod["metadata"]["labels"].get(key).and_then(Value::as_str).map(str::to_owned);
    Some((id, label(keys::RULE)?, label(keys::WORKLOAD)?))
}

/// The companions that are wanted, with their images.
fn wanted(world: &World) -> BTreeMap<Key, String> {
    let mut wanted = BTreeMap::new();
    for (id, _) in TENANTS {
        let model = &world.tenants[id];
        let exists = |object: &Arc<Value>| object["metadata"]["deletionTimestamp"].is_null();
        let rules: Vec<_> = model.list("workloadrules").into_iter().filter(exists).collect();
        for pod in model.list("pods") {
            let ended = matches!(text(&pod, "/status/phase"), "Succeeded" | "Failed");
            if ended || text(&pod, "/metadata/namespace") != SHOP {
                continue;
            }
            for rule in &rules {
                let app = rule.pointer("/spec/workloadTerms/0/matchExpressions/0/values/0");
                if app == pod.pointer("/metadata/labels/app")
                    && text(rule, "/metadata/namespace") == RULES_NAMESPACE
                {
                    let image = text(rule, "/spec/template/spec/containers/0/image").to_owned();
                    let key =
                        (id, text(rule, "/metadata/name").to_owned(), text(&pod, "/metadata/uid").to_owned());
                    wanted.insert(key, image);
                }
            }
        }
    }
    wanted
}
