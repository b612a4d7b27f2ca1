//! Runs tests: all that CI runs (`make test`), those that take longer (`make long`), and suites on each release of Kubernetes (`make matrix`).
//!
//! `runner test` runs each program of unit tests, and each suite in a process of its own, several at once while processors are idle. A
//! failure is printed at once, and all of them again at the end. Logs and results are in `target/ci`.
//!
//! `runner long` runs the tests that test programs list as ignored and the jobs of [`jobs::in_environments`], one after the other. Results are lines of JSON in `target/long/<commit>/results.jsonl`, beside the logs. What has
//! passed on a commit isn't run again, unless the work tree has changes that aren't committed. Those begin whose last success is the
//! oldest, so that several runs, each too short for all, run each of them once. `runner matrix` runs the jobs of
//! [`matrix::in_environments`] in the same way, and `runner record-matrix` writes their results into `docs/compatibility.md`.
// It is a tool for tests: its words go to the terminal.
#![allow(clippy::print_stdout, clippy::print_stderr)]

mod jobs;
mod log;
mod matrix;
mod passed;
mod pool;
mod results;
mod run;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::time::Duration;

use anyhow::{Context, bail};
use clap::{Parser, Subcommand};
use outrigger_tests::{marked, root};

use crate::jobs::{Job, Program, SUITES, Shard, select};
use crate::log::Counts;
use crate::passed::Passed;
use crate::pool::Pool;
use crate::results::{Record, Results, counts, table};

/// Runs tests and keeps their results.
#[derive(Debug, Parser)]
#[command(name = "runner")]
struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Runs every test that isn't ignored.
    Test {
        /// Runs so many programs at once at most.
        #[arg(long, default_value_t = 2)]
        most: usize,
        /// Words in the names of programs and suites; all run without one.
        #[arg(value_name = "WORD")]
        words: Vec<String>,
    },
    /// Runs the long tests.
    Long(Selection),
    /// Runs suites on each release of Kubernetes.
    Matrix(Selection),
    /// Writes the matrix's results of this commit into docs/compatibility.md.
    RecordMatrix,
    /// Writes into tests/long.jsonl on which commit each long test has passed last, and a summary into docs/reliability.md.
    RecordLong,
}

#[derive(Debug, clap::Args)]
struct Selection {
    /// Runs shard I of N, such as 2/4.
    #[arg(long, value_name = "I/N", default_value = "1/1")]
    shard: Shard,
    /// Only names the tests.
    #[arg(long)]
    list: bool,
    /// Words in the names of tests.
    #[arg(value_name = "WORD")]
    words: Vec<String>,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let result = match Args::parse().what {
        What::Test { most, words } => test(most, &words).await,
        What::Long(selection) => long(run::find_long, &selection, |_| Ok(())).await,
        What::Matrix(selection) => long(run::find_matrix, &selection, matrix::build).await,
        What::RecordMatrix => record_matrix(),
        What::RecordLong => record_long(),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("runner: {error:#}");
            ExitCode::from(2)
        }
    }
}

/// When a suite that hangs is ended: the longest takes half of it beside another one.
const LIMIT: Duration = Duration::from_secs(25 * 60);

/// The same for a long test.
const LONG_LIMIT: Duration = Duration::from_secs(2 * 60 * 60);

/// Runs all programs and suites with one of the words in their names; whether all tests have passed.
async fn test(most: usize, words: &[String]) -> anyhow::Result<bool> {
    let jobs = run::find_all()?;
    if jobs.is_empty() {
        bail!("cargo has named no test program");
    }
    let dir = root().join("target/ci/logs");
    // What an earlier run has left says nothing of this one.
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(&dir)?;
    let jobs: Vec<Job> = jobs
        .into_iter()
        .filter(|job| words.is_empty() || words.iter().any(|word| job.name.contains(word)))
        .collect();
    let (commit, _) = commit()?;
    let of_suites = jobs.iter().filter(|job| job.program.name == SUITES);
    let suites: BTreeMap<String, Program> =
        of_suites.map(|job| (job.name.clone(), job.program.clone())).collect();
    let (mut records, count) = (Vec::new(), jobs.len());
    let ended = |record: Record| {
        let Record { test, seconds, cpu, .. } = &record;
        let result = if record.passed { "passed" } else { "FAILED" };
        records.push(record.clone());
        println!(
            "[{}/{count}] {test}: {result} after {seconds:.0} s, {cpu:.0} s of processor time",
            records.len()
        );
        Ok(())
    };
    let pool = Pool { dir: &dir, commit: &commit, most, limit: LIMIT };
    let missing = pool.run(jobs, |_| Ok(()), ended).await?;
    let mut repeated = Vec::new();
    if missing.is_empty() {
        let again = |record| {
            repeated.push(record);
            Ok(())
        };
        Pool { most: 1, ..pool }.run(to_repeat(&records, &suites), |_| Ok(()), again).await?;
    }
    let text = table(&records);
    std::fs::write(root().join("target/ci/programs.txt"), &text)?;
    println!("\n{text}");
    for record in records.iter().filter(|record| !record.passed) {
        let log = std::fs::read_to_string(&record.log).unwrap_or_default();
        println!("==== {} has failed: {}\n{}\n", record.test, record.log.display(), log::failures(&log));
    }
    // Where the run has hung.
    for log in std::fs::read_dir(&dir)?.filter_map(|entry| std::fs::read_to_string(entry.ok()?.path()).ok()) {
        for test in log::unfinished(&log) {
            println!("{test} ran for more than a minute and hasn't ended");
        }
    }
    if !missing.is_empty() {
        println!("Not run to their end: {}", missing.join(", "));
    }
    for Record { test, passed, log, .. } in &repeated {
        println!("{test}: {} ({})", if *passed { "passed alone" } else { "FAILED" }, log.display());
    }
    let by_chance = !repeated.is_empty() && repeated.iter().all(|record| record.passed);
    println!("{}", tests(&records, missing.len(), if by_chance { repeated.len() } else { 0 }));
    Ok(missing.is_empty() && (by_chance || records.iter().all(|record| record.passed)))
}

