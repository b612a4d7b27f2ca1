//! Which companion a key stands for, and what there should be for it.

use std::sync::Arc;

use crate::ids::{RuleName, WorkloadId};
use crate::rule::Rule;
use crate::workload::Workload;

/// A companion of a rule for a workload. It is the only one, unless the rule has one on each DPU of the workload's host
/// ([`DpuSelectionPolicy::is_on_all`](crate::rule::DpuSelectionPolicy::is_on_all)).
///
/// Such a rule has a key for each DPU, and the key without a DPU, of which there is no companion: it stands for all of them where the
/// index names what a change of the workload concerns, and in what the tenant hears.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CompanionKey {
    /// The rule.
    pub rule: RuleName,
    /// The workload, by its label value ([`WorkloadId::label_value`](crate::ids::WorkloadId::label_value)): that is what an existing
    /// companion tells. With a DPU: `LABEL/NODE`, which isn't taken for a label, because those have no `/`.
    pub workload: Arc<str>,
}

impl CompanionKey {
    /// The key of a rule's companion for a workload, without a DPU.
    pub fn of(rule: &RuleName, workload: &WorkloadId) -> Self {
        Self { rule: rule.clone(), workload: workload.label_value().into() }
    }

    /// The workload's label value.
    pub fn label(&self) -> &str {
        label_of(&self.workload)
    }

    /// The name of the DPU's Node; `None` for the only companion, and for what stands for all of them.
    pub fn dpu(&self) -> Option<&str> {
        self.workload.split_once(SEPARATOR).map(|(_, dpu)| dpu)
    }

    /// The key of the companion on the DPU with this Node.
    #[must_use]
    pub fn on(&self, dpu: &str) -> Self {
        Self { rule: self.rule.clone(), workload: format!("{}{SEPARATOR}{dpu}", self.label()).into() }
    }

    /// The key without a DPU.
    #[must_use]
    pub fn whole(&self) -> Self {
        Self { rule: self.rule.clone(), workload: whole(&self.workload) }
    }
}

/// Between a workload's label value and the name of a Node.
const SEPARATOR: char = '/';

/// The label value in what stands for a workload in a [`CompanionKey`].
pub(super) fn label_of(workload: &str) -> &str {
    workload.split_once(SEPARATOR).map_or(workload, |(label, _)| label)
}

/// The same, shared where there is no DPU.
pub fn whole(workload: &Arc<str>) -> Arc<str> {
    let label = label_of(workload);
    if label.len() == workload.len() { workload.clone() } else { label.into() }
}

/// What there should be for a [`CompanionKey`].
#[derive(Debug, Clone, Copy)]
pub enum Desired<'a> {
    /// A companion of this rule for this workload.
    Wanted {
        /// The rule.
        rule: &'a Arc<Rule>,
        /// The workload.
        workload: &'a Arc<Workload>,
    },
    /// The rule matches, but its companion [waits](Rule::waits) until the workload is scheduled.
    Waiting,
    /// No companion with this key: the rule matches, and its companions for the workload are on other DPUs, as far as they are known, or
    /// on any one ([`TenantIndex::companions_of`](super::TenantIndex::companions_of)).
    OnOtherDpus {
        /// The rule.
        rule: &'a Arc<Rule>,
        /// The workload.
        workload: &'a Arc<Workload>,
    },
    /// No companion: the workload doesn't match, or is known not to exist.
    Unwanted,
    /// No companion; but one that exists stays for a while ([`Rule::linger`]): the workload is known not to exist.
    Ended {
        /// The rule.
        rule: &'a Arc<Rule>,
    },
    /// There is no such rule, or none that can be served.
    RuleUnknown,
    /// The workload isn't known, and the tenant has not yet sent all of its workloads; or its state was too large.
    Unknown,
    /// The rule matches, and the tenant's rules match more than is kept ([`TenantIndex::limit`](super::TenantIndex::limit)).
    OverLimit,
    /// An annotation of the workload decides that isn't known. What exists stays, and nothing is made.
    Undecided,
}

impl<'a> Desired<'a> {
    /// What there should be where the rule matches the workload.
    pub fn of_match(rule: &'a Arc<Rule>, workload: &'a Arc<Workload>) -> Self {
        if rule.waits(workload) { Self::Waiting } else { Self::Wanted { rule, workload } }
    }
}
