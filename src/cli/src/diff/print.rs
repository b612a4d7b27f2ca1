//! The report for people.

use std::collections::BTreeMap;

use super::report::{Change, CompanionChange, Report, RuleChange, RuleVerdict};
use crate::document::{Document, Grade, Item, Readable, Row, Table, bad, graded, item, odd};
use crate::rules::RuleKind;
use crate::slots::GuestSlot;

/// Most Nodes that are named in a cell.
const SHOWN: usize = 4;

impl Readable for Report {
    fn document(&self) -> Document {
        self.with_companions(None)
    }
}

impl Report {
    /// The rules, a table of at most so many companions, and how many of each there are.
    pub(crate) fn with_companions(&self, most: Option<usize>) -> Document {
        let mut document = Document::default();
        match self.tenants.as_slice() {
            [] => {}
            [tenant] => document.add(item!["tenant ", tenant]),
            several => document.add(item!["tenants ", several.join(", ")]),
        }
        document.notes(&self.notes);
        self.rules.iter().map(one_rule).for_each(|rule| document.add(rule));
        if self.companions.is_empty() {
            document.add(item!["no companion changes"]);
            return document;
        }
        document.gap();
        let of_several = self.tenants.len() > 1;
        let mut heads = vec!["CHANGE", "COMPANION", "WORKLOAD", "NODES", "REASON"];
        if of_several {
            heads.insert(1, "TENANT");
        }
        let rows = self.companions.iter().map(|entry| row(entry, of_several)).collect();
        document.table(Table { name: "Companions".to_owned(), heads, rows, most });
        document.add(item![self.counts()]);
        document
    }

    /// How many companions change in each way, in the order of [`Change`].
    fn counts(&self) -> String {
        let mut counts = BTreeMap::<Change, usize>::new();
        for entry in &self.companions {
            *counts.entry(entry.change).or_default() += 1;
        }
        let counts = counts.into_iter().map(|(change, count)| format!("{count} {}", change.as_str()));
        counts.collect::<Vec<_>>().join(", ")
    }
}

fn one_rule(rule: &RuleVerdict) -> Item {
    let kind = if rule.kind == RuleKind::AdminWorkloadRule { "admin rule" } else { "rule" };
    let name = format_args!("{kind} {}/{}: ", rule.namespace, rule.name);
    let grade = match rule.change {
        RuleChange::Refused => Grade::Bad,
        RuleChange::Deleted => Grade::Odd,
        RuleChange::Created | RuleChange::Changed | RuleChange::Unchanged => Grade::Good,
    };
    item![name, graded(grade, rule.change.as_str())]
        .with(rule.errors.iter().map(|error| item![bad("error:"), " ", error]))
        .with(rule.warnings.iter().map(|warning| item![odd("warning:"), " ", warning]))
}

fn row(entry: &CompanionChange, of_several: bool) -> Row {
    let grade = match entry.change {
        Change::Created | Change::Resized | Change::Updated | Change::Annotated => Grade::Good,
        Change::Replaced | Change::Outdated | Change::Lingering | Change::Deleted => Grade::Odd,
        Change::Refused => Grade::Bad,
    };
    let nodes = entry.nodes.as_deref().unwrap_or_default();
    let mut shown = nodes.iter().take(SHOWN).cloned().collect::<Vec<_>>().join(",");
    if nodes.len() > SHOWN {
        shown += &format!(" and {} more", nodes.len() - SHOWN);
    }
    let slot = entry.slot.as_ref().map_or_else(String::new, |slot| {
        let GuestSlot { machine_group, machine_type, slots, free } = slot;
        format!("takes a slot of {machine_group}/{machine_type}, {free} of {slots} are free")
    });
    let problem = entry.problem.clone().unwrap_or_default();
    let mut reasons = vec![entry.reason.clone(), entry.annotations.join(", "), slot, problem];
    reasons.retain(|reason| !reason.is_empty());
    // Those of admin rules are in a namespace of their own.
    let companion = match entry.rule_kind {
        RuleKind::WorkloadRule => entry.companion.clone(),
        RuleKind::AdminWorkloadRule => format!("{}/{}", entry.namespace, entry.companion),
    };
    let change = entry.change.as_str().to_owned();
    let mut cells = vec![change, companion, entry.workload.clone(), shown, reasons.join("; ")];
    if of_several {
        cells.insert(1, entry.tenant.clone());
    }
    Row::new(grade, cells)
}
