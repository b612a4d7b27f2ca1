//! What must hold in every history, and what must hold when it has come to rest.
//!
//! The truth is what the tenants' clusters hold, their Pods and rules, and the platform's rules in the infrastructure cluster. A
//! companion is wanted while its workload and its rule are there, the rule matches, and the template is the companion's. One that
//! isn't wanted may linger after the end of its workload.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use outrigger_core::keys;
use parking_lot::Mutex;
use serde_json::Value;

use crate::model::Commit;
use crate::world::hosts::allocated_to;
use crate::world::kubelet::{NEVER, REFUSED};
use crate::world::{AFFINITY, TENANTS, World, at, namespace_of, text};

mod amounts;
mod budgets;
mod devices;
mod dpus;
mod fallen;
mod found;
mod hosts;
mod lingering;
mod machines;
mod matching;
mod offloading;
mod orders;
mod others;
mod possible;
pub mod promises;
mod rollouts;
mod states;
mod tenants;
mod updates;
mod wanted;

use found::Found;
use states::States;
use wanted::{
    Place, Wanted, companion, has_no_origin, is_ready, lingers, mark, served, stuck, wanted, written,
};

/// By how much the clocks of two processes differ at most: both are ahead or behind by up to a minute.
const SKEW: Duration = Duration::from_secs(120);

/// Time in which a manager deletes a companion that is due.
const PROMPTLY: Duration = Duration::from_secs(10);

/// What the names of the platform's rules begin with here: a tenant's rule may have the same name.
const PLATFORM: &str = "platform:";

