//! Cases that the unit, policy and end-to-end tests share: `escapes.yaml`, `requests.yaml`, `wrong_rules.yaml` and
//! `templates.yaml`. The head of
//! each file says what its fields mean.
//!
//! Every test layer reads the files with its own names in place of `$TENANT`, `$OTHER` and so on, and runs the rows that name
//! the layer. A row that names no layer doesn't parse, and a layer without rows fails.
// Helpers of tests fail by panicking, as tests do.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

pub mod any;
mod expand;
pub mod yaml;

use std::collections::BTreeMap;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value, json};

pub use expand::{merged, read};

/// Who runs a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Layer {
    /// The unit tests of the check itself, without a cluster.
    Unit,
    /// The admission policies alone, on an API server without Outrigger's processes.
    Policies,
    /// The end-to-end tests, on a control plane with all of Outrigger.
    E2e,
}

/// A name in the files, `$` included, and what a layer has in its place.
pub type Name<'a> = (&'a str, &'a str);

/// What a Pod can hold to get out of its tenant's isolation.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Escape {
    /// What it reaches for.
    pub name: String,
    /// Who runs it.
    #[serde(deserialize_with = "layers")]
    pub layers: Vec<Layer>,
    /// The change that makes a good Pod one that must be refused.
    pub refused: Value,
    /// The control case: a change that differs in nothing but the reason, and must be allowed.
    pub allowed: Value,
    /// The beginning of what the webhook says: path, value, reason.
    #[serde(default)]
    pub webhook: String,
    /// Parts of what the policies say.
    #[serde(default, deserialize_with = "one_or_many")]
    pub policy: Vec<String>,
    /// What Kubernetes' own Pod Security says.
    pub pod_security: Option<String>,
    /// What the API server says when yet another refuses first.
    pub answer: Option<String>,
    /// The message of a rule that isn't served because of such a template.
    pub rule: Option<String>,
    /// The feature gate of Kubernetes without which there is no such way out.
    pub needs: Option<String>,
}

impl Escape {
    /// Parts of what the API server says in the end.
    pub fn answer(&self) -> Vec<String> {
        match (&self.pod_security, &self.answer) {
            (Some(what), _) => vec![format!("violates PodSecurity \"baseline:latest\": {what}")],
            (None, Some(answer)) => vec![answer.clone()],
            (None, None) if self.policy.is_empty() => vec![self.webhook.clone()],
            (None, None) => self.policy.clone(),
        }
    }
}

/// The user's terms of required node affinity, or more of the spec, and whether a DPU is left for it.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Affinity {
    /// What it asks for.
    pub name: String,
    /// Who runs it.
    #[serde(deserialize_with = "layers")]
    pub layers: Vec<Layer>,
    /// The terms; null for none.
    pub terms: Value,
    /// A change of the Pod's spec.
    #[serde(default)]
    pub spec: Value,
    /// Whether a DPU is left.
    pub runs: bool,
}

/// A change of a good rule's spec, and the result for the rule.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RuleEnd {
    /// Who runs it.
    #[serde(deserialize_with = "layers")]
    pub layers: Vec<Layer>,
    /// The change.
    pub spec: Value,
    /// The reason of the condition that tells the end.
    pub end: String,
    /// Parts of its message.
    #[serde(default, deserialize_with = "one_or_many")]
    pub says: Vec<String>,
}

/// All of `escapes.yaml`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Escapes {
    /// What is not allowed.
    pub pods: Vec<Escape>,
    /// What is allowed and leads nowhere.
    pub affinities: Vec<Affinity>,
    /// What rules end as.
    pub rules: Vec<RuleEnd>,
    #[serde(rename = "objects")]
    _objects: Value,
}

