//! What must hold of rules with a companion on each DPU of a workload's host: on which DPUs these are, that a workload waits for all of them,
//! and how many a rule's status says that there should be.
//!
//! The truth is what the Nodes say. A manager that is behind may know a DPU as it was before, so what has changed since the last rest is looked at
//! only where it can't be an excuse.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use outrigger_core::keys;
use serde_json::Value;

use super::hosts::{Hosts, host_of, policy};
use super::matching::matches;
use super::tenants::lives;
use super::wanted::{concerns, is_workload};
use super::{Judge, Key, PLATFORM};
use crate::model::Commit;
use crate::world::hosts::node_of;
use crate::world::{TENANTS, World, namespace_of, text};

/// After so long every agent knows of a DPU: one whose stream is half-open notices that within 20 s, and hears it from another manager.
const HEARD: Duration = Duration::from_secs(35);

/// After so long an agent knows that a companion has ceased to be Ready.
const CEASED: Duration = Duration::from_secs(10);

/// The policy of a rule with a companion on each DPU.
const ALL: &str = "SameNodeAll";

/// Whether a rule has a companion on each DPU of a workload's host.
pub(super) fn is_on_all(rule: &Value) -> bool {
    policy(rule) == ALL
}

/// The host that a DPU's Node names.
fn host(dpu: &Value) -> Option<&str> {
    let labels = &dpu["metadata"]["labels"];
    [keys::DPU_NODE_NAME, keys::DPU_HOST].into_iter().find_map(|key| labels[key].as_str())
}

/// The tenant whose DPU a Node is, and stays.
pub(super) fn owner(dpu: &Value) -> Option<&str> {
    let mut taints = dpu["spec"]["taints"].as_array().into_iter().flatten();
    let is_handed_over = taints.any(|taint| taint["key"] == keys::HANDOVER);
    dpu["metadata"]["labels"][keys::NODE_TENANT].as_str().filter(|_| !is_handed_over)
}

/// The names of a tenant's DPUs by their hosts.
pub(super) fn by_host(world: &World, id: &str) -> BTreeMap<String, BTreeSet<String>> {
    let mut by_host = BTreeMap::<_, BTreeSet<_>>::new();
    for dpu in world.infra.list("nodes").iter().filter(|dpu| owner(dpu) == Some(id)) {
        if let Some(host) = host(dpu) {
            by_host.entry(host.to_owned()).or_default().insert(text(dpu, "/metadata/name").to_owned());
        }
    }
    by_host
}

impl Hosts {
    /// On which DPUs a rule has companions for a workload on a Node: on each of these, or on one of which that isn't said.
    pub(super) fn on(&self, rule: &Value, node: Option<&str>) -> Vec<Option<String>> {
        if !is_on_all(rule) {
            return vec![None];
        }
        let host = node.and_then(|node| host_of(&self.names, node));
        host.and_then(|host| self.dpus.get(host)).into_iter().flatten().cloned().map(Some).collect()
    }
}

impl Judge {
    /// A Node is written: perhaps it is another host's DPU, or another tenant's. What is on one of another tenant's host is deleted, whatever
    /// workload it is of.
    pub(super) fn dpu_written(&self, world: &World, commit: &Commit) {
        if commit.kind.plural != "nodes" {
            return;
        }
        let states = [&commit.old, &commit.new].map(Option::as_ref);
        let [before, now] = states.map(|node| node.map(|node| (host(node), owner(node))));
        let mut found = self.found.lock();
        if before != now {
            found.dpus.insert(commit.name.clone(), commit.time);
        }
        if let (Some((Some(from), _)), Some((Some(to), _))) = (before, now) {
            let tenant = |host: &str| {
                TENANTS.into_iter().find(|(id, _)| world.hosts(id).iter().any(|own| own == host))
            };
            found.moved |= from != to && tenant(from) != tenant(to);
        }
    }

    /// Whether a companion's DPU has changed since the last rest.
    pub(super) fn has_other_dpu(&self, key: &Key) -> bool {
        self.found.lock().has_left(key)
    }

    /// Whether a companion's DPU has changed so shortly before a time.
    pub(super) fn had_other_dpu(&self, (.., dpu): &Key, (at, before): (Timestamp, Duration)) -> bool {
        let found = self.found.lock();
        let changed = dpu.as_ref().and_then(|dpu| found.dpus.get(dpu));
        changed.is_some_and(|changed| at < *changed + before)
    }

    /// A manager creates a companion for one of the DPUs of a host: it is the tenant's, and in that host.
    pub(super) fn on_its_dpu(&self, world: &World, commit: &Commit, key: &Key, companion: &Value) {
        let (id, _, _, Some(dpu)) = key else { return };
        if self.has_other_dpu(key) || self.found.lock().restored {
            return;
        }
        let node = world.infra.get("nodes", None, dpu);
        let place = node.as_ref().map(|node| (owner(node), host(node)));
        let asked = companion["metadata"]["annotations"][keys::HOST].as_str();
        if place != Some((Some(*id), asked)) {
            let client = &commit.client;
            self.violation(
                world,
                format!("{client} creates a companion of {key:?} for {asked:?}, and its DPU is {place:?}"),
            );
        }
    }

