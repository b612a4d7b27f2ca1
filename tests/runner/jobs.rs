//! What there is to run, and which part of it a shard runs.

use std::path::PathBuf;
use std::str::FromStr;

use anyhow::{Context, bail};
use outrigger_tests::scenarios::SCENARIOS;

/// The program with the suites, by its name in `Cargo.toml`.
pub(crate) const SUITES: &str = "suites";

/// The suites that take longest, and so begin first: what is left over at the end keeps few processors busy.
///
/// Those that mostly wait (`rack`, `restarts`, `certificates`, `faults`, `console`) alternate with those that work.
const FIRST: [&str; 13] = [
    "rack",
    "e2e",
    "restarts",
    "abuse",
    "certificates",
    "docs",
    "faults",
    "deploy",
    "release",
    "crash",
    "console",
    "rolling",
    "boot",
];

/// A suite that is run as a whole with something set in its environment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct InEnvironment {
    /// The suite: a module of the program.
    pub(crate) suite: &'static str,
    /// The variable that is set for it, and its value.
    pub(crate) env: (&'static str, String),
}

/// Long runs that need an environment of their own: all of the crash matrix, by its scenarios.
pub(crate) fn in_environments() -> Vec<InEnvironment> {
    let of =
        |scenario: &&str| InEnvironment { suite: "crash", env: ("OUTRIGGER_CRASH", (*scenario).to_owned()) };
    SCENARIOS.iter().map(of).collect()
}

/// Ignored tests that are no long tests: they write files of the source.
pub(crate) const WRITERS: &[&str] = &["record"];

/// A test program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Program {
    /// Its name in `Cargo.toml`.
    pub(crate) name: String,
    pub(crate) path: PathBuf,
    /// The directory of its crate.
    pub(crate) directory: PathBuf,
}

/// One process to run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Job {
    /// Its name in results, which is the same in every run.
    pub(crate) name: String,
    pub(crate) program: Program,
    pub(crate) args: Vec<String>,
    pub(crate) env: Vec<(String, String)>,
}

impl Job {
    /// Every test of a program.
    pub(crate) fn program(program: Program) -> Self {
        Self { name: program.name.clone(), program, args: Vec::new(), env: Vec::new() }
    }

    /// Every test of a suite. Most tests wait, for each other too, so more of them run at once than there are processors. In `abuse`
    /// they don't: it measures what one attack takes.
    pub(crate) fn suite(suite: &str, program: Program) -> Self {
        let threads = if suite == "abuse" { 2 } else { 4 };
        let args = vec![format!("{suite}::"), format!("--test-threads={threads}")];
        Self { name: suite.to_owned(), program, args, env: Vec::new() }
    }

    /// An ignored test of a program.
    pub(crate) fn test(program: Program, test: &str) -> Self {
        let args = ["--ignored", "--exact", test, "--nocapture"].map(str::to_owned).to_vec();
        let name = if program.name == SUITES { test.to_owned() } else { format!("{}::{test}", program.name) };
        Self { name, program, args, env: Vec::new() }
    }

    /// A test of a program that has failed, once more.
    pub(crate) fn again(program: Program, test: &str) -> Self {
        let args = ["--exact", test].map(str::to_owned).to_vec();
        Self { name: format!("{test} again"), program, args, env: Vec::new() }
    }

    /// Every test of a suite, in an environment.
    pub(crate) fn whole(InEnvironment { suite, env: (key, value) }: InEnvironment, program: Program) -> Self {
        let job = Self::suite(suite, program);
        let args = [job.args, vec!["--nocapture".to_owned()]].concat();
        Self { name: format!("{suite} {key}={value}"), env: vec![(key.to_owned(), value)], args, ..job }
    }
}

/// The suites in what their program lists (`--list --format terse`), those first that take longest.
///
/// A filter of the test harness is a part of a name. So it is an error if a suite's tests contain the name of another one: they would run
/// twice.
pub(crate) fn suites(output: &str) -> anyhow::Result<Vec<String>> {
    let tests: Vec<&str> = output.lines().filter_map(|line| line.strip_suffix(": test")).collect();
    let mut found: Vec<String> = Vec::new();
    for suite in tests.iter().filter_map(|test| Some(test.split_once("::")?.0)) {
        if !found.iter().any(|known| known == suite) {
            found.push(suite.to_owned());
        }
    }
    let twice = |test: &&&str| found.iter().filter(|suite| test.contains(&format!("{suite}::"))).count() != 1;
    if let Some(test) = tests.iter().find(twice) {
        bail!("{test} isn't a test of exactly one suite: rename its module");
    }
    found.sort_by_key(|suite| FIRST.iter().position(|first| first == suite).unwrap_or(FIRST.len()));
    Ok(found)
}

