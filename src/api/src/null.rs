//! Nulls where the API has a field.

use serde::{Deserialize, Deserializer};

/// Null is as good as absent, as for every field of the API.
pub(crate) fn or_default<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(
    d: D,
) -> Result<T, D::Error> {
    Ok(Option::deserialize(d)?.unwrap_or_default())
}
