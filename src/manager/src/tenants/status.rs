//! The status of a tenant, computed from the caches.

use std::collections::BTreeSet;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use outrigger_api::conditions::Status;
use outrigger_core::ids::TenantId;
use outrigger_core::reason::Cause;
use outrigger_core::syntax::unlabelable;
use outrigger_core::tenant::{Enforcement, Tenant};
use outrigger_core::validate;
use serde::Serialize;

use super::{namespace, second};
use crate::conditions::{ConditionValue, conditions, fine, unknown, wrong};
use crate::state::TenantStates;
use crate::state::registry::{ENFORCED, Registry, TenantEntry};

/// Names that a message lists.
const SHOWN: usize = 5;

/// What the controller writes of a tenant's status; the stream is its holder's.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ControllerStatus {
    pub(super) observed_generation: Option<i64>,
    pub(super) namespace: Option<String>,
    pub(super) enforcement: Option<String>,
    pub(super) dpus: Option<i64>,
    pub(super) conditions: Vec<Condition>,
}

impl ControllerStatus {
    /// What is written there now.
    pub(crate) fn now(entry: &TenantEntry) -> Self {
        let status = entry.object.status.clone().unwrap_or_default();
        Self {
            observed_generation: status.observed_generation,
            namespace: status.namespace,
            enforcement: status.enforcement,
            dpus: status.dpus,
            conditions: status.conditions,
        }
    }
}

/// The status that a tenant should have. `found`: what was found of its namespace, its level of enforcement, and the running Pods that
/// would be refused at the level Enforce; `None` where nothing was looked for, because the tenant isn't valid.
pub(super) fn compute(
    registry: &Registry,
    states: &TenantStates,
    id: &TenantId,
    entry: &TenantEntry,
    found: Option<&(namespace::State, Enforcement, BTreeSet<String>)>,
    now: Timestamp,
) -> ControllerStatus {
    let mut values: Vec<(&str, ConditionValue)> = Vec::new();
    let mut dpus = 0;
    match &entry.tenant {
        Err(errors) => values.push(("Accepted", wrong(Cause::Invalid, validate::message(errors)))),
        Ok(tenant) => {
            values.push(("Accepted", accepted(registry, id)));
            let state = found.map(|(namespace, ..)| namespace);
            let second = second::message(states, id, &tenant.namespace);
            values.push(("NamespaceReady", namespace_ready(tenant, state, second.as_deref())));
            let (count, hosts) = hosts_ready(registry, states, id, tenant);
            dpus = count;
            values.push(("HostsReady", hosts));
            values.push(("WithinLimits", within_limits(registry, entry, tenant)));
        }
    }
    let first = values.iter().find(|(_, (status, ..))| *status != Status::True);
    let ready = match first {
        None => fine("Served", format!("{dpus} DPUs")),
        Some((_, (_, reason, message))) => (Status::False, *reason, message.clone()),
    };
    values.push(("Ready", ready));
    // It doesn't concern Ready: a lower level is an administrator's choice.
    if let (Ok(tenant), Some((_, level, refused))) = (&entry.tenant, found) {
        values.push((ENFORCED, enforced((entry, tenant), *level, refused, now)));
    }
    finish(entry, dpus, found.map(|(_, level, _)| *level), values, now)
}

/// The level of enforcement. A lower one counts from the time of the condition's last transition.
fn enforced(
    (entry, tenant): (&TenantEntry, &Tenant),
    level: Enforcement,
    refused: &BTreeSet<String>,
    now: Timestamp,
) -> ConditionValue {
    if level == Enforcement::Enforce {
        let exceptions: Vec<String> = tenant
            .active_exceptions(now.as_second())
            .map(|exception| format!("{} (until {})", exception.name, exception.until_text))
            .collect();
        let but = if exceptions.is_empty() { "" } else { ", but for exceptions: " };
        return fine(level.as_str(), format!("all checks are enforced{but}{}", exceptions.join(", ")));
    }
    let since = entry.below_enforce_since().unwrap_or(now);
    let refused = Enforcement::would_be_refused(refused);
    let message = format!("level {level}, below Enforce since {}: {refused}", at_second(since));
    (Status::False, level.as_str(), message)
}