/// How many failed tests of suites run once more, alone, when all others have passed. Each waits for what it expects, but on a machine
/// that is busy enough one of hundreds waits too short, which says little of the change. More than these are no chance.
const REPEATED: usize = 2;

/// The failed tests that run once more. There are none if programs of unit tests have failed, in which nothing depends on time, or a
/// suite without saying which of its tests.
fn to_repeat(records: &[Record], suites: &BTreeMap<String, Program>) -> Vec<Job> {
    let mut jobs = Vec::new();
    for record in records.iter().filter(|record| !record.passed) {
        let log = std::fs::read_to_string(&record.log).unwrap_or_default();
        let failed: Vec<&str> = log.lines().filter_map(log::failed).collect();
        let all = Counts::of(&log).is_some_and(|counts| counts.failed == failed.len());
        let Some(program) = suites.get(&record.test).filter(|_| all) else { return Vec::new() };
        jobs.extend(failed.into_iter().map(|test| Job::again(program.clone(), test)));
    }
    if jobs.len() > REPEATED { Vec::new() } else { jobs }
}

/// How many tests of all programs ended how. A program that has ended before its summary counts as one test that has failed, and so do
/// those that are missing. So many that failed have passed `again`.
fn tests(records: &[Record], missing: usize, again: usize) -> String {
    let (mut passed, mut failed, mut skipped) = (0, missing, 0);
    for record in records {
        match Counts::of(&std::fs::read_to_string(&record.log).unwrap_or_default()) {
            Some(counts) => {
                passed += counts.passed;
                failed += counts.failed;
                skipped += counts.ignored + counts.skipped;
            }
            None => failed += 1,
        }
    }
    format!("{} passed, {} failed, {skipped} skipped", passed + again, failed - again)
}

/// Runs what is selected of the jobs that are found; whether all of it has passed, now or earlier on this commit.
async fn long(
    find: fn() -> anyhow::Result<Vec<Job>>,
    selection: &Selection,
    prepare: fn(&Job) -> anyhow::Result<()>,
) -> anyhow::Result<bool> {
    let jobs = select(find()?, selection.shard, &selection.words);
    if selection.list {
        jobs.iter().for_each(|job| println!("{}", job.name));
        return Ok(true);
    }
    let (commit, clean) = commit()?;
    let results = Results::open(directory(&commit, clean))?;
    // With changes in the work tree an earlier result says nothing.
    let earlier = if clean { results.read()? } else { Vec::new() };
    let (count, mut all, mut left) = (jobs.len(), Vec::new(), Vec::new());
    for job in jobs {
        match results::passed(&earlier, &job.name) {
            Some(passed) => {
                println!("{}: passed already on {}", job.name, passed.date);
                all.push(passed.clone());
            }
            None => left.push(job),
        }
    }
    let passed = Passed::read(&root().join(passed::FILE))?;
    left.sort_by(|a, b| passed.date(&a.name).cmp(&passed.date(&b.name)));
    let mut begun = all.len();
    let begins = |job: &Job| {
        begun += 1;
        println!("[{begun}/{count}] {}", job.name);
        prepare(job)
    };
    let ended = |record: Record| {
        if !record.passed {
            println!("    failed after {:.0} s: {}", record.seconds, record.log.display());
        }
        results.add(&record)?;
        all.push(record);
        Ok(())
    };
    let missing = Pool { dir: &results.dir, commit: &commit, most: 1, limit: LONG_LIMIT }
        .run(left, begins, ended)
        .await?;
    println!("\n{}{}", table(&all), counts(&all));
    println!("Results and logs: {}", results.dir.display());
    Ok(missing.is_empty() && all.iter().all(|record| record.passed))
}

