//! The report of `outrigger diff`. docs/diff.md describes its structure, which is stable.

use outrigger_core::companion::InPlace;
use outrigger_core::field::FieldError;
use serde::Serialize;

use crate::explain::view::View;
use crate::rules::RuleKind;
use crate::slots::GuestSlot;

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Report {
    /// The tenant whose companions are compared, if it is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) tenant: Option<String>,
    /// All tenants whose companions are compared.
    pub(crate) tenants: Vec<String>,
    pub(crate) notes: Vec<String>,
    /// The rules that would be applied, or deleted.
    pub(crate) rules: Vec<RuleVerdict>,
    pub(crate) companions: Vec<CompanionChange>,
}

impl Report {
    /// A report without companions.
    pub(crate) fn new(views: &[View], notes: Vec<String>, rules: Vec<RuleVerdict>) -> Self {
        let tenants: Vec<String> =
            views.iter().filter_map(|view| view.tenant.as_ref()).map(ToString::to_string).collect();
        let tenant = if let [one] = tenants.as_slice() { Some(one.clone()) } else { None };
        let mut this = Self { tenant, tenants, notes: Vec::new(), rules, companions: Vec::new() };
        // Most concern the state, and so are the same for all tenants.
        for note in views.iter().flat_map(|view| &view.source.notes).chain(&notes) {
            this.note(note.clone());
        }
        this
    }

    /// Adds a note, once.
    pub(crate) fn note(&mut self, note: String) {
        if !self.notes.contains(&note) {
            self.notes.push(note);
        }
    }

    /// Adds a note on one of the tenants.
    pub(crate) fn note_of(&mut self, view: &View, note: &str) {
        match view.tenant.as_ref().filter(|_| self.tenant.is_none()) {
            Some(tenant) => self.note(format!("tenant {tenant}: {note}")),
            None => self.note(note.to_owned()),
        }
    }

    pub(crate) fn is_refused(&self) -> bool {
        self.rules.iter().any(RuleVerdict::is_refused)
            || self.companions.iter().any(|companion| companion.change == Change::Refused)
    }

    /// Whether nothing would change.
    pub(crate) fn is_empty(&self) -> bool {
        self.companions.is_empty() && self.rules.iter().all(|rule| rule.change == RuleChange::Unchanged)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) enum RuleChange {
    Created,
    Changed,
    Unchanged,
    Deleted,
    /// Admission denies it, so that the cluster keeps the rule that it has.
    Refused,
}

impl RuleChange {
    /// For people.
    pub(crate) fn as_str(self) -> &'static str {
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
pub(crate) struct RuleVerdict {
    pub(crate) kind: RuleKind,
    /// Its namespace in the infrastructure cluster.
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) change: RuleChange,
    /// Why it would be refused.
    pub(crate) errors: Vec<FieldError>,
    /// Admission's warnings.
    pub(crate) warnings: Vec<String>,
}

impl RuleVerdict {
    pub(crate) fn is_refused(&self) -> bool {
        self.change == RuleChange::Refused
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub(crate) enum Change {
    Created,
    /// Deleted, and created again when it is gone.
    Replaced,
    /// It gets other amounts of cpu and memory in place, or is replaced where that isn't possible.
    Resized,
    /// It gets other images, more tolerations or another `activeDeadlineSeconds` in place, or is replaced where that isn't possible.
    Updated,
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
    /// The change of a companion that is changed in place, and words about it.
    pub(crate) fn in_place(change: InPlace) -> (Self, String) {
        match change {
            InPlace { images: true, .. } => (
                Self::Updated,
                "in place where it is ready: containers of another image are restarted".to_owned(),
            ),
            InPlace { others: true, .. } => (Self::Updated, "in place where it is ready".to_owned()),
            InPlace { .. } => {
                (Self::Resized, "in place where the cluster and the DPU permit that".to_owned())
            }
        }
    }

    /// For people.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::Replaced => "replaced",
            Self::Resized => "resized",
            Self::Updated => "updated",
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
pub(crate) struct CompanionChange {
    /// The tenant of its workload.
    pub(crate) tenant: String,
    pub(crate) rule_kind: RuleKind,
    pub(crate) rule: String,
    /// `namespace/name` of its workload, or the workload's label value if the workload isn't known.
    pub(crate) workload: String,
    /// Where the companion is: the tenant's namespace, or that of all companions of admin rules.
    pub(crate) namespace: String,
    pub(crate) companion: String,
    pub(crate) change: Change,
    /// Why: a word of the manager's log for deletions, else a sentence.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) reason: String,
    /// The annotations that change.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) annotations: Vec<String>,
    /// The Nodes that a new companion may run on; absent where they aren't known, or it makes no Pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) nodes: Option<Vec<String>>,
    /// The slot of a Machine that a new companion takes; absent where it takes none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) slot: Option<GuestSlot>,
    /// Why there is no such Node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) problem: Option<String>,
}
