//! What the manager told of the companions of one workload, reduced to what conditions need.
//!
//! The manager is another party, and its texts are stored in the tenant's etcd and shown on terminals. So they are bounded and
//! made printable when they arrive, and of many companions only the worst are kept: memory doesn't grow with their number.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use outrigger_core::ids::RuleName;
use outrigger_core::reason::Cause;
use outrigger_proto::companion::{Companion, CompanionState};

use crate::rules::printable;

/// Maximum length of the manager's own text in bytes.
const MAX_TEXT: usize = 512;

/// Maximum number of rules whose names are kept. A workload with more of them waits for the first in the alphabet.
const MAX_RULES: usize = 256;

/// The companions of one workload.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Companions {
    /// All of them.
    pub all: Group,
    /// Those that the workload waits for: their rules have the ordering `BeforeReady` or `BeforeStart`.
    pub ordered: Group,
    /// The tenant's own rules among those.
    pub rules: BTreeSet<RuleName>,
    /// Those before which the workload doesn't start: their rules have the ordering `BeforeStart`.
    pub start: Group,
    /// The tenant's own rules among those.
    pub start_rules: BTreeSet<RuleName>,
}

/// A number of companions, and the worst of them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Group {
    /// How many there are.
    pub total: usize,
    /// How many of them aren't ready.
    pub wrong: usize,
    /// The worst of those that aren't ready.
    pub worst: Option<Problem>,
}

/// A companion that isn't ready.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Problem {
    /// The manager didn't say how the companion is, or in a word that this agent doesn't know.
    pub unknown: bool,
    pub reason: Cause,
    /// The rule, and what is wrong: printable text.
    pub text: Box<str>,
}

impl Companions {
    /// Reduces what the manager told.
    pub(crate) fn of(told: &[Companion]) -> Self {
        let ordered = |companion: &Companion| companion.before_ready;
        let start = |companion: &Companion| companion.before_start;
        Self {
            all: Group::of(told, |_| true),
            ordered: Group::of(told, ordered),
            rules: rules(told, ordered),
            start: Group::of(told, start),
            start_rules: rules(told, start),
        }
    }
}

/// The tenant's own rules of those companions.
fn rules(told: &[Companion], belongs: impl Fn(&Companion) -> bool) -> BTreeSet<RuleName> {
    let own = told.iter().filter(|companion| belongs(companion));
    let mut rules: BTreeSet<RuleName> =
        own.filter_map(|companion| RuleName::new(&companion.rule).ok()).collect();
    while rules.len() > MAX_RULES {
        rules.pop_last();
    }
    rules
}

impl Group {
    fn of(told: &[Companion], belongs: impl Fn(&Companion) -> bool) -> Self {
        let wrong = |companion: &&Companion| belongs(companion) && companion.state() != CompanionState::Ready;
        // The order in the message doesn't matter, so that it causes no writes. Rules of the platform come last.
        fn rank(companion: &Companion) -> impl Ord + use<'_> {
            let rule = companion.rule.as_str();
            (severity(companion.state()), Reverse((rule.is_empty(), rule, companion.message.as_str())))
        }
        Self {
            total: told.iter().filter(|companion| belongs(companion)).count(),
            wrong: told.iter().filter(wrong).count(),
            worst: told.iter().filter(wrong).max_by(|a, b| rank(a).cmp(&rank(b))).map(Problem::of),
        }
    }
}

impl Problem {
    fn of(companion: &Companion) -> Self {
        let state = companion.state();
        let unknown = state == CompanionState::Unspecified;
        let reason = match companion.reason.as_str() {
            "" => of_state(state),
            // A manager that names others isn't ours, or is of a later version.
            told => told.parse().ok().filter(|cause: &Cause| cause.is_told()).unwrap_or(Cause::Unknown),
        };
        let rule = match companion.rule.as_str() {
            "" => "a rule of the platform".to_owned(),
            rule if RuleName::new(rule).is_ok() => format!("rule {rule}"),
            _ => "a rule with an unreadable name".to_owned(),
        };
        let message = printable(&companion.message, MAX_TEXT);
        let text = if message.trim().is_empty() { reason.meaning() } else { message.trim() };
        Self { unknown, reason, text: format!("{rule}: {text}").into() }
    }
}

/// The greater, the more there is to do for somebody.
fn severity(state: CompanionState) -> u8 {
    match state {
        CompanionState::Refused => 7,
        CompanionState::NoDpu => 6,
        CompanionState::Failed => 5,
        CompanionState::Lost => 4,
        CompanionState::Pending => 3,
        CompanionState::Starting => 2,
        CompanionState::Unspecified => 1,
        CompanionState::Ready => 0,
    }
}

/// The reason of a state for which the manager gives none.
fn of_state(state: CompanionState) -> Cause {
    match state {
        CompanionState::Pending => Cause::Pending,
        CompanionState::Refused => Cause::Refused,
        CompanionState::NoDpu => Cause::NoDpu,
        CompanionState::Starting => Cause::Starting,
        CompanionState::Failed => Cause::Failed,
        CompanionState::Lost => Cause::Lost,
        CompanionState::Ready | CompanionState::Unspecified => Cause::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn companion(rule: &str, state: CompanionState, reason: &str, message: &str) -> Companion {
        Companion {
            rule: rule.into(),
            state: state.into(),
            reason: reason.into(),
            message: message.into(),
            ..Companion::default()
        }
    }

    #[test]
    fn the_worst_companion_is_told_whatever_the_order() {
        use CompanionState::{Pending, Ready, Refused};
        let mut told = vec![
            companion("b", Refused, "QuotaExceeded", "the quota is used up"),
            companion("a", Ready, "", ""),
            companion("", Refused, "QuotaExceeded", "other"),
            Companion { before_ready: true, ..companion("c", Pending, "", "") },
        ];
        let companions = Companions::of(&told);
        told.reverse();
        assert_eq!(Companions::of(&told), companions);
        let worst = companions.all.worst.unwrap();
        assert_eq!((companions.all.total, companions.all.wrong, worst.reason), (4, 3, Cause::QuotaExceeded));
        assert_eq!(&*worst.text, "rule b: the quota is used up");
        let ordered = companions.ordered;
        assert_eq!((ordered.total, ordered.wrong), (1, 1));
        assert_eq!(&*ordered.worst.unwrap().text, "rule c: The companion doesn't exist yet");
    }

    #[test]
    fn words_that_nobody_defined_become_unknown() {
        let of = |companion: &Companion| Problem::of(companion);
        let unknown = of(&Companion { state: 99, ..companion("", CompanionState::Pending, "Owned", "") });
        assert_eq!((unknown.unknown, unknown.reason), (true, Cause::Unknown));
        for foreign in ["HostConflict", "ManagerUnreachable"] {
            assert_eq!(of(&companion("", CompanionState::Failed, foreign, "")).reason, Cause::Unknown);
        }
        let hostile = of(&companion("a\u{1b}[2J", CompanionState::Failed, "", "x\u{202e}y\u{7}\n"));
        assert_eq!(&*hostile.text, "a rule with an unreadable name: x y");
    }

    proptest! {
        #[test]
        fn every_text_is_bounded_and_printable(rule in ".{0,400}", reason in ".{0,40}", message in ".{0,2000}", state in -1..10i32) {
            let told = Companion { rule, state, reason, message, ..Companion::default() };
            let problem = Problem::of(&told);
            prop_assert!(problem.text.len() <= MAX_TEXT + 253 + 7, "{}", problem.text.len());
            prop_assert!(!problem.text.chars().any(char::is_control));
            prop_assert!(problem.reason.is_told());
        }
    }
}
