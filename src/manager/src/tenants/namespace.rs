//! A tenant's namespace in the infrastructure cluster, and the objects that Outrigger creates in it.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use k8s_openapi::api::core::v1::{Namespace, Pod, ResourceQuota};
use k8s_openapi::api::rbac::v1::RoleBinding;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::api::{Api, ListParams, Patch, PostParams};
use kube::core::{PartialObjectMeta, PartialObjectMetaExt};
use kube::{Client, ResourceExt};
use outrigger_api::WorkloadRule;
use outrigger_core::ids::RuleName;
use outrigger_core::tenant::Tenant;
use outrigger_core::{claim, keys};
use outrigger_runtime::watch;
use serde_json::{Value, json};
use tracing::info;

use crate::context::Context;
use crate::state::registry::{CLAIMS, count};
use crate::tenants::Former;
use crate::writes::{self, Version, found, only};

/// Name of what Outrigger puts into each tenant's namespace.
const NAME: &str = "outrigger";

/// How often a quota is looked at that the quota controller is about to count.
const LOOKS: Duration = Duration::from_millis(200);

/// How often the quota controller is made to count a quota again whose kinds it doesn't know.
const DISCOVERS: Duration = Duration::from_secs(5);

/// The ClusterRole that is bound in each tenant's namespace.
pub(crate) const ROLE: &str = "outrigger-manager-tenant";

/// Whether a tenant's namespace can be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum State {
    /// It can.
    Ready,
    /// It belongs to another tenant or to none; the message says what to do.
    NotOurs(String),
    /// It is being deleted.
    Terminating,
    /// It is made, and its quota isn't counted yet: until then the API server refuses what the quota is about. Look again after this time.
    Preparing(Duration),
}

/// The manager's own user, as the subject of a RoleBinding.
pub(crate) async fn myself(client: &Client) -> Result<Value, kube::Error> {
    let reviews: Api<SelfSubjectReview> = Api::all(client.clone());
    let review = reviews.create(&PostParams::default(), &SelfSubjectReview::default()).await?;
    let user = review.status.and_then(|s| s.user_info).and_then(|u| u.username).unwrap_or_default();
    Ok(subject(&user))
}

fn subject(user: &str) -> Value {
    let account = user.strip_prefix("system:serviceaccount:").and_then(|rest| rest.split_once(':'));
    match account {
        Some((namespace, name)) => json!({"kind": "ServiceAccount", "namespace": namespace, "name": name}),
        None => json!({"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": user}),
    }
}

/// Makes the namespace, or adopts one that carries the tenant's label, and puts in what has to be there: the Pod Security
/// level, the manager's rights, the limits. Writes only what is not so already. The cache has a namespace that was made before its watch
/// shows it: the tenant is served from then on.
pub(crate) async fn ensure(
    context: &Context,
    tenant: &Tenant,
    owner: &Value,
    myself: &Value,
) -> Result<State, kube::Error> {
    let client = &context.client;
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let (name, id) = (&tenant.namespace, tenant.policy.tenant.as_str());
    let level = tenant.policy.pod_security.as_str();
    match namespaces.get_opt(name).await? {
        None => {
            // The owner reference says that it was made for this Tenant, and goes with it.
            let namespace = json!({"metadata": {"name": name, "ownerReferences": [owner],
                "labels": {keys::TENANT: id, keys::POD_SECURITY_ENFORCE: level}}});
            let namespace: Namespace = serde_json::from_value(namespace).map_err(kube::Error::SerdeError)?;
            let params = writes::post();
            let created = namespaces.create(&params, &namespace).await?;
            context.feeds.namespaces.answer(created.metadata.into_response_partial());
            info!(tenant = id, namespace = %name, "created namespace");
        }
        Some(namespace) if namespace.metadata.deletion_timestamp.is_some() => return Ok(State::Terminating),
        Some(namespace) => {
            let label = |key: &str| namespace.labels().get(key).map(String::as_str);
            match label(keys::TENANT) {
                Some(owner) if owner == id => {}
                Some(owner) => {
                    return Ok(State::NotOurs(format!(
                        "namespace {name} is tenant {owner}'s; choose another name"
                    )));
                }
                None => {
                    return Ok(State::NotOurs(format!(
                        "namespace {name} exists and is no tenant's; give it the label {}={id} to have it adopted, or \
                         choose another name",
                        keys::TENANT
                    )));
                }
            }
            if label(keys::POD_SECURITY_ENFORCE) != Some(level) {
                let patch = json!({"metadata": {"labels": {keys::POD_SECURITY_ENFORCE: level}}});
                namespaces.patch(name, &writes::patch(), &Patch::Merge(patch)).await?;
            }
        }
    }
    bind(client, name, myself).await?;
    Ok(limit(client, tenant).await?.map_or(State::Ready, State::Preparing))
}

