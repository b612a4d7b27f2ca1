//! The control plane itself: several at once, and nothing left behind.

use std::collections::HashMap;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use outrigger_tests::control_plane::build;
use outrigger_tests::outrigger::Outrigger;
use outrigger_tests::{eventually, holds};
use serde_json::Value;

/// A control plane beside the one that the other tests use.
fn start(dir: &Path, assets: Option<&Path>) -> (Child, Value) {
    let mut command = Command::new(build().unwrap());
    command.args(["up", "--until-stdin-eof", "--clusters=infra", "--dir"]).arg(dir);
    if let Some(assets) = assets {
        command.env("KUBEBUILDER_ASSETS", assets);
    }
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let state: Value = serde_json::from_str(&line).unwrap();
    assert_eq!(state["ready"], true, "{state}");
    (child, state)
}

/// Waits until none of the processes exists.
async fn gone(state: &Value) {
    let pids: HashMap<String, u32> = serde_json::from_value(state["pids"].clone()).unwrap();
    assert!(pids.len() >= 5, "{pids:?}");
    eventually("every process has ended", || async {
        let left: Vec<_> = pids.iter().filter(|(_, pid)| runs(**pid)).map(|(name, _)| name).collect();
        holds(left.is_empty(), format!("{left:?}"))
    })
    .await;
}

/// Whether a process runs; one that has ended and waits for its parent to ask does not.
fn runs(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(')').next().is_some_and(|rest| !rest.trim().is_empty() && !rest.trim().starts_with('Z'))
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "long"]
async fn nothing_is_left_of_a_control_plane_whose_supervisor_is_killed_or_whose_owner_has_ended() {
    // Two at once: the shared one goes on.
    let shared = Outrigger::shared().await;
    let dir = shared.plane.dir.join("others");

    let (mut killed, state) = start(&dir.join("killed"), None);
    killed.kill().unwrap();
    killed.wait().unwrap();
    gone(&state).await;

    // When its owner ends, however that happens, the kernel closes the owner's end of the pipe.
    let (mut orphan, state) = start(&dir.join("orphan"), None);
    drop(orphan.stdin.take());
    gone(&state).await;
    assert!(orphan.wait().unwrap().success());
    shared.ready().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "long"]
async fn a_control_plane_that_is_there_already_is_used() {
    let shared = Outrigger::shared().await;
    let dir = shared.plane.dir.join("assets");
    std::fs::create_dir_all(&dir).unwrap();
    // Under another program's name it is that program, so links to it are such a directory.
    for program in ["kube-apiserver", "etcd"] {
        symlink(build().unwrap(), dir.join(program)).unwrap();
    }
    let (mut child, state) = start(&dir.join("run"), Some(&dir));
    let pid = state["pids"]["infra/kube-apiserver"].as_u64().unwrap();
    let command = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap();
    assert!(command.starts_with(&dir.join("kube-apiserver").display().to_string()), "{command}");
    drop(child.stdin.take());
    gone(&state).await;
    child.wait().unwrap();

    let old = dir.join("old");
    std::fs::create_dir_all(&old).unwrap();
    std::fs::write(old.join("kube-apiserver"), "#!/bin/sh\necho Kubernetes v1.33.1\n").unwrap();
    Command::new("chmod").arg("+x").arg(old.join("kube-apiserver")).status().unwrap();
    // Another thread's fork may hold the script open for writing for a moment.
    tokio::time::sleep(Duration::from_millis(200)).await;
    let output = Command::new(build().unwrap())
        .args(["up", "--dir"])
        .arg(old.join("run"))
        .env("KUBEBUILDER_ASSETS", &old)
        .output();
    let output = output.unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("1.33; 1.34 or later is needed"), "{said}");
}
