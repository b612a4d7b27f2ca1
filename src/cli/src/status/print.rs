//! The report for people: one screen.

use std::io::{Result, Write};

use anstyle::Style;

use super::report::Report;
use super::sections::{Grade, Section, sections};
use crate::check::plain;
use crate::style::{BAD, BOLD, ODD};
use crate::table;

/// Most rows of a table. Those with problems come first.
const ROWS: usize = 20;

fn style(grade: Grade) -> Style {
    match grade {
        Grade::Bad => BAD,
        Grade::Odd => ODD,
        Grade::Good => Style::new(),
    }
}

pub(super) fn report(report: &Report, out: &mut impl Write) -> Result<()> {
    for section in sections(report) {
        one(&section, out)?;
    }
    for what in &report.not_visible {
        writeln!(out, "{ODD}not visible:{ODD:#} {}", plain(what))?;
    }
    Ok(())
}

/// A section with an empty line below it. Of many rows the first are shown.
fn one(section: &Section, out: &mut impl Write) -> Result<()> {
    writeln!(out, "{BOLD}{}{BOLD:#} ({})", section.title, section.detail)?;
    let (shown, more) = section.rows.split_at(section.rows.len().min(ROWS));
    if !shown.is_empty() {
        let rows = shown.iter().map(|(grade, row)| (style(*grade), row.iter().map(|cell| plain(cell))));
        table::print(section.heads, rows, out)?;
    }
    if !more.is_empty() {
        let problems = more.iter().filter(|(grade, _)| *grade != Grade::Good).count();
        writeln!(out, "and {} more, {problems} of them with problems", more.len())?;
    }
    for (grade, line) in &section.lines {
        let style = style(*grade);
        writeln!(out, "{style}{line}{style:#}")?;
    }
    writeln!(out)
}
