//! How a rule's companions are brought to a new template: a few at a time, so that most of them serve all the while.

use std::fmt;
use std::str::FromStr;

use crate::fault;
use crate::ordering::Ordering;

/// How many of a rule's companions may be down at once while they are replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MaxUnavailable {
    /// So many.
    Count(u32),
    /// So many in a hundred, rounded down.
    Percent(u32),
}

impl Default for MaxUnavailable {
    /// As of a Deployment (`spec.strategy.rollingUpdate.maxUnavailable`).
    fn default() -> Self {
        Self::Percent(25)
    }
}

impl MaxUnavailable {
    /// The default for a rule with this ordering. Workloads that aren't Ready without their companions get less than others.
    pub fn default_for(ordering: Ordering) -> Self {
        if ordering.gates() { Self::Percent(10) } else { Self::default() }
    }

    /// How many of `all` that is. At least one: otherwise a rollout would never begin.
    pub fn of(self, all: usize) -> usize {
        let some = match self {
            Self::Count(count) => usize::try_from(count).unwrap_or(usize::MAX),
            Self::Percent(percent) => {
                let hundredths = all.saturating_mul(usize::try_from(percent).unwrap_or(100));
                let rounds_up = !hundredths.is_multiple_of(100) && fault("share-is-rounded-up");
                hundredths / 100 + usize::from(rounds_up)
            }
        };
        some.max(1)
    }
}

impl FromStr for MaxUnavailable {
    type Err = &'static str;

    /// A count from 1, or a percentage from 1% to 100%, as the API's `IntOrString` has them.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const WRONG: &str = "use a number of companions from 1, or a share from \"1%\" to \"100%\"";
        let number = |digits: &str| digits.parse::<u32>().ok().filter(|number| *number > 0).ok_or(WRONG);
        match text.strip_suffix('%') {
            Some(percent) => number(percent)
                .and_then(|percent| if percent <= 100 { Ok(Self::Percent(percent)) } else { Err(WRONG) }),
            None => number(text).map(Self::Count),
        }
    }
}

impl fmt::Display for MaxUnavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Count(count) => write!(f, "{count}"),
            Self::Percent(percent) => write!(f, "{percent}%"),
        }
    }
}

/// When companions of an earlier template are replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UpdateStrategy {
    /// At once, but no more than these at a time.
    RollingUpdate(MaxUnavailable),
    /// When they are deleted by others.
    OnDelete,
}

impl Default for UpdateStrategy {
    fn default() -> Self {
        Self::RollingUpdate(MaxUnavailable::default())
    }
}

impl UpdateStrategy {
    /// The default for a rule with this ordering.
    pub fn default_for(ordering: Ordering) -> Self {
        Self::RollingUpdate(MaxUnavailable::default_for(ordering))
    }

    /// As the API spells its type.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::RollingUpdate(_) => "RollingUpdate",
            Self::OnDelete => "OnDelete",
        }
    }

    /// How many more companions may be taken down, of `all`, of which `down` are down already.
    pub fn budget(self, all: usize, down: usize) -> usize {
        match self {
            Self::RollingUpdate(max) => max.of(all).saturating_sub(down),
            Self::OnDelete => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_rounded_down_and_never_nothing() {
        for (max, all, some) in
            [("25%", 10, 2), ("25%", 3, 1), ("25%", 0, 1), ("100%", 7, 7), ("1%", 99, 1), ("5", 3, 5)]
        {
            assert_eq!(max.parse::<MaxUnavailable>().unwrap().of(all), some, "{max} of {all}");
        }
        let of = |ordering| UpdateStrategy::default_for(ordering).budget(100, 0);
        assert_eq!(
            (of(Ordering::Parallel), of(Ordering::BeforeReady), of(Ordering::BeforeBinding)),
            (25, 10, 10)
        );
        let huge = MaxUnavailable::Percent(100).of(usize::MAX);
        assert!(huge > 0);
    }

    #[test]
    fn what_would_stop_or_mean_nothing_is_refused() {
        for wrong in ["", "0", "0%", "101%", "-1", "%", "1.5", "a", "25 %", "99999999999"] {
            assert!(wrong.parse::<MaxUnavailable>().is_err(), "{wrong:?}");
        }
        for right in ["1", "100", "1%", "100%"] {
            assert_eq!(right.parse::<MaxUnavailable>().unwrap().to_string(), right);
        }
    }

    #[test]
    fn the_budget_shrinks_with_what_is_down() {
        let four = UpdateStrategy::default();
        assert_eq!([0, 1, 2, 3, 9].map(|down| four.budget(8, down)), [2, 1, 0, 0, 0]);
        assert_eq!(UpdateStrategy::OnDelete.budget(8, 0), 0);
    }

    #[test]
    fn strategies_have_the_names_of_the_api() {
        assert_eq!(UpdateStrategy::default().as_str(), "RollingUpdate");
        assert_eq!(UpdateStrategy::OnDelete.as_str(), "OnDelete");
    }
}
