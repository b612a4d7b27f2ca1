//! What the manager costs, on a real control plane: companions made and deleted, workloads taken in and kept, a restart, and the
//! edit of a rule. Each figure stands beside its floor, which is measured in turns with it where it is a measurement.

mod companions;
mod intake;
mod restart;

use outrigger_tests::outrigger::Outrigger;
use outrigger_tests::report;

/// The bench's name in the report.
const BENCH: &str = "manager";

/// Measures, and prints the rows.
pub(crate) async fn run() {
    let o = Outrigger::shared().await;
    if report::is_any_wanted(BENCH, &companions::ROWS) {
        report::record(BENCH, &companions::measure(o).await);
    }
    if report::is_any_wanted(BENCH, &intake::ROWS) {
        report::record(BENCH, &intake::measure(o).await);
    }
    if report::is_any_wanted(BENCH, &restart::ROWS) {
        report::record(BENCH, &restart::measure(o).await);
    }
}
