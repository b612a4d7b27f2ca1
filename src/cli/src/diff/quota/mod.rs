//! ResourceQuotas: which new companions the API server would refuse, as it counts (`resourcequota/controller.go` of Kubernetes).

mod pod;

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::ResourceQuota;
use kube::ResourceExt;
use outrigger_core::json::{list, text};
use outrigger_core::keys;
use outrigger_core::quantity::Quantity;
use outrigger_core::template::Kind;
use serde_json::Value;

use crate::files::InputError;
use crate::state::State;
use outrigger_core::amounts::Amounts;

/// The quotas of all namespaces, and what is used of them.
#[derive(Debug, Default)]
pub(super) struct Quotas {
    /// By namespace and name.
    quotas: BTreeMap<(String, String), Quota>,
    /// The Pods and ResourceClaims that there are, by namespace and name: those that are deleted give back what they have.
    pods: BTreeMap<(String, String), Value>,
    claims: BTreeMap<(String, String), Value>,
    default_priority_class: Option<String>,
    /// What can't be known of a namespace.
    unknown: Vec<(String, String)>,
    notes: BTreeSet<String>,
}

#[derive(Debug)]
struct Quota {
    hard: Amounts,
    used: Amounts,
    /// Scopes, with operator and values.
    scopes: Vec<(String, String, Vec<String>)>,
}

impl Quotas {
    /// The quotas of a state. `made`: companions that are taken to exist, and to be counted.
    pub(super) fn new(
        state: &State,
        made: &[&Value],
        default_priority_class: Option<&str>,
    ) -> Result<Self, InputError> {
        let mut this =
            Self { default_priority_class: default_priority_class.map(str::to_owned), ..Self::default() };
        for object in state.of("", "ResourceQuota") {
            this.add(&object.read()?);
        }
        for object in state.of("", "LimitRange") {
            if this.quotas.keys().any(|(namespace, _)| *namespace == object.namespace) {
                let note = format!(
                    "LimitRange {} of {} may give containers other requests and limits: quotas are compared without it",
                    object.name, object.namespace
                );
                this.unknown.push((object.namespace.clone(), note));
            }
        }
        for kind in Kind::ALL {
            let group = kind.api_version().split_once('/').map_or("", |(group, _)| group);
            let known = state.of(group, kind.as_str()).map(|object| &object.value);
            let made = made.iter().copied().filter(|object| object["kind"] == kind.as_str());
            for object in known.chain(made) {
                let at = |pointer: &str| text(object, pointer).to_owned();
                this.of(kind).insert((at("/metadata/namespace"), at("/metadata/name")), object.clone());
            }
        }
        Ok(this)
    }

    /// The objects of a kind that there are.
    fn of(&mut self, kind: Kind) -> &mut BTreeMap<(String, String), Value> {
        match kind {
            Kind::Pod => &mut self.pods,
            Kind::Claim => &mut self.claims,
        }
    }

    fn add(&mut self, quota: &ResourceQuota) {
        let (namespace, name) = (quota.namespace().unwrap_or_default(), quota.name_any());
        let status = quota.status.clone().unwrap_or_default();
        let Some(hard) = status.hard.filter(|hard| !hard.is_empty()) else {
            let note = format!(
                "ResourceQuota {name} of {namespace} has no status.hard: whether it refuses companions isn't known"
            );
            self.unknown.push((namespace, note));
            return;
        };
        let amounts = |map: BTreeMap<String, k8s_openapi::apimachinery::pkg::api::resource::Quantity>| {
            map.into_iter()
                .filter_map(|(name, amount)| Some((name, amount.0.parse().ok()?)))
                .collect::<Amounts>()
        };
        let spec = quota.spec.clone().unwrap_or_default();
        let plain = spec.scopes.into_iter().flatten().map(|scope| (scope, "Exists".to_owned(), Vec::new()));
        let selected =
            spec.scope_selector.and_then(|selector| selector.match_expressions).into_iter().flatten();
        let selected = selected.map(|r| (r.scope_name, r.operator, r.values.unwrap_or_default()));
        let quota = Quota {
            hard: amounts(hard),
            used: amounts(status.used.unwrap_or_default()),
            scopes: plain.chain(selected).collect(),
        };
        self.quotas.insert((namespace, name), quota);
    }

