//! The answer to a request.

use json_patch::Patch;
use outrigger_core::field::FieldError;
use outrigger_core::validate;

/// HTTP status of the refusal of an object that contradicts what it is admitted for: no later attempt can succeed. Endpoints that
/// advise refuse with no other.
pub const CONTRADICTION: u16 = 422;

/// The answer to a request.
#[derive(Debug, Clone, PartialEq)]
pub enum Decision {
    /// The object is admitted, changed by the patch, with warnings for the user.
    Allow {
        /// What to change; empty for nothing.
        patch: Patch,
        /// At most 120 characters each are shown whole.
        warnings: Vec<String>,
        /// Audit annotations: for each step that changed the object, its key and what decided.
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

    /// The same decision; a refusal names what decided.
    pub(crate) fn decided_by(self, origin: impl FnOnce() -> String) -> Self {
        match self {
            Self::Deny { code, message, causes, .. } => Self::Deny { code, message, causes, by: origin() },
            allowed @ Self::Allow { .. } => allowed,
        }
    }
}
