//! The table of all webhooks. The server's routes and metric labels, the shipped configurations (`webhooks/`) and offline
//! decisions derive from it: who adds a kind adds a row here, and a handler.

mod decide;
mod endpoints;
mod gates;
mod yaml;

use std::time::Duration;

use outrigger_core::json::list;
use outrigger_core::keys;
use outrigger_core::mutate::refuse_own_keys;

use crate::decision::Decision;
use crate::machines::{GuestOutcome, guests, machine};
use crate::review::Request;
use crate::{admin, claims, mutate, offloading, pods, rules, tenants};

use endpoints::Needs;

pub use decide::{Call, calls, decide, decide_observed, kind_named};
pub use endpoints::{Endpoint, endpoint, endpoints, watches};
pub use gates::gate_endpoints;
pub use yaml::configurations;

struct Webhook {
    /// Its name in the configuration, without Outrigger's domain.
    name: &'static str,
    /// Why it is as it is: a comment in the configuration.
    why: &'static str,
    endpoint: &'static Endpoint,
    /// The Service that is called, in Outrigger's namespace.
    service: &'static str,
    /// The API group and version of what it is called for.
    api: (&'static str, &'static str),
    rules: &'static [Rule],
    /// What labels a namespace must have for its objects to be sent, ANDed; empty: objects of all namespaces, and of none.
    namespaces: &'static [Requirement],
    /// A label that the object must have, or must have had before.
    object: Option<(&'static str, &'static str)>,
    condition: Option<Condition>,
    /// Failures of the call are ignored; otherwise the request fails.
    ignores_failure: bool,
}

/// How long the API server waits for a webhook (timeoutSeconds), unless that one writes. A replica that doesn't answer, because its
/// node is gone or the network drops its packets, costs every request that is sent to it this long. A webhook that only reads
/// answers from memory; at most it waits 2 s for a cache or for memory, and says so.
pub const TIMEOUT: Duration = Duration::from_secs(3);

/// The same for a webhook that writes: after these 2 s it has 6 s for its reservation, which takes several calls of the API server and
/// is repeated where another replica has written. A shorter timeout would leave reservations behind that nobody uses.
pub const WRITER_TIMEOUT: Duration = Duration::from_secs(10);

/// Resources, each with the kind of the object in a request, and the operations on them.
struct Rule {
    resources: Resources,
    operations: &'static [&'static str],
    /// The resources are not in namespaces.
    cluster: bool,
}

type Resources = &'static [(&'static str, &'static str)];

const fn namespaced(resources: Resources, operations: &'static [&'static str]) -> Rule {
    Rule { resources, operations, cluster: false }
}

const fn cluster(resources: Resources, operations: &'static [&'static str]) -> Rule {
    Rule { resources, operations, cluster: true }
}

/// A match condition: in the configuration as CEL, offline as a function.
struct Condition {
    name: &'static str,
    /// Lines of one expression. A line that begins with a space keeps its line break.
    cel: &'static [&'static str],
    holds: fn(&Request) -> bool,
}