/// The same time without fractions of a second, which conditions don't have either.
fn at_second(time: Timestamp) -> Timestamp {
    Timestamp::from_second(time.as_second()).unwrap_or(time)
}

/// The status of a tenant that is being deleted. `second`: what [`second::message`] says of namespaces that may hold up its end.
pub(super) fn terminating(
    entry: &TenantEntry,
    waiting_for: &str,
    second: Option<&str>,
    dpus: i64,
    now: Timestamp,
) -> ControllerStatus {
    let waiting = format!("waiting for {waiting_for} to be gone");
    let ready = match second {
        None => wrong(Cause::Terminating, waiting),
        Some(second) => wrong(Cause::SecondNamespace, format!("{waiting}; {second}")),
    };
    finish(entry, dpus, None, vec![("Ready", ready)], now)
}

fn finish(
    entry: &TenantEntry,
    dpus: i64,
    enforcement: Option<Enforcement>,
    values: Vec<(&str, ConditionValue)>,
    now: Timestamp,
) -> ControllerStatus {
    let generation = entry.object.metadata.generation.unwrap_or_default();
    let written = entry.object.status.as_ref();
    let before = written.map(|status| status.conditions.as_slice()).unwrap_or_default();
    let mut conditions = conditions(before, generation, now, values);
    let mut level = enforcement.map(|level| level.to_string());
    if level.is_none() {
        // Nobody looked at it. The namespace still has the level, whose time would begin again if the condition were left out.
        level = written.and_then(|status| status.enforcement.clone());
        conditions.extend(before.iter().filter(|condition| condition.type_ == ENFORCED).cloned());
    }
    ControllerStatus {
        observed_generation: Some(generation),
        namespace: Some(entry.object.target_namespace()),
        enforcement: level,
        dpus: Some(dpus),
        conditions,
    }
}

fn accepted(registry: &Registry, id: &TenantId) -> ConditionValue {
    match registry.shared_identities(id).first() {
        None => fine("Valid", "the tenant is served"),
        Some((identity, other)) => wrong(
            Cause::IdentityConflict,
            format!(
                "spec.identities: {identity} is an identity of tenant {other} too, and so neither's; remove it from one"
            ),
        ),
    }
}

/// Whether the tenant has its namespace, and no other one. `second`: what [`second::message`] says of others.
fn namespace_ready(
    tenant: &Tenant,
    state: Option<&namespace::State>,
    second: Option<&str>,
) -> ConditionValue {
    match state {
        Some(namespace::State::Ready) => match second {
            None => fine("Exists", format!("namespace {} is the tenant's", tenant.namespace)),
            Some(second) => wrong(Cause::SecondNamespace, second),
        },
        Some(namespace::State::NotOurs(why)) => {
            let second = second.map_or_else(String::new, |second| format!("; {second}"));
            wrong(Cause::NotOurs, format!("spec.namespace: {why}{second}"))
        }
        Some(namespace::State::Terminating) => wrong(
            Cause::Terminating,
            format!("namespace {} is being deleted; it will be created again", tenant.namespace),
        ),
        Some(namespace::State::Preparing(_)) => wrong(
            Cause::Preparing,
            format!(
                "the quota of namespace {} isn't counted yet; just after Outrigger's installation that takes half a minute",
                tenant.namespace
            ),
        ),
        None => unknown(Cause::Unknown, "not looked at yet"),
    }
}

