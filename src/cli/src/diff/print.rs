//! The report for people.

use std::io::{Result, Write};

use anstyle::{AnsiColor, Style};

use super::report::{Change, CompanionChange, Report, RuleChange};
use crate::check::plain;
use crate::table;

const HEADS: [&str; 5] = ["CHANGE", "COMPANION", "WORKLOAD", "NODES", "REASON"];

/// Most Nodes that are named in a cell.
const SHOWN: usize = 4;

/// The rules, a table of the companions, and how many of each there are.
pub(super) fn report(report: &Report, out: &mut impl Write) -> Result<()> {
    const BAD: Style = AnsiColor::Red.on_default();
    const ODD: Style = AnsiColor::Yellow.on_default();
    if let Some(tenant) = &report.tenant {
        writeln!(out, "tenant {tenant}")?;
    }
    for note in &report.notes {
        writeln!(out, "{ODD}note:{ODD:#} {}", plain(note))?;
    }
    for rule in &report.rules {
        let style = if rule.change == RuleChange::Refused { BAD } else { Style::new() };
        writeln!(out, "rule {}/{}: {style}{}{style:#}", rule.namespace, rule.name, rule.change.as_str())?;
        for error in &rule.errors {
            writeln!(out, "  {BAD}error:{BAD:#} {}", plain(&error.to_string()))?;
        }
        for warning in &rule.warnings {
            writeln!(out, "  {ODD}warning:{ODD:#} {}", plain(warning))?;
        }
    }
    if report.companions.is_empty() {
        return writeln!(out, "no companion changes");
    }
    let rows = report.companions.iter().map(|entry| (style(entry.change), cells(entry)));
    writeln!(out)?;
    table::print(&HEADS, rows, out)?;
    let all = [
        Change::Created,
        Change::Replaced,
        Change::Outdated,
        Change::Annotated,
        Change::Deleted,
        Change::Refused,
    ];
    let counts = all.into_iter().filter_map(|change| {
        let count = report.companions.iter().filter(|entry| entry.change == change).count();
        (count > 0).then(|| format!("{count} {}", change.as_str()))
    });
    writeln!(out, "{}", counts.collect::<Vec<_>>().join(", "))
}

fn style(change: Change) -> Style {
    match change {
        Change::Created => AnsiColor::Green.on_default(),
        Change::Deleted | Change::Refused => AnsiColor::Red.on_default(),
        Change::Replaced | Change::Outdated | Change::Annotated => AnsiColor::Yellow.on_default(),
    }
}

fn cells(entry: &CompanionChange) -> [String; 5] {
    let nodes = entry.nodes.as_deref().unwrap_or_default();
    let mut shown = nodes.iter().take(SHOWN).cloned().collect::<Vec<_>>().join(",");
    if nodes.len() > SHOWN {
        shown += &format!(" and {} more", nodes.len() - SHOWN);
    }
    let annotations = entry.annotations.join(", ");
    let reasons = [&entry.reason, &annotations, entry.problem.as_ref().unwrap_or(&String::new())]
        .into_iter()
        .filter(|reason| !reason.is_empty())
        .cloned()
        .collect::<Vec<_>>()
        .join("; ");
    [entry.change.as_str().to_owned(), entry.companion.clone(), entry.workload.clone(), shown, reasons]
        .map(|cell| plain(&cell))
}