impl Escapes {
    /// Reads the file for a layer.
    pub fn read(layer: Layer, names: &[Name<'_>]) -> Self {
        let mut all: Self = read(include_str!("escapes.yaml"), names, &json!({}));
        all.pods.retain(|row| row.layers.contains(&layer));
        all.affinities.retain(|row| row.layers.contains(&layer));
        all.rules.retain(|row| row.layers.contains(&layer));
        assert!(!all.pods.is_empty(), "{layer:?} runs no row");
        for row in &all.pods {
            expand::complete(&row.name, [&row.refused, &row.allowed]);
            let has_expectation = match layer {
                Layer::Unit => !row.webhook.is_empty(),
                Layer::Policies => !row.policy.is_empty(),
                Layer::E2e => !row.answer().concat().is_empty() && !row.webhook.is_empty(),
            };
            assert!(has_expectation, "{}: doesn't say what {layer:?} expects", row.name);
        }
        all
    }
}

/// A request to the API server.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Request {
    /// What it tries.
    #[serde(default)]
    pub name: String,
    /// Who asks.
    #[serde(default)]
    pub by: String,
    /// Method and path. APPLY is a server-side apply.
    #[serde(default)]
    pub ask: String,
    /// A merge patch, a JSON patch if it is a list, or an object.
    #[serde(default)]
    pub body: Value,
    /// Parts of the refusal; none where it is allowed.
    #[serde(default, deserialize_with = "one_or_many")]
    pub says: Vec<String>,
    /// What differs in the control case.
    pub control: Option<Control>,
    /// The feature gate of Kubernetes without which the control case isn't allowed.
    pub needs: Option<String>,
}

/// The control case of a request, which must be allowed: what differs from the request that is refused.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Control {
    by: Option<String>,
    ask: Option<String>,
    body: Option<Value>,
}

impl Request {
    /// The request with a control case of another body.
    #[must_use]
    pub fn controlled(self, body: Value) -> Self {
        Self { control: Some(Control { body: Some(body), ..Control::default() }), ..self }
    }

    /// The control case as a request.
    pub fn control(&self) -> Self {
        let control = self.control.clone().unwrap_or_else(|| panic!("{} has no control case", self.name));
        Self {
            by: control.by.unwrap_or_else(|| self.by.clone()),
            ask: control.ask.unwrap_or_else(|| self.ask.clone()),
            body: control.body.unwrap_or_else(|| self.body.clone()),
            name: format!("control case of {}", self.name),
            ..Self::default()
        }
    }
}

/// Requests that one test makes.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Group {
    /// What they are about.
    pub group: String,
    /// Who runs them.
    pub layer: Layer,
    /// The policy that refuses them.
    #[serde(default)]
    pub policy: String,
    /// In order.
    pub rows: Vec<Request>,
}

/// All of `requests.yaml`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Requests {
    /// What the bodies are made of.
    pub objects: Value,
    /// Requests by the test that makes them.
    pub groups: Vec<Group>,
}

impl Requests {
    /// Reads the file for a layer, with objects that only this run knows.
    pub fn read(layer: Layer, names: &[Name<'_>], objects: &Value) -> Self {
        let mut all: Self = read(include_str!("requests.yaml"), names, objects);
        all.groups.retain(|group| group.layer == layer);
        assert!(!all.groups.is_empty(), "{layer:?} runs no row");
        assert!(all.groups.iter().all(|group| !group.rows.is_empty()), "a group has no rows");
        all
    }
}

/// A rule with one field wrong.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct WrongRule {
    /// Who runs it.
    #[serde(deserialize_with = "layers")]
    pub layers: Vec<Layer>,
    /// Where the value is put into a good rule: a JSON pointer below `spec`.
    pub at: String,
    /// The wrong value.
    pub value: Value,
    /// The field's path in the answer.
    pub path: String,
    /// Words of the answer.
    #[serde(default)]
    pub says: String,
    /// Whether a gRPC message has room for it.
    #[serde(default = "yes")]
    pub grpc: bool,
}

fn yes() -> bool {
    true
}

/// Reads `wrong_rules.yaml` for a layer.
pub fn wrong_rules(layer: Layer, names: &[Name<'_>]) -> Vec<WrongRule> {
    let mut all: Vec<WrongRule> = read(include_str!("wrong_rules.yaml"), names, &json!({}));
    all.retain(|row| row.layers.contains(&layer));
    assert!(!all.is_empty(), "{layer:?} runs no row");
    all
}

/// A template, and values put into it.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Template {
    /// The template.
    pub base: Value,
    same: BTreeMap<String, Map<String, Value>>,
    different: BTreeMap<String, Map<String, Value>>,
}

/// A value put into an object: its JSON pointer, the field, the value.
pub type Put = (String, String, Value);

impl Template {
    /// Values that the API server stores as if they weren't there.
    pub fn same(&self) -> Vec<Put> {
        puts(&self.same)
    }

    /// Values that change what it stores.
    pub fn different(&self) -> Vec<Put> {
        puts(&self.different)
    }
}

