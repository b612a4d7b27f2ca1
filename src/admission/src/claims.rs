//! Validation of ResourceClaims and ResourceClaimTemplates in tenants' namespaces.

use outrigger_core::tenant::Policy;
use outrigger_core::validate::{self, Writer};

use crate::decision::Decision;
use crate::handler::{Admission, Context, Refusal};
use crate::pods::with_facts;
use crate::review::Request;

pub(crate) fn validate(cx: Context<'_>, request: &mut Request) -> Result<Admission, Refusal> {
    let id = cx.owner(request)?;
    let writer = writer(cx, request);
    let (object, old) = (&request.object, &request.old_object);
    let errors = if request.leaves_spec() {
        // The Tenant's limits don't matter here, so claims can be finalized also after their Tenant was deleted.
        validate::claim(object, old, &Policy::new(id), writer)
    } else {
        // No check of claims is governed by the level of enforcement.
        with_facts(cx, request, &id, |facts| validate::claim(object, old, facts.policy, writer))?.1
    };
    if !errors.is_empty() || request.operation != "CREATE" {
        return Ok(Decision::by_fields(403, &errors).into());
    }
    // A claim's spec is immutable, so one warning at creation is enough.
    Ok(Decision::warn(validate::claim_warnings(&request.object)).into())
}

/// The kind of user that writes the claim. The cluster's own controllers have accounts in kube-system, or share one
/// certificate.
fn writer(cx: Context<'_>, request: &Request) -> Writer {
    const CONTROLLERS: &str = "system:serviceaccounts:kube-system";
    const CONTROLLER_MANAGER: &str = "system:kube-controller-manager";
    let user = &request.user_info;
    if cx.is_manager(request) {
        Writer::Manager
    } else if user.groups.iter().any(|group| group == CONTROLLERS)
        || user.username == CONTROLLER_MANAGER
        || cx.settings.binders.contains(&user.username)
    {
        Writer::Cluster
    } else {
        Writer::User
    }
}

#[cfg(test)]
mod tests {
    use outrigger_api::Change;
    use outrigger_core::keys;
    use serde_json::{Value, json};

    use super::*;
    use crate::caches::Caches;
    use crate::handler::Settings;
    use crate::review::UserInfo;
    use crate::tests::{namespace, request_for, tenant};
    use crate::webhooks;

    const MANAGER: &str = "the-manager";

    fn ask(user: &str, groups: &[&str], metadata: &Value, count: u64) -> Decision {
        let caches = Caches::default();
        caches.apply_tenant(Change::Applied(tenant("blue", json!({"deviceClasses": ["c"]}))));
        caches.namespace(namespace("tenant-blue", &json!({keys::TENANT: "blue"})));
        let settings = Settings {
            managers: vec![MANAGER.to_owned()],
            binders: vec!["the-scheduler".to_owned()],
            ..Settings::default()
        };
        let request = json!({"name": "d", "exactly": {"deviceClassName": "c", "count": count}});
        let claim = json!({"metadata": metadata, "spec": {"devices": {"requests": [request]}}});
        let mut request = request_for("ResourceClaim", "tenant-blue", &claim, &Value::Null);
        let groups = groups.iter().map(ToString::to_string).collect();
        request.user_info = UserInfo { username: user.into(), groups };
        webhooks::endpoint("/validate/resourceclaims")
            .unwrap()
            .decide(Context::new(&caches, &settings), &mut request)
            .unwrap()
            .decision
    }

    #[test]
    fn who_makes_claims_for_pods_and_workloads() {
        const CONTROLLERS: &[&str] = &["system:serviceaccounts", "system:serviceaccounts:kube-system"];
        let of_pod =
            json!({"ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u"}]});
        let of_workload = json!({"name": "r-573e560607f4a185", "labels": {keys::WORKLOAD: "w"}});
        for (user, groups, pods, workloads) in [
            ("somebody", &["system:serviceaccounts:tenant-blue", "system:authenticated"][..], false, false),
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