/// Grants the manager the right to create companions there.
async fn bind(client: &Client, namespace: &str, myself: &Value) -> Result<(), kube::Error> {
    let bindings: Api<RoleBinding> = Api::namespaced(client.clone(), namespace);
    let wanted = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
        "metadata": {"name": keys::MANAGER, "namespace": namespace},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": ROLE},
        "subjects": [myself]});
    let subjects = |binding: RoleBinding| serde_json::to_value(binding.subjects).unwrap_or_default();
    if let Some(found) = bindings.get_opt(keys::MANAGER).await?
        && found.role_ref.name == ROLE
        && subjects(found) == wanted["subjects"]
    {
        return Ok(());
    }
    bindings.patch(keys::MANAGER, &writes::apply(), &Patch::Apply(&wanted)).await?;
    Ok(())
}

/// Sets the tenant's limits. Returns when to look again while the quota controller hasn't counted the objects that exist.
///
/// That controller counts a quota when `spec.hard` changes, and every five minutes otherwise. It discovers new kinds every half a minute,
/// and counts nothing then. So a quota that was created before its kinds were discovered would refuse rules for up to five minutes. The
/// limit of claims, which is only a bound, is raised by one and set back until all kinds are counted.
async fn limit(client: &Client, tenant: &Tenant) -> Result<Option<Duration>, kube::Error> {
    let quotas: Api<ResourceQuota> = Api::namespaced(client.clone(), &tenant.namespace);
    let rules = format!("count/workloadrules.{}", keys::WORKLOAD_GROUP);
    // A companion is a claim, or has as many as a rule may give it.
    let claims = u64::from(tenant.limits.companions).saturating_mul(1 + claim::MAX_CLAIMS as u64);
    let mut hard = json!({"pods": tenant.limits.companions.to_string(), rules: tenant.limits.rules.to_string(),
        CLAIMS: claims.to_string()});
    let id = tenant.policy.tenant.as_str();
    let found = quotas.get_opt(NAME).await?.filter(|quota| {
        let spec = quota.spec.as_ref().and_then(|spec| spec.hard.as_ref());
        quota.labels().get(keys::TENANT).is_some_and(|owner| owner == id) && same(spec, &hard)
    });
    let mut pause = LOOKS;
    match found.as_ref().map(|quota| progress(quota, &hard)) {
        Some(Progress::Counted) => return Ok(None),
        Some(Progress::Waiting) => return Ok(Some(LOOKS)),
        Some(Progress::Undiscovered) => {
            hard[CLAIMS] = json!(claims.saturating_add(1).to_string());
            pause = DISCOVERS;
        }
        None => {}
    }
    let wanted = json!({"apiVersion": "v1", "kind": "ResourceQuota",
        "metadata": {"name": NAME, "namespace": tenant.namespace, "labels": {keys::TENANT: id}},
        "spec": {"hard": hard}});
    let quota = quotas.patch(NAME, &writes::apply(), &Patch::Apply(&wanted)).await?;
    let counted = pause == LOOKS && progress(&quota, &hard) == Progress::Counted;
    Ok((!counted).then_some(pause))
}

/// How far the quota controller is with a quota.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Progress {
    /// It has counted all kinds.
    Counted,
    /// It hasn't looked at these limits yet.
    Waiting,
    /// It has looked at them, and doesn't know some of the kinds.
    Undiscovered,
}

fn progress(quota: &ResourceQuota, hard: &Value) -> Progress {
    let status = quota.status.as_ref();
    let used = status.and_then(|status| status.used.as_ref());
    // Claims are not counted where the cluster has none.
    let is_counted = |kind: &String| kind == CLAIMS || used.is_some_and(|used| used.contains_key(kind));
    if hard.as_object().into_iter().flatten().all(|(kind, _)| is_counted(kind)) {
        Progress::Counted
    } else if same(status.and_then(|status| status.hard.as_ref()), hard) {
        Progress::Undiscovered
    } else {
        Progress::Waiting
    }
}

/// Whether a quota says this. The API server writes numbers in its own way.
fn same(found: Option<&BTreeMap<String, Quantity>>, wanted: &Value) -> bool {
    let (Some(found), Some(wanted)) = (found, wanted.as_object()) else { return false };
    found.len() == wanted.len()
        && wanted.iter().all(|(resource, number)| {
            let found = found.get(resource).and_then(|quantity| count(&quantity.0));
            found.is_some() && found == number.as_str().and_then(count)
        })
}

