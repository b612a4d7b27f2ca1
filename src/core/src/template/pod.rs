//! Texts of a Pod's template that become keys and values of labels, node selectors, tolerations, names, ports and quantities: what the
//! API server would refuse of them in the companion.
//!
//! Everything else of a Pod is the API server's to check, whose refusal is reported in the status of the rule.

use serde_json::{Map, Value};

use crate::field::FieldError;
use crate::map::HashSet;
use crate::quantity::Quantity;
use crate::read::Reader;
use crate::selector::product;
use crate::selector::requirement::{self, Values};
use crate::syntax::{Form, is_extended_resource, is_port};
use crate::text::quoted;

type Object = Map<String, Value>;

/// What is wrong with the texts of a Pod's spec, which is at `path`.
pub(super) fn faults(spec: &Object, path: &str) -> Vec<FieldError> {
    let mut reader = Reader::default();
    labels(&mut reader, spec, path, "nodeSelector");
    affinity(&mut reader, spec, path);
    for (path, spread) in reader.objects(spec, path, "topologySpreadConstraints", usize::MAX) {
        // The API server takes any text as topologyKey here.
        label_selector(&mut reader, spread, &path, "labelSelector");
    }
    for (path, toleration) in reader.objects(spec, path, "tolerations", usize::MAX) {
        one_toleration(&mut reader, toleration, &path);
    }
    let mut names = HashSet::default();
    for list in ["initContainers", "containers"] {
        for (path, container) in reader.objects(spec, path, list, usize::MAX) {
            name(&mut reader, container, &path, &mut names);
            self::container(&mut reader, container, &path);
        }
    }
    let mut names = HashSet::default();
    for (path, volume) in reader.objects(spec, path, "volumes", usize::MAX) {
        name(&mut reader, volume, &path, &mut names);
    }
    for (key, form) in [
        ("serviceAccountName", Form::DnsSubdomain),
        ("priorityClassName", Form::DnsSubdomain),
        ("runtimeClassName", Form::DnsSubdomain),
        ("hostname", Form::DnsLabel),
        ("subdomain", Form::DnsLabel),
    ] {
        optional(&mut reader, spec, path, key, form);
    }
    for (list, key) in [("schedulingGates", "name"), ("readinessGates", "conditionType")] {
        for (path, gate) in reader.objects(spec, path, list, usize::MAX) {
            required(&mut reader, gate, &path, key, Form::LabelKey);
        }
    }
    reader.faults
}

/// What is wrong with labels, which are an object of texts at `key`.
pub(super) fn labels(reader: &mut Reader, parent: &Object, path: &str, key: &str) {
    let Some(labels) = reader.object(parent, path, key) else { return };
    for name in labels.keys() {
        let path = format!("{path}.{key}[{}]", quoted(name));
        reader.faults.extend(Form::LabelKey.fault(&path, name));
        match labels.get(name) {
            Some(Value::String(value)) => reader.faults.extend(Form::LabelValue.fault(&path, value)),
            None | Some(Value::Null) => {}
            Some(other) => reader.faults.push(FieldError::wrong_type(&path, other, "a string")),
        }
    }
}

/// A text that has to be there.
fn required(reader: &mut Reader, parent: &Object, path: &str, key: &str, form: Form) {
    let text = reader.text(parent, path, key);
    reader.faults.extend(form.fault(format_args!("{path}.{key}"), text));
}

/// A text that may be empty, which is the same as absent.
fn optional(reader: &mut Reader, parent: &Object, path: &str, key: &str, form: Form) {
    let text = reader.text(parent, path, key);
    if !text.is_empty() {
        reader.faults.extend(form.fault(format_args!("{path}.{key}"), text));
    }
}

/// The name of a container or a volume, which no other one of the Pod has.
fn name<'a>(reader: &mut Reader, of: &'a Object, path: &str, names: &mut HashSet<&'a str>) {
    let name = reader.text(of, path, "name");
    let path = format!("{path}.name");
    match Form::DnsLabel.fault(&path, name) {
        Some(fault) => reader.faults.push(fault),
        None if names.insert(name) => {}
        None => reader.fault(path, format_args!("is {name:?} for the second time; use another name")),
    }
}

fn affinity(reader: &mut Reader, spec: &Object, path: &str) {
    let Some(affinity) = reader.object(spec, path, "affinity") else { return };
    let path = format!("{path}.affinity");
    if let Some(node) = reader.object(affinity, &path, "nodeAffinity") {
        node_affinity(reader, node, &format!("{path}.nodeAffinity"));
    }
    for key in ["podAffinity", "podAntiAffinity"] {
        let Some(pods) = reader.object(affinity, &path, key) else { continue };
        let path = format!("{path}.{key}");
        for (path, term) in reader.objects(pods, &path, REQUIRED, usize::MAX) {
            pod_term(reader, term, &path);
        }
        for (path, weighted) in reader.objects(pods, &path, PREFERRED, usize::MAX) {
            if let Some(term) = reader.object(weighted, &path, "podAffinityTerm") {
                pod_term(reader, term, &format!("{path}.podAffinityTerm"));
            }
        }
    }
}

const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";

fn node_affinity(reader: &mut Reader, node: &Object, path: &str) {
    let required = reader
        .object(node, path, REQUIRED)
        .and_then(|required| required.get("nodeSelectorTerms")?.as_array());
    let terms = required.map_or(&[][..], Vec::as_slice);
    let at = format!("{path}.{REQUIRED}.nodeSelectorTerms");
    match product::check(terms, &at) {
        Ok(()) => {
            let faults = |(t, term)| requirement::faults(term, &format!("{at}[{t}]"), Values::Checked);
            reader.faults.extend(terms.iter().enumerate().flat_map(faults));
        }
        Err(fault) => reader.faults.push(fault),
    }
    for (path, weighted) in reader.objects(node, path, PREFERRED, usize::MAX) {
        let (path, Some(term)) = (format!("{path}.preference"), weighted.get("preference")) else { continue };
        reader.faults.extend(match product::check_term(term) {
            Ok(()) => requirement::faults(term, &path, Values::Any),
            Err(fault) => vec![fault.below(&path)],
        });
    }
}

