//! The list for people.

use std::io::{Result, Write};

use anstyle::{AnsiColor, Style};

use super::device::Device;
use super::report::{Claim, Phase, Report};
use crate::explain::print::line;
use crate::style::{BOLD, ODD};

const HEADS: [&str; 7] = ["CLAIM", "STATE", "NODE", "DEVICES", "PODS", "RULE", "WORKLOAD"];

/// A table for each namespace of a tenant.
pub(super) fn report(report: &Report, out: &mut impl Write) -> Result<()> {
    for note in &report.notes {
        writeln!(out, "{ODD}note:{ODD:#} {note}")?;
    }
    if report.claims.is_empty() {
        writeln!(out, "no claims")?;
    }
    let place = |claim: &Claim| (claim.tenant.clone(), claim.namespace.clone());
    for (i, of_tenant) in report.claims.chunk_by(|a, b| place(a) == place(b)).enumerate() {
        if i > 0 {
            writeln!(out)?;
        }
        if let Some(first) = of_tenant.first() {
            writeln!(out, "{BOLD}tenant {}{BOLD:#} (namespace {})", first.tenant, first.namespace)?;
        }
        table(of_tenant, out)?;
    }
    Ok(())
}

fn table(claims: &[Claim], out: &mut impl Write) -> Result<()> {
    let rows: Vec<[String; 7]> = claims.iter().map(cells).collect();
    let width = |i: usize| {
        let cells = rows.iter().filter_map(|row| row.get(i)).map(|cell| cell.chars().count());
        cells.chain(HEADS.get(i).map(|head| head.len())).max().unwrap_or_default()
    };
    let joined = |row: &[&str]| {
        let cells = row.iter().enumerate().map(|(i, cell)| format!("{cell:width$}", width = width(i)));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    writeln!(out, "{}", joined(&HEADS))?;
    for (row, claim) in rows.iter().zip(claims) {
        let style = match claim.state {
            Phase::Pending => AnsiColor::Yellow.on_default(),
            _ => Style::new(),
        };
        let row: Vec<&str> = row.iter().map(String::as_str).collect();
        writeln!(out, "{style}{}{style:#}", joined(&row))?;
        if let Some(reason) = &claim.reason {
            writeln!(out, "    {reason}")?;
        }
        for device in claim.devices.iter().filter(|device| !device.more().is_empty()) {
            writeln!(out, "    {}: {}", device.path(), line(&device.more()))?;
        }
        let others: Vec<String> =
            claim.consumers.iter().filter(|consumer| !consumer.is_pod()).map(|one| one.path()).collect();
        if !others.is_empty() {
            writeln!(out, "    reserved for {}", line(&others.join(", ")))?;
        }
        for config in &claim.config {
            writeln!(out, "    {}", line(&config.brief()))?;
        }
        if !claim.former_pods.is_empty() {
            writeln!(out, "    reserved for Pods that are gone: {}", claim.former_pods.join(", "))?;
        }
    }
    Ok(())
}

fn cells(claim: &Claim) -> [String; 7] {
    let or_none = |text: String| if text.is_empty() { "-".to_owned() } else { text };
    let devices: Vec<String> = claim.devices.iter().map(Device::path).collect();
    [
        claim.name.clone(),
        claim.state.as_str().to_owned(),
        or_none(claim.node.clone().unwrap_or_default()),
        or_none(devices.join(",")),
        or_none(claim.pods.join(",")),
        or_none(claim.rule.clone().unwrap_or_default()),
        or_none(claim.workload.clone().unwrap_or_default()),
    ]
}
