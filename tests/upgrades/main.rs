//! What an earlier version has left in clusters and says on the wire stays good: definitions of custom resources and the
//! gRPC interface as they are now, compared with those of each version that is recorded beside this file.
//!
//! A version that is released is recorded once, and its record never changes:
//! `cargo test -p outrigger-tests --test upgrades -- --ignored record`.
// Helpers of tests fail by panicking, as tests do.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod crd;
mod proto;
mod schema;
mod tables;

use std::path::{Path, PathBuf};

use outrigger_tests::{root, shipped};
use prost::Message;
use prost_types::FileDescriptorSet;
use serde_json::Value;

/// Where the versions are recorded.
fn records() -> PathBuf {
    root().join("tests/upgrades")
}

/// Each recorded version's directory.
fn versions() -> Vec<PathBuf> {
    let entries = std::fs::read_dir(records()).unwrap().map(|entry| entry.unwrap().path());
    let mut versions: Vec<PathBuf> = entries.filter(|path| path.is_dir()).collect();
    versions.sort();
    assert!(!versions.is_empty());
    versions
}

/// The definitions as they are now.
fn definitions() -> Vec<Value> {
    outrigger_api::crds().iter().map(|crd| serde_json::to_value(crd).unwrap()).collect()
}

/// The definitions of a recorded version.
fn recorded(version: &Path) -> Vec<Value> {
    let files = std::fs::read_dir(version.join("crds")).unwrap().map(|entry| entry.unwrap().path());
    files.flat_map(|file| shipped::objects(&std::fs::read_to_string(file).unwrap()).unwrap()).collect()
}

/// The gRPC interface as it is now, without comments.
fn interface() -> FileDescriptorSet {
    let mut set = FileDescriptorSet::decode(outrigger_proto::DESCRIPTORS).unwrap();
    for file in &mut set.file {
        file.source_code_info = None;
    }
    set
}

#[test]
fn definitions_only_grow() {
    for version in versions() {
        let old = recorded(&version);
        assert!(!old.is_empty());
        let breaks = crd::breaks(&old, &definitions());
        assert!(breaks.is_empty(), "since {}:\n{}", version.display(), breaks.join("\n"));
    }
}

#[test]
fn the_grpc_interface_only_grows() {
    for version in versions() {
        let old = std::fs::read(version.join("universe.binpb")).unwrap();
        let breaks = proto::breaks(&FileDescriptorSet::decode(&old[..]).unwrap(), &interface());
        assert!(breaks.is_empty(), "since {}:\n{}", version.display(), breaks.join("\n"));
    }
}

#[test]
#[ignore = "makes files of the source"]
fn record() {
    let version = records().join(env!("CARGO_PKG_VERSION"));
    // Who has broken something would only have to record it again.
    assert!(!version.exists(), "{}: what was released doesn't change", version.display());
    std::fs::create_dir_all(version.join("crds")).unwrap();
    for crd in outrigger_api::crds() {
        let file = version.join("crds").join(format!("{}.yaml", crd.metadata.name.as_deref().unwrap()));
        std::fs::write(file, serde_yaml::to_string(&crd).unwrap()).unwrap();
    }
    std::fs::write(version.join("universe.binpb"), interface().encode_to_vec()).unwrap();
}
