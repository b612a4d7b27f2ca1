//! What the tenant's agent says of the annotations that it sends, and what rules say of those that it doesn't.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use outrigger_core::annotations::{Answer, Known, Statement};
use outrigger_core::ids::RuleName;
use outrigger_core::index::CompanionKey;
use tokio::time::Instant;

use super::TenantData;

/// How long an agent has to say whether it sends an annotation for which it is asked. An agent answers within seconds; afterwards the
/// annotation counts as withheld, so that an agent that never answers doesn't keep companions of the platform away.
const PATIENCE: Duration = Duration::from_secs(60);

/// How many keys a message names.
const SHOWN: usize = 8;

/// Since when the agent has been asked for keys of which it has said nothing.
pub(crate) type Asked = BTreeMap<String, Instant>;

impl TenantData {
    /// The agent says this, of all workloads that it has sent on the stream. Returns the companions that it may change; `None` if it has
    /// said so before.
    pub(crate) fn said(&mut self, statement: Option<Statement>) -> Option<Vec<CompanionKey>> {
        statement.and_then(|statement| self.set_known(self.index.known().said(statement)))
    }

    /// What is known of annotations changes. Returns the companions that it may change; `None` if it doesn't change.
    pub(crate) fn set_known(&mut self, known: Known) -> Option<Vec<CompanionKey>> {
        if known == *self.index.known() {
            return None;
        }
        let (mut keys, rules) = self.index.set_known(known);
        for rule in &rules {
            // What was undecided may exist, and be wanted no longer.
            let exist = self.read_companions(rule, |companions| {
                companions.of_rule(rule).map(|(key, _)| key).collect::<Vec<_>>()
            });
            keys.extend(exist.into_iter().flatten());
        }
        // Nothing may be known any longer of those that were served in an earlier state.
        let refused: Vec<Arc<str>> = self.index.refused_after(None).cloned().collect();
        refused.iter().for_each(|label| self.changed(label));
        self.notify_of_annotations();
        Some(keys)
    }

    /// Rules have changed, or what is known of annotations: workloads may wait or no longer, and the agent may have to be asked.
    pub(super) fn notify_of_annotations(&mut self) {
        for label in self.index.undecided_changed() {
            self.changed(&label);
        }
        self.outcomes.wake();
    }

    /// Has keys count as withheld of which the agent says nothing, or for which it isn't asked because there are too many. Returns the
    /// companions that this may change, and when to look again.
    pub(crate) fn expire_asked(&mut self, now: Instant) -> (Vec<CompanionKey>, Option<Duration>) {
        let awaited = self.index.needed().filter(|key| self.index.known().awaits(key)).map(str::to_owned);
        let since = |key: &String| self.asked.get(key).copied().unwrap_or(now);
        let asked: Asked = awaited.map(|key| (key.clone(), since(&key))).collect();
        let left = |since: &Instant| (*since + PATIENCE).saturating_duration_since(now);
        let (overdue, waiting): (Vec<_>, Vec<_>) = asked.iter().partition(|(_, since)| left(since).is_zero());
        let again = waiting.iter().map(|(_, since)| left(since)).min();
        let overdue: BTreeSet<String> = overdue.into_iter().map(|(key, _)| key.clone()).collect();
        self.asked = asked;
        (self.set_known(self.index.known().overdue(overdue)).unwrap_or_default(), again)
    }

    /// What the status of a rule of the tenant says of annotations that it names and that aren't sent: the problem, and the remedy. `None`
    /// if all are.
    pub(crate) fn not_sent(&self, name: &RuleName) -> Option<String> {
        let unsent = self.index.unsent(self.index.rule(name)?);
        let all = listed(&unsent)?;
        let so = "companions lack them, and where they decide, nothing is made and nothing deleted";
        if unsent.values().all(|answer| *answer == Answer::Pending) {
            return Some(format!(
                "the tenant's agent has been asked for annotations that the rule names ({all}), and until it answers they are unknown: {so}"
            ));
        }
        let upgrade = if self.index.known().is_silent() { ", or upgrade the agent" } else { "" };
        Some(format!(
            "the tenant's agent doesn't send annotations that the rule names ({all}), so they are unknown: {so}; have the tenant admit \
             them by --allow-annotation of its agent{upgrade}"
        ))
    }

    /// The annotations that a rule names and that aren't sent. `None` if all are.
    pub(crate) fn unsent(&self, name: &RuleName) -> Option<String> {
        listed(&self.index.unsent(self.index.rule(name)?))
    }
}

/// Some keys, and how many more there are.
fn listed(unsent: &BTreeMap<&str, Answer>) -> Option<String> {
    let shown = unsent.keys().take(SHOWN).copied().collect::<Vec<_>>().join(", ");
    match unsent.len().saturating_sub(SHOWN) {
        _ if unsent.is_empty() => None,
        0 => Some(shown),
        more => Some(format!("{shown} and {more} more")),
    }
}

#[cfg(test)]
mod tests;
