//! Runs histories: `sim --first 0 --count 200`, or one with its trace: `sim --seed 7`.
#![allow(clippy::print_stdout, reason = "it reports to a terminal")]

use std::io;
use std::process::{Command, ExitCode, Output};
use std::sync::atomic::{AtomicU64, Ordering};

use clap::Parser;
use outrigger_sim::faults::{self, Fault, REACHED};
use outrigger_sim::history;

/// The model clones many small objects: a fifth of the time went into glibc's allocator.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// The variable with the seed of the entropy that libraries get.
const SEED: &str = "OUTRIGGER_SIM_SEED";
/// The variable that has the log of all processes written to standard error.
const LOG: &str = "OUTRIGGER_SIM_LOG";
/// The beginning of a line about what a history has violated.
const VIOLATION: &str = "violated: ";

/// Runs histories of the whole system under virtual time, each by its seed.
#[derive(Parser)]
struct Arguments {
    /// The seed of one history, whose trace is printed.
    #[arg(long, conflicts_with_all = ["first", "count"])]
    seed: Option<u64>,

    /// The first seed.
    #[arg(long, default_value_t = 0)]
    first: u64,

    /// How many seeds.
    #[arg(long, default_value_t = 200)]
    count: u64,

    /// Actions and faults of a history.
    #[arg(long, default_value_t = 300)]
    events: u64,

    /// Puts the faults of a list back, one after the other, and runs seeds until one fails.
    #[arg(long, conflicts_with = "seed")]
    faults: bool,

    /// Of the list only faults whose names contain this.
    #[arg(long, requires = "faults", default_value = "", value_name = "TEXT")]
    only: String,

    /// Also says which unit tests find each fault, which takes long.
    #[arg(long, requires = "faults")]
    units: bool,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if let Some(seed) = arguments.seed {
        // The entropy of libraries follows from the seed too: a history has a process of its own, which is started with it.
        if std::env::var_os(SEED).is_none() {
            let status = history(seed, arguments.events).and_then(|mut history| history.status());
            return if status.is_ok_and(|status| status.success()) {
                ExitCode::SUCCESS
            } else {
                ExitCode::FAILURE
            };
        }
        if std::env::var_os(LOG).is_some() {
            tracing_subscriber::fmt().with_writer(io::stderr).with_ansi(false).init();
        }
        let outcome = history::run(seed, arguments.events);
        println!("{}", outcome.trace);
        outcome.violations.iter().for_each(|violation| println!("{VIOLATION}{violation}"));
        if let Some(reached) = faults::reached() {
            println!("{REACHED}{reached}");
        }
        return if outcome.violations.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    }
    if arguments.faults {
        return put_back(&arguments);
    }
    let (next, failed) = (AtomicU64::new(arguments.first), AtomicU64::new(0));
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= arguments.first + arguments.count {
                        return;
                    }
                    let ran = history(seed, arguments.events).and_then(|mut history| history.output());
                    failed.fetch_add(u64::from(!report(seed, arguments.events, &ran)), Ordering::Relaxed);
                }
            });
        }
    });
    let failed = failed.into_inner();
    println!("{} histories from seed {}: {failed} failed", arguments.count, arguments.first);
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// The process of a history.
fn history(seed: u64, events: u64) -> io::Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg(format!("--seed={seed}")).arg(format!("--events={events}")).env(SEED, seed.to_string());
    // Errors capture a backtrace otherwise where RUST_BACKTRACE is set, which took 4 % of the time. Panics still have one.
    command.env("RUST_LIB_BACKTRACE", "0");
    Ok(command)
}

/// Puts faults back, and prints a table of what finds them. Succeeds if each has been found, or the list says why it isn't.
fn put_back(arguments: &Arguments) -> ExitCode {
    if faults::reached().is_none() {
        println!("this program has no switches: build it with --features outrigger-sim/faults");
        return ExitCode::FAILURE;
    }
    let units = match arguments.units.then(faults::build).transpose() {
        Ok(units) => units,
        Err(error) => {
            println!("{error}");
            return ExitCode::FAILURE;
        }
    };
    let chosen: Vec<&Fault> =
        faults::FAULTS.iter().filter(|fault| fault.name.contains(&arguments.only)).collect();
    let mut all = true;
    println!(
        "| fault | crate | histories that it had an effect in | found by history | first violation | unit tests |"
    );
    println!("|---|---|---|---|---|---|");
    for fault in &chosen {
        let history = |number| history(arguments.first + number, arguments.events);
        let found = faults::search(fault, arguments.count, history, |ran| violations(ran).into_iter().next());
        let (number, violation) = found.found.as_ref().map_or_else(
            || (String::from("none"), fault.unseen.to_owned()),
            |(number, violation)| (number.to_string(), violation.chars().take(160).collect()),
        );
        let tests = match units.as_ref().map(|units| units.find(fault)) {
            None => String::new(),
            Some(Ok(tests)) if tests.is_empty() => "none".to_owned(),
            Some(Ok(tests)) => format!("{} ({})", tests[0], tests.len()),
            Some(Err(error)) => error.to_string(),
        };
        all &= found.found.is_some() || !fault.unseen.is_empty();
        let (reached, ran) = (found.reached, found.ran);
        println!(
            "| {} | {} | {reached} of {ran} | {number} | {violation} | {tests} |",
            fault.name, fault.part
        );
    }
    if all { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// What a history has violated; empty where all held.
fn violations(ran: &io::Result<Output>) -> Vec<String> {
    match ran {
        Ok(output) if output.status.success() => Vec::new(),
        Ok(Output { stdout, stderr, .. }) => {
            let text = [stdout, stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned()).concat();
            let is_reported = |line: &&str| line.starts_with(VIOLATION) || line.contains("panicked");
            let lines =
                text.lines().filter(is_reported).map(|line| line.strip_prefix(VIOLATION).unwrap_or(line));
            let mut lines: Vec<String> = lines.take(5).map(str::to_owned).collect();
            if lines.is_empty() {
                lines.push("the process failed".to_owned());
            }
            lines
        }
        Err(error) => vec![error.to_string()],
    }
}

/// Prints what a history has violated. Returns whether all held.
fn report(seed: u64, events: u64, ran: &io::Result<Output>) -> bool {
    let violations = violations(ran);
    if !violations.is_empty() {
        println!("seed {seed} fails; `make sim SEED={seed} EVENTS={events}` shows its history:");
        violations.iter().for_each(|violation| println!("    {VIOLATION}{violation}"));
    }
    violations.is_empty()
}
