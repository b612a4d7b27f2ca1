//! What is kept of a rule, and of companions of it that can't be made.

use outrigger_api::WorkloadRuleStatus;
use outrigger_core::field::FieldError;
use tokio::time::Instant;

use crate::state::validation::TemplateValidation;

/// A rule as the API has it.
#[derive(Debug, Clone)]
pub struct RuleEntry {
    /// `metadata.uid`.
    pub uid: String,
    /// `metadata.generation`.
    pub generation: i64,
    /// `metadata.resourceVersion`; empty for an admin rule, which others keep.
    pub resource_version: String,
    /// Its status as last seen or written.
    pub status: WorkloadRuleStatus,
    /// What is wrong with its spec; empty when it is served.
    pub errors: Vec<FieldError>,
    /// Whether the API server takes its companions.
    pub validation: TemplateValidation,
    /// It is being deleted.
    pub deleting: bool,
    /// Fingerprint of its spec ([`rule_wire::revision`]).
    pub revision: String,
    /// The object in the tenant's cluster that it was made from.
    pub origin: String,
}

/// Why a companion can't be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// The words for the user.
    pub message: String,
    /// Generation of the rule that was refused: another one is tried at once.
    pub generation: i64,
    /// When to try again all the same.
    pub until: Instant,
}

impl RuleEntry {
    /// Whether its status says that it is accepted as it is.
    pub(super) fn is_told_accepted(&self) -> bool {
        let status = &self.status;
        status.observed_generation == Some(self.generation)
            && status.conditions.iter().any(|c| c.type_ == "Accepted" && c.status == "True")
    }
}
