//! What has happened in a history, line by line.

use std::fmt::{self, Write};
use std::sync::Arc;

use outrigger_runtime::environment::Environment;
use parking_lot::Mutex;

use crate::model::Commit;

/// The lines of a history. Cheap to clone; all clones are one.
#[derive(Clone, Default)]
pub struct Trace {
    lines: Arc<Mutex<String>>,
}

impl Trace {
    /// Adds a line with the time.
    pub fn line(&self, environment: &Environment, what: fmt::Arguments<'_>) {
        let _ = writeln!(self.lines.lock(), "{} {what}", environment.clock.wall().strftime("%H:%M:%S%.3f"));
    }

    /// Adds a committed write.
    pub fn commit(&self, environment: &Environment, cluster: &str, commit: &Commit) {
        let Commit { user, client, verb, kind, subresource, namespace, name, revision, .. } = commit;
        let user = if client.is_empty() { user.as_str() } else { client };
        let subresource = subresource.as_deref().map(|name| format!("/{name}")).unwrap_or_default();
        let namespace = namespace.as_deref().map(|name| format!("{name}/")).unwrap_or_default();
        let (plural, verb) = (kind.plural, verb.as_str());
        // The end of an Event's name is the time by the machine's clock: kube's recorder asks no other.
        let name =
            if plural == "events" { name.rsplit_once('.').map_or("", |(about, _)| about) } else { name };
        self.line(
            environment,
            format_args!("{cluster} {revision} {user} {verb} {plural}{subresource} {namespace}{name}"),
        );
    }

    /// All lines.
    pub fn text(&self) -> String {
        self.lines.lock().clone()
    }
}
