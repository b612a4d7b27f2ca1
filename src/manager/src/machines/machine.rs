//! A step for a Machine: its pool, its reservations, its status.

use outrigger_core::map::HashSet;
use std::collections::BTreeSet;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::scheduling::v1::PriorityClass;
use kube::api::{Api, Patch};
use kube::{Resource, ResourceExt};
use outrigger_api::machine::{AvailableMachine, MachineStatus};
use outrigger_api::{Machine, MachineNodePool};
use outrigger_core::keys;
use outrigger_core::machine::usage::{Ledger, Plan};
use outrigger_core::machine::{self as domain, MachineType, name_fault, pool_name, reservation_name};
use outrigger_core::reason::Cause;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tracing::info;

use super::cache::{group, is_owned_by};
use super::controller::{Machines, is_refusal};
use super::objects::{self, is_up_to_date, needs_recreation};
use crate::context::Context;
use crate::worker::Action;
use crate::writes::{self, Version, only};

impl Machines {
    pub(super) async fn machine(&self, name: &str) -> Result<Action, kube::Error> {
        let exists = |object: &Arc<Machine>| object.metadata.deletion_timestamp.is_none();
        let Some(object) = self.context.caches.machines.get(|all| &all.machines, name).filter(exists) else {
            // The garbage collector does the rest, by the owner references.
            self.ledgers.lock().remove(name);
            return Ok(Action::Done);
        };
        let mut available = object.status.clone().unwrap_or_default().available_machines;
        let (machine, group) = match self.judge(&object) {
            Ok(judged) => judged,
            Err(problem) => {
                self.write_machine(&object, available, &[problem]).await?;
                return Ok(Action::Done);
            }
        };
        let plans = self.plans(&object, &machine, group);
        let mut step = MachineStep {
            context: &self.context,
            object: &object,
            machine: &machine,
            group,
            problems: Vec::new(),
            failed: None,
            waits: false,
            is_current: None,
        };
        step.keep_pool().await;
        for (type_, plan) in machine.types.iter().zip(&plans) {
            if !self.context.replica.leadership.leads() {
                // If it leads again before the controller notices, nothing else would bring the key back.
                return Ok(Action::Wait);
            }
            // A type without valid names is left out; the others are served.
            match name_fault(group, &type_.name) {
                Some(problem) => step.problems.push(problem),
                None => step.keep_type(type_, plan).await,
            }
        }
        step.delete_unused().await;
        let usage_of = |(type_, plan): (&MachineType, &Plan)| AvailableMachine {
            name: type_.name.clone(),
            usage: plan.usage.into(),
        };
        available = machine.types.iter().zip(&plans).map(usage_of).collect();
        self.write_machine(&object, available, &step.problems).await?;
        match step.failed {
            Some(error) => Err(error),
            None if step.waits => Ok(Action::Wait),
            None => {
                Ok(plans.iter().filter_map(|plan| plan.again).min().map_or(Action::Done, Action::Requeue))
            }
        }
    }

    /// The Machine as the domain has it, and its group; else what is wrong with it.
    fn judge<'a>(&self, object: &'a Machine) -> Result<(domain::Machine, &'a str), String> {
        let machine = object
            .compile()
            .map_err(|problems| problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))?;
        let Some(group) = group(object) else {
            return Err(format!(
                "metadata.labels[{}]: is missing; name the group there",
                keys::MACHINE_GROUP
            ));
        };
        if let Some(first) = self.context.caches.machines.first_of(group)
            && first != machine.name
        {
            return Err(format!(
                "metadata.labels[{}]: is {group}, which Machine {first} has already; choose another group",
                keys::MACHINE_GROUP
            ));
        }
        let mut names = HashSet::default();
        for type_ in &machine.types {
            if !names.insert(&type_.name) {
                return Err(format!("spec.machineTypes: {} is there twice; take one away", type_.name));
            }
        }
        Ok((machine, group))
    }

    /// How the slots of each type are used, and what follows.
    fn plans(&self, object: &Machine, machine: &domain::Machine, group: &str) -> Vec<Plan> {
        let now = self.context.environment.clock.now() - self.began;
        let mut all = self.ledgers.lock();
        let ledgers = all.entry(machine.name.clone()).or_default();
        let uid = object.uid().unwrap_or_default();
        ledgers.reset_unless(&uid, group);
        let ledgers = &mut ledgers.types;
        ledgers.retain(|name, _| machine.type_named(name).is_some());
        let step = |type_: &MachineType| {
            let ledger = ledgers.entry(type_.name.clone()).or_insert_with(|| {
                // What the status says is of this group only if its reservations are there.
                let set =
                    self.context.caches.machines.get(|all| &all.sets, &reservation_name(group, &type_.name));
                let usage =
                    set.filter(|set| is_owned_by(&**set, &uid)).and_then(|_| object.usage(&type_.name));
                Ledger::new(usage.and_then(|usage| usage.slots).unwrap_or_default())
            });
            let plan = ledger.step(&self.context.caches.machines.seen(machine, group, type_), now);
            offered(plan, group, &type_.name)
        };
        machine.types.iter().map(step).collect()
    }

    async fn write_machine(
        &self,
        object: &Machine,
        available_machines: Vec<AvailableMachine>,
        problems: &[String],
    ) -> Result<(), kube::Error> {
        let before = object.status.clone().unwrap_or_default();
        let (ready, conditions) = self.conditions(object, &before.conditions, problems);
        let observed_generation = object.metadata.generation;
        let wanted = MachineStatus { observed_generation, conditions, available_machines };
        self.context.caches.machines.machine_status(object.name_any(), wanted.clone());
        if object.status.as_ref() == Some(&wanted) {
            return Ok(());
        }
        let machines: Api<Machine> = Api::all(self.context.client.clone());
        // Lists are replaced as a whole; one that is empty has to be said.
        let status = json!({
            "observedGeneration": wanted.observed_generation,
            "conditions": wanted.conditions,
            "availableMachines": wanted.available_machines,
        });
        let written = writes::status(&machines, &Version::of(object), status).await?;
        self.context.feeds.machines.answer(written);
        self.report(&object.object_ref(&()), &before.conditions, &ready).await;
        Ok(())
    }
}

