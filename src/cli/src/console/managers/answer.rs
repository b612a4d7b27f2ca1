//! What replicas of the manager say, and what follows from all of it together.

use std::fmt;

use outrigger_core::text::truncate;
use serde::Deserialize;

/// Most characters of a manager's message, and most messages of one kind that are shown.
const MESSAGE: usize = 512;
const MESSAGES: usize = 3;

/// A page of a tenant's workloads, as docs/queries.md describes it.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(in crate::console) struct Page {
    pub(in crate::console) tenant: String,
    /// The replica that has answered.
    pub(in crate::console) replica: String,
    /// How many workloads of the tenant it knows.
    pub(in crate::console) known: u64,
    pub(in crate::console) workloads: Vec<WorkloadRow>,
    /// Where the next page begins.
    #[serde(rename = "continue", default)]
    pub(in crate::console) next: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(in crate::console) struct WorkloadRow {
    pub(in crate::console) namespace: String,
    pub(in crate::console) name: String,
    #[serde(default)]
    pub(in crate::console) node: Option<String>,
    pub(in crate::console) ready: bool,
    pub(in crate::console) companions: Vec<CompanionRow>,
    /// Companions that the manager has left out.
    #[serde(default)]
    pub(in crate::console) more_companions: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(in crate::console) struct CompanionRow {
    /// `None`: it is one of the platform's.
    #[serde(default)]
    pub(in crate::console) rule: Option<String>,
    pub(in crate::console) state: String,
    #[serde(default)]
    pub(in crate::console) cause: Option<String>,
    #[serde(default)]
    pub(in crate::console) message: String,
    pub(in crate::console) since: String,
    pub(in crate::console) ordering: String,
}

/// What one replica has said.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Said {
    Page(Box<Page>),
    /// Another status than 200, with the manager's message.
    Refused(u16, String),
    /// Nothing that can be used.
    Away(String),
}

#[derive(Deserialize)]
struct Refusal {
    message: String,
}

impl Said {
    /// Reads an answer to a question about this tenant.
    pub(super) fn read(status: u16, body: &[u8], tenant: &str) -> Self {
        if status == 200 {
            return match serde_json::from_slice::<Page>(body) {
                Ok(page) if page.tenant == tenant => Self::Page(Box::new(page)),
                Ok(_) => Self::Away("a replica has answered about another tenant".to_owned()),
                Err(error) => Self::Away(format!("a replica's answer can't be read: {error}")),
            };
        }
        let message = serde_json::from_slice(body).map(|Refusal { message }| message);
        let message = message.unwrap_or_else(|_| format!("the answer has the status {status}"));
        Self::Refused(status, truncate(&message, MESSAGE).into_owned())
    }
}

/// Why there is no page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::console) enum Failure {
    /// Managers aren't asked.
    NotConfigured,
    /// Whoever looks has no token for them.
    NoToken(String),
    /// Too many queries were in progress, or a manager says so.
    Busy,
    /// A replica doesn't answer this question. `away`: replicas that said nothing.
    Refused { message: String, away: Vec<String> },
    /// A replica doesn't accept the token.
    NotAccepted,
    /// No replica that was asked serves the tenant: what these have said, and those that said nothing.
    Unserved { messages: Vec<String>, away: Vec<String> },
    /// No replica has answered.
    Unreachable { place: String, why: Vec<String> },
}

impl Failure {
    /// The outcome in metrics.
    pub(super) fn outcome(&self) -> &'static str {
        match self {
            Self::Busy => "Busy",
            Self::Refused { .. } | Self::NotAccepted | Self::NoToken(_) | Self::NotConfigured => "Refused",
            Self::Unserved { .. } => "Unserved",
            Self::Unreachable { .. } => "Unreachable",
        }
    }
}

/// A list of a few texts, each once.
struct Few<'a>(&'a [String]);

impl fmt::Display for Few<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0.iter().take(MESSAGES).cloned().collect::<Vec<_>>().join("; "))?;
        match self.0.len().saturating_sub(MESSAGES) {
            0 => Ok(()),
            more => write!(f, "; and {more} more"),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut silent: &[String] = &[];
        match self {
            Self::NotConfigured => f.write_str(
                "Managers aren't asked, so workloads without a companion can't be shown. Enable the managers' queries, and start the \
                 console with --manager-queries and --manager-ca-file (docs/queries.md).",
            )?,
            Self::NoToken(why) => write!(
                f,
                "Managers can't be asked: {why}. They accept bearer tokens only: use a kubeconfig whose user has one, as `kubectl \
                 create token` makes them."
            )?,
            Self::Busy => {
                f.write_str("Too many queries are being answered. The page asks again when it is read again.")?;
            }
            Self::NotAccepted => f.write_str(
                "The managers don't accept the token. Use one that the API server of the infrastructure cluster accepts.",
            )?,
            Self::Refused { message, away } => {
                write!(f, "The managers don't answer: {message}.")?;
                silent = away;
            }
            Self::Unserved { messages, away } => {
                write!(f, "No manager that was asked serves the tenant: {}.", Few(messages))?;
                silent = away;
            }
            Self::Unreachable { place, why } => write!(
                f,
                "The managers can't be reached at {place}: {}. No manager runs, queries aren't enabled, or a NetworkPolicy or the CA \
                 doesn't permit the connection.",
                Few(why)
            )?,
        }
        if !silent.is_empty() {
            write!(f, " Managers that didn't answer: {}.", Few(silent))?;
        }
        Ok(())
    }
}

/// What follows where no replica has answered with a page. What a replica says that knows the user counts more than what one says that
/// doesn't know it: it may have been asked a moment later.
pub(super) fn judge(said: Vec<Said>, place: String) -> Failure {
    let (mut refused, mut away): (Vec<(u16, String)>, Vec<String>) = (Vec::new(), Vec::new());
    for one in said {
        match one {
            Said::Refused(status, message) => refused.push((status, message)),
            Said::Away(why) => away.push(why),
            Said::Page(_) => {}
        }
    }
    let of = |statuses: &[u16]| {
        let found = refused.iter().filter(|(status, _)| statuses.contains(status));
        let mut messages: Vec<String> = found.map(|(_, message)| message.clone()).collect();
        messages.sort();
        messages.dedup();
        messages
    };
    let refusal =
        |messages: Vec<String>, away| Failure::Refused { message: Few(&messages).to_string(), away };
    let wrong = of(&[400]);
    if !wrong.is_empty() {
        return refusal(wrong, away);
    }
    let unserved = of(&[421, 503]);
    if !unserved.is_empty() {
        return Failure::Unserved { messages: unserved, away };
    }
    if !of(&[429]).is_empty() {
        return Failure::Busy;
    }
    for status in [403, 404] {
        let messages = of(&[status]);
        if !messages.is_empty() {
            return refusal(messages, away);
        }
    }
    if !of(&[401]).is_empty() {
        return Failure::NotAccepted;
    }
    if refused.is_empty() {
        return Failure::Unreachable { place, why: away };
    }
    refusal(refused.into_iter().map(|(_, message)| message).collect(), away)
}
