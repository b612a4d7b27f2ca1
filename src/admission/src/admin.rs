//! Admin rules and their companions. These live in the platform's own namespace. Other Pods there are admitted unchanged.

use outrigger_api::AdminWorkloadRule;
use outrigger_core::lint::{self, LintContext};
use outrigger_core::{companion, keys, mutate};
use serde::Deserialize;

use crate::companions::current_rule;
use crate::decision::Decision;
use crate::handler::{Admission, CacheStale, Context, Refusal};
use crate::review::Request;
use crate::steps::{Roles, apply};

/// Places the manager's companions. Only the manager may say which tenant such a companion is for: the namespace doesn't.
pub(crate) fn mutate(cx: Context<'_>, request: &mut Request) -> Result<Admission, Refusal> {
    if !cx.is_manager(request) {
        mutate::refuse_own_keys(&request.object).map_err(|error| Decision::deny_fields(403, &[error]))?;
        return Ok(Decision::allow().into());
    }
    let Some((tenant, name, uid)) = companion::of_admin_rule(&request.object) else {
        let message = format!(
            "metadata: the manager makes companions of admin rules only in namespace {}; it has to name tenant and rule \
             (label {}, annotations {} and {})",
            request.namespace,
            keys::TENANT,
            keys::ADMIN_RULE,
            keys::RULE_UID
        );
        return Ok(Decision::deny(422, message).into());
    };
    let rule = current_rule(cx, request, &name, uid)?;
    if cx.caches.tenant(&tenant).is_none() {
        return Err(CacheStale(format!("Tenant {tenant} is not known yet")).into());
    }
    apply(cx, request, Roles { tenant: Some(&tenant), rule: Some(&rule), ..Roles::default() })
}

/// Validates what the schema can't express, with the messages of the manager and gRPC, and warns. No tenant's limits apply.
pub(crate) fn validate(cx: Context<'_>, request: &mut Request) -> Result<Admission, Refusal> {
    if request.leaves_spec() {
        // An object that was invalid before may still lose its finalizers.
        return Ok(Decision::allow().into());
    }
    let object = AdminWorkloadRule::deserialize(&request.object)
        .map_err(|error| Decision::deny(422, format!("spec: {error}")))?;
    let admin = object.compile().map_err(|errors| Decision::deny_fields(422, &errors))?;
    let mut warnings = Vec::new();
    let served = &cx.settings.admin.rules;
    if request.namespace != **served {
        warnings
            .push(format!("it has no effect in this namespace: AdminWorkloadRules are served in {served}"));
    }
    let around = LintContext { host_labels: &cx.settings.host_labels, tenant: None, dpus: None };
    warnings.extend(lint::rule(&admin.rule, &around));
    Ok(Decision::warn(warnings).into())
}

#[cfg(test)]
mod tests {
    use outrigger_api::Change;
    use outrigger_core::admin::AdminNamespaces;
    use outrigger_core::selector::requirement;
    use serde_json::{Value, json};

    use super::*;
    use crate::caches::Caches;
    use crate::handler::Settings;
    use crate::tests::{denied, namespace, patched, request_for, tenant};
    use crate::webhooks;

    const MANAGER: &str = "the-manager";

    fn decide(path: &str, caches: &Caches, request: &mut Request) -> Result<Decision, CacheStale> {
        let settings = Settings {
            managers: vec![MANAGER.to_owned()],
            admin: AdminNamespaces::new("rules", "universe"),
            ..Settings::default()
        };
        webhooks::endpoint(path)
            .unwrap()
            .decide(Context::new(caches, &settings), request)
            .map(|admission| admission.decision)
    }

    fn mutate_pod(caches: &Caches, request: &mut Request) -> Result<Decision, CacheStale> {
        decide("/mutate/pods", caches, request)
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
        caches.apply_tenant(Change::Applied(tenant("blue", json!({}))));
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
        let mut request = request_for("Pod", "universe", &object, &Value::Null);
        request.user_info.username = MANAGER.into();
        request
    }

    fn admitted(caches: &Caches, mut request: Request) -> Value {
        let before = request.object.clone();
        patched(mutate_pod(caches, &mut request).unwrap(), &before).unwrap()
    }