/// A step for a Machine: its pool, and the Service and the StatefulSet of each of its types.
struct MachineStep<'a> {
    context: &'a Context,
    object: &'a Machine,
    machine: &'a domain::Machine,
    group: &'a str,
    /// Problems that an administrator has to solve.
    problems: Vec<String>,
    /// A write that failed and has to be retried.
    failed: Option<kube::Error>,
    /// The step has to be retried without an event: an object is in the way, or the cache is behind the API server.
    waits: bool,
    /// Whether the API server has the Machine, where it was asked.
    is_current: Option<bool>,
}

impl MachineStep<'_> {
    /// Records how a write ended. A refusal by the API server is a problem that an administrator has to solve.
    fn note<T>(&mut self, what: &str, result: Result<T, kube::Error>) -> Option<T> {
        match result {
            Ok(value) => return Some(value),
            Err(error) => {
                if is_refusal(&error) {
                    self.problems.push(format!("{what}: {error}"));
                }
                self.failed = Some(error);
            }
        }
        None
    }

    /// The objects of a kind in the namespace of reservations.
    fn api<K>(&self) -> Api<K>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
    {
        Api::namespaced(self.context.client.clone(), &self.context.replica.args.core_namespace)
    }

    async fn keep_pool(&mut self) {
        let name = pool_name(self.group);
        let wanted = objects::pool(self.object, self.group);
        let what = format!("MachineNodePool {name}");
        if let Some(live) = self.context.caches.machines.get(|all| &all.pools, &name) {
            if let Some(problem) = other_owner_problem(&*live, &what, self.object) {
                return self.problems.push(problem);
            }
            if live.metadata.deletion_timestamp.is_some() {
                // Its nodes are being cleaned; it is created again afterwards.
                return;
            }
            let status = live.status.as_ref();
            let ready = status.and_then(|status| status.conditions.iter().find(|c| c.type_ == "Ready"));
            self.problems.extend(ready.filter(|c| c.status == "False").map(|c| c.message.clone()));
            // The spec is compared as a whole.
            let others = json!({"metadata": wanted["metadata"], "spec": {}});
            if live.spec == objects::pool_spec(self.object, self.group) && is_up_to_date(&*live, &others) {
                return;
            }
        }
        let pools: Api<MachineNodePool> = Api::all(self.context.client.clone());
        if let Some(pool) = self.apply(&pools, &name, &wanted, &what).await {
            self.context.feeds.pools.answer(pool);
        }
    }

    async fn keep_type(&mut self, type_: &MachineType, plan: &Plan) {
        let name = reservation_name(self.group, &type_.name);
        self.keep_service(&name, type_).await;
        if plan.left_out {
            let message = format!(
                "{} of {} slots of machine type {} find no place on the nodes of group {}; lower available, or add nodes",
                plan.short, type_.available, type_.name, self.group
            );
            self.context
                .telemetry
                .events
                .machine(&self.object.object_ref(&()), Cause::NoRoom, &message)
                .await;
        }
        if let Some(cause) = self.context.caches.machines.trouble(self.group, &type_.name) {
            let args = &self.context.replica.args;
            self.problems.push(format!(
                "StatefulSet {}/{name}: its reservations don't run ({cause}), because the program of image {} ends or can't be \
                 started; give the manager another --reservation-image, or --reservation-sleeps=true where the image has \
                 a program sleep",
                args.core_namespace, args.reservation_image
            ));
        }
        if serves(self.machine, &type_.name) {
            self.keep_set(&name, type_, plan.replicas).await;
        }
    }

    async fn keep_service(&mut self, name: &str, type_: &MachineType) {
        let (services, args) = (self.api::<Service>(), &self.context.replica.args);
        let what = format!("Service {}/{name}", args.core_namespace);
        let wanted = objects::service(self.object, self.group, &type_.name, args);
        let live = self.context.caches.machines.get(|all| &all.services, name);
        if self.has_to_write(&services, live.as_deref(), name, &wanted, &what).await
            && let Some(service) = self.apply(&services, name, &wanted, &what).await
        {
            self.context.feeds.services.answer(service);
        }
    }

    async fn keep_set(&mut self, name: &str, type_: &MachineType, replicas: u32) {
        let (sets, args) = (self.api::<StatefulSet>(), &self.context.replica.args);
        let what = format!("StatefulSet {}/{name}", args.core_namespace);
        let wanted = objects::stateful_set(self.object, self.group, type_, replicas, args);
        let live = self.context.caches.machines.get(|all| &all.sets, name);
        if live.is_none() && !self.has_priority().await
            || !self.has_to_write(&sets, live.as_deref(), name, &wanted, &what).await
        {
            return;
        }
        if let Some(live) = live.filter(|live| needs_recreation(live, &wanted)) {
            return self.delete(&sets, &*live, "deleted StatefulSet: its fields can't be changed").await;
        }
        if let Some(set) = self.apply(&sets, name, &wanted, &what).await {
            info!(statefulset = name, replicas, "StatefulSet written");
            self.context.feeds.sets.answer(set);
        }
    }

    /// Whether the PriorityClass of reservations exists: without it no reservation could be created, and none would say why.
    async fn has_priority(&mut self) -> bool {
        const CLASS: &str = keys::RESERVATION_PRIORITY;
        let classes: Api<PriorityClass> = Api::all(self.context.client.clone());
        let class = classes.get_opt(CLASS).await;
        let Some(class) = self.note("PriorityClass", class) else { return false };
        if class.is_none() {
            self.waits = true;
            let problem = format!("PriorityClass {CLASS}: is missing; apply deploy/base/machines/rbac.yaml");
            self.problems.push(problem);
        }
        class.is_some()
    }

    /// Deletes objects of the Machine that it no longer needs.
    async fn delete_unused(&mut self) {
        const UNUSED: &str = "deleted: its Machine no longer needs it";
        let (cache, uid) = (&self.context.caches.machines, self.object.uid().unwrap_or_default());
        let names = |types: &mut dyn Iterator<Item = &MachineType>| -> BTreeSet<String> {
            types.map(|t| reservation_name(self.group, &t.name)).collect()
        };
        let all = names(&mut self.machine.types.iter());
        let served = names(&mut self.machine.types.iter().filter(|t| serves(self.machine, &t.name)));
        let pool = pool_name(self.group);
        for object in cache.owned(|all| &all.pools, &uid).iter().filter(|object| object.name_any() != pool) {
            self.delete(&Api::all(self.context.client.clone()), &**object, UNUSED).await;
        }
        for object in
            cache.owned(|all| &all.sets, &uid).iter().filter(|object| !served.contains(&object.name_any()))
        {
            self.delete(&self.api(), &**object, UNUSED).await;
        }
        for object in
            cache.owned(|all| &all.services, &uid).iter().filter(|object| !all.contains(&object.name_any()))
        {
            self.delete(&self.api(), &**object, UNUSED).await;
        }
    }

    async fn delete<K>(&mut self, api: &Api<K>, object: &K, message: &'static str)
    where
        K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug,
    {
        if object.meta().deletion_timestamp.is_some() {
            return;
        }
        if !self.is_current().await {
            return;
        }
        let (kind, name) = (K::kind(&()), object.name_any());
        let deleted = writes::deleted(api.delete(&name, &only(&object.uid().unwrap_or_default())).await);
        if self.note(&format!("{kind} {name}"), deleted).is_some() {
            info!(%kind, name, "{message}");
        }
    }

    async fn apply<K>(&mut self, api: &Api<K>, name: &str, wanted: &Value, what: &str) -> Option<K>
    where
        K: Resource + Clone + DeserializeOwned + Serialize + Debug,
    {
        if !self.is_current().await {
            return None;
        }
        let applied = api.patch(name, &writes::apply(), &Patch::Apply(wanted)).await;
        self.note(what, applied)
    }

    /// Whether a Service or StatefulSet has to be written: it differs and is the Machine's own, or it is missing and its name is free.
    async fn has_to_write<K>(
        &mut self,
        api: &Api<K>,
        live: Option<&K>,
        name: &str,
        wanted: &Value,
        what: &str,
    ) -> bool
    where
        K: Resource + Clone + DeserializeOwned + Serialize + Debug,
    {
        let Some(live) = live else { return self.is_free(api, name, wanted, what).await };
        if let Some(problem) = unowned_problem(live, wanted, what, self.object) {
            self.problems.push(problem);
            return false;
        }
        // It is created again when it is deleted.
        live.meta().deletion_timestamp.is_none() && !is_up_to_date(live, wanted)
    }

    /// Whether the API server has the Machine as it is here. It is asked before an object is written or deleted: by a cache that is behind, a
    /// new leader would undo what the one before it has done, and create objects that the garbage collector deletes, because their owner
    /// doesn't exist.
    async fn is_current(&mut self) -> bool {
        if let Some(is_current) = self.is_current {
            return is_current;
        }
        let machines: Api<Machine> = Api::all(self.context.client.clone());
        let live = machines.get_opt(&self.object.name_any()).await;
        let Some(live) = self.note("Machine", live) else {
            self.is_current = Some(false);
            return false;
        };
        let is_current = live.as_ref().is_some_and(|live| {
            live.uid() == self.object.uid()
                && live.metadata.generation == self.object.metadata.generation
                && live.metadata.deletion_timestamp.is_none()
        });
        if let Some(live) = live {
            self.context.feeds.machines.answer(live);
        }
        self.waits |= !is_current;
        *self.is_current.insert(is_current)
    }

    /// Whether nobody else has a name that the watch shows nothing of: it shows only objects with our label. Otherwise that is a
    /// problem, and the step has to be retried: the watch won't tell when the other object is deleted.
    async fn is_free<K>(&mut self, api: &Api<K>, name: &str, wanted: &Value, what: &str) -> bool
    where
        K: Resource + Clone + DeserializeOwned + Debug,
    {
        let live = api.get_opt(name).await;
        let Some(live) = self.note(what, live) else { return false };
        let Some(live) = live else { return true };
        let problem = unowned_problem(&live, wanted, what, self.object);
        if problem.is_none() && live.meta().deletion_timestamp.is_none() {
            return true;
        }
        self.problems.extend(problem);
        self.waits = true;
        false
    }
}

