//! The unit tests of a crate, run with a fault.

use std::collections::BTreeMap;
use std::process::{Command, Stdio};

use outrigger_core::fault::VARIABLE;
use serde_json::Value;

use super::{FAULTS, Fault};

/// The programs with the unit tests of the crates that have faults.
#[derive(Debug)]
pub struct Units {
    programs: BTreeMap<&'static str, String>,
}

/// Builds the unit tests of all crates that have faults, with the switches.
///
/// # Errors
/// When one can't be built.
pub fn build() -> std::io::Result<Units> {
    let mut parts: Vec<&str> = FAULTS.iter().map(|fault| fault.part).collect();
    parts.sort_unstable();
    parts.dedup();
    let mut command = Command::new(std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned()));
    command.args(["test", "--locked", "--no-run", "--lib", "--message-format=json"]);
    command.args(["--features", "outrigger-core/faults"]);
    command.args(parts.iter().flat_map(|part| ["-p".to_owned(), format!("outrigger-{part}")]));
    let built = command.stderr(Stdio::inherit()).output()?;
    if !built.status.success() {
        return Err(std::io::Error::other("the unit tests can't be built"));
    }
    let text = String::from_utf8_lossy(&built.stdout);
    let messages = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let tests = messages.filter(|message| message["profile"]["test"] == true);
    let program = |message: Value| {
        let name = message["target"]["name"].as_str()?.strip_prefix("outrigger_")?.to_owned();
        let part = parts.iter().find(|part| **part == name)?;
        Some((*part, message["executable"].as_str()?.to_owned()))
    };
    Ok(Units { programs: tests.filter_map(program).collect() })
}

impl Units {
    /// The unit tests of the fault's crate that fail with it, or that the tests end otherwise.
    ///
    /// # Errors
    /// When they can't be run.
    pub fn find(&self, fault: &Fault) -> std::io::Result<Vec<String>> {
        let program = self.programs.get(fault.part).ok_or_else(|| std::io::Error::other("no unit tests"))?;
        // A test that doesn't end doesn't hold: what it waits for never comes.
        let mut command = Command::new("timeout");
        let folder = format!("{}/../../src/{}", env!("CARGO_MANIFEST_DIR"), fault.part);
        command.args(["300", program]).current_dir(folder).env(VARIABLE, fault.name);
        let output = command
            .env("RUST_BACKTRACE", "0")
            .env("PROPTEST_DISABLE_FAILURE_PERSISTENCE", "true")
            .output()?;
        let text = String::from_utf8_lossy(&output.stdout);
        let failed = text.lines().filter_map(|line| line.strip_prefix("test ")?.strip_suffix(" ... FAILED"));
        let mut failed: Vec<String> = failed.map(str::to_owned).collect();
        if failed.is_empty() && !output.status.success() {
            failed.push("the tests don't end".to_owned());
        }
        Ok(failed)
    }
}
