//! How the cases went, for people and for build servers.

use std::io::Write;

use quick_junit::{NonSuccessKind, Report, TestCase, TestCaseStatus, TestSuite};

use super::CaseResult;
use crate::document::{plain, plain_lines};
use crate::style::{BAD, GOOD};

/// A line for each case, and what failed below it.
pub(super) fn print(outcomes: &[CaseResult], out: &mut impl Write) -> std::io::Result<()> {
    let width = outcomes.iter().map(|outcome| outcome.name.chars().count()).max().unwrap_or_default().max(4);
    writeln!(out, "{:width$}  RESULT", "CASE")?;
    for CaseResult { name, faults, .. } in outcomes {
        let name = plain(name);
        if faults.is_empty() {
            writeln!(out, "{name:width$}  {GOOD}ok{GOOD:#}")?;
            continue;
        }
        writeln!(out, "{name:width$}  {BAD}failed{BAD:#}")?;
        for fault in faults {
            writeln!(out, "    {}", plain_lines(fault))?;
        }
    }
    let failed = outcomes.iter().filter(|outcome| !outcome.faults.is_empty()).count();
    writeln!(out, "{} cases, {failed} failed", outcomes.len())
}

/// JUnit XML: a suite for each file.
pub(super) fn junit(outcomes: &[CaseResult]) -> Result<String, quick_junit::SerializeError> {
    let mut report = Report::new("outrigger test");
    for of_file in outcomes.chunk_by(|a, b| a.file == b.file) {
        let mut suite = TestSuite::new(of_file.first().map_or("", |outcome| outcome.file.as_str()));
        for CaseResult { name, faults, .. } in of_file {
            let mut status = TestCaseStatus::success();
            if !faults.is_empty() {
                status = TestCaseStatus::non_success(NonSuccessKind::Failure);
                status.set_message(faults.join("; "));
            }
            suite.add_test_case(TestCase::new(name.as_str(), status));
        }
        report.add_test_suite(suite);
    }
    report.to_string()
}
