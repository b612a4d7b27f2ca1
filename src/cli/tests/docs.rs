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
