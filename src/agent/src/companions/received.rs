//! What the manager reported of the companions of one workload, reduced to what conditions need.
//!
//! The manager is another party, and its texts are stored in the tenant's etcd and shown on terminals. So they are bounded and
//! made printable when they arrive, and of many companions only the worst are kept: memory doesn't grow with their number. Of the
//! names of rules only fingerprints are kept, because the agent asks no more than whether the manager has reported a companion of
//! a rule of this cluster.

use std::cmp::Reverse;
use std::hash::{BuildHasher, DefaultHasher, Hash, Hasher};
use std::sync::OnceLock;

use outrigger_core::ids::RuleName;
use outrigger_core::map;
use outrigger_core::reason::Cause;
use outrigger_core::workload::Workload;
use outrigger_proto::companion::{Companion, CompanionState};

use crate::rules::printable;

/// Maximum length of the manager's own text in bytes.
const MAX_TEXT: usize = 512;

/// Maximum number of rules of one workload that are kept, in the order of their names. A workload with more of them waits for the
/// others without an end.
const MAX_RULES: usize = 256;

/// The companions of one workload.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Companions {
    /// All of them.
    pub all: Group,
    /// Those that the workload waits for: their rules have the ordering `BeforeReady` or `BeforeStart`.
    pub ordered: Group,
    /// The tenant's own rules among those.
    pub rules: Rules,
    /// Those before which the workload doesn't start: their rules have the ordering `BeforeStart`.
    pub start: Group,
    /// The tenant's own rules among those.
    pub start_rules: Rules,
    /// Fingerprint of the workload's Node as the manager had it when it sent this; `None` if it didn't say.
    pub node: Option<u64>,
    /// [`revision`] of the workload's state as the manager had it when it sent this; 0 if it didn't say.
    pub revision: u64,
}

/// A set of the tenant's own rules.
///
/// It has eight bytes for each rule, however long the name is. The names themselves can't be compared with this cluster's rules when
/// they arrive, because the agent may learn of a rule after the manager has sent its companions, and the manager sends them once. The
/// fingerprints depend on the seed of the process, so nobody can choose two names with the same one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Rules(Box<[u64]>);

impl Rules {
    /// The rules of the companions that belong here.
    fn of(received: &[Companion], belongs: impl Fn(&Companion) -> bool) -> Self {
        let own = received.iter().filter(|companion| belongs(companion));
        let mut names: Vec<RuleName> =
            own.filter_map(|companion| RuleName::new(&companion.rule).ok()).collect();
        names.sort_unstable();
        names.dedup();
        let mut all: Vec<u64> = names.iter().take(MAX_RULES).map(fingerprint).collect();
        all.sort_unstable();
        Self(all.into())
    }

    /// Whether the manager reported a companion of this rule.
    pub(crate) fn contains(&self, name: &RuleName) -> bool {
        self.0.binary_search(&fingerprint(name)).is_ok()
    }
}

/// Returns the same number for the same text as long as the process runs, whatever seeds of maps are set meanwhile.
fn fingerprint(text: impl Hash) -> u64 {
    static KEY: OnceLock<map::State> = OnceLock::new();
    KEY.get_or_init(map::State::default).hash_one(text)
}

/// Returns the number of a workload's state that the manager repeats when it reports companions. It depends on what rules read and a Pod
/// may change at any moment: labels above all, of which the API server adds some with the binding (`PodTopologyLabels`). The Node isn't
/// part of it, because the manager repeats it too, and annotations aren't, because not all are sent. It is the same in each process: after
/// a restart of the agent the manager finds that nothing has changed.
pub(crate) fn revision(workload: &Workload) -> u64 {
    let mut hasher = DefaultHasher::new();
    (&workload.labels, workload.gated).hash(&mut hasher);
    hasher.finish().max(1)
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
    /// Reduces what was received.
    pub(crate) fn of(received: &[Companion]) -> Self {
        let ordered = |companion: &Companion| companion.before_ready;
        let start = |companion: &Companion| companion.before_start;
        Self {
            all: Group::of(received, |_| true),
            ordered: Group::of(received, ordered),
            rules: Rules::of(received, ordered),
            start: Group::of(received, start),
            start_rules: Rules::of(received, start),
            node: None,
            revision: 0,
        }
    }

    /// The same, about a workload on this Node, empty for none; `None` if the manager didn't say.
    pub(crate) fn on(self, node: Option<&str>) -> Self {
        Self { node: node.map(fingerprint), ..self }
    }

    /// The same, about a state with this [`revision`]; 0 if the manager didn't say.
    pub(crate) fn at(self, revision: u64) -> Self {
        Self { revision, ..self }
    }

    /// Whether it is about labels that the workload has now, as far as the manager says it.
    pub(crate) fn is_current(&self, workload: &Workload) -> bool {
        [0, revision(workload)].contains(&self.revision)
    }

    /// Whether it is about a workload on this Node; `None` if the manager didn't say.
    pub(crate) fn is_on(&self, node: Option<&str>) -> Option<bool> {
        self.node.map(|received| received == fingerprint(node.unwrap_or_default()))
    }
}

