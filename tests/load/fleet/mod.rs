//! A fleet: many tenants, workloads and DPUs, and three managers. On the real control plane as far as two cores carry it, beyond it
//! on the simulation's model of the API server, which serves manager processes over HTTP here.
//!
//! Every figure stands beside the same figure of a smaller fleet, so that a ratio says what grows with what. Processor time is that
//! of the managers; wall time is for the machine as it was, with agents and API server on the same cores.

mod agents;
mod cluster;
mod curves;
mod managers;
mod model_api;
mod phases;

/// The bench's name in the report.
const BENCH: &str = "fleet";

/// Measures, and prints the rows.
pub(crate) async fn run() {
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    println!("load average before: {}", load.trim());
    if wanted("curve") {
        curves::measure().await;
    }
    for series in phases::SERIES {
        if wanted(series.name) {
            series.measure().await;
        }
    }
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    println!("load average after: {}", load.trim());
}

/// Whether the rows whose names begin like this are measured. One of them can't be measured alone.
fn wanted(beginning: &str) -> bool {
    let all = format!("{BENCH} {beginning}");
    std::env::var("OUTRIGGER_BENCH_ROW").map_or(true, |row| all.starts_with(&row) || row.starts_with(&all))
}