/// A type that can't have reservations has no slots.
fn offered(mut plan: Plan, group: &str, type_: &str) -> Plan {
    if name_fault(group, type_).is_some() {
        plan.usage.slots = Some(0);
    }
    plan
}

/// Whether some node of the pool serves a type.
fn serves(machine: &domain::Machine, type_: &str) -> bool {
    machine.pool.iter().any(|node| node.types.iter().any(|name| name == type_))
}

/// The problem that another controller owns an object of this name.
fn other_owner_problem<K: Resource>(live: &K, what: &str, machine: &Machine) -> Option<String> {
    let mut others = live.owner_references().iter().filter(|owner| owner.controller == Some(true));
    let owner = others.next()?;
    if is_owned_by(live, &machine.uid().unwrap_or_default()) {
        return None;
    }
    // The garbage collector deletes an object of a former Machine of that name.
    Some(format!("{what}: belongs to {} {}; delete it, or wait until it is gone", owner.kind, owner.name))
}

/// The problem that a Service or StatefulSet of this name is not the Machine's. Where it has no controller its labels tell: the
/// namespace may be used by others too.
fn unowned_problem<K: Resource>(live: &K, wanted: &Value, what: &str, machine: &Machine) -> Option<String> {
    if is_owned_by(live, &machine.uid().unwrap_or_default()) {
        return None;
    }
    if let Some(problem) = other_owner_problem(live, what, machine) {
        return Some(problem);
    }
    let labels = wanted.pointer("/metadata/labels").and_then(Value::as_object);
    let has = |(key, value): (&String, &Value)| live.labels().get(key).map(String::as_str) == value.as_str();
    let all = labels.is_some_and(|labels| labels.iter().all(has));
    (!all).then(|| format!("{what}: is not of this Machine; delete it, or choose another group or type name"))
}

/// How long changes of Pods are collected before a step for their Machine: they come in bursts.
pub(crate) const SETTLE: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests;
