//! Admin rules and their companions. The namespace of these is the platform's own, where much else may be: that is left
//! alone.

use outrigger_api::AdminWorkloadRule;
use outrigger_core::companion;
use outrigger_core::keys;
use outrigger_core::lint::{self, Around};
use outrigger_core::mutate;
use serde::Deserialize;

use super::mutate::{Roles, apply, as_new_as, made_by, with_devices};
use super::{Behind, Settings, deny, deny_fields, is_manager};
use crate::caches::Caches;
use crate::review::{Decision, Request};

/// The kind that is validated here.
pub(super) const KIND: (&str, &str, &str) = ("workload.universe.nvidia.com", "v1alpha1", "AdminWorkloadRule");

/// Places the manager's companions. Whose they are is the manager's word, and nobody else's: here no namespace says it.
pub(super) fn mutate(
    caches: &Caches,
    settings: &Settings,
    request: &mut Request,
) -> Result<Decision, Behind> {
    if !is_manager(settings, request) {
        return Ok(match mutate::refuse_own_keys(&request.object) {
            Ok(()) => Decision::allow(),
            Err(error) => deny_fields(403, &[error]),
        });
    }
    let Some((tenant, name, uid)) = companion::of_admin_rule(&request.object) else {
        let message = format!(
            "metadata: the manager makes companions of admin rules only in namespace {}; it has to say whose this is \
             (label {}, annotations {} and {})",
            request.namespace,
            keys::TENANT,
            keys::ADMIN_RULE,
            keys::RULE_UID
        );
        return Ok(deny(422, message));
    };
    let generation = match made_by(&request.object) {
        Ok(generation) => generation,
        Err(error) => return Ok(deny_fields(422, &[error])),
    };
    if caches.tenant(&tenant).is_none() {
        return Err(Behind(format!("Tenant {tenant} is not known yet")));
    }
    let rule = match as_new_as(caches.admin_rule(name.as_str()), &name, uid, generation, &request.object)? {
        Ok(rule) => rule,
        Err(denied) => return Ok(denied),
    };
    let roles = Roles { tenant: Some(&tenant), rule: Some(&rule), ..Roles::default() };
    let decision = apply(&mut request.object, roles, settings);
    Ok(with_devices(decision, caches, request))
}

/// What the schema can't tell, the same as the manager and gRPC say it, and warnings. No tenant's limits hold for it.
pub(super) fn validate(settings: &Settings, request: &Request) -> Decision {
    if request.operation == "UPDATE" && request.object.get("spec") == request.old_object.get("spec") {
        // One that was no better before may still lose its finalizers.
        return Decision::allow();
    }
    let object = match AdminWorkloadRule::deserialize(&request.object) {
        Ok(object) => object,
        Err(error) => return deny(422, format!("spec: {error}")),
    };
    let admin = match object.compile() {
        Ok(admin) => admin,
        Err(errors) => return deny_fields(422, &errors),
    };
    let mut warnings = Vec::new();
    let served = &settings.admin.rules;
    if request.namespace != **served {
        warnings.push(format!(
            "nothing comes of it in this namespace: AdminWorkloadRules are served in {served}"
        ));
    }
    warnings.extend(lint::rule(
        &admin.rule,
        &Around { host_label: &settings.host_label, tenant: None, dpus: None },
    ));
    Decision::Allow { patch: json_patch::Patch(Vec::new()), warnings }
}

#[cfg(test)]
mod tests {
    use kube::core::PartialObjectMeta;
    use outrigger_api::Tenant;
    use outrigger_core::admin::AdminNamespaces;
    use outrigger_runtime::cache::Change;
    use serde_json::{Value, json};

    use super::*;
    use crate::admit::{mutate_pod, validate_admin_rule};

    const MANAGER: &str = "the-manager";

