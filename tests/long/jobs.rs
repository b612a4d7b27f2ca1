//! What there is to run, and which part of it a shard runs.

use std::path::PathBuf;
use std::str::FromStr;

use anyhow::Context;
use outrigger_tests::scenarios::SCENARIOS;

/// A test binary that is run as a whole with something set in its environment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct InEnvironment {
    /// The test binary, by its name in `Cargo.toml`.
    pub(crate) binary: &'static str,
    /// The variable that is set for it, and its value.
    pub(crate) env: (&'static str, String),
}

/// Long runs that need an environment of their own: all of the crash matrix, by its scenarios.
pub(crate) fn in_environments() -> Vec<InEnvironment> {
    let of =
        |scenario: &&str| InEnvironment { binary: "crash", env: ("OUTRIGGER_CRASH", (*scenario).to_owned()) };
    SCENARIOS.iter().map(of).collect()
}

/// Ignored tests that are no long tests: they write files of the source.
pub(crate) const WRITERS: &[&str] = &["record"];

/// One process to run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Job {
    /// Its name in results, which is the same in every run.
    pub(crate) name: String,
    pub(crate) program: PathBuf,
    pub(crate) args: Vec<String>,
    pub(crate) env: Vec<(String, String)>,
}

impl Job {
    /// An ignored test of a binary.
    pub(crate) fn test(binary: &str, program: PathBuf, test: &str) -> Self {
        let args = ["--ignored", "--exact", test, "--nocapture"].map(str::to_owned).to_vec();
        Self { name: format!("{binary}::{test}"), program, args, env: Vec::new() }
    }

    /// Every test of a binary, in an environment.
    pub(crate) fn whole(
        InEnvironment { binary, env: (key, value) }: InEnvironment,
        program: PathBuf,
    ) -> Self {
        let name = format!("{binary} {key}={value}");
        let env = vec![(key.to_owned(), value)];
        Self { name, program, args: vec!["--nocapture".to_owned()], env }
    }

    /// A line of what the program of mutation testing lists: its arguments.
    pub(crate) fn mutants(program: PathBuf, line: &str) -> Self {
        let args = line.split_whitespace().map(str::to_owned).collect();
        Self { name: format!("mutants {line}"), program, args, env: Vec::new() }
    }
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

    fn jobs() -> Vec<Job> {
        (0..7).map(|n| Job::test("outages", "p".into(), &format!("t{n}"))).collect()
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
        assert_eq!(names(select(jobs(), Shard::default(), &words)), ["outages::t3", "outages::t5"]);
    }

    #[test]
    fn names_tell_test_environment_and_arguments() {
        let in_environment = InEnvironment { binary: "crash", env: ("OUTRIGGER_CRASH", "all".to_owned()) };
        let whole = Job::whole(in_environment, "p".into());
        assert_eq!(
            (whole.name.as_str(), whole.args),
            ("crash OUTRIGGER_CRASH=all", vec!["--nocapture".to_owned()])
        );
        let one = Job::test("outages", "p".into(), "restore::a");
        assert_eq!(one.name, "outages::restore::a");
        assert_eq!(one.args, ["--ignored", "--exact", "restore::a", "--nocapture"]);
        let shard = Job::mutants("p".into(), "run core 1 40");
        assert_eq!(shard.name, "mutants run core 1 40");
        assert_eq!(shard.args, ["run", "core", "1", "40"]);
    }

    #[test]
    fn tests_that_write_the_source_are_never_run() {
        let output =
            "skew::record::record: test\nrecord: test\nrestore::a_record_is_kept: test\nb: benchmark\n";
        assert_eq!(listed(output), ["restore::a_record_is_kept"]);
    }
}
