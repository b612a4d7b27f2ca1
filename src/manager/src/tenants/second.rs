//! Namespaces that have a tenant's label beside the tenant's own namespace, because somebody has labeled them.
//!
//! Their Pods count as the tenant's, because admission lets them use the tenant's DPUs. So a DPU with such Pods isn't handed over. The manager
//! can't delete them: it grants itself rights in the tenant's own namespace alone, so that a label which is set by mistake has no Pods
//! deleted. An administrator has to act. The Tenant's conditions and Events name the namespaces, the missing right and the remedy.

use outrigger_core::ids::TenantId;
use outrigger_core::keys;

use super::namespace::ROLE;
use crate::conditions::and_more;
use crate::state::TenantStates;

/// Names that a message lists: with more, and with long names, the remedy would be cut off.
const SHOWN: usize = 3;

/// The namespaces that have a tenant's label beside its own; `None` where there are none.
pub(super) fn names(states: &TenantStates, id: &TenantId, own: &str) -> Option<String> {
    let labeled = states.of(id);
    let others: Vec<&str> =
        labeled.iter().map(|state| &*state.namespace).filter(|name| *name != own).collect();
    if others.is_empty() {
        return None;
    }
    let shown = others.len().min(SHOWN);
    Some(format!("{}{}", others[..shown].join(", "), and_more(others.len() - shown, "")))
}

/// Which namespaces have a tenant's label beside its own, what that holds up, which right is missing, and what to do; `None` where there are
/// none.
pub(super) fn message(states: &TenantStates, id: &TenantId, own: &str) -> Option<String> {
    let names = names(states, id, own)?;
    Some(format!(
        "other namespaces than {own} have the label {}={id}: {names}; a DPU with Pods of these isn't handed over, and the \
         manager may delete Pods only where it has the RoleBinding {} to the ClusterRole {ROLE}, which it creates in {own} \
         alone; delete the tenant's Pods in these, then remove the label",
        keys::TENANT,
        keys::MANAGER
    ))
}

#[cfg(test)]
mod tests {
    use outrigger_core::reason::MAX_MESSAGE;

    use super::*;

    #[test]
    fn a_second_namespace_is_named_with_the_missing_right_and_the_remedy() {
        let (states, blue) = (TenantStates::default(), TenantId::new("blue").unwrap());
        let said = || message(&states, &blue, "own");
        states.set_tenant("own", Some(blue.clone()));
        states.set_tenant("of-red", TenantId::new("red").ok());
        assert_eq!(said(), None);
        states.set_tenant("stray", Some(blue.clone()));
        let text = said().unwrap();
        for part in [
            "other namespaces than own have the label outrigger.dev/tenant=blue: stray;",
            "RoleBinding outrigger-manager to the ClusterRole outrigger-manager-tenant",
            "delete the tenant's Pods in these, then remove the label",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(!text.contains("of-red"), "{text}");
        states.set_tenant("stray", None);
        assert_eq!(said(), None, "the label is removed");
    }

    #[test]
    fn the_remedy_fits_into_a_condition_however_many_namespaces_there_are() {
        let (states, id) = (TenantStates::default(), TenantId::new(&"t".repeat(TenantId::MAX)).unwrap());
        for i in 0..9 {
            states.set_tenant(&format!("{i}{}", "n".repeat(62)), Some(id.clone()));
        }
        let text = message(&states, &id, &"o".repeat(63)).unwrap();
        assert!(text.contains(" (and 6 more);"), "{text}");
        let waiting = format!("waiting for {} DPUs to be gone; ", usize::MAX);
        assert!(waiting.len() + text.len() <= MAX_MESSAGE, "{}", text.len());
    }
}
