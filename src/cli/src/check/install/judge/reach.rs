//! Whether the API server, and agents, can reach who they call.

use std::collections::BTreeSet;

use outrigger_core::keys;
use serde_json::Value;

use super::{list, short, subject, text};
use crate::check::findings::{CA_MISMATCH, CA_UNUSABLE, CERTIFICATE_ENDED, Finding, Subject, UNREACHABLE};

/// What the API server says of a webhook that it couldn't call.
const FAILED: &str = "failed calling webhook";

/// Whether a Service has a port and leads to somebody who is ready. `port` is the one that is called; `slices` are the
/// Service's EndpointSlices.
pub(crate) fn service(service: &Value, slices: &[Value], port: i64) -> Option<Finding> {
    let subject = subject(service);
    if text(service, "/spec/type") == "ExternalName" {
        return None;
    }
    let number = |value: &Value, field: &str| value.get(field).and_then(Value::as_i64);
    let ports: Vec<String> =
        list(service, "/spec/ports").iter().filter_map(|p| Some(number(p, "port")?.to_string())).collect();
    if !ports.contains(&port.to_string()) {
        let message = format!("has {}; {port} is called", ports.join(", "));
        return Some(Finding::new(&UNREACHABLE, &subject, "spec.ports", message));
    }
    let name = list(service, "/spec/ports").iter().find(|p| number(p, "port") == Some(port));
    let name = name.map_or("", |port| text(port, "/name"));
    let endpoints = || slices.iter().flat_map(|slice| list(slice, "/endpoints"));
    // Unknown counts as ready (discovery.k8s.io/v1).
    let is_ready = |e: &&Value| e.pointer("/conditions/ready").and_then(Value::as_bool) != Some(false);
    if endpoints().filter(is_ready).count() == 0 {
        let message = match endpoints().count() {
            0 => "leads to nobody: no Pod has the labels that it selects".to_owned(),
            n => format!("leads to {n} Pods, and none is ready"),
        };
        return Some(Finding::new(&UNREACHABLE, &subject, "spec.selector", message));
    }
    let has_port = |slice: &Value| list(slice, "/ports").iter().any(|port| text(port, "/name") == name);
    if !slices.iter().any(has_port) {
        let message = format!("port {port} leads to no port of the Pods: none is called as its targetPort");
        return Some(Finding::new(&UNREACHABLE, &subject, "spec.ports", message));
    }
    None
}

/// What became of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The certificate that was shown is one that is to be trusted.
    Trusted,
    /// It isn't, and why.
    Untrusted(String),
    /// It, or something of its chain, has ended or begins later, and which.
    Untimely(String),
    /// The CA that would have to be trusted has ended, or begins later.
    CaUntimely,
    /// Nothing was shown, and why.
    Failed(String),
}

/// What a connection tells of a webhook or a manager at an address. `told` is what its certificate and the CAs have told by
/// themselves: the same dates are told of once.
pub(crate) fn connection(
    subject: &Subject,
    path: &str,
    address: &str,
    outcome: &Outcome,
    told: &[Finding],
) -> Option<Finding> {
    let is_told = |check| told.iter().any(|finding| finding.check == check);
    match outcome {
        Outcome::Trusted => None,
        Outcome::Untimely(why) => {
            let message = format!("what {address} shows isn't trusted now: {}", short(why));
            (!is_told(&CERTIFICATE_ENDED)).then(|| Finding::new(&CERTIFICATE_ENDED, subject, path, message))
        }
        Outcome::CaUntimely => {
            let message = format!(
                "what {address} shows is signed by a CA that isn't in force; who calls it refuses such a CA"
            );
            (!is_told(&CA_UNUSABLE)).then(|| Finding::new(&CA_UNUSABLE, subject, path, message))
        }
        Outcome::Untrusted(why) => {
            let message = format!("what {address} shows isn't trusted: {}", short(why));
            Some(Finding::new(&CA_MISMATCH, subject, path, message))
        }
        Outcome::Failed(why) => {
            let message = format!("{address} doesn't answer: {}", short(why));
            Some(Finding::new(&UNREACHABLE, subject, path, message))
        }
    }
}

/// What an API server's answer to an attempt to make something tells of the webhooks that it called for it; of all other
/// refusals nothing. `subject` is the configuration, `entries` are the names of ours: a webhook of somebody else's is his
/// business.
pub(crate) fn attempt(subject: &Subject, answer: &str, entries: &BTreeSet<&str>) -> Option<Finding> {
    let (_, rest) = answer.split_once(FAILED)?;
    let entry = rest.trim_start().trim_start_matches('"').split('"').next().unwrap_or_default();
    if !entries.contains(entry) {
        return None;
    }
    let check = if rest.contains("certificate has expired or is not yet valid") {
        &CERTIFICATE_ENDED
    } else if rest.contains("unable to load root certificates") {
        &CA_UNUSABLE
    } else if rest.contains("x509:") || rest.contains("tls: failed to verify") {
        &CA_MISMATCH
    } else {
        &UNREACHABLE
    };
    // After the URL stands the reason.
    let why = rest.rsplit_once("\": ").map_or(rest, |(_, why)| why);
    let path = format!("webhooks[{entry}]");
    let message = format!("the API server's own call fails: {}", short(why));
    Some(Finding::new(check, subject, path, message))
}

/// Whether a Pod that was made in a tenant's namespace has been through the webhook: it is on that tenant's DPUs only.
pub(crate) fn is_placed(pod: &Value, tenant: &str) -> bool {
    let terms = list(
        pod,
        "/spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms",
    );
    let is_its = |term: &Value| {
        list(term, "/matchExpressions").iter().any(|of| {
            text(of, "/key") == keys::NODE_TENANT
                && text(of, "/operator") == "In"
                && list(of, "/values").iter().all(|value| value == tenant)
        })
    };
    !terms.is_empty() && terms.iter().all(is_its)
}
