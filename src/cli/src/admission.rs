//! The server's admission, on a state out of files.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use outrigger_admission::caches::Caches;
use outrigger_admission::review::{Kind, Request};
use outrigger_admission::webhooks::{self, Call, VALIDATE_PODS};
use outrigger_admission::{CacheStale, Context, Decision, Settings, StepObserver};
use outrigger_core::ids::TenantId;
use outrigger_core::tenant::hosts::HostNames;
use outrigger_runtime::cache::Change;
use outrigger_runtime::environment::Clock;
use outrigger_webhook::settings::AdmissionArgs;
use serde_json::Value;

use crate::files::InputError;
use crate::slots::{GuestSlot, Slots, is_new};
use crate::state::{NOW, State};

/// Arguments of every command that decides admission offline.
#[derive(Debug, Args)]
pub(crate) struct StateArgs {
    /// File or directory with the cluster's objects: Namespaces, Tenants, WorkloadRules, AdminWorkloadRules,
    /// NamespaceOffloadings, Machines, Nodes, Pods, ResourceClaims, PriorityClasses, DeviceClasses. YAML or JSON; other kinds
    /// are ignored. May be given several times; - is standard input, unless the command reads that itself.
    #[arg(short, long = "filename", value_name = "FILE")]
    pub(crate) filename: Vec<PathBuf>,

    #[command(flatten)]
    pub(crate) admission: AdmissionArgs,
}

/// Decides as the webhook of a cluster with this state would.
#[derive(Debug)]
pub(crate) struct Admission {
    state: State,
    caches: Caches,
    settings: Settings,
    slots: Slots,
}

impl Admission {
    pub(crate) fn new(state: State, args: AdmissionArgs) -> Result<Self, InputError> {
        let settings: Settings = args.into();
        let caches = state.caches(&settings.admin.rules, &settings.host_labels)?;
        let slots = Slots::new(&caches);
        Ok(Self { state, caches, settings, slots })
    }

    /// Leaves Pods that no API server has seen out of the state: a guest that is yet to be created has no slot.
    pub(crate) fn forget_new_pods(&mut self) {
        for pod in self.state.of("", "Pod").filter(|pod| is_new(&pod.value)) {
            let namespace = pod.namespace_or_default().to_owned();
            self.caches.guest(Change::Gone { namespace, name: pod.name.clone(), uid: String::new() }, NOW);
        }
        self.slots = Slots::new(&self.caches);
    }

    pub(crate) fn state(&self) -> &State {
        &self.state
    }

    /// Whether the state tells of a namespace, directly or by the objects that make it exist.
    pub(crate) fn has_namespace(&self, name: &str) -> bool {
        *name == *self.settings.admin.resources || self.state.namespace_labels(name).is_some()
    }

    pub(crate) fn owner(&self, namespace: &str) -> Option<TenantId> {
        self.caches.owner(namespace)
    }

    /// The slot of a Machine that a new Pod takes in a namespace, as things are now; `None` for Pods that take none.
    pub(crate) fn slot_of(&self, namespace: &str, pod: &Value) -> Option<GuestSlot> {
        self.slots.of(&self.caches, namespace, pod)
    }

    /// Gives back the slot of a Pod that is deleted, if it has one.
    pub(crate) fn release_slot(&self, namespace: &str, name: &str) {
        self.slots.release(&self.caches, namespace, name);
    }

    /// Users trusted to create companions (the manager's service account).
    pub(crate) fn manager(&self) -> &str {
        self.settings.managers.first().map_or("", String::as_str)
    }

    /// The webhooks that the API server would call for a request, and why not the others.
    pub(crate) fn calls(&self, request: &Request) -> Vec<Call> {
        let labels = self.labels(&request.namespace);
        webhooks::calls(Context::new(&self.caches, &self.settings), request, labels.as_ref())
    }

    /// The labels of a namespace; `None` where they aren't known.
    fn labels(&self, namespace: &str) -> Option<BTreeMap<&str, &str>> {
        let labels = self.state.namespace_labels(namespace);
        if labels.is_none() && *namespace == *self.settings.admin.resources {
            // It is there in every cluster that has us, and no tenant's: else the state would say so.
            return Some(BTreeMap::new());
        }
        labels
    }

