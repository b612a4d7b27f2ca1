//! Two builds of the released program.

use std::path::{Path, PathBuf};
use std::process::Command;

use outrigger_tests::root;
use outrigger_tests::shipped::output;

use crate::release::{directory, run, target};

/// Builds the program of a commit in a directory of its own, and returns its path. `OUTRIGGER_RELEASE_PROFILE` names a
/// profile that takes less time.
fn built(commit: &str, dir: &Path) -> PathBuf {
    let (source, to) = (dir.join("source"), dir.join("target"));
    let commands = format!(
        "git -C {} archive --prefix=source/ {commit} | tar -C {} -xf -",
        root().display(),
        dir.display()
    );
    run("bash", &["-c", &commands]);
    let profile = std::env::var("OUTRIGGER_RELEASE_PROFILE").unwrap_or_else(|_| "release".to_owned());
    let mut command = Command::new(source.join("deploy/program.sh"));
    command.args([profile.as_str(), &target()]).env("CARGO_TARGET_DIR", &to);
    // The archive has no git.
    command.envs([("OUTRIGGER_COMMIT", "0123456789ab"), ("SOURCE_DATE_EPOCH", "1700000000")]);
    // Those of the cargo that runs this test.
    for name in ["RUSTFLAGS", "CFLAGS"] {
        command.env_remove(name);
    }
    let program = dir.join("outrigger");
    std::fs::copy(output(command).unwrap().trim(), &program).unwrap();
    // The next build needs the space.
    std::fs::remove_dir_all(to).unwrap();
    program
}

#[test]
#[ignore = "long"]
fn builds_in_two_directories_are_bit_for_bit_the_same() {
    let (first, second) = (directory(), directory());
    // A longer path moves what follows it, if the program has it.
    let deeper = second.path().join("in/another/directory");
    std::fs::create_dir_all(&deeper).unwrap();
    // The next commit may be made while this runs.
    let commit = run("git", &["-C", root().to_str().unwrap(), "rev-parse", "HEAD"]);
    let first = std::fs::read(built(commit.trim(), first.path())).unwrap();
    let second = std::fs::read(built(commit.trim(), &deeper)).unwrap();
    assert!(first == second, "{} and {} bytes", first.len(), second.len());
    let has = |text: &str| first.windows(text.len()).any(|window| window == text.as_bytes());
    assert!(has("0123456789ab"), "the commit, to show that texts are found");
    assert!(has(".dep-v0"), "the section with the list of dependencies");
    let home = std::env::var("CARGO_HOME").or_else(|_| std::env::var("HOME")).unwrap();
    for path in [root().to_str().unwrap(), &home] {
        assert!(!has(&format!("{path}/")), "{path}");
    }
}
