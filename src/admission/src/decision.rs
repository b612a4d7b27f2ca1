//! The answer to a request.

use json_patch::Patch;
use outrigger_core::field::FieldError;
use outrigger_core::tenant::Enforcement;
use outrigger_core::validate;

use crate::provenance;

/// HTTP status of the refusal of an object that contradicts what it is admitted for: no later attempt can succeed. Endpoints that
/// advise refuse with no other.
pub const CONTRADICTION: u16 = 422;

/// How the warning begins of what the tenant's level of enforcement lets through.
const WOULD_BE_REFUSED: &str = "would be refused at the level Enforce";

/// The answer to a request.
#[derive(Debug, Clone, PartialEq)]
pub enum Decision {
    /// The object is admitted, changed by the patch, with warnings for the user.
    Allow {
        /// What to change; empty for nothing.
        patch: Patch,
        /// At most 120 characters each are shown whole.
        warnings: Vec<String>,
        /// Audit annotations: for each step that changed the object, its key and what decided; and what a level of enforcement has let
        /// through.
        audit: Vec<(&'static str, String)>,
    },
    /// The object is refused.
    Deny {
        /// HTTP status, 400 or above.
        code: u16,
        /// The field's path, what is wrong, what to do.
        message: String,
        /// The same by field, for programs.
        causes: Vec<FieldError>,
        /// What decided, for audit: step and object as [`Origin`](crate::provenance::Origin) writes them. Empty where neither is known.
        by: String,
    },
}

impl Decision {
    /// The object is admitted unchanged.
    pub fn allow() -> Self {
        Self::warn(Vec::new())
    }

    /// The object is admitted unchanged, with warnings.
    pub fn warn(warnings: Vec<String>) -> Self {
        Self::Allow { patch: Patch(Vec::new()), warnings, audit: Vec::new() }
    }

    /// The object is refused.
    pub fn deny(code: u16, message: impl Into<String>) -> Self {
        Self::Deny { code, message: message.into(), causes: Vec::new(), by: String::new() }
    }

    /// The object is refused for these fields.
    pub fn deny_fields(code: u16, errors: &[FieldError]) -> Self {
        let causes = errors.iter().take(validate::MAX_FAULTS).cloned().collect();
        Self::Deny { code, message: validate::message(errors), causes, by: String::new() }
    }

    /// The object is refused where some fields are wrong.
    pub(crate) fn by_fields(code: u16, errors: &[FieldError]) -> Self {
        if errors.is_empty() { Self::allow() } else { Self::deny_fields(code, errors) }
    }

    /// Judges an object of a tenant at this level of enforcement by its faults: those that the level doesn't govern refuse it, the
    /// others do so at the level Enforce, and are warnings below. `by`: what decides, for audit.
    pub(crate) fn at_level(
        level: Enforcement,
        code: u16,
        faults: Vec<FieldError>,
        by: impl FnOnce() -> String,
    ) -> Self {
        let (refused, admitted): (Vec<_>, Vec<_>) =
            faults.into_iter().partition(|fault| level == Enforcement::Enforce || !fault.governed);
        if !refused.is_empty() || admitted.is_empty() {
            return Self::by_fields(code, &refused).decided_by(by);
        }
        let reported = admitted.iter().take(validate::MAX_FAULTS);
        let warnings = reported.map(|fault| format!("{WOULD_BE_REFUSED}: {fault}")).collect();
        let audit = vec![(provenance::DENIED, provenance::denied(code, Some(level), &by(), &admitted))];
        Self::Allow { patch: Patch(Vec::new()), warnings, audit }
    }

    /// Whether the object is admitted only because of its tenant's level of enforcement.
    pub fn would_deny(&self) -> bool {
        matches!(self, Self::Allow { audit, .. } if audit.iter().any(|(key, _)| *key == provenance::DENIED))
    }

    /// The same decision with these warnings after its own, if it admits the object.
    pub(crate) fn with_warnings(mut self, more: Vec<String>) -> Self {
        if let Self::Allow { warnings, .. } = &mut self {
            warnings.extend(more);
        }
        self
    }

    /// The same decision; a refusal names what decided.
    pub(crate) fn decided_by(self, origin: impl FnOnce() -> String) -> Self {
        match self {
            Self::Deny { code, message, causes, .. } => Self::Deny { code, message, causes, by: origin() },
            allowed @ Self::Allow { .. } => allowed,
        }
    }
}
