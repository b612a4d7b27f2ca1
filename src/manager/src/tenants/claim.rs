//! Which replica serves a tenant's stream: a claim in `Tenant.status.stream`, one write for each connection.
//!
//! The claim carries a counter that is raised under the Tenant's resourceVersion before a stream's first message is used,
//! so of two replicas with a stream of the same tenant exactly one has the latest. The other one sees it (every replica
//! watches Tenants), drops its stream and stops writing.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{Api, Patch};
use kube::{Client, ResourceExt};
use outrigger_api::{StreamStatus, Tenant};
use outrigger_core::ids::TenantId;
use serde_json::{Value, json};
use tonic::Status;
use tracing::{debug, info};

use super::registry::Registry;

use crate::writes;

/// How often a claim is tried while others write the same Tenant.
const ATTEMPTS: usize = 20;

/// Makes claims in the name of this replica.
#[derive(Clone)]
pub struct Claims {
    client: Client,
    registry: Arc<Registry>,
    me: Arc<str>,
}

impl Claims {
    /// Claims of the replica called `me`: a name that no other has, nor this one's earlier life.
    pub fn new(client: Client, registry: Arc<Registry>, me: &str) -> Self {
        Self { client, registry, me: me.into() }
    }

    /// The replica's name.
    pub fn me(&self) -> &str {
        &self.me
    }

    /// Raises the claim on a tenant's stream. Returns its number.
    ///
    /// # Errors
    /// UNAVAILABLE when the API server can't be asked: nobody is served on a guess. NOT_FOUND when the tenant is gone.
    pub async fn raise(&self, id: &TenantId) -> Result<u64, Status> {
        let gone = || Status::not_found(format!("there is no tenant {id} any more"));
        let mut tenant = self.registry.get(id).ok_or_else(gone)?.object.as_ref().clone();
        for _ in 0..ATTEMPTS {
            let before = tenant.status.clone().and_then(|status| status.stream).unwrap_or_default();
            let stream = StreamStatus {
                claim: before.claim + 1,
                holder: self.me.to_string(),
                connected: true,
                since: Some(Time(Timestamp::now())),
                ..before
            };
            let patch = json!({"metadata": {"uid": tenant.uid(), "resourceVersion": tenant.resource_version()},
                "status": {"stream": stream}});
            match self.api().patch_status(id.as_str(), &writes::patch(), &Patch::Merge(&patch)).await {
                Ok(_) => return Ok(stream.claim),
                Err(kube::Error::Api(status)) if status.code == 404 => return Err(gone()),
                // The cache was behind, or another replica was faster: its claim is the one to go beyond.
                Err(kube::Error::Api(status)) if status.code == 409 => {}
                Err(error) => return Err(unavailable(&error)),
            }
            tenant = self.api().get_opt(id.as_str()).await.map_err(|e| unavailable(&e))?.ok_or_else(gone)?;
        }
        Err(Status::unavailable(
            "the tenant's stream could not be claimed: too many others try; connect again",
        ))
    }

    /// Says something about the stream, as long as the claim is the latest. What can't be said is only logged: the stream
    /// doesn't depend on it.
    pub async fn tell(&self, id: &TenantId, claim: u64, fields: &[(&str, Value)]) {
        let mut patch = vec![
            json!({"op": "test", "path": "/status/stream/claim", "value": claim}),
            json!({"op": "test", "path": "/status/stream/holder", "value": &*self.me}),
        ];
        // `add` replaces what is there.
        patch.extend(fields.iter().map(
            |(field, value)| json!({"op": "add", "path": format!("/status/stream/{field}"), "value": value}),
        ));
        let patch = match serde_json::from_value(Value::Array(patch)) {
            Ok(patch) => Patch::Json::<()>(patch),
            Err(error) => return debug!(%error, "no patch"),
        };
        if let Err(error) = self.api().patch_status(id.as_str(), &writes::patch(), &patch).await {
            // A test that failed: the claim is another's by now.
            let superseded = matches!(&error, kube::Error::Api(status) if matches!(status.code, 404 | 422));
            if superseded {
                debug!(tenant = %id, claim, "not said: the claim is not the latest");
            } else {
                info!(tenant = %id, claim, %error, "the stream's status could not be written");
            }
        }
    }

    fn api(&self) -> Api<Tenant> {
        Api::all(self.client.clone())
    }
}

fn unavailable(error: &kube::Error) -> Status {
    Status::unavailable(format!("the tenant's stream could not be claimed: {error}; connect again"))
}