#[derive(Clone, Copy)]
enum Requirement {
    Exists(&'static str),
    DoesNotExist(&'static str),
    Is(&'static str, &'static str),
    /// The label is missing, or has another value.
    IsNot(&'static str, &'static str),
    /// The name is none of these.
    NameNotIn(&'static [&'static str]),
    /// It is the namespace of the companions of admin rules (--admin-resources-namespace).
    AdminResources,
}

/// Whatever labels these namespaces get: the cluster, and Outrigger itself, must be able to start without Outrigger.
const NOT_SYSTEMS: Requirement = Requirement::NameNotIn(&keys::SYSTEM_NAMESPACES);

/// The same, and the namespace of the companions of admin rules.
const NOT_PLATFORMS: Requirement = Requirement::NameNotIn(&{
    let [system, public, node_lease, own] = keys::SYSTEM_NAMESPACES;
    [system, public, node_lease, own, keys::ADMIN_NAMESPACE]
});

const OF_TENANTS: &[Requirement] = &[Requirement::Exists(keys::TENANT), NOT_SYSTEMS];

const GUEST: Option<(&str, &str)> = Some((keys::POD_ROLE, keys::GUEST));

const WRITES: &[&str] = &["CREATE", "UPDATE"];

const NEW_PODS: &[Rule] = &[namespaced(&[("pods", "Pod")], &["CREATE"])];

const OF_GUESTS: Needs = Needs {
    watches: &[watches::MACHINES, watches::GUESTS, watches::NAMESPACES],
    by: guests::is_about_slot,
    outcome: None,
};

const OF_REFERENCES: Needs = Needs {
    watches: &[watches::PRIORITY_CLASSES, watches::CLAIMS, watches::DEVICE_CLASSES],
    by: |request| {
        let spec = &request.object["spec"];
        let names = ["priorityClassName", "resourceClaims"].iter().any(|field| !spec[field].is_null());
        names && request.operation == "CREATE" && request.sub_resource.is_empty()
    },
    outcome: None,
};

/// What most endpoints have in common.
const PLAIN: Endpoint = Endpoint {
    path: "",
    aliases: &[],
    label: "",
    mutates: false,
    writes: false,
    advises: false,
    needs: None,
    handler: |_, _| Err(Decision::deny(500, "this path has no handler").into()),
};

static MUTATE_PODS: Endpoint = Endpoint {
    path: "/mutate/pods",
    label: "MutatePods",
    mutates: true,
    needs: Some(OF_GUESTS),
    handler: mutate::mutate_pod,
    ..PLAIN
};

/// Validation of Pods and their bindings in tenants' namespaces.
pub static VALIDATE_PODS: Endpoint = Endpoint {
    path: "/validate/pods",
    label: "ValidatePods",
    needs: Some(OF_REFERENCES),
    handler: pods::validate,
    ..PLAIN
};

/// What most webhooks have in common.
const DEFAULTS: Webhook = Webhook {
    name: "",
    why: "",
    endpoint: &MUTATE_PODS,
    service: keys::WEBHOOK,
    api: ("", "v1"),
    rules: NEW_PODS,
    namespaces: &[],
    object: None,
    condition: None,
    ignores_failure: false,
};

const SPEC_CHANGES: Condition = Condition {
    name: "spec-changes",
    cel: &["request.operation != 'UPDATE' || object.?spec != oldObject.?spec"],
    holds: |request| !request.leaves_spec(),
};

/// Every webhook, in the order of the configurations. The API server calls all mutating webhooks that match first.
static WEBHOOKS: &[Webhook] = &[
    Webhook {
        name: "pods",
        why: "Pods in tenants' namespaces. The system's Pods and Outrigger's own never wait for it, also where somebody labels their\n\
              namespaces by mistake. A Pod that is not isolated must not run, so failures are not ignored. Another webhook may\n\
              change the affinity afterwards; then this one is called again. It waits at most 2 s for a cache.",
        namespaces: OF_TENANTS,
        ..DEFAULTS
    },
    Webhook {
        name: "admin-pods",
        why: "The companions of admin rules are in the platform's own namespace (--admin-resources-namespace). Other Pods there never\n\
              wait for Outrigger, so that the platform can start without it: only Pods with Outrigger's keys are sent. A tenant's\n\
              namespace is above: each Pod is sent once. A companion that is not placed must not run.",
        namespaces: &[Requirement::AdminResources, Requirement::DoesNotExist(keys::TENANT)],
        condition: Some(Condition {
            name: "has-keys-of-ours",
            cel: &[
                "object.metadata.?labels.orValue({}).exists(k, k.matches(",
                "  '^(([^/]*[.])?outrigger[.]dev|outrigger[.]dev[.]node-restriction[.]kubernetes[.]io)/'))",
                "|| object.metadata.?annotations.orValue({}).exists(k, k.matches(",
                "  '^(([^/]*[.])?outrigger[.]dev|outrigger[.]dev[.]node-restriction[.]kubernetes[.]io)/'))",
                "|| object.spec.?schedulingGates.orValue([]).exists(g, g.name.matches(",
                "  '^(([^/]*[.])?outrigger[.]dev|outrigger[.]dev[.]node-restriction[.]kubernetes[.]io)/'))",
            ],
            holds: |request| refuse_own_keys(&request.object).is_err(),
        }),
        ..DEFAULTS
    },
    Webhook {
        name: "offloaded-pods",
        why: "Offloading alone. A tenant's namespace that is also offloaded is above: each Pod is sent once. A Pod that must stay in\n\
              some clusters must not run in others.",
        namespaces: &[
            Requirement::Is(keys::OFFLOADED, "true"),
            Requirement::DoesNotExist(keys::TENANT),
            NOT_PLATFORMS,
        ],
        ..DEFAULTS
    },
    Webhook {
        name: "guests",
        why: "Guests of Machines alone. A namespace that is also a tenant's or offloaded is above: each Pod is sent once. Other Pods\n\
              don't wait. A Pod without the label is no guest, and validation refuses a Pod that gets it later. A guest without its\n\
              slot's size and place would take resources of others.",
        namespaces: &[
            Requirement::Is(keys::INJECT_RESOURCE, keys::INJECT_ENABLED),
            Requirement::DoesNotExist(keys::TENANT),
            Requirement::IsNot(keys::OFFLOADED, "true"),
            NOT_PLATFORMS,
        ],
        object: GUEST,
        ..DEFAULTS
    },
    Webhook {
        name: "pods",
        why: "New Pods and bindings in tenants' namespaces; see the mutating webhook of the same name. Subresources are resources of\n\
              their own: those that change what a Pod is are named. Policies protect the status, which kubelets write all the time.\n\
              Both ways to bind are named. There is no match condition: which tenant's DPUs a Pod has to stay on is in the labels of\n\
              its namespace, which match conditions don't see (docs/performance.md).",
        endpoint: &VALIDATE_PODS,
        rules: &[
            namespaced(&[("pods", "Pod")], &["CREATE"]),
            namespaced(&[("pods/ephemeralcontainers", "Pod"), ("pods/resize", "Pod")], WRITES),
            namespaced(&[("pods/binding", "Binding"), ("bindings", "Binding")], &["CREATE"]),
        ],
        namespaces: OF_TENANTS,
        ..DEFAULTS
    },
    Webhook {
        name: "resourceclaims",
        why: "Device claims in tenants' namespaces. The scheduler and Kubernetes' controllers add and remove a finalizer. That must\n\
              work without Outrigger, and in namespaces whose Tenant was deleted: otherwise nothing is scheduled, and claims never\n\
              end. A claim that was not validated must not get a device.",
        endpoint: &Endpoint {
            path: "/validate/resourceclaims",
            aliases: &["/validate/resourceclaimtemplates"],
            label: "ValidateClaims",
            handler: claims::validate,
            ..PLAIN
        },
        api: (CLAIMS, "v1"),
        rules: &[namespaced(
            &[("resourceclaims", "ResourceClaim"), ("resourceclaimtemplates", "ResourceClaimTemplate")],
            WRITES,
        )],
        namespaces: OF_TENANTS,
        condition: Some(Condition {
            name: "says-something-else",
            cel: &[
                "request.operation == 'CREATE' || object.spec != oldObject.spec",
                "|| object.metadata.?labels != oldObject.metadata.?labels",
                "|| object.metadata.?annotations != oldObject.metadata.?annotations",
                "|| object.metadata.?ownerReferences != oldObject.metadata.?ownerReferences",
            ],
            holds: |request| !request.leaves_spec() || change(request, OWNERSHIP),
        }),
        ..DEFAULTS
    },
    Webhook {
        name: "workloadrules",
        why: "Failures are ignored: the rule's conditions tell what is wrong with it, and its companions are validated all the same.",
        endpoint: &Endpoint {
            path: "/validate/workloadrules",
            label: "ValidateRules",
            handler: rules::validate,
            ..PLAIN
        },
        api: (keys::WORKLOAD_GROUP, "v1alpha1"),
        rules: &[namespaced(&[("workloadrules", "WorkloadRule")], WRITES)],
        ignores_failure: true,
        ..DEFAULTS
    },
    Webhook {
        name: "tenants",
        why: "Two Tenants with one host would both lose it. A Tenant can lose its finalizers, and be deleted, without Outrigger.",
        endpoint: &Endpoint {
            path: "/validate/tenants",
            label: "ValidateTenants",
            handler: tenants::validate,
            ..PLAIN
        },
        api: (keys::GROUP, "v1alpha1"),
        rules: &[cluster(&[("tenants", "Tenant")], WRITES)],
        condition: Some(SPEC_CHANGES),
        ..DEFAULTS
    },
    Webhook {
        name: "adminworkloadrules",
        why: "Failures are ignored: the rule's conditions tell what is wrong with it, and an invalid rule has no companions.",
        endpoint: &Endpoint {
            path: "/validate/adminworkloadrules",
            label: "ValidateAdminRules",
            handler: admin::validate,
            ..PLAIN
        },
        api: (keys::WORKLOAD_GROUP, "v1alpha1"),
        rules: &[namespaced(&[("adminworkloadrules", "AdminWorkloadRule")], WRITES)],
        ignores_failure: true,
        ..DEFAULTS
    },
    Webhook {
        name: "namespaceoffloadings",
        why: "Other clusters have received what may not change. A deleted object can lose its finalizers, and its namespace can be\n\
              deleted, without Outrigger.",
        endpoint: &Endpoint {
            path: "/validate/namespaceoffloadings",
            label: "ValidateOffloadings",
            handler: offloading::validate,
            ..PLAIN
        },
        api: (keys::OFFLOADING_GROUP, "v1beta1"),
        rules: &[namespaced(&[("namespaceoffloadings", "NamespaceOffloading")], WRITES)],
        condition: Some(SPEC_CHANGES),
        ..DEFAULTS
    },
    Webhook {
        name: "machines",
        why: "Two groups on one node would compete for it. Groups and nodes are written down, so that no other Machine gets them at\n\
              the same time: that takes up to 6 s, after 2 s for a cache. A Machine can lose its finalizers, and be deleted, without\n\
              Outrigger. Its group is a label.",
        endpoint: &Endpoint {
            path: "/validate/machines",
            label: "ValidateMachines",
            writes: true,
            needs: Some(Needs { watches: &[watches::MACHINES], by: machine::is_claiming, outcome: None }),
            handler: machine::validate,
            ..PLAIN
        },
        api: (keys::MACHINE_GROUP_DOMAIN, "v1alpha1"),
        rules: &[cluster(&[("machines", "Machine")], WRITES)],
        condition: Some(Condition {
            name: "spec-or-labels-change",
            cel: &[
                "request.operation != 'UPDATE' || object.?spec != oldObject.?spec",
                "|| object.metadata.?labels != oldObject.metadata.?labels",
            ],
            holds: |request| !request.leaves_spec() || change(request, LABELS),
        }),
        ..DEFAULTS
    },
    Webhook {
        name: "guests",
        why: "Guests of Machines, also in tenants' namespaces: slots are counted here, after all mutation, when the Pod has its name\n\
              and uid. A guest that was not counted must not run. Labels and spec say which slot a guest has. It can lose its\n\
              finalizers, and be deleted, without Outrigger. The label counts on the object and on its state before.",
        endpoint: &Endpoint {
            path: "/validate/guests",
            label: "ValidateGuests",
            writes: true,
            needs: Some(Needs { outcome: Some(GuestOutcome::Unavailable), ..OF_GUESTS }),
            handler: guests::validate,
            ..PLAIN
        },
        rules: &[namespaced(&[("pods", "Pod"), ("pods/resize", "Pod")], WRITES)],
        namespaces: &[Requirement::Is(keys::INJECT_RESOURCE, keys::INJECT_ENABLED), NOT_PLATFORMS],
        object: GUEST,
        condition: Some(Condition {
            name: "labels-or-spec-change",
            cel: &[
                "request.operation != 'UPDATE' || request.?subResource.orValue('') != ''",
                "|| object.spec != oldObject.spec || object.metadata.?labels != oldObject.metadata.?labels",
            ],
            holds: |request| {
                !request.sub_resource.is_empty() || !request.leaves_spec() || change(request, LABELS)
            },
        }),
        ..DEFAULTS
    },
    Webhook {
        name: "pod-updates",
        why: "A Pod can lose its finalizers, and be deleted, without Outrigger: otherwise Jobs, namespaces and DPUs that change hands\n\
              would wait too. Added finalizers are validated.",
        endpoint: &VALIDATE_PODS,
        rules: &[namespaced(&[("pods", "Pod")], &["UPDATE"])],
        namespaces: OF_TENANTS,
        condition: Some(Condition {
            name: "more-than-losing-finalizers",
            cel: &[
                "object.spec != oldObject.spec",
                "|| object.metadata.?labels != oldObject.metadata.?labels",
                "|| object.metadata.?annotations != oldObject.metadata.?annotations",
                "|| object.metadata.?ownerReferences != oldObject.metadata.?ownerReferences",
                "|| object.metadata.?finalizers != oldObject.metadata.?finalizers",
                "&& (object.metadata.?finalizers.orValue([]).size() > 8",
                "  || object.metadata.?finalizers.orValue([]).exists(f, !(f in oldObject.metadata.?finalizers.orValue([]))))",
            ],
            holds: |request| !request.leaves_spec() || change(request, OWNERSHIP) || adds_finalizers(request),
        }),
        ..DEFAULTS
    },
];

/// The rows of both tables: of the webhook's server, and of the agent's.
fn both_tables() -> impl Iterator<Item = &'static Webhook> {
    WEBHOOKS.iter().chain(gates::GATES)
}

