//! What is known of annotations that a workload lacks.
//!
//! A tenant's agent doesn't send all annotations of a Pod, and says which it sends ([`Statement`]). One that it sends and a workload
//! lacks is absent from the Pod. Of any other, nothing is known: what a rule says of it is [`Verdict::Unknown`](crate::rule::Verdict).

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use crate::path::Path;

/// The name of the map of a workload's annotations in `state.extra`.
pub const MAP: &str = "annotations";

/// `kubectl apply` writes the whole manifest into this annotation, with each literal value of a variable. Agents never send it.
pub const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// Maximum length of an annotation key in bytes: a prefix of 253 characters, a slash, and a name of 63.
pub const MAX_KEY: usize = 317;

/// Maximum number of keys that a manager asks an agent for, the first ones in their order.
pub const MAX_ASKED: usize = 128;

/// Maximum number of patterns in a [`Statement`], and of keys that it withholds or a workload does.
pub const MAX_STATED: usize = 4096;

/// Annotations of Pods: one key, all keys with a prefix, or all.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Pattern {
    /// `*`: all except [`LAST_APPLIED`].
    All,
    /// `example.com/*`: all keys with this prefix, which includes the slash.
    Prefix(String),
    /// `example.com/key`.
    Key(String),
}

impl Pattern {
    /// Whether it selects an annotation with this key.
    pub fn includes(&self, key: &str) -> bool {
        key != LAST_APPLIED
            && match self {
                Self::All => true,
                Self::Prefix(prefix) => key.starts_with(prefix.as_str()),
                Self::Key(one) => one == key,
            }
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => f.write_str("*"),
            Self::Prefix(prefix) => write!(f, "{prefix}*"),
            Self::Key(key) => f.write_str(key),
        }
    }
}

impl FromStr for Pattern {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let pattern = match text.strip_suffix('*') {
            Some("") => return Ok(Self::All),
            Some(prefix) if prefix.ends_with('/') => Self::Prefix(prefix.to_owned()),
            Some(_) => {
                return Err(format!("{text:?}: '*' is only allowed alone or after a '/': *, example.com/*"));
            }
            None => Self::Key(text.to_owned()),
        };
        if !is_key(text.trim_end_matches('*')) {
            return Err(format!(
                "{text:?} is not an annotation key: use example.com/key, example.com/* or *"
            ));
        }
        if text == LAST_APPLIED {
            return Err(format!(
                "{text} is never sent, because it contains whole objects with their secrets"
            ));
        }
        Ok(pattern)
    }
}

/// Whether a Pod may have an annotation with this key, as far as length and characters say. No Pod has any other.
pub fn is_key(text: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '/');
    !text.is_empty() && text.len() <= MAX_KEY && text.chars().all(plain)
}

/// Maximum number of different readings of workloads that are kept while a sync is incomplete.
const MAX_READINGS: usize = 4;

/// What an agent says of the annotations that it sends.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Statement {
    /// All are sent.
    all: bool,
    /// Prefixes with their slash: a key has few, so that many patterns cost no more than one.
    prefixes: BTreeSet<String>,
    keys: BTreeSet<String>,
    withheld: BTreeSet<String>,
}

impl Statement {
    /// It sends what these patterns select, and none of the keys that it withholds.
    pub fn new(sent: impl IntoIterator<Item = Pattern>, withheld: BTreeSet<String>) -> Self {
        let mut statement = Self { withheld, ..Self::default() };
        for pattern in sent {
            match pattern {
                Pattern::All => statement.all = true,
                Pattern::Prefix(prefix) => _ = statement.prefixes.insert(prefix),
                Pattern::Key(key) => _ = statement.keys.insert(key),
            }
        }
        statement
    }

    /// Whether the annotation with this key is sent.
    pub fn sends(&self, key: &str) -> bool {
        let mut prefixes = key.match_indices('/').map(|(slash, _)| &key[..=slash]);
        let selected =
            self.all || self.keys.contains(key) || prefixes.any(|prefix| self.prefixes.contains(prefix));
        selected && key != LAST_APPLIED && !self.withheld.contains(key)
    }

    /// The patterns of what is sent, in their order.
    pub fn sent(&self) -> impl Iterator<Item = String> {
        let all = self.all.then_some(Pattern::All);
        let patterns = all.into_iter().chain(self.prefixes.iter().cloned().map(Pattern::Prefix));
        patterns.map(|pattern| pattern.to_string()).chain(self.keys.iter().cloned())
    }

    /// The keys that were asked for and aren't sent, in their order.
    pub fn withheld(&self) -> impl Iterator<Item = &str> {
        self.withheld.iter().map(String::as_str)
    }
}

