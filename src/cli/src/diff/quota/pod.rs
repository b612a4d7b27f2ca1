//! What a Pod takes of quotas, as the API server counts it (`pkg/quota/v1/evaluator/core/pods.go` of Kubernetes).

use std::collections::{BTreeMap, BTreeSet};

use outrigger_core::amounts::{self, Amounts};
use outrigger_core::json::{list, text};
use outrigger_core::quantity::Quantity;
use serde_json::Value;

/// Resources that every container has to name if a quota counts them.
const NAMED: [&str; 6] = ["cpu", "memory", "requests.cpu", "requests.memory", "limits.cpu", "limits.memory"];

/// Requests or limits of a whole Pod.
fn total(pod: &Value, which: &str) -> Amounts {
    let mut all = amounts::of_containers(pod, which);
    // What the Pod names for itself counts instead.
    all.extend(amounts::of(&pod["spec"], which));
    let overhead = pod.pointer("/spec/overhead").and_then(Value::as_object);
    for (name, amount) in overhead.into_iter().flatten() {
        if let Some(amount) = Quantity::of(amount).filter(|_| which == "requests" || all.contains_key(name)) {
            amounts::add(&mut all, &Amounts::from([(name.clone(), amount)]));
        }
    }
    all
}

/// What quotas call what requests and limits name.
fn named(requests: &Amounts, limits: &Amounts) -> Amounts {
    let mut usage = Amounts::new();
    for (name, amount) in requests {
        let is_native = !name.contains('/') || name.contains("kubernetes.io/");
        if is_native {
            usage.insert(name.clone(), *amount);
        }
        usage.insert(format!("requests.{name}"), *amount);
    }
    for (name, amount) in
        limits.iter().filter(|(name, _)| matches!(name.as_str(), "cpu" | "memory" | "ephemeral-storage"))
    {
        usage.insert(format!("limits.{name}"), *amount);
    }
    usage
}

/// What a Pod takes, by the names that quotas have for it.
pub(super) fn usage(pod: &Value) -> Amounts {
    let mut usage = named(&total(pod, "requests"), &total(pod, "limits"));
    for count in ["pods", "count/pods"] {
        usage.insert(count.to_owned(), Quantity::whole(1));
    }
    if matches!(text(pod, "/status/phase"), "Succeeded" | "Failed") {
        usage.retain(|name, _| name == "count/pods");
    }
    usage
}

/// What a Pod has to name because a quota counts these resources, and doesn't, in the API server's words.
pub(super) fn unnamed(pod: &Value, counted: &BTreeSet<&str>) -> Option<String> {
    if pod.pointer("/spec/resources").is_some_and(|resources| !resources.is_null()) {
        return None;
    }
    let mut missing: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for container in list(pod, "/spec/containers").iter().chain(list(pod, "/spec/initContainers")) {
        let has = named(&amounts::of(container, "requests"), &amounts::of(container, "limits"));
        for name in NAMED.into_iter().filter(|name| counted.contains(name) && !has.contains_key(*name)) {
            missing.entry(name).or_default().insert(text(container, "/name"));
        }
    }
    let of = |containers: &BTreeSet<&str>| containers.iter().copied().collect::<Vec<_>>().join(",");
    let missing: Vec<String> =
        missing.iter().map(|(name, containers)| format!("{name} for: {}", of(containers))).collect();
    (!missing.is_empty()).then(|| format!("must specify {}", missing.join("; ")))
}

/// Whether a scope of a quota includes a Pod; `None` where that isn't known.
pub(super) fn is_in_scope(
    pod: &Value,
    scope: &str,
    operator: &str,
    values: &[&str],
    usual_class: Option<&str>,
) -> Option<bool> {
    let ends = pod.pointer("/spec/activeDeadlineSeconds").and_then(Value::as_i64).is_some();
    Some(match scope {
        "Terminating" => ends,
        "NotTerminating" => !ends,
        "BestEffort" => is_best_effort(pod),
        "NotBestEffort" => !is_best_effort(pod),
        "CrossNamespacePodAffinity" => crosses_namespaces(pod),
        "PriorityClass" => {
            let class =
                Some(text(pod, "/spec/priorityClassName")).filter(|class| !class.is_empty()).or(usual_class);
            match operator {
                "In" => class.is_some_and(|class| values.contains(&class)),
                "NotIn" => class.is_none_or(|class| !values.contains(&class)),
                "Exists" => class.is_some(),
                "DoesNotExist" => class.is_none(),
                _ => return None,
            }
        }
        // It is about volumes.
        "VolumeAttributesClass" => false,
        _ => return None,
    })
}

/// Whether no container requests processors or memory.
fn is_best_effort(pod: &Value) -> bool {
    let own = std::iter::once(&pod["spec"]);
    let all = own.chain(list(pod, "/spec/containers")).chain(list(pod, "/spec/initContainers"));
    all.into_iter().all(|of| {
        let requests = amounts::of(of, "requests");
        ["cpu", "memory"].iter().all(|name| requests.get(*name).is_none_or(Quantity::is_zero))
    })
}

/// Whether a term of the Pod's affinity to Pods names other namespaces.
fn crosses_namespaces(pod: &Value) -> bool {
    let required = ["podAffinity", "podAntiAffinity"].into_iter().flat_map(|kind| {
        let of = |list_name: &str| {
            format!("/spec/affinity/{kind}/{list_name}DuringSchedulingIgnoredDuringExecution")
        };
        let preferred = list(pod, &of("preferred")).iter().filter_map(|term| term.get("podAffinityTerm"));
        list(pod, &of("required")).iter().chain(preferred).collect::<Vec<_>>()
    });
    required.into_iter().any(|term| {
        !list(term, "/namespaces").is_empty()
            || term.get("namespaceSelector").is_some_and(|selector| !selector.is_null())
    })
}