const CLAIMS: &str = "resource.k8s.io";

const LABELS: &[&str] = &["/metadata/labels"];

/// The metadata that decides who owns an object.
const OWNERSHIP: &[&str] = &["/metadata/labels", "/metadata/annotations", "/metadata/ownerReferences"];

fn change(request: &Request, paths: &[&str]) -> bool {
    paths.iter().any(|path| request.object.pointer(path) != request.old_object.pointer(path))
}

fn adds_finalizers(request: &Request) -> bool {
    const FINALIZERS: &str = "/metadata/finalizers";
    let before = list(&request.old_object, FINALIZERS);
    // More than the API server compares in reasonable time are validated in any case.
    let now = list(&request.object, FINALIZERS);
    now != before && (now.len() > 8 || now.iter().any(|finalizer| !before.contains(finalizer)))
}

impl Webhook {
    /// Its name in the configuration.
    fn full_name(&self) -> String {
        format!("{}.{}", self.name, keys::DOMAIN)
    }

    fn timeout(&self) -> Duration {
        if self.endpoint.writes { WRITER_TIMEOUT } else { TIMEOUT }
    }

    /// Group, version and kind of the objects in its requests.
    fn kinds(&self) -> impl Iterator<Item = (&'static str, &'static str, &'static str)> {
        let (group, version) = self.api;
        self.rules.iter().flat_map(|rule| rule.resources).map(move |(_, kind)| (group, version, *kind))
    }
}

#[cfg(test)]
mod tests;
