//! Runs the fuzzer: `make fuzz`. It fails on a property that doesn't hold, a panic, an input that takes too long, and memory that
//! grows.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout, clippy::print_stderr)]

use std::collections::HashSet;
use std::fs;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use clap::Parser;
use outrigger_fuzz::{Outcome, Report, TARGETS, Target, run};

/// Runs inputs of one target or all.
#[derive(Parser)]
struct Args {
    /// The target; without it all of them.
    #[arg(long)]
    target: Option<Target>,
    /// Inputs in all, divided among the targets.
    #[arg(long, default_value_t = 10_000_000)]
    count: u64,
    /// The seed of the first input; each further input has the next one.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Seconds that an input may take, generously.
    #[arg(long, default_value_t = 10)]
    limit: u64,
    /// MiB by which resident memory may grow after the first tenth of the inputs.
    #[arg(long, default_value_t = 32)]
    growth: u64,
    /// Directory of failed inputs.
    #[arg(long, default_value = "target/fuzz")]
    output: PathBuf,
    /// A file for this many different patches with their objects, as JSON lines.
    #[arg(long)]
    patches: Option<PathBuf>,
    /// The number of patches to write.
    #[arg(long, default_value_t = 20_000)]
    patch_count: u64,
    /// A directory for the seeds that were the first with their kind of answer.
    #[arg(long)]
    corpus: Option<PathBuf>,
}

/// What is running: the target, the seed, and the milliseconds at which it began.
struct Current {
    target: Mutex<Target>,
    seed: AtomicU64,
    since: AtomicU64,
    began: Instant,
    output: PathBuf,
}

impl Current {
    fn now(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap()
    }

    /// Keeps the input that is running.
    fn save(&self, why: &str) {
        let target = *self.target.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let seed = self.seed.load(Ordering::Relaxed);
        let path = self.output.join(format!("{target:?}-{seed}").to_lowercase());
        let saved = fs::write(&path, why);
        let shown: String = why.chars().take(2000).collect();
        eprintln!(
            "{shown}\nmake fuzz TARGET={} SEED={seed} COUNT=1; saved: {path:?} {saved:?}",
            name(target)
        );
    }
}

fn name(target: Target) -> String {
    format!("{target:?}").to_lowercase()
}

fn main() {
    let args = Args::parse();
    fs::create_dir_all(&args.output).unwrap();
    let current = Arc::new(Current {
        target: Mutex::new(TARGETS[0]),
        seed: AtomicU64::new(0),
        since: AtomicU64::new(u64::MAX),
        began: Instant::now(),
        output: args.output.clone(),
    });
    let panicked = current.clone();
    // The process aborts afterwards, as a server does.
    std::panic::set_hook(Box::new(move |panic| panicked.save(&panic.to_string())));
    watch(current.clone(), args.limit);
    outrigger_fuzz::prepare();
    let targets = args.target.map_or(TARGETS.to_vec(), |target| vec![target]);
    let count = args.count.div_ceil(u64::try_from(targets.len()).unwrap());
    let mut patches = args.patches.as_ref().map(|path| BufWriter::new(fs::File::create(path).unwrap()));
    let mut sound = true;
    for target in targets {
        *current.target.lock().unwrap() = target;
        sound &= series(&args, target, count, &current, &mut patches);
    }
    if let Some(patches) = &mut patches {
        patches.flush().unwrap();
    }
    if !sound {
        std::process::exit(1);
    }
}

/// Ends the process when an input takes too long.
fn watch(current: Arc<Current>, limit: u64) {
    std::thread::spawn(move || {
        loop {
            std::thread::sleep(Duration::from_millis(500));
            if current.now().saturating_sub(current.since.load(Ordering::Relaxed)) > limit * 1000 {
                current.save(&format!("the input takes more than {limit} s"));
                std::process::abort();
            }
        }
    });
}

/// Counts of a series.
#[derive(Default)]
struct Counts {
    accepted: u64,
    denied: u64,
    undecodable: u64,
    failed: u64,
    patches: u64,
    slowest: (Duration, u64),
}

fn series(
    args: &Args,
    target: Target,
    count: u64,
    current: &Current,
    patches: &mut Option<BufWriter<fs::File>>,
) -> bool {
    let (mut counts, mut early, mut kinds) = (Counts::default(), 0, Vec::new());
    let mut known = HashSet::new();
    let began = Instant::now();
    for i in 0..count {
        let seed = args.seed + i;
        current.seed.store(seed, Ordering::Relaxed);
        current.since.store(current.now(), Ordering::Relaxed);
        let before = Instant::now();
        let ran = run(target, seed);
        let took = before.elapsed();
        counts.slowest = counts.slowest.max((took, seed));
        match ran {
            Ok(report) => {
                counts.add(&report);
                if args.corpus.is_some() && known.len() < 2000 && known.insert(report.signature.clone()) {
                    kinds.push(seed);
                }
                write(&mut counts, report, args.patch_count, patches);
            }
            Err(why) => {
                counts.failed += 1;
                current.save(&why);
                if counts.failed == 10 {
                    break;
                }
            }
        }
        if i == count / 10 {
            early = resident();
        }
    }
    current.since.store(u64::MAX, Ordering::Relaxed);
    if let Some(directory) = &args.corpus {
        keep(directory, target, &kinds);
    }
    let grown = (resident().saturating_sub(early)) >> 10;
    counts.print(target, count, began.elapsed(), grown);
    counts.failed == 0 && grown >> 10 <= args.growth
}

impl Counts {
    fn add(&mut self, report: &Report) {
        match report.outcome {
            Outcome::Accepted => self.accepted += 1,
            Outcome::Denied => self.denied += 1,
            Outcome::Undecodable => self.undecodable += 1,
        }
    }

    fn print(&self, target: Target, count: u64, took: Duration, grown: u64) {
        let (slowest, seed) = self.slowest;
        println!(
            "{}: {count} inputs in {:.1} s ({:.0}/s): {} accepted, {} denied, {} undecodable, {} failed; slowest {:.1} ms (seed {seed}); \
             memory grew by {grown} KiB after the first tenth",
            name(target),
            took.as_secs_f64(),
            count as f64 / took.as_secs_f64(),
            self.accepted,
            self.denied,
            self.undecodable,
            self.failed,
            slowest.as_secs_f64() * 1000.0,
        );
    }
}

/// Writes a patch, as long as there are fewer than wanted.
fn write(counts: &mut Counts, report: Report, most: u64, patches: &mut Option<BufWriter<fs::File>>) {
    if let (Some(patch), Some(file)) = (report.patch, patches)
        && counts.patches < most
    {
        counts.patches += 1;
        serde_json::to_writer(&mut *file, &patch).unwrap();
        file.write_all(b"\n").unwrap();
    }
}

/// Writes the seeds of a target, one a line.
fn keep(directory: &Path, target: Target, seeds: &[u64]) {
    let lines: String = seeds.iter().map(|seed| format!("{seed}\n")).collect();
    fs::write(directory.join(format!("{}.txt", name(target))), lines).unwrap();
}

/// Bytes of resident memory.
fn resident() -> u64 {
    let pages = fs::read_to_string("/proc/self/statm").unwrap_or_default();
    pages.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or_default() * 4096
}
