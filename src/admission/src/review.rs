//! `AdmissionReview` (`admission.k8s.io/v1`) on the wire.
//!
//! Only the needed fields are read, and the object stays raw JSON: a typed Pod would lose the fields that its types don't have. A
//! review is measured before any of it becomes a value tree, see [`BOUNDS`].

use std::borrow::Cow;
use std::cell::RefCell;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use outrigger_api::or_default;
use outrigger_core::bounds::{Bounds, Excess, Measured};
use outrigger_core::field::FieldError;
use outrigger_core::text::quoted;
use outrigger_core::validate;
use serde::de::value::SeqAccessDeserializer;
use serde::de::{DeserializeSeed, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::decision::Decision;
use crate::provenance::{self, Origin};

mod heaviest;

/// The supported version of reviews.
pub const API_VERSION: &str = "admission.k8s.io/v1";

/// Limits of a review. It carries the object and the old object as JSON, each at most 3 MiB at the API server. A Pod of 512 KiB,
/// the maximum in a tenant's namespace, has some 25,000 values, and the old Pod as many.
pub const BOUNDS: Bounds = Bounds { bytes: 8 << 20, values: 100_000, depth: 100 };

/// A review of at most this size is read in one pass. In a larger review, objects that no handler looks at are skipped.
const SMALL: usize = 32 << 10;

/// Maximum number of characters of all warnings of a response together (apiserver, `pkg/warning`).
const MAX_WARNINGS: usize = 4096;

/// A received review; `O` is the JSON type of its objects.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", bound(deserialize = "O: Deserialize<'de> + Default"))]
struct Incoming<'a, O> {
    #[serde(default, borrow)]
    api_version: Cow<'a, str>,
    #[serde(default, borrow)]
    kind: Cow<'a, str>,
    request: Option<Request<O>>,
}

/// The request of a review.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", bound(deserialize = "O: Deserialize<'de> + Default"))]
pub struct Request<O = Value> {
    /// The uid of the request; the answer carries it too.
    #[serde(default, deserialize_with = "or_default")]
    pub uid: String,
    /// Kind of the object.
    #[serde(default, deserialize_with = "or_default")]
    pub kind: Kind,
    /// `status`, `ephemeralcontainers` and so on; empty for the object itself.
    #[serde(default, deserialize_with = "or_default")]
    pub sub_resource: String,
    /// Namespace of the object.
    #[serde(default, deserialize_with = "or_default")]
    pub namespace: String,
    /// `CREATE`, `UPDATE`, `DELETE` or `CONNECT`.
    #[serde(default, deserialize_with = "or_default")]
    pub operation: String,
    /// The user who makes the request.
    #[serde(default, deserialize_with = "or_default")]
    pub user_info: UserInfo,
    /// The object; null on DELETE.
    #[serde(default, deserialize_with = "or_default")]
    pub object: O,
    /// The old object; null on CREATE.
    #[serde(default, deserialize_with = "or_default")]
    pub old_object: O,
    /// Nothing will be stored.
    #[serde(default, deserialize_with = "or_default")]
    pub dry_run: Option<bool>,
    /// Upper bounds of the bytes of the object and of the old object, as received. `None`: not measured.
    #[serde(skip)]
    pub sizes: Option<(usize, usize)>,
}

impl Request {
    /// Bytes of the object and of the old object as JSON. For a small review these are upper bounds.
    pub fn sizes(&self) -> (usize, usize) {
        let count = |object: &Value| if object.is_null() { 0 } else { validate::json_bytes(object) };
        self.sizes.unwrap_or_else(|| (count(&self.object), count(&self.old_object)))
    }

    /// Whether this is an update that leaves the spec as it was.
    pub fn leaves_spec(&self) -> bool {
        self.operation == "UPDATE" && self.object.get("spec") == self.old_object.get("spec")
    }
}

/// A kind with its group and version.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct Kind {
    /// Empty for the core group.
    #[serde(default, deserialize_with = "or_default")]
    pub group: String,
    /// `v1`.
    #[serde(default, deserialize_with = "or_default")]
    pub version: String,
    /// `Pod`.
    #[serde(default, deserialize_with = "or_default")]
    pub kind: String,
}

/// A user as the API server has authenticated it.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct UserInfo {
    /// The name, `system:serviceaccount:<namespace>:<name>` for a Pod.
    #[serde(default, deserialize_with = "or_default")]
    pub username: String,
    /// The groups.
    #[serde(default, deserialize_with = "or_default")]
    pub groups: Vec<String>,
}