    /// Of the companions that a rule has for a workload (`of`: without a DPU), those have been Ready, and haven't ceased to be long ago, without which no agent lets the workload go
    /// on at this time: all on the DPUs that everybody knows, and one at least. `serves`: that for these hosts is enough.
    pub(super) fn were_ready(
        &self,
        world: &World,
        (rule, of): (&Value, &Key),
        (node, at): (Option<&str>, Timestamp),
        serves: impl Fn(&BTreeSet<String>) -> bool,
    ) -> bool {
        let has_moved = node.is_some_and(|node| self.hosts_of(of.0, node).len() > 1);
        let on = |dpu: Option<String>| (of.0, of.1.clone(), of.2.clone(), dpu);
        let mut known: Vec<Key> = Hosts::of(world, of.0).on(rule, node).into_iter().map(on).collect();
        let is_blind = self.found.lock().blind;
        known.retain(|key| {
            let is_new =
                has_moved || self.had_other_dpu(key, (at, HEARD)) || is_blind && self.has_other_dpu(key);
            key.3.is_none() || !is_new
        });
        let found = self.found.lock();
        // While nothing disturbs the system, agents hear soon that a companion has ceased to be Ready.
        let calm = !found.disturbed && !found.moved;
        let is_lost = |key: &Key| calm && found.lost.get(key).is_some_and(|lost| *lost + CEASED <= at);
        let is_ready = |key: &Key| found.ready_on.get(key).is_some_and(&serves) && !is_lost(key);
        let is_of = |other: &Key| (other.0, &other.1, &other.2) == (of.0, &of.1, &of.2);
        known.iter().all(is_ready) && found.ready_on.iter().any(|(key, hosts)| is_of(key) && serves(hosts))
    }

    /// How many companions rules say that there should be, where that is another number than there should.
    pub(super) fn counts_missing(world: &World) -> Vec<String> {
        let mut missing = Vec::new();
        for (id, _) in TENANTS.into_iter().filter(|(id, _)| world.has_agent(id) && lives(world, id)) {
            let (model, hosts) = (&world.tenants[id], Hosts::of(world, id));
            let named = |rule: &Value| text(rule, "/metadata/name").to_owned();
            let own = world.infra.list("workloadrules").into_iter();
            let own = own.filter(|rule| text(rule, "/metadata/namespace") == namespace_of(id));
            let own = own.map(|rule| (named(&rule), rule["status"]["wanted"].clone(), rule));
            let platform = world.infra.list("adminworkloadrules").into_iter();
            let platform = platform.filter(|rule| concerns(rule, id)).map(|rule| {
                let counted = rule["status"]["tenants"][id]["wanted"].clone();
                (format!("{PLATFORM}{}", named(&rule)), counted, rule)
            });
            let exists = |rule: &Value| rule["metadata"]["deletionTimestamp"].is_null();
            for (name, counted, rule) in own.chain(platform).filter(|(.., rule)| exists(rule)) {
                let on = |pod: &Value| {
                    let node = node_of(model, pod);
                    let is_matched = is_workload(pod) && matches(&rule, pod, node.as_deref());
                    if is_matched { hosts.on(&rule, node.as_deref()).len().max(1) } else { 0 }
                };
                let wanted: usize = model.list("pods").iter().map(|pod| on(pod)).sum();
                if is_on_all(&rule) && counted.as_u64().unwrap_or_default() != wanted as u64 {
                    missing.push(format!(
                        "({id:?}, {name:?}) should have {wanted} companions, and says {counted}"
                    ));
                }
            }
        }
        missing
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_dpu_is_its_tenants_unless_it_is_handed_over_and_in_the_host_of_its_first_label() {
        let (name, host_label) = (keys::DPU_NODE_NAME, keys::DPU_HOST);
        for (labels, taint, expected) in [
            (
                json!({keys::NODE_TENANT: "blue", name: "a", host_label: "b"}),
                "other",
                (Some("blue"), Some("a")),
            ),
            (json!({keys::NODE_TENANT: "blue", host_label: "b"}), keys::HANDOVER, (None, Some("b"))),
            (json!({}), "other", (None, None)),
        ] {
            let dpu = json!({"metadata": {"labels": labels}, "spec": {"taints": [{"key": taint}]}});
            assert_eq!((owner(&dpu), host(&dpu)), expected, "{dpu}");
        }
    }

    #[test]
    fn a_rule_is_on_all_dpus_of_the_host_that_the_node_is_in() {
        let two = ["x", "y"].map(str::to_owned);
        let hosts = Hosts {
            with_dpus: BTreeMap::new(),
            dpus: BTreeMap::from([("a".to_owned(), two.clone().into())]),
            names: json!([{"node": "worker", "host": "a"}]),
        };
        let rule = |policy: &str| json!({"spec": {"dpuSelectionPolicy": policy}});
        assert_eq!(hosts.on(&rule(ALL), Some("worker")), two.map(Some));
        for node in [Some("a"), Some("other"), None] {
            assert_eq!(hosts.on(&rule(ALL), node), [], "{node:?}");
        }
        assert_eq!(hosts.on(&rule("SameNode"), None), [None]);
    }
}
