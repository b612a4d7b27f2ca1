//! The infrastructure cluster of a fleet: the model, or the real control plane with the webhook. Tenants are named `t0`, `t1`, and so
//! on; each has hosts of its own with a DPU in each, and one rule.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use futures::StreamExt;
use kube::Api;
use kube::api::ListParams;
use kube::runtime::watcher::{Config, Event, watcher};
use outrigger_api::Tenant;
use outrigger_sim::model::Commit;
use outrigger_sim::world::ADMIN;
use outrigger_tests::control_plane::{ControlPlane, replace};
use outrigger_tests::outrigger::{Outrigger, SYSTEM, tenant_identity};
use outrigger_tests::pki::Authority;
use outrigger_tests::tenant::{dpu, rule, rule_for, tenant};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::fleet::managers::Manager;
use crate::fleet::model_api::ModelApi;

/// The name of a tenant's host.
pub(crate) fn host_name(tenant: usize, host: usize) -> String {
    format!("t{tenant}-h{host}")
}

/// A cluster, and who signs the certificates of managers and agents.
pub(crate) struct Cluster {
    kind: Kind,
    dir: tempfile::TempDir,
    kubeconfig: PathBuf,
    pub(crate) authority: Authority,
    pub(crate) synced: Arc<Synced>,
}

pub(crate) enum Kind {
    Model(ModelApi),
    Real {
        o: Box<Outrigger>,
        client: kube::Client,
        /// The task that follows its tenants. It ends with this.
        _following: JoinSet<()>,
    },
}

/// Tenants whose status has shown a new sync, and when. Only after that is a tenant served again.
#[derive(Default)]
pub(crate) struct Synced(Mutex<SyncTimes>);

#[derive(Default)]
struct SyncTimes {
    /// The last sync that a status has shown.
    shown: BTreeMap<String, String>,
    /// When it came, since everything was forgotten.
    at: BTreeMap<String, Instant>,
}

impl Synced {
    fn show(&self, tenant: &str, sync: &str) {
        let mut times = self.0.lock();
        if times.shown.get(tenant).map(String::as_str) != Some(sync) && !sync.is_empty() {
            times.shown.insert(tenant.to_owned(), sync.to_owned());
            times.at.insert(tenant.to_owned(), Instant::now());
        }
    }

    pub(crate) fn forget(&self) {
        self.0.lock().at.clear();
    }

    pub(crate) fn count(&self) -> usize {
        self.0.lock().at.len()
    }

    /// Seconds from a time to the sync of this share of those that have come, 0.5 for the half of them.
    pub(crate) fn seconds(&self, since: Instant, share: f64) -> f64 {
        let mut times: Vec<f64> =
            self.0.lock().at.values().map(|at| at.duration_since(since).as_secs_f64()).collect();
        times.sort_by(f64::total_cmp);
        times.get((times.len() as f64 * share) as usize).or(times.last()).copied().unwrap_or_default()
    }
}

