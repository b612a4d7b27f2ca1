//! What a user may do with a kind, as the API server says it.

use std::fmt::Debug;

use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
};
use kube::api::{Api, ApiResource, ListParams, PostParams};
use kube::{Client, Resource};
use serde::de::DeserializeOwned;

use crate::cluster::in_time;

/// Whether a response with this status refuses a request because of its user.
pub(super) fn refuses(status: u16) -> bool {
    matches!(status, 401 | 403)
}

/// Whether a user may do something.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Right {
    Granted,
    /// The API server refuses it, and why.
    Refused(String),
    /// It hasn't said.
    Unknown,
}

impl Right {
    /// The right to list the objects of `api`, in a namespace or, where that is empty, in all.
    pub(super) async fn to_list<K>(
        client: &Client,
        resource: &ApiResource,
        namespace: &str,
        api: &Api<K>,
    ) -> Self
    where
        K: Resource + Clone + DeserializeOwned + Debug,
    {
        match review(client, resource, namespace, "list").await {
            Ok(right) => right,
            // Whoever may not ask about rights, as everybody may by default, asks for an object.
            Err(()) => match in_time(api.list_metadata(&ListParams::default().limit(1))).await {
                Ok(_) => Self::Granted,
                Err(unread) if refuses(unread.status) => Self::Refused(unread.why),
                Err(_) => Self::Unknown,
            },
        }
    }

    /// The right to watch them.
    pub(super) async fn to_watch(client: &Client, resource: &ApiResource, namespace: &str) -> Self {
        review(client, resource, namespace, "watch").await.unwrap_or(Self::Unknown)
    }
}

/// Asks about a right. `Err`: the user may not ask.
async fn review(client: &Client, resource: &ApiResource, namespace: &str, verb: &str) -> Result<Right, ()> {
    let attributes = ResourceAttributes {
        verb: Some(verb.to_owned()),
        group: Some(resource.group.clone()),
        version: Some(resource.version.clone()),
        resource: Some(resource.plural.clone()),
        namespace: Some(namespace.to_owned()).filter(|namespace| !namespace.is_empty()),
        ..ResourceAttributes::default()
    };
    let spec = SelfSubjectAccessReviewSpec {
        resource_attributes: Some(attributes),
        ..SelfSubjectAccessReviewSpec::default()
    };
    let review = SelfSubjectAccessReview { spec, ..SelfSubjectAccessReview::default() };
    let reviews: Api<SelfSubjectAccessReview> = Api::all(client.clone());
    let params = PostParams::default();
    Ok(match in_time(reviews.create(&params, &review)).await {
        Ok(review) => match review.status {
            Some(status) if status.allowed => Right::Granted,
            Some(status) => {
                let place = if namespace.is_empty() { "in all namespaces" } else { namespace };
                let why = status.reason.filter(|reason| !reason.is_empty());
                let why = why.map(|why| format!(": {why}")).unwrap_or_default();
                Right::Refused(format!("the user may no longer {verb} {}, {place}{why}", resource.plural))
            }
            None => Right::Unknown,
        },
        Err(unread) if unread.status == 401 => Right::Refused(unread.why),
        Err(unread) if unread.is_refused() => return Err(()),
        Err(_) => Right::Unknown,
    })
}