/// How many DPUs the tenant has, and what is with its hosts.
fn hosts_ready(
    registry: &Registry,
    states: &TenantStates,
    id: &TenantId,
    tenant: &Tenant,
) -> (i64, ConditionValue) {
    let owned = registry.dpus_of(id);
    let count = owned.len();
    let (mut contested, mut moving, mut unusable, mut without) =
        (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for host in &tenant.hosts {
        let rivals = registry.rivals(host, id);
        if let Some(rival) = rivals.first() {
            contested.push(format!("{host} is claimed by tenant {rival} too"));
        }
        let sitting = registry.dpus_in(host);
        if let Some(why) = unlabelable(host) {
            unusable.push(format!("{host}: {why}"));
        } else if sitting.is_empty() {
            without.push(tenant.host_names.described(host));
        }
        for (name, dpu) in sitting.iter().filter(|_| rivals.is_empty()) {
            let from = dpu.marks.owner.as_deref();
            if from != Some(id.as_str()) || dpu.marks.handover.is_some() {
                let from = former_owner(registry, states, from);
                moving.push(format!("{name} in host {host} comes from {from}"));
            }
        }
    }
    for (name, dpu) in &owned {
        if dpu.host.as_ref().is_none_or(|host| !tenant.hosts.contains(host)) {
            moving.push(format!("{name} is given up: the tenant's Pods on it are going"));
        }
    }
    let value = if !contested.is_empty() {
        wrong(
            Cause::HostConflict,
            format!("spec.hosts: {}; who has a host keeps it, else neither gets it", list(&contested)),
        )
    } else if !moving.is_empty() {
        wrong(Cause::HandingOver, list(&moving))
    } else if !unusable.is_empty() {
        wrong(Cause::HostNameUnusable, format!("spec.hosts: {}", list(&unusable)))
    } else if !without.is_empty() {
        wrong(
            Cause::NoDpu,
            format!("no DPU's label {} names {}", registry.host_labels().either(), list(&without)),
        )
    } else {
        fine("Served", format!("{count} DPUs in {} hosts", tenant.hosts.len()))
    };
    (i64::try_from(count).unwrap_or(i64::MAX), value)
}

/// The tenant that a DPU comes from, and the namespaces whose Pods it may wait for although the manager can't delete them: of a tenant that
/// doesn't exist any longer all that have its label.
fn former_owner(registry: &Registry, states: &TenantStates, owner: Option<&str>) -> String {
    let Some(owner) = owner else { return "nobody".to_owned() };
    let Ok(id) = TenantId::new(owner) else { return owner.to_owned() };
    let own = registry.get(&id).map(|entry| entry.object.target_namespace());
    match (second::names(states, &id, own.as_deref().unwrap_or_default()), own) {
        (None, _) => owner.to_owned(),
        (Some(names), Some(_)) => format!("{owner}, whose label other namespaces have too: {names}"),
        (Some(names), None) => {
            format!("{owner}, which doesn't exist, and whose label namespaces have: {names}")
        }
    }
}

fn within_limits(registry: &Registry, entry: &TenantEntry, tenant: &Tenant) -> ConditionValue {
    let refused =
        entry.object.status.as_ref().and_then(|s| s.stream.as_ref()).and_then(|s| s.refused.clone());
    let mut over: Vec<String> = refused.into_iter().collect();
    over.extend(registry.full(&tenant.namespace));
    if over.is_empty() {
        fine("Within", "no limit is reached")
    } else {
        wrong(Cause::LimitReached, list(&over))
    }
}

fn list(items: &[String]) -> String {
    let mut text = items[..items.len().min(SHOWN)].join("; ");
    if items.len() > SHOWN {
        text.push_str(&format!("; and {} more", items.len() - SHOWN));
    }
    text
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Node;
    use outrigger_core::host::HostLabels;
    use outrigger_core::keys;
    use outrigger_runtime::cache::Change;
    use serde_json::json;

    use super::*;
    use crate::fixtures;

    /// As many tenants, each with a host of its own and a DPU in it. Every other DPU is labeled for the next tenant.
    fn registry(size: usize) -> Registry {
        let registry = Registry::new(HostLabels::default(), Vec::new());
        for i in 0..size {
            let tenant = json!({"apiVersion": "outrigger.dev/v1alpha1", "kind": "Tenant",
                "metadata": {"name": format!("t{i}")}, "spec": {"hosts": [format!("h{i}")]}});
            registry.tenant(Change::Applied(fixtures::object(tenant)));
            let labels = json!({keys::DPU_HOST: format!("h{i}"), keys::NODE_TENANT: format!("t{}", (i + i % 2).min(size - 1))});
            let node = json!({"metadata": {"name": format!("n{i}"), "labels": labels}});
            let node: Node = fixtures::object(node);
            registry.node(&format!("n{i}"), Some(&node));
        }
        registry
    }

    fn hosts(registry: &Registry, i: usize) -> (i64, Status, &'static str, String) {
        let id = TenantId::new(&format!("t{i}")).unwrap();
        let entry = registry.get(&id).unwrap();
        let (states, tenant) = (TenantStates::default(), entry.tenant.as_ref().unwrap());
        let (count, (status, reason, message)) = hosts_ready(registry, &states, &id, tenant);
        (count, status, reason, message)
    }

    #[test]
    fn a_tenant_is_informed_of_dpus_that_come_and_that_go() {
        let registry = registry(3);
        assert_eq!(hosts(&registry, 0), (1, Status::True, "Served", "1 DPUs in 1 hosts".into()));
        assert_eq!(
            hosts(&registry, 1),
            (0, Status::False, "HandingOver", "n1 in host h1 comes from t2".into())
        );
        let both = "n1 is given up: the tenant's Pods on it are going";
        assert_eq!(hosts(&registry, 2), (2, Status::False, "HandingOver", both.into()));
        registry.node("n0", None);
        let none = format!("no DPU's label {} names h0", HostLabels::default().either());
        assert_eq!(hosts(&registry, 0), (0, Status::False, "NoDPU", none));
    }

    #[test]
    fn a_second_namespace_is_reported_on_its_tenant_and_named_to_the_one_that_waits_for_its_dpu() {
        let (registry, states) = (registry(3), TenantStates::default());
        let look = |i: usize, state: namespace::State| {
            let id = TenantId::new(&format!("t{i}")).unwrap();
            let found = (state, Enforcement::Enforce, BTreeSet::new());
            let entry = registry.get(&id).unwrap();
            let status =
                compute(&registry, &states, &id, &entry, Some(&found), Timestamp::UNIX_EPOCH).conditions;
            ["NamespaceReady", "HostsReady", "Ready"].map(|kind| {
                let condition = status.iter().find(|c| c.type_ == kind).unwrap();
                (condition.reason.clone(), condition.message.clone())
            })
        };
        let ready = |i| look(i, namespace::State::Ready);
        let t2 = TenantId::new("t2").unwrap();
        states.set_tenant("tenant-t2", Some(t2.clone()));
        assert_eq!(ready(2).map(|(reason, _)| reason), ["Exists", "HandingOver", "HandingOver"]);
        states.set_tenant("stray", Some(t2));
        let [namespace, _, first] = ready(2);
        assert_eq!((namespace.0.as_str(), &first), ("SecondNamespace", &namespace));
        assert!(namespace.1.contains("=t2: stray;"), "{}", namespace.1);
        let of_others = look(2, namespace::State::NotOurs("it is t1's".to_owned())).map(|(_, text)| text);
        assert!(of_others[0].starts_with("spec.namespace: it is t1's; other namespaces"), "{}", of_others[0]);
        let [namespace, (reason, message), _] = ready(1);
        let waits = "n1 in host h1 comes from t2, whose label other namespaces have too: stray";
        assert_eq!([&namespace.0, &reason, &message], ["Exists", "HandingOver", waits]);
        registry.tenant(Change::Gone { namespace: String::new(), name: "t2".to_owned(), uid: String::new() });
        let waits = "n1 in host h1 comes from t2, which doesn't exist, and whose label namespaces have: stray, tenant-t2";
        assert_eq!(ready(1).map(|(_, message)| message)[1], waits);
        assert_eq!(ready(0).map(|(reason, _)| reason), ["Exists", "Served", "Served"]);
    }

    #[test]
    fn a_level_below_enforce_is_a_condition_with_the_time_since_when_and_concerns_nothing_else() {
        let (registry, states) = (registry(1), TenantStates::default());
        let id = TenantId::new("t0").unwrap();
        let at = |seconds| Timestamp::from_second(seconds).unwrap();
        let mut status = ControllerStatus::now(&registry.get(&id).unwrap());
        let mut look = |level: Enforcement, refused: &[&str], seconds: i64| {
            let mut object = (*registry.get(&id).unwrap().object).clone();
            object.status = Some(fixtures::object(serde_json::to_value(&status).unwrap()));
            registry.tenant(Change::Applied(object));
            let refused = refused.iter().map(ToString::to_string).collect();
            let found = (namespace::State::Ready, level, refused);
            let entry = registry.get(&id).unwrap();
            status = compute(&registry, &states, &id, &entry, Some(&found), at(seconds));
            assert_eq!(status.enforcement.as_deref(), Some(level.as_str()));
            let of = |kind: &str| status.conditions.iter().find(|c| c.type_ == kind).cloned().unwrap();
            assert_eq!(of("Ready").status, "True", "{}", of("Ready").message);
            let enforced = of("Enforced");
            (enforced.status, enforced.reason, enforced.message)
        };
        let condition = |status: &str, reason: &str, message: &str| {
            (status.to_owned(), reason.to_owned(), message.to_owned())
        };
        assert_eq!(
            look(Enforcement::Enforce, &[], 5),
            condition("True", "Enforce", "all checks are enforced")
        );
        let none = "below Enforce since 1970-01-01T00:00:10Z: no running Pod is known that would be refused";
        assert_eq!(
            look(Enforcement::Observe, &[], 10),
            condition("False", "Observe", &format!("level Observe, {none}"))
        );
        assert_eq!(
            look(Enforcement::Warn, &[], 20),
            condition("False", "Warn", &format!("level Warn, {none}"))
        );
        let (_, _, message) = look(Enforcement::Warn, &["p"], 30);
        assert!(
            message.contains("since 1970-01-01T00:00:10Z: a running Pod would be refused")
                && message.ends_with(": p"),
            "{message}"
        );
        assert_eq!(look(Enforcement::Enforce, &[], 40).0, "True");
        assert!(look(Enforcement::Warn, &[], 50).2.contains("since 1970-01-01T00:00:50Z"));
        // What an exception lets through until its end isn't enforced.
        let mut object = (*registry.get(&id).unwrap().object).clone();
        let exception = serde_json::json!({"name": "a", "requestedBy": "storage", "checks": ["ClaimsOfOtherPods"],
            "pods": ["web-*"], "until": "1970-01-01T00:00:58Z"});
        object.spec.exceptions.push(fixtures::object(exception));
        registry.tenant(Change::Applied(object));
        let (status_57, _, message) = look(Enforcement::Enforce, &[], 57);
        let expected = "all checks are enforced, but for exceptions: a (until 1970-01-01T00:00:58Z)";
        assert_eq!((status_57.as_str(), message.as_str()), ("True", expected));
        assert_eq!(look(Enforcement::Enforce, &[], 58).2, "all checks are enforced");
        look(Enforcement::Warn, &[], 59);
        // Nobody looks at the level of a tenant that isn't valid.
        let mut object = (*registry.get(&id).unwrap().object).clone();
        object.status = Some(fixtures::object(serde_json::to_value(&status).unwrap()));
        registry.tenant(Change::Applied(object));
        let unseen = compute(&registry, &states, &id, &registry.get(&id).unwrap(), None, at(60));
        assert_eq!(unseen.enforcement, status.enforcement);
        assert_eq!(unseen.conditions.last(), status.conditions.last());
    }

    #[cfg(debug_assertions)]
    #[test]
    fn the_status_of_a_tenant_takes_steps_for_its_own_nodes_alone() {
        outrigger_core::steps::assert_nearly_linear(
            |size| (registry(size), size),
            |(registry, size)| {
                let dpus: i64 = (0..*size).map(|i| hosts(registry, i).0).sum();
                assert_eq!(dpus, i64::try_from(*size).unwrap());
            },
        );
    }
}