    /// Whether it is known how many Pods a namespace may have.
    pub(super) fn count_pods(&self, namespace: &str) -> bool {
        let counts = |quota: &Quota| ["pods", "count/pods"].iter().any(|name| quota.hard.contains_key(*name));
        self.quotas.iter().any(|((of, _), quota)| of == namespace && counts(quota))
    }

    /// What couldn't be known.
    pub(super) fn notes(&self) -> impl Iterator<Item = &String> {
        self.notes.iter()
    }

    /// A companion is deleted, and gives back what it has.
    pub(super) fn release(&mut self, namespace: &str, kind: Kind, name: &str) {
        let Some(object) = self.of(kind).remove(&(namespace.to_owned(), name.to_owned())) else { return };
        let usage = usage(kind, &object);
        let class = self.default_priority_class.as_deref();
        let quotas = self.quotas.iter_mut().filter(|((of, _), _)| of == namespace);
        for (_, quota) in quotas.filter(|(_, quota)| quota.includes(kind, &object, class) == Some(true)) {
            for (name, amount) in &usage {
                if let Some(used) = quota.used.get_mut(name) {
                    *used = used.minus(*amount).max(Quantity::whole(0));
                }
            }
        }
    }

    /// An object is created: why quotas refuse it, in the API server's words, or it is counted.
    pub(super) fn take(&mut self, namespace: &str, kind: Kind, object: &Value) -> Result<(), String> {
        let usage = usage(kind, object);
        let unknown = self.unknown.iter().filter(|(of, _)| of == namespace);
        self.notes.extend(unknown.map(|(_, note)| note.clone()));
        let (runtime, overhead) = (text(object, "/spec/runtimeClassName"), object.pointer("/spec/overhead"));
        if !runtime.is_empty() && overhead.is_none() && self.quotas.keys().any(|(of, _)| of == namespace) {
            let note =
                format!("the overhead of RuntimeClass {runtime} isn't counted against quotas of {namespace}");
            self.notes.insert(note);
        }
        let class = self.default_priority_class.as_deref();
        let mut refusals = Vec::new();
        let mut matching = Vec::new();
        for ((_, name), quota) in self.quotas.iter_mut().filter(|((of, _), _)| of == namespace) {
            match quota.includes(kind, object, class) {
                Some(false) => {}
                None => {
                    self.notes.insert(format!(
                        "ResourceQuota {name} of {namespace} has a scope that isn't known: whether it refuses companions \
                         isn't known"
                    ));
                }
                Some(true) => {
                    refusals.extend(quota.refusal(name, kind, object, &usage));
                    matching.push(quota);
                }
            }
        }
        if !refusals.is_empty() {
            return Err(refusals.join("; "));
        }
        for quota in matching {
            for (name, amount) in usage.iter().filter(|(name, _)| quota.hard.contains_key(*name)) {
                let sum = quota.used.get(name).map_or(*amount, |used| used.plus(*amount));
                quota.used.insert(name.clone(), sum);
            }
        }
        Ok(())
    }
}

/// What an object takes, by the names that quotas have for it.
fn usage(kind: Kind, object: &Value) -> Amounts {
    match kind {
        Kind::Pod => pod::usage(object),
        Kind::Claim => {
            let mut amounts = devices(object);
            amounts.insert(format!("count/resourceclaims.{}", keys::DEVICE_GROUP), Quantity::whole(1));
            amounts
        }
    }
}

