//! What must hold of Pods that wait for their companions. A gate opens, a Pod starts or is bound only after each companion that it waits
//! for has been Ready for the Node that the Pod is on. Which rules make it wait is what their cluster has, as far as the agent had seen
//! them a second before.

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::Timestamp;
use outrigger_core::keys;
use serde_json::Value;

use super::hosts::{Hosts, is_by_host};
use super::matching::{could_match, matches};
use super::rollouts::REPORTED;
use super::wanted::{administrators, companion, is_foreign, is_ready, is_workload, wanted, written};
use super::{Judge, Key};
use crate::model::Commit;
use crate::world::hosts::{allocated_to, held, is_gated, is_true, node_of, says, waits_to_start};
use crate::world::{SHOP, TENANTS, World, claim_of, text};

/// From when a watch has shown a rule until each decision knows it.
const KNOWN: Duration = Duration::from_secs(1);

/// From when a watch has shown a Pod until each decision knows it.
const SEEN: Duration = Duration::from_millis(200);

/// The same of the Node that the scheduler has chosen for it.
const PLACED: Duration = Duration::from_secs(2);

/// How long a companion may be on its way out, without a disturbance, until its workload's gate is closed.
const CLOSES: Duration = Duration::from_secs(10);

/// How long an answer or a write of an agent may be under way that has lost its manager since.
const SENT: Duration = Duration::from_secs(3);

/// Which rules of a tenant make a Pod wait for something.
type Orders = fn(&str) -> bool;

fn gates(ordering: &str) -> bool {
    matches!(ordering, "BeforeReady" | "BeforeStart" | "BeforeBinding")
}

fn holds(ordering: &str) -> bool {
    matches!(ordering, "BeforeStart" | "BeforeBinding")
}

fn ordering(rule: &Value) -> &str {
    text(rule, "/spec/ordering")
}

impl Judge {
    /// A companion is written: it may be Ready now, for a host, or have ceased to be.
    pub(super) fn companion_ready(&self, commit: &Commit) {
        let Some(pod) = commit.new.as_ref().or(commit.old.as_ref()) else { return };
        let (mut found, uid) = (self.found.lock(), text(pod, "/metadata/uid"));
        let serves = commit.new.is_some() && is_ready(pod);
        if !serves {
            found.ready_since.remove(uid);
        }
        let Some(key) = companion(pod) else { return };
        if !serves || !pod["metadata"]["deletionTimestamp"].is_null() {
            found.lost.entry(key.clone()).or_insert(commit.time);
        } else {
            found.lost.remove(&key);
        }
        if serves {
            found.ready_since.entry(uid.to_owned()).or_insert(commit.time);
            found.ready_on.entry(key).or_default().insert(text_of(pod, keys::HOST).to_owned());
        }
    }

    /// A write in a tenant's cluster that may let a Pod go on.
    pub(super) fn ordered(&self, world: &World, id: &'static str, commit: &Commit) {
        if !world.scope.orderings {
            return;
        }
        let (Some(new), agent) = (&commit.new, commit.client.as_str()) else { return };
        match commit.kind.plural {
            "pods" if commit.old.is_none() => self.passed_gate(world, id, new),
            "pods" => {
                let was = |kind: &str| commit.old.as_ref().is_some_and(|old| is_true(old, kind));
                if is_true(new, keys::COMPANIONS_GATE) && !was(keys::COMPANIONS_GATE) {
                    self.waited(world, (id, new), (agent, commit.sent), gates, "its gate opens");
                }
                // Also once more after a reboot of its host.
                let started = text(new, "/status/phase") == "Running"
                    && !waits_to_start(new)
                    && commit.old.as_ref().is_some_and(|old| waits_to_start(old));
                let permitted = world.permitted.lock().get(text(new, "/metadata/uid")).cloned();
                if let Some((agent, at)) = permitted.filter(|_| started && held(new).is_some()) {
                    self.waited(world, (id, new), (&agent, at), holds, "it starts");
                }
            }
            "resourceclaims" => {
                let bound = says(new, keys::CLAIM_READY);
                let before = commit.old.as_ref().is_some_and(|old| says(old, keys::CLAIM_READY));
                let owner = text(new, "/metadata/ownerReferences/0/name");
                let pod = world.tenants[id].get("pods", Some(SHOP), owner);
                let pod =
                    pod.filter(|pod| claim_of(pod, keys::COMPANIONS_CLAIM) == Some(commit.name.as_str()));
                if let Some(pod) = pod.filter(|_| bound && !before && allocated_to(new).is_some()) {
                    self.waited(world, (id, &pod), (agent, commit.sent), holds, "it is bound");
                }
            }
            _ => {}
        }
    }