    /// Decides a request, which is changed on the way. A state from files never catches up, so requests for which the
    /// server would wait are denied, as the server does after waiting.
    pub(crate) fn decide(&self, request: &mut Request) -> Decision {
        self.decide_observed(request, &(), &mut |_, _| ())
    }

    /// As [`Self::decide`], with an observer of each step of the mutation, and one of each answer of a webhook with the webhook's name.
    pub(crate) fn decide_observed(
        &self,
        request: &mut Request,
        steps: &dyn StepObserver,
        observer: &mut dyn FnMut(&str, &Decision),
    ) -> Decision {
        if let Err(message) = complete(request) {
            return Decision::deny(400, message);
        }
        let labels = self.labels(&request.namespace);
        let cx = Context { steps, ..self.context() };
        let mut last = String::new();
        let decided = webhooks::decide_observed(cx, request, labels.as_ref(), &mut |webhook, decision| {
            webhook.clone_into(&mut last);
            observer(webhook, decision);
        });
        let admission = match decided {
            Ok(admission) => admission,
            Err(stale) => return Decision::deny(503, stale.to_string()),
        };
        if matches!(admission.decision, Decision::Allow { .. })
            && let Err(refused) = self.slots.settle(&self.caches, request, admission.reserve)
        {
            // The webhook that makes reservations is the last in the table.
            observer(&last, &refused);
            return refused;
        }
        admission.decision
    }

    /// What the validating webhook says of a Pod or a binding as it is, without the mutation that comes before.
    ///
    /// # Errors
    /// The state doesn't have what it depends on.
    pub(crate) fn validate_pod(&self, request: &mut Request) -> Result<Decision, CacheStale> {
        let admission = VALIDATE_PODS.decide(self.context(), request)?;
        Ok(admission.decision)
    }

    /// What requests are decided by now.
    fn context(&self) -> Context<'_> {
        let now = Some(Clock::system().unix());
        Context { now, ..Context::new(&self.caches, &self.settings) }
    }

    pub(crate) fn caches(&self) -> &Caches {
        &self.caches
    }

    /// Names that a tenant's hosts have as Nodes of its cluster.
    pub(crate) fn host_names(&self, tenant: &TenantId) -> Arc<HostNames> {
        let tenant = self.caches.tenant(tenant).flatten();
        tenant.map(|tenant| tenant.host_names.clone()).unwrap_or_default()
    }

    pub(crate) fn settings(&self) -> &Settings {
        &self.settings
    }
}

/// Fills fields of a request from its object.
fn complete(request: &mut Request) -> Result<(), String> {
    if request.kind.kind.is_empty() || request.kind.version.is_empty() {
        // Without a version it would be a kind that no webhook entry selects, and so allowed.
        let known = kind_of(&request.object).or_else(|| kind_of(&request.old_object));
        let known = known.or_else(|| webhooks::kind_named(&request.kind.kind));
        request.kind =
            known.ok_or("request.kind: is missing or has no version, and the object doesn't tell it")?;
    }
    if request.operation.is_empty() {
        return Err("request.operation: is missing; use CREATE or UPDATE".to_owned());
    }
    if request.namespace.is_empty()
        && let Some(namespace) = request.object.pointer("/metadata/namespace").and_then(Value::as_str)
    {
        request.namespace = namespace.to_owned();
    }
    Ok(())
}

/// The group, version and kind of an object.
pub(crate) fn kind_of(object: &Value) -> Option<Kind> {
    let text = |key: &str| object.get(key).and_then(Value::as_str);
    let version = text("apiVersion")?;
    let (group, version) = version.split_once('/').unwrap_or(("", version));
    Some(Kind { group: group.to_owned(), version: version.to_owned(), kind: text("kind")?.to_owned() })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "only tests call it")]
pub(crate) fn default_args() -> AdmissionArgs {
    let command = AdmissionArgs::augment_args(clap::Command::new("x"));
    <AdmissionArgs as clap::FromArgMatches>::from_arg_matches(&command.get_matches_from(["x"])).unwrap()
}
