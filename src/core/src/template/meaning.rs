//! What a template means: the same for all templates of which the API server makes equal objects, as far as that can be known
//! without asking it.

use serde_json::{Map, Value};

use super::shape::{CLAIM, Field, Joint, POD, Shape};
use super::{Kind, kind};
use crate::quantity::Quantity;
use crate::syntax::is_dns_label;

/// Longest text of an amount that is written in another way. Longer ones may be more exact than [`Quantity`].
const MAX_AMOUNT: usize = 18;

/// A template without what the API server doesn't store: nulls, empty lists and objects where they are as good as nothing, its
/// own defaults, `status`, metadata that no companion gets, amounts in other forms than the shortest, and double quotes that the
/// companion gets as single ones.
///
/// A template that has nothing of this stays as it is. What isn't known stays too: two templates that differ in it are taken
/// for different.
pub(crate) fn of(template: &Value) -> Value {
    let mut template = template.clone();
    super::single_quoted(&mut template);
    let is_claim = kind(&template) == Kind::Claim;
    let Value::Object(mut object) = template else { return template };
    object.remove("status");
    if let Some(Value::Object(metadata)) = object.get_mut("metadata") {
        metadata.retain(|key, _| ["labels", "annotations"].contains(&key.as_str()));
    }
    reduce(&mut object, if is_claim { &CLAIM } else { &POD });
    Value::Object(object)
}

/// The same of the spec of a ResourceClaim.
pub(crate) fn of_claim_spec(spec: &Value) -> Value {
    let whole = of(&serde_json::json!({"kind": Kind::Claim.as_str(), "spec": spec}));
    whole.get("spec").cloned().unwrap_or_default()
}

fn reduce(object: &mut Map<String, Value>, shape: &Shape) {
    // To all of its fields, also to those that aren't known here, null is the same as absent.
    object.retain(|_, value| !value.is_null());
    for (names, field) in shape.rows {
        for name in names.split(' ') {
            if object.get_mut(name).is_some_and(|value| is_absent(value, field)) {
                object.remove(name);
            }
        }
    }
    match shape.joint {
        None => {}
        Some(Joint::PodSpec) => of_pod(object),
        Some(Joint::Container) => of_container(object),
        Some(Joint::Volume) => of_volume(object),
        Some(Joint::Request) => of_request(object),
    }
}

/// Reduces the value of a field. Whether it is as good as none.
fn is_absent(value: &mut Value, field: &Field) -> bool {
    match field {
        Field::Text => value == "",
        Field::Number => *value == 0,
        Field::Flag => *value == false,
        Field::Few => is_empty(value),
        Field::Default(default) => value == default,
        Field::DefaultNumber(default) => value == default,
        Field::DefaultFlag(default) => value == default,
        Field::Amount => {
            amount(value, false);
            value == "0"
        }
        Field::SomeAmount => {
            amount(value, false);
            false
        }
        Field::Resources | Field::Amounts => {
            let rounded = matches!(field, Field::Resources);
            value.as_object_mut().into_iter().flatten().for_each(|(_, value)| amount(value, rounded));
            is_empty(value)
        }
        Field::Part(shape) => value.as_object_mut().is_some_and(|object| {
            reduce(object, shape);
            object.is_empty()
        }),
        Field::Whole(shape) => {
            value.as_object_mut().into_iter().for_each(|object| reduce(object, shape));
            false
        }
        Field::Each(shape) => {
            let all = value.as_array_mut().into_iter().flatten().filter_map(Value::as_object_mut);
            all.for_each(|object| reduce(object, shape));
            is_empty(value)
        }
    }
}

fn is_empty(value: &Value) -> bool {
    value.as_array().is_some_and(Vec::is_empty) || value.as_object().is_some_and(Map::is_empty)
}

/// Writes an amount as the API server does. `rounded`: up to thousandths, as what containers ask for is.
fn amount(value: &mut Value, rounded: bool) {
    let is_exact = match &*value {
        Value::String(text) => text.len() <= MAX_AMOUNT,
        Value::Number(number) => number.to_string().len() <= MAX_AMOUNT,
        _ => false,
    };
    // The API server takes no spaces around an amount.
    let is_amount = is_exact && value.as_str().is_none_or(|text| !text.contains(char::is_whitespace));
    // Beyond the range it cuts amounts down.
    let in_range = |amount: &Quantity| amount.nanos().abs() < i128::from(i64::MAX) * 1_000_000_000;
    if let Some(amount) = Quantity::of(value).filter(|_| is_amount).filter(in_range) {
        let amount = if rounded { amount.ceil_milli() } else { amount };
        *value = amount.to_string().into();
    }
}

