//! Finds the test programs and runs jobs.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use k8s_openapi::jiff::Timestamp;
use outrigger_tests::root;
use serde_json::Value;

use crate::jobs::{InEnvironment, Job, in_environments, listed};
use crate::matrix;
use crate::results::Record;

/// When a test that hangs is ended.
const LIMIT: Duration = Duration::from_secs(2 * 60 * 60);

/// Builds the test programs and lists the long jobs in them.
pub(crate) fn find() -> anyhow::Result<Vec<Job>> {
    let mut jobs = Vec::new();
    for (_, program) in programs("bin", &["build", "-p", "outrigger-mutants"])? {
        jobs.extend(lines_of(&program, &["list"])?.lines().map(|line| Job::mutants(program.clone(), line)));
    }
    let programs = programs("test", &["test", "-p", "outrigger-tests", "-p", "outrigger-fuzz", "--no-run"])?;
    for (binary, program) in &programs {
        let tests = listed(&lines_of(program, &["--list", "--ignored", "--format", "terse"])?);
        jobs.extend(tests.iter().map(|test| Job::test(binary, program.clone(), test)));
    }
    jobs.extend(whole(&programs, in_environments()));
    Ok(jobs)
}

/// What a program prints that lists something.
fn lines_of(program: &Path, args: &[&str]) -> anyhow::Result<String> {
    let output = Command::new(program).args(args).output().with_context(|| program.display().to_string())?;
    if !output.status.success() {
        bail!("{} {}: {}", program.display(), args.join(" "), output.status);
    }
    Ok(String::from_utf8(output.stdout)?)
}

/// Builds the test programs of the matrix and lists its jobs.
pub(crate) fn find_matrix() -> anyhow::Result<Vec<Job>> {
    let tests = matrix::BINARIES.map(|binary| ["--test", binary]);
    let arguments = [&["test", "--no-run", "-p", "outrigger-tests"], tests.as_flattened()].concat();
    Ok(whole(&programs("test", &arguments)?, matrix::in_environments()?))
}

/// Jobs that run every test of a binary. A binary that doesn't exist is named in the output and left out.
fn whole(programs: &[(String, PathBuf)], runs: Vec<InEnvironment>) -> Vec<Job> {
    let job = |run: InEnvironment| {
        let Some((_, program)) = programs.iter().find(|(name, _)| name == run.binary) else {
            println!("{}: there is no such test binary", run.binary);
            return None;
        };
        Some(Job::whole(run, program.clone()))
    };
    runs.into_iter().filter_map(job).collect()
}

/// Names and paths of the programs of a kind that cargo builds with these arguments.
fn programs(kind: &str, args: &[&str]) -> anyhow::Result<Vec<(String, PathBuf)>> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(args)
        .args(["--locked", "--message-format=json"])
        .current_dir(root())
        .stderr(Stdio::inherit())
        .output()
        .context("cargo")?;
    if !output.status.success() {
        bail!("the tests can't be built");
    }
    let text = String::from_utf8(output.stdout)?;
    Ok(text.lines().filter_map(|line| program(kind, &serde_json::from_str(line).ok()?)).collect())
}

/// The program of a kind that a message of cargo names.
fn program(kind: &str, message: &Value) -> Option<(String, PathBuf)> {
    let wanted = message["reason"] == "compiler-artifact" && message["target"]["kind"][0] == kind;
    let path = message["executable"].as_str().filter(|_| wanted)?;
    Some((message["target"]["name"].as_str()?.to_owned(), path.into()))
}

pub(crate) fn run(job: &Job, dir: &Path, commit: &str) -> anyhow::Result<Record> {
    let file: String = job.name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
    let log = dir.join(format!("{file}.log"));
    let out = File::create(&log).with_context(|| log.display().to_string())?;
    let (date, began) = (Timestamp::now(), Instant::now());
    let mut child = Command::new(&job.program)
        .args(&job.args)
        .envs(job.env.iter().cloned())
        .current_dir(root().join("tests"))
        .stdin(Stdio::null())
        .stdout(out.try_clone()?)
        .stderr(out)
        .spawn()
        .with_context(|| job.program.display().to_string())?;
    let passed = loop {
        if let Some(status) = child.try_wait()? {
            break status.success();
        }
        if began.elapsed() > LIMIT {
            child.kill()?;
            child.wait()?;
            break false;
        }
        std::thread::sleep(Duration::from_millis(100));
    };
    Ok(Record {
        test: job.name.clone(),
        date: date.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
        commit: commit.to_owned(),
        seconds: began.elapsed().as_secs_f64(),
        passed,
        log,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn programs_of_tests_are_told_from_others() {
        let message = |kind: &str, path: Value| json!({"reason": "compiler-artifact", "target": {"kind": [kind], "name": "n"}, "executable": path});
        assert_eq!(
            program("test", &message("test", json!("/p"))),
            Some(("n".to_owned(), PathBuf::from("/p")))
        );
        for other in
            [message("bin", json!("/p")), message("test", Value::Null), json!({"reason": "build-finished"})]
        {
            assert_eq!(program("test", &other), None, "{other}");
        }
    }

    #[test]
    fn a_run_records_how_it_ended_and_what_was_written() {
        let dir = tempfile::tempdir().unwrap();
        for (program, passed) in [("/bin/true", true), ("/bin/false", false)] {
            let job = Job { name: "b".into(), program: program.into(), args: Vec::new(), env: Vec::new() };
            let record = run(&job, dir.path(), "c").unwrap();
            assert_eq!((record.passed, record.test.as_str(), record.commit.as_str()), (passed, "b", "c"));
            assert!(record.log.exists());
        }
    }
}