impl Group {
    fn of(received: &[Companion], belongs: impl Fn(&Companion) -> bool) -> Self {
        let wrong = |companion: &&Companion| belongs(companion) && companion.state() != CompanionState::Ready;
        // The order in the message doesn't matter, so that it causes no writes. Rules of the platform come last.
        fn rank(companion: &Companion) -> impl Ord + use<'_> {
            let rule = companion.rule.as_str();
            (severity(companion.state()), Reverse((rule.is_empty(), rule, companion.message.as_str())))
        }
        Self {
            total: received.iter().filter(|companion| belongs(companion)).count(),
            wrong: received.iter().filter(wrong).count(),
            worst: received.iter().filter(wrong).max_by(|a, b| rank(a).cmp(&rank(b))).map(Problem::of),
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
            word => word.parse().ok().filter(|cause: &Cause| cause.is_reported()).unwrap_or(Cause::Unknown),
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
    fn the_worst_companion_is_reported_whatever_the_order() {
        use CompanionState::{Pending, Ready, Refused};
        let mut received = vec![
            companion("b", Refused, "QuotaExceeded", "the quota is used up"),
            companion("a", Ready, "", ""),
            companion("", Refused, "QuotaExceeded", "other"),
            Companion { before_ready: true, ..companion("c", Pending, "", "") },
        ];
        let companions = Companions::of(&received);
        received.reverse();
        assert_eq!(Companions::of(&received), companions);
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

    #[test]
    fn of_rules_is_kept_whether_they_were_reported_and_no_more_than_a_few_bytes() {
        let name = |n: usize| format!("{n:04}{}", "r".repeat(249));
        let of_rule = |n: usize| Companion {
            before_ready: n.is_multiple_of(2),
            before_start: !n.is_multiple_of(2),
            ..companion(&name(n), CompanionState::Ready, "", "")
        };
        let mut all: Vec<Companion> = (0..1000).map(of_rule).collect();
        all.push(companion("", CompanionState::Ready, "", ""));
        all.push(Companion { before_ready: true, ..companion("no name\n", CompanionState::Ready, "", "") });
        all.reverse();
        let companions = Companions::of(&all);
        for (rules, first) in [(&companions.rules, 0), (&companions.start_rules, 1)] {
            let has = |n: usize| rules.contains(&RuleName::new(&name(n)).unwrap());
            let kept: Vec<usize> = (0..1000).filter(|n| has(*n)).collect();
            let wanted: Vec<usize> = (0..MAX_RULES).map(|nth| 2 * nth + first).collect();
            assert_eq!(kept, wanted, "the first of those that belong here");
            assert!(size_of_val(&*rules.0) <= MAX_RULES * 8);
        }
        assert_eq!(Companions::of(&[]).rules, Rules::default());
    }

    #[test]
    fn a_word_is_about_the_node_that_it_names() {
        let about = |node| Companions::of(&[]).on(node);
        for (node, is) in [(Some("a"), true), (Some("b"), false), (None, false)] {
            assert_eq!(about(Some("a")).is_on(node), Some(is), "{node:?}");
            assert_eq!(about(None).is_on(node), None, "a manager of an earlier version");
        }
        assert_eq!(
            (about(Some("")).is_on(None), about(Some("")).is_on(Some("a"))),
            (Some(true), Some(false))
        );
    }

    proptest! {
        #[test]
        fn every_text_is_bounded_and_printable(rule in ".{0,400}", reason in ".{0,40}", message in ".{0,2000}", state in -1..10i32) {
            let received = Companion { rule, state, reason, message, ..Companion::default() };
            let problem = Problem::of(&received);
            prop_assert!(problem.text.len() <= MAX_TEXT + 253 + 7, "{}", problem.text.len());
            prop_assert!(!problem.text.chars().any(char::is_control));
            prop_assert!(problem.reason.is_reported());
        }
    }
}
