//! What a Pod is to Outrigger: a companion, a tenant's, offloaded, a guest.

use outrigger_admission::provenance::Origin;
use outrigger_core::ids::{RuleName, TenantId};
use outrigger_core::json::{self, label, list, metadata_map, text};
use outrigger_core::offloading::{self, Strategy};
use outrigger_core::text::truncate;
use outrigger_core::{companion, keys, machine};
use serde::Serialize;
use serde_json::Value;

use super::super::Fact;
use super::super::audit::Decider;
use crate::admission::Admission;
use crate::condition;

/// Most characters of a value that is shown.
const MAX_VALUE: usize = 200;

/// One thing that a Pod can be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(super) enum RoleKind {
    Companion,
    /// It is in a tenant's namespace.
    TenantPod,
    /// It is in an offloaded namespace.
    Offloaded,
    /// It takes a slot of a Machine.
    Guest,
    /// It holds a slot of a Machine open.
    Reservation,
    /// It is a workload in a tenant's cluster that waits for companions.
    Workload,
}

/// What a Pod is, by which object, and what follows.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Role {
    pub(super) role: RoleKind,
    #[serde(flatten)]
    pub(super) by: Decider,
    pub(super) facts: Vec<Fact>,
    /// What isn't right about it.
    pub(super) problems: Vec<String>,
}

/// What a Pod is, and by which rule.
#[derive(Debug)]
pub(super) struct Roles {
    pub(super) all: Vec<Role>,
    /// The rule whose companion it is.
    pub(super) rule: Option<RuleName>,
}

/// Everything that a Pod is, as far as the state tells.
pub(super) fn of(admission: &Admission, namespace: &str, pod: &Value) -> Roles {
    let owner = admission.caches().owner(namespace);
    let companion = companion_of(admission, namespace, pod);
    let mut all = Vec::new();
    if let Some(companion) = &companion {
        all.push(companion_role(admission, namespace, pod, companion));
    }
    all.extend(owner.map(|owner| tenant_role(&owner)));
    all.extend(offloaded(admission, namespace, pod));
    all.extend(slot(admission, namespace, pod));
    all.extend(workload(pod));
    Roles { all, rule: companion.map(|companion| companion.rule) }
}

fn role(role: RoleKind, by: &Origin<'_>) -> Role {
    Role { role, by: Decider::of(by), facts: Vec::new(), problems: Vec::new() }
}

impl Role {
    /// Adds a fact, if it has a value.
    fn fact(&mut self, name: &'static str, value: &str) {
        if !value.is_empty() {
            self.facts.push(Fact { name: name.into(), value: truncate(value, MAX_VALUE).into_owned() });
        }
    }

    fn problem(&mut self, problem: impl Into<String>) {
        self.problems.push(problem.into());
    }
}

fn annotation<'a>(pod: &'a Value, key: &str) -> &'a str {
    json::annotation(pod, key).unwrap_or_default()
}

/// A companion, by what the manager has written on it.
struct Companion {
    rule: RuleName,
    uid: String,
    tenant: Option<TenantId>,
}

fn companion_of(admission: &Admission, namespace: &str, pod: &Value) -> Option<Companion> {
    let admin = &admission.settings().admin;
    if let Some((rule, uid)) = companion::owner(pod) {
        let tenant = admission.caches().owner(namespace);
        return Some(Companion { rule, uid: uid.to_owned(), tenant });
    }
    let (tenant, rule, uid) = companion::of_admin_rule(pod).filter(|_| *namespace == *admin.resources)?;
    Some(Companion { rule, uid: uid.to_owned(), tenant: Some(tenant) })
}

