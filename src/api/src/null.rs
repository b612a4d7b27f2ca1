//! Deserialization of fields that may be null.

use serde::{Deserialize, Deserializer};

/// Deserializes null as the default value. The Kubernetes API treats a null field as absent.
pub fn or_default<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(d: D) -> Result<T, D::Error> {
    Ok(Option::deserialize(d)?.unwrap_or_default())
}