    fn settings() -> Settings {
        Settings {
            managers: vec![MANAGER.to_owned()],
            binders: Vec::new(),
            schedulers: Vec::new(),
            host_label: keys::DPU_HOST.to_owned(),
            exempt_runtime_class: "liqo".to_owned(),
            core_namespace: keys::CORE_NAMESPACE.to_owned(),
            admin: AdminNamespaces::new("rules", "universe"),
        }
    }

    fn rule(policy: &str) -> AdminWorkloadRule {
        let object = json!({"apiVersion": "workload.universe.nvidia.com/v1alpha1", "kind": "AdminWorkloadRule",
            "metadata": {"name": "r", "namespace": "rules", "uid": "rule-uid", "generation": 2},
            "spec": {"dpuSelectionPolicy": policy,
                "workloadTerms": [{"matchExpressions": [{"key": "@", "operator": "Exists"}]}],
                "template": {"apiVersion": "v1", "kind": "Pod",
                    "spec": {"hostNetwork": true, "containers": [{"name": "c"}]}}}});
        serde_json::from_value(object).unwrap()
    }

    fn caches(policy: &str) -> Caches {
        let caches = Caches::default();
        let tenant = json!({"apiVersion": "outrigger.dev/v1alpha1", "kind": "Tenant",
            "metadata": {"name": "blue", "uid": "t", "generation": 1}, "spec": {}});
        caches.apply_tenant(Change::Applied(serde_json::from_value::<Tenant>(tenant).unwrap()));
        caches.apply_admin_rule(Change::Applied(rule(policy)));
        caches
    }

    fn companion(change: Value) -> Request {
        let mut object = json!({
            "metadata": {"labels": {keys::TENANT: "blue", keys::RULE: "r", keys::WORKLOAD: "w"},
                "annotations": {keys::ADMIN_RULE: "r", keys::RULE_UID: "rule-uid", keys::RULE_GENERATION: "2",
                    keys::HOST: "host-a"}},
            "spec": {"hostNetwork": true, "containers": [{"name": "c"}],
                "schedulingGates": [{"name": keys::ADMISSION_GATE}]}});
        json_patch::merge(&mut object, &change);
        let request = json!({"uid": "1", "kind": {"version": "v1", "kind": "Pod"}, "operation": "CREATE",
            "namespace": "universe", "userInfo": {"username": MANAGER}, "object": object});
        serde_json::from_value(request).unwrap()
    }

    fn admitted(caches: &Caches, mut request: Request) -> Value {
        let before = request.object.clone();
        match mutate_pod(caches, &settings(), &mut request) {
            Ok(Decision::Allow { patch, .. }) => {
                let mut pod = before;
                json_patch::patch(&mut pod, &patch).unwrap();
                pod
            }
            other => panic!("{other:?}"),
        }
    }