    #[test]
    fn the_managers_companion_is_placed_for_the_tenant_that_it_names() {
        let terms =
            "/spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms";
        let host = requirement(keys::DPU_NODE_NAME, "host-a");
        let earlier = requirement(keys::DPU_HOST, "host-a");
        let unnamed = json!({"key": keys::DPU_NODE_NAME, "operator": "DoesNotExist"});
        let tenant = requirement(keys::NODE_TENANT, "blue");
        let pod = admitted(&caches("SameNode"), companion(json!({})));
        assert_eq!(
            pod.pointer(terms),
            Some(
                &json!([{"matchExpressions": [host, tenant]}, {"matchExpressions": [unnamed, earlier, tenant]}])
            )
        );
        assert_eq!(pod["spec"]["tolerations"][0]["value"], "blue");
        assert_eq!(pod["spec"].get("schedulingGates"), None);
        assert_eq!(pod["spec"]["hostNetwork"], true, "the platform may");
        let pod = admitted(&caches("Any"), companion(json!({})));
        assert_eq!(pod.pointer(terms), Some(&json!([{"matchExpressions": [tenant]}])));
    }

    #[test]
    fn missing_facts_are_not_guessed() {
        for missing in [
            json!({"metadata": {"labels": {keys::TENANT: null}}}),
            json!({"metadata": {"labels": {keys::TENANT: "No"}}}),
            json!({"metadata": {"annotations": {keys::ADMIN_RULE: null}}}),
            json!({"metadata": {"annotations": {keys::RULE_UID: null}}}),
            json!({"metadata": {"annotations": {keys::RULE_GENERATION: "x"}}}),
        ] {
            let answer = mutate_pod(&caches("Any"), &mut companion(missing.clone()));
            assert_eq!(denied(answer).0, 422, "{missing}");
        }
        for behind in [
            json!({"metadata": {"labels": {keys::TENANT: "red"}}}),
            json!({"metadata": {"annotations": {keys::ADMIN_RULE: "s"}}}),
            json!({"metadata": {"annotations": {keys::RULE_UID: "other"}}}),
            json!({"metadata": {"annotations": {keys::RULE_GENERATION: "3"}}}),
        ] {
            let answer = mutate_pod(&caches("Any"), &mut companion(behind.clone()));
            assert!(answer.is_err(), "{behind}: {answer:?}");
        }
    }

    #[test]
    fn other_pods_are_admitted_unless_they_set_outriggers_keys() {
        let mut forged = companion(json!({}));
        forged.user_info.username = "somebody".into();
        let (code, message) = denied(mutate_pod(&caches("Any"), &mut forged));
        assert_eq!(code, 403);
        assert!(message.contains("only Outrigger itself"), "{message}");
        let mut plain = forged;
        plain.object = json!({"metadata": {"labels": {"app": "x"}},
            "spec": {"nodeName": "dpu", "tolerations": [{"operator": "Exists"}]}});
        assert_eq!(mutate_pod(&caches("Any"), &mut plain), Ok(Decision::allow()));
        // A namespace that carries a tenant's label is that tenant's, whatever it is called.
        let caches = caches("Any");
        caches.namespace(namespace("universe", &json!({keys::TENANT: "blue"})));
        let answer = mutate_pod(&caches, &mut plain);
        assert!(matches!(answer, Ok(Decision::Allow { patch, .. }) if !patch.0.is_empty()));
    }

    #[test]
    fn a_rule_is_validated_by_itself() {
        let ask = |object: &AdminWorkloadRule, old: Option<&AdminWorkloadRule>, namespace: &str| {
            let value = |rule: &AdminWorkloadRule| serde_json::to_value(rule).unwrap();
            let old = old.map_or(Value::Null, value);
            let mut request = request_for("AdminWorkloadRule", namespace, &value(object), &old);
            decide("/validate/adminworkloadrules", &Caches::default(), &mut request)
        };
        assert_eq!(ask(&rule("Any"), None, "rules"), Ok(Decision::allow()), "privileged, and in order");
        let Ok(Decision::Allow { warnings, .. }) = ask(&rule("Any"), None, "elsewhere") else { panic!() };
        assert_eq!(warnings, ["it has no effect in this namespace: AdminWorkloadRules are served in rules"]);
        let wrong = rule("Some");
        let (code, message) = denied(ask(&wrong, None, "rules"));
        assert_eq!(code, 422);
        assert!(message.starts_with("spec.dpuSelectionPolicy"), "{message}");
        assert_eq!(ask(&wrong, Some(&wrong), "rules"), Ok(Decision::allow()), "it was so before");
    }
}
