//! `make demo`: the main job on two real clusters, step by step, by kubectl.

mod nodes;
mod pods;
mod show;
mod steps;

use std::io::Write;
use std::process::ExitCode;

use nodes::Kind;

/// Runs the demo. Exit code 1: a step failed; it says which, and where the logs are.
fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "\ndemo failed: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> anyhow::Result<()> {
    let mut arguments = std::env::args();
    let keep = std::env::args().any(|argument| argument == "--keep");
    let nodes = arguments.find_map(|argument| Some(argument.strip_prefix("--nodes=")?.to_owned()));
    let kind = nodes.map(|word| word.parse::<Kind>()).transpose()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(steps::run(kind, keep))
}
