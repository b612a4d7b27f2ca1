//! What the log of a test program says: how many tests ended how, which have failed, and why.

use std::collections::HashSet;

use outrigger_tests::control_plane::SKIPPED;

/// How many tests of a program ended how.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) passed: usize,
    pub(crate) failed: usize,
    pub(crate) ignored: usize,
    /// Those that the release of Kubernetes has no use for. The test program counts them as passed, and they are not among `passed` here.
    pub(crate) skipped: usize,
}

impl Counts {
    /// Reads the log of a test program; `None` if it has ended before its summary.
    pub(crate) fn of(log: &str) -> Option<Self> {
        let summary = log.lines().rev().find_map(|line| line.strip_prefix("test result: "))?;
        let count = |what: &str| {
            let part = summary.split(['.', ';']).find_map(|part| part.trim().strip_suffix(what))?;
            part.trim().parse::<usize>().ok()
        };
        let skipped = log.matches(SKIPPED).count();
        Some(Self {
            passed: count("passed")?.checked_sub(skipped)?,
            failed: count("failed")?,
            ignored: count("ignored")?,
            skipped,
        })
    }
}

/// The test that a line reports as failed.
pub(crate) fn failed(line: &str) -> Option<&str> {
    line.strip_prefix("test ")?.strip_suffix(" ... FAILED")
}

/// The tests that have run for a minute and haven't ended: where a program hangs. The test harness names only these while it runs.
pub(crate) fn unfinished(log: &str) -> Vec<&str> {
    let tests = || log.lines().filter_map(|line| line.strip_prefix("test "));
    let ended: HashSet<&str> = tests().filter_map(|line| Some(line.split_once(" ... ")?.0)).collect();
    tests()
        .filter_map(|line| line.strip_suffix(" has been running for over 60 seconds"))
        .filter(|test| !ended.contains(test))
        .collect()
}

/// Most lines of one test that are shown.
const MOST_LINES: usize = 40;

/// What a program says about its failures at its end: of each test the last lines, without frames of its stack; of a program that has ended
/// before that the last lines of its log. Where a log is shown in part, a long one would hide those of other programs.
pub(crate) fn failures(log: &str) -> String {
    let Some((_, rest)) = log.split_once("\nfailures:\n") else { return last(log) };
    // The names follow once more, then the summary.
    let all = rest.rsplit_once("\nfailures:\n").map_or(rest, |(failures, _)| failures).trim();
    all.split("\n---- ").map(last).collect::<Vec<_>>().join("\n---- ")
}

fn last(text: &str) -> String {
    let is_frame = |line: &&str| {
        let line = line.trim_start();
        line.starts_with("at ")
            || line.split_once(": ").is_some_and(|(number, _)| number.parse::<u16>().is_ok())
    };
    let lines: Vec<&str> = text.trim_end().lines().filter(|line| !is_frame(line)).collect();
    let Some((name, lines)) = lines.split_first() else { return String::new() };
    let shown = &lines[lines.len().saturating_sub(MOST_LINES)..];
    [&[*name], shown].concat().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = "running 2 tests\ntest a::b ... FAILED\ntest c ... ok\n\nfailures:\n\n---- a::b stdout ----\nwhy\n\n\nfailures:\n    a::b\n\ntest \
                       result: FAILED. 1 passed; 1 failed; 3 ignored; 0 measured; 0 filtered out; finished in 1.00s\n";

    #[test]
    fn counts_are_those_of_the_summary_and_skipped_tests_have_not_passed() {
        assert_eq!(Counts::of(LOG), Some(Counts { passed: 1, failed: 1, ignored: 3, skipped: 0 }));
        let skipped = LOG.replace("c ... ok", "c ... skipped on Kubernetes 1.34: it has no x\nok");
        assert_eq!(Counts::of(&skipped), Some(Counts { passed: 0, failed: 1, ignored: 3, skipped: 1 }));
        assert_eq!(Counts::of("test a ... "), None);
    }

    #[test]
    fn tests_that_hang_are_those_without_a_result() {
        let slow = |test| format!("test {test} has been running for over 60 seconds\n");
        let log = ["running 3 tests\n", &slow("a::b"), &slow("c"), "test a::b ... FAILED\n"].concat();
        assert_eq!(unfinished(&log), ["c"]);
    }

    #[test]
    fn failures_are_named_with_their_reasons() {
        assert_eq!(LOG.lines().filter_map(failed).collect::<Vec<_>>(), ["a::b"]);
        assert_eq!(failures(LOG), "---- a::b stdout ----\nwhy");
        assert_eq!(failures("memory allocation failed\n"), "memory allocation failed");
        let long = LOG.replace(
            "why\n",
            &format!("{}  12: core::panicking\n    at lib.rs\nwhy\n", "noise\n".repeat(500)),
        );
        let shown = failures(&long);
        assert!(shown.starts_with("---- a::b stdout ----\n") && shown.ends_with("noise\nwhy"), "{shown}");
        assert_eq!(shown.lines().count(), 1 + MOST_LINES);
    }
}
