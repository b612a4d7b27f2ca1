//! Watches what devices depend on, and writes what [`Devices`] asks for.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::Resource as _;
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::api::resource::v1::{DeviceClass, ResourceClaimTemplate, ResourceSlice};
use kube::api::{Api, DeleteParams, ListParams, Patch, PostParams, Preconditions};
use kube::core::PartialObjectMeta;
use kube::{Client, Resource, ResourceExt};
use outrigger_core::gate::Hold;
use outrigger_core::keys;
use outrigger_runtime::Process;
use outrigger_runtime::cache::{Change, Feed};
use outrigger_runtime::node::Node;
use outrigger_runtime::ready::{Readiness, Warning};
use outrigger_runtime::watch::Watch;
use serde::de::DeserializeOwned;
use serde_json::json;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tracing::{debug, info, warn};

use super::Devices;
use super::board::Class;
use super::plan::{self, Op};
use super::write::{Key, Write};
use crate::context::Context;
use crate::metrics::WriteOutcome;
use crate::namespaces::Scope;
use crate::waits::{PATIENCE, changed};
use crate::writes;

/// Number of writes at the same time.
const WRITERS: usize = 4;
/// Interval at which the cluster is asked whether it has the kinds, and the DeviceClass.
const DISCOVERY: Duration = Duration::from_secs(10);

struct Writer {
    context: Arc<Context>,
    devices: Arc<Devices>,
    /// The tenant's id, which labels its slices.
    tenant: String,
    /// Receive the objects of the API server's responses.
    slices: Feed<ResourceSlice>,
    templates: [(Hold, Feed<ResourceClaimTemplate>); 2],
    /// Set while the agent may not write.
    forbidden: Warning,
}

/// Starts to publish devices. `nodes` is ready when the Nodes are listed. The agent is ready without all of it: it may lack the
/// permissions, and everything else goes on.
pub(crate) fn start(
    process: &Process,
    context: &Arc<Context>,
    devices: &Arc<Devices>,
    nodes: Readiness,
    scope: watch::Receiver<Option<Scope>>,
) {
    let (client, listed) = (&context.client, Readiness::default());
    let driver = format!("spec.driver={}", keys::COMPANIONS_DRIVER);
    let tenant = context.tenant.to_str().unwrap_or_default().to_owned();
    // Those of another tenant's agent in this cluster are none of its business.
    let own = format!("{}={tenant}", keys::TENANT);
    let slices = Watch::all(client, "resource slices").fields(&driver).labels(&own).optional();
    let slices = follow(process, context, slices, &listed, devices, Devices::slice);
    // A watch follows the objects of one name.
    let templates = Hold::ALL.map(|hold| {
        let name = format!("metadata.name={}", hold.template());
        let templates = Watch::all(client, "claim templates").fields(&name).optional();
        (hold, follow(process, context, templates, &listed, devices, Devices::template))
    });
    let namespaces: Api<PartialObjectMeta<Namespace>> = Api::all(client.clone());
    follow(process, context, Watch::of(namespaces, "namespaces"), &listed, devices, Devices::namespace);
    process.spawn("namespaces of devices", follow_scope(devices.clone(), scope));
    process.spawn("kinds of devices", discover(client.clone(), devices.clone()));
    process.spawn("list of devices", release_when_listed(devices.clone(), nodes, listed));
    let writer = Writer {
        context: context.clone(),
        devices: devices.clone(),
        tenant,
        slices,
        templates,
        forbidden: process.readiness.warning("devices"),
    };
    process.spawn("devices", writer.run());
}

fn follow<K>(
    process: &Process,
    context: &Context,
    watch: Watch<K>,
    listed: &Readiness,
    devices: &Arc<Devices>,
    record: impl Fn(&Devices, Change<K>) + Send + 'static,
) -> Feed<K>
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let board = devices.clone();
    let feed = Feed::new(move |change| record(&board, change));
    let ready = listed.wait_for("devices");
    process.spawn("watch of devices", watch.environment(&context.environment).follow(ready, feed.sink()));
    feed
}

async fn follow_scope(devices: Arc<Devices>, mut scope: watch::Receiver<Option<Scope>>) {
    loop {
        let now = scope.borrow_and_update().clone();
        devices.scope(now);
        changed(&mut scope).await;
    }
}

