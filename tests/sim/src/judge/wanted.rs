//! Which companions are wanted, by what the clusters hold.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use outrigger_core::keys;
use serde_json::Value;

use super::amounts::asks_for_too_much;
use super::hosts::{Hosts, is_by_host};
use super::matching::{matches, serves};
use super::tenants::lives;
use super::{Key, PLATFORM, PROMPTLY, SKEW};
use crate::world::hosts::node_of;
use crate::world::{RULES_NAMESPACE, SHOP, TENANTS, World, namespace_of, text};

/// The companion that a Pod of the infrastructure cluster is.
pub(super) fn companion(pod: &Value) -> Option<Key> {
    let namespace = text(pod, "/metadata/namespace");
    let label = |key: &str| pod["metadata"]["labels"].get(key).and_then(Value::as_str);
    let workload = label(keys::WORKLOAD)?.to_owned();
    let dpu = pod["metadata"]["annotations"][keys::DPU].as_str().map(str::to_owned);
    if namespace == keys::ADMIN_NAMESPACE {
        let (id, _) = TENANTS.into_iter().find(|(id, _)| label(keys::TENANT) == Some(id))?;
        let rule = pod["metadata"]["annotations"][keys::ADMIN_RULE].as_str()?;
        return Some((id, format!("{PLATFORM}{rule}"), workload, dpu));
    }
    let (id, _) = TENANTS.into_iter().find(|(id, _)| namespace == namespace_of(id))?;
    Some((id, label(keys::RULE)?.to_owned(), workload, dpu))
}

/// A platform's rule.
pub(super) fn platform_rule(world: &World, name: &str) -> Option<Arc<Value>> {
    world.infra.get("adminworkloadrules", Some(keys::ADMIN_NAMESPACE), name)
}

/// The rule of a companion as who wrote it has it.
pub(super) fn written(world: &World, (id, rule, ..): &Key) -> Option<Arc<Value>> {
    match rule.strip_prefix(PLATFORM) {
        Some(name) => platform_rule(world, name),
        None if is_foreign(world, id, rule) => {
            world.infra.get("workloadrules", Some(&namespace_of(id)), rule)
        }
        None => world.tenants[id].get("workloadrules", Some(RULES_NAMESPACE), rule),
    }
}

/// Whether the rule of this name in a tenant's namespace of the infrastructure cluster was written there. Then one of that name in the
/// tenant's cluster isn't served.
pub(super) fn is_foreign(world: &World, id: &str, rule: &str) -> bool {
    world.scope.foreign
        && world
            .infra
            .get("workloadrules", Some(&namespace_of(id)), rule)
            .is_some_and(|rule| has_no_origin(&rule))
}

/// Whether a rule in the infrastructure cluster isn't an agent's.
pub(super) fn has_no_origin(rule: &Value) -> bool {
    !rule["metadata"]["annotations"][keys::ORIGIN].is_string()
}

/// The rule of a companion as managers and webhooks know it.
pub(super) fn served(world: &World, (id, rule, ..): &Key) -> Option<Arc<Value>> {
    match rule.strip_prefix(PLATFORM) {
        Some(name) => platform_rule(world, name),
        None => world.infra.get("workloadrules", Some(&namespace_of(id)), rule),
    }
}

/// The recorded end of a companion's workload.
pub(super) fn mark(companion: &Value) -> Option<Timestamp> {
    companion["metadata"]["annotations"][keys::WORKLOAD_ENDED].as_str()?.parse().ok()
}

/// Whether a Pod's Ready condition is true.
pub(super) fn is_ready(pod: &Value) -> bool {
    let mut conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
    conditions.any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
}

/// Whether a companion that isn't wanted outlives its workload, and isn't due.
pub(super) fn lingers(world: &World, key: &Key, companion: &Value) -> bool {
    let (id, _, workload, _) = key;
    let model = &world.tenants[id];
    let Some(rule) = written(world, key).filter(|_| lives(world, id)) else { return false };
    let exists = |pod: &Arc<Value>| is_workload(pod) && text(pod, "/metadata/uid") == workload;
    let Some(ended) = mark(companion).filter(|_| !model.list("pods").iter().any(exists)) else {
        return false;
    };
    let until = ended + linger(&rule) + SKEW / 2 + PROMPTLY;
    !linger(&rule).is_zero() && world.environment.clock.wall() < until
}

