//! Lets a Pod onto the virtual nodes that its namespace's NamespaceOffloading selects, or keeps it there: what Liqo's
//! webhook does to Pods.

use serde_json::{Value, json};

use super::{NO_NODE, Report};
use crate::field::{self, FieldError};
use crate::keys;
use crate::offloading::{Offloading, Strategy};
use crate::selector::{self, clash, product};
use crate::text::quoted;

/// The offloading of the Pod's namespace.
#[derive(Debug, Clone, Copy)]
pub struct OffloadingContext<'a> {
    /// The namespace's NamespaceOffloading.
    pub offloading: &'a Offloading,
    /// Pods of this RuntimeClass are left alone. Empty: none are.
    pub exempt_runtime_class: &'a str,
}

/// How messages about a Pod name what they are about.
const OBJECT: &str = "NamespaceOffloading offloading";

/// ANDs the selected nodes into the Pod's required node affinity, and tolerates the taint of virtual nodes.
///
/// # Errors
/// A [`FieldError`] where the Pod isn't of the API's shape, where the affinity would become too large, or where the
/// NamespaceOffloading has no strategy that is known.
pub fn apply(
    pod: &mut Value,
    facts: &super::PodContext<'_>,
    report: &mut Report,
) -> Result<bool, FieldError> {
    let Some(OffloadingContext { offloading, exempt_runtime_class }) = facts.offloading else {
        return Ok(false);
    };
    if offloading.strategy() == Ok(Strategy::Local) || super::is_mirror(pod) {
        return Ok(false);
    }
    // Before the strategy is looked at: who is exempt doesn't depend on it.
    let object = field::as_object_mut(pod, "")?;
    let spec = field::object_mut(object, "", "spec")?;
    let class = field::text(spec, "spec", "runtimeClassName")?.unwrap_or_default();
    if !class.is_empty() && class == exempt_runtime_class {
        return Ok(false);
    }
    if let Some(fault) = offloading.meaningless() {
        return Err(FieldError { path: format!("{OBJECT}: {}", fault.path), ..fault });
    }
    if let Some(fault) = offloading.unlabelable() {
        report.warnings.push(format!("{OBJECT}: {fault}"));
    }
    let toleration = json!({"key": keys::NOT_ALLOWED, "operator": "Exists", "effect": "NoExecute"});
    let tolerated = selector::tolerate(pod, toleration)?;
    if let Some((own, imposed)) = clash::opposition(pod, offloading.imposed()) {
        report.warnings.push(format!(
            "{NO_NODE}: it asks for {}, its NamespaceOffloading for {}",
            quoted(&own),
            quoted(&imposed)
        ));
    }
    Ok(product::and(pod, offloading.imposed())? || tolerated)
}

#[cfg(test)]
mod tests;
