//! What even the platform's own templates may not be. They may be privileged and go by no tenant's limits; but a DPU changes
//! hands only when nothing of the former tenant's is left on it, and their companions count among that.

use serde_json::Value;

use super::{entries, isolation, text};
use crate::field::{FieldError, FieldErrors};
use crate::keys;
use crate::text::quoted;

/// Everything that forbids the template of an admin rule. Paths begin at `root`, where the template's own `spec` is.
pub fn template(template: &Value, root: &str) -> Vec<FieldError> {
    let mut faults = Vec::new();
    let Some(spec) = template.get("spec") else { return faults };
    let path = format!("{root}.spec");
    isolation::no_grace(spec, &path, &mut faults);
    for (path, toleration) in entries(spec, &path, "tolerations") {
        match text(toleration, "key") {
            Some(key) if keys::is_own(key) => {
                let remedy = "are tolerated as far as a companion needs it, remove it";
                let (key, domain) = (quoted(key), keys::DOMAIN);
                faults.add(path, format_args!("is for {key}; taints under {domain} {remedy}"));
            }
            // NoExecute is an effect that our taints don't have.
            None if text(toleration, "effect") != Some("NoExecute") => {
                let why = "which a DPU has while it changes hands; name the taints' keys";
                let message = format!("has no key and so tolerates {} too, {why}", keys::HANDOVER);
                faults.add(path, message);
            }
            _ => {}
        }
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_companion_must_be_able_to_leave() {
        let paths = |spec: Value| -> Vec<String> {
            let faults = template(&json!({"spec": spec}), "spec.template");
            faults.into_iter().map(|fault| fault.path).collect()
        };
        let privileged = json!({"hostNetwork": true, "hostPID": true, "serviceAccountName": "agent",
            "priorityClassName": "system-node-critical", "schedulerName": "other",
            "containers": [{"name": "c", "securityContext": {"privileged": true}}],
            "volumes": [{"name": "v", "hostPath": {"path": "/"}}],
            "tolerations": [{"key": "a", "operator": "Exists"}, {"operator": "Exists", "effect": "NoExecute"}]});
        assert_eq!(paths(privileged), Vec::<String>::new());
        for toleration in [
            json!({"operator": "Exists"}),
            json!({"operator": "Exists", "effect": "NoSchedule"}),
            json!({"key": keys::HANDOVER, "operator": "Exists"}),
            json!({"key": keys::TENANT, "value": "blue"}),
        ] {
            assert_eq!(
                paths(json!({"tolerations": [{"key": "a", "operator": "Exists"}, toleration]})),
                ["spec.template.spec.tolerations[1]"]
            );
        }
        assert_eq!(
            paths(json!({"terminationGracePeriodSeconds": 0})),
            ["spec.template.spec.terminationGracePeriodSeconds"]
        );
    }
}