fn pod_term(reader: &mut Reader, term: &Object, path: &str) {
    required(reader, term, path, "topologyKey", Form::LabelKey);
    label_selector(reader, term, path, "labelSelector");
    label_selector(reader, term, path, "namespaceSelector");
    for (path, namespace) in reader.texts(term, path, "namespaces", usize::MAX) {
        reader.faults.extend(Form::DnsLabel.fault(path, namespace));
    }
}

fn label_selector(reader: &mut Reader, of: &Object, path: &str, key: &str) {
    let Some(selector) = reader.object(of, path, key) else { return };
    let path = format!("{path}.{key}");
    labels(reader, selector, &path, "matchLabels");
    for (path, expression) in reader.objects(selector, &path, "matchExpressions", usize::MAX) {
        required(reader, expression, &path, "key", Form::LabelKey);
        for (path, value) in reader.texts(expression, &path, "values", usize::MAX) {
            reader.faults.extend(Form::LabelValue.fault(path, value));
        }
    }
}

/// A toleration, as `ValidateTolerations` checks its texts. Which operators compare numbers depends on the version of the cluster.
fn one_toleration(reader: &mut Reader, toleration: &Object, path: &str) {
    optional(reader, toleration, path, "key", Form::LabelKey);
    // One that is no text is reported already.
    let has_key = toleration.get("key").is_some_and(|key| !key.is_null() && key != "");
    let operator = reader.text(toleration, path, "operator");
    let value = reader.text(toleration, path, "value");
    let at = |key: &str| format!("{path}.{key}");
    if !has_key && operator != "Exists" {
        reader.fault(at("key"), "is missing; name a taint, or use operator Exists for all");
    }
    match operator {
        "" | "Equal" => reader.faults.extend(Form::LabelValue.fault(at("value"), value)),
        "Exists" if !value.is_empty() => {
            let message = format!("is {:?}, and operator Exists takes none; remove it", quoted(value));
            reader.fault(at("value"), message);
        }
        "Exists" => {}
        // The API server takes decimal integers without sign, blank or zero before them.
        "Gt" | "Lt" if value.parse::<i64>().is_ok_and(|number| number.to_string() == value) => {}
        "Gt" | "Lt" => {
            let message = format!("is {:?}; {operator} needs an integer of 64 bits", quoted(value));
            reader.fault(at("value"), message);
        }
        other => {
            let message = format!("is {:?}; use Equal, Exists, Gt or Lt", quoted(other));
            reader.fault(at("operator"), message);
        }
    }
    let effect = reader.text(toleration, path, "effect");
    if !matches!(effect, "" | "NoSchedule" | "PreferNoSchedule" | "NoExecute") {
        let message =
            format!("is {:?}; use NoSchedule, PreferNoSchedule, NoExecute, or none", quoted(effect));
        reader.fault(at("effect"), message);
    }
}

fn container(reader: &mut Reader, container: &Object, path: &str) {
    for (path, port) in reader.objects(container, path, "ports", usize::MAX) {
        optional(reader, port, &path, "name", Form::PortName);
        for (key, needed) in [("containerPort", true), ("hostPort", false)] {
            let number = reader.integer(port, &path, key);
            if !is_port(number) && (needed || number != 0) {
                reader.fault(format_args!("{path}.{key}"), format_args!("is {number}; {PORT}"));
            }
        }
    }
    for key in ["livenessProbe", "readinessProbe", "startupProbe"] {
        let Some(probe) = reader.object(container, path, key) else { continue };
        for action in ["httpGet", "tcpSocket"] {
            let path = format!("{path}.{key}.{action}.port");
            let port = probe.get(action).and_then(|action| action.get("port"));
            let wrong = match port {
                Some(Value::Number(number)) if !number.as_i64().is_some_and(is_port) => {
                    Some(FieldError::new(path, format_args!("is {number}; {PORT}")))
                }
                Some(Value::String(name)) => Form::PortName.fault(path, name),
                _ => None,
            };
            reader.faults.extend(wrong);
        }
    }
    let Some(resources) = reader.object(container, path, "resources") else { return };
    for list in ["requests", "limits"] {
        amounts(reader, resources, &format!("{path}.resources"), list);
    }
}

const PORT: &str = "use a port: 1 to 65535";

fn amounts(reader: &mut Reader, resources: &Object, path: &str, list: &str) {
    let Some(amounts) = reader.object(resources, path, list) else { return };
    for (resource, amount) in amounts {
        let path = format!("{path}.{list}[{}]", quoted(resource));
        reader.faults.extend(Form::Resource.fault(&path, resource));
        let is = || quoted(&amount.to_string()).into_owned();
        match Quantity::of(amount).map(Quantity::ceil_milli) {
            None => reader.fault(path, format_args!("is {}; use a quantity such as 500m or 2Gi", is())),
            Some(amount) if amount.is_negative() => {
                reader.fault(path, format_args!("is {}; use 0 or more", is()));
            }
            Some(amount) if is_extended_resource(resource) && !amount.is_whole() => {
                reader.fault(path, format_args!("is {}; use a whole number", is()));
            }
            Some(_) => {}
        }
    }
}

#[cfg(test)]
mod tests;
