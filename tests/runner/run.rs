//! Finds the test programs and the jobs in them.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, bail};
use outrigger_tests::root;
use outrigger_tests::shipped::output;
use serde_json::Value;

use crate::jobs::{InEnvironment, Job, Program, SUITES, in_environments, listed, suites};
use crate::matrix;

/// The program that works on all processors without ever waiting.
const HISTORIES: &str = "histories";

/// Builds the test programs and makes the jobs of a whole run: programs of unit tests first, then the suites, and what only works when
/// fewer suites than processors are left.
pub(crate) fn find_all() -> anyhow::Result<Vec<Job>> {
    let mut jobs = Vec::new();
    let mut last = Vec::new();
    for program in programs()? {
        if program.name == SUITES {
            let suites = suites(&lines_of(&program, &["--list", "--format", "terse"])?)?;
            last.extend(suites.iter().map(|suite| Job::suite(suite, program.clone())));
        } else {
            jobs.push(Job::program(program));
        }
    }
    jobs.extend(last);
    jobs.sort_by_key(|job| job.program.name == HISTORIES);
    Ok(jobs)
}

/// Builds the test programs and lists the long jobs in them.
pub(crate) fn find_long() -> anyhow::Result<Vec<Job>> {
    let mut jobs = Vec::new();
    let programs = programs()?;
    for program in &programs {
        let tests = listed(&lines_of(program, &["--list", "--ignored", "--format", "terse"])?);
        jobs.extend(tests.iter().map(|test| Job::test(program.clone(), test)));
    }
    jobs.extend(whole(&programs, in_environments())?);
    Ok(jobs)
}

/// What a program prints that lists something.
fn lines_of(program: &Program, args: &[&str]) -> anyhow::Result<String> {
    let mut command = Command::new(&program.path);
    command.args(args);
    output(command)
}

/// Builds the suites and lists the jobs of the matrix.
pub(crate) fn find_matrix() -> anyhow::Result<Vec<Job>> {
    let programs = programs()?;
    whole(&programs, matrix::in_environments()?)
}

/// Jobs that run every test of a suite.
fn whole(programs: &[Program], runs: Vec<InEnvironment>) -> anyhow::Result<Vec<Job>> {
    let suites = programs.iter().find(|program| program.name == SUITES).context("there are no suites")?;
    Ok(runs.into_iter().map(|run| Job::whole(run, suites.clone())).collect())
}

/// Builds all test programs. Always those of the whole workspace: of fewer crates cargo chooses other features, and compiles all again.
fn programs() -> anyhow::Result<Vec<Program>> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["test", "--workspace", "--no-run", "--locked", "--message-format=json-render-diagnostics"])
        .current_dir(root())
        .stderr(Stdio::inherit())
        .output()
        .context("cargo")?;
    if !output.status.success() {
        bail!("the tests can't be built");
    }
    let text = String::from_utf8(output.stdout)?;
    Ok(text.lines().filter_map(|line| program(&serde_json::from_str(line).ok()?)).collect())
}

/// The test program that a message of cargo names.
fn program(message: &Value) -> Option<Program> {
    let path = message["executable"].as_str().filter(|_| message["profile"]["test"] == true)?;
    let manifest = Path::new(message["manifest_path"].as_str()?);
    Some(Program {
        name: message["target"]["name"].as_str()?.to_owned(),
        path: PathBuf::from(path),
        directory: manifest.parent()?.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn programs_of_tests_are_distinguished_from_others() {
        let message = |test: bool, path: Value| {
            json!({"reason": "compiler-artifact", "profile": {"test": test},
            "manifest_path": "/d/Cargo.toml", "target": {"kind": ["bin"], "name": "n"}, "executable": path})
        };
        let found = Program { name: "n".to_owned(), path: "/p".into(), directory: "/d".into() };
        assert_eq!(program(&message(true, json!("/p"))), Some(found));
        for other in
            [message(false, json!("/p")), message(true, Value::Null), json!({"reason": "build-finished"})]
        {
            assert_eq!(program(&other), None, "{other}");
        }
    }
}