    /// The rules of a tenant's cluster that an agent knew, and that are as they were then.
    fn known_rules(
        &self,
        world: &World,
        id: &'static str,
        (agent, at): (&str, Timestamp),
    ) -> Vec<std::sync::Arc<Value>> {
        // A rule that was deleted, and is there again by a restore, has a version that was shown long ago.
        if self.found.lock().restored {
            return Vec::new();
        }
        let model = &world.tenants[id];
        let mut rules = model.list("workloadrules");
        rules.retain(|rule| {
            let version = text(rule, "/metadata/resourceVersion").parse().unwrap_or(u64::MAX);
            let known = model.shown(agent, "workloadrules", version).is_some_and(|shown| shown + KNOWN <= at);
            known && rule["metadata"]["deletionTimestamp"].is_null()
        });
        rules
    }

    /// Only what a manager says on an open stream lets a Pod go on, so an agent that reaches no manager lets none.
    fn reaches_manager(&self, world: &World, pod: &str, (agent, at): (&str, Timestamp), what: &str) {
        let now = world.environment.clock.wall();
        let since = world.network.cut_off(agent, "manager-").map(|cut| now - cut);
        if let Some(since) = since.filter(|since| at >= *since + SENT) {
            self.violation(world, format!("{what}: Pod {pod}, and {agent} reaches no manager since {since}"));
        }
    }

    /// The rules that administrators have written, by which Pods of a tenant wait and which haven't changed since the last rest.
    fn administrators(&self, world: &World, id: &'static str) -> Vec<(String, std::sync::Arc<Value>)> {
        let mut rules = administrators(world, id);
        rules.retain(|(name, rule)| {
            rule["metadata"]["deletionTimestamp"].is_null() && !self.has_changed(id, name)
        });
        rules
    }