/// Asks whether the cluster has the kinds, and devices binding conditions, because it may be upgraded, or its features be changed; and
/// whether it has the DeviceClass.
async fn discover(client: Client, devices: Arc<Devices>) {
    let classes: Api<DeviceClass> = Api::all(client.clone());
    let (slices, dry_run): (Api<ResourceSlice>, _) =
        (Api::all(client.clone()), PostParams { dry_run: true, ..writes::post() });
    loop {
        match client.list_api_group_resources(ResourceSlice::API_VERSION).await {
            Ok(found) => devices.supported(found.resources.iter().any(|kind| kind.kind == "ResourceSlice")),
            Err(kube::Error::Api(status)) if status.code == 404 => devices.supported(false),
            // The last answer stays.
            Err(error) => debug!(%error, "failed to ask for the kinds of devices; retrying"),
        }
        let has_binding = async {
            if classes.get_metadata_opt(keys::COMPANIONS_BINDING_CLASS).await?.is_none() {
                return Ok(false);
            }
            let answer = slices.create(&dry_run, &plan::probe()).await?;
            Ok(plan::has_binding(&answer))
        };
        match has_binding.await {
            Ok(found) => devices.binding(found),
            Err(kube::Error::Api(status)) if status.code == 404 => devices.binding(false),
            // The last answer stays.
            Err(error) => debug!(%error, "failed to ask for binding conditions of devices; retrying"),
        }
        match classes.get_metadata_opt(keys::COMPANIONS_DRIVER).await {
            Ok(found) => {
                let uid = found.and_then(|class| class.uid());
                devices.classed(uid.map_or(Class::Missing, Class::Exists));
            }
            Err(kube::Error::Api(status)) if status.code == 403 => devices.classed(Class::Forbidden),
            // The last answer stays.
            Err(error) => debug!(%error, "failed to ask for the class of devices; retrying"),
        }
        sleep(DISCOVERY).await;
    }
}

/// Releases the writes when everything is listed; says so when that takes long.
async fn release_when_listed(devices: Arc<Devices>, nodes: Readiness, listed: Readiness) {
    let all = async {
        nodes.done().await;
        listed.done().await;
    };
    tokio::pin!(all);
    if timeout(PATIENCE, &mut all).await.is_err() {
        devices.unread();
        warn!("could not list what devices depend on; the role outrigger-agent-companions-first permits it");
        all.await;
    }
    devices.listed();
    std::future::pending::<()>().await;
}

impl Writer {
    async fn run(self) {
        writes::writers(WRITERS, || async {
            let (key, write) = self.devices.next().await;
            let outcome = match self.write(&key, write).await {
                Ok(outcome) => outcome,
                Err(error) => self.failed(&key, &error),
            };
            if outcome != WriteOutcome::Forbidden {
                self.forbidden.set(None);
            }
            self.context.metrics.device_write(matches!(key, Key::Namespace(_)), outcome);
            self.devices.done(&key, outcome, self.context.environment.random.fraction());
        })
        .await;
    }

    /// Performs a write.
    async fn write(&self, key: &Key, write: Write) -> Result<WriteOutcome, kube::Error> {
        let client = &self.context.client;
        let slices: Api<ResourceSlice> = Api::all(client.clone());
        let of = key.name();
        match write {
            Write::Slices(ops) => {
                let requests = ops.len();
                for op in ops {
                    self.write_slice(key, &slices, op).await?;
                }
                info!(node = of, requests, "changed the devices of a Node");
            }
            Write::Orphans(orphans) => {
                if Api::<Node>::all(client.clone()).get_opt(of).await?.is_some() {
                    debug!(node = of, "the watch of Nodes lacks one that exists; asking again");
                    return Ok(WriteOutcome::Failed);
                }
                for (name, uid) in orphans {
                    self.write_slice(key, &slices, Op::Delete { name, uid }).await?;
                }
                info!(node = of, "deleted the devices of a Node that is gone");
            }
            Write::CreateTemplate(template) => {
                let api: Api<ResourceClaimTemplate> = Api::namespaced(client.clone(), of);
                let written = api.create(&writes::post(), &template).await?;
                if let Some(feed) = self.templates(&written.name_any()) {
                    feed.answer(written);
                }
                info!(namespace = of, "created the claim template of a namespace");
            }
            Write::DeleteTemplate(hold, uid) => {
                let api: Api<ResourceClaimTemplate> = Api::namespaced(client.clone(), of);
                let name = hold.template();
                let Some(feed) = self.templates(name) else { return Ok(WriteOutcome::Failed) };
                let lists = feed.lists();
                delete(&api, name, &uid).await?;
                if feed.deleted((of, name), &uid, lists) {
                    self.devices.deleted(key, &uid);
                }
            }
        }
        Ok(WriteOutcome::Ok)
    }

    /// The feed of the templates of a name.
    fn templates(&self, name: &str) -> Option<&Feed<ResourceClaimTemplate>> {
        let hold = Hold::of_template(name)?;
        self.templates.iter().find(|(of, _)| *of == hold).map(|(_, feed)| feed)
    }

