//! Tables for people.

use std::io::{Result, Write};

use anstyle::Style;

/// Prints columns as wide as their widest cell, and empty cells as `-`.
pub(crate) fn print<R: IntoIterator<Item = String>>(
    heads: &[&str],
    rows: impl IntoIterator<Item = (Style, R)>,
    out: &mut impl Write,
) -> Result<()> {
    let or_none = |cell: String| if cell.is_empty() { "-".to_owned() } else { cell };
    let rows: Vec<(Style, Vec<String>)> =
        rows.into_iter().map(|(style, row)| (style, row.into_iter().map(or_none).collect())).collect();
    let mut widths: Vec<usize> = heads.iter().map(|head| head.chars().count()).collect();
    for (_, row) in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let line = |row: &mut dyn Iterator<Item = &str>| {
        let cells = row.zip(&widths).map(|(cell, width)| format!("{cell:width$}"));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    writeln!(out, "{}", line(&mut heads.iter().copied()))?;
    for (style, row) in &rows {
        writeln!(out, "{style}{}{style:#}", line(&mut row.iter().map(String::as_str)))?;
    }
    Ok(())
}
