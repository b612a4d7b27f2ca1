//! The image, run: its user, its root, which is read-only, and nothing else.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use outrigger_tests::control_plane::ControlPlane;
use outrigger_tests::outrigger::{Outrigger, get};
use outrigger_tests::tenant::Tenant;
use outrigger_tests::{eventually, holds, root};

use crate::release::image::IMAGE;
use crate::release::{directory, run, write_script};

/// Unpacks the image into a directory, and writes a program that runs it with `shared` visible inside. `hosts` is its /etc/hosts.
fn unpacked(dir: &Path, shared: &Path, hosts: &str) -> PathBuf {
    let (image, program) = (dir.join("image"), dir.join("outrigger.sh"));
    for path in [&image, &dir.join("image.run")] {
        std::fs::create_dir_all(path).unwrap();
    }
    run("tar", &["-C", image.to_str().unwrap(), "-xzf", IMAGE.layer.to_str().unwrap()]);
    std::fs::write(shared.join("hosts"), hosts).unwrap();
    let inside = root().join("tests/release/inside.sh");
    let text = format!("'{}' '{}' '{}'", inside.display(), image.display(), shared.display());
    write_script(&program, &text);
    program
}

/// The words of each subcommand, the hidden ones too, by what the completions of bash call it. These say of each which one it belongs to
/// and what it is called: `outrigger__subcmd__explain,audit)`, and in the next line `cmd="outrigger__subcmd__explain__subcmd__audit"`.
fn subcommands(script: &str) -> BTreeMap<&str, Vec<&str>> {
    let lines: Vec<&str> = script.lines().map(str::trim).collect();
    let mut all = BTreeMap::from([("outrigger", Vec::new())]);
    for pair in lines.windows(2) {
        let (Some((parent, name)), Some(called)) = (
            pair[0].strip_suffix(')').and_then(|case| case.split_once(',')),
            pair[1].strip_prefix("cmd=\"").and_then(|rest| rest.strip_suffix('"')),
        ) else {
            continue;
        };
        if let Some(words) = all.get(parent) {
            let words = [words.as_slice(), &[name]].concat();
            all.insert(called, words);
        }
    }
    all
}

#[test]
fn every_subcommand_starts_inside() {
    let dir = directory();
    let program = unpacked(dir.path(), dir.path(), "");
    every_subcommand_starts(program.to_str().unwrap());
}

/// Asks a program for its version, and each of its subcommands for its help.
pub(crate) fn every_subcommand_starts(program: &str) {
    assert!(run(program, &["--version"]).starts_with(&format!("outrigger {} (", crate::release::VERSION)));
    let script = run(program, &["completion", "bash"]);
    let commands: Vec<Vec<&str>> = subcommands(&script)
        .into_values()
        .filter(|words| !words.is_empty() && !words.contains(&"help"))
        .collect();
    assert!(commands.len() > 12, "{commands:?}");
    for words in commands {
        let help = run(program, &[&words[..], &["--help"]].concat());
        assert!(help.contains(&format!("Usage: outrigger {}", words.join(" "))), "{words:?}: {help}");
    }
}

#[test]
fn its_root_is_read_only() {
    let dir = directory();
    let program = unpacked(dir.path(), dir.path(), "");
    let to = |place: &str| Command::new(&program).args(["crd", "--output-dir", place]).output().unwrap();
    for place in ["/", "/etc"] {
        let error = String::from_utf8(to(place).stderr).unwrap();
        assert!(error.contains("Read-only file system"), "{place}: {error}");
    }
    // A volume can be written.
    assert!(to(dir.path().to_str().unwrap()).status.success());
}

/// From a Pod of a tenant to its companion, and each part alive. The agent finds the manager by a name: the resolver of a
/// static program works without files of the machine.
#[tokio::test(flavor = "multi_thread")]
async fn webhook_manager_and_agent_run_from_the_image() {
    const NAME: &str = "api-gateway.local";
    let dir = directory();
    // It is built first: a control plane that waits for that costs as much as one that is used.
    LazyLock::force(&IMAGE);
    let plane = ControlPlane::start().unwrap();
    let program = unpacked(dir.path(), &plane.dir, &format!("127.0.0.1 {NAME}\n"));
    let mut outrigger = Outrigger::new(plane).unwrap();
    outrigger.binary = program;
    let o = outrigger.started().await.unwrap().of_one_test();
    let tenant = Tenant::with_rule_only(*o, "blue").await;
    let manager = format!("--manager-address=https://{NAME}:{}", o.grpc_port);
    let agent = tenant.start_agent_with_admin(&[manager]);
    tenant.web("w").await;
    tenant.companion().await;
    for (part, port) in [("webhook", o.webhook_admin), ("manager", o.manager_admin), ("agent", agent)] {
        eventually(&format!("{part} is alive"), || async {
            let (status, body) = get(port, "/livez").await?;
            holds(status == 200, body)
        })
        .await;
    }
}
