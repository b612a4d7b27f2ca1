//! What a handler decides by, and what it returns.

use outrigger_core::admin::AdminNamespaces;
use outrigger_core::host::HostLabels;
use outrigger_core::ids::TenantId;
use outrigger_core::keys;
use outrigger_core::tenant::exceptions::Exception;
use outrigger_core::tenant::{Enforcement, Tenant};
use outrigger_core::validate;
use serde_json::Value;

use crate::caches::Caches;
use crate::decision::Decision;
use crate::machines::{GuestOutcome, Reservation};
use crate::review::Request;

/// Settings of admission, which an administrator makes.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Users trusted to create companions: the manager's service account.
    pub managers: Vec<String>,
    /// Users who may bind Pods to Nodes: the schedulers'.
    pub binders: Vec<String>,
    /// Schedulers that a tenant's Pod may ask for by name.
    pub schedulers: Vec<String>,
    /// Node labels that name the host of a DPU.
    pub host_labels: HostLabels,
    /// RuntimeClass whose Pods offloading leaves unchanged. Empty: none.
    pub exempt_runtime_class: String,
    /// Namespaces of admin rules and their companions.
    pub admin: AdminNamespaces,
    /// Namespace of reservations and of the ledgers of slots.
    pub core_namespace: String,
    /// The level of tenants that name none.
    pub enforcement: Enforcement,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            managers: vec![format!("system:serviceaccount:{}:outrigger-manager", keys::SYSTEM_NAMESPACE)],
            binders: vec!["system:kube-scheduler".to_owned()],
            schedulers: vec!["default-scheduler".to_owned()],
            host_labels: HostLabels::default(),
            exempt_runtime_class: "liqo".to_owned(),
            admin: AdminNamespaces::default(),
            core_namespace: keys::CORE_NAMESPACE.to_owned(),
            enforcement: Enforcement::default(),
        }
    }
}

/// Observes when the steps of a mutation begin and end. The server implements it with a clock and its metrics, `outrigger
/// explain pod` to tell what each step does.
pub trait StepObserver {
    /// The first step begins.
    fn started(&self) {}

    /// A step has ended, and the next one begins. `pod`: the Pod as it is now; of no use if the step hasn't passed.
    fn finished(&self, _step: &'static str, _passed: bool, _pod: &Value) {}
}

impl StepObserver for () {}

/// What every handler decides by, besides the request.
#[derive(Clone, Copy)]
pub struct Context<'a> {
    /// The state of the cluster, as far as the watches have shown it.
    pub caches: &'a Caches,
    /// The settings.
    pub settings: &'a Settings,
    /// Observes the steps of mutations.
    pub steps: &'a dyn StepObserver,
    /// The time, in seconds since the beginning of 1970, by which exceptions end; `None`: there are none.
    pub now: Option<i64>,
}

impl<'a> Context<'a> {
    /// A context without an observer and without exceptions.
    pub fn new(caches: &'a Caches, settings: &'a Settings) -> Self {
        Self { caches, settings, steps: &(), now: None }
    }

    /// The exception that lets a Pod of a tenant through a check now.
    pub(crate) fn exception<'t>(&self, tenant: &'t Tenant, check: &str, pod: &str) -> Option<&'t Exception> {
        let (check, now) = (validate::name_in_api(check), self.now?);
        tenant.exceptions.iter().find(|exception| exception.covers(&check, pod, now))
    }

    /// The level of enforcement of a tenant.
    pub(crate) fn enforcement(&self, tenant: &Tenant) -> Enforcement {
        tenant.level(self.settings.enforcement)
    }

    pub(crate) fn is_manager(&self, request: &Request) -> bool {
        self.settings.managers.contains(&request.user_info.username)
    }

    /// The tenant that owns the request's namespace. Only requests about tenants' namespaces are sent to the callers of this,
    /// so a namespace without a tenant is one that the cache doesn't show yet.
    pub(crate) fn owner(&self, request: &Request) -> Result<TenantId, CacheStale> {
        let namespace = &request.namespace;
        self.caches.owner(namespace).ok_or_else(|| {
            CacheStale(format!("namespace {namespace} is not known yet to belong to a tenant"))
        })
    }
}

/// A cache doesn't show yet what the request depends on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}; try again")]
pub struct CacheStale(pub(crate) String);

/// What a handler returns: the decision, and what an admitted object needs before it may be created.
#[derive(Debug, Clone)]
pub struct Admission {
    /// The decision. An allowed request with a reservation is denied where the reservation can't be made.
    pub decision: Decision,
    /// What has to be reserved.
    pub reserve: Option<Reservation>,
    /// The outcome for a guest of a Machine, as far as it is known without the reservation. For metrics.
    pub guest: Option<GuestOutcome>,
}

impl From<Decision> for Admission {
    fn from(decision: Decision) -> Self {
        Self { decision, reserve: None, guest: None }
    }
}

#[derive(Debug)]
pub(crate) enum Refusal {
    Denied(Admission),
    /// The request can't be decided yet.
    Stale(CacheStale),
}

impl From<Decision> for Refusal {
    fn from(denied: Decision) -> Self {
        Self::Denied(denied.into())
    }
}

impl From<CacheStale> for Refusal {
    fn from(stale: CacheStale) -> Self {
        Self::Stale(stale)
    }
}

/// Decides about one request. It may change the request's object, but not where a cache is stale: the same request can be
/// decided again then.
pub(crate) type Handler = fn(Context<'_>, &mut Request) -> Result<Admission, Refusal>;
