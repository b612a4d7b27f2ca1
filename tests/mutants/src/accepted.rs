//! Mutants that no test needs to catch.

use std::fmt;

use anyhow::{Context, bail};
use serde::Deserialize;

use crate::mutant::Description;
use crate::root;

/// Where they are listed.
pub(crate) const FILE: &str = "tests/mutants/accepted.yaml";

/// A mutant that may survive. It covers every mutant with its description.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Accepted {
    mutant: String,
    becomes: Option<String>,
    reason: String,
}

impl Accepted {
    pub(crate) fn covers(&self, mutant: &Description) -> bool {
        (&self.mutant, &self.becomes) == (&mutant.mutant, &mutant.becomes)
    }
}

impl fmt::Display for Accepted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { mutant, becomes, reason } = self;
        write!(f, "{}    ({reason})", Description { mutant: mutant.clone(), becomes: becomes.clone() })
    }
}

/// As an entry of the list without its reason.
impl fmt::Display for Description {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // JSON's strings are YAML's.
        writeln!(f, "  - mutant: {}", serde_json::Value::from(self.mutant.as_str()))?;
        match &self.becomes {
            Some(line) => writeln!(f, "    becomes: {}", serde_json::Value::from(line.as_str())),
            None => Ok(()),
        }
    }
}

/// Reads the list.
pub(crate) fn read() -> anyhow::Result<Vec<Accepted>> {
    parse(&std::fs::read_to_string(root()?.join(FILE)).context(FILE)?).context(FILE)
}

fn parse(text: &str) -> anyhow::Result<Vec<Accepted>> {
    let list: Vec<Accepted> = serde_yaml::from_str(text)?;
    match list.iter().find(|accepted| accepted.reason.trim().is_empty()) {
        Some(accepted) => bail!("{}: has no reason", accepted.mutant),
        None => Ok(list),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mutant::tests::{second_operator, work_tree};

    #[test]
    fn an_entry_covers_the_mutant_that_it_describes_and_no_other() {
        let mutant = second_operator(1).describe(work_tree(0).path()).unwrap();
        let list = parse(&format!("{mutant}    reason: r\n")).unwrap();
        assert!(list[0].covers(&mutant));
        let first_operator = Description { becomes: Some("a <= b && é < c".into()), ..mutant.clone() };
        assert!(!list[0].covers(&first_operator));
        assert!(!list[0].covers(&Description { becomes: None, ..mutant }));
    }

    #[test]
    fn an_entry_needs_a_reason() {
        assert!(parse("- {mutant: m, reason: r}").is_ok());
        for wrong in ["- {mutant: m}", "- {mutant: m, reason: ' '}", "- {mutant: m, reason: r, because: b}"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_list_can_be_read() {
        read().unwrap();
    }
}
