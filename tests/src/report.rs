//! The report of the benches: each figure beside its floor, measured in turns in the same run.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::root;

/// How far beyond the recorded spread a ratio is worse, as a part of the spread's bound. Rounds are few, and runs differ.
const MARGIN: f64 = 0.1;

/// A percentile of times, in milliseconds. Panics without times.
pub fn percentile(sorted: &[Duration], percent: usize) -> f64 {
    sorted[(sorted.len() - 1) * percent / 100].as_secs_f64() * 1000.0
}

/// One row: a figure, and the same figure of the least that could do the work.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Row {
    /// What is measured, and how.
    pub what: String,
    /// The unit of both figures. Of `/s` more is better, of all others less.
    pub unit: String,
    /// What the floor is.
    pub floor_is: String,
    /// Median of the rounds.
    pub figure: f64,
    /// Median of the floor's rounds.
    pub floor: f64,
    /// Median of the rounds' ratios, figure to floor.
    pub ratio: f64,
    /// The smallest and the largest ratio of a round.
    pub spread: [f64; 2],
}

impl Row {
    /// A row of rounds that alternated: each has the figure and the floor's. Panics without rounds.
    pub fn new(what: &str, unit: &str, floor_is: &str, rounds: &[(f64, f64)]) -> Self {
        let ratios = sorted(rounds.iter().map(|(figure, floor)| figure / floor));
        Self {
            what: what.to_owned(),
            unit: unit.to_owned(),
            floor_is: floor_is.to_owned(),
            figure: median(&sorted(rounds.iter().map(|round| round.0))),
            floor: median(&sorted(rounds.iter().map(|round| round.1))),
            ratio: median(&ratios),
            spread: [ratios[0], ratios[ratios.len() - 1]],
        }
    }

    fn is(&self, other: &Self) -> bool {
        (&self.what, &self.floor_is) == (&other.what, &other.floor_is)
    }

    /// Whether each of its rounds is worse than all that were recorded, by more than the [`MARGIN`].
    fn is_worse_than(&self, recorded: &Self) -> bool {
        let ([least, most], [low, high]) = (self.spread, recorded.spread);
        if self.unit == "/s" { most < low * (1.0 - MARGIN) } else { least > high * (1.0 + MARGIN) }
    }
}

fn sorted(values: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values
}

fn median(sorted: &[f64]) -> f64 {
    sorted[sorted.len() / 2]
}

/// A row for each of these percentiles of times, in milliseconds, of rounds that each have the figure's times and the floor's, sorted. Panics
/// without times.
pub fn percentiles<const N: usize>(
    what: &str,
    floor_is: &str,
    rounds: &[(Vec<Duration>, Vec<Duration>)],
    percents: [usize; N],
) -> [Row; N] {
    percents.map(|percent| {
        let of = |times: &[Duration]| percentile(times, percent);
        let pairs: Vec<_> = rounds.iter().map(|(figure, floor)| (of(figure), of(floor))).collect();
        Row::new(&format!("{what}, p{percent}"), "ms", floor_is, &pairs)
    })
}

/// All rows of one machine.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Processor, cores and memory.
    pub machine: String,
    /// The rows by bench.
    pub benches: BTreeMap<String, Vec<Row>>,
}

impl Report {
    /// Reads a report. A missing file is an empty report.
    pub fn read(path: &Path) -> anyhow::Result<Self> {
        match std::fs::read(path) {
            Ok(bytes) => Ok(serde_json::from_slice(&bytes)?),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(error.into()),
        }
    }

    /// This report, with those benches of an earlier one that it lacks.
    pub fn over(mut self, earlier: Self) -> Self {
        for (bench, rows) in earlier.benches {
            self.benches.entry(bench).or_insert(rows);
        }
        self
    }

    /// The rows as Markdown tables, each with the command that repeats it.
    pub fn tables(&self) -> String {
        let mut text = String::new();
        for (bench, rows) in &self.benches {
            let _ = write!(text, "\n### {bench}\n\n{}", table(rows));
        }
        text
    }

    /// The rows whose rounds here are all worse than all that were recorded, each with both spreads.
    pub fn worse_than(&self, recorded: &Self) -> Vec<String> {
        let mut worse = Vec::new();
        for (bench, rows) in &recorded.benches {
            let now = self.benches.get(bench).map_or(&[][..], Vec::as_slice);
            for old in rows {
                let Some(new) = now.iter().find(|new| new.is(old)) else { continue };
                if new.is_worse_than(old) {
                    let ([least, most], [low, high]) = (new.spread, old.spread);
                    worse.push(format!(
                        "{bench} {}, to {}: {least:.2} to {most:.2}, recorded {low:.2} to {high:.2}",
                        old.what, old.floor_is
                    ));
                }
            }
        }
        worse
    }
}

