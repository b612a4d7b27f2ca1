//! Pictures of the pages for the documentation, where `OUTRIGGER_PICTURES` is set: `make pictures`.

use std::io::Write;
use std::process::{Command, Stdio};

use outrigger_tests::browser::Browser;
use outrigger_tests::control_plane::tool;
use outrigger_tests::root;

/// Most bytes of a picture in the repository.
const MOST: usize = 100 << 10;

/// Writes a picture of the page to `docs/images`, with few colours.
pub(crate) async fn take(browser: &Browser, name: &str) {
    if std::env::var_os("OUTRIGGER_PICTURES").is_none() {
        return;
    }
    let picture = browser.picture().await;
    let mut small = Command::new(tool("pngquant").unwrap())
        .args(["--strip", "--speed=1", "64", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = small.stdin.take().unwrap();
    let writing = std::thread::spawn(move || stdin.write_all(&picture));
    let small = small.wait_with_output().unwrap();
    writing.join().unwrap().unwrap();
    assert!(small.status.success(), "pngquant: {}", small.status);
    assert!(small.stdout.len() < MOST, "{name}: {} bytes", small.stdout.len());
    std::fs::write(root().join(format!("docs/images/console-{name}.png")), small.stdout).unwrap();
}
