//! The commands of the documentation, and what they print.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::path::Path;
use std::process::Command;

/// Every `$ command` of a page's console blocks, with the output that the page shows.
fn sessions(page: &str) -> Vec<(String, String)> {
    let mut sessions: Vec<(String, String)> = Vec::new();
    for block in page.split("```console\n").skip(1) {
        for line in block.split("```").next().unwrap().lines() {
            match line.strip_prefix("$ ") {
                Some(command) => sessions.push((command.to_owned(), String::new())),
                None => {
                    let (_, output) = sessions.last_mut().expect("a block begins with a command");
                    output.push_str(line);
                    output.push('\n');
                }
            }
        }
    }
    sessions
}

fn is_true(page: &str) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let text = std::fs::read_to_string(root.join("docs").join(page)).unwrap();
    let bin = Path::new(env!("CARGO_BIN_EXE_outrigger")).parent().unwrap();
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    let sessions = sessions(&text);
    assert!(!sessions.is_empty(), "{page} has no commands");
    for (command, expected) in sessions {
        let output = Command::new("bash")
            .args(["-c", &format!("({command}) 2>&1")])
            .current_dir(&root)
            .env("PATH", &path)
            .output()
            .unwrap();
        let got = String::from_utf8_lossy(&output.stdout);
        assert_eq!(got, expected, "{page}: {command}");
    }
}

#[test]
fn explain() {
    is_true("explain.md");
}

#[test]
fn the_guide_for_tenants() {
    is_true("tenant-guide.md");
}

#[test]
fn check() {
    is_true("check.md");
}

#[test]
fn claims() {
    is_true("claims.md");
}

#[test]
fn offline() {
    is_true("offline.md");
}

/// The first line of standard error and the exit code.
fn failure(args: &[&str]) -> (Option<i32>, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_outrigger")).args(args).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).lines().next().unwrap_or_default().to_owned();
    (output.status.code(), text)
}

#[test]
fn an_input_that_cannot_be_read_is_exit_code_2() {
    for (args, message) in [
        (&["review", "-f", "/nowhere.yaml"][..], "outrigger: /nowhere.yaml: No such file"),
        (&["review", "-f", "-"], "outrigger: --filename -: standard input has the reviews"),
        (&["render", "-f", "/nowhere.yaml"], "outrigger: /nowhere.yaml: No such file"),
        (&["render"], "outrigger: --filename: has no Pod to render"),
        (&["test", "/nowhere"], "outrigger: /nowhere: No such file"),
        (&["explain", "-f", "/nowhere.yaml"], "outrigger: /nowhere.yaml: No such file"),
        (&["check", "-f", "/nowhere.yaml"], "outrigger: /nowhere.yaml: No such file"),
        (&["claims", "-f", "/nowhere.yaml"], "outrigger: /nowhere.yaml: No such file"),
        (
            &["claims", "-f", "../../docs/examples/claims", "--tenant", "red"],
            "outrigger: --tenant: there is no tenant red; there are blue",
        ),
        (
            &["explain", "--kubeconfig", "/nowhere"],
            "outrigger: --kubeconfig: --kubeconfig /nowhere can't be read",
        ),
    ] {
        let (code, text) = failure(args);
        assert_eq!(code, Some(2), "{args:?}: {text}");
        assert!(text.starts_with(message), "{args:?}: {text}");
    }
}
