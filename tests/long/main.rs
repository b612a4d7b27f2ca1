//! `make long`: runs the tests that take longer than CI allows, each in a process of its own, and keeps their results.
//!
//! Long tests are those that the test binaries list as ignored, the jobs of [`jobs::in_environments`], and the shards of
//! mutation testing. Results are lines of JSON in `target/long/<commit>/results.jsonl`, beside the logs. What has passed on a commit
//! isn't run again, unless the work tree has changes that aren't committed.
//!
//! `make matrix` runs the jobs of [`matrix::in_environments`] instead, in the same way, and `make matrix-record` writes their results
//! into `docs/compatibility.md`.
// It is a tool for tests: its words go to the terminal.
#![allow(clippy::print_stdout, clippy::print_stderr)]

mod jobs;
mod matrix;
mod results;
mod run;

use std::path::PathBuf;
use std::process::{Command, ExitCode};

use anyhow::{Context, bail};
use clap::Parser;
use outrigger_tests::root;

use crate::jobs::{Shard, select};
use crate::results::{Results, table};

/// Runs all long tests, or those of one shard, or those with one of the words in their names.
#[derive(Debug, Parser)]
#[command(name = "long")]
struct Args {
    /// Runs shard I of N, such as 2/4.
    #[arg(long, value_name = "I/N", default_value = "1/1")]
    shard: Shard,
    /// Only names the tests.
    #[arg(long)]
    list: bool,
    /// Runs the matrix, tests on each release of Kubernetes, and not the long tests.
    #[arg(long)]
    matrix: bool,
    /// Runs nothing, and writes the matrix's results of this commit into docs/compatibility.md.
    #[arg(long, conflicts_with = "matrix")]
    record_matrix: bool,
    /// Words in the names of tests.
    #[arg(value_name = "WORD")]
    words: Vec<String>,
}

fn main() -> ExitCode {
    match long() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("long: {error:#}");
            ExitCode::from(2)
        }
    }
}

/// Runs what is asked for; whether all of it has passed, now or earlier on this commit.
fn long() -> anyhow::Result<bool> {
    let args = Args::parse();
    if args.record_matrix {
        let results = Results::open(directory(&commit()?.0, true))?;
        matrix::record(&results.read()?, &root().join("docs/compatibility.md"))?;
        return Ok(true);
    }
    let found = if args.matrix { run::find_matrix()? } else { run::find()? };
    let jobs = select(found, args.shard, &args.words);
    if args.list {
        jobs.iter().for_each(|job| println!("{}", job.name));
        return Ok(true);
    }
    let (commit, clean) = commit()?;
    let results = Results::open(directory(&commit, clean))?;
    // With changes in the work tree an earlier result says nothing.
    let earlier = if clean { results.read()? } else { Vec::new() };
    let mut all = Vec::new();
    for (n, job) in jobs.iter().enumerate() {
        let name = &job.name;
        if let Some(passed) = results::passed(&earlier, name) {
            println!("[{}/{}] {name}: passed already on {}", n + 1, jobs.len(), passed.date);
            all.push(passed.clone());
            continue;
        }
        println!("[{}/{}] {name}", n + 1, jobs.len());
        if args.matrix {
            matrix::build(job)?;
        }
        let record = run::run(job, &results.dir, &commit)?;
        if !record.passed {
            println!("    failed after {:.0} s: {}", record.seconds, record.log.display());
        }
        results.add(&record)?;
        all.push(record);
    }
    println!("\n{}", table(&all));
    println!("Results and logs: {}", results.dir.display());
    Ok(all.iter().all(|record| record.passed))
}

/// The commit of the work tree, and whether the work tree has no other changes.
fn commit() -> anyhow::Result<(String, bool)> {
    let git = |args: &[&str]| -> anyhow::Result<String> {
        let output = Command::new("git").args(args).current_dir(root()).output().context("git")?;
        if !output.status.success() {
            bail!("git {}: {}", args.join(" "), String::from_utf8_lossy(&output.stderr).trim());
        }
        Ok(String::from_utf8(output.stdout)?.trim().to_owned())
    };
    Ok((git(&["rev-parse", "HEAD"])?, git(&["status", "--porcelain"])?.is_empty()))
}

fn directory(commit: &str, clean: bool) -> PathBuf {
    let suffix = if clean { "" } else { "-changed" };
    root().join("target/long").join(format!("{commit}{suffix}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_read_and_unknown_ones_refused() {
        let args = Args::parse_from(["long", "--shard", "2/4", "restore", "--list"]);
        assert_eq!(
            (args.shard, args.list, args.words),
            ("2/4".parse().unwrap(), true, vec!["restore".to_owned()])
        );
        assert!(Args::try_parse_from(["long", "--shards", "2/4"]).is_err());
        assert!(Args::try_parse_from(["long", "--shard"]).is_err());
    }

    #[test]
    fn results_of_changed_work_trees_are_kept_apart() {
        assert_ne!(directory("c", true), directory("c", false));
    }
}