/// Rows as a Markdown table.
fn table(rows: &[Row]) -> String {
    let mut table = String::from("| what | figure | floor | ratio | spread |\n|---|---|---|---|---|\n");
    for Row { what, unit, floor_is, figure, floor, ratio, spread: [least, most] } in rows {
        let values =
            format!("{figure:.2} {unit} | {floor:.2} ({floor_is}) | {ratio:.2} | {least:.2} to {most:.2}");
        let _ = writeln!(table, "| {what} | {values} |");
    }
    table
}

/// Where the report of this machine is.
pub fn path() -> PathBuf {
    root().join("target/bench/report.json")
}

/// Whether a row is to be measured: `OUTRIGGER_BENCH_ROW`, a part of its bench and name, says which. By default all are.
pub fn is_wanted(bench: &str, row: &str) -> bool {
    std::env::var("OUTRIGGER_BENCH_ROW").map_or(true, |wanted| format!("{bench} {row}").contains(&wanted))
}

/// Whether one of these rows is to be measured.
pub fn is_any_wanted(bench: &str, rows: &[&str]) -> bool {
    rows.iter().any(|row| is_wanted(bench, row))
}

/// Puts rows of one bench in place of the former ones of the same name, and returns them as a Markdown table.
fn write(bench: &str, rows: &[Row]) -> anyhow::Result<String> {
    let path = path();
    let mut report = Report::read(&path)?;
    report.machine = machine();
    let known = report.benches.entry(bench.to_owned()).or_default();
    for row in rows {
        match known.iter_mut().find(|old| old.is(row)) {
            Some(old) => *old = row.clone(),
            None => known.push(row.clone()),
        }
    }
    std::fs::create_dir_all(root().join("target/bench"))?;
    std::fs::write(&path, serde_json::to_vec_pretty(&report)?)?;
    Ok(table(rows))
}

/// Puts rows of one bench into the report of this machine, and prints them.
#[allow(clippy::print_stdout)] // Figures are for a terminal.
pub fn record(bench: &str, rows: &[Row]) {
    println!("{}", write(bench, rows).expect("the report can be written"));
}

fn machine() -> String {
    let field = |file: &str, name: &str| {
        let text = std::fs::read_to_string(file).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default().to_owned();
        line.trim_start_matches([':', ' ', '\t']).to_owned()
    };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let (model, memory) = (field("/proc/cpuinfo", "model name"), field("/proc/meminfo", "MemTotal"));
    format!("{model}, {cores} cores, {memory} of memory")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(unit: &str, rounds: &[(f64, f64)]) -> Report {
        let rows = vec![Row::new("x", unit, "floor", rounds)];
        Report { machine: String::new(), benches: [("b".to_owned(), rows)].into() }
    }

    #[test]
    fn a_report_replaces_the_benches_that_it_has_and_keeps_the_others() {
        let rows = |ratio| vec![Row::new("x", "ms", "floor", &[(ratio, 1.0)])];
        let of = |benches: &[(&str, f64)]| Report {
            machine: String::new(),
            benches: benches.iter().map(|(bench, ratio)| ((*bench).to_owned(), rows(*ratio))).collect(),
        };
        let both = of(&[("a", 2.0)]).over(of(&[("a", 1.0), ("b", 1.0)]));
        assert_eq!(both, of(&[("a", 2.0), ("b", 1.0)]));
    }

    #[test]
    fn a_row_is_worse_only_if_all_its_rounds_are_beyond_the_spread_and_in_its_direction() {
        let recorded = [(8.0, 10.0), (9.0, 10.0), (10.0, 10.0)];
        for (unit, ratios, worse) in [
            ("/s", [0.5, 0.7], true),
            ("/s", [0.5, 0.75], false),
            ("/s", [1.5, 1.6], false),
            ("ms", [0.5, 0.7], false),
            ("ms", [1.05, 1.2], false),
            ("ms", [1.15, 1.2], true),
        ] {
            let now = report(unit, &ratios.map(|ratio| (ratio, 1.0)));
            let found = now.worse_than(&report(unit, &recorded));
            assert_eq!(found.len(), usize::from(worse), "{unit} {ratios:?}: {found:?}");
        }
        // Counts have no spread: one write more than none is worse.
        let writes = |count| report("writes", &[(count, 20_000.0)]);
        assert_eq!(writes(1.0).worse_than(&writes(0.0)).len(), 1);
        assert!(writes(0.0).worse_than(&writes(0.0)).is_empty());
        assert!(
            report("ms", &recorded)
                .tables()
                .contains("| x | 9.00 ms | 10.00 (floor) | 0.90 | 0.80 to 1.00 |")
        );
    }
}
