//! What commands say and end with when an input can't be read.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::process::Command;

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
