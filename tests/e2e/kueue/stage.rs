//! Kueue's own controller in the tenant's cluster, installed by the manifests of its module, with a queue.

use std::path::PathBuf;

use k8s_openapi::api::core::v1::Secret;
use kube::api::Api;
use outrigger_tests::control_plane::{ControlPlane, replace, tool};
use outrigger_tests::issued::{on_port, to_loopback};
use outrigger_tests::kubelet::Mount;
use outrigger_tests::outrigger::{Outrigger, get, ports};
use outrigger_tests::shipped::{kustomize, of_kind};
use outrigger_tests::tenant::Tenant;
use outrigger_tests::{InWords, condition_of, eventually, holds};
use serde_json::{Value, json};

const NAMESPACE: &str = "kueue-system";

/// The resource as which the queue counts claims of Pods that wait for their companions.
const CLAIMS: &str = "outrigger.dev/companions";

/// The running controller.
pub(super) struct Kueue {
    plane: &'static ControlPlane,
    config: Value,
    file: PathBuf,
    health: u16,
}

impl Kueue {
    /// Installs it as shipped, but for the integration of Pods alone and what loopback forces: the program runs as a process here, and
    /// its directories and ports are its own.
    pub(super) async fn install(o: &'static Outrigger) -> Self {
        let program = tool("kueue").unwrap();
        let mut objects = kustomize(&program.with_file_name("config/default").display().to_string()).unwrap();
        let (plane, dir) = (&o.plane, o.plane.dir.join("kueue"));
        let [port, health] = ports().unwrap();
        let shipped = of_kind(&objects, "ConfigMap").next().unwrap();
        let shipped = shipped["data"]["controller_manager_config.yaml"].as_str().unwrap();
        let mut config: Value = serde_yaml::from_str(shipped).unwrap();
        let certificates = Mount::new(dir.join("certificates"));
        let forced = json!({
            "health": {"healthProbeBindAddress": format!("127.0.0.1:{health}")},
            "metrics": {"bindAddress": "0"},
            "webhook": {"host": "127.0.0.1", "port": port, "certDir": dir.join("certificates")},
            "leaderElection": {"leaderElect": false},
            "integrations": {"frameworks": ["pod"]},
            "featureGates": {"VisibilityOnDemand": false}});
        json_patch::merge(&mut config, &forced);

        objects.retain(|object| {
            !["Deployment", "APIService", "Service"].iter().any(|kind| object["kind"] == *kind)
        });
        for object in &mut objects {
            if !object["webhooks"].is_null() {
                *object = on_port(object.take(), port).unwrap();
            } else if let Some(service) = object.pointer_mut("/spec/conversion/webhook/clientConfig/service")
            {
                service["port"] = json!(port);
            }
        }
        let mut service = to_loopback("kueue-webhook-service");
        service["metadata"]["namespace"] = json!(NAMESPACE);
        objects.push(service);
        plane.tenant.apply(&objects).unwrap();

        // It signs its certificates itself, and waits until a kubelet shows them to it.
        let secrets: Api<Secret> = Api::namespaced(plane.tenant.client().await, NAMESPACE);
        tokio::spawn(async move { certificates.follow(&secrets, "kueue-webhook-server-cert").await });
        let (file, kubeconfig) = (dir.join("config.yaml"), dir.join("kubeconfig"));
        plane.tenant.service_account(NAMESPACE, "kueue-controller-manager", &kubeconfig).unwrap();
        replace(&file, &config.to_string()).unwrap();
        let args = [
            program.display().to_string(),
            format!("--config={}", file.display()),
            format!("--kubeconfig={}", kubeconfig.display()),
            "--zap-log-level=2".to_owned(),
        ];
        plane.run("kueue", &args, &[]).unwrap();
        let this = Self { plane, config, file, health };
        this.ready().await;
        this
    }

    async fn ready(&self) {
        eventually("Kueue is ready", || async {
            let (status, body) = get(self.health, "/readyz").await?;
            holds(status == 200, body)
        })
        .await;
    }

    /// Restarts it with a setting by which it counts the claims of Pods that wait for their companions.
    pub(super) async fn counts_claims(&mut self) {
        let classes = ["companions.outrigger.dev", "binding.companions.outrigger.dev"];
        self.config["resources"]["deviceClassMappings"] =
            json!([{"name": CLAIMS, "deviceClassNames": classes}]);
        replace(&self.file, &self.config.to_string()).unwrap();
        self.plane.command("restart kueue").unwrap();
        self.ready().await;
    }
}

fn object(kind: &str, name: &str, spec: Value) -> Value {
    json!({"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": kind, "metadata": {"name": name}, "spec": spec})
}

/// Sets the quota of the tenant's queue to this number of Pods and of claims. Creates the queue if it doesn't exist.
pub(super) async fn admits(t: &Tenant, pods: u32) {
    let resources = ["pods", CLAIMS].map(|name| json!({"name": name, "nominalQuota": pods}));
    let group = json!({"coveredResources": ["pods", CLAIMS],
        "flavors": [{"name": "default", "resources": resources}]});
    let mut local = object("LocalQueue", "queue", json!({"clusterQueue": "queue"}));
    local["metadata"]["namespace"] = json!(t.source);
    let all = [
        object("ResourceFlavor", "default", json!({})),
        object("ClusterQueue", "queue", json!({"namespaceSelector": {}, "resourceGroups": [group]})),
        local,
    ];
    eventually("the queue is as wanted", || async { t.outrigger.plane.tenant.apply(&all) }).await;
}

/// Waits until Kueue says why a group has no quota: with these words.
pub(super) async fn is_not_admitted(t: &Tenant, group: &str, words: &str) {
    eventually(&format!("{group} waits: {words}"), || async {
        let path = format!("/apis/kueue.x-k8s.io/v1beta2/namespaces/{}/workloads/{group}", t.source);
        let workload = t.outrigger.plane.tenant.read(&path).in_words()?;
        let reserved = condition_of(&workload, "QuotaReserved");
        let message = reserved["message"].as_str().unwrap_or_default();
        holds(reserved["status"] == "False" && message.contains(words), reserved.to_string())
    })
    .await;
}

/// Ends a group as Kueue wants it: its Pods have a finalizer of Kueue's until then.
pub(super) async fn group_ends(t: &Tenant, group: &str) {
    let args = ["delete", "workloads.kueue.x-k8s.io", group, "-n", &t.source, "--wait=false"];
    t.outrigger.plane.tenant.kubectl(&args).unwrap();
}
