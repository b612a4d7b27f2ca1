//! Events (`events.k8s.io/v1`), for `kubectl describe`.

use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use tracing::warn;

/// Longest note, in bytes (events.k8s.io/v1 Event.note).
const MAX_NOTE: usize = 1024;

/// Writes Events.
pub struct Events {
    recorder: Recorder,
}

impl Events {
    /// Events of this component, of which `instance` is one process.
    pub fn new(client: Client, component: &str, instance: Option<String>) -> Self {
        let reporter = Reporter { controller: component.to_owned(), instance };
        Self { recorder: Recorder::new(client, reporter) }
    }

    /// Writes one. `warning`: somebody has to do something about it; `reason`: one word in CamelCase; `action`: what was
    /// being done, likewise. One that can't be written is only logged: the object's status says it too.
    pub async fn publish(
        &self,
        warning: bool,
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
            type_: if warning { EventType::Warning } else { EventType::Normal },
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
