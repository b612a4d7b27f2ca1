//! `AdmissionReview` (`admission.k8s.io/v1`) on the wire.
//!
//! Only what is needed is read, and the object stays raw JSON: a typed Pod would lose the fields that its types don't
//! know.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use json_patch::Patch;
use outrigger_core::field::FieldError;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use crate::admit::guests;

/// Version of the reviews that are understood.
pub const API_VERSION: &str = "admission.k8s.io/v1";

/// Most characters of all warnings of a response together (apiserver, `pkg/warning`).
const MAX_WARNINGS: usize = 4096;

/// A review as it comes in.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Incoming {
    #[serde(default)]
    api_version: String,
    #[serde(default)]
    kind: String,
    request: Option<Request>,
}

/// What is asked.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Request {
    /// Names the question; the answer carries it too.
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
    /// Who asks.
    #[serde(default, deserialize_with = "or_default")]
    pub user_info: UserInfo,
    /// The object; null on DELETE.
    #[serde(default, deserialize_with = "or_default")]
    pub object: Value,
    /// What it was before; null on CREATE.
    #[serde(default, deserialize_with = "or_default")]
    pub old_object: Value,
    /// Nothing of it will be stored.
    #[serde(default, deserialize_with = "or_default")]
    pub dry_run: Option<bool>,
    /// What came of it, where it is about a guest of a Machine: for metrics. Set on the way.
    #[serde(skip)]
    pub guest: Option<guests::Outcome>,
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

/// Null is as good as absent: the API server's own decoder takes it so.
fn or_default<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(d: D) -> Result<T, D::Error> {
    Ok(Option::deserialize(d)?.unwrap_or_default())
}

/// Why a body is no review.
#[derive(Debug, thiserror::Error)]
pub enum ReviewError {
    /// It isn't JSON, or a field has a wrong type.
    #[error("the body is no AdmissionReview: {0}")]
    Json(#[from] serde_json::Error),
    /// It is another kind of object.
    #[error("the body is {kind:?} of {api_version:?}, not an AdmissionReview of {API_VERSION:?}")]
    Kind {
        /// Its kind.
        kind: String,
        /// Its version.
        api_version: String,
    },
    /// It asks nothing.
    #[error("request: is missing")]
    NoRequest,
    /// The answer could not be told from others.
    #[error("request.uid: is missing")]
    NoUid,
}

/// Reads a review.
///
/// # Errors
/// When the body is none.
pub fn read(body: &[u8]) -> Result<Request, ReviewError> {
    let review: Incoming = serde_json::from_slice(body)?;
    if review.kind != "AdmissionReview" || review.api_version != API_VERSION {
        let cut = |text: String| text.chars().take(80).collect();
        return Err(ReviewError::Kind { kind: cut(review.kind), api_version: cut(review.api_version) });
    }
    let request = review.request.ok_or(ReviewError::NoRequest)?;
    if request.uid.is_empty() {
        return Err(ReviewError::NoUid);
    }
    Ok(request)
}

/// What is answered.
#[derive(Debug, Clone, PartialEq)]
pub enum Decision {
    /// The object is taken, changed by the patch, with words for the user.
    Allow {
        /// What to change; empty for nothing.
        patch: Patch,
        /// At most 120 characters each are shown whole.
        warnings: Vec<String>,
    },
    /// The object is refused.
    Deny {
        /// HTTP status, 400 or above.
        code: u16,
        /// The field's path, what is wrong, what to do.
        message: String,
        /// The same by field, for programs.
        causes: Vec<FieldError>,
    },
}

impl Decision {
    /// The object is taken as it is.
    pub fn allow() -> Self {
        Self::Allow { patch: Patch(Vec::new()), warnings: Vec::new() }
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Outgoing<'a> {
    api_version: &'a str,
    kind: &'a str,
    response: Response<'a>,
}

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
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<Status<'a>>,
}

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

/// `metav1.StatusCause`.
#[derive(Serialize)]
struct Cause<'a> {
    reason: &'a str,
    field: &'a str,
    message: &'a str,
}

