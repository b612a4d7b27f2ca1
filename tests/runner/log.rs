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

/// What a program says about its failures at its end; all of its log if it has ended before that.
pub(crate) fn failures(log: &str) -> &str {
    let Some((_, rest)) = log.split_once("\nfailures:\n") else { return log };
    // The names follow once more, then the summary.
    rest.rsplit_once("\nfailures:\n").map_or(rest, |(failures, _)| failures).trim()
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
        assert_eq!(failures("memory allocation failed\n"), "memory allocation failed\n");
    }
}
