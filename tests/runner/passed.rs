//! On which commit each long test has passed last: a file of the source, because all of them take hours, and one machine seldom has the
//! time to run them on one commit.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::Context;
use serde::{Deserialize, Serialize};

use crate::results::{self, Record};

/// The file, from the root of the source: a line of JSON for each test.
pub(crate) const FILE: &str = "tests/long.jsonl";

/// A test's last success.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Success {
    test: String,
    commit: String,
    /// When it began, in RFC 3339.
    date: String,
    seconds: f64,
}

/// The last success of each test, by name.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Passed(BTreeMap<String, Success>);

impl Passed {
    /// Reads the file; none is an empty one.
    pub(crate) fn read(file: &Path) -> anyhow::Result<Self> {
        let text = match std::fs::read_to_string(file) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
            text => text.with_context(|| file.display().to_string())?,
        };
        let lines = text.lines().map(serde_json::from_str::<Success>);
        let all = lines.collect::<Result<Vec<_>, _>>().with_context(|| file.display().to_string())?;
        Ok(Self(all.into_iter().map(|success| (success.test.clone(), success)).collect()))
    }

    pub(crate) fn write(&self, file: &Path) -> anyhow::Result<()> {
        let lines: Result<Vec<_>, _> = self.0.values().map(serde_json::to_string).collect();
        let text = lines?.iter().flat_map(|line| [line, "\n"]).collect::<String>();
        std::fs::write(file, text).with_context(|| file.display().to_string())
    }

    /// Adds the results of a commit: those of tests that have passed last, where nothing newer is known.
    pub(crate) fn add(&mut self, records: &[Record]) {
        for record in records {
            let Some(Record { test, commit, date, seconds, .. }) = results::passed(records, &record.test)
            else {
                continue;
            };
            if self.date(test).is_none_or(|known| known < date.as_str()) {
                let (test, commit, date) = (test.clone(), commit.clone(), date.clone());
                let success = Success { commit, date, seconds: seconds.round(), test: test.clone() };
                self.0.insert(test, success);
            }
        }
    }

    /// Forgets tests that there are no longer.
    pub(crate) fn keep(&mut self, tests: &BTreeSet<String>) {
        self.0.retain(|test, _| tests.contains(test));
    }

    /// When a test began that has passed.
    pub(crate) fn date(&self, test: &str) -> Option<&str> {
        self.0.get(test).map(|success| success.date.as_str())
    }

    /// In two sentences, how many of all tests have passed, and from when to when.
    pub(crate) fn summary(&self, all: usize) -> String {
        let by_date = || self.0.values().map(|success| (&success.date, &success.commit));
        let times = match (by_date().min(), by_date().max()) {
            (Some((first, oldest)), Some((last, newest))) => {
                format!(
                    ": the oldest success is of {first}, commit `{oldest:.12}`, the newest of {last}, commit `{newest:.12}`"
                )
            }
            _ => String::new(),
        };
        let seconds = self.0.values().fold(0.0, |sum, success| sum + success.seconds);
        let (passed, hours) = (self.0.len(), seconds / 3600.0);
        format!("{passed} of {all} jobs of `make long` have passed{times}. They took {hours:.1} hours.")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(test: &str, commit: &str, date: &str, passed: bool) -> Record {
        let (test, commit, date) = (test.to_owned(), commit.to_owned(), date.to_owned());
        Record { test, date, commit, seconds: 1800.4, cpu: 1.0, passed, log: "l".into() }
    }

    #[test]
    fn the_last_success_of_each_test_is_kept_over_several_commits() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("long.jsonl");
        let mut passed = Passed::read(&file).unwrap();
        passed.add(&[record("a", "1", "2026-01-02", true), record("b", "1", "2026-01-02", false)]);
        passed.add(&[record("b", "2", "2026-01-03", true), record("gone", "2", "2026-01-03", true)]);
        passed.add(&[record("a", "0", "2026-01-01", true)]);
        let tests = ["a", "b", "c"].map(str::to_owned).into();
        passed.keep(&tests);
        passed.write(&file).unwrap();
        assert_eq!(Passed::read(&file).unwrap(), passed);
        assert_eq!([passed.date("a"), passed.date("c")], [Some("2026-01-02"), None]);
        assert_eq!(
            passed.summary(3),
            "2 of 3 jobs of `make long` have passed: the oldest success is of 2026-01-02, commit `1`, the newest of 2026-01-03, commit \
             `2`. They took 1.0 hours."
        );
    }

    #[test]
    fn a_test_that_failed_after_its_success_on_a_commit_has_not_passed_on_it() {
        let mut passed = Passed::default();
        passed.add(&[record("a", "1", "2026-01-02", true), record("a", "1", "2026-01-03", false)]);
        assert_eq!(passed, Passed::default());
        assert_eq!(passed.summary(1), "0 of 1 jobs of `make long` have passed. They took 0.0 hours.");
    }
}
