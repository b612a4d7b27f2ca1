//! Why a companion is deleted.

/// Why a companion is deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeleteReason {
    /// Its workload is gone, or no longer matches.
    Unmatched,
    /// Its rule is gone, or is no longer about its tenant.
    RuleDeleted,
    /// It belongs to an earlier rule of the same name.
    OtherRule,
    /// The rule's template or placement has changed.
    TemplateChanged,
    /// Its workload runs on another node now.
    Moved,
    /// Its DPU is no longer one of its host, or no longer the tenant's.
    DpuGone,
    /// It failed for good, for example because it was evicted.
    Failed,
    /// The admission webhook never saw it, so it is neither placed nor isolated.
    NotAdmitted,
    /// There is another one for the workload, of the kind that the rule asks for.
    Superseded,
    /// Its DPU can never give it the amounts of cpu and memory that its rule asks for now.
    ResizeInfeasible,
    /// Its workload is gone, and it has never been ready: it has nothing to end.
    NeverReady,
    /// Its workload is gone, and more companions outlive theirs than there is room for.
    LingeringLimit,
}

impl DeleteReason {
    /// The reason as a word for logs and Events.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Unmatched => "Unmatched",
            Self::RuleDeleted => "RuleDeleted",
            Self::OtherRule => "RuleReplaced",
            Self::TemplateChanged => "TemplateChanged",
            Self::Moved => "WorkloadMoved",
            Self::DpuGone => "DPUGone",
            Self::Failed => "CompanionFailed",
            Self::NotAdmitted => "NotAdmitted",
            Self::Superseded => "Superseded",
            Self::ResizeInfeasible => "ResizeInfeasible",
            Self::NeverReady => "NeverReady",
            Self::LingeringLimit => "LingeringLimit",
        }
    }
}