impl Cluster {
    /// The model, empty but for Outrigger's own namespaces.
    pub(crate) async fn model() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let api = ModelApi::start(dir.path()).await;
        let synced = Arc::<Synced>::default();
        let seen = synced.clone();
        api.model.on_commit(move |commit| tenant_committed(&seen, commit));
        let authority = Authority::new(&dir.path().join("pki"), "fleet").unwrap();
        Self { kubeconfig: api.kubeconfig.clone(), kind: Kind::Model(api), dir, authority, synced }
    }

    /// A new control plane with the shipped objects and the webhook.
    pub(crate) async fn real() -> Self {
        let o = Outrigger::new(ControlPlane::start().unwrap()).unwrap();
        o.install().unwrap();
        o.start_webhook().unwrap();
        o.ready_at("webhook", o.webhook_admin).await;
        let dir = tempfile::tempdir().unwrap();
        let kubeconfig = dir.path().join("manager.kubeconfig");
        o.plane.infra.service_account(SYSTEM, "outrigger-manager", &kubeconfig).unwrap();
        let client = o.plane.infra.client().await;
        let synced = Arc::<Synced>::default();
        let mut following = JoinSet::new();
        following.spawn(follow_tenants(client.clone(), synced.clone()));
        let authority = Authority::new(&dir.path().join("pki"), "fleet").unwrap();
        Self {
            kind: Kind::Real { o: Box::new(o), client, _following: following },
            dir,
            kubeconfig,
            authority,
            synced,
        }
    }

    /// The model, to act on directly. Panics on the real control plane.
    pub(crate) fn as_model(&self) -> &ModelApi {
        match &self.kind {
            Kind::Model(api) => api,
            Kind::Real { .. } => panic!("it is no model"),
        }
    }

    /// The API server's process, where it is one.
    pub(crate) fn api_server(&self) -> Option<u32> {
        match &self.kind {
            Kind::Model(_) => None,
            Kind::Real { o, .. } => {
                let port = o.plane.infra.server.rsplit(':').next().unwrap();
                Some(outrigger_tests::cost::process(&format!("--secure-port={port}")))
            }
        }
    }

    /// Starts a manager with more arguments, and waits until it is ready.
    pub(crate) async fn manager(&self, name: &str, more: &[String]) -> Manager {
        let client_ca = self.client_ca();
        if !client_ca.exists() {
            self.trust_clients_of(&[&self.authority]);
        }
        let manager =
            Manager::start(self.dir.path(), &self.authority, &client_ca, &self.kubeconfig, name, more);
        manager.ready().await;
        manager
    }

    /// The managers trust agents with certificates of these authorities from their next look at the file on.
    pub(crate) fn trust_clients_of(&self, authorities: &[&Authority]) {
        let trusted: String = authorities.iter().map(|authority| authority.pem()).collect();
        replace(&self.client_ca(), &trusted).unwrap();
    }

    /// Another authority.
    pub(crate) fn another_authority(&self, name: &str) -> Authority {
        Authority::new(&self.dir.path().join(name), name).unwrap()
    }

    fn client_ca(&self) -> PathBuf {
        self.dir.path().join("clients.crt")
    }

    /// Makes DPUs that belong to no tenant's host.
    pub(crate) fn spare_dpus(&self, count: usize) {
        self.make("nodes", (0..count).map(|i| dpu(&format!("spare{i}"), &format!("nobodys{i}"))).collect());
    }

    /// Makes tenants, and a DPU in each of their hosts.
    pub(crate) fn tenants(&self, tenants: usize, hosts: usize) {
        let all = (0..tenants).flat_map(|tenant| (0..hosts).map(move |host| (tenant, host)));
        self.make(
            "nodes",
            all.map(|(t, h)| dpu(&format!("{}-dpu", host_name(t, h)), &host_name(t, h))).collect(),
        );
        let object = |i: usize| {
            let hosts: Vec<String> = (0..hosts).map(|host| host_name(i, host)).collect();
            let id = format!("t{i}");
            tenant(&id, json!({"hosts": hosts, "identities": [tenant_identity(&id)]}))
        };
        self.make("tenants", (0..tenants).map(object).collect());
    }

    /// Makes rules of each tenant: `r0` is for `app: web`, the others are for labels that no workload has.
    pub(crate) fn rules(&self, tenants: usize, rules: std::ops::Range<usize>) {
        let object = |tenant: usize, i: usize| {
            let spec = if i == 0 { rule_for("app", "web") } else { rule_for("tier", &format!("none{i}")) };
            rule(&format!("tenant-t{tenant}"), &format!("r{i}"), spec)
        };
        let all = (0..tenants).flat_map(|tenant| rules.clone().map(move |i| (tenant, i)));
        self.make("workloadrules", all.map(|(tenant, i)| object(tenant, i)).collect());
    }

    fn make(&self, plural: &str, objects: Vec<Value>) {
        match &self.kind {
            Kind::Model(api) => {
                for object in objects {
                    api.model.create(ADMIN, plural, object).unwrap();
                }
            }
            Kind::Real { o, .. } => o.plane.infra.apply(&objects).unwrap(),
        }
    }

    /// How many tenants are ready, with namespace and DPUs.
    pub(crate) async fn served(&self) -> usize {
        let served = |status: &Value| {
            let ready = status["conditions"].as_array().into_iter().flatten().find(|c| c["type"] == "Ready");
            ready.is_some_and(|c| c["status"] == "True")
        };
        match &self.kind {
            Kind::Model(api) => api.model.list("tenants").iter().filter(|t| served(&t["status"])).count(),
            Kind::Real { client, .. } => {
                let api: Api<Tenant> = Api::all(client.clone());
                let all = api.list(&ListParams::default()).await.unwrap();
                let status = |tenant: &Tenant| serde_json::to_value(&tenant.status).unwrap();
                all.iter().filter(|tenant| served(&status(tenant))).count()
            }
        }
    }
}

fn tenant_committed(synced: &Synced, commit: &Commit) {
    if let Some(object) = commit.new.as_deref().filter(|_| commit.kind.plural == "tenants") {
        synced.show(&commit.name, object["status"]["stream"]["lastSync"].as_str().unwrap_or_default());
    }
}

async fn follow_tenants(client: kube::Client, synced: Arc<Synced>) {
    let mut events = std::pin::pin!(watcher(Api::<Tenant>::all(client), Config::default()));
    while let Some(event) = events.next().await {
        if let Ok(Event::Apply(tenant)) = event {
            let name = tenant.metadata.name.clone().unwrap_or_default();
            let sync = tenant.status.and_then(|status| status.stream?.last_sync);
            let sync = sync.and_then(|time| serde_json::to_value(time).ok());
            synced.show(&name, sync.as_ref().and_then(Value::as_str).unwrap_or_default());
        }
    }
}
