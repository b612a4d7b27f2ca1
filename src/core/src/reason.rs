//! Why a companion isn't ready: the closed set of words that a manager tells an agent, and that the agent writes as reasons of
//! conditions and Events. An agent shows a word of a later manager as [`Reason::Unknown`].

/// Defines [`Reason`] with the words, whose documentation is their meaning.
macro_rules! reasons {
    ($($name:ident = $word:literal: $meaning:literal;)*) => {
        /// Why a companion isn't ready.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Reason {
            $(#[doc = concat!($meaning, ".")] $name,)*
        }

        impl Reason {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$name),*];

            /// The word on the wire and in conditions, in CamelCase.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$name => $word,)*
                }
            }

            /// What it means, for the documentation.
            pub const fn meaning(self) -> &'static str {
                match self {
                    $(Self::$name => $meaning,)*
                }
            }
        }
    };
}

reasons! {
    Pending = "Pending": "The companion doesn't exist yet";
    RollingOut = "RollingOut": "It is being replaced, because the rule's template has changed";
    Refused = "Refused": "The infrastructure cluster refuses it";
    QuotaExceeded = "QuotaExceeded": "A quota of the tenant's namespace is used up";
    LimitReached = "LimitReached": "A limit of the Tenant is reached";
    NoDpu = "NoDPU": "No DPU of the tenant can take it";
    Unschedulable = "Unschedulable": "The scheduler finds no Node for it";
    Starting = "Starting": "It exists and isn't ready yet";
    Failed = "Failed": "It ended with an error";
    Lost = "Lost": "It was ready and isn't any longer";
    Unknown = "Unknown": "The cause isn't known, or the manager tells it in a word that the agent doesn't know";
}

impl Reason {
    /// The reason with this word.
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|reason| reason.as_str() == word)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_read_as_they_are_written() {
        for reason in Reason::ALL {
            assert_eq!(Reason::parse(reason.as_str()), Some(*reason));
            assert!(reason.as_str().chars().all(|c| c.is_ascii_alphabetic()) && reason.meaning().len() > 10);
        }
        assert_eq!([Reason::parse("pending"), Reason::parse("")], [None, None]);
    }
}
