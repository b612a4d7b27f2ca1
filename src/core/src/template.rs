//! A rule's template: the fields that it may have, and those that the companion gets.

mod pod;

use serde_json::{Map, Value};

use crate::claim;
use crate::device;
use crate::field::{self, FieldError, FieldErrors};
use crate::json::Json;
use crate::keys;
use crate::syntax::Form;
use crate::text::quoted;

pub(crate) mod meaning;
mod shape;

/// The lists of containers that a template may have, and in which rules' claims may name containers.
pub(crate) const CONTAINERS: [&str; 2] = ["containers", "initContainers"];

/// Most unknown fields that are reported at once.
const MAX_UNKNOWN: usize = 8;

/// What a companion is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
pub enum Kind {
    /// A Pod on a DPU.
    #[default]
    Pod,
    /// A ResourceClaim: a device that Pods share.
    Claim,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Pod, Self::Claim];

    /// As the API spells it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pod => "Pod",
            Self::Claim => "ResourceClaim",
        }
    }

    /// The `apiVersion` that belongs to it.
    pub fn api_version(self) -> &'static str {
        match self {
            Self::Pod => "v1",
            Self::Claim => claim::API_VERSION,
        }
    }
}

/// What a template is of: a Pod, unless it says that it is a ResourceClaim.
pub fn kind(template: &Value) -> Kind {
    let is_claim = template.get("kind").and_then(Value::as_str) == Some(Kind::Claim.as_str());
    if is_claim { Kind::Claim } else { Kind::Pod }
}

/// Fields of a template. What else is at its top would be kept with the rule for nothing.
const FIELDS: [&str; 4] = ["apiVersion", "kind", "metadata", "spec"];

/// Everything that is wrong with a template, with paths that begin at `template`.
///
/// The rest is the API server's to check: it knows the Pod's fields better, and its refusal is reported in the rule's status. It is asked
/// where the companion is, after the rule was accepted; so texts that become labels, selectors, names and ports are checked here.
pub fn check(template: &Json) -> Vec<FieldError> {
    match template.excess() {
        Some(excess) => vec![FieldError::new("template", format_args!("{excess}; shorten it"))],
        None => check_tree(&template.tree()),
    }
}

fn check_tree(template: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let root = "template";
    let Some(object) = template.as_object() else {
        return vec![FieldError::new(
            root,
            "must be an object: a v1/Pod, or a resource.k8s.io/v1 ResourceClaim, with metadata and spec",
        )];
    };
    let kind = kind(template);
    check_fields(object, &mut errors);
    expect_text(object, "apiVersion", kind.api_version(), &mut errors);
    expect_text(object, "kind", kind.as_str(), &mut errors);
    match field::object(object, root, "metadata") {
        Err(e) => errors.push(e),
        Ok(None) => {}
        Ok(Some(metadata)) => check_metadata(metadata, &mut errors),
    }
    match field::object(object, root, "spec") {
        Err(e) => errors.push(e),
        Ok(None) => {
            let needs = if kind == Kind::Pod { "containers" } else { "devices.requests" };
            errors.add("template.spec", format_args!("is missing: the companion needs {needs}"));
        }
        Ok(Some(spec)) if kind == Kind::Pod => check_spec(spec, &mut errors),
        Ok(Some(_)) => {
            errors.extend(
                template
                    .get("spec")
                    .into_iter()
                    .flat_map(|spec| device::faults_of_rule(spec, "template.spec")),
            );
        }
    }
    errors
}

/// An empty status is what `kubectl create --dry-run -o yaml` adds.
fn check_fields(object: &Map<String, Value>, errors: &mut Vec<FieldError>) {
    let is_empty = |value: &Value| value.is_null() || value.as_object().is_some_and(Map::is_empty);
    let known = |name: &str, value: &Value| FIELDS.contains(&name) || name == "status" && is_empty(value);
    for (name, _) in object.iter().filter(|(name, value)| !known(name, value)).take(MAX_UNKNOWN) {
        errors.add(
            format_args!("template.{}", quoted(name)),
            "is no field of a companion; remove it, a template has apiVersion, kind, metadata and spec",
        );
    }
}

