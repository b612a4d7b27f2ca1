//! Audit annotations: which step changed or refused an object, and by which rule.
//!
//! The API server puts the name of the webhook before each key (`pods.outrigger.dev/isolation`) and writes them into the audit
//! event of the request. It may call a mutating webhook a second time in one request, and drops a key that comes again with
//! another value. So a step that changes nothing has no key, and the value of a step is the same in both rounds. Only the
//! generation of a rule can differ between them: what a rule does in the second round has keys of its own.
//!
//! The keys are a closed set and every value is bounded, because audit logs are stored. Values contain names, generations and
//! paths of fields, and nothing that an object holds.

use std::borrow::Cow;
use std::fmt;

use outrigger_core::field::FieldError;

/// What audit annotations call the step that refuses Outrigger's own keys.
pub const OWN_KEYS: &str = "keys";

/// What audit annotations call the validation of the final object.
pub const VALIDATION: &str = "validation";

/// The key of the readiness gate of a Pod in a tenant's cluster.
pub const GATE: &str = "gate";

/// The key of the claim by which a Pod in a tenant's cluster waits before it starts.
pub const CLAIM: &str = "companions-first";

/// The key of a refusal.
pub const DENIED: &str = "denied";

/// Every key with its meaning. The steps of the mutation are in their order.
pub const KEYS: &[(&str, &str)] = &[
    ("machine", "the Machine whose slot the guest got"),
    ("offloading", "the NamespaceOffloading that added its selector and toleration"),
    ("companion", "the rule whose facts and placement the companion got"),
    ("isolation", "the Tenant to whose DPUs the Pod is restricted"),
    ("claims", "the rule whose device claims the companion got"),
    (GATE, "the rule for whose companion the Pod waits, or the Namespace whose label asks for the gate"),
    (
        CLAIM,
        "the rule for whose companion the Pod waits before it starts, or the Namespace whose labels ask for the claim",
    ),
    ("companion-again", "the same in a second call, after another webhook had changed the Pod"),
    ("claims-again", "the same in a second call, after another webhook had changed the Pod"),
    (
        DENIED,
        "the request was refused, or would be at the level Enforce, where the value has a `level` or an `exception`: code, level or exception, step, what decided, and paths of fields",
    ),
];

/// The key of a step. `again`: the step has changed the Pod in an earlier call of the same request.
pub(crate) fn key(step: &'static str, again: bool) -> &'static str {
    match (step, again) {
        ("companion", true) => "companion-again",
        ("claims", true) => "claims-again",
        (step, _) => step,
    }
}

/// The step that a key names, and whether the step has changed the Pod in an earlier call of the same request.
pub fn step(key: &str) -> (&str, bool) {
    key.strip_suffix("-again").map_or((key, false), |step| (step, true))
}

/// Maximum number of bytes of one name or path. Names of Kubernetes' objects have at most 253.
const MAX_PART: usize = 253;

/// Maximum number of bytes of all paths of a value together.
const MAX_FIELDS: usize = 512;

/// What decided: the value of an audit annotation, as `kind=WorkloadRule namespace=tenant-blue name=dns generation=3`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Origin<'a> {
    /// HTTP status of a refusal.
    pub code: Option<u16>,
    /// The level of enforcement that let the object through; of a refusal none.
    pub level: Option<Cow<'a, str>>,
    /// The exception that let the object through at the level Enforce.
    pub exception: Option<Cow<'a, str>>,
    /// The step that refused the object: one of the mutation, [`OWN_KEYS`] or [`VALIDATION`].
    pub step: Option<Cow<'a, str>>,
    /// Kind of the object that decided.
    pub kind: Option<Cow<'a, str>>,
    /// Its namespace.
    pub namespace: Option<Cow<'a, str>>,
    /// Its name.
    pub name: Option<Cow<'a, str>>,
    /// Its `metadata.generation`. Only rules have one here.
    pub generation: Option<i64>,
    /// The machine type of a guest.
    pub machine_type: Option<Cow<'a, str>>,
    /// Paths of the refused fields.
    pub fields: Vec<Cow<'a, str>>,
}

