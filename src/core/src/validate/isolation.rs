//! Placement: nothing gets a Pod onto a Node that isn't its tenant's.

use serde_json::Value;

use super::{ValidationContext, entries, text};
use crate::field::{FieldError, FieldErrors};
use crate::json::metadata_map;
use crate::keys;
use crate::selector;
use crate::text::quoted;

/// The tenant's label in every term of the required node affinity. The kubelet checks node affinity again (and of taints
/// only NoExecute), so this holds also where the scheduler was bypassed.
pub(super) fn placement(pod: &Value, facts: &ValidationContext<'_>, faults: &mut Vec<FieldError>) {
    faults.extend(selector::demands(pod, keys::NODE_TENANT, facts.policy.tenant.as_str()));
}

/// `spec.nodeName` at creation bypasses the scheduler.
pub(super) fn unbound(pod: &Value, faults: &mut Vec<FieldError>) {
    if let Some(node) = pod.get("spec").and_then(|spec| text(spec, "nodeName")) {
        faults.add(
            "spec.nodeName",
            format_args!(
                "is {:?}, which bypasses the scheduler; remove it and use node affinity",
                quoted(node)
            ),
        );
    }
    if let Some(mirror) = metadata_map(pod, "annotations").get(keys::MIRROR_POD) {
        faults.add(
            format_args!("metadata.annotations[{}]", keys::MIRROR_POD),
            format_args!(
                "is {}: static Pods don't belong into a tenant's namespace",
                quoted(&mirror.to_string())
            ),
        );
    }
}

/// A Pod gets its node by a binding, never by an update. (The API server holds to that too.)
pub(super) fn still_unbound(pod: &Value, old: &Value, faults: &mut Vec<FieldError>) {
    let node = |pod: &Value| pod.get("spec").and_then(|spec| text(spec, "nodeName")).map(str::to_owned);
    let (now, before) = (node(pod), node(old));
    if now != before {
        faults.add(
            "spec.nodeName",
            format_args!("changes from {before:?} to {now:?}; only the scheduler binds Pods"),
        );
    }
}

/// A Pod without grace period is forgotten at once when it is deleted, while its containers may still run: its DPU would
/// count as empty too early.
pub(super) fn grace(pod: &Value, _: &ValidationContext<'_>, faults: &mut Vec<FieldError>) {
    no_grace(&pod["spec"], "spec", faults);
}

/// The same of the Pod's spec, which is at `path`.
pub(super) fn no_grace(spec: &Value, path: &str, faults: &mut Vec<FieldError>) {
    let grace = spec.get("terminationGracePeriodSeconds").and_then(Value::as_i64);
    if let Some(seconds) = grace.filter(|seconds| *seconds < 1) {
        faults.add(
            format_args!("{path}.terminationGracePeriodSeconds"),
            format_args!("is {seconds}; use 1 or more, so that its end is waited for"),
        );
    }
}

/// No toleration that reaches further than the tenant's own DPUs.
pub(super) fn tolerations(pod: &Value, facts: &ValidationContext<'_>, faults: &mut Vec<FieldError>) {
    for (path, toleration) in entries(&pod["spec"], "spec", "tolerations") {
        let Some(key) = text(toleration, "key") else {
            faults.add(
                path,
                "has no key and so tolerates every taint, other tenants' too; name the taints' keys",
            );
            continue;
        };
        if !keys::is_own(key) {
            continue;
        }
        let value = toleration.get("value").and_then(Value::as_str).unwrap_or_default();
        let equal = matches!(text(toleration, "operator"), None | Some("Equal"));
        if key != keys::TENANT || !equal || value != facts.policy.tenant.as_str() {
            let operator = text(toleration, "operator").unwrap_or("Equal");
            faults.add(
                path,
                format_args!(
                    "is {} {} {:?}; of the taints under {} only {} Equal {:?} may be tolerated",
                    quoted(key),
                    quoted(operator),
                    quoted(value),
                    keys::DOMAIN,
                    keys::TENANT,
                    facts.policy.tenant.as_str()
                ),
            );
        }
    }
}

/// Another scheduler may bind as it likes.
pub(super) fn scheduler(pod: &Value, facts: &ValidationContext<'_>, faults: &mut Vec<FieldError>) {
    if let Some(name) = text(&pod["spec"], "schedulerName")
        && !facts.schedulers.iter().any(|allowed| allowed == name)
    {
        faults.add(
            "spec.schedulerName",
            format_args!("is {:?}; use one of {}, or none", quoted(name), facts.schedulers.join(", ")),
        );
    }
}

/// Affinity to Pods of other namespaces tells where those run, and moves beside them.
pub(super) fn pod_affinity(pod: &Value, facts: &ValidationContext<'_>, faults: &mut Vec<FieldError>) {
    const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
    const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";
    for kind in ["podAffinity", "podAntiAffinity"] {
        let Some(affinity) = pod["spec"].get("affinity").and_then(|a| a.get(kind)) else { continue };
        let base = format!("spec.affinity.{kind}");
        for (path, term) in entries(affinity, &base, REQUIRED) {
            own_namespace(&path, term, facts.namespace, faults);
        }
        for (path, weighted) in entries(affinity, &base, PREFERRED) {
            let term = weighted.get("podAffinityTerm").unwrap_or(&Value::Null);
            own_namespace(&format!("{path}.podAffinityTerm"), term, facts.namespace, faults);
        }
    }
}

fn own_namespace(path: &str, term: &Value, namespace: &str, faults: &mut Vec<FieldError>) {
    if term.get("namespaceSelector").is_some_and(|selector| !selector.is_null()) {
        faults.add(
            format_args!("{path}.namespaceSelector"),
            "reaches other namespaces; remove it: without it the term is about the Pod's own",
        );
    }
    // The first of a term is enough: so there are no more faults than terms.
    if let Some((path, name)) =
        entries(term, path, "namespaces").find(|(_, name)| name.as_str() != Some(namespace))
    {
        faults.add(path, format_args!("is {name}; only the Pod's own, {namespace:?}, is allowed"));
    }
}
