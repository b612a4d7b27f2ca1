//! The program for arm64, which is built here and run under qemu.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use outrigger_tests::control_plane::ControlPlane;
use outrigger_tests::outrigger::{Outrigger, binary};
use outrigger_tests::root;
use outrigger_tests::shipped::output;
use outrigger_tests::tenant::Tenant;

use crate::e2e::escape::pods::none_made_by_hand_gets_out;
use crate::release::inside::every_subcommand_starts;
use crate::release::{directory, run, script, write_script};

const TARGET: &str = "aarch64-unknown-linux-gnu";
const QEMU: &str = "qemu-aarch64-static";

/// The released program, built with the optimization of benches, which takes less time.
static PROGRAM: LazyLock<PathBuf> = LazyLock::new(|| {
    if Command::new(QEMU).arg("--version").output().is_err() {
        run(root().join("tests/debian.sh").to_str().unwrap(), &["qemu-user-static"]);
    }
    output(script("program.sh", &["measured", TARGET])).unwrap().trim().into()
});

/// Writes a program that runs it, with these arguments of qemu.
fn emulated(dir: &Path, flags: &str) -> PathBuf {
    let program = dir.join("outrigger");
    write_script(&program, &format!("{QEMU} {flags} '{}'", PROGRAM.display()));
    program
}

/// Also on a kernel whose pages are as large as any on arm64: the allocator is built for them.
#[test]
#[ignore = "long"]
fn every_subcommand_starts_and_writes_the_same_as_on_this_machine() {
    let dir = directory();
    let program = emulated(dir.path(), "-p 65536");
    let program = program.to_str().unwrap();
    every_subcommand_starts(program);
    let here = binary().unwrap();
    let here = here.to_str().unwrap();
    for args in [["crd"].as_slice(), &["completion", "bash"]] {
        let expected = run(here, args);
        assert!(expected.len() > 1000 && run(program, args) == expected, "{args:?}");
    }
    let [ours, theirs] = [(here, "here"), (program, "there")].map(|(program, name)| {
        let to = dir.path().join(name);
        run(program, &["webhooks", "--output-dir", to.to_str().unwrap()]);
        to.to_str().unwrap().to_owned()
    });
    assert_eq!(run("diff", &["--recursive", &ours, &theirs]), "");
}

#[test]
#[ignore = "long"]
fn unit_tests_of_the_domain_pass() {
    LazyLock::force(&PROGRAM);
    let rustc = run(root().join("tests/cross/build.sh").to_str().unwrap(), &[]);
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(root()).args(["test", "--locked", "--quiet", "--package", "outrigger-core", "--lib"]);
    cargo.args(["--target", TARGET, "--target-dir", "target/arm64"]);
    // Lints are those of another compiler.
    cargo.env_remove("RUSTC_WORKSPACE_WRAPPER").env("RUSTC", rustc.trim());
    for (name, value) in
        [("LINKER", "aarch64-linux-gnu-gcc"), ("RUSTFLAGS", "-Ctarget-feature=+crt-static"), ("RUNNER", QEMU)]
    {
        cargo.env(format!("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_{name}"), value);
    }
    let printed = output(cargo).unwrap();
    let passed = printed.split_once("test result: ok. ").and_then(|(_, rest)| rest.split_once(" passed"));
    assert!(passed.unwrap().0.parse::<usize>().unwrap() > 300, "{printed}");
}

/// The API server asks its webhook for every way out of a tenant that a Pod can hold.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "long"]
async fn an_api_server_gets_the_same_answers_and_a_workload_its_companion() {
    let dir = directory();
    let mut outrigger = Outrigger::new(ControlPlane::start().unwrap()).unwrap();
    outrigger.binary = emulated(dir.path(), "");
    let o = outrigger.started().await.unwrap().of_one_test();
    let tenant = Tenant::with_rule_only(*o, "blue").await;
    tenant.start_agent(&[]);
    tenant.web("w").await;
    tenant.companion().await;
    none_made_by_hand_gets_out(Tenant::without_agent(*o, "byuser", &[("a", 1)]).await).await;
}
