//! Events (`events.k8s.io/v1`), for `kubectl describe`.

use std::collections::HashMap;

use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use outrigger_core::reason::MAX_MESSAGE;
use outrigger_core::text::truncate_bytes;
use parking_lot::Mutex;
use tracing::warn;

/// Maximum number of objects and reasons that are remembered to aggregate Events into series.
const MAX_SERIES: usize = 1024;

/// Writes Events. Repeated Events about an object are aggregated into a series.
pub struct Events {
    client: Client,
    reporter: Reporter,
    /// The last note by the object's uid and the reason, and the recorder that wrote it: a recorder aggregates Events with the same
    /// reason, and keeps the first note.
    last: Mutex<HashMap<(String, String), (String, Recorder)>>,
}

impl Events {
    /// Events of this component; `instance` is the name of this process.
    pub fn new(client: Client, component: &str, instance: Option<String>) -> Self {
        let reporter = Reporter { controller: component.to_owned(), instance };
        Self { client, reporter, last: Mutex::default() }
    }

    fn recorder(&self, about: &ObjectReference, reason: &str, note: &str) -> Recorder {
        let mut last = self.last.lock();
        if last.len() >= MAX_SERIES {
            last.clear();
        }
        let new = || (note.to_owned(), Recorder::new(self.client.clone(), self.reporter.clone()));
        let key = (about.uid.clone().unwrap_or_default(), reason.to_owned());
        let known = last.entry(key).or_insert_with(new);
        if known.0 != note {
            *known = new();
        }
        known.1.clone()
    }

    /// Writes an Event. `warning`: an administrator or user has to act; `reason` and `action` are words in CamelCase. A failure is
    /// only logged, because the object's status has the same information.
    pub async fn publish(
        &self,
        warning: bool,
        reason: &str,
        action: &str,
        message: &str,
        about: &ObjectReference,
    ) {
        if let Err(error) = self.try_publish(warning, reason, action, message, about).await {
            let (kind, name) =
                (about.kind.as_deref().unwrap_or_default(), about.name.as_deref().unwrap_or_default());
            warn!(kind, name, %error, "failed to write an event");
        }
    }

    /// As [`Self::publish`], for callers that report failures themselves.
    ///
    /// # Errors
    /// Those of the API server.
    pub async fn try_publish(
        &self,
        warning: bool,
        reason: &str,
        action: &str,
        message: &str,
        about: &ObjectReference,
    ) -> kube::Result<()> {
        let note = truncate_bytes(message, MAX_MESSAGE, "").into_owned();
        let recorder = self.recorder(about, reason, &note);
        let event = Event {
            type_: if warning { EventType::Warning } else { EventType::Normal },
            reason: reason.to_owned(),
            note: Some(note),
            action: action.to_owned(),
            secondary: None,
        };
        recorder.publish(&event, about).await
    }
}
