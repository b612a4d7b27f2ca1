//! What the benches have measured: `bench-report table` prints it, `record` keeps its benches for the documentation and for `check`, and
//! `check` fails where all rounds of a row are worse than all that were recorded, by more than a tenth.
// It is for a terminal, and a failure of it is a failure.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout)]

use std::process::ExitCode;

use outrigger_tests::report::{self, Report};
use outrigger_tests::root;

/// Around the tables in the page.
const MARKS: [&str; 2] = ["<!-- report -->", "<!-- end of report -->"];

fn main() -> ExitCode {
    let (recorded, page) = (root().join("tests/load/recorded.json"), root().join("docs/performance.md"));
    let now = Report::read(&report::path()).unwrap();
    match std::env::args().nth(1).as_deref() {
        Some("table") => println!("{}\n{}", now.machine, now.tables()),
        Some("record") => {
            let now = now.over(Report::read(&recorded).unwrap());
            std::fs::write(recorded, serde_json::to_string_pretty(&now).unwrap() + "\n").unwrap();
            let text = std::fs::read_to_string(&page).unwrap();
            let (before, rest) = text.split_once(MARKS[0]).expect("the beginning of the report");
            let (_, after) = rest.split_once(MARKS[1]).expect("the end of the report");
            let [begin, end] = MARKS;
            let tables = format!("Machine: {}.\n{}", now.machine, now.tables());
            std::fs::write(page, format!("{before}{begin}\n{tables}\n{end}{after}")).unwrap();
        }
        Some("check") => {
            let worse = now.worse_than(&Report::read(&recorded).unwrap());
            for row in &worse {
                println!("{row}");
            }
            return if worse.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
        }
        other => panic!("{other:?}: use table, record or check"),
    }
    ExitCode::SUCCESS
}
