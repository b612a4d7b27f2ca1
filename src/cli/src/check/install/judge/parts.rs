//! What runs: Deployments, what their Pods wait for, and who leads.

use serde_json::Value;

use super::{Found, list, subject, text};
use crate::check::findings::{ANYBODY_WRITES, Finding, LEASE, NOT_MOUNTABLE, REPLICAS, Subject, UNAVAILABLE};

/// Whether a Deployment runs, with as many replicas as it wants, all of them as it says.
pub(crate) fn deployment(found: &Value) -> Option<Finding> {
    let subject = subject(found);
    let number = |pointer: &str| found.pointer(pointer).and_then(Value::as_i64);
    let wanted = number("/spec/replicas").unwrap_or(1);
    let available = number("/status/availableReplicas").unwrap_or(0);
    if wanted == 0 {
        let message = "is 0: none shall run";
        return Some(Finding::new(&UNAVAILABLE, &subject, "spec.replicas", message));
    }
    let condition = list(found, "/status/conditions").iter().find(|c| text(c, "/type") == "Available");
    let told = condition.is_some_and(|condition| text(condition, "/status") == "True");
    if available == 0 || !told {
        let why = condition.filter(|_| !told).map_or("", |condition| text(condition, "/message"));
        let message = format!("is {available}, {wanted} are wanted {why}");
        return Some(Finding::new(&UNAVAILABLE, &subject, "status.availableReplicas", message.trim()));
    }
    if available < wanted {
        let message = format!("is {available}, {wanted} are wanted");
        return Some(Finding::new(&REPLICAS, &subject, "status.availableReplicas", message));
    }
    rollout(found, &subject, wanted)
}

/// Whether what runs is what the Deployment says: earlier Pods are as available as any.
fn rollout(found: &Value, subject: &Subject, wanted: i64) -> Option<Finding> {
    let number = |pointer: &str| found.pointer(pointer).and_then(Value::as_i64).unwrap_or(0);
    let (generation, observed) = (number("/metadata/generation"), number("/status/observedGeneration"));
    if observed < generation {
        let message =
            format!("is {observed}, the Deployment is at {generation}: nobody has acted on its last change");
        return Some(Finding::new(&REPLICAS, subject, "status.observedGeneration", message));
    }
    let updated = number("/status/updatedReplicas");
    let stuck = list(found, "/status/conditions")
        .iter()
        .find(|c| text(c, "/type") == "Progressing" && text(c, "/status") == "False");
    if let Some(condition) = stuck {
        let message =
            format!("is {updated} of {wanted}, and it gets no further: {}", text(condition, "/message"));
        return Some(Finding::new(
            &UNAVAILABLE,
            subject,
            "status.updatedReplicas",
            message.trim_end_matches(": "),
        ));
    }
    (updated < wanted).then(|| {
        let message =
            format!("is {updated}, {wanted} are wanted: the others are as they were before the last change");
        Finding::new(&REPLICAS, subject, "status.updatedReplicas", message)
    })
}

/// Whether the webhook asks those for a certificate who would have it write: reviews of Machines and guests take what can be had
/// once. `client_ca` is the file that it knows clients by, `None` where it was told none.
pub(crate) fn writers(webhook: &Value, client_ca: Option<&str>) -> Option<Finding> {
    let asked = client_ca.is_some_and(|file| !file.is_empty());
    (!asked).then(|| {
        let message = "--tls-client-ca-file isn't there: /validate/guests and /validate/machines take reviews of whoever reaches \
                       the port";
        Finding::new(&ANYBODY_WRITES, &subject(webhook), "spec.template.spec.containers[0].args", message)
    })
}

/// A Secret or ConfigMap that the Pods of a Deployment wait for.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Mount {
    /// `Secret` or `ConfigMap`.
    pub(crate) kind: &'static str,
    /// Its name, in the Deployment's namespace.
    pub(crate) name: String,
    /// The keys that are taken out of it, with the path of the file that each becomes. None: all that there are.
    pub(crate) keys: Vec<(String, String)>,
    /// Where the Deployment names it.
    pub(crate) path: String,
}

/// Everything that the Pods of a Deployment wait for.
pub(crate) fn mounts(deployment: &Value) -> Vec<Mount> {
    const POD: &str = "spec.template.spec.volumes";
    let mut mounts = Vec::new();
    for (i, volume) in list(deployment, "/spec/template/spec/volumes").iter().enumerate() {
        mounts.extend(mount(volume, &format!("{POD}[{i}]")));
        for (j, source) in list(volume, "/projected/sources").iter().enumerate() {
            mounts.extend(mount(source, &format!("{POD}[{i}].projected.sources[{j}]")));
        }
    }
    mounts
}

fn mount(source: &Value, at: &str) -> Option<Mount> {
    [("Secret", "secret", "secretName"), ("Secret", "secret", "name"), ("ConfigMap", "configMap", "name")]
        .into_iter()
        .find_map(|(kind, field, name)| {
            let of = source.get(field)?;
            let name = of.get(name).and_then(Value::as_str)?.to_owned();
            if of.get("optional").and_then(Value::as_bool) == Some(true) {
                return None;
            }
            let key = |item: &Value| (text(item, "/key").to_owned(), text(item, "/path").to_owned());
            let keys = list(of, "/items").iter().map(key).collect();
            Some(Mount { kind, name, keys, path: format!("{at}.{field}") })
        })
}

/// Whether what a Deployment's Pods wait for is there, with its keys.
pub(crate) fn mounted(deployment: &Subject, mount: &Mount, found: Found<'_>) -> Vec<Finding> {
    let Mount { kind, name, keys, path } = mount;
    let found = match found {
        Found::Unread => return Vec::new(),
        Found::There(found) => found,
        Found::Absent => {
            let message = format!("names the {kind} {name}, which isn't there");
            return vec![Finding::new(&NOT_MOUNTABLE, deployment, path, message)];
        }
    };
    let has = |key: &str| {
        let is_in = |field: &str| found.get(field).is_some_and(|data| data.get(key).is_some());
        is_in("data") || is_in("binaryData")
    };
    let lacking = keys.iter().filter(|(key, _)| !has(key));
    lacking
        .map(|(key, _)| {
            let message = format!("takes {key:?} out of the {kind} {name}, which doesn't have it");
            Finding::new(&NOT_MOUNTABLE, deployment, path, message)
        })
        .collect()
}

/// Whether somebody holds a Lease. `renewed` is how long ago it was renewed, in seconds; `None` where it never was.
pub(crate) fn lease(subject: &Subject, found: Found<'_>, renewed: Option<i64>) -> Option<Finding> {
    let lease = match found {
        Found::Unread => return None,
        Found::Absent => return Some(Finding::new(&LEASE, subject, "", "isn't there: nobody has ever led")),
        Found::There(lease) => lease,
    };
    let holder = text(lease, "/spec/holderIdentity");
    if holder.is_empty() {
        return Some(Finding::new(&LEASE, subject, "spec.holderIdentity", "is empty: nobody leads"));
    }
    let duration = lease.pointer("/spec/leaseDurationSeconds").and_then(Value::as_i64).unwrap_or(15);
    let message = match renewed {
        None => format!("is absent, and {holder} holds it"),
        Some(ago) if ago > duration => {
            format!("is {ago} s ago; {holder} has lost it after {duration} s, and nobody has taken it")
        }
        Some(_) => return None,
    };
    Some(Finding::new(&LEASE, subject, "spec.renewTime", message))
}
