//! A Pod as its creator wrote it.

use std::sync::Arc;

use outrigger_api::{AdminWorkloadRule, WorkloadRule};
use outrigger_core::companion::{Action, Home, kind, plan};
use outrigger_core::ids::RuleName;
use outrigger_core::index::Desired;
use outrigger_core::json::{annotation, list};
use outrigger_core::keys;
use outrigger_core::rule::Rule;
use outrigger_runtime::pod::Pod;
use serde_json::{Map, Value, json};

use super::super::view::reported_workload;
use super::owned;
use crate::admission::Admission;
use crate::companion::{PodName, of_pod};
use crate::files::InputError;

/// What `kubectl apply` keeps of what it applied.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// A Pod before admission.
#[derive(Debug)]
pub(super) struct Written {
    pub(super) pod: Value,
    /// What it is made of, for people.
    pub(super) of: String,
    /// The manager creates it.
    pub(super) by_manager: bool,
}

/// The Pod as its creator wrote it, where that can be found: a companion in the template of its rule, another in the template of
/// its owner, in what kubectl applied, or in what was applied by server-side apply.
pub(super) fn written(
    admission: &Admission,
    pod: &Value,
    name: &PodName,
) -> Result<Option<Written>, InputError> {
    if let Some(companion) = companion(admission, pod, name)? {
        return Ok(Some(companion));
    }
    Ok(by_owner(admission, pod, name).or_else(|| applied(pod)).or_else(|| applied_by_server(pod)))
}

/// A companion as the manager would create it now.
fn companion(admission: &Admission, pod: &Value, name: &PodName) -> Result<Option<Written>, InputError> {
    let typed: Pod =
        serde_json::from_value(pod.clone()).map_err(|error| InputError::new("the Pod", error))?;
    let admin = &admission.settings().admin;
    let found = of_pod(&typed, &admin.resources).and_then(|(of, key, observed)| {
        Some((of.or_else(|| admission.owner(&name.namespace))?, key, observed))
    });
    let Some((tenant, key, observed)) = found else { return Ok(None) };
    let workload = reported_workload(&observed);
    let at = if key.rule.is_admin() { &*admin.rules } else { name.namespace.as_str() };
    let Some((template, rule)) = rule(admission, at, &key.rule)? else { return Ok(None) };
    let of = format!("the template of {} {at}/{}", kind(key.rule.scope()), key.rule);
    let (owned, host_names) = (at == name.namespace, admission.host_names(&tenant));
    let home = Home { tenant: &tenant, namespace: &name.namespace, owned, host_names: &host_names };
    if let (Some(workload), Some(rule)) = (workload.map(Arc::new), rule)
        && let Action::Create(pod) = plan(&key, &Desired::of_match(&rule, &workload), None, &home)
    {
        return Ok(Some(Written { pod, of, by_manager: true }));
    }
    // Without all facts of the workload: its metadata is the manager's, and stays as it is.
    let Some(mut spec) = template.get("spec").and_then(Value::as_object).cloned() else { return Ok(None) };
    // The manager adds its gate to those of the template. Without it the Pod would be one that admission has seen before.
    let gate = json!({"name": keys::ADMISSION_GATE});
    match spec.get_mut("schedulingGates").and_then(Value::as_array_mut) {
        Some(gates) => gates.push(gate),
        None => drop(spec.insert("schedulingGates".to_owned(), json!([gate]))),
    }
    let kept = ["name", "namespace", "labels", "annotations", "ownerReferences"];
    let metadata: Map<String, Value> = kept
        .into_iter()
        .filter_map(|key| Some((key.to_owned(), pod["metadata"].get(key)?.clone())))
        .collect();
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec});
    Ok(Some(Written { pod, of, by_manager: true }))
}

/// The owner reference that says who controls a Pod.
pub(super) fn controller(pod: &Value) -> Option<&Value> {
    list(pod, "/metadata/ownerReferences").iter().find(|reference| reference["controller"] == true)
}

/// The template of a rule, and the rule if it is valid.
type Template = (Value, Option<Arc<Rule>>);

/// The rule of a namespace with this name, as far as it makes Pods.
fn rule(admission: &Admission, namespace: &str, name: &RuleName) -> Result<Option<Template>, InputError> {
    let mut rules = admission.state().of(keys::WORKLOAD_GROUP, kind(name.scope()));
    let found = rules.find(|object| object.namespace == namespace && object.name == name.as_str());
    let Some(object) = found else { return Ok(None) };
    Ok(Some(if name.is_admin() {
        let rule: AdminWorkloadRule = object.read()?;
        (rule.spec.rule.template.tree(), rule.compile().ok().map(|admin| Arc::new(admin.rule)))
    } else {
        let rule: WorkloadRule = object.read()?;
        (rule.spec.template.tree(), rule.compile().ok().map(Arc::new))
    }))
}

/// The template of the object that controls the Pod.
fn by_owner(admission: &Admission, pod: &Value, name: &PodName) -> Option<Written> {
    let owner = controller(pod)?;
    let (kind, owned_by) = (owner["kind"].as_str()?, owner["name"].as_str()?);
    let version = owner["apiVersion"].as_str()?;
    let group = version.split_once('/').map_or("", |(group, _)| group);
    // A rule's template is not the whole of a companion, whose metadata is the manager's.
    if group == keys::WORKLOAD_GROUP {
        return None;
    }
    let mut found = admission.state().of(group, kind);
    let object =
        found.find(|object| object.name == owned_by && object.namespace_or_default() == name.namespace)?;
    let template = object.value.pointer("/spec/template")?;
    let map = |object: &Value, pointer: &str| object.pointer(pointer).and_then(Value::as_object).cloned();
    // Controllers add labels of their own, such as pod-template-hash, which rules may select.
    let mut labels = map(template, "/metadata/labels").unwrap_or_default();
    let added = map(pod, "/metadata/labels").unwrap_or_default();
    labels.extend(added.into_iter().filter(|(key, _)| !keys::is_own(key)));
    let mut metadata = map(template, "/metadata").unwrap_or_default();
    metadata.extend([
        ("name".to_owned(), json!(name.name)),
        ("namespace".to_owned(), json!(name.namespace)),
        ("ownerReferences".to_owned(), json!([owner])),
        ("labels".to_owned(), Value::Object(labels)),
    ]);
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template.get("spec")?});
    let of = format!("the template of {kind} {}/{owned_by}", name.namespace);
    Some(Written { pod, of, by_manager: false })
}

/// What kubectl applied.
fn applied(pod: &Value) -> Option<Written> {
    let applied: Value = serde_json::from_str(annotation(pod, LAST_APPLIED)?).ok()?;
    let of = "what kubectl apply was given".to_owned();
    applied.is_object().then_some(Written { pod: applied, of, by_manager: false })
}

/// What somebody applied by server-side apply.
fn applied_by_server(pod: &Value) -> Option<Written> {
    let (pod, by) = owned::applied(pod)?;
    let of = format!("what {by} applied by server-side apply, without fields that admission has changed");
    Some(Written { pod, of, by_manager: false })
}
