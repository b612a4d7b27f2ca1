//! Events on rules and tenants, for `kubectl describe`.

use k8s_openapi::api::core::v1::ObjectReference;
use kube::Resource;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use outrigger_api::Tenant;
use outrigger_core::keys;
use tracing::warn;

use crate::state::RuleId;

/// Longest note, in bytes (events.k8s.io/v1 Event.note).
const MAX_NOTE: usize = 1024;

/// Writes Events.
pub struct Events {
    recorder: Recorder,
}

impl Events {
    /// Events of this manager.
    pub fn new(client: kube::Client, instance: String) -> Self {
        let reporter = Reporter { controller: keys::MANAGER.to_owned(), instance: Some(instance) };
        Self { recorder: Recorder::new(client, reporter) }
    }

    /// A companion of a rule can't be made.
    pub async fn companion_refused(&self, rule: &RuleId, uid: &str, message: &str) {
        let about = Self::reference(rule, uid);
        self.publish(EventType::Warning, "CompanionRefused", "CreateCompanion", message, &about).await;
    }

    /// Something about a rule that its author has to do something about.
    pub async fn rule(&self, rule: &RuleId, uid: &str, reason: &str, message: &str) {
        let about = Self::reference(rule, uid);
        self.publish(EventType::Warning, reason, "ReconcileRule", message, &about).await;
    }

    fn reference(rule: &RuleId, uid: &str) -> ObjectReference {
        ObjectReference {
            api_version: Some(format!("{}/v1alpha1", keys::WORKLOAD_GROUP)),
            kind: Some("WorkloadRule".to_owned()),
            name: Some(rule.name.to_string()),
            namespace: Some(rule.namespace.to_string()),
            uid: Some(uid.to_owned()),
            ..ObjectReference::default()
        }
    }

    /// A tenant's Ready condition has another reason than before.
    pub async fn tenant(&self, tenant: &Tenant, good: bool, reason: &str, message: &str) {
        let kind = if good { EventType::Normal } else { EventType::Warning };
        self.publish(kind, reason, "ReconcileTenant", message, &tenant.object_ref(&())).await;
    }

    /// An Event that can't be written is only logged: the object's status says it too.
    async fn publish(
        &self,
        kind: EventType,
        reason: &str,
        action: &str,
        message: &str,
        about: &ObjectReference,
    ) {
        let mut note = message.to_owned();
        if note.len() > MAX_NOTE {
            note.truncate(note.floor_char_boundary(MAX_NOTE));
        }
        let event = Event {
            type_: kind,
            reason: reason.to_owned(),
            note: Some(note),
            action: action.to_owned(),
            secondary: None,
        };
        if let Err(error) = self.recorder.publish(&event, about).await {
            let (kind, name) =
                (about.kind.as_deref().unwrap_or_default(), about.name.as_deref().unwrap_or_default());
            warn!(kind, name, %error, "an Event could not be written");
        }
    }
}