/// The API server hands them on to whoever asked.
fn details(causes: &[FieldError]) -> Option<Details<'_>> {
    fn cause(error: &FieldError) -> Cause<'_> {
        Cause { reason: "FieldValueInvalid", field: &error.path, message: &error.message }
    }
    (!causes.is_empty()).then(|| Details { causes: causes.iter().map(cause).collect() })
}

/// The answer as a body.
///
/// # Errors
/// Never in practice: there is nothing in it that JSON could not carry.
pub fn write(uid: &str, decision: &Decision) -> Result<Vec<u8>, serde_json::Error> {
    let response = match decision {
        Decision::Allow { patch, warnings } => {
            // Both or neither; an empty patch is none.
            let patch =
                if patch.0.is_empty() { None } else { Some(STANDARD.encode(serde_json::to_vec(patch)?)) };
            Response {
                uid,
                allowed: true,
                patch_type: patch.is_some().then_some("JSONPatch"),
                patch,
                warnings: shown(warnings),
                status: None,
            }
        }
        Decision::Deny { code, message, causes } => Response {
            uid,
            allowed: false,
            patch_type: None,
            patch: None,
            warnings: Vec::new(),
            status: Some(Status { code: *code, message, details: details(causes) }),
        },
    };
    serde_json::to_vec(&Outgoing { api_version: API_VERSION, kind: "AdmissionReview", response })
}

/// As many warnings as the API server shows.
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
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_is_no_review_is_refused_with_the_reason() {
        for (body, part) in [
            ("", "EOF"),
            (
                "{\"kind\": \"AdmissionReview\", \"apiVersion\": \"admission.k8s.io/v1\", \"request\": {",
                "EOF",
            ),
            ("[]", "no AdmissionReview"),
            ("{}", "\"\" of \"\""),
            (r#"{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1beta1"}"#, "v1beta1"),
            (r#"{"kind":"Pod","apiVersion":"admission.k8s.io/v1"}"#, "\"Pod\""),
            (r#"{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1"}"#, "request: is missing"),
            (r#"{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","request":{}}"#, "request.uid"),
            (
                r#"{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","request":{"uid":7}}"#,
                "invalid type",
            ),
        ] {
            let error = read(body.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(part), "{body}: {error}");
        }
    }

    #[test]
    fn patch_and_patch_type_come_together_or_not_at_all() {
        let answer = |decision: &Decision| -> Value {
            serde_json::from_slice(&write("u", decision).unwrap()).unwrap()
        };
        let plain = answer(&Decision::allow());
        assert_eq!(
            plain,
            json!({"apiVersion": API_VERSION, "kind": "AdmissionReview", "response": {"uid": "u", "allowed": true}})
        );
        let patch = json_patch::diff(&json!({}), &json!({"a": 1}));
        let patched = answer(&Decision::Allow { patch, warnings: vec!["w".into()] });
        assert_eq!(patched["response"]["patchType"], "JSONPatch");
        assert!(patched["response"]["patch"].is_string());
        assert_eq!(patched["response"]["warnings"], json!(["w"]));
        let deny = |causes| Decision::Deny { code: 403, message: "spec.x: no".into(), causes };
        assert_eq!(
            answer(&deny(Vec::new()))["response"],
            json!({"uid": "u", "allowed": false, "status": {"code": 403, "message": "spec.x: no"}})
        );
        let by_field = answer(&deny(vec![FieldError::new("spec.x", "no")]));
        assert_eq!(
            by_field["response"]["status"]["details"]["causes"],
            json!([{"reason": "FieldValueInvalid", "field": "spec.x", "message": "no"}])
        );
    }

    #[test]
    fn warnings_end_where_the_api_server_would_cut() {
        let many = vec!["x".repeat(100); 60];
        assert_eq!(shown(&many).len(), 40);
    }
}