impl<'a> Origin<'a> {
    /// An object that decides.
    pub fn object(kind: &'a str, name: &'a str) -> Self {
        Self { kind: Some(kind.into()), name: Some(name.into()), ..Self::default() }
    }

    /// The same object, in this namespace.
    #[must_use]
    pub fn within(self, namespace: &'a str) -> Self {
        Self { namespace: Some(namespace.into()), ..self }
    }

    /// The same object, of this generation.
    #[must_use]
    pub fn of_generation(self, generation: i64) -> Self {
        Self { generation: Some(generation), ..self }
    }

    /// The same object, as what decides in this step.
    #[must_use]
    pub fn in_step(self, step: &'a str) -> Self {
        Self { step: Some(step.into()), ..self }
    }

    /// Reads a value. Parts that are unknown, or no number where they should be one, are ignored.
    pub fn parse(value: &'a str) -> Self {
        let mut origin = Self::default();
        for (key, text) in value.split(' ').filter_map(|part| part.split_once('=')) {
            match key {
                "code" => origin.code = text.parse().ok(),
                "level" => origin.level = Some(text.into()),
                "exception" => origin.exception = Some(text.into()),
                "step" => origin.step = Some(text.into()),
                "kind" => origin.kind = Some(text.into()),
                "namespace" => origin.namespace = Some(text.into()),
                "name" => origin.name = Some(text.into()),
                "generation" => origin.generation = text.parse().ok(),
                "machineType" => origin.machine_type = Some(text.into()),
                "fields" => origin.fields = text.split(',').map(Cow::Borrowed).collect(),
                _ => {}
            }
        }
        origin
    }
}

/// The value of a refusal, or of what would be one if it hadn't `passed`, by a level or an exception. `by`: what decided, without code
/// and fields.
pub(crate) fn denied(code: u16, passed: Origin<'_>, by: &str, causes: &[FieldError]) -> String {
    let refused = Origin { code: Some(code), ..passed };
    let fields = Origin {
        fields: causes.iter().map(|cause| Cow::Borrowed(cause.path.as_str())).collect(),
        ..Origin::default()
    };
    let parts = [refused.to_string(), by.to_owned(), fields.to_string()];
    let parts: Vec<String> = parts.into_iter().filter(|part| !part.is_empty()).collect();
    parts.join(" ")
}

impl fmt::Display for Origin<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let code = self.code.map(|code| code.to_string());
        let generation = self.generation.map(|generation| generation.to_string());
        let parts = [
            ("code", code.as_deref()),
            ("level", self.level.as_deref()),
            ("exception", self.exception.as_deref()),
            ("step", self.step.as_deref()),
            ("kind", self.kind.as_deref()),
            ("namespace", self.namespace.as_deref()),
            ("name", self.name.as_deref()),
            ("generation", generation.as_deref()),
            ("machineType", self.machine_type.as_deref()),
        ];
        let parts = parts.into_iter().filter_map(|(key, text)| Some(format!("{key}={}", bounded(text?))));
        // As many paths as there is room for.
        let mut left = MAX_FIELDS;
        let fields = self.fields.iter().map_while(|path| {
            left = left.checked_sub(path.len().min(MAX_PART) + 1)?;
            Some(bounded(path))
        });
        let fields = fields.collect::<Vec<_>>().join(",");
        let fields = (!self.fields.is_empty()).then(|| format!("fields={fields}"));
        f.write_str(&parts.chain(fields).collect::<Vec<_>>().join(" "))
    }
}

/// The beginning of a text, without what separates parts: paths may contain keys of maps, which are any text.
fn bounded(text: &str) -> String {
    let separates = |c: char| c == ',' || c.is_whitespace() || c.is_control();
    text[..text.floor_char_boundary(MAX_PART)].replace(separates, "_")
}

#[cfg(test)]
mod tests;
