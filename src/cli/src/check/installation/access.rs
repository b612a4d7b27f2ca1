//! Asks the API server whether the parts' service accounts have their rights.

use std::collections::BTreeSet;

use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use kube::api::{Api, PostParams};
use outrigger_core::json::text;
use serde_json::Value;

use super::parts::{Installation, Part};
use super::rights::{self, Account, Right};
use super::roles;
use crate::check::findings::Finding;
use crate::cluster::{Cluster, Unread, in_time, together};

pub(super) async fn missing_rights(installation: &Installation) -> anyhow::Result<Vec<Finding>> {
    let shipped = roles::shipped(installation.parts(), &installation.names)?;
    let mut findings = Vec::new();
    for part in installation.parts() {
        let account = Account { namespace: installation.names.system.clone(), name: part.name().to_owned() };
        let mut needed = rights::needed(&shipped, &account);
        if *part == Part::Manager {
            needed.extend(in_tenants(installation, &shipped).await);
        }
        match lacking(&installation.cluster, &account, &needed).await {
            Ok(lacking) => findings.extend(rights::missing(&account, lacking)),
            Err(why) => installation
                .cluster
                .note(format!("the rights of {} weren't examined: {why}", account.subject())),
        }
    }
    Ok(findings)
}

/// The rights that the manager gives itself in tenants' namespaces, in one of them.
async fn in_tenants(installation: &Installation, shipped: &[Value]) -> Vec<Right> {
    let Some((namespace, _)) = installation.tenant_namespace().await else { return Vec::new() };
    let is_role = |object: &&Value| {
        text(object, "/kind") == "ClusterRole" && text(object, "/metadata/name") == roles::TENANT_ROLE
    };
    shipped.iter().find(is_role).map(|role| rights::rights(role, &namespace)).unwrap_or_default()
}

/// Which of these rights a service account doesn't have; or why the API server didn't say.
async fn lacking<'a>(
    cluster: &Cluster,
    account: &Account,
    needed: &'a BTreeSet<Right>,
) -> Result<Vec<&'a Right>, String> {
    let api: Api<SubjectAccessReview> = Api::all(cluster.client.clone());
    let ask = async |right: &'a Right| {
        let created = PostParams::default();
        let review = review(account, right);
        let status =
            in_time(api.create(&created, &review)).await.map_err(Unread::brief)?.status.unwrap_or_default();
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