/// A template with values put into it, as far as there are objects for them.
pub fn with<'a>(template: &Value, puts: impl IntoIterator<Item = &'a Put>) -> Value {
    let mut new = template.clone();
    for (at, field, value) in puts {
        if let Some(object) = new.pointer_mut(at).and_then(Value::as_object_mut) {
            object.insert(field.clone(), value.clone());
        }
    }
    new
}

fn puts(all: &BTreeMap<String, Map<String, Value>>) -> Vec<Put> {
    let put = |(at, fields): (&String, &Map<String, Value>)| {
        let at = at.clone();
        fields.clone().into_iter().map(move |(field, value)| (at.clone(), field, value)).collect::<Vec<_>>()
    };
    all.iter().flat_map(put).collect()
}

/// Reads `templates.yaml`.
pub fn templates() -> Vec<Template> {
    let all: Vec<Template> = read(include_str!("templates.yaml"), &[], &json!({}));
    assert!(all.iter().all(|template| !template.same.is_empty() && !template.different.is_empty()));
    all
}

/// A Pod changed by a row. `container` is the Pod's only container, `init` its only init container.
pub fn changed(pod: &Value, row: &Value) -> Value {
    let mut new = merged(pod, row);
    for (short, list, name) in [("container", "containers", "c"), ("init", "initContainers", "b")] {
        if let Some(more) = new.as_object_mut().unwrap().remove(short) {
            new["spec"][list] = json!([merged(&json!({"name": name, "image": "i"}), &more)]);
        }
    }
    new
}

/// The layers that run a row. A row that nobody runs is an error.
fn layers<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Layer>, D::Error> {
    let layers = Vec::<Layer>::deserialize(from)?;
    if layers.is_empty() { Err(serde::de::Error::custom("a row names no layer")) } else { Ok(layers) }
}

/// A text, or a list of texts.
fn one_or_many<'de, D: Deserializer<'de>, T: DeserializeOwned>(from: D) -> Result<Vec<T>, D::Error> {
    let list = match Value::deserialize(from)? {
        Value::Array(list) => list,
        one => vec![one],
    };
    serde_json::from_value(list.into()).map_err(serde::de::Error::custom)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_layer_runs_rows() {
        let names = ["TENANT", "OTHER", "OWN", "THEIR", "NAMESPACE", "RULE", "LABEL"];
        let names = names.map(|name| (format!("${name}"), "x"));
        let names: Vec<Name<'_>> = names.iter().map(|(name, value)| (name.as_str(), *value)).collect();
        // Reading fails where a layer has no rows, or a row not what its layer expects.
        let counts =
            [Layer::Unit, Layer::Policies, Layer::E2e].map(|layer| Escapes::read(layer, &names).pods.len());
        assert!(counts.iter().all(|count| *count > 50), "{counts:?}");
        for layer in [Layer::Policies, Layer::E2e] {
            Requests::read(layer, &names, &json!({}));
        }
        wrong_rules(Layer::E2e, &names);
    }

    #[test]
    fn a_row_names_its_layers() {
        let mut row = json!({"name": "n", "layers": ["unit"], "refused": {}, "allowed": {}, "webhook": "w"});
        let read = |row: &Value| serde_json::from_value::<Escape>(row.clone());
        assert_eq!(read(&row).unwrap().layers, [Layer::Unit]);
        for layers in [json!([]), json!(["somewhere"]), Value::Null] {
            row["layers"] = layers;
            assert!(read(&row).is_err(), "{row}");
        }
        row.as_object_mut().unwrap().remove("layers");
        assert!(read(&row).is_err(), "{row}");
    }

    #[test]
    fn short_forms_stand_for_what_they_say() {
        let text = "objects: {a: {b: 1, c: $NAME}}\nrows: [{$like: a, c: null, d: {$text: x, times: 3}},
            {$repeat: 2, of: {n: $I}}, {$repeat: 2, key: k$I, of: v}, {$like: unknown}]\n";
        let all: Value = read(text, &[("$NAME", "n")], &json!({"z": {}}));
        let rows =
            json!([{"b": 1, "d": "xxx"}, [{"n": 1}, {"n": 2}], {"k1": "v", "k2": "v"}, {"$like": "unknown"}]);
        assert_eq!(all["rows"], rows);
    }
}
