//! The watches of the infrastructure cluster, and what their events mean for the state.

use std::collections::HashSet;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::ResourceExt;
use kube::runtime::watcher::Event;
use outrigger_api::WorkloadRule;
use outrigger_core::ids::{RuleName, TenantId};
use outrigger_core::index::CompanionKey;

use crate::companions::observe::observe;
use crate::queue::Queue;
use crate::state::{CompanionId, RuleId, Space, Spaces};

/// Takes events in and queues what has to be looked at again.
#[derive(Clone)]
pub struct Watches {
    /// What is known.
    pub spaces: Arc<Spaces>,
    /// Companions to look at.
    pub queue: Arc<Queue<CompanionId>>,
    /// Rules whose status may have changed.
    pub rules: Arc<Queue<RuleId>>,
}

impl Watches {
    /// Namespaces say whose they are. Only those with a tenant's label are watched, so one that loses it is "deleted".
    pub fn namespaces(&self) -> impl FnMut(Event<Namespace>) + use<> {
        let this = self.clone();
        let mut listed = HashSet::new();
        move |event| match event {
            Event::Init => listed.clear(),
            Event::InitApply(namespace) => {
                listed.insert(namespace.name_any());
                this.namespace(&namespace.name_any(), &namespace);
            }
            Event::Apply(namespace) => this.namespace(&namespace.name_any(), &namespace),
            Event::Delete(namespace) => this.tenant(&namespace.name_any(), None),
            Event::InitDone => {
                for space in this.spaces.all() {
                    if !listed.contains(&*space.namespace) {
                        this.tenant(&space.namespace, None);
                    }
                }
            }
        }
    }

    fn namespace(&self, name: &str, namespace: &Namespace) {
        self.tenant(name, TenantId::of_namespace(namespace.labels()));
    }

    fn tenant(&self, namespace: &str, tenant: Option<TenantId>) {
        let again = self.spaces.set_tenant(namespace, tenant);
        self.queue.add(again);
        let space = self.spaces.space(namespace);
        let rules: Vec<RuleName> = space.lock().rules.keys().cloned().collect();
        self.rules.add(rules.iter().map(|name| space.rule_id(name)));
    }

    /// Rules say what companions there should be.
    pub fn rules(&self) -> impl FnMut(Event<WorkloadRule>) + use<> {
        let this = self.clone();
        let mut listed: HashSet<(String, String)> = HashSet::new();
        move |event| match event {
            Event::Init => listed.clear(),
            Event::InitApply(rule) => {
                listed.insert((rule.namespace().unwrap_or_default(), rule.name_any()));
                this.rule(&rule);
            }
            Event::Apply(rule) => this.rule(&rule),
            Event::Delete(rule) => this.no_rule(&rule.namespace().unwrap_or_default(), &rule.name_any()),
            Event::InitDone => {
                for space in this.spaces.all() {
                    let known: Vec<RuleName> = space.lock().rules.keys().cloned().collect();
                    for name in known {
                        if !listed.contains(&(space.namespace.to_string(), name.to_string())) {
                            this.no_rule(&space.namespace, name.as_str());
                        }
                    }
                }
            }
        }
    }

    fn rule(&self, rule: &WorkloadRule) {
        let space = self.spaces.space(&rule.namespace().unwrap_or_default());
        let keys = space.lock().apply_rule(rule);
        self.touched(&space, keys);
        if let Ok(name) = RuleName::new(&rule.name_any()) {
            self.rules.add([space.rule_id(&name)]);
        }
    }

    fn no_rule(&self, namespace: &str, name: &str) {
        let Ok(name) = RuleName::new(name) else { return };
        let space = self.spaces.space(namespace);
        let keys = space.lock().remove_rule(&name);
        self.touched(&space, keys);
    }

    /// Pods say what companions there are.
    pub fn pods(&self) -> impl FnMut(Event<Pod>) + use<> {
        let this = self.clone();
        move |event| match event {
            Event::Init => this.spaces.all().iter().for_each(|space| space.lock().companions.list_begins()),
            Event::InitApply(pod) | Event::Apply(pod) => this.pod(&pod),
            Event::Delete(pod) => {
                let Some((key, observed)) = observe(&pod) else { return };
                let space = this.spaces.space(&pod.namespace().unwrap_or_default());
                space.lock().companions.deleted(
                    &key,
                    &observed.uid,
                    pod.metadata.resource_version.as_deref(),
                );
                this.touched(&space, vec![key]);
            }
            Event::InitDone => {
                for space in this.spaces.all() {
                    let gone = space.lock().companions.list_ends();
                    this.touched(&space, gone);
                }
            }
        }
    }

    fn pod(&self, pod: &Pod) {
        let space = self.spaces.space(&pod.namespace().unwrap_or_default());
        let version = pod.metadata.resource_version.as_deref();
        let touched = match observe(pod) {
            Some((key, observed)) => {
                space.lock().companions.applied(key.clone(), observed, version);
                Some(key)
            }
            None => space.lock().companions.disowned(&pod.uid().unwrap_or_default(), version),
        };
        self.touched(&space, touched.into_iter().collect());
    }

    fn touched(&self, space: &Space, keys: Vec<CompanionKey>) {
        for key in &keys {
            self.rules.add_after(space.rule_id(&key.rule), crate::rules::SETTLE);
        }
        self.queue.add(space.ids(keys));
    }
}
