//! `make demo`: the main job on two real clusters, step by step, by kubectl.

mod steps;

use std::io::Write;
use std::process::ExitCode;

/// Runs the demo. Exit code 1: a step failed; it says which, and where the logs are.
fn main() -> ExitCode {
    let keep = std::env::args().any(|argument| argument == "--keep");
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let result = runtime.map_err(anyhow::Error::from).and_then(|runtime| runtime.block_on(steps::run(keep)));
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "\ndemo failed: {error:#}");
            ExitCode::FAILURE
        }
    }
}
