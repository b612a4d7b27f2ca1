//! Companions as the API has them: Pods and ResourceClaims.

use std::fmt::Debug;

use k8s_openapi::NamespaceResourceScope;

use k8s_openapi::api::resource::v1::ResourceClaim;
use kube::api::{Api, GetParams, ObjectMeta, Patch, PostParams, Request};
use kube::{Client, Resource};
use outrigger_core::companion::Observed;
use outrigger_core::ids::TenantId;
use outrigger_core::index::CompanionKey;
use outrigger_core::template::{self, Kind};
use outrigger_runtime::pod::Pod;
use outrigger_runtime::telemetry::inject_headers;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::observe::{look, look_at_claim, of_admin, of_tenant};
use crate::context::Feeds;
use crate::writes;

/// A companion, or what may be one.
#[derive(Debug, Clone)]
pub(crate) enum Object {
    Pod(Box<Pod>),
    Claim(Box<ResourceClaim>),
}

impl From<Pod> for Object {
    fn from(pod: Pod) -> Self {
        Self::Pod(Box::new(pod))
    }
}

impl From<ResourceClaim> for Object {
    fn from(claim: ResourceClaim) -> Self {
        Self::Claim(Box::new(claim))
    }
}

impl Object {
    pub(crate) fn kind(&self) -> Kind {
        match self {
            Self::Pod(_) => Kind::Pod,
            Self::Claim(_) => Kind::Claim,
        }
    }

    pub(crate) fn metadata(&self) -> &ObjectMeta {
        match self {
            Self::Pod(pod) => &pod.metadata,
            Self::Claim(claim) => &claim.metadata,
        }
    }

    /// The companion of a tenant's rule that it is, and what is known of it.
    pub(crate) fn observe(&self) -> Option<(CompanionKey, Observed)> {
        let (key, rule_uid) = of_tenant(self.metadata())?;
        Some((key, self.look(rule_uid)))
    }

    /// The companion of an admin rule that it is, and the tenant whose workload it serves.
    pub(crate) fn observe_admin(&self) -> Option<(TenantId, CompanionKey, Observed)> {
        let (tenant, key, rule_uid) = of_admin(self.metadata())?;
        Some((tenant, key, self.look(rule_uid)))
    }

    fn look(&self, rule_uid: &str) -> Observed {
        match self {
            Self::Pod(pod) => look(pod, rule_uid),
            Self::Claim(claim) => look_at_claim(claim, rule_uid),
        }
    }

    /// Takes it in as the answer to a write or a read. No lock of a state may be held.
    pub(crate) fn answer(self, feeds: &Feeds) {
        match self {
            Self::Pod(pod) => feeds.pods.answer(*pod),
            Self::Claim(claim) => feeds.claims.answer(*claim),
        };
    }
}

/// The objects of one kind in one namespace.
pub(crate) struct Objects<'a> {
    client: &'a Client,
    namespace: &'a str,
    kind: Kind,
}

impl<'a> Objects<'a> {
    pub(crate) fn new(client: &'a Client, namespace: &'a str, kind: Kind) -> Self {
        Self { client, namespace, kind }
    }

    fn api<K>(&self) -> Api<K>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
    {
        Api::namespaced(self.client.clone(), self.namespace)
    }

    pub(crate) async fn get(&self, name: &str) -> Result<Option<Object>, kube::Error> {
        Ok(match self.kind {
            Kind::Pod => self.api::<Pod>().get_opt(name).await?.map(Object::from),
            Kind::Claim => self.api::<ResourceClaim>().get_opt(name).await?.map(Object::from),
        })
    }

    pub(crate) async fn patch(&self, name: &str, patch: &Value) -> Result<Object, kube::Error> {
        let (params, patch) = (writes::patch(), Patch::Merge(patch));
        Ok(match self.kind {
            Kind::Pod => self.api::<Pod>().patch(name, &params, &patch).await?.into(),
            Kind::Claim => self.api::<ResourceClaim>().patch(name, &params, &patch).await?.into(),
        })
    }

    /// A Pod with all of its fields.
    pub(crate) async fn raw(&self, name: &str) -> Result<Value, kube::Error> {
        let request = Request::new(Pod::url_path(&(), Some(self.namespace)));
        let request = request.get(name, &GetParams::default()).map_err(kube::Error::BuildRequest)?;
        self.client.request(request).await
    }

    /// Changes the spec of a Pod, by a strategic merge patch.
    pub(crate) async fn update(&self, name: &str, patch: &Value) -> Result<Object, kube::Error> {
        Ok(self.api::<Pod>().patch(name, &writes::patch(), &Patch::Strategic(patch)).await?.into())
    }

    /// Changes the amounts that the containers of a Pod ask for, by a strategic merge patch.
    pub(crate) async fn resize(&self, name: &str, patch: &Value) -> Result<Object, kube::Error> {
        let (params, patch) = (writes::patch(), Patch::Strategic(patch));
        Ok(self.api::<Pod>().patch_subresource("resize", name, &params, &patch).await?.into())
    }

    /// How many lists of the kind have begun.
    pub(crate) fn lists(&self, feeds: &Feeds) -> u32 {
        match self.kind {
            Kind::Pod => feeds.pods.lists(),
            Kind::Claim => feeds.claims.lists(),
        }
    }

    /// The object with this name and uid was deleted by a request that was made after so many [`Self::lists`]. Whether no list has
    /// begun since.
    pub(crate) fn deleted(&self, feeds: &Feeds, (name, uid): (&str, &str), lists: u32) -> bool {
        match self.kind {
            Kind::Pod => feeds.pods.deleted((self.namespace, name), uid, lists),
            Kind::Claim => feeds.claims.deleted((self.namespace, name), uid, lists),
        }
    }

    /// Deletes the object with this uid; where a resourceVersion is given, in this state only.
    pub(crate) async fn delete(
        &self,
        name: &str,
        uid: &str,
        version: Option<u64>,
    ) -> Result<(), kube::Error> {
        let params = writes::only_at(uid, version.map(|version| version.to_string()));
        match self.kind {
            Kind::Pod => self.api::<Pod>().delete(name, &params).await.map(drop),
            Kind::Claim => self.api::<ResourceClaim>().delete(name, &params).await.map(drop),
        }
    }
}

/// Creates a companion from raw JSON, so that fields of newer APIs than ours arrive.
pub(crate) async fn create(
    client: &Client,
    namespace: &str,
    object: &Value,
    params: &PostParams,
) -> Result<Object, kube::Error> {
    Ok(match template::kind(object) {
        Kind::Pod => create_raw::<Pod, Pod>(client, namespace, object, params).await?.into(),
        Kind::Claim => {
            create_raw::<ResourceClaim, ResourceClaim>(client, namespace, object, params).await?.into()
        }
    })
}

/// Creates an object of a kind from raw JSON, and reads the answer as another type.
pub(super) async fn create_raw<K, R>(
    client: &Client,
    namespace: &str,
    object: &Value,
    params: &PostParams,
) -> Result<R, kube::Error>
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
    R: DeserializeOwned + Clone + Debug,
{
    let body = serde_json::to_vec(object).map_err(kube::Error::SerdeError)?;
    let mut request = Request::new(K::url_path(&(), Some(namespace)))
        .create(params, body)
        .map_err(kube::Error::BuildRequest)?;
    // The API server, and through it the webhook, may continue the trace.
    inject_headers(request.headers_mut());
    client.request::<R>(request).await
}
