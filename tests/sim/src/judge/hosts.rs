//! What must hold of the hosts that companions are for, and of their DPUs: by the Tenant's entries about names of Nodes, and by the label of
//! primary DPUs.

use std::collections::{BTreeMap, BTreeSet};

use outrigger_core::keys;
use serde_json::Value;

use super::wanted::Place;
use super::{Judge, Key};
use crate::model::Commit;
use crate::world::{TENANTS, World, text};

/// Whether a rule's companions have to be in the hosts of their workloads.
pub(super) fn is_by_host(rule: &Value) -> bool {
    policy(rule) != "Any"
}

pub(super) fn policy(rule: &Value) -> &str {
    text(rule, "/spec/dpuSelectionPolicy")
}

/// The host that a Node of a tenant's cluster is in by these entries of its Tenant. `None` where another Node is in the host of its name.
pub(super) fn host_of<'a>(names: &'a Value, node: &'a str) -> Option<&'a str> {
    let entry = |field: &str| names.as_array()?.iter().find(|entry| entry[field] == node);
    match entry("node") {
        Some(entry) => entry["host"].as_str(),
        None => entry("host").is_none().then_some(node),
    }
}

/// Whether a DPU's Node names a host.
pub(super) fn is_in(dpu: &Value, host: &str) -> bool {
    let named = [keys::DPU_NODE_NAME, keys::DPU_HOST].map(|key| &dpu["metadata"]["labels"][key]);
    named.into_iter().any(|named| named == host)
}

fn is_primary(dpu: &Value) -> bool {
    dpu["metadata"]["labels"][keys::PRIMARY] == "true"
}

/// The hosts of a tenant that have DPUs.
pub(super) struct Hosts {
    /// Whether one of them is primary.
    pub(super) with_dpus: BTreeMap<String, bool>,
    /// The names of those DPUs that are the tenant's by their Nodes, and stay so.
    pub(super) dpus: BTreeMap<String, BTreeSet<String>>,
    pub(super) names: Value,
}

impl Hosts {
    pub(super) fn of(world: &World, id: &str) -> Self {
        let dpus = world.infra.list("nodes");
        let with_dpus = world.hosts(id).into_iter().filter_map(|host| {
            let mut here = dpus.iter().filter(|dpu| is_in(dpu, &host)).map(|dpu| is_primary(dpu)).peekable();
            here.peek()?;
            let has_primary = here.any(|is_primary| is_primary);
            Some((host, has_primary))
        });
        Self {
            with_dpus: with_dpus.collect(),
            dpus: super::dpus::by_host(world, id),
            names: world.host_names(id),
        }
    }

    /// Where the companion can be that a rule makes for a workload on a Node.
    pub(super) fn place(&self, rule: &Value, node: Option<&str>) -> Place {
        if !is_by_host(rule) {
            return if self.with_dpus.is_empty() { Place::NoDpu } else { Place::Dpu };
        }
        let Some(node) = node else { return Place::NoDpu };
        let Some(host) = host_of(&self.names, node) else { return Place::NoHost };
        match self.with_dpus.get(host) {
            None => Place::NoDpu,
            Some(false) if policy(rule) == "SameNodePrimary" => Place::NoPrimary,
            Some(_) => Place::Dpu,
        }
    }
}

impl Judge {
    /// A Tenant has these entries from now on.
    pub(super) fn named(&self, id: &'static str, names: &Value) {
        let mut found = self.found.lock();
        let states = found.names.entry(id).or_default();
        if states.last() != Some(names) {
            states.push(names.clone());
        }
    }

    /// The hosts that a Node has been in since the last rest.
    pub(super) fn hosts_of(&self, id: &'static str, node: &str) -> BTreeSet<String> {
        let found = self.found.lock();
        let states = found.names.get(&id).map_or(&[][..], Vec::as_slice);
        states.iter().filter_map(|names| host_of(names, node)).map(str::to_owned).collect()
    }

    /// A manager creates a companion: the host that it is for is one in which its workload's Node has been since the last rest.
    pub(super) fn hosted(&self, world: &World, commit: &Commit, key: &Key, companion: &Value) {
        let (id, _, workload, _) = key;
        let Some(host) = companion["metadata"]["annotations"][keys::HOST].as_str() else { return };
        let nodes = {
            let found = self.found.lock();
            let excused = found.restored || found.reborn.contains(id) || !world.scope.is_wide();
            found.possible.nodes(id, workload).filter(|_| !excused)
        };
        let Some(nodes) = nodes else { return };
        if !nodes.iter().any(|node| self.hosts_of(id, node).contains(host)) {
            let client = &commit.client;
            self.violation(
                world,
                format!(
                    "{client} creates a companion of {key:?} for {host}, in which none of {nodes:?} has been"
                ),
            );
        }
    }