    fn denied(decision: Result<Decision, Behind>) -> (u16, String) {
        match decision {
            Ok(Decision::Deny { code, message, .. }) => (code, message),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_managers_companion_is_placed_for_the_tenant_that_it_names() {
        let terms =
            "/spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms";
        let host = json!({"key": keys::DPU_HOST, "operator": "In", "values": ["host-a"]});
        let tenant = json!({"key": keys::NODE_TENANT, "operator": "In", "values": ["blue"]});
        let pod = admitted(&caches("SameNode"), companion(json!({})));
        assert_eq!(pod.pointer(terms), Some(&json!([{"matchExpressions": [host, tenant]}])));
        assert_eq!(pod["spec"]["tolerations"][0]["value"], "blue");
        assert_eq!(pod["spec"].get("schedulingGates"), None);
        assert_eq!(pod["spec"]["hostNetwork"], true, "the platform may");
        let pod = admitted(&caches("Any"), companion(json!({})));
        assert_eq!(pod.pointer(terms), Some(&json!([{"matchExpressions": [tenant]}])));
    }

    #[test]
    fn what_the_manager_does_not_say_is_not_guessed() {
        for missing in [
            json!({"metadata": {"labels": {keys::TENANT: null}}}),
            json!({"metadata": {"labels": {keys::TENANT: "No"}}}),
            json!({"metadata": {"annotations": {keys::ADMIN_RULE: null}}}),
            json!({"metadata": {"annotations": {keys::RULE_UID: null}}}),
            json!({"metadata": {"annotations": {keys::RULE_GENERATION: "x"}}}),
        ] {
            let answer = mutate_pod(&caches("Any"), &settings(), &mut companion(missing.clone()));
            assert_eq!(denied(answer).0, 422, "{missing}");
        }
        for behind in [
            json!({"metadata": {"labels": {keys::TENANT: "red"}}}),
            json!({"metadata": {"annotations": {keys::ADMIN_RULE: "s"}}}),
            json!({"metadata": {"annotations": {keys::RULE_UID: "other"}}}),
            json!({"metadata": {"annotations": {keys::RULE_GENERATION: "3"}}}),
        ] {
            let answer = mutate_pod(&caches("Any"), &settings(), &mut companion(behind.clone()));
            assert!(answer.is_err(), "{behind}: {answer:?}");
        }
    }

    #[test]
    fn others_are_left_alone_as_long_as_they_leave_our_keys_alone() {
        let mut forged = companion(json!({}));
        forged.user_info.username = "somebody".into();
        let (code, message) = denied(mutate_pod(&caches("Any"), &settings(), &mut forged));
        assert_eq!(code, 403);
        assert!(message.contains("only Outrigger itself"), "{message}");
        let mut plain = forged;
        plain.object = json!({"metadata": {"labels": {"app": "x"}},
            "spec": {"nodeName": "dpu", "tolerations": [{"operator": "Exists"}]}});
        assert_eq!(mutate_pod(&caches("Any"), &settings(), &mut plain), Ok(Decision::allow()));
        // A namespace that carries a tenant's label is that tenant's, whatever it is called.
        let caches = caches("Any");
        let namespace = json!({"metadata": {"name": "universe", "labels": {keys::TENANT: "blue"}}});
        let namespace: PartialObjectMeta<_> = serde_json::from_value(namespace).unwrap();
        caches.namespace(Change::Applied(namespace));
        let answer = mutate_pod(&caches, &settings(), &mut plain);
        assert!(matches!(answer, Ok(Decision::Allow { patch, .. }) if !patch.0.is_empty()));
    }

    #[test]
    fn a_rule_is_judged_by_itself() {
        let ask = |object: &AdminWorkloadRule, old: Option<&AdminWorkloadRule>, namespace: &str| {
            let (group, version, kind) = KIND;
            let value = |rule: &AdminWorkloadRule| serde_json::to_value(rule).unwrap();
            let request = json!({"uid": "1", "kind": {"group": group, "version": version, "kind": kind},
                "operation": if old.is_some() { "UPDATE" } else { "CREATE" }, "namespace": namespace,
                "object": value(object), "oldObject": old.map_or(Value::Null, value)});
            let mut request: Request = serde_json::from_value(request).unwrap();
            validate_admin_rule(&Caches::default(), &settings(), &mut request)
        };
        assert_eq!(ask(&rule("Any"), None, "rules"), Ok(Decision::allow()), "privileged, and in order");
        let Ok(Decision::Allow { warnings, .. }) = ask(&rule("Any"), None, "elsewhere") else { panic!() };
        assert_eq!(
            warnings,
            ["nothing comes of it in this namespace: AdminWorkloadRules are served in rules"]
        );
        let wrong = rule("Some");
        let (code, message) = denied(ask(&wrong, None, "rules"));
        assert_eq!(code, 422);
        assert!(message.starts_with("spec.dpuSelectionPolicy"), "{message}");
        assert_eq!(ask(&wrong, Some(&wrong), "rules"), Ok(Decision::allow()), "it was so before");
    }
}