    async fn write_slice(&self, key: &Key, slices: &Api<ResourceSlice>, op: Op) -> Result<(), kube::Error> {
        match op {
            Op::Create(mut slice) => {
                slice.metadata.labels = Some([(keys::TENANT.to_owned(), self.tenant.clone())].into());
                self.slices.answer(create(slices, &self.devices, &slice).await?);
            }
            Op::Update { uid, version, slice } => {
                // Lists are replaced as a whole. The spec has no other owner.
                let patch = json!({"metadata": {"uid": uid, "resourceVersion": version}, "spec": slice.spec});
                let written = slices.patch(&slice.name_any(), &writes::patch(), &Patch::Merge(patch)).await?;
                self.slices.answer(written);
            }
            Op::Delete { name, uid } => {
                let lists = self.slices.lists();
                delete(slices, &name, &uid).await?;
                // Otherwise it isn't known whether a list that came meanwhile has it still, or again.
                if self.slices.deleted(("", &name), &uid, lists) {
                    self.devices.deleted(key, &uid);
                }
            }
        }
        Ok(())
    }

    fn failed(&self, key: &Key, error: &kube::Error) -> WriteOutcome {
        match error {
            kube::Error::Api(status) if status.code == 403 => {
                if writes::forbid(&self.forbidden, "publish devices", status) {
                    warn!(of = key.name(), reason = %status.message, "may not publish devices");
                }
                WriteOutcome::Forbidden
            }
            // Somebody else has changed it, or it is gone.
            error => {
                debug!(of = key.name(), %error, "failed to publish devices; retrying");
                WriteOutcome::Failed
            }
        }
    }
}

/// Creates a slice. If one of another tenant has its name, the board learns that.
async fn create(
    slices: &Api<ResourceSlice>,
    devices: &Devices,
    slice: &ResourceSlice,
) -> Result<ResourceSlice, kube::Error> {
    let created = slices.create(&writes::post(), slice).await;
    if matches!(&created, Err(kube::Error::Api(status)) if status.code == 409) {
        let name = slice.name_any();
        // The role permits to list slices, and not to get one.
        let named = ListParams::default().fields(&format!("metadata.name={name}"));
        let found = slices.list_metadata(&named).await?.items.pop();
        let tenant = |labels: &BTreeMap<String, String>| labels.get(keys::TENANT).cloned();
        let theirs = found.map(|found| tenant(found.labels()));
        if let Some(theirs) = theirs.filter(|theirs| *theirs != tenant(slice.labels())) {
            devices.taken(&slice.spec.pool.name, &name, &theirs.unwrap_or_default());
        }
    }
    created
}

/// Deletes an object with this uid, unless it is gone already.
async fn delete<K>(api: &Api<K>, name: &str, uid: &str) -> Result<(), kube::Error>
where
    K: Resource + Clone + DeserializeOwned + Debug,
{
    let preconditions = Preconditions { uid: Some(uid.to_owned()), resource_version: None };
    let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
    match api.delete(name, &params).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use outrigger_runtime::environment::Clock;
    use outrigger_runtime::fake_api::{FakeApi, failure};

    use super::*;

    const SLICES: &str = "/apis/resource.k8s.io/v1/resourceslices";

    #[tokio::test]
    async fn a_slice_of_another_tenant_that_has_the_name_of_one_is_reported() {
        let labels = |tenant: &str| json!({keys::TENANT: tenant});
        let slice = json!({"metadata": {"name": "a-companions-0", "labels": labels("blue")},
            "spec": {"driver": keys::COMPANIONS_DRIVER,
                "pool": {"name": "a", "generation": 1, "resourceSliceCount": 1}}});
        let slice: ResourceSlice = serde_json::from_value(slice).unwrap();
        for (existing, expected) in [
            // The watch is behind, or it is gone meanwhile.
            (vec![labels("blue")], None),
            (vec![], None),
            (vec![labels("former")], Some("-l outrigger.dev/tenant=former")),
            (vec![json!({})], Some("kubectl delete resourceslices a-companions-0")),
        ] {
            let (api, readiness) = (FakeApi::default(), Readiness::default());
            let [foreign, taken] = ["foreign", "taken"].map(|name| readiness.warning(name));
            let devices = Devices::new(Clock::system(), foreign, taken, Arc::default());
            let items: Vec<_> = existing
                .iter()
                .map(|labels| json!({"metadata": {"name": "a-companions-0", "labels": labels}}))
                .collect();
            api.answers("POST", SLICES, 409, failure(409, "AlreadyExists"));
            let list = json!({"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadataList",
                "metadata": {}, "items": items});
            api.answers("GET", SLICES, 200, list);
            let slices: Api<ResourceSlice> = Api::all(api.client());
            assert!(create(&slices, &devices, &slice).await.is_err());
            assert!(api.calls("GET")[0].0.contains("metadata.name%3Da-companions-0"));
            let warnings = readiness.warnings();
            match expected {
                None => assert!(warnings.is_empty(), "{existing:?} {warnings:?}"),
                Some(remedy) => assert!(warnings[0].1.ends_with(remedy), "{warnings:?}"),
            }
        }
    }
}