    /// A companion gets a Node: the DPU is in the host that it is for, and primary where its rule asked for that when it was made.
    pub(super) fn placed(&self, world: &World, commit: &Commit, key: &Key) {
        let Some(pod) = commit
            .new
            .as_ref()
            .filter(|_| commit.old.as_ref().is_some_and(|old| !old["spec"]["nodeName"].is_string()))
        else {
            return;
        };
        let Some(dpu) = pod["spec"]["nodeName"].as_str().and_then(|dpu| world.infra.get("nodes", None, dpu))
        else {
            return;
        };
        let annotations = &pod["metadata"]["annotations"];
        let made_from = (text_of(annotations, keys::RULE_UID), text_of(annotations, keys::RULE_GENERATION));
        let asked = {
            let found = self.found.lock();
            found.policies.get(&made_from).filter(|_| !found.restored).cloned()
        };
        let Some(asked) = asked else { return };
        let host = annotations[keys::HOST].as_str();
        let name = text(&dpu, "/metadata/name");
        if asked != "Any" && !host.is_some_and(|host| is_in(&dpu, host)) {
            self.violation(
                world,
                format!("the companion of {key:?} with {asked} for {host:?} is placed on {name}"),
            );
        } else if key.3.as_deref().is_some_and(|own| own != name) {
            self.violation(world, format!("the companion of {key:?} is placed on {name}"));
        } else if asked == "SameNodePrimary" && !is_primary(&dpu) {
            self.violation(
                world,
                format!("the companion of {key:?} with {asked} is placed on {name}, which isn't primary"),
            );
        }
    }

    /// A rule has this policy in its present state.
    pub(super) fn chosen(&self, rule: &Value) {
        let made_from = (text(rule, "/metadata/uid").to_owned(), rule["metadata"]["generation"].to_string());
        self.found.lock().policies.insert(made_from, policy(rule).to_owned());
    }

    /// How the devices of tenants' Nodes differ from what their hosts' DPUs can take: a Node has devices exactly if one of the tenant's DPUs in
    /// its host takes companions.
    pub(super) fn slices_missing(world: &World) -> Vec<String> {
        let mut missing = Vec::new();
        if !world.scope.orderings {
            return missing;
        }
        let dpus = world.infra.list("nodes");
        let takes = |dpu: &Value, id: &str, host: &str| {
            let mut conditions = dpu["status"]["conditions"].as_array().into_iter().flatten();
            let mut taints = dpu["spec"]["taints"].as_array().into_iter().flatten();
            is_in(dpu, host)
                && dpu["metadata"]["labels"][keys::NODE_TENANT] == id
                && conditions.any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
                && !taints.any(|taint| taint["key"] == keys::HANDOVER)
        };
        for (id, _) in TENANTS {
            if !world.has_agent(id) || !super::tenants::lives(world, id) {
                continue;
            }
            let (names, hosts, model) = (world.host_names(id), world.hosts(id), &world.tenants[id]);
            let slices = model.list("resourceslices");
            for node in model.list("nodes") {
                let node = text(&node, "/metadata/name");
                let host = host_of(&names, node).filter(|host| hosts.iter().any(|own| own == host));
                let can = host.is_some_and(|host| dpus.iter().any(|dpu| takes(dpu, id, host)));
                let has = slices.iter().any(|slice| {
                    let devices = slice["spec"]["devices"].as_array();
                    text(slice, "/spec/pool/name") == node
                        && devices.is_some_and(|devices| !devices.is_empty())
                });
                if can != has {
                    missing.push(format!(
                        "Node {node} of {id} has devices: {has}, and a DPU of its host {host:?} takes companions: {can}"
                    ));
                }
            }
        }
        missing
    }
}

fn text_of(annotations: &Value, key: &str) -> String {
    annotations[key].as_str().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_node_is_in_the_host_of_its_entry_or_of_its_name_unless_another_one_is() {
        let names = json!([{"node": "worker", "host": "a"}, {"node": "b", "host": "c"}]);
        for (node, host) in
            [("worker", Some("a")), ("a", None), ("b", Some("c")), ("c", None), ("d", Some("d"))]
        {
            assert_eq!(host_of(&names, node), host, "{node}");
        }
        assert_eq!(host_of(&json!(null), "a"), Some("a"));
    }
}
