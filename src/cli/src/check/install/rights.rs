//! What the parts' service accounts may do.

use std::collections::BTreeSet;

use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use kube::api::{Api, ListParams, PostParams};
use serde_json::Value;

use super::cluster::{Answer, Cluster, Kind, NAMESPACE, PATIENCE, together};
use super::shipped::{self, Names, Part};
use crate::check::findings::Finding;
use crate::check::install::judge::rights::{self, Account, Except, Right};
use crate::check::install::judge::text;

const VERSION: &str = "rbac.authorization.k8s.io/v1";

/// Judges what the parts lack, and what they have too much of. The API server is asked about each right that is needed;
/// where it may not be asked, its roles and bindings are read.
pub(super) async fn judge(
    cluster: &Cluster,
    parts: &[Part],
    names: &Names,
    objects: &[(Value, Answer)],
) -> anyhow::Result<Vec<Finding>> {
    let shipped: Vec<Value> = objects.iter().map(|(wanted, _)| wanted.clone()).collect();
    let allowed = shipped::roles(names)?;
    let roles = read(cluster).await;
    let tenants = if parts.contains(&Part::Manager) { tenants(cluster).await } else { None };
    let mut findings = Vec::new();
    for part in parts {
        let account = Account { namespace: names.system.clone(), name: part.name().to_owned() };
        let needed = rights::needed(&shipped, &account);
        let lacking = match lacking(cluster, &account, &needed).await {
            Ok(lacking) => lacking,
            Err(why) => match &roles {
                Some(roles) => rights::lacking(roles, &account, &needed),
                None => {
                    cluster.note(format!(
                        "whether {} has its rights wasn't looked at: {why}, and roles can't be read",
                        account.subject()
                    ));
                    Vec::new()
                }
            },
        };
        findings.extend(rights::missing(&account, lacking));
        if let Some(roles) = &roles {
            let allowed = rights::needed(&allowed, &account);
            let except = Except { role: shipped::TENANT_ROLE, namespaces: tenants.as_ref() };
            let except = (*part == Part::Manager).then_some(&except);
            findings.extend(rights::unneeded(roles, &account, &allowed, except));
        }
    }
    let is_tenants = |(wanted, _): &&(Value, Answer)| {
        text(wanted, "/kind") == "ClusterRole" && text(wanted, "/metadata/name") == shipped::TENANT_ROLE
    };
    if let Some((wanted, found)) = objects.iter().find(is_tenants) {
        match found {
            Answer::There(found) => findings.extend(rights::role(wanted, found)),
            Answer::Absent => findings.push(crate::check::install::judge::missing(wanted)),
            Answer::Unread => {}
        }
    }
    Ok(findings)
}

/// The names of tenants' namespaces, where they may be read.
async fn tenants(cluster: &Cluster) -> Option<BTreeSet<String>> {
    let params = ListParams::default().labels(outrigger_core::keys::TENANT);
    let all = cluster.list(NAMESPACE, "", params).await?;
    Some(all.iter().map(|namespace| text(namespace, "/metadata/name").to_owned()).collect())
}

/// All roles and bindings, where all of them may be read.
async fn read(cluster: &Cluster) -> Option<Vec<Value>> {
    let kinds = ["ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"];
    let lists =
        together(kinds.iter().map(|kind| cluster.list(Kind(VERSION, kind), "", ListParams::default()))).await;
    Some(lists.into_iter().collect::<Option<Vec<_>>>()?.concat())
}

/// Which of these rights the API server says that a service account doesn't have; or why it didn't say.
async fn lacking<'a>(
    cluster: &Cluster,
    account: &Account,
    needed: &'a BTreeSet<Right>,
) -> Result<Vec<&'a Right>, String> {
    let api: Api<SubjectAccessReview> = Api::all(cluster.client.clone());
    let ask = async |right: &'a Right| {
        let created = PostParams::default();
        let review = review(account, right);
        let asked = tokio::time::timeout(PATIENCE, api.create(&created, &review)).await;
        let answer = asked.map_err(|_| "no answer in time".to_owned())?.map_err(|error| error.to_string())?;
        let status = answer.status.unwrap_or_default();
        match status.evaluation_error {
            Some(error) if !status.allowed => Err(error),
            _ => Ok((!status.allowed).then_some(right)),
        }
    };
    let answers: Vec<Result<Option<&Right>, String>> = together(needed.iter().map(ask)).await;
    Ok(answers.into_iter().collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect())
}

fn review(account: &Account, right: &Right) -> SubjectAccessReview {
    let some = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
    let (resource, subresource) = right.parts();
    SubjectAccessReview {
        spec: SubjectAccessReviewSpec {
            user: Some(account.user()),
            groups: Some(account.groups().to_vec()),
            resource_attributes: Some(ResourceAttributes {
                group: some(&right.group),
                name: some(&right.name),
                namespace: some(&right.namespace),
                resource: some(resource),
                subresource: some(subresource),
                verb: some(&right.verb),
                ..ResourceAttributes::default()
            }),
            ..SubjectAccessReviewSpec::default()
        },
        ..SubjectAccessReview::default()
    }
}
