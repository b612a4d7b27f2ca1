//! What a container may do on its DPU.

use serde_json::Value;

use super::{ValidationContext, pod_security};
use crate::field::FieldError;
use crate::tenant::PodSecurity;

/// The Pod Security Standards' baseline, unless the platform has made the tenant privileged. The API server's own plugin
/// enforces the same from the namespace's label, and the level restricted besides; here it is checked once more because a
/// label can be lost, and because offline commands have no such plugin.
pub(super) fn pod_security(pod: &Value, facts: &ValidationContext<'_>, faults: &mut Vec<FieldError>) {
    if facts.policy.pod_security > PodSecurity::Privileged {
        pod_security::baseline(pod, faults);
    }
}
