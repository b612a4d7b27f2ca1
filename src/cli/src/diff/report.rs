//! The report of `outrigger diff`. docs/diff.md describes its structure, which is stable.

use outrigger_core::field::FieldError;
use serde::Serialize;

use crate::explain::view::View;
use crate::rules::RuleKind;
use crate::slots::GuestSlot;

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Report {
    /// The tenant whose companions are compared, if it is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) tenant: Option<String>,
    /// All tenants whose companions are compared.
    pub(super) tenants: Vec<String>,
    pub(super) notes: Vec<String>,
    /// The rules that would be applied, or deleted.
    pub(super) rules: Vec<RuleVerdict>,
    pub(super) companions: Vec<CompanionChange>,
}

impl Report {
    /// A report without companions.
    pub(super) fn new(views: &[View], notes: Vec<String>, rules: Vec<RuleVerdict>) -> Self {
        let tenants: Vec<String> =
            views.iter().filter_map(|view| view.tenant.as_ref()).map(ToString::to_string).collect();
        let tenant = if let [one] = tenants.as_slice() { Some(one.clone()) } else { None };
        let mut this = Self { tenant, tenants, notes: Vec::new(), rules, companions: Vec::new() };
        // Most concern the state, and so are the same for all tenants.
        for note in views.iter().flat_map(|view| &view.notes).chain(&notes) {
            this.note(note.clone());
        }
        this
    }

    /// Adds a note, once.
    pub(super) fn note(&mut self, note: String) {
        if !self.notes.contains(&note) {
            self.notes.push(note);
        }
    }

    /// Adds a note on one of the tenants.
    pub(super) fn note_of(&mut self, view: &View, note: &str) {
        match view.tenant.as_ref().filter(|_| self.tenant.is_none()) {
            Some(tenant) => self.note(format!("tenant {tenant}: {note}")),
            None => self.note(note.to_owned()),
        }
    }

    pub(super) fn is_refused(&self) -> bool {
        self.rules.iter().any(RuleVerdict::is_refused)
            || self.companions.iter().any(|companion| companion.change == Change::Refused)
    }

    /// Whether nothing would change.
    pub(super) fn is_empty(&self) -> bool {
        self.companions.is_empty() && self.rules.iter().all(|rule| rule.change == RuleChange::Unchanged)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(super) enum RuleChange {
    Created,
    Changed,
    Unchanged,
    Deleted,
    /// Admission denies it, so that the cluster keeps the rule that it has.
    Refused,
}

impl RuleChange {
    /// For people.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::Changed => "changed",
            Self::Unchanged => "unchanged",
            Self::Deleted => "deleted",
            Self::Refused => "refused",
        }
    }
}

/// What would happen to a rule.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct RuleVerdict {
    pub(super) kind: RuleKind,
    /// Its namespace in the infrastructure cluster.
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) change: RuleChange,
    /// Why it would be refused.
    pub(super) errors: Vec<FieldError>,
    /// Admission's warnings.
    pub(super) warnings: Vec<String>,
}

impl RuleVerdict {
    pub(super) fn is_refused(&self) -> bool {
        self.change == RuleChange::Refused
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub(super) enum Change {
    Created,
    /// Deleted, and created again when it is gone.
    Replaced,
    /// It keeps an earlier template until somebody deletes it.
    Outdated,
    /// Its annotations change in place.
    Annotated,
    /// Its workload has ended: it stays for the rule's `lingerSeconds`, and is deleted then.
    Lingering,
    Deleted,
    /// It would be wanted, and can't be made or changed.
    Refused,
}

impl Change {
    /// For people.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::Replaced => "replaced",
            Self::Outdated => "outdated",
            Self::Annotated => "annotated",
            Self::Lingering => "lingering",
            Self::Deleted => "deleted",
            Self::Refused => "refused",
        }
    }
}

/// What would happen to a companion.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct CompanionChange {
    /// The tenant of its workload.
    pub(super) tenant: String,
    pub(super) rule_kind: RuleKind,
    pub(super) rule: String,
    /// `namespace/name` of its workload, or the workload's label value if the workload isn't known.
    pub(super) workload: String,
    /// Where the companion is: the tenant's namespace, or that of all companions of admin rules.
    pub(super) namespace: String,
    pub(super) companion: String,
    pub(super) change: Change,
    /// Why: a word of the manager's log for deletions, else a sentence.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) reason: String,
    /// The annotations that change.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) annotations: Vec<String>,
    /// The Nodes that a new companion may run on; absent where they aren't known, or it makes no Pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) nodes: Option<Vec<String>>,
    /// The slot of a Machine that a new companion takes; absent where it takes none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) slot: Option<GuestSlot>,
    /// Why there is no such Node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) problem: Option<String>,
}
