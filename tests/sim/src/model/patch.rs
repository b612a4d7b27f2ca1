//! The kinds of patches.

use serde_json::Value;

use super::kinds::ModelKind;
use super::object;
use super::refusal::Refusal;

/// The body of a PATCH.
#[derive(Debug, Clone)]
pub(super) enum PatchBody {
    /// `application/merge-patch+json`
    Merge(Value),
    /// `application/json-patch+json`
    Json(json_patch::Patch),
    /// A server-side apply. Fields are merged, lists are replaced. There are no field owners: a field that the manager has applied
    /// before and doesn't apply now stays, and there are no conflicts, so only applies with `force` are accepted.
    Apply(Value),
    /// `application/strategic-merge-patch+json` of a status, of whose lists only the conditions are merged.
    Conditions(Value),
}

impl PatchBody {
    /// Parses a body of a content type.
    pub(super) fn parse(
        content_type: &str,
        body: &[u8],
        (force, merges): (bool, bool),
    ) -> Result<Self, Refusal> {
        let wrong = |error: serde_json::Error| Refusal::new(400, format!("error decoding patch: {error}"));
        match content_type {
            "application/merge-patch+json" => serde_json::from_slice(body).map(Self::Merge).map_err(wrong),
            "application/json-patch+json" => serde_json::from_slice(body).map(Self::Json).map_err(wrong),
            "application/strategic-merge-patch+json" if merges => {
                serde_json::from_slice(body).map(Self::Conditions).map_err(wrong)
            }
            // JSON is YAML, and kube sends JSON.
            "application/apply-patch+yaml" if force => {
                serde_json::from_slice(body).map(Self::Apply).map_err(wrong)
            }
            "application/apply-patch+yaml" => Err(Refusal::new(501, "the model applies with force only")),
            other => {
                Err(Refusal::new(415, format!("the body of the request was in an unknown format: {other}")))
            }
        }
    }

    /// The object with the patch applied.
    pub(super) fn apply(&self, kind: &ModelKind, name: &str, old: &Value) -> Result<Value, Refusal> {
        let mut new = old.clone();
        match self {
            Self::Merge(patch) | Self::Apply(patch) => json_patch::merge(&mut new, patch),
            Self::Conditions(patch) => {
                let conditions = merged(&old["status"]["conditions"], &patch["status"]["conditions"]);
                json_patch::merge(&mut new, patch);
                new["status"]["conditions"] = conditions;
            }
            Self::Json(patch) => json_patch::patch(&mut new, patch).map_err(|error| {
                Refusal::invalid(kind, name, "patch", &format!("the server rejected our request: {error}"))
            })?,
        }
        if !new.is_object() || !new["metadata"].is_object() {
            return Err(Refusal::new(400, "the patched object is no object of its kind"));
        }
        object::normalize(&mut new);
        Ok(new)
    }
}

/// Conditions with others, by their types: each field of one replaces the one that is there.
fn merged(old: &Value, more: &Value) -> Value {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let mut all = list(old);
    for condition in list(more) {
        match all.iter_mut().find(|known| known["type"] == condition["type"]) {
            Some(known) => json_patch::merge(known, &condition),
            None => all.push(condition),
        }
    }
    Value::Array(all)
}
