//! Which disturbances a scenario is run with.

use std::fmt;
use std::str::FromStr;

use outrigger_tests::faults::Moment;
use outrigger_tests::scenarios::SCENARIOS;

/// What is done to a process during a scenario.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Disturbance {
    /// It is killed, and started again at once.
    Kill {
        /// At which of its writes, counted from 1.
        write: usize,
        /// Before or after the API server has seen it.
        moment: Moment,
    },
    /// Its watches of a resource show nothing more for a while.
    Freeze {
        resource: String,
        /// Until the last step has been taken, rather than for two seconds.
        long: bool,
    },
}

impl fmt::Display for Disturbance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kill { write, moment: Moment::Before } => write!(f, "{write}:before"),
            Self::Kill { write, moment: Moment::After } => write!(f, "{write}:after"),
            Self::Freeze { resource, long: false } => write!(f, "freeze:{resource}:short"),
            Self::Freeze { resource, long: true } => write!(f, "freeze:{resource}:long"),
        }
    }
}

impl FromStr for Disturbance {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong =
            || format!("{text:?} is neither NUMBER:before, NUMBER:after nor freeze:RESOURCE:short or long");
        match text.split(':').collect::<Vec<_>>()[..] {
            ["freeze", resource, length @ ("short" | "long")] => {
                Ok(Self::Freeze { resource: resource.to_owned(), long: length == "long" })
            }
            [number, moment @ ("before" | "after")] => {
                let moment = if moment == "before" { Moment::Before } else { Moment::After };
                Ok(Self::Kill { write: number.parse().map_err(|_| wrong())?, moment })
            }
            _ => Err(wrong()),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Selection {
    /// One of each scenario.
    Sample,
    All,
    Kills,
    Freezes,
    /// All of one scenario, or one disturbance of it.
    Only(String, Option<Disturbance>),
}

impl FromStr for Selection {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            None if text.is_empty() || text == "sample" => Ok(Self::Sample),
            None if text == "all" => Ok(Self::All),
            None if text == "kills" => Ok(Self::Kills),
            None if text == "freezes" => Ok(Self::Freezes),
            None => Ok(Self::Only(text.to_owned(), None)),
            Some((scenario, disturbance)) => Ok(Self::Only(scenario.to_owned(), Some(disturbance.parse()?))),
        }
    }
}

impl Selection {
    /// What the environment asks for.
    pub(crate) fn of_environment() -> Self {
        let text = std::env::var("OUTRIGGER_CRASH").unwrap_or_default();
        let selection = text.parse().unwrap_or_else(|error| panic!("OUTRIGGER_CRASH: {error}"));
        // A name that is misspelled must not look like a success.
        if let Self::Only(scenario, _) = &selection {
            assert!(
                SCENARIOS.contains(&scenario.as_str()),
                "OUTRIGGER_CRASH: {scenario:?} is none of {SCENARIOS:?}"
            );
        }
        selection
    }

    /// Whether a scenario is run at all.
    pub(crate) fn concerns(&self, scenario: &str) -> bool {
        match self {
            Self::Only(only, _) => only == scenario,
            _ => true,
        }
    }

    /// The disturbances of a scenario whose process makes so many writes and has these watches. `turn` tells samples of scenarios
    /// apart, so that together they see different things.
    pub(crate) fn disturbances(&self, writes: usize, watches: &[String], turn: usize) -> Vec<Disturbance> {
        let kill = |write, moment| Disturbance::Kill { write, moment };
        let freeze = |resource: &String, long| Disturbance::Freeze { resource: resource.clone(), long };
        match self {
            Self::Only(_, Some(one)) => vec![one.clone()],
            Self::All | Self::Kills | Self::Freezes | Self::Only(_, None) => {
                let writes = if *self == Self::Freezes { 0 } else { writes };
                let watches = if *self == Self::Kills { &[] } else { watches };
                let kills = (1..=writes).flat_map(|k| [kill(k, Moment::Before), kill(k, Moment::After)]);
                let freezes =
                    watches.iter().flat_map(|resource| [freeze(resource, false), freeze(resource, true)]);
                kills.chain(freezes).collect()
            }
            Self::Sample => {
                let moment = if turn % 4 < 2 { Moment::Before } else { Moment::After };
                // Another run may have a few writes less.
                let write = if turn.is_multiple_of(2) { 1 } else { writes - writes / 4 };
                let mut sample = if writes == 0 { Vec::new() } else { vec![kill(write, moment)] };
                if writes == 0 && !watches.is_empty() {
                    sample.push(freeze(&watches[turn % watches.len()], turn % 4 < 2));
                }
                sample
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_line_names_is_what_runs() {
        for text in ["3:before", "12:after", "freeze:pods:short", "freeze:tenants:long"] {
            let parsed: Disturbance = text.parse().unwrap();
            assert_eq!(parsed.to_string(), text);
            let only: Selection = format!("rule:{text}").parse().unwrap();
            assert_eq!(only.disturbances(100, &[], 0), [parsed]);
            assert!(only.concerns("rule") && !only.concerns("rollout"));
        }
        for wrong in ["rule:", "rule:x:before", "rule:3", "rule:freeze:pods"] {
            wrong.parse::<Selection>().unwrap_err();
        }
    }

    #[test]
    fn all_is_every_write_and_every_watch_twice() {
        let watches = ["pods".to_owned(), "nodes".to_owned()];
        let all = "all".parse::<Selection>().unwrap().disturbances(7, &watches, 0);
        assert_eq!(all.len(), 2 * 7 + 2 * 2);
        let only = "rule".parse::<Selection>().unwrap().disturbances(7, &watches, 0);
        assert_eq!(only, all);
        let [kills, freezes] =
            ["kills", "freezes"].map(|text| text.parse::<Selection>().unwrap().disturbances(7, &watches, 0));
        assert_eq!([kills, freezes].concat(), all);
    }

    #[test]
    fn samples_take_turns_between_the_first_write_and_a_late_one() {
        let sample: Selection = "".parse().unwrap();
        let names = |writes, turn| -> Vec<String> {
            sample.disturbances(writes, &["pods".to_owned()], turn).iter().map(ToString::to_string).collect()
        };
        let turns: Vec<_> = (0..4).flat_map(|turn| names(12, turn)).collect();
        assert_eq!(turns, ["1:before", "9:before", "1:after", "9:after"]);
        assert_eq!(names(1, 1), ["1:before"]);
        assert_eq!(names(0, 1), ["freeze:pods:long"]);
    }
}