/// Why a body can't be read as a review.
#[derive(Debug, thiserror::Error)]
pub enum ReviewError {
    /// The body isn't JSON, or a field has a wrong type.
    #[error("the body is no AdmissionReview: {0}")]
    Json(#[from] serde_json::Error),
    /// The body isn't UTF-8, as JSON has to be (RFC 8259, section 8.1).
    #[error("the body is no AdmissionReview, because it is no UTF-8 text: {0}")]
    Text(#[from] std::str::Utf8Error),
    /// The body is another kind of object.
    #[error("the body is {kind:?} of {api_version:?}, not an AdmissionReview of {API_VERSION:?}")]
    Kind {
        /// Its kind.
        kind: String,
        /// Its version.
        api_version: String,
    },
    /// The review has no request.
    #[error("request: is missing")]
    NoRequest,
    /// The request has no uid, so an answer could not be assigned to it.
    #[error("request.uid: is missing")]
    NoUid,
    /// The review is too large to be read.
    #[error("{}{}", most(path.as_deref()), beyond(excess))]
    Beyond {
        /// The uid of the request, where it can be read.
        uid: Option<String>,
        /// The limit that is exceeded.
        excess: Excess,
        /// The field of the object with most of its values, where there is one: see [`Self::located`].
        path: Option<String>,
    },
}

impl ReviewError {
    /// The same error with the field of the object that has more than half of its values. The body is read some ten times for that,
    /// so this must not run on the workers that answer other requests.
    #[must_use]
    pub fn located(self, body: &[u8]) -> Self {
        match self {
            Self::Beyond { uid, excess, .. } => Self::Beyond { uid, excess, path: heaviest::field(body) },
            other => other,
        }
    }
}

/// The message about a review that is too large.
pub fn beyond(excess: &Excess) -> String {
    format!(
        "the review of the object {excess} (the object, what it was before, and the facts about the request, together); make the \
         object smaller: move what is long into ConfigMaps or volumes, or split it up"
    )
}

/// The beginning of the message: the field that has more than half of the object's values.
fn most(path: Option<&str>) -> String {
    path.map_or_else(String::new, |path| format!("{path}: has more than half of what is in the object; "))
}

/// Measures a review before it is read.
///
/// # Errors
/// When the review exceeds the [`BOUNDS`], with its uid.
pub fn measure(body: &[u8]) -> Result<Measured, ReviewError> {
    BOUNDS.check(body).map_err(|excess| ReviewError::Beyond { uid: uid(body), excess, path: None })
}

/// Measures and reads a review.
pub fn read(body: &[u8]) -> Result<Request, ReviewError> {
    measure(body)?;
    read_measured(body)
}

/// Reads a review that has been measured.
pub fn read_measured(body: &[u8]) -> Result<Request, ReviewError> {
    if body.len() <= SMALL {
        let request: Request<Object> = envelope(body)?;
        return Ok(Request { sizes: Some((body.len(), 0)), ..request.map(|object| Ok(object.0))? });
    }
    let mut raw: Request<Option<&RawValue>> = envelope(body)?;
    // Only updates and deletions are decided by the old object.
    raw.old_object = raw.old_object.filter(|_| matches!(raw.operation.as_str(), "UPDATE" | "DELETE"));
    let size = |raw: Option<&RawValue>| raw.map_or(0, |raw| raw.get().len());
    let sizes = Some((size(raw.object), size(raw.old_object)));
    let tree = |raw: Option<&RawValue>| match raw {
        Some(raw) => serde_json::from_str(raw.get()).map(|Object(tree)| tree),
        None => Ok(Value::Null),
    };
    Ok(Request { sizes, ..raw.map(tree)? })
}

impl<O> Request<O> {
    /// The same request with other types of objects.
    fn map<P>(
        self,
        convert: impl Fn(O) -> Result<P, serde_json::Error>,
    ) -> Result<Request<P>, serde_json::Error> {
        Ok(Request {
            object: convert(self.object)?,
            old_object: convert(self.old_object)?,
            uid: self.uid,
            kind: self.kind,
            sub_resource: self.sub_resource,
            namespace: self.namespace,
            operation: self.operation,
            user_info: self.user_info,
            dry_run: self.dry_run,
            sizes: self.sizes,
        })
    }
}

/// An object as a value tree without `metadata.managedFields`: they are often a third of it, and nothing is decided by them.
#[derive(Default)]
struct Object(Value);

impl<'de> Deserialize<'de> for Object {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Part::Object.deserialize(deserializer).map(Self)
    }
}

/// What is read. Other values than objects are for the handlers to refuse.
#[derive(Clone, Copy)]
enum Part {
    Object,
    Metadata,
}

impl<'de> DeserializeSeed<'de> for Part {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Part {
    type Value = Value;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("an object")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Value, A::Error> {
        Value::deserialize(SeqAccessDeserializer::new(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut object = serde_json::Map::new();
        while let Some(key) = map.next_key::<String>()? {
            match (self, key.as_str()) {
                (Self::Metadata, "managedFields") => {
                    map.next_value::<IgnoredAny>()?;
                    continue;
                }
                (Self::Object, "metadata") => object.insert(key, map.next_value_seed(Self::Metadata)?),
                _ => object.insert(key, map.next_value()?),
            };
        }
        Ok(Value::Object(object))
    }
}

fn envelope<'a, O: Deserialize<'a> + Default>(body: &'a [u8]) -> Result<Request<O>, ReviewError> {
    // The parser doesn't look at the bytes of strings that it skips.
    let review: Incoming<'a, O> = serde_json::from_str(std::str::from_utf8(body)?)?;
    if review.kind != "AdmissionReview" || review.api_version != API_VERSION {
        let cut = |text: &str| quoted(text).into_owned();
        return Err(ReviewError::Kind { kind: cut(&review.kind), api_version: cut(&review.api_version) });
    }
    let request = review.request.ok_or(ReviewError::NoRequest)?;
    if request.uid.is_empty() {
        return Err(ReviewError::NoUid);
    }
    Ok(request)
}

/// The uid of a review, read without a value tree. The beginning of the body is enough: the API server writes the uid before the
/// objects.
pub fn uid(beginning: &[u8]) -> Option<String> {
    /// Maximum length of a uid; the API server's have 36 characters.
    const LONGEST: usize = 253;
    let found = RefCell::new(None);
    // An error after the uid doesn't matter.
    let _ = Within { path: &["request", "uid"], found: &found }
        .deserialize(&mut serde_json::Deserializer::from_slice(beginning));
    found.into_inner().filter(|uid: &String| !uid.is_empty() && uid.len() <= LONGEST)
}

/// Looks for the string at a path of nested objects.
struct Within<'a> {
    path: &'a [&'a str],
    found: &'a RefCell<Option<String>>,
}

impl<'de> DeserializeSeed<'de> for Within<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        if self.path.is_empty() {
            self.found.replace(Some(String::deserialize(deserializer)?));
            return Ok(());
        }
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Within<'_> {
    type Value = ();

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let Some((first, rest)) = self.path.split_first() else { return Ok(()) };
        while let Some(key) = map.next_key::<Cow<'de, str>>()? {
            if key == *first {
                map.next_value_seed(Within { path: rest, found: self.found })?;
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(())
    }
}

/// An answer on the wire. It is written without a value tree: a patch may be large, and every review is answered.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Outgoing<'a> {
    api_version: &'a str,
    kind: &'a str,
    response: Response<'a>,
}

