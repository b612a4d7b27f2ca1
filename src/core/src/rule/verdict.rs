//! What holds where not everything is known.

use super::Expression;
use crate::path::Path;
use crate::workload::Workload;

/// Whether something holds, where not everything is known. An AND is the least of its parts, and an OR the greatest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// It doesn't hold, whatever is unknown.
    No,
    /// What is unknown decides.
    Unknown,
    /// It holds, whatever is unknown.
    Yes,
}

impl From<bool> for Verdict {
    fn from(holds: bool) -> Self {
        if holds { Self::Yes } else { Self::No }
    }
}

/// Whether a workload of which these fields are unknown passes all expressions of a term.
pub fn term_verdict(term: &[Expression], workload: &Workload, unknown: impl Fn(&Path) -> bool) -> Verdict {
    term.iter().map(|e| e.verdict(workload, &unknown)).min().unwrap_or(Verdict::Yes)
}
