//! Whether workloads wait for their companions, and by what.

use std::str::FromStr;

/// Whether a workload waits for its companion.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Ordering {
    /// Both start at the same time.
    #[default]
    Parallel,
    /// The workload isn't Ready before its companion is, by a readiness gate ([`crate::gate`]).
    BeforeReady,
    /// No container of the workload starts before its companion is Ready, by a claim for a device of its Node. The workload also
    /// has the readiness gate, for companions that are replaced later.
    BeforeStart,
    /// As [`Self::BeforeStart`], and the workload isn't bound to its Node before: the companion serves the Node that the scheduler has
    /// chosen, and the scheduler waits for the claim's device.
    BeforeBinding,
}

impl Ordering {
    /// As the API spells it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Parallel => "Parallel",
            Self::BeforeReady => "BeforeReady",
            Self::BeforeStart => "BeforeStart",
            Self::BeforeBinding => "BeforeBinding",
        }
    }

    /// Whether the workload isn't Ready before its companion is.
    pub fn gates(self) -> bool {
        self == Self::BeforeReady || self.holds()
    }

    /// Whether no container of the workload starts before its companion is Ready.
    pub fn holds(self) -> bool {
        matches!(self, Self::BeforeStart | Self::BeforeBinding)
    }

    /// Whether the workload isn't bound to its Node before its companion is Ready.
    pub fn binds(self) -> bool {
        self == Self::BeforeBinding
    }
}

impl FromStr for Ordering {
    type Err = &'static str;

    /// Reads the spelling of the API. Nothing at all is the default.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "" | "Parallel" => Ok(Self::Parallel),
            "BeforeReady" => Ok(Self::BeforeReady),
            "BeforeStart" => Ok(Self::BeforeStart),
            "BeforeBinding" => Ok(Self::BeforeBinding),
            _ => Err(
                "use Parallel (the workload doesn't wait for its companion), BeforeReady (it isn't Ready before), \
                      BeforeStart (none of its containers starts before), or BeforeBinding (it isn't bound to its Node before)",
            ),
        }
    }
}
