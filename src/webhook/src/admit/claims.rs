//! Validation of ResourceClaims and ResourceClaimTemplates in tenants' namespaces.

use json_patch::Patch;
use outrigger_core::tenant::Policy;
use outrigger_core::validate::{self, Writer};

use super::pods::with_facts;
use super::{Behind, Settings, is_manager, owner, verdict};
use crate::caches::Caches;
use crate::review::{Decision, Request};

pub(super) fn validate(caches: &Caches, settings: &Settings, request: &Request) -> Result<Decision, Behind> {
    let id = owner(caches, &request.namespace)?;
    let writer = writer(settings, request);
    let (object, old) = (&request.object, &request.old_object);
    let faults = if request.operation == "UPDATE" && object.get("spec") == old.get("spec") {
        // What a tenant may ask for doesn't matter, so claims can end also when there is no such Tenant any more.
        validate::claim(object, old, &Policy::new(id), writer)
    } else {
        with_facts(caches, settings, request, &id, |facts| {
            validate::claim(object, old, facts.policy, writer)
        })?
    };
    if !faults.is_empty() || request.operation != "CREATE" {
        return Ok(verdict(&faults));
    }
    // A claim never changes, so once is enough.
    Ok(Decision::Allow { patch: Patch(Vec::new()), warnings: validate::claim_warnings(&request.object) })
}

/// Who asks. The cluster's own controllers have accounts in kube-system, or a certificate for all of them.
fn writer(settings: &Settings, request: &Request) -> Writer {
    const CONTROLLERS: &str = "system:serviceaccounts:kube-system";
    const CONTROLLER_MANAGER: &str = "system:kube-controller-manager";
    let user = &request.user_info;
    if is_manager(settings, request) {
        Writer::Manager
    } else if user.groups.iter().any(|group| group == CONTROLLERS)
        || user.username == CONTROLLER_MANAGER
        || settings.binders.contains(&user.username)
    {
        Writer::Cluster
    } else {
        Writer::User
    }
}

#[cfg(test)]
mod tests {
    use outrigger_api::Tenant;
    use outrigger_core::admin::AdminNamespaces;
    use outrigger_core::keys;
    use outrigger_runtime::cache::Change;
    use serde_json::{Value, json};

    use super::*;

    const MANAGER: &str = "the-manager";

    fn ask(user: &str, groups: &[&str], metadata: &Value, count: u64) -> Decision {
        let caches = Caches::default();
        let tenant = json!({"apiVersion": "outrigger.dev/v1alpha1", "kind": "Tenant",
            "metadata": {"name": "blue", "uid": "t", "generation": 1}, "spec": {"deviceClasses": ["c"]}});
        caches.apply_tenant(Change::Applied(serde_json::from_value::<Tenant>(tenant).unwrap()));
        let namespace = json!({"metadata": {"name": "tenant-blue", "labels": {keys::TENANT: "blue"}}});
        caches.namespace(Change::Applied(serde_json::from_value(namespace).unwrap()));
        let settings = Settings {
            managers: vec![MANAGER.to_owned()],
            binders: vec!["the-scheduler".to_owned()],
            schedulers: Vec::new(),
            host_label: keys::DPU_HOST.to_owned(),
            exempt_runtime_class: String::new(),
            admin: AdminNamespaces::default(),
            core_namespace: keys::CORE_NAMESPACE.to_owned(),
        };
        let request = json!({"name": "d", "exactly": {"deviceClassName": "c", "count": count}});
        let claim = json!({"metadata": metadata, "spec": {"devices": {"requests": [request]}}});
        let request = json!({"uid": "1", "operation": "CREATE", "namespace": "tenant-blue", "object": claim,
            "userInfo": {"username": user, "groups": groups}});
        validate(&caches, &settings, &serde_json::from_value(request).unwrap()).unwrap()
    }

    #[test]
    fn who_makes_claims_for_pods_and_workloads() {
        const CONTROLLERS: &[&str] = &["system:serviceaccounts", "system:serviceaccounts:kube-system"];
        let of_pod =
            json!({"ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u"}]});
        let of_workload = json!({"name": "r-573e560607f4a185", "labels": {keys::WORKLOAD: "w"}});
        for (user, groups, pods, workloads) in [
            ("somebody", &[][..], false, false),
            ("system:serviceaccount:kube-system:resource-claim-controller", CONTROLLERS, true, false),
            ("system:kube-controller-manager", &[], true, false),
            ("the-scheduler", &[], true, false),
            (MANAGER, &[], true, true),
        ] {
            let allowed = |metadata| matches!(ask(user, groups, metadata, 1), Decision::Allow { .. });
            assert_eq!((allowed(&of_pod), allowed(&of_workload)), (pods, workloads), "{user}");
            assert!(allowed(&json!({"name": "c"})), "{user}");
        }
    }

    #[test]
    fn what_can_never_be_allocated_is_a_warning() {
        let warnings = |count| match ask("somebody", &[], &json!({"name": "c"}), count) {
            Decision::Allow { warnings, .. } => warnings,
            denied @ Decision::Deny { .. } => panic!("{denied:?}"),
        };
        assert_eq!(warnings(32), Vec::<String>::new());
        assert!(warnings(33)[0].contains("a claim gets 32 at most"));
    }
}