fn expect_text(object: &Map<String, Value>, key: &str, wanted: &str, errors: &mut Vec<FieldError>) {
    let found = object.get(key).and_then(Value::as_str);
    if found != Some(wanted) {
        let is = found.map_or("is missing".to_owned(), |f| format!("is {:?}", quoted(f)));
        errors.add(format_args!("template.{key}"), format_args!("{is}; use {wanted:?}"));
    }
}

fn check_metadata(metadata: &Map<String, Value>, errors: &mut Vec<FieldError>) {
    let (label, annotation) = ((Form::LabelKey, Some(Form::LabelValue)), (Form::AnnotationKey, None));
    for (key, (name_form, value_form)) in [("labels", label), ("annotations", annotation)] {
        let path = format!("template.metadata.{key}");
        match field::object(metadata, "template.metadata", key) {
            Err(e) => errors.push(e),
            Ok(None) => {}
            Ok(Some(map)) => {
                for (name, value) in map {
                    if keys::is_own(name) {
                        errors.add(
                            format_args!("{path}[{}]", quoted(name)),
                            format_args!("keys under {} are set by Outrigger alone; remove it", keys::DOMAIN),
                        );
                    }
                    let at = format!("{path}[{}]", quoted(name));
                    errors.extend(name_form.fault(&at, name));
                    match value.as_str() {
                        None => errors.add(&at, "must be a string"),
                        Some(value) => errors.extend(value_form.and_then(|form| form.fault(&at, value))),
                    }
                }
            }
        }
    }
    for key in ["ownerReferences", "finalizers"] {
        if metadata.get(key).is_some_and(|v| !v.is_null() && v != &Value::Array(Vec::new())) {
            errors.add(
                format_args!("template.metadata.{key}"),
                "a companion belongs to its rule alone; remove it",
            );
        }
    }
}

fn check_spec(spec: &Map<String, Value>, errors: &mut Vec<FieldError>) {
    match field::list(spec, "template.spec", "containers") {
        Err(e) => errors.push(e),
        Ok([]) => {
            errors.add("template.spec.containers", "is empty: at least one is needed");
        }
        Ok(_) => {}
    }
    let gates = spec.get("schedulingGates").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    for (i, gate) in gates.iter().enumerate() {
        if let Some(name) = gate.get("name").and_then(Value::as_str).filter(|name| keys::is_own(name)) {
            errors.add(
                format_args!("template.spec.schedulingGates[{i}]"),
                format_args!(
                    "is {name:?}; gates under {} are set by Outrigger alone; remove it",
                    keys::DOMAIN
                ),
            );
        }
    }
    if spec.get("nodeName").is_some_and(|v| !v.is_null() && v != "") {
        errors.add(
            "template.spec.nodeName",
            "would bypass the scheduler; use dpuSelectionPolicy, nodeSelector or node affinity",
        );
    }
    errors.extend(pod::faults(spec, "template.spec"));
}

/// Each path of the downward API (`fieldRef.fieldPath`), wherever it is.
pub(crate) fn field_paths(value: &mut Value, found: &mut impl FnMut(&mut String)) {
    match value {
        Value::Object(map) => {
            if let Some(Value::String(path)) = map.get_mut("fieldRef").and_then(|r| r.get_mut("fieldPath")) {
                found(path);
            }
            map.values_mut().for_each(|value| field_paths(value, found));
        }
        Value::Array(list) => list.iter_mut().for_each(|value| field_paths(value, found)),
        _ => {}
    }
}

/// The key that a path of the downward API names with double quotes, as Universe's documents write it; the API server takes single
/// ones only. Besides, what is before it.
pub(crate) fn double_quoted(path: &str) -> Option<(&str, &str)> {
    let (map, rest) = path.split_once("[\"")?;
    let key = rest.strip_suffix("\"]").filter(|key| !key.contains(['"', '\'']))?;
    ["metadata.annotations", "metadata.labels"].contains(&map).then_some((map, key))
}

