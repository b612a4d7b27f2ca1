//! Finds the commit that `outrigger --version` names: `OUTRIGGER_COMMIT` if it is set for the build, else git's, else `unknown`.
//!
//! Times aren't recorded, so that two builds of a commit are the same.

use std::process::Command;

fn main() {
    println!("cargo::rerun-if-env-changed=OUTRIGGER_COMMIT");
    println!("cargo::rerun-if-changed=build.rs");
    let given = std::env::var("OUTRIGGER_COMMIT").ok().filter(|commit| !commit.is_empty());
    let commit = given.or_else(of_git).unwrap_or_else(|| "unknown".to_owned());
    println!("cargo::rustc-env=OUTRIGGER_BUILD_COMMIT={commit}");
    // Whoever has to prove which cryptography runs reads it from the version.
    let cryptography = if std::env::var_os("CARGO_FEATURE_FIPS").is_some() { ", FIPS" } else { "" };
    println!("cargo::rustc-env=OUTRIGGER_BUILD_CRYPTOGRAPHY={cryptography}");
    for name in ["PROFILE", "TARGET"] {
        println!("cargo::rustc-env=OUTRIGGER_BUILD_{name}={}", std::env::var(name).unwrap_or_default());
    }
}

/// The commit of the work tree, if git knows this file: sources without their history may lie in another project's work tree.
fn of_git() -> Option<String> {
    git(&["ls-files", "--error-unmatch", "build.rs"])?;
    // This file changes with each commit and each checkout.
    let log = git(&["rev-parse", "--git-path", "logs/HEAD"])?;
    println!("cargo::rerun-if-changed={log}");
    git(&["rev-parse", "--short=12", "HEAD"])
}

fn git(args: &[&str]) -> Option<String> {
    let output = Command::new("git").args(args).output().ok().filter(|output| output.status.success())?;
    let text = String::from_utf8(output.stdout).ok()?.trim().to_owned();
    (!text.is_empty()).then_some(text)
}