/// Part `index` (from 1) of `count` parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shard {
    index: usize,
    count: usize,
}

impl Default for Shard {
    fn default() -> Self {
        Self { index: 1, count: 1 }
    }
}

impl FromStr for Shard {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        let parse = || {
            let (index, count) = text.split_once('/')?;
            let shard = Self { index: index.parse().ok()?, count: count.parse().ok()? };
            (1..=shard.count).contains(&shard.index).then_some(shard)
        };
        parse().with_context(|| format!("--shard: {text:?} is not I/N with I from 1 to N, such as 2/4"))
    }
}

/// The jobs of a shard with one of the words in their names, in a fixed order. Neighbors take about the same time, so shards
/// take jobs in turn.
pub(crate) fn select(mut jobs: Vec<Job>, shard: Shard, words: &[String]) -> Vec<Job> {
    jobs.sort_by(|a, b| a.name.cmp(&b.name));
    let mine = jobs.into_iter().enumerate().filter(|(n, _)| n % shard.count == shard.index - 1);
    mine.map(|(_, job)| job)
        .filter(|job| words.is_empty() || words.iter().any(|word| job.name.contains(word.as_str())))
        .collect()
}

/// The tests in what a test program lists (`--list --format terse`), without those that write files of the source.
pub(crate) fn listed(output: &str) -> Vec<String> {
    let tests = output.lines().filter_map(|line| line.strip_suffix(": test"));
    tests
        .filter(|test| !test.rsplit("::").next().is_some_and(|last| WRITERS.contains(&last)))
        .map(str::to_owned)
        .collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn program(name: &str) -> Program {
        Program { name: name.to_owned(), path: "p".into(), directory: "d".into() }
    }

    fn jobs() -> Vec<Job> {
        (0..7).map(|n| Job::test(program("fuzz"), &format!("t{n}"))).collect()
    }

    fn names(jobs: Vec<Job>) -> Vec<String> {
        jobs.into_iter().map(|job| job.name).collect()
    }

    #[test]
    fn shards_together_run_everything_once() {
        for count in 1..=9 {
            let mut seen = Vec::new();
            for index in 1..=count {
                // The order in which binaries are found doesn't matter.
                let mut found = jobs();
                found.rotate_left(index % 3);
                seen.extend(names(select(found, Shard { index, count }, &[])));
            }
            let distinct: BTreeSet<_> = seen.iter().cloned().collect();
            assert_eq!((seen.len(), distinct.len()), (7, 7), "{count} shards: {seen:?}");
        }
    }

    #[test]
    fn a_shard_is_one_of_its_number() {
        assert_eq!("2/4".parse::<Shard>().unwrap(), Shard { index: 2, count: 4 });
        for wrong in ["", "2", "0/4", "5/4", "1/0", "a/b", "-1/4"] {
            assert!(wrong.parse::<Shard>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn words_choose_by_name() {
        let words = ["t3".to_owned(), "t5".to_owned()];
        assert_eq!(names(select(jobs(), Shard::default(), &words)), ["fuzz::t3", "fuzz::t5"]);
    }

    #[test]
    fn names_give_test_environment_and_arguments() {
        let in_environment = InEnvironment { suite: "crash", env: ("OUTRIGGER_CRASH", "all".to_owned()) };
        let whole = Job::whole(in_environment, program(SUITES));
        assert_eq!(
            (whole.name.as_str(), whole.args),
            (
                "crash OUTRIGGER_CRASH=all",
                ["crash::", "--test-threads=4", "--nocapture"].map(str::to_owned).to_vec()
            )
        );
        let one = Job::test(program(SUITES), "outages::etcd::a");
        assert_eq!(one.name, "outages::etcd::a");
        assert_eq!(one.args, ["--ignored", "--exact", "outages::etcd::a", "--nocapture"]);
    }

    #[test]
    fn the_longest_suites_are_first_and_each_test_belongs_to_one() {
        let listed =
            "book::a: test\nabuse::grpc::b: test\nbook::c: test\ne2e::d: test\n2 tests, 0 benchmarks\n";
        assert_eq!(suites(listed).unwrap(), ["e2e", "abuse", "book"]);
        let error = suites(&format!("{listed}deploy::book::e: test\n")).unwrap_err();
        assert_eq!(error.to_string(), "deploy::book::e isn't a test of exactly one suite: rename its module");
        assert!(suites("a: test\n").is_err());
    }

    #[test]
    fn tests_that_write_the_source_are_never_run() {
        let output =
            "skew::record::record: test\nrecord: test\nrestore::a_record_is_kept: test\nb: benchmark\n";
        assert_eq!(listed(output), ["restore::a_record_is_kept"]);
    }
}
