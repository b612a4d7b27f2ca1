//! Why a workload has no companion that is ready: the closed set of causes.
//!
//! The manager finds the first thing that is wrong and names it in one of these words: in conditions of rules and Tenants, in
//! Events, in metrics, and to the tenant's agent, which writes the word into conditions of Pods, and has some for what it finds
//! itself. So the same word means the same everywhere, and whoever reads it finds in one table what would have to change, and who
//! can change it. A word of a later version is read as [`Cause::Unknown`].

use std::fmt;
use std::str::FromStr;

mod causes;

pub use causes::Cause;

/// What something is wrong with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Subject {
    /// The tenant's workload.
    Workload,
    /// The rule.
    Rule,
    /// The Tenant, its namespace or its agent's stream.
    Tenant,
    /// The companion itself.
    Companion,
    /// A ResourceClaim of the companion, or one that is the companion.
    Claim,
    /// The DPU of a host.
    Dpu,
    /// A guest of a Machine.
    Guest,
    /// A namespace that is offloaded.
    Offloading,
    /// The connection of the tenant's agent to the manager.
    Link,
}

impl Subject {
    /// All of them, in the order in which they are looked at.
    pub const ALL: &[Self] = &[
        Self::Workload,
        Self::Rule,
        Self::Tenant,
        Self::Companion,
        Self::Claim,
        Self::Dpu,
        Self::Guest,
        Self::Offloading,
        Self::Link,
    ];

    /// A heading for the documentation.
    pub const fn title(self) -> &'static str {
        match self {
            Self::Workload => "Workloads",
            Self::Rule => "Rules",
            Self::Tenant => "Tenants",
            Self::Companion => "Companions",
            Self::Claim => "Claims",
            Self::Dpu => "DPUs",
            Self::Guest => "Guests of Machines",
            Self::Offloading => "Offloaded namespaces",
            Self::Link => "Connections of agents",
        }
    }
}

/// Who hears of a cause.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Audience {
    /// Managers name it to agents of tenants: it says nothing of other tenants, nor of the platform's Nodes and rules.
    Tenant,
    /// Managers don't: it is in conditions and Events of the infrastructure cluster only.
    Platform,
    /// The agent finds it by itself, and names it in conditions and Events of the tenant's cluster only.
    Agent,
}

/// The reason of a condition while all companions are ready.
pub const READY: &str = "Ready";

/// The reason of a condition while no rule asks for a companion.
pub const NO_COMPANION: &str = "NoCompanion";

/// Maximum length of the reason of a condition or an Event that Outrigger writes, in bytes. Kubernetes accepts no more in an Event.
/// The admission policies for Outrigger's accounts name the same figure.
pub const MAX_REASON: usize = 128;

/// Maximum length of the message of a condition, or the note of an Event, that Outrigger writes, in bytes. Kubernetes accepts no more in
/// an Event, and other writers of the same object need room for what they write. The admission policies for Outrigger's accounts name
/// the same figure.
pub const MAX_MESSAGE: usize = 1024;

/// A text that is no [`Cause`] that this version knows.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("is no known reason")]
pub struct UnknownCause;

impl Cause {
    /// What is wrong and what would have to change, in one sentence for people of the tenant.
    pub fn message(self) -> String {
        format!("{}: {}", self.meaning(), self.tenant_remedy())
    }

    /// Whether it passes by itself, as far as anybody knows: nobody has to do anything about it now, so it is no warning.
    pub const fn is_progress(self) -> bool {
        matches!(
            self,
            Self::WorkloadNotScheduled
                | Self::RollingOut
                | Self::Resizing
                | Self::Updating
                | Self::Untried
                | Self::NoStatus
                | Self::Syncing
                | Self::Preparing
                | Self::Terminating
                | Self::WorkloadMoved
                | Self::Lingering
                | Self::Replacing
                | Self::Pending
                | Self::HandingOver
                | Self::Starting
                | Self::ClaimNotAllocated
        )
    }

    /// Whether a manager names it to agents of tenants.
    pub const fn is_reported(self) -> bool {
        matches!(self.audience(), Audience::Tenant)
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Cause {
    type Err = UnknownCause;

    fn from_str(word: &str) -> Result<Self, UnknownCause> {
        Self::ALL.iter().copied().find(|cause| cause.as_str() == word).ok_or(UnknownCause)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn words_are_read_as_they_are_written() {
        for cause in Cause::ALL {
            assert_eq!(cause.to_string().parse(), Ok(*cause));
            assert!(cause.as_str().chars().all(|c| c.is_ascii_alphabetic()), "{cause}");
        }
        let words: BTreeSet<_> = Cause::ALL.iter().map(|cause| cause.as_str()).collect();
        assert_eq!(words.len(), Cause::ALL.len(), "each has its own word");
        assert!(!words.contains(READY) && !words.contains(NO_COMPANION), "nothing is wrong then");
        assert_eq!(["pending", ""].map(str::parse::<Cause>), [Err(UnknownCause), Err(UnknownCause)]);
    }

    #[test]
    fn what_somebody_has_to_act_on_is_no_progress() {
        for (cause, passes) in [
            (Cause::Pending, true),
            (Cause::Starting, true),
            (Cause::RollingOut, true),
            (Cause::QuotaExceeded, false),
            (Cause::NoMatchingDpu, false),
            (Cause::CrashLoop, false),
            (Cause::Lost, false),
            (Cause::ManagerUnreachable, false),
        ] {
            assert_eq!(cause.is_progress(), passes, "{cause}");
        }
    }

    #[test]
    fn each_subject_has_a_heading_of_its_own() {
        let titles: BTreeSet<_> = Subject::ALL.iter().map(|subject| subject.title()).collect();
        assert_eq!(titles.len(), Subject::ALL.len());
        assert!(titles.iter().all(|title| title.starts_with(|c: char| c.is_uppercase())), "{titles:?}");
    }

    #[test]
    fn what_a_tenant_reads_fits_into_a_message_and_names_a_remedy() {
        for cause in Cause::ALL {
            assert!(cause.as_str().len() <= MAX_REASON, "{cause}");
            assert!(cause.message().len() <= 256, "{cause}: {}", cause.message().len());
            assert_eq!(cause.message(), format!("{}: {}", cause.meaning(), cause.tenant_remedy()));
            for text in [cause.meaning(), cause.tenant_remedy(), cause.platform_remedy()] {
                assert!(text.len() > 3 && !text.ends_with('.'), "{cause}: {text:?}");
            }
        }
        // Whoever hears of rivals learns which other tenants there are.
        let hidden = [Cause::HostConflict, Cause::IdentityConflict, Cause::NoTenant, Cause::NotOurs];
        assert!(hidden.iter().all(|cause| !cause.is_reported()));
    }
}
