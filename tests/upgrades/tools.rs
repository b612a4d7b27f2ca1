//! The tools that compare: their configuration, and how they are called.

use std::path::PathBuf;
use std::process::Command;

use outrigger_tests::control_plane::tool;
use prost::Message;
use prost_types::FileDescriptorSet;
use serde_json::Value;
use tempfile::TempDir;

/// Descriptions may change, and enums may grow. All else that crdify doesn't know is a break.
const CRDIFY: &str = r#"{"unhandledEnforcement": "Error", "validations": [
    {"name": "description", "enforcement": "None"},
    {"name": "enum", "enforcement": "Error", "configuration": {"additionPolicy": "Allow"}}]}"#;

/// All that generated code, JSON and the wire rely on. A field may go when its number and its name are reserved.
const BUF: &str =
    r#"{"version": "v2", "breaking": {"use": ["PACKAGE", "WIRE_JSON"], "except": ["FIELD_NO_DELETE"]}}"#;

/// What crdify finds between two definitions: version and path, and what.
pub(crate) fn crdify(old: &Value, new: &Value) -> Vec<String> {
    let dir = tempfile::tempdir().unwrap();
    let config = file(&dir, "config.yaml", CRDIFY.as_bytes());
    let [old, new] = [("old.json", old), ("new.json", new)]
        .map(|(name, crd)| format!("file://{}", file(&dir, name, crd.to_string().as_bytes()).display()));
    let mut command = Command::new(tool("crdify").unwrap());
    let output = command.arg("--config").arg(config).args(["-o", "json", &old, &new]).output().unwrap();
    let report = String::from_utf8(output.stdout).unwrap();
    let report: Value = serde_json::from_str(&report)
        .unwrap_or_else(|e| panic!("{e}: {report}{}", String::from_utf8_lossy(&output.stderr)));
    let mut found = Vec::new();
    errors(&report["crdValidation"], "", &mut found);
    for (version, paths) in report["sameVersionValidation"].as_object().into_iter().flatten() {
        for (path, results) in paths.as_object().into_iter().flatten() {
            errors(results, &format!("{version} {path}: "), &mut found);
        }
    }
    // It also compares the served versions of a definition with each other, and exits with 1 for these alone.
    assert!(found.is_empty() || !output.status.success());
    found
}

fn errors(results: &Value, at: &str, found: &mut Vec<String>) {
    let all = results.as_array().into_iter().flatten();
    let errors = all.flat_map(|result| result["errors"].as_array().into_iter().flatten());
    found.extend(errors.map(|error| format!("{at}{}", error.as_str().unwrap())));
}

/// What `buf breaking` finds between two interfaces.
pub(crate) fn buf(old: &FileDescriptorSet, new: &FileDescriptorSet) -> Vec<String> {
    let dir = tempfile::tempdir().unwrap();
    let [old, new] =
        [("old.binpb", old), ("new.binpb", new)].map(|(name, set)| file(&dir, name, &set.encode_to_vec()));
    let mut command = Command::new(tool("buf").unwrap());
    command.arg("breaking").arg(new).arg("--against").arg(old).args([
        "--config",
        BUF,
        "--error-format",
        "json",
    ]);
    // It keeps a cache in the home directory otherwise.
    let output = command.env("BUF_CACHE_DIR", dir.path()).output().unwrap();
    let report = String::from_utf8(output.stdout).unwrap();
    let found: Vec<Value> = report.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let failed = || String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.success(), found.is_empty(), "{}", failed());
    found.iter().map(|one| one["message"].as_str().unwrap().to_owned()).collect()
}

/// Writes a file of a directory, and returns its path.
fn file(dir: &TempDir, name: &str, content: &[u8]) -> PathBuf {
    let path = dir.path().join(name);
    std::fs::write(&path, content).unwrap();
    path
}
