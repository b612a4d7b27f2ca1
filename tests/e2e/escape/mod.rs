//! Every way out that a tenant has been seen to try, or could: as the user of its namespace, by the template of a rule,
//! through a controller, with the credentials of a DPU's kubelet, and by an agent that lies. docs/security.md has the list.
//!
//! The user is given more than anybody would give it: ClusterRole `edit` and every subresource of Pods. Whatever is
//! refused has a control case that differs in little and is allowed, so that nothing is refused for another reason than its
//! own. The rows are those of `tests/cases/escapes.yaml` and `requests.yaml` for this layer.

pub(crate) mod beyond;
mod changes;
mod levels;
pub(crate) mod pods;
pub(crate) mod stage;