    /// The same as [`Self::waited`] of administrators' rules, which the agent doesn't know: in the time that silence takes to mean that there
    /// is no companion, managers that nothing disturbs have reported it.
    fn waited_for_platform(
        &self,
        world: &World,
        (id, pod): (&'static str, &Value),
        (at, orders): (Timestamp, Orders),
        what: &str,
    ) {
        let (model, uid) = (&world.tenants[id], text(pod, "/metadata/uid"));
        {
            let found = self.found.lock();
            let relabelled = found.relabelled.contains(&(id, uid.to_owned()));
            let placed = found.placed_at.get(uid).is_none_or(|placed| *placed + REPORTED <= at);
            if found.disturbed || found.blind || relabelled || !placed {
                return;
            }
        }
        let node = node_of(model, pod);
        for (name, rule) in self.administrators(world, id) {
            let key = (id, name, uid.to_owned(), None);
            let waits = orders(ordering(&rule)) && matches(&rule, pod, node.as_deref());
            if waits && !self.were_ready(world, (&rule, &key), (node.as_deref(), at), |_| true) {
                let pod = text(pod, "/metadata/name");
                let rule = &key.1;
                self.violation(
                    world,
                    format!("{what}: Pod {pod} of {id}, though its companion of {rule} was never ready"),
                );
            }
        }
    }

    /// A Pod goes on, by the word of an agent at a time: the companions that it waits for have been Ready.
    fn waited(
        &self,
        world: &World,
        (id, pod): (&'static str, &Value),
        by: (&str, Timestamp),
        orders: Orders,
        what: &str,
    ) {
        let (agent, at) = by;
        self.reaches_manager(world, text(pod, "/metadata/name"), by, what);
        self.waited_for_platform(world, (id, pod), (at, orders), what);
        {
            let found = self.found.lock();
            let uid = text(pod, "/metadata/uid");
            let shown = found.facts_at.get(uid).and_then(|at| world.tenants[id].shown(agent, "pods", *at));
            let is_known = shown.is_some_and(|shown| shown + SEEN <= at);
            let placed = found.placed_at.get(uid).is_none_or(|placed| *placed + PLACED <= at && !found.blind);
            if found.restored || !is_known || !placed {
                return;
            }
        }
        let node = node_of(&world.tenants[id], pod);
        let uid = text(pod, "/metadata/uid");
        for rule in self.known_rules(world, id, by) {
            let name = text(&rule, "/metadata/name");
            let hidden = is_foreign(world, id, name);
            if hidden || !orders(ordering(&rule)) || !matches(&rule, pod, node.as_deref()) {
                continue;
            }
            let here = self.hosts_of(id, node.as_deref().unwrap_or_default());
            let any = !is_by_host(&rule) || node.is_none();
            let key = (id, name.to_owned(), uid.to_owned(), None);
            // One of an earlier policy serves on any host.
            let serves = |hosts: &BTreeSet<String>| any || !hosts.is_disjoint(&here) || hosts.contains("");
            if !self.were_ready(world, (&rule, &key), (node.as_deref(), at), serves) {
                let pod = text(pod, "/metadata/name");
                self.violation(world, format!("{what}: Pod {pod} of {id}, though its companion of {name} was never ready on {here:?}"));
            }
        }
    }

    /// A Pod is created that has passed the gate of an agent: where a rule may make it wait, it does.
    fn passed_gate(&self, world: &World, id: &'static str, pod: &Value) {
        let Some((agent, asked)) = world.gated.lock().get(text(pod, "/metadata/uid")).cloned() else {
            return;
        };
        for rule in self.known_rules(world, id, (&agent, asked)) {
            let waits = gates(ordering(&rule)) && could_match(&rule, pod);
            let may_hold = holds(ordering(&rule)) && could_match(&rule, pod);
            let (name, of) = (text(pod, "/metadata/name"), text(&rule, "/metadata/name"));
            if waits && !is_gated(pod) {
                self.violation(world, format!("Pod {name} of {id} has no gate, and rule {of} may match it"));
            }
            // Until the agent knows what the cluster's devices have, Pods have no claim.
            let settled = world.tenants[id].list("resourceclaimtemplates").len() >= 2;
            if may_hold
                && held(pod).is_none()
                && settled
                && !self.found.lock().restored
                && !self.found.lock().disturbed
            {
                self.violation(world, format!("Pod {name} of {id} has no claim, and rule {of} may match it"));
            }
        }
    }

    /// A companion is gone that was on its way out for a while. If nothing disturbs the system, its workload waits again.
    pub(super) fn left_open(&self, world: &World, commit: &Commit) {
        let Some(old) = commit.old.as_ref().filter(|_| commit.new.is_none() && world.scope.orderings) else {
            return;
        };
        let Some(key) = companion(old).filter(|_| is_ready(old)) else { return };
        let since = {
            let found = self.found.lock();
            let leaves = found.leaving.get(text(old, "/metadata/uid")).copied();
            leaves.filter(|_| !found.disturbed && !found.restored)
        };
        let Some(since) = since.filter(|since| commit.time.duration_since(*since).unsigned_abs() >= CLOSES)
        else {
            return;
        };
        let Some(rule) = written(world, &key).filter(|rule| gates(ordering(rule))) else { return };
        // A workload doesn't wait for a DPU that has left its host.
        if key.3.is_some() && (self.has_other_dpu(&key) || !wanted(world).contains_key(&key)) {
            return;
        }
        let (id, name, uid, _) = key;
        let model = &world.tenants[id];
        let pod =
            model.list("pods").into_iter().find(|pod| text(pod, "/metadata/uid") == uid && is_workload(pod));
        // Agents write no conditions of a Pod that is being deleted, which takes as long as its host reboots.
        let open = |pod: &Value| {
            pod["metadata"]["deletionTimestamp"].is_null()
                && is_true(pod, keys::COMPANIONS_GATE)
                && matches(&rule, pod, node_of(model, pod).as_deref())
        };
        if pod.is_some_and(|pod| open(&pod)) && world.has_agent(id) {
            self.violation(
                world,
                format!("the gate of {uid} is open though its companion of {name} leaves since {since}"),
            );
        }
    }

    /// A host got the answer that a Pod of another host may start.
    pub fn started_elsewhere(&self, agent: &str, pod: &str, host: &str) {
        let Some(world) = self.world.upgrade() else { return };
        self.violation(&world, format!("{agent} lets {pod} start on {host}, and it is on another Node"));
    }

    /// How gates, starts and bindings differ from how companions are.
    pub(super) fn orders_missing(world: &World) -> Vec<String> {
        let mut missing = Vec::new();
        if !world.scope.orderings {
            return missing;
        }
        let companions = world.infra.list("pods");
        for (id, _) in
            TENANTS.into_iter().filter(|(id, _)| world.has_agent(id) && super::tenants::lives(world, id))
        {
            let (model, hosts) = (&world.tenants[id], Hosts::of(world, id));
            let own = model.list("workloadrules").into_iter();
            let own = own.map(|rule| (text(&rule, "/metadata/name").to_owned(), rule));
            let own = own.filter(|(name, _)| !is_foreign(world, id, name));
            let rules: Vec<_> = own
                .chain(administrators(world, id))
                .filter(|(_, rule)| rule["metadata"]["deletionTimestamp"].is_null())
                .collect();
            for pod in model.list("pods").into_iter().filter(|pod| is_workload(pod)) {
                let (name, uid) = (text(&pod, "/metadata/name"), text(&pod, "/metadata/uid"));
                let node = node_of(model, &pod);
                let all_ready = |orders: Orders| {
                    let waits = rules
                        .iter()
                        .filter(|(_, rule)| orders(ordering(rule)) && matches(rule, &pod, node.as_deref()));
                    let has_ready = |key: Key| {
                        companions.iter().any(|pod| {
                            companion(pod).as_ref() == Some(&key)
                                && is_ready(pod)
                                && pod["metadata"]["deletionTimestamp"].is_null()
                        })
                    };
                    waits.into_iter().all(|(name, rule)| {
                        let dpus = hosts.on(rule, node.as_deref());
                        let key = |dpu| (id, name.clone(), uid.to_owned(), dpu);
                        !dpus.is_empty() && dpus.into_iter().map(key).all(has_ready)
                    })
                };
                let open = is_true(&pod, keys::COMPANIONS_GATE);
                // A Pod waits without an end for a rule whose name is taken.
                let waits = |rule: &std::sync::Arc<Value>| {
                    is_foreign(world, id, text(rule, "/metadata/name"))
                        && gates(ordering(rule))
                        && matches(rule, &pod, node.as_deref())
                };
                if model.list("workloadrules").iter().any(waits) {
                    continue;
                }
                if is_gated(&pod) && open != all_ready(gates) {
                    let conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
                    let says: Vec<_> = conditions.map(|condition| text(condition, "/message")).collect();
                    missing.push(format!(
                        "the gate of {name} of {id} is open: {open}, and its companions aren't so: {says:?}"
                    ));
                }
                let starts = held(&pod).is_some() && node.is_some() && all_ready(holds);
                if starts && waits_to_start(&pod) {
                    let bound = pod["spec"]["nodeName"].is_string();
                    missing.push(format!(
                        "Pod {name} of {id} doesn't start (bound: {bound}), and its companions are ready"
                    ));
                }
            }
        }
        missing
    }
}

fn text_of<'a>(pod: &'a Value, annotation: &str) -> &'a str {
    pod["metadata"]["annotations"].get(annotation).and_then(Value::as_str).unwrap_or_default()
}
