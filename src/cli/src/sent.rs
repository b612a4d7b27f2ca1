//! The annotations of Pods and the attributes of their devices that the agent of a tenant sends, for commands that read the Pods
//! themselves.

use std::collections::BTreeSet;
use std::sync::Arc;

use clap::Args;
use outrigger_agent::annotations::{Allowed, Pattern, Selection, keys_of};
use outrigger_api::WorkloadRule;
use outrigger_core::annotations::{is_key, key_of};
use outrigger_core::path::Path;

use crate::files::InputError;

/// What the agent of the tenant was started with.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct AnnotationArgs {
    /// Annotations that the agent sends besides those that rules of the tenant's cluster name: example.com/key, example.com/* or *.
    /// May be given several times, or separated by commas.
    #[arg(long, value_delimiter = ',', value_name = "PATTERN")]
    send_annotation: Vec<String>,

    /// Annotations that the agent sends if rules of the infrastructure cluster name them, such as rules of the platform. As
    /// --send-annotation.
    #[arg(long, value_delimiter = ',', value_name = "PATTERN")]
    allow_annotation: Vec<String>,

    /// Attributes of devices that the agent sends, as its setting of this name: gpu.example.com/model, gpu.example.com/* or *. They are
    /// read from ResourceClaims and ResourceSlices of the tenant's cluster. Without it they are unknown for Pods with claims. May be given
    /// several times, or separated by commas.
    #[arg(long, value_delimiter = ',', value_name = "NAME")]
    send_device_attribute: Vec<String>,
}

impl AnnotationArgs {
    /// The annotations that the agent may send.
    pub(crate) fn allowed(&self) -> Result<Allowed, InputError> {
        Ok(Allowed {
            always: patterns("--send-annotation", &self.send_annotation)?,
            asked: patterns("--allow-annotation", &self.allow_annotation)?,
        })
    }

    /// Refuses patterns that can't be read.
    pub(crate) fn verify(&self) -> Result<(), InputError> {
        self.allowed()?;
        self.device_attributes().map(drop)
    }

    /// The attributes of devices that the agent sends.
    pub(crate) fn device_attributes(&self) -> Result<Arc<[Pattern]>, InputError> {
        patterns("--send-device-attribute", &self.send_device_attribute)
    }
}

fn patterns(flag: &str, texts: &[String]) -> Result<Arc<[Pattern]>, InputError> {
    let patterns = texts.iter().map(|text| text.parse()).collect::<Result<_, String>>();
    patterns.map_err(|error| InputError::new(flag, error))
}

/// The keys that rules of the tenant's cluster name, and those that only others do.
#[derive(Debug, Default)]
pub(crate) struct NamedKeys {
    own: BTreeSet<String>,
    others: BTreeSet<String>,
}

impl NamedKeys {
    /// A rule of the tenant. `copied`: it is in the tenant's cluster, too.
    pub(crate) fn name(&mut self, rule: &WorkloadRule, copied: bool) {
        let keys = if copied { &mut self.own } else { &mut self.others };
        keys.extend(keys_of(rule));
    }

    /// A rule of the platform names these.
    pub(crate) fn ask<'a>(&mut self, keys: impl IntoIterator<Item = &'a str>) {
        self.others.extend(keys.into_iter().map(str::to_owned));
    }

    /// What the agent sends.
    pub(crate) fn selection(self, allowed: &Allowed) -> Selection {
        Selection::new(allowed, self.own, &self.others)
    }
}

/// Whether the path is that of an annotation that isn't sent: whether a Pod has it, and its value, is unknown.
pub(crate) fn is_unknown(sent: &Selection, path: &Path) -> bool {
    key_of(path).is_some_and(|key| is_key(key) && !sent.includes(key))
}