/// How the sender of workloads is to be understood.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Reading {
    /// It sends all annotations, as `universe.workload.v1` defines.
    #[default]
    All,
    /// An agent of an earlier version: it sends the annotations that the tenant's own rules name, those rules that it copies, and doesn't
    /// say which others.
    Silent,
    /// An agent that says what it sends.
    Said(Statement),
}

/// What there is to know of an annotation that a workload lacks. Of several readings the greatest answer counts: what is still to come
/// decides as long as it may.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Answer {
    /// It would have been sent: the Pod doesn't have it.
    Sent,
    /// The agent doesn't send it.
    Withheld,
    /// The agent will say.
    Pending,
}

impl Reading {
    /// What is known of the annotation with this key for a rule.
    fn answer(&self, copied: bool, key: &str) -> Answer {
        match self {
            Self::All => Answer::Sent,
            Self::Silent if copied => Answer::Sent,
            Self::Silent => Answer::Withheld,
            Self::Said(statement) if statement.sends(key) => Answer::Sent,
            Self::Said(statement) if statement.withheld.contains(key) || key == LAST_APPLIED => {
                Answer::Withheld
            }
            Self::Said(_) => Answer::Pending,
        }
    }
}

/// What is known of a tenant's annotations.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Known {
    now: Reading,
    /// Those of workloads that haven't been sent again yet by the sync that has begun, where they differ.
    before: Vec<Reading>,
    /// Keys that have been asked for without success for so long that they count as withheld.
    overdue: BTreeSet<String>,
}

impl Known {
    /// A sync begins, or has one more part: the workloads that are sent from now on are to be understood so, and those that were sent
    /// before as they were.
    #[must_use]
    pub fn begun(&self, reading: Reading) -> Self {
        let mut before = self.before.clone();
        if self.now != reading && !before.contains(&self.now) {
            before.push(self.now.clone());
        }
        before.retain(|before| *before != reading);
        if before.len() > MAX_READINGS {
            // Each sync began with another statement and none has ended. So many readings aren't kept: of an annotation that a workload
            // lacks, nothing is known.
            before = vec![Reading::Said(Statement::default())];
        }
        Self { before, now: reading, ..self.clone() }
    }

    /// All workloads have been sent again.
    #[must_use]
    pub fn completed(&self) -> Self {
        Self { before: Vec::new(), ..self.clone() }
    }

    /// All workloads are to be understood so from now on.
    #[must_use]
    pub fn said(&self, statement: Statement) -> Self {
        Self { now: Reading::Said(statement), ..self.clone() }
    }

    /// These keys count as withheld until the agent says otherwise.
    #[must_use]
    pub fn overdue(&self, keys: BTreeSet<String>) -> Self {
        Self { overdue: keys, ..self.clone() }
    }

    /// Forgets keys for which nobody asks any longer.
    pub(crate) fn retain_overdue(&mut self, is_asked: impl Fn(&str) -> bool) {
        self.overdue.retain(|key| is_asked(key));
    }

    /// Whether the agent has yet to say whether it sends the annotation with this key.
    pub fn awaits(&self, key: &str) -> bool {
        self.said_of(false, key) == Answer::Pending
    }

    /// Whether the agent is of an earlier version, which doesn't say what it sends.
    pub fn is_silent(&self) -> bool {
        self.now == Reading::Silent
    }

    /// What is known of the annotation with this key for a rule; `copied`: see [`crate::rule::Rule::is_copied`].
    pub fn answer(&self, copied: bool, key: &str) -> Answer {
        match self.said_of(copied, key) {
            Answer::Pending if self.overdue.contains(key) => Answer::Withheld,
            answer => answer,
        }
    }

    /// The same, however long the agent has had to say it.
    fn said_of(&self, copied: bool, key: &str) -> Answer {
        if !is_key(key) {
            return Answer::Sent;
        }
        let readings = std::iter::once(&self.now).chain(&self.before);
        readings.map(|reading| reading.answer(copied, key)).max().unwrap_or(Answer::Sent)
    }
}