/// Writes the keys in paths of the downward API with single quotes.
pub(crate) fn single_quoted(template: &mut Value) {
    field_paths(template, &mut |path| {
        if let Some((map, key)) = double_quoted(path) {
            *path = format!("{map}['{key}']");
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn paths(template: &Value) -> Vec<String> {
        check(&template.clone().into()).into_iter().map(|e| e.path).collect()
    }

    #[test]
    fn a_pod_is_accepted() {
        let pod = json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "x", "namespace": "y", "labels": {"a": "b"}, "annotations": null},
            "spec": {"containers": [{"name": "c", "image": "i"}], "nodeName": ""}});
        assert_eq!(paths(&pod), Vec::<String>::new());
        for (change, wrong) in [
            (json!({"metadata": {"ownerReferences": [], "finalizers": []}, "status": {}}), &[][..]),
            (json!({"status": {"phase": "Pending"}}), &["template.status"]),
            (json!({"data": {}, "status": []}), &["template.data", "template.status"]),
        ] {
            let mut other = pod.clone();
            json_patch::merge(&mut other, &change);
            assert_eq!(paths(&other), wrong, "{change}");
        }
        let mut other = pod;
        other["metadata"]["finalizers"] = Value::Null;
        other["spec"]["nodeName"] = Value::Null;
        other["status"] = Value::Null;
        assert_eq!(paths(&other), Vec::<String>::new(), "null is the same as absent");
    }

    #[test]
    fn a_template_without_spec_is_refused_with_what_its_kind_needs() {
        for (kind, needs) in [(Kind::Pod, "containers"), (Kind::Claim, "devices.requests")] {
            let template = json!({"apiVersion": kind.api_version(), "kind": kind.as_str()});
            let errors: Vec<_> = check(&template.into()).iter().map(ToString::to_string).collect();
            assert_eq!(errors, [format!("template.spec: is missing: the companion needs {needs}")]);
        }
    }

    #[test]
    fn a_claim_is_accepted_and_held_to_what_claims_are() {
        let claim = json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
            "spec": {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "c"}}]}}});
        assert_eq!((paths(&claim), kind(&claim)), (Vec::new(), Kind::Claim));
        for (change, path) in [
            (json!({"apiVersion": "v1"}), "template.apiVersion"),
            (json!({"apiVersion": "resource.k8s.io/v1beta1"}), "template.apiVersion"),
            (json!({"spec": null}), "template.spec"),
            (json!({"spec": {"devices": null}}), "template.spec.devices.requests"),
            (json!({"metadata": {"finalizers": ["x"]}}), "template.metadata.finalizers"),
        ] {
            let mut wrong = claim.clone();
            json_patch::merge(&mut wrong, &change);
            assert_eq!(paths(&wrong), [path], "{change}");
        }
        assert_eq!(kind(&json!({"kind": "Deployment"})), Kind::Pod, "which it says to be");
    }

    #[test]
    fn what_is_no_pod_is_refused_with_its_path() {
        assert_eq!(paths(&json!("x")), ["template"]);
        assert_eq!(
            paths(&json!({"apiVersion": "v2", "metadata": 1})),
            ["template.apiVersion", "template.kind", "template.metadata", "template.spec"]
        );
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {
                "labels": {"outrigger.dev/tenant": "b", "n": 1}, "annotations": [],
                "ownerReferences": [{}], "finalizers": ["x"]},
            "spec": {"containers": [], "nodeName": "dpu", "schedulingGates": [{"name": "x/y"}, {"name": keys::ADMISSION_GATE}]}});
        assert_eq!(
            paths(&pod),
            [
                "template.metadata.labels[n]",
                "template.metadata.labels[outrigger.dev/tenant]",
                "template.metadata.annotations",
                "template.metadata.ownerReferences",
                "template.metadata.finalizers",
                "template.spec.containers",
                "template.spec.schedulingGates[1]",
                "template.spec.nodeName",
            ]
        );
        let big = json!({"apiVersion": "v1", "kind": "Pod", "spec": {"containers": [{"x": "y".repeat(crate::json::BOUNDS.bytes)}]}});
        assert_eq!(paths(&big), ["template"]);
        let message = check(&big.into())[0].to_string();
        assert!(message.contains("at most 524288 are allowed"), "{message}");
    }
}
