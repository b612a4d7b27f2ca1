//! The table of the webhooks that the agent serves in a tenant's cluster: they add the readiness gate to Pods that wait for their
//! companions, and the claim to those that don't start before. Only namespaces that ask for it are held up while the agent can't be
//! asked: elsewhere failures are ignored, and only what contradicts a rule is refused.

use outrigger_core::keys;

use super::{DEFAULTS, Endpoint, PLAIN, Requirement, Webhook};
use crate::gates::{Asks, order};

/// For Pods that a rule with an ordering matches.
static MATCHING: Endpoint = Endpoint {
    path: "/gate/pods",
    label: "GatePods",
    mutates: true,
    advises: true,
    handler: |cx, request| order(cx, request, Asks { all: false, required: false }),
    ..PLAIN
};

/// For all Pods of namespaces whose label asks for it.
static ALL: Endpoint = Endpoint {
    path: "/gate/all-pods",
    label: "GateAllPods",
    mutates: true,
    advises: true,
    handler: |cx, request| order(cx, request, Asks { all: true, required: false }),
    ..PLAIN
};

/// For Pods of namespaces in which no Pod may start too early, if a rule with an ordering matches them.
static MATCHING_REQUIRED: Endpoint = Endpoint {
    path: "/companions-first/pods",
    label: "HoldPods",
    mutates: true,
    handler: |cx, request| order(cx, request, Asks { all: false, required: true }),
    ..PLAIN
};

/// For all Pods of such namespaces whose labels ask for it.
static ALL_REQUIRED: Endpoint = Endpoint {
    path: "/companions-first/all-pods",
    label: "HoldAllPods",
    mutates: true,
    handler: |cx, request| order(cx, request, Asks { all: true, required: true }),
    ..PLAIN
};

/// Without the plugin's own namespace nothing would ever start where a rule matches the plugin.
const NOT_SYSTEMS: Requirement = Requirement::NameNotIn(&{
    let [system, public, node_lease, own] = keys::SYSTEM_NAMESPACES;
    [system, public, node_lease, own, keys::HOST_NAMESPACE]
});

const ALL_PODS: Requirement = Requirement::Is(keys::COMPANIONS_GATE_NAMESPACE, "true");
const MATCHING_PODS: Requirement = Requirement::IsNot(keys::COMPANIONS_GATE_NAMESPACE, "true");
const REQUIRED: Requirement = Requirement::Is(keys::COMPANIONS_FIRST_NAMESPACE, keys::REQUIRED);
const NOT_REQUIRED: Requirement = Requirement::IsNot(keys::COMPANIONS_FIRST_NAMESPACE, keys::REQUIRED);

/// The rows of the configuration. They don't overlap: each Pod is sent once.
pub(super) static GATES: &[Webhook] = &[
    Webhook {
        name: "gates",
        why: "New Pods, apart from those of the cluster's own components and of Outrigger: the agent finds the rules with an\n\
              ordering other than Parallel that match, or could match on some node. Failures are ignored: a Pod without gate\n\
              and claim doesn't wait for its companion, and a Pod that isn't created would be worse.",
        endpoint: &MATCHING,
        service: keys::AGENT,
        namespaces: &[MATCHING_PODS, NOT_REQUIRED, NOT_SYSTEMS],
        ignores_failure: true,
        ..DEFAULTS
    },
    Webhook {
        name: "gates-of-namespaces",
        why: "All new Pods of namespaces with this label, for rules of the platform, which the tenant's cluster doesn't know, and for\n\
              rules that come later.",
        endpoint: &ALL,
        service: keys::AGENT,
        namespaces: &[ALL_PODS, NOT_REQUIRED, NOT_SYSTEMS],
        ignores_failure: true,
        ..DEFAULTS
    },
    Webhook {
        name: "companions-first",
        why: "New Pods of namespaces with this label: one that starts before its companion would be worse than one that isn't created\n\
              while the agent can't be asked.",
        endpoint: &MATCHING_REQUIRED,
        service: keys::AGENT,
        namespaces: &[MATCHING_PODS, REQUIRED, NOT_SYSTEMS],
        ..DEFAULTS
    },
    Webhook {
        name: "companions-first-of-namespaces",
        why: "All new Pods of namespaces with both labels: they get gate and claim, for rules of the platform and for rules that come\n\
              later.",
        endpoint: &ALL_REQUIRED,
        service: keys::AGENT,
        namespaces: &[ALL_PODS, REQUIRED, NOT_SYSTEMS],
        ..DEFAULTS
    },
];

/// Every path of the agent's server in a tenant's cluster.
pub fn gate_endpoints() -> Vec<&'static Endpoint> {
    vec![&MATCHING, &ALL, &MATCHING_REQUIRED, &ALL_REQUIRED]
}
