//! Objects that can't be decoded into their type, as one of a custom resource that was stored before its schema changed.
//!
//! One such object must not stop the watch of all others. It is left out, and what is known of it stays. A watch that has never
//! listed it has nothing of it; where somebody believes that, [`Watch::complete`](super::Watch::complete) makes the first list fail.

use std::collections::BTreeSet;

use kube::Error;
use serde::Deserialize;
use serde::de::Error as _;
use tracing::{debug, warn};

/// Maximum number of objects of a watch that are named in warnings.
const NAMED: usize = 100;

/// An object that can't be decoded into its type, by its metadata.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("object {} can't be decoded; correct or delete it: {error}", path(namespace, name))]
pub struct Unreadable {
    /// Its namespace; empty for an object of the cluster.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its uid.
    pub uid: String,
    /// Its resourceVersion.
    pub resource_version: String,
    /// The watch shows that it was deleted.
    pub deleted: bool,
    /// Why it can't be decoded.
    pub error: String,
}

impl Unreadable {
    /// Reads the metadata of an object; `None` if that is impossible too.
    pub(super) fn read(text: &str, error: &serde_json::Error) -> Option<Self> {
        #[derive(Deserialize)]
        struct Object {
            metadata: Metadata,
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Metadata {
            name: String,
            #[serde(default)]
            namespace: String,
            #[serde(default)]
            uid: String,
            resource_version: String,
        }
        let Object { metadata } = serde_json::from_str(text).ok()?;
        let Metadata { name, namespace, uid, resource_version } = metadata;
        Some(Self { namespace, name, uid, resource_version, deleted: false, error: error.to_string() })
    }
}

impl From<Unreadable> for Error {
    fn from(object: Unreadable) -> Self {
        Self::SerdeError(serde_json::Error::custom(object))
    }
}

fn path(namespace: &str, name: &str) -> String {
    if namespace.is_empty() { name.to_owned() } else { format!("{namespace}/{name}") }
}

/// The objects that a watch has left out and logged.
#[derive(Debug, Default)]
pub(super) struct LeftOut {
    named: BTreeSet<(String, String)>,
}

impl LeftOut {
    /// Logs that an object is left out, as a warning once.
    pub(super) fn log(&mut self, watch: &'static str, object: &Unreadable) {
        let Unreadable { namespace, name, error, .. } = object;
        if self.named.len() < NAMED && self.named.insert((namespace.clone(), name.clone())) {
            warn!(
                watch,
                namespace,
                object = name,
                error,
                "left out an object that can't be decoded, its last known state stays; correct or delete it"
            );
        } else {
            debug!(watch, namespace, object = name, error, "left out an object that can't be decoded");
        }
    }
}
