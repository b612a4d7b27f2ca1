//! The oldest Rust that builds Outrigger: `rust-version` of the workspace.

use outrigger_tests::root;

use crate::release::{directory, run};

/// The version, which each member of the workspace inherits.
const OLDEST: &str = env!("CARGO_PKG_RUST_VERSION");

/// Whoever builds the image builds with it, so that a newer one isn't needed by accident.
#[test]
fn it_is_the_one_that_pages_name_and_images_are_built_with() {
    for (file, words) in [
        ("README.md", format!("Rust {OLDEST} or later")),
        ("docs/quickstart.md", format!("Rust {OLDEST} or later")),
        ("deploy/Dockerfile", format!("FROM rust:{OLDEST}-slim-")),
    ] {
        let text = std::fs::read_to_string(root().join(file)).unwrap();
        assert!(text.contains(&words), "{file} doesn't contain {words:?}");
    }
}

/// clippy's `incompatible_msrv` knows which functions are too new. It doesn't know what the language itself learned later.
#[test]
#[ignore = "long"]
fn it_compiles_everything() {
    run("rustup", &["toolchain", "install", OLDEST, "--profile", "minimal"]);
    let (source, target) = (root().join("Cargo.toml"), directory());
    let (source, target) = (source.display(), target.path().display());
    let toolchain = format!("+{OLDEST}");
    let (source, target) = (format!("--manifest-path={source}"), format!("--target-dir={target}"));
    run(
        "cargo",
        &[&toolchain, "check", "--locked", "--quiet", "--workspace", "--all-targets", &source, &target],
    );
}
