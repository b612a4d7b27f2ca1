//! What the API server asks of whom: the entries of the webhooks' configurations, for those who have no API server.

use std::collections::{BTreeMap, HashSet};

use json_patch::Patch;
use outrigger_core::{keys, mutate};
use serde_json::Value;

use super::{
    Admit, Behind, Settings, deny, guests, mutate_pod, validate_admin_rule, validate_claim, validate_guest,
    validate_machine, validate_offloading, validate_pod, validate_rule, validate_tenant,
};
use crate::caches::Caches;
use crate::review::{Decision, Kind, Request};

/// One entry of `webhooks/mutating.yaml` or `webhooks/validating.yaml`.
struct Entry {
    /// The path that is asked. Only tests compare it.
    #[cfg_attr(not(test), allow(dead_code))]
    path: &'static str,
    /// Group, version and kind of what is asked about.
    kinds: &'static [(&'static str, &'static str, &'static str)],
    /// The object itself is the empty one.
    sub_resources: &'static [&'static str],
    operations: &'static [&'static str],
    /// What a namespace must be like for its objects to be sent, ANDed; empty: all are.
    namespaces: &'static [Requirement],
    /// What the request must be like besides.
    condition: Option<fn(&Request) -> bool>,
    admit: Admit,
}

/// A requirement of a namespaceSelector.
#[derive(Clone, Copy)]
enum Requirement {
    /// It has the label.
    Exists(&'static str),
    /// It hasn't.
    DoesNotExist(&'static str),
    /// The label has the value.
    Is(&'static str, &'static str),
    /// It hasn't, or with another value.
    IsNot(&'static str, &'static str),
    /// Its name is none of these.
    NameNotIn(&'static [&'static str]),
    /// It is that of the companions of admin rules.
    AdminResources,
}

/// Whatever labels these get: the cluster itself, and we, have to be able to start without us.
const NOT_SYSTEMS: Requirement =
    Requirement::NameNotIn(&["kube-system", "kube-public", "kube-node-lease", keys::SYSTEM_NAMESPACE]);

const OF_TENANTS: &[Requirement] = &[Requirement::Exists(keys::TENANT), NOT_SYSTEMS];

/// Namespaces whose Pods never wait for us, whoever labels them.
const SYSTEM: &[&str] =
    &["kube-system", "kube-public", "kube-node-lease", keys::SYSTEM_NAMESPACE, keys::ADMIN_NAMESPACE];

const CLAIMS: &str = "resource.k8s.io";

const MUTATING: &[Entry] = &[
    Entry {
        path: "/mutate/pods",
        kinds: &[("", "v1", "Pod")],
        sub_resources: &[""],
        operations: &["CREATE"],
        namespaces: &[Requirement::AdminResources, Requirement::DoesNotExist(keys::TENANT)],
        condition: Some(|request| mutate::refuse_own_keys(&request.object).is_err()),
        admit: mutate_pod,
    },
    Entry {
        path: "/mutate/pods",
        kinds: &[("", "v1", "Pod")],
        sub_resources: &[""],
        operations: &["CREATE"],
        namespaces: OF_TENANTS,
        condition: None,
        admit: mutate_pod,
    },
    Entry {
        path: "/mutate/pods",
        kinds: &[("", "v1", "Pod")],
        sub_resources: &[""],
        operations: &["CREATE"],
        namespaces: &[
            Requirement::Is(keys::OFFLOADED, "true"),
            Requirement::DoesNotExist(keys::TENANT),
            Requirement::NameNotIn(SYSTEM),
        ],
        condition: None,
        admit: mutate_pod,
    },
    Entry {
        path: "/mutate/pods",
        kinds: &[("", "v1", "Pod")],
        sub_resources: &[""],
        operations: &["CREATE"],
        namespaces: &[
            Requirement::Is(keys::INJECT_RESOURCE, keys::INJECT_ENABLED),
            Requirement::DoesNotExist(keys::TENANT),
            Requirement::IsNot(keys::OFFLOADED, "true"),
            Requirement::NameNotIn(SYSTEM),
        ],
        condition: Some(is_guest),
        admit: mutate_pod,
    },
];

const VALIDATING: &[Entry] = &[
    Entry {
        path: "/validate/pods",
        kinds: &[("", "v1", "Pod")],
        sub_resources: &["", "ephemeralcontainers", "resize"],
        operations: &["CREATE", "UPDATE"],
        namespaces: OF_TENANTS,
        condition: Some(pod_changes),
        admit: validate_pod,
    },
    Entry {
        path: "/validate/pods",
        kinds: &[("", "v1", "Binding")],
        sub_resources: &["", "binding"],
        operations: &["CREATE"],
        namespaces: OF_TENANTS,
        condition: Some(pod_changes),
        admit: validate_pod,
    },
    Entry {
        path: "/validate/resourceclaims",
        kinds: &[(CLAIMS, "v1", "ResourceClaim"), (CLAIMS, "v1", "ResourceClaimTemplate")],
        sub_resources: &[""],
        operations: &["CREATE", "UPDATE"],
        namespaces: OF_TENANTS,
        condition: Some(claim_changes),
        admit: validate_claim,
    },
    Entry {
        path: "/validate/workloadrules",
        kinds: &[(keys::WORKLOAD_GROUP, "v1alpha1", "WorkloadRule")],
        sub_resources: &[""],
        operations: &["CREATE", "UPDATE"],
        namespaces: &[],
        condition: None,
        admit: validate_rule,
    },
    Entry {
        path: "/validate/tenants",
        kinds: &[(keys::GROUP, "v1alpha1", "Tenant")],
        sub_resources: &[""],
        operations: &["CREATE", "UPDATE"],
        namespaces: &[],
        condition: Some(spec_changes),
        admit: validate_tenant,
    },
    Entry {
        path: "/validate/adminworkloadrules",
        kinds: &[(keys::WORKLOAD_GROUP, "v1alpha1", "AdminWorkloadRule")],
        sub_resources: &[""],
        operations: &["CREATE", "UPDATE"],
        namespaces: &[],
        condition: None,
        admit: validate_admin_rule,
    },
    Entry {
        path: "/validate/namespaceoffloadings",
        kinds: &[(keys::OFFLOADING_GROUP, "v1beta1", "NamespaceOffloading")],
        sub_resources: &[""],
        operations: &["CREATE", "UPDATE"],
        namespaces: &[],
        condition: Some(spec_changes),
        admit: validate_offloading,
    },
    Entry {
        path: "/validate/machines",
        kinds: &[(keys::MACHINE_GROUP_DOMAIN, "v1alpha1", "Machine")],
        sub_resources: &[""],
        operations: &["CREATE", "UPDATE"],
        namespaces: &[],
        condition: Some(machine_changes),
        admit: validate_machine,
    },
    Entry {
        path: "/validate/guests",
        kinds: &[("", "v1", "Pod")],
        sub_resources: &["", "resize"],
        operations: &["CREATE", "UPDATE"],
        namespaces: &[
            Requirement::Is(keys::INJECT_RESOURCE, keys::INJECT_ENABLED),
            Requirement::NameNotIn(SYSTEM),
        ],
        condition: Some(|request| is_guest(request) && guest_changes(request)),
        admit: validate_guest,
    },
];

/// What is only about metadata passes without us: finalizers can go also when we don't run.
fn spec_changes(request: &Request) -> bool {
    request.operation != "UPDATE" || request.object.get("spec") != request.old_object.get("spec")
}

/// Likewise; a Machine's group is a label.
fn machine_changes(request: &Request) -> bool {
    spec_changes(request) || changes(request, "/metadata/labels")
}

/// Likewise; claims say by all of these whose they are.
fn claim_changes(request: &Request) -> bool {
    let says = ["/metadata/labels", "/metadata/annotations", "/metadata/ownerReferences"];
    spec_changes(request) || says.into_iter().any(|path| changes(request, path))
}

/// Likewise; of finalizers, those that are added are judged.
fn pod_changes(request: &Request) -> bool {
    fn finalizers(pod: &Value) -> &[Value] {
        pod.pointer("/metadata/finalizers").and_then(Value::as_array).map_or(&[], Vec::as_slice)
    }
    let before: HashSet<&Value> = finalizers(&request.old_object).iter().collect();
    !request.sub_resource.is_empty()
        || claim_changes(request)
        || finalizers(&request.object).iter().any(|finalizer| !before.contains(finalizer))
}

/// Likewise; a guest's labels say which slot it has.
fn guest_changes(request: &Request) -> bool {
    !request.sub_resource.is_empty() || spec_changes(request) || changes(request, "/metadata/labels")
}

fn changes(request: &Request, path: &str) -> bool {
    request.object.pointer(path) != request.old_object.pointer(path)
}

/// What is marked as a guest, or was.
fn is_guest(request: &Request) -> bool {
    guests::is_marked(&request.object) || guests::is_marked(&request.old_object)
}

impl Entry {
    fn is_asked(
        &self,
        settings: &Settings,
        request: &Request,
        labels: Option<&BTreeMap<&str, &str>>,
    ) -> bool {
        let kind = &request.kind;
        let meets = |requirement: &Requirement| match requirement {
            Requirement::Exists(key) => labels.is_none_or(|labels| labels.contains_key(key)),
            Requirement::DoesNotExist(key) => labels.is_none_or(|labels| !labels.contains_key(key)),
            Requirement::Is(key, value) => {
                labels.is_none_or(|labels| labels.get(key).is_some_and(|found| found == value))
            }
            Requirement::IsNot(key, value) => {
                labels.is_none_or(|labels| labels.get(key).is_none_or(|found| found != value))
            }
            Requirement::NameNotIn(names) => !names.contains(&request.namespace.as_str()),
            Requirement::AdminResources => *request.namespace == *settings.admin.resources,
        };
        self.kinds.contains(&(&kind.group, &kind.version, &kind.kind))
            && self.sub_resources.contains(&request.sub_resource.as_str())
            && self.operations.contains(&request.operation.as_str())
            && self.namespaces.iter().all(meets)
            && self.condition.is_none_or(|condition| condition(request))
    }
}

/// The kind of this name that somebody is asked about.
pub fn kind_named(name: &str) -> Option<Kind> {
    let mut kinds = MUTATING.iter().chain(VALIDATING).flat_map(|entry| entry.kinds);
    let (group, version, kind) = kinds.find(|(_, _, kind)| *kind == name)?;
    let text = |text: &str| text.to_owned();
    Some(Kind { group: text(group), version: text(version), kind: text(kind) })
}

/// What comes of a request when the API server has asked everybody it asks: the object is mutated, then the result is
/// validated. A request that nobody is asked about is allowed.
///
/// `labels`: those of the request's namespace; `None` where they aren't known, and then all are asked that could be.
///
/// # Errors
/// [`Behind`] when a cache has to catch up first. The request is of no use then.
pub fn decide(
    caches: &Caches,
    settings: &Settings,
    request: &mut Request,
    labels: Option<&BTreeMap<&str, &str>>,
) -> Result<Decision, Behind> {
    let (mut patch, mut warnings) = (Patch(Vec::new()), Vec::new());
    if let Some(entry) = MUTATING.iter().find(|entry| entry.is_asked(settings, request, labels)) {
        let before = request.object.clone();
        match (entry.admit)(caches, settings, request)? {
            Decision::Allow { patch: change, warnings: said } => {
                // What is validated is what the API server has: the object with the patch applied.
                request.object = before;
                request.sizes = None;
                if let Err(error) = json_patch::patch(&mut request.object, &change) {
                    return Ok(deny(500, format!("the patch can't be applied: {error}")));
                }
                patch = change;
                warnings.extend(said);
            }
            denied @ Decision::Deny { .. } => return Ok(denied),
        }
    }
    let asked = |entry: &&Entry| entry.is_asked(settings, request, labels);
    for entry in VALIDATING.iter().filter(asked).collect::<Vec<_>>() {
        match (entry.admit)(caches, settings, request)? {
            Decision::Allow { warnings: said, .. } => warnings.extend(said),
            denied @ Decision::Deny { .. } => return Ok(denied),
        }
    }
    Ok(Decision::Allow { patch, warnings })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::json;

    use super::*;

    /// What is registered, in words: path, resource, operation, namespaces.
    fn registered(file: &str) -> BTreeSet<(String, String, String, String)> {
        let path = format!("{}/../../webhooks/{file}", env!("CARGO_MANIFEST_DIR"));
        let configuration: Value = serde_yaml::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let list = |value: &Value| value.as_array().unwrap().clone();
        let mut all = BTreeSet::new();
        for webhook in list(&configuration["webhooks"]) {
            let selector =
                webhook.pointer("/namespaceSelector/matchExpressions").map(list).unwrap_or_default();
            let selector: Vec<String> = selector
                .iter()
                .map(|e| {
                    let values = e.get("values").map(list).unwrap_or_default();
                    let values: Vec<String> = values.iter().map(text).collect();
                    format!("{} {} {}", text(&e["key"]), text(&e["operator"]), values.join(","))
                })
                .collect();
            let selector = selector.join("; ");
            for rule in list(&webhook["rules"]) {
                for (resource, operation) in list(&rule["resources"])
                    .iter()
                    .flat_map(|r| list(&rule["operations"]).into_iter().map(move |o| (r.clone(), o)))
                {
                    let path = text(&webhook["clientConfig"]["service"]["path"]);
                    all.insert((path, text(&resource), text(&operation), selector.clone()));
                }
            }
        }
        all
    }

    fn here(entries: &[Entry]) -> BTreeSet<(String, String, String, String)> {
        let mut all = BTreeSet::new();
        for entry in entries {
            for ((_, _, kind), sub) in
                entry.kinds.iter().flat_map(|kind| entry.sub_resources.iter().map(move |sub| (kind, *sub)))
            {
                let resource = match (*kind, sub) {
                    // The binding of a Pod is of a kind of its own.
                    ("Binding", "binding") => "pods/binding".to_owned(),
                    (kind, "") => format!("{}s", kind.to_lowercase()),
                    (kind, sub) => format!("{}s/{sub}", kind.to_lowercase()),
                };
                for operation in entry.operations {
                    let told = entry.namespaces.iter().map(|requirement| match requirement {
                        Requirement::Exists(key) => format!("{key} Exists "),
                        Requirement::DoesNotExist(key) => format!("{key} DoesNotExist "),
                        Requirement::Is(key, value) => format!("{key} In {value}"),
                        Requirement::IsNot(key, value) => format!("{key} NotIn {value}"),
                        Requirement::NameNotIn(names) => {
                            format!("kubernetes.io/metadata.name NotIn {}", names.join(","))
                        }
                        Requirement::AdminResources => {
                            format!("kubernetes.io/metadata.name In {}", keys::ADMIN_NAMESPACE)
                        }
                    });
                    let selector = told.collect::<Vec<_>>().join("; ");
                    all.insert((entry.path.to_owned(), resource.clone(), (*operation).to_owned(), selector));
                }
            }
        }
        all
    }

    /// Whether anybody is asked about a change of a Pod.
    fn is_asked(change: &Value, sub_resource: &str) -> bool {
        let guest = json!({keys::POD_ROLE: keys::GUEST, keys::INJECT_RESOURCE: keys::INJECT_ENABLED});
        let old = json!({"metadata": {"name": "p", "labels": guest, "finalizers": ["a.example/x", "b.example/y"]},
            "spec": {"containers": [{"name": "c"}]}, "status": {}});
        let mut object = old.clone();
        json_patch::merge(&mut object, change);
        let request = json!({"uid": "1", "kind": {"version": "v1", "kind": "Pod"}, "operation": "UPDATE",
            "subResource": sub_resource, "namespace": "tenant-blue", "object": object, "oldObject": old});
        let request: Request = serde_json::from_value(request).unwrap();
        let labels = BTreeMap::from([(keys::TENANT, "blue"), (keys::INJECT_RESOURCE, keys::INJECT_ENABLED)]);
        let settings = super::super::tests::settings();
        let asked: Vec<&str> = VALIDATING
            .iter()
            .filter(|entry| entry.is_asked(&settings, &request, Some(&labels)))
            .map(|entry| entry.path)
            .collect();
        // Whatever changes which slot it has is both's business.
        assert!(asked.is_empty() || asked[0] == "/validate/pods", "{asked:?}");
        !asked.is_empty()
    }

    #[test]
    fn a_pod_loses_finalizers_and_nothing_else_without_us() {
        for change in [
            json!({}),
            json!({"metadata": {"finalizers": null}}),
            json!({"metadata": {"finalizers": ["b.example/y"]}}),
            json!({"metadata": {"finalizers": ["b.example/y", "a.example/x"]}}),
            json!({"status": {"phase": "Failed"}}),
        ] {
            assert!(!is_asked(&change, ""), "{change}");
            for sub_resource in ["resize", "ephemeralcontainers"] {
                assert!(is_asked(&change, sub_resource), "{sub_resource}: {change}");
            }
        }
        for change in [
            json!({"metadata": {"finalizers": ["b.example/y", "c.example/z"]}}),
            json!({"metadata": {"finalizers": null, "labels": {"app": "x"}}}),
            json!({"metadata": {"finalizers": null, "labels": {keys::POD_ROLE: null}}}),
            json!({"metadata": {"annotations": {"a": "b"}}}),
            json!({"metadata": {"ownerReferences": [{"name": "x"}]}}),
            json!({"spec": {"tolerations": [{"operator": "Exists"}]}}),
            json!({"spec": {"activeDeadlineSeconds": 1}}),
        ] {
            assert!(is_asked(&change, ""), "{change}");
        }
    }

    #[test]
    fn the_entries_are_those_of_the_configurations() {
        assert_eq!(here(MUTATING), registered("mutating.yaml"));
        assert_eq!(here(VALIDATING), registered("validating.yaml"));
    }
}
