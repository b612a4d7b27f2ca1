//! The benches, one program: `bench NAME` runs one of them, `bench` those that OUTRIGGER_BENCH_ROW wants, each in a process of its own, and
//! `bench report` reads and records what they have measured.
// Figures are for a terminal, and a failure of a bench is a failure.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout)]

mod abuse;
mod admission;
mod console;
mod downlink;
mod fleet;
mod manager;
mod matching;
mod nodes;
mod peers;
mod report;
mod rules;
mod tenants;
mod webhook;

use std::process::{Command, ExitCode};

use clap::{Parser, Subcommand, ValueEnum};
use outrigger_tests::control_plane::tool;

/// As the command's.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Measures, and keeps the figures in target/bench/report.json.
#[derive(Debug, Parser)]
#[command(name = "bench")]
struct Args {
    #[command(subcommand)]
    what: Option<What>,
}

#[derive(Debug, Clone, Subcommand)]
enum What {
    #[command(flatten)]
    One(Bench),
    /// Prints the report, records it for the documentation, or compares it with the recorded one.
    Report {
        /// table, record or check.
        what: String,
    },
}

/// A bench, in the order in which all are run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Subcommand, ValueEnum)]
enum Bench {
    /// What the webhook costs.
    Webhook,
    /// What admission costs the API server.
    Admission,
    /// Companions, intake and restarts of the manager.
    Manager,
    /// Matching of workloads with rules.
    Matching,
    /// Tenants beside each other.
    Tenants,
    /// Synchronization of rules.
    Rules,
    /// What the manager tells agents.
    Downlink,
    /// What attackers cost others.
    Abuse,
    /// The console and its pages.
    Console,
    /// Containers on real Nodes; not among all, because it needs root.
    Nodes,
    /// Fleets of agents; not among all, because it takes hours.
    Fleet,
    /// Liqo's and Kyverno's webhooks; not among all, because they have to be built.
    Peers,
}

impl Bench {
    fn name(self) -> String {
        self.to_possible_value().expect("no bench is hidden").get_name().to_owned()
    }

    /// Whether `bench` without a name runs it: OUTRIGGER_BENCH_ROW begins with its name, or isn't set.
    fn is_wanted(self) -> bool {
        match std::env::var("OUTRIGGER_BENCH_ROW") {
            Ok(row) if !row.is_empty() => row.starts_with(&self.name()),
            _ => !matches!(self, Self::Nodes | Self::Fleet | Self::Peers),
        }
    }

    fn run(self) {
        let runtime = || tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        match self {
            Self::Webhook => webhook::run(),
            Self::Admission => runtime().block_on(admission::run()),
            Self::Manager => runtime().block_on(manager::run()),
            Self::Matching => matching::run(),
            Self::Tenants => runtime().block_on(tenants::run()),
            Self::Rules => runtime().block_on(rules::run()),
            Self::Downlink => runtime().block_on(downlink::run()),
            Self::Abuse => runtime().block_on(abuse::run()),
            Self::Console => runtime().block_on(console::run()),
            Self::Nodes => runtime().block_on(nodes::run()),
            Self::Fleet => runtime().block_on(fleet::run()),
            Self::Peers => runtime().block_on(peers::run()),
        }
    }
}

fn main() -> ExitCode {
    match Args::parse().what {
        Some(What::One(bench)) => bench.run(),
        Some(What::Report { what }) => return report::run(&what),
        None => return all(),
    }
    ExitCode::SUCCESS
}

/// Runs each wanted bench in a process of its own, so that none has what another has left in memory, and prints the report.
fn all() -> ExitCode {
    let this = std::env::current_exe().expect("this program");
    for bench in Bench::value_variants().iter().filter(|bench| bench.is_wanted()) {
        if *bench == Bench::Console {
            tool("chromium").expect("a browser, built before anything is measured");
        }
        let status = Command::new(&this).arg(bench.name()).status().expect("a process");
        assert!(status.success(), "{}: {status}", bench.name());
    }
    report::run("table")
}
