//! A companion is created only where a state of its rule has matched a state of its workload: of what both have been since the last rest.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::Value;

use super::matching::{matches, read, serves};
use super::wanted::administrators;
use super::{Judge, Key};
use crate::model::{Commit, Model};
use crate::world::hosts::node_of;
use crate::world::{SHOP, TENANTS, World, text};

/// A workload's Pod, and the Node that it had or was to have.
type Placed = (Arc<Value>, Option<String>);

/// What rules and workloads have been, by tenant and name or uid. The last state is what they were last.
#[derive(Default)]
pub(super) struct Possible {
    rules: BTreeMap<(&'static str, String), Vec<Arc<Value>>>,
    workloads: BTreeMap<(&'static str, String), Vec<Placed>>,
}

impl Possible {
    /// A write in a tenant's cluster.
    pub(super) fn of_tenant(&mut self, model: &Model, id: &'static str, commit: &Commit) {
        let pod = match commit.kind.plural {
            "workloadrules" => return self.rule((id, commit.name.clone()), commit),
            "pods" => commit.new.clone(),
            "resourceclaims" => {
                let claim = commit.new.as_ref().or(commit.old.as_ref());
                let name = claim.map(|claim| text(claim, "/metadata/ownerReferences/0/name").to_owned());
                name.and_then(|name| model.get("pods", Some(SHOP), &name))
            }
            _ => return,
        };
        if let Some(pod) = pod {
            self.workload(model, id, pod);
        }
    }

    fn workload(&mut self, model: &Model, id: &'static str, pod: Arc<Value>) {
        let states = self.workloads.entry((id, text(&pod, "/metadata/uid").to_owned())).or_default();
        let node = node_of(model, &pod);
        let is_news = states.last().is_none_or(|(last, at)| *at != node || read(last) != read(&pod));
        if is_news {
            states.push((pod, node));
        }
    }

    /// A rule is written.
    pub(super) fn rule(&mut self, key: (&'static str, String), commit: &Commit) {
        if let Some(rule) = &commit.new {
            self.state(key, rule.clone());
        }
    }

    fn state(&mut self, key: (&'static str, String), rule: Arc<Value>) {
        let states = self.rules.entry(key).or_default();
        let is_other = |last: &Arc<Value>| {
            ["workloadTerms", "template", "gatedWorkloads", "tenantSelector"]
                .iter()
                .any(|part| last["spec"][part] != rule["spec"][part])
        };
        if states.last().is_none_or(is_other) {
            states.push(rule);
        }
    }

    /// The states of a rule.
    pub(super) fn rules(&self, id: &'static str, rule: &str) -> &[Arc<Value>] {
        self.rules.get(&(id, rule.to_owned())).map_or(&[][..], Vec::as_slice)
    }

    /// The Nodes that a workload has been on, or was to be; `None` for one that isn't known.
    pub(super) fn nodes(&self, id: &'static str, workload: &str) -> Option<BTreeSet<String>> {
        let states = self.workloads.get(&(id, workload.to_owned()))?;
        Some(states.iter().filter_map(|(_, node)| node.clone()).collect())
    }

    /// A cluster is restored: what is there now has been written by nobody.
    pub(super) fn restored(&mut self, world: &World) {
        for (id, _) in TENANTS {
            let model = &world.tenants[id];
            for pod in model.list("pods") {
                self.workload(model, id, pod);
            }
            let own = model.list("workloadrules").into_iter();
            let own = own.map(|rule| (text(&rule, "/metadata/name").to_owned(), rule));
            for (name, rule) in own.chain(administrators(world, id)) {
                self.state((id, name), rule);
            }
        }
    }

    /// The system has come to rest: what was before is over, but at tenants without an agent.
    pub(super) fn rested(&mut self, has_agent: impl Fn(&str) -> bool) {
        for ((id, _), states) in &mut self.rules {
            if has_agent(id) {
                states.drain(..states.len().saturating_sub(1));
            }
        }
        for ((id, _), states) in &mut self.workloads {
            if has_agent(id) {
                states.drain(..states.len().saturating_sub(1));
            }
        }
    }
}

impl Judge {
    /// A manager creates a companion.
    pub(super) fn was_possible(&self, world: &World, client: &str, key: &Key) {
        let (id, rule, workload, _) = key;
        let found = self.found.lock();
        // A name that tenant and administrators use has the states of both.
        let shared = world.scope.foreign && rule == "rule-3";
        let excused = found.restored || found.reborn.contains(id) || !world.scope.is_wide() || shared;
        let rules = found.possible.rules.get(&(*id, rule.clone()));
        let workloads = found.possible.workloads.get(&(*id, workload.clone()));
        let (Some(rules), Some(workloads)) = (rules.filter(|_| !excused), workloads) else { return };
        let asks = |rule: &Value| {
            workloads.iter().any(|(pod, node)| matches(rule, pod, node.as_deref()) && serves(rule, pod))
        };
        let matched = rules.iter().any(|rule| asks(rule));
        drop(found);
        if !matched {
            self.violation(
                world,
                format!("{client} creates a companion of {key:?}, which has never been wanted"),
            );
        }
    }
}