/// Releases the namespace of a tenant that is being deleted: one that was created for it is deleted; one that was adopted stays,
/// without rules and Pods. Another leader may have released it meanwhile, and what is there may be of a Tenant that has been created since.
/// Returns a message about what exists, or may exist; `None` when nothing does.
pub(crate) async fn release(
    former: &Former<'_>,
    name: &str,
    uid: &str,
) -> Result<Option<String>, kube::Error> {
    let (client, id) = (former.client, former.id.as_str());
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let Some(namespace) = namespaces.get_opt(name).await? else { return Ok(None) };
    if namespace.labels().get(keys::TENANT).is_none_or(|owner| owner != id) {
        return Ok(None);
    }
    let made = namespace.owner_references().iter().any(|owner| owner.uid == uid);
    if made {
        if namespace.metadata.deletion_timestamp.is_none() {
            namespaces.delete(name, &only(&namespace.uid().unwrap_or_default())).await?;
            info!(tenant = id, namespace = name, "deleted namespace");
        }
        return Ok(Some(format!("namespace {name}")));
    }
    // Rules first: without rules no companion is created.
    let rules: Api<PartialObjectMeta<WorkloadRule>> = Api::namespaced(client.clone(), name);
    let mut stay = Vec::new();
    watch::list(&rules, ListParams::default(), |rule| {
        if rule.metadata.deletion_timestamp.is_none() {
            stay.push(Version::of(&rule));
        }
    })
    .await?;
    for rule in &stay {
        // Again, after the rule was read: an agent may take over what the former Tenant has left.
        if !former.is_still_deleted().await? {
            return Ok(Some(format!("rules in namespace {name}")));
        }
        delete_rule(client, name, rule).await?;
    }
    let pods: Api<PartialObjectMeta<Pod>> = Api::namespaced(client.clone(), name);
    let (left, _) =
        writes::delete_all(&pods, ListParams::default(), |_| true, former.is_still_deleted()).await?;
    Ok(match (left, stay.len()) {
        (0, 0) => None,
        // One that was written meanwhile wasn't deleted.
        (0, rules) => Some(format!("{rules} rules in namespace {name}")),
        (pods, _) => Some(format!("{pods} Pods in namespace {name}")),
    })
}

/// A rule in a namespace, if a manager has written it, over gRPC, and it isn't being deleted. One that a user has written may be of a
/// tenant whose namespace is prepared for adoption. The API server is asked, past all caches.
pub(crate) async fn written_rule(
    client: &Client,
    namespace: &str,
    name: &RuleName,
) -> Result<Option<Version>, kube::Error> {
    let rules: Api<WorkloadRule> = Api::namespaced(client.clone(), namespace);
    let rule = found(rules.get_metadata(name.as_str()).await)?;
    let ours = rule.filter(|rule| {
        rule.metadata.deletion_timestamp.is_none() && writes::has_written_spec(&rule.metadata)
    });
    Ok(ours.as_ref().map(Version::of))
}

/// Deletes a rule of a Tenant that doesn't exist or is being deleted, if it is still as it was read: its watch shows what has been written
/// since. The garbage collector deletes its companions and claim templates.
pub(crate) async fn delete_rule(client: &Client, namespace: &str, rule: &Version) -> Result<(), kube::Error> {
    let rules: Api<WorkloadRule> = Api::namespaced(client.clone(), namespace);
    let result = rules.delete(&rule.name, &rule.deletion()).await;
    if result.is_ok() {
        info!(rule = rule.name, namespace, "deleted rule: its tenant does not exist, or is being deleted");
    }
    writes::deleted(result)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures;

    #[test]
    fn a_quota_is_compared_by_its_numbers() {
        let found = BTreeMap::from([
            ("pods".to_owned(), Quantity("10k".into())),
            (CLAIMS.into(), Quantity("170k".into())),
        ]);
        assert!(same(Some(&found), &json!({"pods": "10000", CLAIMS: "170000"})));
        assert!(!same(Some(&found), &json!({"pods": "10000", CLAIMS: "17"})));
        assert!(!same(Some(&found), &json!({"pods": "10000"})));
        assert!(!same(None, &json!({"pods": "10000"})));
    }

    #[test]
    fn a_quota_is_counted_again_only_after_the_controller_has_looked_and_found_an_unknown_kind() {
        let hard = json!({"pods": "10", "count/rules.example.com": "3", CLAIMS: "170"});
        let of = |status: Value| {
            let quota =
                json!({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {}, "status": status});
            progress(&fixtures::object(quota), &hard)
        };
        assert_eq!(of(json!({})), Progress::Waiting);
        let before = json!({"pods": "10", "count/rules.example.com": "3", CLAIMS: "171"});
        assert_eq!(of(json!({"hard": before, "used": {"pods": "0"}})), Progress::Waiting);
        assert_eq!(of(json!({"hard": hard, "used": {"pods": "0", CLAIMS: "0"}})), Progress::Undiscovered);
        let used = json!({"pods": "0", "count/rules.example.com": "0"});
        assert_eq!(of(json!({"hard": hard, "used": used})), Progress::Counted, "a cluster without claims");
        assert_eq!(of(json!({"hard": before, "used": used})), Progress::Counted);
    }

    #[test]
    fn who_the_manager_is() {
        assert_eq!(
            subject("system:serviceaccount:outrigger-system:outrigger-manager"),
            json!({"kind": "ServiceAccount", "namespace": "outrigger-system", "name": "outrigger-manager"})
        );
        assert_eq!(subject("kubernetes-admin")["kind"], "User");
    }
}
