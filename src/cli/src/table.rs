//! Tables for people.

use std::io::{Result, Write};

use anstyle::Style;

/// Prints columns as wide as their widest cell, and empty cells as `-`.
pub(crate) fn print<const N: usize>(
    heads: &[&str; N],
    rows: impl IntoIterator<Item = (Style, [String; N])>,
    out: &mut impl Write,
) -> Result<()> {
    let or_none = |cell: String| if cell.is_empty() { "-".to_owned() } else { cell };
    let rows: Vec<(Style, [String; N])> =
        rows.into_iter().map(|(style, row)| (style, row.map(or_none))).collect();
    let mut widths = heads.map(|head| head.chars().count());
    for (_, row) in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let line = |row: &mut dyn Iterator<Item = &str>| {
        let cells = row.zip(widths).map(|(cell, width)| format!("{cell:width$}"));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    writeln!(out, "{}", line(&mut heads.iter().copied()))?;
    for (style, row) in &rows {
        writeln!(out, "{style}{}{style:#}", line(&mut row.iter().map(String::as_str)))?;
    }
    Ok(())
}
