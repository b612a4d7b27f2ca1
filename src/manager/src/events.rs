//! Events on rules, for `kubectl describe`.

use k8s_openapi::api::core::v1::ObjectReference;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
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

    /// A companion of a rule can't be made. An Event that can't be written is only logged: the rule's status says it too.
    pub async fn companion_refused(&self, rule: &RuleId, uid: &str, message: &str) {
        let mut note = message.to_owned();
        if note.len() > MAX_NOTE {
            note.truncate(note.floor_char_boundary(MAX_NOTE));
        }
        let event = Event {
            type_: EventType::Warning,
            reason: "CompanionRefused".to_owned(),
            note: Some(note),
            action: "CreateCompanion".to_owned(),
            secondary: None,
        };
        let reference = ObjectReference {
            api_version: Some(format!("{}/v1alpha1", keys::WORKLOAD_GROUP)),
            kind: Some("WorkloadRule".to_owned()),
            name: Some(rule.name.to_string()),
            namespace: Some(rule.namespace.to_string()),
            uid: Some(uid.to_owned()),
            ..ObjectReference::default()
        };
        if let Err(error) = self.recorder.publish(&event, &reference).await {
            warn!(rule = %rule.name, namespace = %rule.namespace, %error, "an Event could not be written");
        }
    }
}