/// Ports of the host's network are ports of the host, and the former name of a field is as good as its name. No cluster can do
/// without the admission plugin that sets the service account `default`.
fn of_pod(spec: &mut Map<String, Value>) {
    if let Some(former) = spec.remove("serviceAccount") {
        spec.entry("serviceAccountName").or_insert(former);
    }
    if spec.get("serviceAccountName").is_some_and(|account| account == "default") {
        spec.remove("serviceAccountName");
    }
    if spec.get("hostNetwork") != Some(&Value::Bool(true)) {
        return;
    }
    let lists = spec.iter_mut().filter(|(key, _)| super::CONTAINERS.contains(&key.as_str()));
    let containers = lists.filter_map(|(_, list)| list.as_array_mut()).flatten();
    let ports = containers.filter_map(|container| container.get_mut("ports")?.as_array_mut()).flatten();
    for port in ports.filter_map(Value::as_object_mut) {
        if port.get("hostPort") == port.get("containerPort") {
            port.remove("hostPort");
        }
    }
}

/// How images are pulled, and what is requested, depends on other fields where it isn't said.
fn of_container(container: &mut Map<String, Value>) {
    let policy = container.get("image").and_then(Value::as_str).and_then(pull_policy);
    if policy.is_some() && container.get("imagePullPolicy").and_then(Value::as_str) == policy {
        container.remove("imagePullPolicy");
    }
    let Some(Value::Object(resources)) = container.get_mut("resources") else { return };
    let limits = resources.get("limits").cloned().unwrap_or_default();
    let Some(Value::Object(requests)) = resources.get_mut("requests") else { return };
    requests.retain(|name, amount| limits.get(name) != Some(amount));
    if requests.is_empty() {
        resources.remove("requests");
    }
}

/// The policy that the API server sets for an image: `Always` for the tag `latest`, also where neither tag nor digest is written.
/// `None` for a text that isn't surely the name of an image (the grammar of `distribution/reference`).
pub(crate) fn pull_policy(image: &str) -> Option<&'static str> {
    let (name, digest) = image.split_once('@').map_or((image, None), |(name, digest)| (name, Some(digest)));
    let colon = name.rfind(':').filter(|colon| name.rfind('/').is_none_or(|slash| slash < *colon));
    let (path, tag) = colon.map_or((name, None), |colon| (&name[..colon], name.get(colon + 1..)));
    let is_name = is_image_path(path) && tag.is_none_or(is_tag) && digest.is_none_or(is_digest);
    let is_latest = tag == Some("latest") || tag.is_none() && digest.is_none();
    is_name.then_some(if is_latest { "Always" } else { "IfNotPresent" })
}

fn is_image_path(path: &str) -> bool {
    let (host, rest) = match path.split_once('/') {
        Some((host, rest)) if host.contains(['.', ':']) || host == "localhost" => (host, rest),
        _ => ("", path),
    };
    let (host, port) = host.split_once(':').unwrap_or((host, "0"));
    let is_host = host.is_empty() && port == "0" || host.split('.').all(is_dns_label);
    let is_port = !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit());
    // Words of lower-case letters and digits, between them a separator.
    let is_part = |part: &str| {
        let separated = part.replace("__", "_").replace('_', ".");
        separated.split('.').all(|word| {
            word.split('-').all(|word| word.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit()))
                && !word.is_empty()
                && !word.starts_with('-')
                && !word.ends_with('-')
        })
    };
    // 64 hexadecimal digits alone are the identifier of an image.
    is_host && is_port && rest.split('/').all(is_part) && path.len() < 128 && path.len() != 64
}

fn is_tag(tag: &str) -> bool {
    let is_word = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
    let is_valid = |(i, b): (usize, u8)| is_word(b) || i > 0 && (b == b'.' || b == b'-');
    (1..=128).contains(&tag.len()) && tag.bytes().enumerate().all(is_valid)
}

fn is_digest(digest: &str) -> bool {
    let is_hex = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
    digest.strip_prefix("sha256:").is_some_and(|hex| hex.len() == 64 && hex.bytes().all(is_hex))
}

/// A volume that says nothing of what it is is an empty directory.
fn of_volume(volume: &mut Map<String, Value>) {
    let is_plain = volume.keys().all(|key| key == "name" || key == "emptyDir");
    if is_plain && volume.get("emptyDir").is_some_and(is_empty) {
        volume.remove("emptyDir");
    }
}

/// One device is asked for where no other number is said.
fn of_request(request: &mut Map<String, Value>) {
    if request.get("allocationMode").is_none() && request.get("count").is_some_and(|count| *count == 1) {
        request.remove("count");
    }
}

#[cfg(test)]
mod tests;
