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
    /// `application/strategic-merge-patch+json`, of whose lists only conditions and containers are merged.
    Strategic(Value),
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
                serde_json::from_slice(body).map(Self::Strategic).map_err(wrong)
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
            Self::Strategic(patch) => {
                json_patch::merge(&mut new, patch);
                for (part, list, key) in [("status", "conditions", "type"), ("spec", "containers", "name")] {
                    let more = &patch[part][list];
                    if more.is_array() {
                        new[part][list] = merged(&old[part][list], more, key);
                    }
                }
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

/// The entries of a list with others, by this key: each field of one replaces the one that is there.
fn merged(old: &Value, more: &Value, key: &str) -> Value {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let mut all = list(old);
    for entry in list(more) {
        match all.iter_mut().find(|known| known[key] == entry[key]) {
            Some(known) => json_patch::merge(known, &entry),
            None => all.push(entry),
        }
    }
    Value::Array(all)
}
