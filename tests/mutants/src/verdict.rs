//! What the outcomes of mutants say together with the list of accepted ones.

use std::fmt;

use crate::accepted::{Accepted, FILE};
use crate::cargo::{Outcome, Summary};
use crate::mutant::Description;

/// How many mutants there were of each kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Figures {
    pub(crate) caught: usize,
    /// Caught because the tests didn't end.
    pub(crate) timeout: usize,
    pub(crate) accepted: usize,
    pub(crate) survived: usize,
    /// Those that don't compile. They count neither as caught nor as missed.
    pub(crate) unviable: usize,
}

impl Figures {
    pub(crate) fn add(&mut self, other: &Self) {
        self.caught += other.caught;
        self.timeout += other.timeout;
        self.accepted += other.accepted;
        self.survived += other.survived;
        self.unviable += other.unviable;
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { caught, timeout, accepted, survived, unviable } = self;
        let (detected, viable) = (caught + timeout, caught + timeout + accepted + survived);
        write!(
            f,
            "{} mutants: {caught} caught, {timeout} timed out, {accepted} accepted, {survived} survived, \
             {unviable} unviable; {:.1} % of the viable ones caught",
            viable + unviable,
            detected as f64 * 100.0 / viable.max(1) as f64
        )
    }
}

/// The result of a run.
#[derive(Debug, Default)]
pub(crate) struct Verdict {
    pub(crate) figures: Figures,
    /// Neither caught nor accepted.
    pub(crate) survivors: Vec<Description>,
    /// Accepted, and caught all the same.
    pub(crate) outdated: Vec<Description>,
}

impl Verdict {
    pub(crate) fn of(outcomes: Vec<Outcome>, list: &[Accepted]) -> Self {
        let mut verdict = Self::default();
        for Outcome { mutant, summary } in outcomes {
            let accepted = list.iter().any(|one| one.covers(&mutant));
            let figures = &mut verdict.figures;
            match (summary, accepted) {
                (Summary::MissedMutant, true) => figures.accepted += 1,
                (Summary::MissedMutant, false) => {
                    figures.survived += 1;
                    verdict.survivors.push(mutant);
                }
                (caught, accepted) => {
                    match caught {
                        Summary::Unviable => figures.unviable += 1,
                        Summary::Timeout => figures.timeout += 1,
                        Summary::CaughtMutant | Summary::MissedMutant => figures.caught += 1,
                    }
                    if accepted {
                        verdict.outdated.push(mutant);
                    }
                }
            }
        }
        verdict
    }

    pub(crate) fn is_fine(&self) -> bool {
        self.survivors.is_empty() && self.outdated.is_empty()
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for survivor in &self.survivors {
            write!(
                f,
                "No test fails with this change. Write one, or add it to {FILE} with a reason:\n{survivor}"
            )?;
        }
        for outdated in &self.outdated {
            write!(f, "A test fails with this change. Remove it from {FILE}:\n{outdated}")?;
        }
        write!(f, "{}", self.figures)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(mutant: &str, summary: Summary) -> Outcome {
        Outcome { mutant: Description { mutant: mutant.into(), becomes: None }, summary }
    }

    fn accepted(mutant: &str) -> Accepted {
        serde_yaml::from_str(&format!("{{mutant: {mutant}, reason: r}}")).unwrap()
    }

    #[test]
    fn a_survivor_is_fine_if_it_is_accepted() {
        let outcomes = || vec![outcome("a", Summary::MissedMutant), outcome("b", Summary::CaughtMutant)];
        let without = Verdict::of(outcomes(), &[]);
        assert!(!without.is_fine());
        assert!(without.to_string().contains("  - mutant: \"a\"\n"), "{without}");
        let with = Verdict::of(outcomes(), &[accepted("a")]);
        assert!(with.is_fine());
        assert_eq!(with.figures, Figures { caught: 1, accepted: 1, ..Figures::default() });
    }

    #[test]
    fn an_accepted_mutant_that_is_caught_is_outdated() {
        for summary in [Summary::CaughtMutant, Summary::Timeout, Summary::Unviable] {
            let verdict = Verdict::of(vec![outcome("a", summary)], &[accepted("a")]);
            assert!(!verdict.is_fine(), "{summary:?}");
            assert_eq!(verdict.outdated.len(), 1, "{summary:?}");
        }
    }

    #[test]
    fn an_unviable_mutant_says_nothing_about_the_tests() {
        let outcomes = [Summary::CaughtMutant, Summary::Timeout, Summary::MissedMutant, Summary::Unviable]
            .map(|summary| outcome("a", summary));
        assert_eq!(
            Verdict::of(outcomes.to_vec(), &[]).figures.to_string(),
            "4 mutants: 1 caught, 1 timed out, 0 accepted, 1 survived, 1 unviable; 66.7 % of the viable ones caught"
        );
    }
}