/// A companion: tenant, rule, uid of the workload, and where its rule has one on each DPU of a host the name of that.
type Key = (&'static str, String, String, Option<String>);

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
            judge.named(id, &world.host_names(id));
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

    /// Whether something was violated.
    pub fn has_found(&self) -> bool {
        !self.found.lock().violations.is_empty()
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
        if commit.kind.plural == "pods" {
            self.workload_grows(&world, id, commit);
        }
        self.ordered(&world, id, commit);
        self.event(&world, commit);
        let mut found = self.found.lock();
        if commit.kind.plural == "workloadrules" && devices::have_changed(commit) {
            found.other_devices.insert((id, commit.name.clone()));
        }
        if commit.kind.plural == "poddisruptionbudgets" {
            found.budget(id, commit);
        }
        found.possible.of_tenant(&world.tenants[id], id, commit);
        let (name, differs) = match commit.kind.plural {
            "pods" => (text(object, "/metadata/uid").to_owned(), matching::differs(commit)),
            "workloadrules" => (commit.name.clone(), true),
            // The claim of a Pod says where it is going to be.
            "resourceclaims" => {
                let uid = text(object, "/metadata/ownerReferences/0/uid").to_owned();
                let pool = |claim: &Option<Arc<Value>>| {
                    claim.as_ref().and_then(|claim| allocated_to(claim).map(str::to_owned))
                };
                let differs = pool(&commit.old) != pool(&commit.new);
                if differs {
                    found.placed_at.insert(uid.clone(), commit.time);
                }
                (uid, differs)
            }
            _ => return,
        };
        if commit.kind.plural == "pods" {
            found.workload((id, name.clone()), commit);
        }
        found.known.insert((id, name.clone()));
        if differs {
            found.changed.insert((id, name));
        }
    }

    /// A write in the infrastructure cluster.
    fn infra(&self, commit: &Commit) {
        let Some(world) = self.world.upgrade() else { return };
        world.trace.commit(&world.environment, "infra", commit);
        let Some(object) = commit.new.as_ref().or(commit.old.as_ref()) else { return };
        self.count(&world, commit);
        if commit.kind.plural == "adminworkloadrules" {
            let mut found = self.found.lock();
            for (id, _) in TENANTS {
                found.possible.rule((id, format!("{PLATFORM}{}", commit.name)), commit);
                let rule = (id, format!("{PLATFORM}{}", commit.name));
                found.known.insert(rule.clone());
                if devices::have_changed(commit) {
                    found.other_devices.insert(rule.clone());
                }
                found.changed.insert(rule);
            }
        }
        if commit.kind.plural == "workloadrules" && world.scope.foreign {
            self.foreign_written(commit);
        }
        self.others_written(&world, commit);
        if commit.kind.plural.ends_with("workloadrules") {
            self.rule_written(&world, commit);
        }
        if commit.kind.plural == "tenants" {
            self.tenant_written(commit);
        }
        self.offloading_written(&world, commit);
        self.devices_written(&world, commit);
        self.machine_written(&world, commit);
        self.dpu_written(&world, commit);
        if matches!(commit.kind.plural, "pods" | "nodes") {
            self.isolated(&world, commit);
        }
        if commit.kind.plural != "pods" {
            return;
        }
        let Some(key) = companion(object) else { return };
        self.companion_ready(commit);
        self.companion_falls(commit, &key);
        self.grows(&world, commit);
        self.left_open(&world, commit);
        self.outlives(&world, commit, &key);
        self.placed(&world, commit, &key);
        self.amounts_written(&world, commit, &key);
        self.updated(&world, commit, &key);
        if commit.subresource.as_deref() == Some("resize") {
            self.replaced(&world, commit, &key);
        }
        if commit.old.is_none() {
            self.created(&world, &key, object);
            self.hosted(&world, commit, &key, object);
            self.on_its_dpu(&world, commit, &key, object);
            self.companion_created(&world, commit, &key, object);
            self.was_possible(&world, &commit.client, &key);
            self.beside_the_holder(&world, commit, key.0);
        }
        let leaving = |object: &Option<Arc<Value>>| {
            object.as_ref().is_none_or(|object| !object["metadata"]["deletionTimestamp"].is_null())
        };
        if commit.old.is_some() && !leaving(&commit.old) && leaving(&commit.new) {
            self.found.lock().leaving.insert(text(object, "/metadata/uid").to_owned(), commit.time);
            self.replaced(&world, commit, &key);
            self.deleted(&world, commit, &key);
        }
    }

    /// A rule in a tenant's namespace of the infrastructure cluster is written. One that an administrator wrote is the truth itself.
    fn foreign_written(&self, commit: &Commit) {
        let Some((id, _)) =
            TENANTS.into_iter().find(|(id, _)| commit.namespace.as_deref() == Some(&namespace_of(id)))
        else {
            return;
        };
        let is_foreign = |rule: &Option<Arc<Value>>| rule.as_ref().is_some_and(|rule| has_no_origin(rule));
        if is_foreign(&commit.old) || is_foreign(&commit.new) {
            let mut found = self.found.lock();
            found.known.insert((id, commit.name.clone()));
            found.possible.rule((id, commit.name.clone()), commit);
            found.changed.insert((id, commit.name.clone()));
        }
    }

    /// Something breaks: until the next rest some invariants don't hold. `blind`: requests get lost, or watches stand still.
    pub fn disturbed(&self, blind: bool) {
        let mut found = self.found.lock();
        found.disturbed = true;
        found.blind |= blind;
    }

    /// No companion is ever on a DPU that isn't its tenant's. Looks at what a write is about: a Pod, or a Node and all Pods on it.
    fn isolated(&self, world: &World, commit: &Commit) {
        let Some(object) = &commit.new else { return };
        let pods = if commit.kind.plural == "pods" { vec![object.clone()] } else { world.infra.list("pods") };
        for pod in pods {
            let (Some(key), Some(node)) = (companion(&pod), pod["spec"]["nodeName"].as_str()) else {
                continue;
            };
            if commit.kind.plural == "nodes" && commit.name != node {
                continue;
            }
            // The Pods of a Node that is gone are being removed.
            let Some(node) = world.infra.get("nodes", None, node) else { continue };
            let owner = node["metadata"]["labels"][keys::NODE_TENANT].as_str();
            if owner != Some(key.0) {
                self.violation(world, format!("the companion of {key:?} is on a DPU of {owner:?}"));
            }
        }
    }

    fn created(&self, world: &World, key: &Key, object: &Value) {
        let (id, rule, workload, _) = key;
        let same = |other: &Arc<Value>| companion(other).as_ref() == Some(key);
        if world.infra.list("pods").iter().filter(|other| same(other)).count() > 1 {
            self.violation(world, format!("two companions of {key:?}"));
        }
        let known = |what: &String| self.found.lock().known.contains(&(*id, what.clone()));
        if !known(rule) || !known(workload) {
            self.violation(world, format!("a companion of {key:?}, which that tenant never had"));
        } else if !self.has_changed(id, rule)
            && !self.has_changed(id, workload)
            && !self.has_other_dpu(key)
            && !wanted(world).contains_key(key)
        {
            self.violation(world, format!("a companion of {key:?}, which isn't wanted since the last rest"));
        }
        let tenants = object["spec"]["affinity"].to_string();
        let terms = at(object, AFFINITY).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        let is_kept = |term: &Value| term.to_string().contains(keys::NODE_TENANT);
        if terms.is_empty() || !terms.iter().all(is_kept) {
            self.violation(
                world,
                format!("the companion of {key:?} isn't kept on its tenant's DPUs: {tenants}"),
            );
        }
    }

    /// A cluster is restored from a snapshot: earlier states come back.
    pub fn restored(&self) {
        let Some(world) = self.world.upgrade() else { return };
        TENANTS.iter().for_each(|(id, _)| self.named(id, &world.host_names(id)));
        let mut found = self.found.lock();
        found.restored = true;
        // A snapshot may name an earlier holder, who serves on without a claim that could be seen.
        found.holders.clear();
        found.lost.clear();
        found.possible.restored(&world);
    }

    /// The system has come to rest.
    pub fn rested(&self) {
        let Some(world) = self.world.upgrade() else { return };
        let mut found = self.found.lock();
        // What has changed at a tenant without an agent is still to be sent.
        found.changed.retain(|(id, _)| !world.has_agent(id));
        found.reborn.retain(|id| !world.has_agent(id));
        if std::mem::take(&mut found.moved) || found.restored {
            found.reborn.extend(TENANTS.map(|(id, _)| id).into_iter().filter(|id| !world.has_agent(id)));
        }
        found.possible.rested(|id| world.has_agent(id));
        for (_, states) in found.names.iter_mut().filter(|(id, _)| world.has_agent(id)) {
            states.drain(..states.len().saturating_sub(1));
        }
        found.offloadings.clear();
        found.dpus.clear();
        (found.disturbed, found.blind) = (false, false);
        found.replaced.clear();
        // Those of tenants without an agent change when it is there again.
        found.other_devices.retain(|(id, _)| !world.has_agent(id));
        found.count_all(&world);
        found.most_slots = 0;
        if std::mem::take(&mut found.restored) {
            found.states = States::default();
        }
    }

    /// How much processes have written, renewals of Leases left out.
    pub fn writes(&self) -> u64 {
        self.found.lock().writes
    }

    /// Whether a workload or a rule may have changed since the system came to rest the last time.
    fn has_changed(&self, tenant: &'static str, what: &str) -> bool {
        let found = self.found.lock();
        let anything = found.restored || found.moved || found.reborn.contains(tenant);
        anything || found.changed.contains(&(tenant, what.to_owned()))
    }

    /// A companion is deleted that is wanted. That is a violation if its workload has not changed since the last rest and its rule
    /// is in the infrastructure cluster as the companion shows it: every replica can know that. Otherwise it is none as long as the
    /// companion is created again: a replica that another one has superseded acts until it hears of that, and news about a workload
    /// may arrive one after the other.
    fn deleted(&self, world: &World, commit: &Commit, key: &Key) {
        let Some(old) = &commit.old else { return };
        let image = text(old, "/spec/containers/0/image");
        self.lingered(world, commit, key, old);
        self.replaced_for_an_image(world, commit, key, old);
        // One that has failed is replaced.
        let failed = text(old, "/status/phase") == "Failed";
        if failed || wanted(world).get(key).is_none_or(|wanted| wanted.image != image) {
            return;
        }
        let rule = served(world, key);
        let same = rule.is_some_and(|rule| {
            text(&rule, "/spec/template/spec/containers/0/image") == image
                && rule["metadata"]["deletionTimestamp"].is_null()
                // A PodDisruptionBudget may hold one with the devices of before beyond a rest.
                && devices::may_have_those_of(world, old, &rule)
        });
        let has_other_devices = self.found.lock().other_devices.contains(&(key.0, key.1.clone()));
        if same
            && !has_other_devices
            && commit.client.starts_with("manager")
            && !self.has_changed(key.0, &key.2)
            && !self.had_other_dpu(key, (commit.sent, rollouts::REPORTED))
            && !self.may_be_replaced(world, commit, key, old)
        {
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

    /// How the companions differ from those that are wanted now. Empty when the system has come to rest. `linger`: companions
    /// may outlive their workloads.
    pub fn missing(&self, linger: bool) -> Vec<String> {
        let Some(world) = self.world.upgrade() else { return Vec::new() };
        let mut wanted = wanted(&world);
        wanted.retain(|(id, ..), _| world.has_agent(id));
        let mut there: BTreeMap<Key, Vec<(String, bool)>> = BTreeMap::new();
        for pod in world.infra.list("pods") {
            let Some(key) = companion(&pod).filter(|(id, ..)| world.has_agent(id)) else { continue };
            if linger && !wanted.contains_key(&key) && lingers(&world, &key, &pod) {
                continue;
            }
            let ready = text(&pod, "/status/phase") == "Running"
                && is_ready(&pod)
                && pod["metadata"]["deletionTimestamp"].is_null()
                && mark(&pod).is_none();
            let image = text(&pod, "/spec/containers/0/image").to_owned();
            there.entry(key).or_default().push((image, ready));
        }
        let (mut missing, stuck) = (Vec::new(), stuck(&wanted));
        for (key, Wanted { image, place: at, pod, rule }) in &wanted {
            let refused = image.starts_with(REFUSED);
            let stays = refused || image.starts_with(NEVER) || stuck.contains(&(key.0, key.1.as_str()));
            let has_dpu = *at == Place::Dpu;
            match there.get(key).map(Vec::as_slice) {
                // A rollout of a template that never gets ready stops, and one that is refused doesn't begin.
                Some([(found, _)]) if stays && found != image => {}
                Some([(found, true)])
                    if found != image && rollouts::holds(&world.tenants[key.0], rule, pod) => {}
                Some([(_, is_ready)]) if image.starts_with(NEVER) && !is_ready => {}
                None if refused => {}
                Some(_) if *at == Place::NoHost => {
                    missing.push(format!(
                        "{key:?}: its workload's Node is in no host, and there is a companion"
                    ));
                }
                Some([(found, is_ready)]) if found == image && *is_ready == has_dpu => {}
                // One that runs stays where it is.
                Some([(found, true)]) if found == image && *at == Place::NoPrimary => {}
                // It runs until its turn in the rollout comes.
                Some([(found, _)]) if found == image && amounts::asks_for_too_much(rule) => {}
                None if !has_dpu => {}
                found => {
                    let (place, says) = (place(&world, key), says(&world, key));
                    missing.push(format!(
                        "{key:?}: wanted {image} (DPU: {has_dpu}), there is {found:?}{place}; its rule says {says}"
                    ));
                }
            }
        }
        let unwanted = there.keys().filter(|key| !wanted.contains_key(*key));
        missing.extend(unwanted.map(|key| format!("{key:?}: isn't wanted")));
        if missing.is_empty() {
            missing.extend(Self::devices_missing(&world, &stuck));
            missing.extend(Self::amounts_missing(&world, &wanted, &stuck));
            missing.extend(Self::offloadings_missing(&world));
            missing.extend(Self::slots_missing(&world));
            missing.extend(self.tenants_missing(&world));
            missing.extend(Self::counts_missing(&world));
            if world.scope.is_wide() {
                missing.extend(Self::facts_missing(&world));
                missing.extend(Self::orders_missing(&world));
                missing.extend(Self::slices_missing(&world));
            }
        }
        missing
    }
}

/// What the rule of a companion says of it, in the words of its conditions.
fn says(world: &World, key: &Key) -> String {
    let rule = written(world, key);
    let conditions = rule.as_ref().and_then(|rule| rule["status"]["conditions"].as_array());
    let said = conditions.into_iter().flatten().map(|condition| text(condition, "/message").to_owned());
    said.collect::<Vec<_>>().join(", ")
}

/// Where a companion that has no Node may run.
fn place(world: &World, key: &Key) -> String {
    let pods = world.infra.list("pods");
    let pod =
        pods.iter().find(|pod| companion(pod).as_ref() == Some(key) && !pod["spec"]["nodeName"].is_string());
    pod.and_then(|pod| at(pod, AFFINITY))
        .map_or_else(String::new, |terms| format!(", and may run on {terms}"))
}