/// How long a rule lets companions linger.
pub(super) fn linger(rule: &Value) -> Duration {
    Duration::from_secs(rule["spec"]["lingerSeconds"].as_u64().unwrap_or_default())
}

/// Whether a Pod of a tenant's cluster is a workload.
pub(super) fn is_workload(pod: &Value) -> bool {
    !matches!(text(pod, "/status/phase"), "Succeeded" | "Failed") && text(pod, "/metadata/namespace") == SHOP
}

/// Whether a platform's rule is about a tenant.
pub(super) fn concerns(rule: &Value, tenant: &str) -> bool {
    let selected = &rule["spec"]["tenantSelector"]["matchLabels"][keys::TENANT];
    selected.is_null() || selected == tenant
}

/// The rules of administrators about a tenant, as the judge names them: in the tenant's namespace, and of the platform.
pub(super) fn administrators(world: &World, id: &str) -> Vec<(String, Arc<Value>)> {
    let name = |rule: &Value| text(rule, "/metadata/name").to_owned();
    let foreign = world.infra.list("workloadrules").into_iter().filter(|rule| {
        world.scope.foreign && text(rule, "/metadata/namespace") == namespace_of(id) && has_no_origin(rule)
    });
    let platform = world.infra.list("adminworkloadrules").into_iter().filter(|rule| concerns(rule, id));
    let foreign = foreign.map(|rule| (name(&rule), rule));
    foreign.chain(platform.map(|rule| (format!("{PLATFORM}{}", name(&rule)), rule))).collect()
}

/// A companion that is wanted.
pub(super) struct Wanted {
    pub(super) image: String,
    /// Where it can be.
    pub(super) place: Place,
    pub(super) rule: Arc<Value>,
    pub(super) pod: Arc<Value>,
}

/// Where a companion can be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// There is a DPU for it.
    Dpu,
    /// There is no DPU for it.
    NoDpu,
    /// There is a DPU in its host, and none that is primary.
    NoPrimary,
    /// Its workload's Node is in no host, so there may be no companion.
    NoHost,
}

/// The rules of which a companion can't be where it has to be, though its tenant has DPUs, or can't have its amounts. Those that are to be
/// replaced wait for it.
pub(super) fn stuck(wanted: &BTreeMap<Key, Wanted>) -> BTreeSet<(&'static str, &str)> {
    let is_stuck = |wanted: &Wanted| {
        matches!(wanted.place, Place::NoPrimary | Place::NoHost) || asks_for_too_much(&wanted.rule)
    };
    wanted
        .iter()
        .filter(|(_, wanted)| is_stuck(wanted))
        .map(|((id, rule, ..), _)| (*id, rule.as_str()))
        .collect()
}

/// The companions that are wanted.
pub(super) fn wanted(world: &World) -> BTreeMap<Key, Wanted> {
    let mut wanted = BTreeMap::new();
    for (id, _) in TENANTS.into_iter().filter(|(id, _)| lives(world, id)) {
        let (model, hosts) = (&world.tenants[id], Hosts::of(world, id));
        let exists = |(_, rule): &(String, Arc<Value>)| rule["metadata"]["deletionTimestamp"].is_null();
        let own = model.list("workloadrules").into_iter();
        let own = own.filter(|rule| !is_foreign(world, id, text(rule, "/metadata/name")));
        let own = own.map(|rule| (text(&rule, "/metadata/name").to_owned(), rule));
        let rules: Vec<_> = own.chain(administrators(world, id)).filter(exists).collect();
        for pod in model.list("pods") {
            if !is_workload(&pod) {
                continue;
            }
            let node = node_of(model, &pod);
            for (name, rule) in &rules {
                // Without a Node nobody knows where it would be.
                let waits = is_by_host(rule) && node.is_none() || !serves(rule, &pod);
                if matches(rule, &pod, node.as_deref()) && !waits {
                    let image = text(rule, "/spec/template/spec/containers/0/image").to_owned();
                    let place = hosts.place(rule, node.as_deref());
                    for dpu in hosts.on(rule, node.as_deref()) {
                        let (rule, pod) = (rule.clone(), pod.clone());
                        let key = (id, name.clone(), text(&pod, "/metadata/uid").to_owned(), dpu);
                        wanted.insert(key, Wanted { image: image.clone(), place, rule, pod });
                    }
                }
            }
        }
    }
    wanted
}
