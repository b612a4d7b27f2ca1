//! What an earlier version has left in clusters and says on the wire stays good: definitions of custom resources and the
//! gRPC interface as they are now, compared with those of each version that is recorded beside this file. `tests/deploy` and
//! `tests/rolling` upgrade the installation of such a version.
//!
//! A version that is released is recorded once, with the commit that it was made from, and its record never changes:
//! `cargo test -p outrigger-tests --test suites upgrades:: -- --ignored record`.
//!
//! `crdify` and `buf breaking` compare. What they don't see is compared in [`crd`] and [`proto`], whose heads say what that is.

mod crd;
mod proto;
mod tools;

use std::path::{Path, PathBuf};
use std::process::Command;

use outrigger_tests::{root, shipped};
use prost::Message;
use prost_types::FileDescriptorSet;
use serde_json::Value;

/// Where the versions are recorded.
fn records() -> PathBuf {
    root().join("tests/upgrades")
}

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

/// Changes that were meant. The earlier default of workloadBytes didn't fit into the memory of the shipped manager, and limits
/// were added. Tenants that exist keep the number that they were created with: the API server has written it into them.
///
/// All agents write one of two values as syncResult, or leave it out, and nobody else writes it: a manifest's status is dropped
/// before it is validated.
const MEANT: [&str; 3] = [
    "workloadrules.workload.universe.nvidia.com v1alpha1 ^.status.syncResult: enum constraint added when there was none \
     previously : [\"success\" \"unknown\"]",
    "tenants.outrigger.dev v1alpha1 ^.spec.limits.workloadBytes: default value changed : \"268435456\" -> \"134217728\"",
    "tenants.outrigger.dev v1alpha1 ^.spec.limits: default value changed : \"{\\\"companions\\\":10000,\\\"rules\\\":1000,\
     \\\"workloadBytes\\\":268435456,\\\"workloads\\\":100000}\" -> \"{\\\"companions\\\":10000,\\\"ruleBytes\\\":4194304,\
     \\\"ruleBytesPerSecond\\\":1048576,\\\"ruleCallsPerSecond\\\":50,\\\"rules\\\":1000,\\\"workloadBytes\\\":134217728,\
     \\\"workloads\\\":100000}\"",
];

/// Rules that are new and refuse nothing that was valid: they are about a value that no earlier version permits. `crdify` takes each rule that
/// is new for a change that it doesn't know, and doesn't name it the same way twice.
const MEANT_RULES: [&str; 1] =
    ["(self.dpuSelectionPolicy == 'SameNodeAll') == (oldSelf.dpuSelectionPolicy == 'SameNodeAll')"];

fn without_meant_rules(value: &mut Value) {
    match value {
        Value::Array(all) => {
            all.retain(|one| !one["rule"].as_str().is_some_and(|rule| MEANT_RULES.contains(&rule)));
            all.iter_mut().for_each(without_meant_rules);
        }
        Value::Object(fields) => fields.values_mut().for_each(without_meant_rules),
        _ => {}
    }
}

/// Meant changes of the gRPC interface. Version 0.1.0 names no Go package, so Go code that was generated from it got one by a flag,
/// and such a flag overrules what the file says. Two files are of one package.
const MEANT_OF_FILES: [&str; 2] = [
    "File option \"go_package\" changed from \"\" to \"outrigger.dev/proto/universe/admin/workload/v1;adminworkloadv1\".",
    "File option \"go_package\" changed from \"\" to \"outrigger.dev/proto/universe/workload/v1;workloadv1\".",
];

#[test]
fn definitions_only_grow() {
    for version in versions() {
        let old = recorded(&version);
        assert!(!old.is_empty());
        let mut new = definitions();
        new.iter_mut().for_each(without_meant_rules);
        let mut breaks = crd::breaks(&old, &new);
        breaks.retain(|found| !MEANT.contains(&found.as_str()));
        assert!(breaks.is_empty(), "since {}:\n{}", version.display(), breaks.join("\n"));
    }
}

#[test]
fn the_grpc_interface_only_grows() {
    for version in versions() {
        let old = std::fs::read(version.join("universe.binpb")).unwrap();
        let mut breaks = proto::breaks(&FileDescriptorSet::decode(&old[..]).unwrap(), &interface());
        breaks.retain(|found| !MEANT_OF_FILES.contains(&found.as_str()));
        assert!(breaks.is_empty(), "since {}:\n{}", version.display(), breaks.join("\n"));
    }
}

/// A record describes the tree of one commit. Where git has that commit, its tree has to be of the recorded version.
#[test]
fn each_record_names_its_commit() {
    for version in versions() {
        let commit = std::fs::read_to_string(version.join("commit")).unwrap();
        let commit = commit.trim_end();
        assert!(commit.len() == 40 && commit.bytes().all(|b| b.is_ascii_hexdigit()), "{commit:?}");
        let show =
            Command::new("git").args(["show", &format!("{commit}:Cargo.toml")]).current_dir(root()).output();
        // Archives of the source and shallow clones have no history.
        if let Some(shown) = show.ok().filter(|output| output.status.success()) {
            let number = version.file_name().unwrap().to_string_lossy().into_owned();
            let manifest = String::from_utf8(shown.stdout).unwrap();
            assert!(manifest.contains(&format!("\nversion = \"{number}\"\n")), "{commit} is not of {number}");
        }
    }
}

/// What a version has shipped to be installed: the directories of manifests at its commit, as they are.
fn manifests(commit: &str) -> Option<Vec<u8>> {
    let args = ["archive", "--format=tar", commit, "deploy", "certs", "webhooks"];
    let output = Command::new("git").args(args).current_dir(root()).output().ok()?;
    output.status.success().then_some(output.stdout)
}

#[test]
fn each_record_has_the_manifests_of_its_commit() {
    for version in versions() {
        let commit = std::fs::read_to_string(version.join("commit")).unwrap();
        let mut unpack = Command::new("gzip");
        unpack.arg("-dc").arg(version.join("manifests.tar.gz"));
        let unpacked = unpack.output().unwrap();
        assert!(unpacked.status.success() && !unpacked.stdout.is_empty(), "{}", version.display());
        if let Some(expected) = manifests(commit.trim_end()) {
            assert!(expected == unpacked.stdout, "{} are not those of {commit}", version.display());
        }
    }
}

#[test]
#[ignore = "makes files of the source"]
fn record() {
    let number = env!("CARGO_PKG_VERSION");
    assert!(!number.contains('-'), "{number} is not a release");
    let head = Command::new("git").args(["rev-parse", "HEAD"]).current_dir(root()).output().unwrap();
    assert!(head.status.success(), "{}", String::from_utf8_lossy(&head.stderr));
    let version = records().join(number);
    // Who has broken something would only have to record it again.
    assert!(!version.exists(), "{}: what was released doesn't change", version.display());
    std::fs::create_dir_all(version.join("crds")).unwrap();
    for crd in outrigger_api::crds() {
        let file = version.join("crds").join(format!("{}.yaml", crd.metadata.name.as_deref().unwrap()));
        std::fs::write(file, serde_yaml::to_string(&crd).unwrap()).unwrap();
    }
    let archive = manifests("HEAD").expect("git archives HEAD");
    let packed = shipped::fed(Command::new("gzip").arg("-9n"), &archive).unwrap();
    assert!(packed.status.success());
    std::fs::write(version.join("manifests.tar.gz"), packed.stdout).unwrap();
    std::fs::write(version.join("commit"), head.stdout).unwrap();
    std::fs::write(version.join("universe.binpb"), interface().encode_to_vec()).unwrap();
}
