//! Events on rules, tenants, Machines and NamespaceOffloadings.

use k8s_openapi::api::core::v1::ObjectReference;
use kube::Resource;
use outrigger_api::{NamespaceOffloading, Tenant};
use outrigger_core::reason::Cause;
use outrigger_core::{companion, keys};
use outrigger_runtime::events;

use crate::state::RuleId;

pub(crate) struct Events {
    events: events::Events,
}

impl Events {
    pub(crate) fn new(client: kube::Client, instance: String) -> Self {
        Self { events: events::Events::new(client, keys::MANAGER, Some(instance)) }
    }

    pub(crate) async fn companion_refused(&self, rule: &RuleId, uid: &str, message: &str) {
        let about = reference(rule, uid);
        self.events.publish(true, "CompanionRefused", "CreateCompanion", message, &about).await;
    }

    /// A problem of a rule that its author has to solve.
    pub(crate) async fn rule(&self, rule: &RuleId, uid: &str, reason: &str, message: &str) {
        self.events.publish(true, reason, "ReconcileRule", message, &reference(rule, uid)).await;
    }

    /// A tenant's Ready condition has another reason than before.
    pub(crate) async fn tenant(&self, tenant: &Tenant, good: bool, reason: &str, message: &str) {
        self.events.publish(!good, reason, "ReconcileTenant", message, &tenant.object_ref(&())).await;
    }

    /// A problem of a Machine or its pool that an administrator has to solve.
    pub(crate) async fn machine(&self, about: &ObjectReference, cause: Cause, message: &str) {
        self.events.publish(true, cause.as_str(), "ReconcileMachine", message, about).await;
    }

    /// A NamespaceOffloading can't do what it asks for.
    pub(crate) async fn offloading(&self, object: &NamespaceOffloading, cause: Cause, message: &str) {
        let about = object.object_ref(&());
        self.events.publish(true, cause.as_str(), "ReconcileNamespaceOffloading", message, &about).await;
    }
}

fn reference(rule: &RuleId, uid: &str) -> ObjectReference {
    ObjectReference {
        api_version: Some(format!("{}/v1alpha1", keys::WORKLOAD_GROUP)),
        kind: Some(companion::kind(rule.name.scope()).to_owned()),
        name: Some(rule.name.to_string()),
        namespace: Some(rule.namespace.to_string()),
        uid: Some(uid.to_owned()),
        ..ObjectReference::default()
    }
}
