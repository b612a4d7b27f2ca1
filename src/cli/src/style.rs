//! How text for people looks on a terminal.

use anstyle::{AnsiColor, Style};

/// A heading.
pub(crate) const BOLD: Style = Style::new().bold();
/// What is as it should be.
pub(crate) const GOOD: Style = AnsiColor::Green.on_default();
/// What is wrong.
pub(crate) const BAD: Style = AnsiColor::Red.on_default();
/// What deserves attention.
pub(crate) const ODD: Style = AnsiColor::Yellow.on_default();
/// What matters less.
pub(crate) const DIM: Style = Style::new().dimmed();
