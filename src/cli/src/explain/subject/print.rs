//! The report for people.

use std::io::{Result, Write};

use super::report::{Report, Wrong};
use crate::explain::print::line;
use crate::style::{BAD, BOLD, GOOD, ODD};

/// Writes all of it.
pub(super) fn report(report: &Report, out: &mut impl Write) -> Result<()> {
    for note in &report.notes {
        writeln!(out, "{ODD}note:{ODD:#} {}", line(note))?;
    }
    writeln!(out, "{BOLD}{} {}{BOLD:#}", report.kind, line(&report.name))?;
    for fact in &report.facts {
        writeln!(out, "  {}: {}", line(&fact.name), line(&fact.value))?;
    }
    if report.wrong.is_empty() {
        // What may not be read may be wrong.
        match report.notes.as_slice() {
            [] => writeln!(out, "  {GOOD}nothing is wrong{GOOD:#}")?,
            _ => writeln!(out, "  {ODD}nothing is known to be wrong{ODD:#}")?,
        }
    }
    report.wrong.iter().try_for_each(|wrong| one(wrong, out))
}

fn one(wrong: &Wrong, out: &mut impl Write) -> Result<()> {
    let Wrong { about, cause, message, meaning, tenant, platform, since } = wrong;
    let since = if since.is_empty() { String::new() } else { format!(", since {}", line(since)) };
    writeln!(out, "  {BAD}{}{BAD:#} ({}{since}): {meaning}", line(cause), line(about))?;
    if !message.is_empty() {
        writeln!(out, "    {}", line(message))?;
    }
    writeln!(out, "    tenant: {tenant}")?;
    writeln!(out, "    platform: {platform}")
}
