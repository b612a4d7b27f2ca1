//! The control plane that the tests break, and a tenant whose workloads a test sends by itself.

use std::collections::BTreeMap;

use kube::ResourceExt;
use outrigger_runtime::tls::ClientTls;
use outrigger_tests::control_plane::ControlPlane;
use outrigger_tests::outrigger::{Outrigger, tenant_identity};
use outrigger_tests::stream::{Opened, stream, sync};
use outrigger_tests::tenant::{Tenant, is_ready, rule_with};
use outrigger_tests::wrapped::wrapped;
use outrigger_tests::{InWords, eventually, holds};
use serde_json::json;
use tokio::sync::{Mutex, MutexGuard, OnceCell};

static ONE_AT_A_TIME: Mutex<()> = Mutex::const_new(());

/// Size at which etcd takes no more writes: small, so that a test fills it soon, and far more than all tests need.
const ETCD_QUOTA: &str = "--etcd-quota-bytes=100663296";

/// The one control plane of this binary, for one test at a time.
pub(crate) async fn stage() -> (MutexGuard<'static, ()>, &'static Outrigger) {
    static SHARED: OnceCell<Result<Outrigger, String>> = OnceCell::const_new();
    let turn = ONE_AT_A_TIME.lock().await;
    let start = async || {
        let mut outrigger = Outrigger::new(ControlPlane::start_with(&[ETCD_QUOTA])?)?;
        outrigger.binary = wrapped(&outrigger)?;
        outrigger.started().await
    };
    let started = SHARED.get_or_init(async || start().await.in_words()).await;
    (turn, started.as_ref().expect("Outrigger starts"))
}

/// A tenant with a rule, whose workloads are all on one host and are sent by the test: its cluster may fail or be restored
/// without them.
pub(crate) struct StreamedTenant {
    pub(crate) tenant: Tenant,
    tls: ClientTls,
    stream: Option<Opened>,
}

impl StreamedTenant {
    pub(crate) async fn new(o: &'static Outrigger, id: &str) -> Self {
        let tenant = Tenant::with_rule_only(o, id).await;
        Self { tls: o.client_tls(id, &[&tenant_identity(id)]), tenant, stream: None }
    }

    /// Says that these are all workloads, as often as it takes until companions are those of them: as an agent does, on a new
    /// stream when the old one has ended. Their uids by workload.
    pub(crate) async fn sync(&mut self, names: &[&str]) -> BTreeMap<String, String> {
        self.sync_at(self.tenant.outrigger.grpc_port, names).await
    }

    /// As [`Self::sync`], to the manager on another port.
    pub(crate) async fn sync_at(&mut self, port: u16, names: &[&str]) -> BTreeMap<String, String> {
        let (tls, id) = (self.tls.clone(), self.tenant.id.clone());
        let opened = Mutex::new(self.stream.take());
        let companions = eventually(&format!("companions of {names:?}"), || async {
            let mut opened = opened.lock().await;
            if opened.as_ref().is_none_or(|(_, call)| call.is_finished()) {
                let new = stream(port, &tls, &[id.as_bytes()]).await.in_words()?;
                new.0.send(sync(self.tenant.on_a(names))).await.in_words()?;
                *opened = Some(new);
            }
            self.are(names).await
        })
        .await;
        self.stream = opened.into_inner();
        companions
    }

    /// Ends the stream, so that the next sync goes by a new one.
    pub(crate) async fn hang_up(&mut self) {
        if let Some((sender, call)) = self.stream.take() {
            drop(sender);
            let _ = call.await;
        }
    }

    /// Whether the companions are those of these workloads, one for each, and ready.
    pub(crate) async fn are(&self, names: &[&str]) -> Result<BTreeMap<String, String>, String> {
        let all = self.tenant.by_workload().await?;
        if !all.keys().eq(names) || !all.values().all(is_ready) {
            return Err(format!("{:?}", all.keys()));
        }
        Ok(all.into_iter().map(|(name, pod)| (name, pod.uid().unwrap_or_default())).collect())
    }

    /// Changes the rule's template, which replaces its companions.
    pub(crate) async fn image(&self, image: &str) {
        self.tenant
            .rule("r", rule_with("/template/spec/containers", json!([{"name": "c", "image": image}])))
            .await;
    }

    /// Waits until the three companions have this image.
    pub(crate) async fn rolled_out(&self, image: &str) {
        eventually(&format!("the image is {image}"), || async {
            let all = self.tenant.companions().await?;
            let containers = all.iter().flat_map(|c| c.spec.iter().flat_map(|s| &s.containers));
            let images: Vec<_> = containers.filter_map(|c| c.image.as_deref()).collect();
            holds(images == [image; 3], format!("{images:?}"))
        })
        .await;
    }
}