fn companion_role(admission: &Admission, namespace: &str, pod: &Value, companion: &Companion) -> Role {
    let Companion { rule, uid, tenant } = companion;
    let at = if rule.is_admin() { &*admission.settings().admin.rules } else { namespace };
    let mut by = Origin::object(companion::kind(rule.scope()), rule.as_str()).within(at);
    by.generation = annotation(pod, keys::RULE_GENERATION).parse().ok();
    let mut role = role(RoleKind::Companion, &by);
    role.fact("tenant", tenant.as_ref().map_or("", |tenant| tenant.as_str()));
    role.fact("workload", label(pod, keys::WORKLOAD).unwrap_or_default());
    role.fact("host of the workload", annotation(pod, keys::HOST));
    role.fact("its own DPU", annotation(pod, keys::DPU));
    role.fact("end of the workload", annotation(pod, keys::WORKLOAD_ENDED));
    role.fact("DPU", text(pod, "/spec/nodeName"));
    if list(pod, "/spec/schedulingGates").iter().any(|gate| text(gate, "/name") == keys::ADMISSION_GATE) {
        role.problem(format!(
            "it still has the scheduling gate {}: admission by Outrigger's webhook hasn't seen it, so it is never \
             scheduled, and the manager replaces it",
            keys::ADMISSION_GATE
        ));
    }
    let Some(known) = admission.caches().rule(namespace, rule) else {
        role.problem(format!("no {} {at}/{rule} is known", companion::kind(rule.scope())));
        return role;
    };
    if known.uid != *uid {
        role.problem("it was made by an earlier rule of this name, so the manager replaces it");
    } else if let Some(compiled) = &known.spec.rule {
        let lingers = !annotation(pod, keys::WORKLOAD_ENDED).is_empty();
        let content = Some(annotation(pod, keys::CONTENT_HASH)).filter(|hash| !hash.is_empty());
        if !lingers && !compiled.makes(annotation(pod, keys::TEMPLATE_HASH), content) {
            role.problem(format!(
                "the rule is of generation {} and has another template or placement by now, so the manager replaces it",
                known.generation
            ));
        }
    } else {
        role.problem("the rule is no longer valid: see its Accepted condition");
    }
    role
}

fn tenant_role(tenant: &TenantId) -> Role {
    let mut role = role(RoleKind::TenantPod, &Origin::object("Tenant", tenant.as_str()));
    role.fact("required node affinity", &format!("{} In [{tenant}]", keys::NODE_TENANT));
    role.fact("toleration", &format!("{}={tenant}:NoSchedule", keys::TENANT));
    role
}

fn offloaded(admission: &Admission, namespace: &str, pod: &Value) -> Option<Role> {
    let caches = admission.caches();
    let offloading = caches.offloading(namespace);
    if offloading.is_none() && !caches.is_offloaded(namespace) {
        return None;
    }
    let by = Origin::object("NamespaceOffloading", offloading::NAME).within(namespace);
    let mut role = role(RoleKind::Offloaded, &by);
    let Some(offloading) = offloading else {
        role.problem(format!(
            "the namespace has the label {}=true and no NamespaceOffloading {} is known",
            keys::OFFLOADED,
            offloading::NAME
        ));
        return Some(role);
    };
    let strategy = offloading.strategy();
    let (name, meaning) = match strategy {
        Ok(Strategy::Local) => ("Local", "Pods stay on local nodes, and admission leaves them as they are"),
        Ok(Strategy::Remote) => ("Remote", "only on selected virtual nodes"),
        Ok(Strategy::LocalAndRemote) => ("LocalAndRemote", "on local nodes and on selected virtual nodes"),
        Err(unknown) => (unknown, "no strategy"),
    };
    role.fact("podOffloadingStrategy", &format!("{name}: {meaning}"));
    let object = admission.state().of(keys::OFFLOADING_GROUP, "NamespaceOffloading");
    let object =
        object.filter(|object| object.namespace == namespace && object.name == offloading::NAME).last();
    let terms =
        object.map_or(&[][..], |object| list(&object.value, "/spec/clusterSelector/nodeSelectorTerms"));
    let selector: Vec<String> = terms.iter().map(term).collect();
    let selector = if selector.is_empty() { "every virtual node".to_owned() } else { selector.join(" or ") };
    role.fact("clusterSelector", &selector);
    role.problems
        .extend(offloading.refusals().iter().map(|fault| format!("{}: {}", fault.path, fault.message)));
    if strategy != Ok(Strategy::Local) && !caches.is_offloaded(namespace) {
        role.problem(format!(
            "the namespace has no label {}=true, so its Pods aren't offloaded",
            keys::OFFLOADED
        ));
    }
    let class = text(pod, "/spec/runtimeClassName");
    if !class.is_empty() && class == admission.settings().exempt_runtime_class {
        role.fact("exempt", &format!("its runtimeClassName is {class}, so it is left as it is"));
    }
    Some(role)
}

