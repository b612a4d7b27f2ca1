//! What a release consists of: the image, which is unpacked and run as a kubelet runs it, and the files that `make release` writes.
//! All of it is made from the program of profile dev, whose objects other tests have built already.

// Elsewhere all tests run the program for arm64.
#[cfg(not(target_arch = "aarch64"))]
mod arm64;
mod artifacts;
mod compiler;
mod fips;
mod image;
mod inside;
mod reproducible;

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use outrigger_tests::control_plane::remove_old;
use outrigger_tests::root;
use outrigger_tests::shipped::output;

/// The static program.
static PROGRAM: LazyLock<String> =
    LazyLock::new(|| output(script("program.sh", &["dev", &target()])).unwrap().trim().to_owned());

/// The target that programs are built for here.
fn target() -> String {
    format!("{}-unknown-linux-gnu", std::env::consts::ARCH)
}

/// What an image calls the processors of this machine.
fn architecture() -> &'static str {
    if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" }
}

/// The version of the work tree.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// A script of `deploy/`. Variables of whoever runs the tests have no effect on it.
fn script(name: &str, args: &[&str]) -> Command {
    let mut command = Command::new(root().join("deploy").join(name));
    command.args(args);
    for variable in [
        // Build scripts read it, so Cargo would compile their crates again, and all that depend on them.
        "CARGO_MANIFEST_DIR",
        "SOURCE_DATE_EPOCH",
        "FEATURES",
        "PROGRAM",
        "SIGNING_KEY",
        "SIGNING_PASSPHRASE",
        "BUILDER_ID",
        "SOURCE_URL",
        "RELEASE_URL",
        "CA_BUNDLE",
    ] {
        command.env_remove(variable);
    }
    command
}

/// An empty directory below `target/`, which is on a disk with space. Directories that all tests share are left when the process ends,
/// so the next process removes them.
fn directory() -> tempfile::TempDir {
    let below: PathBuf = root().join("target/release-test");
    std::fs::create_dir_all(&below).unwrap();
    remove_old(&below);
    let prefix = format!("{}-", std::process::id());
    tempfile::Builder::new().prefix(&prefix).tempdir_in(below).unwrap()
}

/// Standard output of a program, which has to succeed.
fn run(program: &str, args: &[&str]) -> String {
    let mut command = Command::new(program);
    // The lints of the cargo that runs this test: another compiler may have none.
    command.args(args).env_remove("RUSTC_WORKSPACE_WRAPPER");
    output(command).unwrap()
}

/// Writes a program that is this command, followed by its own arguments. It keeps its process.
fn write_script(path: &Path, command: &str) {
    std::fs::write(path, format!("#!/bin/sh\nexec {command} \"$@\"\n")).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
}