/// The devices that a claim may get of each class. Where one of several classes is chosen, all of them count (`resource_claims.go` of
/// Kubernetes' quota evaluators).
fn devices(claim: &Value) -> Amounts {
    /// What a request for all devices counts as: the most that a claim may have allocated (resource.k8s.io/v1
    /// AllocationResultsMaxSize).
    const ALL: u64 = 32;
    let wanted = |request: &Value| {
        let class = text(request, "/deviceClassName").to_owned();
        let count = match text(request, "/allocationMode") {
            "All" => ALL,
            _ => request["count"].as_u64().unwrap_or(1),
        };
        (class, count)
    };
    let mut amounts = BTreeMap::<String, u64>::new();
    for request in list(claim, "/spec/devices/requests") {
        let mut most = BTreeMap::<String, u64>::new();
        let exactly = request.get("exactly").into_iter();
        for (class, count) in exactly.chain(list(request, "/firstAvailable")).map(wanted) {
            let known = most.entry(class).or_default();
            *known = count.max(*known);
        }
        for (class, count) in most {
            *amounts.entry(format!("{class}.deviceclass.{}/devices", keys::DEVICE_GROUP)).or_default() +=
                count;
        }
    }
    amounts.into_iter().map(|(name, count)| (name, Quantity::whole(count))).collect()
}

impl Quota {
    /// Whether all scopes include an object; `None` where that isn't known. All scopes are about Pods or volumes.
    fn includes(&self, kind: Kind, pod: &Value, default_priority_class: Option<&str>) -> Option<bool> {
        if kind == Kind::Claim {
            return Some(self.scopes.is_empty());
        }
        let mut is_in = true;
        for (scope, operator, values) in &self.scopes {
            let values: Vec<&str> = values.iter().map(String::as_str).collect();
            is_in &= pod::is_in_scope(pod, scope, operator, &values, default_priority_class)?;
        }
        Some(is_in)
    }

    /// Why it refuses a new object.
    fn refusal(&self, name: &str, kind: Kind, object: &Value, usage: &Amounts) -> Option<String> {
        if kind == Kind::Pod {
            let counted: BTreeSet<&str> = self.hard.keys().map(String::as_str).collect();
            if let Some(missing) = pod::unnamed(object, &counted) {
                return Some(format!("failed quota: {name}: {missing}"));
            }
        }
        let wanted =
            usage.iter().filter(|(resource, amount)| self.hard.contains_key(*resource) && !amount.is_zero());
        let (mut exceeded, mut uncounted) = (Vec::new(), Vec::new());
        for (resource, amount) in wanted {
            let Some(used) = self.used.get(resource) else {
                uncounted.push(resource.as_str());
                continue;
            };
            let hard = self.hard.get(resource).copied().unwrap_or(Quantity::whole(0));
            if used.plus(*amount) > hard {
                exceeded.push([amount, used, &hard].map(|amount| format!("{resource}={amount}")));
            }
        }
        if !uncounted.is_empty() {
            return Some(format!("status unknown for quota: {name}, resources: {}", uncounted.join(",")));
        }
        let column = |at: usize| exceeded.iter().map(|row| row[at].clone()).collect::<Vec<_>>().join(",");
        (!exceeded.is_empty()).then(|| {
            format!(
                "exceeded quota: {name}, requested: {}, used: {}, limited: {}",
                column(0),
                column(1),
                column(2)
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn devices_count_by_class() {
        let of = |requests: Value| {
            let amounts = usage(Kind::Claim, &json!({"spec": {"devices": {"requests": requests}}}));
            amounts.iter().map(|(name, amount)| format!("{name}={amount}")).collect::<Vec<_>>().join(" ")
        };
        let counted = "count/resourceclaims.resource.k8s.io=1";
        let class = "deviceclass.resource.k8s.io/devices";
        assert_eq!(of(json!([])), counted);
        let all = json!([
            {"name": "a", "exactly": {"deviceClassName": "gpu"}},
            {"name": "b", "exactly": {"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 2}},
            {"name": "c", "exactly": {"deviceClassName": "nic", "allocationMode": "All"}}]);
        assert_eq!(of(all), format!("{counted} gpu.{class}=3 nic.{class}=32"));
        let first = json!([{"name": "a", "firstAvailable": [
            {"name": "x", "deviceClassName": "gpu", "count": 2}, {"name": "y", "deviceClassName": "gpu"},
            {"name": "z", "deviceClassName": "nic"}]}]);
        assert_eq!(of(first), format!("{counted} gpu.{class}=2 nic.{class}=1"));
    }
}
