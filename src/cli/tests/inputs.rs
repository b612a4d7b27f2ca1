//! What the program says as a whole: its names, its version, and how commands end when an input can't be read.
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
        (&["diff", "-f", "/nowhere.yaml"], "outrigger: /nowhere.yaml: No such file"),
        (
            &[
                "diff",
                "-f",
                "../../docs/examples/rules",
                "--state",
                "../../docs/examples",
                "--send-annotation",
                "a*",
            ],
            "outrigger: --send-annotation: \"a*\": '*' is only allowed",
        ),
        (
            &["diff", "-f", "../../docs/examples/rules", "--kubeconfig", "/nowhere"],
            "outrigger: --kubeconfig: --kubeconfig /nowhere can't be read",
        ),
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

/// A directory of names under which the program is started: links to it.
fn named(name: &str) -> (tempfile::TempDir, std::path::PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let link = dir.path().join(name);
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_outrigger"), &link).unwrap();
    (dir, link)
}

fn text(program: &std::path::Path, args: &[&str]) -> String {
    let output = Command::new(program).args(args).output().unwrap();
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn the_version_names_program_commit_and_build() {
    let version = text(env!("CARGO_BIN_EXE_outrigger").as_ref(), &["--version"]);
    let rest = version.strip_prefix(concat!("outrigger ", env!("CARGO_PKG_VERSION"), " (commit ")).unwrap();
    let (commit, build) = rest.split_once(", ").unwrap();
    let is_hash = commit.len() == 12 && commit.bytes().all(|byte| byte.is_ascii_hexdigit());
    assert!(is_hash || commit == "unknown" || option_env!("OUTRIGGER_COMMIT") == Some(commit), "{version}");
    assert!(build.contains(" build for ") && build.ends_with(")\n"), "{version}");
}

#[test]
fn as_a_plugin_it_is_called_kubectl_outrigger() {
    let (_dir, plugin) = named("kubectl-outrigger");
    assert!(text(&plugin, &["--help"]).contains("\nUsage: kubectl outrigger <COMMAND>\n"));
    assert!(text(&plugin, &["check", "--help"]).contains("\nUsage: kubectl outrigger check "));
    let own = text(env!("CARGO_BIN_EXE_outrigger").as_ref(), &["check", "--help"]);
    assert!(own.contains("\nUsage: outrigger check "), "{own}");
    let (_dir, completer) = named("kubectl_complete-outrigger");
    assert!(text(&completer, &["expl"]).starts_with("explain\tExplain which rule"));
}

#[test]
fn completion_scripts_are_for_the_program() {
    for (shell, part) in
        [("bash", "complete -F _outrigger"), ("zsh", "#compdef outrigger"), ("fish", "complete -c outrigger")]
    {
        let script = text(env!("CARGO_BIN_EXE_outrigger").as_ref(), &["completion", shell]);
        assert!(script.contains(part) && script.contains("tenant-kubeconfig"), "{shell}");
    }
}

#[test]
fn every_subcommand_of_users_has_a_manual_page() {
    let dir = tempfile::tempdir().unwrap();
    let to = dir.path().to_str().unwrap();
    text(env!("CARGO_BIN_EXE_outrigger").as_ref(), &["manual", "--output-dir", to]);
    let names =
        std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let names: std::collections::BTreeSet<String> = names.collect();
    let help = text(env!("CARGO_BIN_EXE_outrigger").as_ref(), &["--help"]);
    let commands = help.split_once("\nCommands:\n").unwrap().1.split_once("\nOptions:").unwrap().0;
    let named = commands.lines().filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    let subcommands = named.filter_map(|line| line.split_whitespace().next()).filter(|name| *name != "help");
    for name in subcommands {
        assert!(names.contains(&format!("outrigger-{name}.1")), "{name}: {names:?}");
    }
    assert!(
        names.contains("outrigger-explain-audit.1") && !names.contains("outrigger-reference.1"),
        "{names:?}"
    );
    let page = std::fs::read_to_string(dir.path().join("outrigger-check.1")).unwrap();
    assert!(
        page.contains("Find faults, in files or in a cluster") && page.contains("tenant\\-kubeconfig"),
        "{page}"
    );
    assert_eq!(failure(&["manual", "--output-dir", "/nowhere"]).0, Some(1));
}

#[test]
fn a_pod_of_an_unknown_namespace_names_what_the_files_lack() {
    let dir = tempfile::tempdir().unwrap();
    let (pod, namespace) = (dir.path().join("pod.yaml"), dir.path().join("namespace.yaml"));
    std::fs::write(
        &pod,
        "{apiVersion: v1, kind: Pod, metadata: {name: p, namespace: shop}, spec: {containers: []}}",
    )
    .unwrap();
    std::fs::write(&namespace, "{apiVersion: v1, kind: Namespace, metadata: {name: shop}}").unwrap();
    let (pod, namespace) = (pod.to_str().unwrap(), namespace.to_str().unwrap());
    let (code, message) = failure(&["render", "-f", pod]);
    assert_eq!(code, Some(1));
    let expected = "Error: Pod shop/p can't be rendered: the files have no Namespace shop; ";
    assert!(message.starts_with(expected), "{message}");
    assert_eq!(failure(&["render", "-f", pod, "-f", namespace]), (Some(0), String::new()));
}