/// The key of the annotation that a path selects.
pub fn key_of(path: &Path) -> Option<&str> {
    match path {
        Path::ExtraEntry(map, key) if &**map == MAP => Some(key),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn said(sent: &[&str], withheld: &[&str]) -> Reading {
        let sent = sent.iter().map(|text| text.parse().unwrap());
        Reading::Said(Statement::new(sent, withheld.iter().map(ToString::to_string).collect()))
    }

    #[test]
    fn what_is_neither_sent_nor_withheld_is_still_to_come() {
        let answer =
            |reading: Reading, key: &str| Known::default().begun(reading).completed().answer(false, key);
        use Answer::{Pending, Sent, Withheld};
        for (sent, withheld, expected) in [
            (&[][..], &[][..], Pending),
            (&["example.com/a"], &[], Sent),
            (&["example.com/*"], &[], Sent),
            (&["*"], &[], Sent),
            (&["example.com/b", "example.community/*"], &[], Pending),
            (&[], &["example.com/a"], Withheld),
            (&["*"], &["example.com/a"], Withheld),
        ] {
            assert_eq!(answer(said(sent, withheld), "example.com/a"), expected, "{sent:?} {withheld:?}");
        }
        assert_eq!(answer(said(&["*"], &[]), LAST_APPLIED), Withheld, "it is never sent");
        assert_eq!(answer(said(&[], &[]), "no key"), Sent, "no Pod has such an annotation");
        assert_eq!(answer(Reading::All, "example.com/a"), Sent);
    }

    #[test]
    fn an_agent_that_says_nothing_sends_what_the_rules_name_that_it_copies() {
        let silent = Known::default().begun(Reading::Silent).completed();
        assert_eq!(silent.answer(true, "a"), Answer::Sent);
        assert_eq!(silent.answer(false, "a"), Answer::Withheld);
    }

    #[test]
    fn during_a_sync_nothing_is_absent_that_one_of_both_readings_leaves_open() {
        let of = |before: Reading, now: Reading| {
            let known = Known { now: before, ..Known::default() }.begun(now);
            (known.answer(false, "a"), known.completed().answer(false, "a"))
        };
        use Answer::{Pending, Sent, Withheld};
        let (sent, withheld, open) = (said(&["a"], &[]), said(&[], &["a"]), said(&["b"], &[]));
        assert_eq!(of(sent.clone(), sent.clone()), (Sent, Sent));
        assert_eq!(of(sent.clone(), open.clone()), (Pending, Pending));
        assert_eq!(of(open.clone(), sent.clone()), (Pending, Sent));
        assert_eq!(of(withheld.clone(), sent.clone()), (Withheld, Sent));
        assert_eq!(of(sent.clone(), withheld.clone()), (Withheld, Withheld));
        assert_eq!(of(Reading::Silent, sent.clone()), (Withheld, Sent));
        assert_eq!(of(withheld, open.clone()), (Pending, Pending));
        // A second sync that begins before the first has ended: some workloads are still those of before.
        let known = Known { now: sent.clone(), ..Known::default() };
        let twice = known.begun(open).begun(sent);
        assert_eq!((twice.answer(false, "a"), twice.completed().answer(false, "a")), (Pending, Sent));
        let many = (0..10).fold(known, |known, n| known.begun(said(&["a", &format!("n{n}")], &[])));
        assert_eq!(many.answer(false, "a"), Pending);
        assert!(many.before.len() <= MAX_READINGS, "{}", many.before.len());
    }

    #[test]
    fn an_answer_that_does_not_come_counts_as_a_refusal_until_it_comes() {
        let open = Known::default().begun(said(&[], &[])).completed();
        let overdue = open.overdue(BTreeSet::from(["a".to_owned()]));
        assert_eq!(
            (open.answer(false, "a"), overdue.answer(false, "a")),
            (Answer::Pending, Answer::Withheld)
        );
        assert_eq!(overdue.answer(false, "b"), Answer::Pending);
        let Reading::Said(sent) = said(&["a"], &[]) else { unreachable!() };
        assert_eq!(overdue.said(sent).answer(false, "a"), Answer::Sent);
    }

    #[test]
    fn patterns_are_read_as_they_are_written() {
        for text in ["*", "example.com/*", "example.com/key", "key"] {
            assert_eq!(text.parse::<Pattern>().unwrap().to_string(), text);
        }
        for wrong in ["", "a*", "a b", "{}", LAST_APPLIED, &"x".repeat(400)] {
            assert!(wrong.parse::<Pattern>().is_err(), "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn a_statement_sends_what_its_patterns_say_and_never_what_it_withholds(
            sent in proptest::collection::btree_set("[ab]/[ab]|[ab]/\\*|\\*", 0..4),
            withheld in proptest::collection::btree_set("[ab]/[ab]", 0..3), key in "[ab]/[ab]",
        ) {
            let patterns: Vec<Pattern> = sent.iter().map(|text| text.parse().unwrap()).collect();
            let statement = Statement::new(patterns.clone(), withheld.clone());
            let expected = patterns.iter().any(|pattern| pattern.includes(&key)) && !withheld.contains(&key);
            prop_assert_eq!(statement.sends(&key), expected);
            prop_assert_eq!(statement.sent().collect::<BTreeSet<_>>(), sent);
        }
    }
}
