//! One look at a Machine: its pool, its reservations, its status.

use std::collections::{BTreeSet, HashSet};
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

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
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tracing::info;

use super::cache::{group, is_owned_by};
use super::controller::{Machines, is_refusal};
use super::objects::{self, is_in_the_way, says};
use crate::worker::Action;
use crate::writes::{self, Version, gone, only};

/// What a look has found out.
#[derive(Default)]
struct Findings {
    /// What somebody has to do something about.
    problems: Vec<String>,
    /// What is not told, and has to be tried again.
    retry: Option<kube::Error>,
}

impl Findings {
    /// Takes note of how a write ended. What the API server refuses is somebody's to put right.
    fn note<T>(&mut self, what: &str, result: Result<T, kube::Error>) -> Option<T> {
        match result {
            Ok(value) => return Some(value),
            Err(error) => {
                if is_refusal(&error) {
                    self.problems.push(format!("{what}: {error}"));
                }
                self.retry = Some(error);
            }
        }
        None
    }
}

impl Machines {
    pub(super) async fn machine(&self, name: &str) -> Result<Action, kube::Error> {
        let there = |object: &Arc<Machine>| object.metadata.deletion_timestamp.is_none();
        let Some(object) = self.context.machines.get_machine(name).filter(there) else {
            // The garbage collector does the rest, by the owner references.
            self.ledgers.lock().remove(name);
            return Ok(Action::Done);
        };
        let uid = object.uid().unwrap_or_default();
        let mut found = Findings::default();
        let mut available = object.status.clone().unwrap_or_default().available_machines;
        let mut again = None;
        match self.judge(&object) {
            Err(problem) => found.problems.push(problem),
            Ok((machine, group)) => {
                self.keep_pool(&object, group, &mut found).await;
                let plans = self.plans(&object, &machine, group);
                for (type_, plan) in machine.types.iter().zip(&plans) {
                    if !self.context.leadership.leads() {
                        return Ok(Action::Done);
                    }
                    // The others do without it.
                    if let Some(problem) = name_fault(group, &type_.name) {
                        found.problems.push(problem);
                        continue;
                    }
                    self.keep_type(&object, &machine, group, type_, plan, &mut found).await;
                }
                self.tidy(&uid, group, &machine, &mut found).await;
                again = plans.iter().filter_map(|plan| plan.again).min();
                available = machine
                    .types
                    .iter()
                    .zip(&plans)
                    .map(|(type_, plan)| AvailableMachine {
                        name: type_.name.clone(),
                        usage: plan.usage.into(),
                    })
                    .collect();
            }
        }
        self.write_machine(&object, available, &found.problems).await?;
        match found.retry {
            Some(error) => Err(error),
            None => Ok(again.map_or(Action::Done, Action::Requeue)),
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
        if let Some(first) = self.context.machines.first_of(group)
            && first != machine.name
        {
            return Err(format!(
                "metadata.labels[{}]: is {group}, which Machine {first} has already; choose another group",
                keys::MACHINE_GROUP
            ));
        }
        let mut names = HashSet::new();
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
        ledgers.is_of(&uid, group);
        let ledgers = &mut ledgers.types;
        ledgers.retain(|name, _| machine.type_named(name).is_some());
        let step = |type_: &MachineType| {
            let ledger = ledgers.entry(type_.name.clone()).or_insert_with(|| {
                // What the status says is of this group only if its reservations are there.
                let set = self.context.machines.get_set(&reservation_name(group, &type_.name));
                let usage =
                    set.filter(|set| is_owned_by(&**set, &uid)).and_then(|_| object.usage(&type_.name));
                Ledger::new(usage.and_then(|usage| usage.slots).unwrap_or_default())
            });
            let plan = ledger.step(&self.context.machines.seen(machine, group, type_), now);
            offered(plan, group, &type_.name)
        };
        machine.types.iter().map(step).collect()
    }

    async fn keep_pool(&self, object: &Machine, group: &str, found: &mut Findings) {
        let name = pool_name(group);
        let wanted = objects::pool(object, group);
        let live = self.context.machines.get_pool(&name);
        let what = format!("MachineNodePool {name}");
        if let Some(live) = &live {
            if let Some(problem) = foreign(&**live, &what, object) {
                found.problems.push(problem);
                return;
            }
            if live.metadata.deletion_timestamp.is_some() {
                // Its nodes are being cleaned; it is made anew then.
                return;
            }
            let status = live.status.as_ref();
            let ready = status.and_then(|status| status.conditions.iter().find(|c| c.type_ == "Ready"));
            if let Some(ready) = ready.filter(|ready| ready.status == "False") {
                found.problems.push(ready.message.clone());
            }
            if live.spec == objects::pool_spec(object, group) && says(&**live, &labels_only(&wanted)) {
                return;
            }
        }
        let pools: Api<MachineNodePool> = Api::all(self.context.client.clone());
        if let Some(pool) = found.note(&what, apply(&pools, &name, &wanted).await) {
            self.context.feeds.pools.answer(pool);
        }
    }

    async fn keep_type(
        &self,
        object: &Machine,
        machine: &domain::Machine,
        group: &str,
        type_: &MachineType,
        plan: &Plan,
        found: &mut Findings,
    ) {
        let name = reservation_name(group, &type_.name);
        let namespace = &self.context.args.core_namespace;
        let what = format!("Service {namespace}/{name}");
        let wanted = objects::service(object, group, &type_.name, &self.context.args);
        let live = self.context.machines.get_service(&name);
        let services: Api<Service> = Api::namespaced(self.context.client.clone(), namespace);
        let differs = match &live {
            Some(live) => live.metadata.deletion_timestamp.is_none() && !says(&**live, &wanted),
            None => is_free(&services, &name, &wanted, &what, object, found).await,
        };
        if let Some(problem) = live.as_deref().and_then(|live| not_ours(live, &wanted, &what, object)) {
            found.problems.push(problem);
        } else if differs && let Some(service) = found.note(&what, apply(&services, &name, &wanted).await) {
            self.context.feeds.services.answer(service);
        }
        if plan.left_out {
            let message = format!(
                "{} of {} slots of machine type {} find no place on the nodes of group {group}; lower available, or add nodes",
                plan.short, type_.available, type_.name
            );
            self.context.events.machine(&object.object_ref(&()), "NoRoom", &message).await;
        }
        if !serves(machine, &type_.name) {
            return;
        }
        let what = format!("StatefulSet {namespace}/{name}");
        let sets: Api<StatefulSet> = Api::namespaced(self.context.client.clone(), namespace);
        let wanted = objects::stateful_set(object, group, type_, plan.replicas, &self.context.args);
        match self.context.machines.get_set(&name) {
            Some(live) if not_ours(&*live, &wanted, &what, object).is_some() => {
                found.problems.extend(not_ours(&*live, &wanted, &what, object));
                return;
            }
            // It is made anew when it is gone.
            Some(live) if live.metadata.deletion_timestamp.is_some() => return,
            Some(live) if is_in_the_way(&live, &wanted) => {
                let deleted = gone(sets.delete(&name, &only(&live.uid().unwrap_or_default())).await);
                if found.note(&what, deleted).is_some() {
                    info!(statefulset = name, "deleted: it can't become what it should be, and is made anew");
                }
                return;
            }
            Some(live) if says(&*live, &wanted) => return,
            Some(_) => {}
            None => {
                if let Some(problem) = self.no_priority(found).await {
                    found.problems.push(problem);
                    return;
                }
                if !is_free(&sets, &name, &wanted, &what, object, found).await {
                    return;
                }
            }
        }
        if let Some(set) = found.note(&what, apply(&sets, &name, &wanted).await) {
            info!(statefulset = name, replicas = plan.replicas, "written");
            self.context.feeds.sets.answer(set);
        }
    }

    /// Without their PriorityClass no reservation could be made, and none would say why.
    async fn no_priority(&self, found: &mut Findings) -> Option<String> {
        let classes: Api<PriorityClass> = Api::all(self.context.client.clone());
        let class = classes.get_opt(keys::RESERVATION_PRIORITY).await;
        let missing = found.note("PriorityClass", class)?.is_none();
        missing.then(|| {
            found.retry.get_or_insert_with(|| {
                kube::Error::Api(Box::new(kube::core::Status::failure("", "NotFound").with_code(404)))
            });
            format!(
                "PriorityClass {}: is missing; apply deploy/base/machines/rbac.yaml",
                keys::RESERVATION_PRIORITY
            )
        })
    }

    /// Deletes what belongs to the Machine and should not be there any more.
    async fn tidy(&self, uid: &str, group: &str, machine: &domain::Machine, found: &mut Findings) {
        let (pools, sets, services) = self.context.machines.belongings(uid);
        let pool = pool_name(group);
        let names = |used: bool| -> BTreeSet<String> {
            let types = machine.types.iter().filter(|t| !used || serves(machine, &t.name));
            types.map(|t| reservation_name(group, &t.name)).collect()
        };
        let (all, used) = (names(false), names(true));
        let namespace = &self.context.args.core_namespace;
        for object in pools.iter().filter(|object| object.name_any() != pool) {
            self.delete(&Api::<MachineNodePool>::all(self.context.client.clone()), &**object, found).await;
        }
        for object in sets.iter().filter(|object| !used.contains(&object.name_any())) {
            self.delete(
                &Api::<StatefulSet>::namespaced(self.context.client.clone(), namespace),
                &**object,
                found,
            )
            .await;
        }
        for object in services.iter().filter(|object| !all.contains(&object.name_any())) {
            self.delete(
                &Api::<Service>::namespaced(self.context.client.clone(), namespace),
                &**object,
                found,
            )
            .await;
        }
    }

    async fn delete<K>(&self, api: &Api<K>, object: &K, found: &mut Findings)
    where
        K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug,
    {
        if object.meta().deletion_timestamp.is_some() {
            return;
        }
        let (kind, name) = (K::kind(&()), object.name_any());
        let deleted = gone(api.delete(&name, &only(&object.uid().unwrap_or_default())).await);
        if found.note(&format!("{kind} {name}"), deleted).is_some() {
            info!(%kind, name, "deleted: its Machine has no use for it any more");
        }
    }

    async fn write_machine(
        &self,
        object: &Machine,
        available_machines: Vec<AvailableMachine>,
        problems: &[String],
    ) -> Result<(), kube::Error> {
        let before = object.status.clone().unwrap_or_default();
        let (ready, conditions) = self.conditions(object, &before.conditions, problems);
        let wanted = MachineStatus { conditions, available_machines };
        if object.status.as_ref() == Some(&wanted) {
            return Ok(());
        }
        let machines: Api<Machine> = Api::all(self.context.client.clone());
        // Lists are replaced as a whole; one that is empty has to be said.
        let status = json!({"conditions": wanted.conditions, "availableMachines": wanted.available_machines});
        let written = writes::status(&machines, &Version::of(object), status).await?;
        self.context.feeds.machines.answer(written);
        self.tell(&object.object_ref(&()), &before.conditions, &ready).await;
        Ok(())
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

/// That an object of this name belongs to somebody else, in words.
fn foreign<K: Resource>(live: &K, what: &str, machine: &Machine) -> Option<String> {
    let mut others = live.owner_references().iter().filter(|owner| owner.controller == Some(true));
    let owner = others.next()?;
    if is_owned_by(live, &machine.uid().unwrap_or_default()) {
        return None;
    }
    // One of an earlier life goes by itself.
    Some(format!("{what}: belongs to {} {}; delete it, or wait until it is gone", owner.kind, owner.name))
}

/// That a Service or StatefulSet of this name is not the Machine's, in words. Where it has no controller its labels say whose
/// it is: the namespace may be home to others too.
fn not_ours<K: Resource>(live: &K, wanted: &Value, what: &str, machine: &Machine) -> Option<String> {
    if is_owned_by(live, &machine.uid().unwrap_or_default()) {
        return None;
    }
    if let Some(problem) = foreign(live, what, machine) {
        return Some(problem);
    }
    let labels = wanted.pointer("/metadata/labels").and_then(Value::as_object);
    let has = |(key, value): (&String, &Value)| live.labels().get(key).map(String::as_str) == value.as_str();
    let all = labels.is_some_and(|labels| labels.iter().all(has));
    (!all).then(|| format!("{what}: is not of this Machine; delete it, or choose another group or type name"))
}

/// Whether nobody else has a name that the watch shows nothing of: it shows only what has our label. Else says who, and
/// that it has to be tried again, for the watch won't tell when that one goes.
async fn is_free<K>(
    api: &Api<K>,
    name: &str,
    wanted: &Value,
    what: &str,
    machine: &Machine,
    found: &mut Findings,
) -> bool
where
    K: Resource + Clone + DeserializeOwned + Debug,
{
    let Some(live) = found.note(what, api.get_opt(name).await) else { return false };
    let Some(live) = live else { return true };
    let problem = not_ours(&live, wanted, what, machine);
    if problem.is_none() && live.meta().deletion_timestamp.is_none() {
        return true;
    }
    found.problems.extend(problem);
    found.retry.get_or_insert_with(|| {
        kube::Error::Api(Box::new(kube::core::Status::failure("", "Conflict").with_code(409)))
    });
    false
}

/// What of the pool is compared apart from its spec, which is compared as a whole.
fn labels_only(wanted: &Value) -> Value {
    json!({"metadata": wanted["metadata"], "spec": {}})
}

async fn apply<K>(api: &Api<K>, name: &str, wanted: &Value) -> Result<K, kube::Error>
where
    K: Resource + Clone + DeserializeOwned + Serialize + Debug,
{
    api.patch(name, &writes::apply(), &Patch::Apply(wanted)).await
}

/// How long a Pod's changes are gathered before a Machine is looked at: they come in crowds.
pub(crate) const SETTLE: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_type_without_a_name_for_reservations_has_no_slots_and_others_keep_theirs() {
        let seen = domain::usage::Seen { maximum: 4, in_pool: true, used: 2, ..Default::default() };
        let plan = Ledger::new(4).step(&seen, Duration::ZERO);
        assert_eq!(offered(plan, "g", "t").usage.slots, plan.usage.slots);
        assert_ne!(plan.usage.slots, Some(0));
        let overlong = offered(plan, "g", &"t".repeat(60)).usage;
        assert_eq!((overlong.slots, overlong.used), (Some(0), 2));
    }

    #[test]
    fn what_others_have_in_the_namespace_is_not_taken_over() {
        let machine: Machine = serde_json::from_value(json!({"apiVersion": "imperator.tenzen-y.io/v1alpha1",
            "kind": "Machine", "metadata": {"name": "m", "uid": "u"}, "spec": {"nodePool": [], "machineTypes": []}}))
        .unwrap();
        let labels = json!(domain::reservation_labels("g", "t"));
        let wanted = json!({"metadata": {"labels": labels}});
        let owner = |uid: &str, controller: bool| json!([{"apiVersion": "v1", "kind": "K", "name": "k", "uid": uid, "controller": controller}]);
        let part = json!({keys::POD_ROLE: keys::RESERVATION});
        for (name, labels, owners, ours) in [
            ("owned", &json!({}), owner("u", true), true),
            ("no controller, labelled", &labels, json!([]), true),
            ("owned without a controller, labelled", &labels, owner("v", false), true),
            ("nobody's", &json!({}), json!([]), false),
            ("some labels", &part, json!([]), false),
            ("labelled, of another", &labels, owner("v", true), false),
        ] {
            let live: Service = serde_json::from_value(
                json!({"metadata": {"name": "g-t", "labels": labels, "ownerReferences": owners}}),
            )
            .unwrap();
            assert_eq!(not_ours(&live, &wanted, "Service core/g-t", &machine).is_none(), ours, "{name}");
        }
    }
}
