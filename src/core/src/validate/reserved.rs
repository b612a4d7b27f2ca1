//! Names that Outrigger gives to what it makes for one workload: `RULE-0123456789abcdef`. They can be predicted, so
//! a tenant could name such an object before it exists.

use crate::companion;
use crate::ids::RuleName;
use crate::index::CompanionKey;

/// Hex digits at the end of a companion's name.
const DIGITS: usize = 16;

/// Whether a name is one that a companion could have.
pub(super) fn is_companion(name: &str) -> bool {
    name.rsplit_once('-').is_some_and(|(rule, hash)| !rule.is_empty() && is_hash(hash))
}

/// Whether a name is one that a companion could have, or that Kubernetes could give to what it makes for that companion:
/// the Pod's name, and more after a `-`.
pub(super) fn is_of_companion(name: &str) -> bool {
    name.split('-').skip(1).any(is_hash)
}

/// Whether a claim that Kubernetes made for this Pod is that of a Pod that is no companion. Kubernetes cuts long names of Pods in the names
/// of their claims, so both names tell.
pub fn is_of_pod(claim: &str, pod: &str) -> bool {
    !is_of_companion(claim) && !is_of_companion(pod)
}

/// Whether a name is that of the companion that some rule has for this workload, given as its label value. Of a rule whose
/// name was cut or changed it can't be determined: such a claim is used by `fromRule` only.
pub(super) fn is_for(name: &str, workload: &str) -> bool {
    let rule = name.rsplit_once('-').and_then(|(rule, _)| RuleName::new(rule).ok());
    rule.is_some_and(|rule| companion::own_name(&CompanionKey { rule, workload: workload.into() }) == name)
}

fn is_hash(text: &str) -> bool {
    text.len() == DIGITS && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_companions_and_of_what_is_made_for_them() {
        let rule = RuleName::new("fire-wall").unwrap();
        let name = companion::own_name(&CompanionKey { rule, workload: "w1".into() });
        assert!(is_companion(&name) && is_of_companion(&name), "{name}");
        assert!(is_for(&name, "w1") && !is_for(&name, "w2"));
        let generated = format!("{name}-device-x7k2m");
        assert!(!is_companion(&generated) && is_of_companion(&generated));
        for other in [
            "shared",
            "a-b",
            "0123456789abcdef",
            "a-0123456789abcde",
            "a-0123456789ABCDEF",
            "a-0123456789abcdeg",
        ] {
            assert!(!is_companion(other) && !is_of_companion(other), "{other}");
        }
        let rule = RuleName::new("a.b").unwrap();
        assert!(
            !is_for(&companion::own_name(&CompanionKey { rule, workload: "w1".into() }), "w1"),
            "was changed"
        );
    }
}
