//! The report for people: one screen.

use std::io::{Result, Write};

use anstyle::Style;

use super::report::{InstallationStatus, Report, RuleRow, TenantRow};
use crate::check::plain;
use crate::style::{BAD, BOLD, ODD};
use crate::table;

const GOOD: Style = Style::new();

/// Most rows of a table. Those with problems come first.
const ROWS: usize = 20;

pub(super) fn report(report: &Report, out: &mut impl Write) -> Result<()> {
    if let Some(status) = &report.installation {
        installation(status, out)?;
    }
    if let Some(tenants) = &report.tenants {
        heading("tenants", tenants.len(), out)?;
        let heads = ["TENANT", "READY", "DPUS", "STREAM", "WORKLOADS", "REASON"];
        rows(&heads, tenants.iter().map(|row| (tenant_style(row), tenant(row))).collect(), out)?;
    }
    if let Some(rules) = &report.rules {
        heading("rules", rules.len(), out)?;
        let heads = ["RULE", "MATCHED", "CREATED", "READY", "REASON"];
        rows(&heads, rules.iter().map(|row| (rule_style(row), rule(row))).collect(), out)?;
    }
    if let Some(companions) = &report.companions {
        heading("companions", companions.values().flat_map(|states| states.values()).sum(), out)?;
        let cells = |(namespace, states): (&String, &std::collections::BTreeMap<&'static str, usize>)| {
            let states: Vec<String> =
                states.iter().map(|(state, count)| format!("{count} {state}")).collect();
            let is_good = states.iter().all(|state| state.ends_with(" Ready"));
            (if is_good { GOOD } else { ODD }, [namespace.clone(), states.join(", ")])
        };
        rows(&["NAMESPACE", "COMPANIONS"], companions.iter().map(cells).collect(), out)?;
    }
    if let Some(dpus) = &report.dpus {
        heading("DPUs", dpus.iter().map(|row| row.dpus).sum(), out)?;
        let cells = dpus.iter().map(|row| {
            let numbers = [row.dpus, row.ready, row.cordoned, row.handed_over].map(|n| n.to_string());
            let [all, ready, cordoned, handed_over] = numbers;
            let is_good = row.ready == row.dpus && row.handed_over == 0;
            (if is_good { GOOD } else { ODD }, [row.tenant.clone(), all, ready, cordoned, handed_over])
        });
        rows(&["TENANT", "DPUS", "READY", "CORDONED", "HANDED OVER"], cells.collect(), out)?;
    }
    if !report.certificates.is_empty() {
        heading("certificates", report.certificates.len(), out)?;
        let cells = report.certificates.iter().map(|row| {
            let style = match row.state {
                "Expired" => BAD,
                "Expires" => ODD,
                _ => GOOD,
            };
            let part = format!("{} {}", row.part, row.what);
            (style, [part, row.state.to_owned(), row.not_after.clone(), row.object.clone()])
        });
        rows(&["CERTIFICATE", "STATE", "ENDS", "OBJECT"], cells.collect(), out)?;
    }
    for what in &report.not_visible {
        writeln!(out, "{ODD}not visible:{ODD:#} {}", plain(what))?;
    }
    Ok(())
}

fn heading(what: &str, count: usize, out: &mut impl Write) -> Result<()> {
    writeln!(out, "{BOLD}{what}{BOLD:#} ({count})")
}

/// A table with an empty line below it. Rows with problems come first, and of many rows the first are shown.
fn rows<const N: usize>(
    heads: &[&str; N],
    mut all: Vec<(Style, [String; N])>,
    out: &mut impl Write,
) -> Result<()> {
    if !all.is_empty() {
        all.sort_by_key(|(style, _)| match *style {
            BAD => 0,
            ODD => 1,
            _ => 2,
        });
        let more = all.get(ROWS..).unwrap_or_default();
        let (more, problems) = (more.len(), more.iter().filter(|(style, _)| *style != GOOD).count());
        let shown = all.into_iter().take(ROWS).map(|(style, row)| (style, row.map(|cell| plain(&cell))));
        table::print(heads, shown, out)?;
        if more > 0 {
            writeln!(out, "and {more} more, {problems} of them with problems")?;
        }
    }
    writeln!(out)
}

fn installation(status: &InstallationStatus, out: &mut impl Write) -> Result<()> {
    writeln!(out, "{BOLD}installation{BOLD:#} (namespace {})", status.namespace)?;
    let parts = status.parts.iter().map(|row| {
        let style = if row.ready >= row.replicas && row.versions.len() < 2 { GOOD } else { BAD };
        let ready = format!("{}/{}", row.ready, row.replicas);
        (style, [row.part.to_owned(), row.versions.join(", "), ready])
    });
    let parts: Vec<_> = parts.collect();
    if !parts.is_empty() {
        table::print(&["PART", "VERSION", "READY"], parts, out)?;
    }
    for row in &status.webhooks {
        match row.entries {
            0 => writeln!(out, "{BAD}{}: not found{BAD:#}", row.kind)?,
            entries => writeln!(out, "{}: {entries} webhooks", row.kind)?,
        }
    }
    if let Some(policies) = &status.policies {
        let found = policies.shipped - policies.missing.len();
        write!(out, "policies: {found} of {}", policies.shipped)?;
        match policies.missing.as_slice() {
            [] => writeln!(out)?,
            missing => writeln!(out, "; {ODD}not found: {}{ODD:#}", missing.join(", "))?,
        }
    }
    writeln!(out)
}

/// Reason and message in one cell.
fn words(reason: &str, message: &str) -> String {
    if message.is_empty() { reason.to_owned() } else { format!("{reason}: {message}") }
}

fn tenant_style(row: &TenantRow) -> Style {
    match (row.ready.as_str(), row.connected) {
        ("True", Some(true)) => GOOD,
        ("False", _) => BAD,
        _ => ODD,
    }
}

fn tenant(row: &TenantRow) -> [String; 6] {
    let stream = match row.connected {
        Some(true) => format!("connected since {}", row.since),
        Some(false) => format!("lost since {}", row.since),
        None => "never connected".to_owned(),
    };
    let workloads = row.workloads.map(|count| count.to_string()).unwrap_or_default();
    let reason = words(&row.reason, &row.message);
    [row.name.clone(), row.ready.clone(), row.dpus.to_string(), stream, workloads, reason]
}

fn rule_style(row: &RuleRow) -> Style {
    match row.reason.as_str() {
        "" => GOOD,
        "Invalid" | "Refused" | "LimitReached" | "NameTaken" => BAD,
        _ => ODD,
    }
}

fn rule(row: &RuleRow) -> [String; 5] {
    let admin = if row.kind == "AdminWorkloadRule" { " (admin)" } else { "" };
    let [matched, created, ready] = [row.matched, row.created, row.ready].map(|count| count.to_string());
    let name = format!("{}/{}{admin}", row.namespace, row.name);
    [name, matched, created, ready, words(&row.reason, &row.message)]
}
