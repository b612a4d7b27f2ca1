//! The report for people.

use std::io::{Result, Write};

use anstyle::{AnsiColor, Style};

use super::report::{Change, CompanionChange, Report, RuleChange};
use crate::check::plain;
use crate::rules::RuleKind;
use crate::slots::GuestSlot;
use crate::style::{BAD, ODD};
use crate::table;

/// Heads of the columns of [`cells`].
pub(crate) const HEADS: [&str; 5] = ["CHANGE", "COMPANION", "WORKLOAD", "NODES", "REASON"];

/// Most Nodes that are named in a cell.
const SHOWN: usize = 4;

/// The rules, a table of the companions, and how many of each there are.
pub(super) fn report(report: &Report, out: &mut impl Write) -> Result<()> {
    match report.tenants.as_slice() {
        [] => {}
        [tenant] => writeln!(out, "tenant {tenant}")?,
        several => writeln!(out, "tenants {}", several.join(", "))?,
    }
    for note in &report.notes {
        writeln!(out, "{ODD}note:{ODD:#} {}", plain(note))?;
    }
    for rule in &report.rules {
        let style = if rule.change == RuleChange::Refused { BAD } else { Style::new() };
        let kind = if rule.kind == RuleKind::AdminWorkloadRule { "admin rule" } else { "rule" };
        writeln!(out, "{kind} {}/{}: {style}{}{style:#}", rule.namespace, rule.name, rule.change.as_str())?;
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
    if report.tenants.len() > 1 {
        let tenants = report.companions.iter().map(|entry| entry.tenant.clone());
        let rows = tenants.zip(rows).map(|(tenant, (style, cells))| {
            let [change, companion, workload, nodes, reason] = cells;
            (style, [change, tenant, companion, workload, nodes, reason])
        });
        let [change, companion, workload, nodes, reason] = HEADS;
        table::print(&[change, "TENANT", companion, workload, nodes, reason], rows, out)?;
    } else {
        table::print(&HEADS, rows, out)?;
    }
    writeln!(out, "{}", counts(report))
}

/// How many companions change in each way.
pub(crate) fn counts(report: &Report) -> String {
    let all = [
        Change::Created,
        Change::Replaced,
        Change::Outdated,
        Change::Annotated,
        Change::Lingering,
        Change::Deleted,
        Change::Refused,
    ];
    let counts = all.into_iter().filter_map(|change| {
        let count = report.companions.iter().filter(|entry| entry.change == change).count();
        (count > 0).then(|| format!("{count} {}", change.as_str()))
    });
    counts.collect::<Vec<_>>().join(", ")
}

fn style(change: Change) -> Style {
    match change {
        Change::Created => AnsiColor::Green.on_default(),
        Change::Deleted | Change::Refused => AnsiColor::Red.on_default(),
        Change::Replaced | Change::Outdated | Change::Annotated | Change::Lingering => {
            AnsiColor::Yellow.on_default()
        }
    }
}

/// What the table says of a companion, without characters that control a terminal.
pub(crate) fn cells(entry: &CompanionChange) -> [String; 5] {
    let nodes = entry.nodes.as_deref().unwrap_or_default();
    let mut shown = nodes.iter().take(SHOWN).cloned().collect::<Vec<_>>().join(",");
    if nodes.len() > SHOWN {
        shown += &format!(" and {} more", nodes.len() - SHOWN);
    }
    let annotations = entry.annotations.join(", ");
    let slot = entry.slot.as_ref().map_or_else(String::new, |slot| {
        let GuestSlot { machine_group, machine_type, slots, free } = slot;
        format!("takes a slot of {machine_group}/{machine_type}, {free} of {slots} are free")
    });
    let reasons = [&entry.reason, &annotations, &slot, entry.problem.as_ref().unwrap_or(&String::new())]
        .into_iter()
        .filter(|reason| !reason.is_empty())
        .cloned()
        .collect::<Vec<_>>()
        .join("; ");
    // Those of admin rules are in a namespace of their own.
    let companion = match entry.rule_kind {
        RuleKind::WorkloadRule => entry.companion.clone(),
        RuleKind::AdminWorkloadRule => format!("{}/{}", entry.namespace, entry.companion),
    };
    [entry.change.as_str().to_owned(), companion, entry.workload.clone(), shown, reasons]
        .map(|cell| plain(&cell))
}
