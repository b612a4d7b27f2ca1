//! The table of the webhooks that the agent serves in a tenant's cluster: they add the readiness gate to Pods that wait for their
//! companions. No Pod of a tenant may be held up by them, so they refuse nothing, and failures are ignored.

use outrigger_core::keys;

use super::{DEFAULTS, Endpoint, NOT_SYSTEMS, PLAIN, Requirement, Webhook};
use crate::gates;

/// For Pods that a rule with an ordering matches.
pub(super) static MATCHING: Endpoint = Endpoint {
    path: "/gate/pods",
    label: "GatePods",
    mutates: true,
    advises: true,
    handler: gates::gate_matching,
    ..PLAIN
};

/// For all Pods of namespaces whose label asks for it.
pub(super) static ALL: Endpoint = Endpoint {
    path: "/gate/all-pods",
    label: "GateAllPods",
    mutates: true,
    advises: true,
    handler: gates::gate_all,
    ..PLAIN
};

/// The rows of the configuration. They don't overlap: each Pod is sent once.
pub(super) static GATES: &[Webhook] = &[
    Webhook {
        name: "gates",
        why: "New Pods, apart from those of the cluster's own components and of Outrigger: the agent finds the rules with the\n\
              ordering BeforeReady that match, or could match on some node. Failures are ignored: a Pod without the gate doesn't\n\
              wait for its companion, and a Pod that isn't created would be worse.",
        endpoint: &MATCHING,
        service: keys::AGENT,
        namespaces: &[Requirement::IsNot(keys::COMPANIONS_GATE_NAMESPACE, "true"), NOT_SYSTEMS],
        ignores_failure: true,
        ..DEFAULTS
    },
    Webhook {
        name: "gates-of-namespaces",
        why: "All new Pods of namespaces with this label, for rules of the platform, which the tenant's cluster doesn't know, and for\n\
              rules that come later.",
        endpoint: &ALL,
        service: keys::AGENT,
        namespaces: &[Requirement::Is(keys::COMPANIONS_GATE_NAMESPACE, "true"), NOT_SYSTEMS],
        ignores_failure: true,
        ..DEFAULTS
    },
];