fn record_matrix() -> anyhow::Result<bool> {
    let results = Results::open(directory(&commit()?.0, true))?;
    matrix::record(&results.read()?, &root().join("docs/compatibility.md"))?;
    Ok(true)
}

fn record_long() -> anyhow::Result<bool> {
    let jobs: BTreeSet<String> = run::find_long()?.into_iter().map(|job| job.name).collect();
    let mut passed = Passed::read(&root().join(passed::FILE))?;
    for entry in std::fs::read_dir(root().join("target/long")).into_iter().flatten() {
        let dir = entry?.path();
        // What ran with changes that no commit has says nothing of a commit.
        if !dir.as_os_str().as_encoded_bytes().ends_with(CHANGED.as_bytes()) {
            passed.add(&Results::open(dir)?.read()?);
        }
    }
    passed.keep(&jobs);
    passed.write(&root().join(passed::FILE))?;
    let page = root().join("docs/reliability.md");
    let text = marked::replaced(&std::fs::read_to_string(&page)?, "long", &passed.summary(jobs.len()))?;
    std::fs::write(&page, text)?;
    jobs.iter().filter(|job| passed.date(job).is_none()).for_each(|job| println!("{job} hasn't passed yet"));
    Ok(true)
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

/// How the names of directories end whose results are of a work tree with changes.
const CHANGED: &str = "-changed";

fn directory(commit: &str, clean: bool) -> PathBuf {
    let suffix = if clean { "" } else { CHANGED };
    root().join("target/long").join(format!("{commit}{suffix}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_read_and_unknown_ones_refused() {
        let args = Args::parse_from(["runner", "long", "--shard", "2/4", "restore", "--list"]);
        let What::Long(selection) = args.what else { panic!("{args:?}") };
        assert_eq!(
            (selection.shard, selection.list, selection.words),
            ("2/4".parse().unwrap(), true, vec!["restore".to_owned()])
        );
        assert!(Args::try_parse_from(["runner", "long", "--shards", "2/4"]).is_err());
        assert!(Args::try_parse_from(["runner", "long", "--shard"]).is_err());
        assert!(Args::try_parse_from(["runner"]).is_err());
    }

    #[test]
    fn results_of_changed_work_trees_are_kept_apart() {
        assert_ne!(directory("c", true), directory("c", false));
    }

    #[test]
    fn tests_of_all_programs_are_counted_and_one_that_ended_early_has_failed() {
        let dir = tempfile::tempdir().unwrap();
        let record = |name: &str, text: &str| {
            let log = dir.path().join(name);
            std::fs::write(&log, text).unwrap();
            let (test, date, commit) = (name.to_owned(), String::new(), String::new());
            Record { test, date, commit, seconds: 1.0, cpu: 1.0, passed: true, log }
        };
        let whole = record("whole", "test result: ok. 3 passed; 0 failed; 2 ignored; 0 measured");
        assert_eq!(tests(&[whole, record("early", "aborted")], 1, 0), "3 passed, 2 failed, 2 skipped");
    }

    #[test]
    fn only_few_failed_tests_of_suites_run_again() {
        let dir = tempfile::tempdir().unwrap();
        let suite = Program { name: SUITES.to_owned(), path: "/p".into(), directory: "/d".into() };
        let suites: BTreeMap<_, _> = ["e2e", "host"].map(|name| (name.to_owned(), suite.clone())).into();
        let record = |test: &str, failed: &[&str], count: usize| {
            let log = dir.path().join(test);
            let lines: String = failed.iter().map(|test| format!("test {test} ... FAILED\n")).collect();
            std::fs::write(&log, format!("{lines}test result: FAILED. 5 passed; {count} failed; 0 ignored"))
                .unwrap();
            let (test, date, commit) = (test.to_owned(), String::new(), String::new());
            Record { test, date, commit, seconds: 1.0, cpu: 1.0, passed: count == 0, log }
        };
        let again = |records: &[Record]| {
            let jobs = to_repeat(records, &suites).into_iter();
            jobs.map(|job| job.args.join(" ")).collect::<Vec<_>>()
        };
        let one = record("e2e", &["e2e::a"], 1);
        assert_eq!(again(&[one.clone(), record("host", &[], 0)]), ["--exact e2e::a"]);
        assert_eq!(again(&[one.clone(), record("outrigger_core", &["b"], 1)]), Vec::<String>::new());
        let interrupted = record("host", &["host::b"], 2);
        assert_eq!(again(&[one, interrupted]), Vec::<String>::new());
        assert_eq!(again(&[record("e2e", &["e2e::a", "e2e::b", "e2e::c"], 3)]), Vec::<String>::new());
        assert_eq!(tests(&[record("e2e", &["e2e::a"], 1)], 0, 1), "6 passed, 0 failed, 0 skipped");
    }
}