/// `admission.k8s.io/v1` `AdmissionResponse`.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Response<'a> {
    uid: &'a str,
    allowed: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    patch_type: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    patch: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<&'a str>,
    #[serde(skip_serializing_if = "Vec::is_empty", serialize_with = "as_map")]
    audit_annotations: Vec<(&'static str, Cow<'a, str>)>,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<Status<'a>>,
}

fn as_map<S: Serializer>(pairs: &[(&str, Cow<'_, str>)], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(pairs.iter().map(|(key, value)| (key, value)))
}

/// `metav1.Status` of a denial.
#[derive(Serialize)]
struct Status<'a> {
    code: u16,
    message: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    details: Option<Details<'a>>,
}

#[derive(Serialize)]
struct Details<'a> {
    causes: Vec<Cause<'a>>,
}

/// `metav1.StatusCause`, which the API server hands on to the user.
#[derive(Serialize)]
struct Cause<'a> {
    reason: &'a str,
    field: &'a str,
    message: &'a str,
}

fn details(causes: &[FieldError]) -> Option<Details<'_>> {
    fn cause(error: &FieldError) -> Cause<'_> {
        Cause { reason: "FieldValueInvalid", field: &error.path, message: &error.message }
    }
    (!causes.is_empty()).then(|| Details { causes: causes.iter().map(cause).collect() })
}

/// Writes the answer as a body.
pub fn write(uid: &str, decision: &Decision) -> Result<Vec<u8>, serde_json::Error> {
    let response = match decision {
        Decision::Allow { patch, warnings, audit } => {
            // An empty patch has no patch type either.
            let patch =
                if patch.0.is_empty() { None } else { Some(STANDARD.encode(serde_json::to_vec(patch)?)) };
            Response {
                uid,
                allowed: true,
                patch_type: patch.is_some().then_some("JSONPatch"),
                patch,
                warnings: shown(warnings),
                audit_annotations: audit.iter().map(|(key, value)| (*key, value.into())).collect(),
                status: None,
            }
        }
        Decision::Deny { code, message, causes, by } => Response {
            uid,
            allowed: false,
            patch_type: None,
            patch: None,
            warnings: Vec::new(),
            audit_annotations: vec![(
                provenance::DENIED,
                provenance::denied(*code, Origin::default(), by, causes).into(),
            )],
            status: Some(Status { code: *code, message, details: details(causes) }),
        },
    };
    serde_json::to_vec(&Outgoing { api_version: API_VERSION, kind: "AdmissionReview", response })
}

/// The warnings that the API server shows.
fn shown(warnings: &[String]) -> Vec<&str> {
    let mut total = 0;
    warnings
        .iter()
        .map(String::as_str)
        .take_while(|warning| {
            total += warning.chars().count();
            total <= MAX_WARNINGS
        })
        .collect()
}

#[cfg(test)]
mod tests;
