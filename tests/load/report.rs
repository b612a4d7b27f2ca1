//! What the benches have measured: `bench-report table` prints it, `record` keeps its benches for the documentation and for `check`, and
//! `check` fails where all rounds of a row are worse than all that were recorded, by more than a tenth.

use std::process::ExitCode;

use outrigger_tests::report::{self, Report};
use outrigger_tests::{marked, root};

/// `table`, `record` or `check`.
pub(crate) fn run(what: &str) -> ExitCode {
    let (recorded, page) = (root().join("tests/load/recorded.json"), root().join("docs/performance.md"));
    let now = Report::read(&report::path()).unwrap();
    match what {
        "table" => println!("{}\n{}", now.machine, now.tables()),
        "record" => {
            let now = now.over(Report::read(&recorded).unwrap());
            std::fs::write(recorded, serde_json::to_string_pretty(&now).unwrap() + "\n").unwrap();
            let text = std::fs::read_to_string(&page).unwrap();
            let tables = format!("Machine: {}.\n{}", now.machine, now.tables());
            std::fs::write(page, marked::replaced(&text, "report", &tables).unwrap()).unwrap();
        }
        "check" => {
            let worse = now.worse_than(&Report::read(&recorded).unwrap());
            for row in &worse {
                println!("{row}");
            }
            return if worse.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
        }
        other => panic!("{other}: use table, record or check"),
    }
    ExitCode::SUCCESS
}
