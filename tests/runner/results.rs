//! Results: a line of JSON for each run of a test.

use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::path::PathBuf;

use anyhow::Context;
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Record {
    pub(crate) test: String,
    /// When it began, in RFC 3339.
    pub(crate) date: String,
    pub(crate) commit: String,
    pub(crate) seconds: f64,
    /// Processor time in seconds, of all its processes. Earlier records lack it.
    #[serde(default)]
    pub(crate) cpu: f64,
    pub(crate) passed: bool,
    pub(crate) log: PathBuf,
}

#[derive(Debug)]
pub(crate) struct Results {
    /// Where they are, with the logs.
    pub(crate) dir: PathBuf,
}

impl Results {
    pub(crate) fn open(dir: PathBuf) -> anyhow::Result<Self> {
        std::fs::create_dir_all(&dir).with_context(|| dir.display().to_string())?;
        Ok(Self { dir })
    }

    fn file(&self) -> PathBuf {
        self.dir.join("results.jsonl")
    }

    /// All records so far. A last line that was cut off by a crash is left out.
    pub(crate) fn read(&self) -> anyhow::Result<Vec<Record>> {
        match std::fs::read_to_string(self.file()) {
            Ok(text) => Ok(text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(error) => Err(error).with_context(|| self.file().display().to_string()),
        }
    }

    /// Adds a record by one write, because shards may run beside each other.
    pub(crate) fn add(&self, record: &Record) -> anyhow::Result<()> {
        let mut file: File = OpenOptions::new().create(true).append(true).open(self.file())?;
        // A line that was cut off ends here.
        let line = format!("{}\n", serde_json::to_string(record)?);
        let start = if self.ends_whole()? { "" } else { "\n" };
        Ok(file.write_all(format!("{start}{line}").as_bytes())?)
    }

    fn ends_whole(&self) -> anyhow::Result<bool> {
        let bytes = std::fs::read(self.file())?;
        Ok(bytes.last().is_none_or(|last| *last == b'\n'))
    }
}

/// The last record of a test, if it passed.
pub(crate) fn passed<'a>(records: &'a [Record], test: &str) -> Option<&'a Record> {
    records.iter().rfind(|record| record.test == test).filter(|record| record.passed)
}

/// A line for each run of a test, failed ones last, where people look first. `cpu` is processor time; the rest of the seconds it has
/// waited, unless processors were busy with others.
pub(crate) fn table(records: &[Record]) -> String {
    let width = records.iter().map(|record| record.test.len()).max().unwrap_or(0).max(4);
    let mut text = format!("{:width$}  {:6}  {:>7}  {:>7}  began\n", "test", "result", "seconds", "cpu");
    let mut sorted: Vec<&Record> = records.iter().collect();
    sorted.sort_by_key(|record| (!record.passed, record.test.clone()));
    for record in &sorted {
        let result = if record.passed { "passed" } else { "FAILED" };
        let Record { test, seconds, cpu, date, .. } = record;
        let _ = writeln!(text, "{test:width$}  {result}  {seconds:>7.0}  {cpu:>7.0}  {date}");
    }
    text
}

/// How many runs ended how, in the words that tools for test results read.
pub(crate) fn counts(records: &[Record]) -> String {
    let passed = records.iter().filter(|record| record.passed).count();
    format!("{passed} passed, {} failed", records.len() - passed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(test: &str, passed: bool) -> Record {
        Record {
            test: test.into(),
            date: "2026-01-02T03:04:05Z".into(),
            commit: "c".into(),
            seconds: 12.3,
            cpu: 4.5,
            passed,
            log: "l".into(),
        }
    }

    #[test]
    fn results_are_read_again_and_a_line_cut_off_costs_only_itself() {
        let dir = tempfile::tempdir().unwrap();
        let results = Results::open(dir.path().to_owned()).unwrap();
        assert!(results.read().unwrap().is_empty());
        results.add(&record("a", true)).unwrap();
        let mut file = OpenOptions::new().append(true).open(results.file()).unwrap();
        file.write_all(b"{\"test\": \"b\", \"da").unwrap();
        assert_eq!(results.read().unwrap(), [record("a", true)]);
        results.add(&record("c", false)).unwrap();
        assert_eq!(results.read().unwrap(), [record("a", true), record("c", false)]);
    }

    #[test]
    fn only_what_passed_last_is_left_out_of_the_next_run() {
        let records = [record("a", false), record("b", true), record("a", true), record("b", false)];
        assert!(passed(&records, "a").is_some());
        assert!(passed(&records, "b").is_none());
        assert!(passed(&records, "c").is_none());
    }

    #[test]
    fn the_summary_names_every_test_and_counts() {
        let records = [record("failing", false), record("passing", true)];
        let text = table(&records);
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[1].starts_with("passing") && lines[1].contains("passed"), "{text}");
        assert!(lines[2].starts_with("failing") && lines[2].contains("FAILED"), "{text}");
        assert_eq!(counts(&records), "1 passed, 1 failed");
    }
}