/// A node selector term in words.
pub(super) fn term(term: &Value) -> String {
    let all = list(term, "/matchExpressions").iter().chain(list(term, "/matchFields"));
    all.map(expression).collect::<Vec<_>>().join(" and ")
}

/// An expression of a node selector term in words.
pub(super) fn expression(expression: &Value) -> String {
    let values: Vec<&str> = list(expression, "/values").iter().filter_map(Value::as_str).collect();
    let values = if values.is_empty() { String::new() } else { format!(" [{}]", values.join(", ")) };
    format!("{} {}{values}", text(expression, "/key"), text(expression, "/operator"))
}

/// What a Pod is to Machines.
fn slot(admission: &Admission, namespace: &str, pod: &Value) -> Option<Role> {
    let text = |key| label(pod, key).unwrap_or_default();
    let (group, type_) = (text(keys::MACHINE_GROUP), text(keys::MACHINE_TYPE));
    let kind = match text(keys::POD_ROLE) {
        keys::GUEST => RoleKind::Guest,
        keys::RESERVATION => RoleKind::Reservation,
        _ => return None,
    };
    let caches = admission.caches();
    let cached = caches.machine(group);
    let by = cached.as_ref().map(|cached| Origin::object("Machine", &cached.name));
    let by = Origin { machine_type: Some(type_.into()), ..by.unwrap_or_default() };
    let mut role = role(kind, &by);
    role.fact("machine group", group);
    role.fact("machine type", type_);
    if kind == RoleKind::Reservation {
        role.fact("StatefulSet", &machine::reservation_name(group, type_));
        return Some(role);
    }
    if machine::guest(metadata_map(pod, "labels")).is_none() {
        let keys = [keys::MACHINE_GROUP, keys::MACHINE_TYPE].join(" and ");
        role.problem(format!("a guest needs the labels {keys}; without them it gets no slot"));
        return Some(role);
    }
    if !caches.is_injected(namespace) {
        let (key, value) = (keys::INJECT_RESOURCE, keys::INJECT_ENABLED);
        role.problem(format!(
            "namespace {namespace} has no label {key}={value}, so guests in it get no slots"
        ));
        return Some(role);
    }
    let Some(cached) = cached else {
        role.problem(format!("no Machine of group {group:?} is known"));
        return Some(role);
    };
    role.fact("slots of the type", &caches.slots(group, type_).to_string());
    let named = cached.machine.as_ref().map(|machine| machine.type_named(type_));
    match named {
        Ok(Some(found)) => {
            let size: Vec<String> =
                found.resources().into_iter().map(|(name, amount)| format!("{name} {amount}")).collect();
            role.fact("size of the slot", &size.join(", "));
            let nodes: Vec<String> = found.expressions(group).iter().map(expression).collect();
            role.fact("required node affinity", &nodes.join(" and "));
        }
        Ok(None) => role.problem(format!("Machine {} has no machine type {type_:?}", cached.name)),
        Err(errors) => {
            let message = outrigger_core::validate::message(errors);
            role.problem(format!("Machine {} isn't valid: {message}", cached.name));
        }
    }
    Some(role)
}

/// A Pod of a tenant's cluster that waits for its companions.
fn workload(pod: &Value) -> Option<Role> {
    let gates = list(pod, "/spec/readinessGates");
    let gated = gates.iter().any(|gate| text(gate, "/conditionType") == keys::COMPANIONS_GATE);
    let reported = condition::named(pod, keys::COMPANIONS_CONDITION);
    if !gated && reported.is_none() {
        return None;
    }
    let mut role = role(RoleKind::Workload, &Origin::default());
    if gated {
        role.fact("readiness gate", keys::COMPANIONS_GATE);
    }
    if let Some(condition) = reported {
        let (status, reason) = (text(condition, "/status"), text(condition, "/reason"));
        role.fact("companions", &format!("{status} {reason}: {}", text(condition, "/message")));
    }
    Some(role)
}
