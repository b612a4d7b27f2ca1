//! What kubectl makes of texts: `tests/yaml/judge` reads them with its code.

use std::process::Command;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use outrigger_core::yaml::{self, OF_FILES, ReadError};
use outrigger_tests::control_plane::tool;
use outrigger_tests::root;
use serde::Deserialize;
use serde_json::Value;

/// What kubectl makes of a text.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Reading {
    documents: Option<Vec<Value>>,
    objects: Option<Vec<Value>>,
}

impl Reading {
    /// The documents; `None`: it refuses the text.
    pub(crate) fn documents(&self) -> Option<Vec<Value>> {
        self.documents.as_ref().map(|documents| documents.iter().map(canonical).collect())
    }

    /// The objects; `None`: it refuses the text.
    pub(crate) fn objects(&self) -> Option<Vec<Value>> {
        self.objects.as_ref().map(|objects| objects.iter().map(canonical).collect())
    }
}

/// The readings of texts.
pub(crate) fn judge<T: AsRef<[u8]>>(texts: &[T]) -> Vec<Reading> {
    let lines: String = texts.iter().map(|text| STANDARD.encode(text) + "\n").collect();
    // It answers while it reads.
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), lines).unwrap();
    let mut command = Command::new(tool("yaml/judge").unwrap());
    let output = command.stdin(file.reopen().unwrap()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let readings: Vec<Reading> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(readings.len(), texts.len());
    readings
}

/// The documents as Outrigger reads them.
pub(crate) fn own(text: &[u8]) -> Result<Vec<Value>, ReadError> {
    let documents = yaml::documents(&yaml::decoded(text.to_vec())?, OF_FILES)?;
    Ok(documents.iter().filter(|document| !document.is_null()).map(canonical).collect())
}

/// A value whose numbers are alike if they are the same number: Go and Rust write neither large ones nor `1.0` alike.
pub(crate) fn canonical(value: &Value) -> Value {
    /// Up to here a float is the same number as the integer.
    const EXACT: u64 = 1 << f64::MANTISSA_DIGITS;
    match value {
        Value::Number(number) if number.as_i64().is_none_or(|integer| integer.unsigned_abs() < EXACT) => {
            // Adding zero removes the sign of zero.
            let number = number.as_f64().unwrap() + 0.0;
            Value::String(format!("the number {number:e}"))
        }
        Value::Array(list) => list.iter().map(canonical).collect(),
        Value::Object(object) => object.iter().map(|(key, value)| (key.clone(), canonical(value))).collect(),
        other => other.clone(),
    }
}

/// Its libraries are those of the kubectl that the control plane has.
#[test]
fn the_judge_has_the_version_of_kubectl() {
    let version = |directory: &str| {
        let text = std::fs::read_to_string(root().join("tests").join(directory).join("go.mod")).unwrap();
        let mut lines = text.lines().map(str::trim);
        lines.find_map(|line| line.strip_prefix("k8s.io/apimachinery ")).unwrap().to_owned()
    };
    assert_eq!(version("yaml/judge"), version("controlplane"));
}
