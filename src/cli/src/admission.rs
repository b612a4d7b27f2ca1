//! The server's admission, on a state out of files.

use std::path::PathBuf;

use clap::Args;
use outrigger_webhook::admit::{self, Settings};
use outrigger_webhook::caches::Caches;
use outrigger_webhook::review::{Decision, Kind, Request};
use outrigger_webhook::settings::AdmissionArgs;
use serde_json::Value;

use crate::files::InputError;
use crate::state::State;

/// What every offline admission needs.
#[derive(Debug, Args)]
pub(crate) struct StateArgs {
    /// File or directory with the cluster's objects: Namespaces, Tenants, WorkloadRules, Nodes, ResourceClaims,
    /// PriorityClasses, DeviceClasses. YAML or JSON; other kinds are ignored. May be given several times; - is standard
    /// input, where that has nothing else.
    #[arg(short, long = "filename", value_name = "FILE")]
    pub(crate) filename: Vec<PathBuf>,

    #[command(flatten)]
    pub(crate) admission: AdmissionArgs,
}

/// Decides as the webhook of a cluster would that has this state.
#[derive(Debug)]
pub(crate) struct Admission {
    state: State,
    caches: Caches,
    settings: Settings,
}

impl Admission {
    /// # Errors
    /// When an object of a kind that matters can't be read.
    pub(crate) fn new(state: State, args: AdmissionArgs) -> Result<Self, InputError> {
        let caches = state.caches()?;
        Ok(Self { state, caches, settings: args.into() })
    }

    /// The state that it decides by.
    pub(crate) fn state(&self) -> &State {
        &self.state
    }

    /// Who is believed about workloads.
    pub(crate) fn manager(&self) -> &str {
        self.settings.managers.first().map_or("", String::as_str)
    }

    /// What comes of a request, which is changed on the way. A state from files never catches up, so what the server waits
    /// for is refused, as it does after its wait.
    pub(crate) fn decide(&self, request: &mut Request) -> Decision {
        if request.kind.kind.is_empty() {
            match kind_of(&request.object) {
                Some(kind) => request.kind = kind,
                None => {
                    let message = "request.kind: is missing, and the object doesn't tell it".to_owned();
                    return Decision::Deny { code: 400, message, causes: Vec::new() };
                }
            }
        }
        let labels = self.state.namespace_labels(&request.namespace);
        admit::decide(&self.caches, &self.settings, request, labels.as_ref()).unwrap_or_else(|behind| {
            Decision::Deny { code: 503, message: behind.to_string(), causes: Vec::new() }
        })
    }
}

/// The kind that an object says it is.
pub(crate) fn kind_of(object: &Value) -> Option<Kind> {
    let text = |key: &str| object.get(key).and_then(Value::as_str);
    let version = text("apiVersion")?;
    let (group, version) = version.split_once('/').unwrap_or(("", version));
    Some(Kind { group: group.to_owned(), version: version.to_owned(), kind: text("kind")?.to_owned() })
}
