//! The report of the benches: each figure beside its floor, measured in the same run, in `target/bench/report.json` and as a
//! Markdown table.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::root;

/// One row: a figure, and the same figure of the least that could do the work.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Row {
    /// What is measured, and how.
    pub what: String,
    /// The unit of both figures.
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
}

fn sorted(values: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values
}

fn median(sorted: &[f64]) -> f64 {
    sorted[sorted.len() / 2]
}

/// Where the report is.
pub fn path() -> PathBuf {
    root().join("target/bench/report.json")
}

/// Whether a row is to be measured: `OUTRIGGER_BENCH_ROW`, a part of its bench and name, says which. By default all are.
pub fn is_wanted(bench: &str, row: &str) -> bool {
    std::env::var("OUTRIGGER_BENCH_ROW").map_or(true, |wanted| format!("{bench} {row}").contains(&wanted))
}

/// Puts rows of one bench in place of the former ones of the same name, and returns them as a Markdown table.
pub fn write(bench: &str, rows: &[Row]) -> anyhow::Result<String> {
    let mut table = format!("| {bench} | figure | floor | ratio | spread |\n|---|---|---|---|---|\n");
    for Row { what, unit, floor_is, figure, floor, ratio, spread: [least, most] } in rows {
        let values =
            format!("{figure:.2} {unit} | {floor:.2} ({floor_is}) | {ratio:.2} | {least:.2} to {most:.2}");
        writeln!(table, "| {what} | {values} |")?;
    }
    let path = path();
    let mut all: BTreeMap<String, Vec<Row>> = match std::fs::read(&path) {
        Ok(bytes) => serde_json::from_slice(&bytes)?,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => BTreeMap::new(),
        Err(error) => return Err(error.into()),
    };
    let known = all.entry(bench.to_owned()).or_default();
    for row in rows {
        let same = |old: &&mut Row| (&old.what, &old.floor_is) == (&row.what, &row.floor_is);
        match known.iter_mut().find(same) {
            Some(old) => *old = row.clone(),
            None => known.push(row.clone()),
        }
    }
    std::fs::create_dir_all(root().join("target/bench"))?;
    std::fs::write(&path, serde_json::to_vec_pretty(&all)?)?;
    Ok(table)
}
