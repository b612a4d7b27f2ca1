//! The patches of the webhook, applied by the library that the API server applies them with.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use outrigger_fuzz::{Patched, Target, run};
use serde_json::Value;

/// Has the API server's patcher apply so many patches. It compares what it makes of them with what they made here.
fn patches_are_the_same(count: usize) {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let built = Command::new(tests.join("patches/build.sh")).output().unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    let program = String::from_utf8(built.stdout).unwrap();
    let mut patches = (0..).filter_map(|seed| run(Target::Reviews, seed).unwrap().patch).take(count);
    let mut child =
        Command::new(program.trim()).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    let first = patches.next().unwrap();
    let wrong = Patched { patched: Value::Null, ..*first };
    // The first one is wrong on purpose.
    for patch in std::iter::once(Box::new(wrong)).chain(patches) {
        writeln!(input, "{}", serde_json::to_string(&patch).unwrap()).unwrap();
    }
    drop(input);
    let output = child.wait_with_output().unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), format!("{count} patches, 1 differ\n"));
}

#[test]
fn the_api_servers_patcher_makes_the_same_of_500_patches() {
    patches_are_the_same(500);
}

#[test]
#[ignore = "long"]
fn the_api_servers_patcher_makes_the_same_of_20000_patches() {
    patches_are_the_same(20_000);
}
