//! Whatever a tenant can read names nothing of the platform, and nothing of another tenant: neither in its own cluster, nor in its
//! agent's log and metrics, nor on the wire.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::api::Api;
use outrigger_core::keys;
use outrigger_proto::admin;
use outrigger_proto::admin::admin_workload_rule_service_client::AdminWorkloadRuleServiceClient;
use outrigger_proto::companion::WatchRequest;
use outrigger_proto::companion::companion_service_client::CompanionServiceClient;
use outrigger_proto::v1;
use outrigger_proto::v1::workload_rule_service_client::WorkloadRuleServiceClient;
use outrigger_tests::outrigger::{Outrigger, get, tenant_identity};
use outrigger_tests::shipped::kustomize;
use outrigger_tests::stream::{about, channel, update};
use outrigger_tests::tenant::{Tenant, admin_rule, dpu, rule_for, template, tenant};
use outrigger_tests::{InWords, condition_of, eventually, holds, until};
use serde_json::{Value, json};
use tokio::time::timeout;

/// The rule of the platform, and what is in its template.
const PLATFORM: &str = "lk-platform-rule";
const PLATFORM_IMAGE: &str = "registry.example/lk-platform-image";

/// What the tenant must not read: names and contents of the platform's objects, and of another tenant's.
const SECRETS: [&str; 10] = [
    // Nodes of DPUs, and namespaces in the infrastructure cluster.
    "lk-a-dpu1",
    "lk-down-dpu1",
    "lk-rival-host-dpu",
    "tenant-lk",
    // Rules of the platform.
    PLATFORM,
    PLATFORM_IMAGE,
    "lk-platform-wish",
    // The other tenant, its rule, and its workload.
    "lk-rival",
    "lk-their-rule",
    "lk-their-workload",
];

/// A rule of a tenant or of the platform for Pods with a label, with a change of its Pod.
fn rule(app: &str, image: &str, change: &Value) -> Value {
    let mut spec = rule_for("app", app);
    let mut pod = template();
    pod["spec"]["containers"][0]["image"] = json!(image);
    for (key, value) in change.as_object().into_iter().flatten() {
        pod["spec"]["containers"][0][key] = value.clone();
    }
    spec["template"] = pod;
    spec
}

/// Another tenant, of which nothing is in the first one's cluster: a test tells of its workload.
async fn rival(o: &'static Outrigger) -> Tenant {
    let rival = Tenant::named(o, "lk-rival").await;
    let spec = json!({"hosts": ["lk-rival-host"], "identities": [tenant_identity("lk-rival")]});
    o.plane.infra.apply(&[dpu("lk-rival-host-dpu", "lk-rival-host"), tenant("lk-rival", spec)]).unwrap();
    eventually("its rule is taken", || async {
        rival.try_rule("lk-their-rule", rule("web", "registry.example/their", &Value::Null)).await.map(drop)
    })
    .await;
    rival
}

/// Waits until a Pod of the tenant's cluster says why it has no companion that is ready.
async fn says(work: &Api<Pod>, name: &str, reasons: &[&str]) {
    until(&format!("{name} says {reasons:?}"), work, name, |pod| {
        let ours = condition_of(&pod, keys::COMPANIONS_CONDITION);
        holds(reasons.iter().any(|reason| ours["reason"] == *reason), ours.to_string())
    })
    .await;
}

/// What a manager says to the tenant, in answers and in errors.
async fn downlink(o: &Outrigger) -> String {
    let tls = o.client_tls("lk-reader", &[&tenant_identity("lk")]);
    let channel = channel(&tls, o.grpc_port).await.unwrap();
    let mut said = Vec::new();
    let mut companions = CompanionServiceClient::new(channel.clone());
    let mut messages = companions.watch(about("lk", WatchRequest {})).await.unwrap().into_inner();
    // All that there is, and the changes of a while.
    while let Ok(message) = timeout(Duration::from_secs(3), messages.message()).await {
        let message = message.unwrap().expect("the call goes on");
        said.push(format!("{message:?}"));
    }
    assert!(said.iter().any(|text| text.contains("Synced")), "{said:?}");
    let mut rules = WorkloadRuleServiceClient::new(channel.clone());
    said.push(format!("{:?}", rules.list(about("lk", v1::ListRequest::default())).await));
    let mut of_platform = AdminWorkloadRuleServiceClient::new(channel);
    said.push(format!("{:?}", of_platform.list(about("lk", admin::ListRequest::default())).await));
    for (tenant, id) in [("lk-rival", "lk-their-rule"), ("lk", PLATFORM), ("lk", "lk-their-rule")] {
        // What it asks for itself is no news to it.
        let answer = format!("{:?}", rules.get(about(tenant, v1::GetRequest { id: id.to_owned() })).await);
        said.push(answer.replace(id, "").replace("lk-rival", ""));
    }
    said.join("\n")
}

/// All objects of the tenant's cluster, of all kinds.
fn objects(o: &Outrigger) -> String {
    let cluster = &o.plane.tenant;
    let kinds = cluster.kubectl(&["api-resources", "--verbs=list", "-o", "name"]).unwrap();
    let kinds: Vec<&str> = kinds.lines().collect();
    assert!(kinds.len() > 40 && kinds.contains(&"secrets"), "{kinds:?}");
    cluster.kubectl(&["get", &kinds.join(","), "-A", "-o", "json"]).unwrap()
}

/// The surroundings of each occurrence of a secret.
fn found(source: &str, text: &str) -> Vec<String> {
    let of = |secret: &&str| {
        let at = text.find(secret)?;
        let from = text.floor_char_boundary(at.saturating_sub(300));
        let to = text.ceil_char_boundary((at + 200).min(text.len()));
        Some(format!("{source} has {secret}: ...{}...", &text[from..to]))
    };
    SECRETS.iter().filter_map(of).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tenant_reads_nothing_of_the_platform_and_of_other_tenants() {
    let o = Outrigger::shared().await;
    let t = Tenant::without_agent(o, "lk", &[("a", 1), ("none", 0), ("down", 1)]).await;
    let rival = rival(o).await;
    for part in ["agent-nodes", "agent-node-taints"] {
        o.plane.tenant.apply(&kustomize(&format!("deploy/base/{part}")).unwrap()).unwrap();
    }
    o.plane.infra.cordon("lk-down-dpu1", true);
    let arguments = ["--log-level=debug", "--debug-endpoints", "--report-companions-after=0s"];
    let admin = t.start_agent_with_admin(&arguments.map(str::to_owned));

    // Rules of the platform: one that is served, and one whose companions nothing has room for.
    let wish = json!({"resources": {"requests": {"cpu": "100000"}}, "env": [{"name": "W", "value": "lk-platform-wish"}]});
    let platform = [
        admin_rule(keys::ADMIN_NAMESPACE, PLATFORM, rule("lk-web", PLATFORM_IMAGE, &Value::Null)),
        admin_rule(keys::ADMIN_NAMESPACE, "lk-platform-rule-2", rule("lk-greedy", PLATFORM_IMAGE, &wish)),
    ];
    o.plane.infra.apply(&platform).unwrap();
    let _stream = rival.opens_stream([update("lk-their-workload", "lk-rival-host")]).await;
    rival.ready(1).await;

    // The tenant's own rules and workloads: one that is served, and failures of several causes.
    let privileged = json!({"securityContext": {"privileged": true}});
    t.set(json!({"serviceAccounts": ["lk-missing"]})).await.unwrap();
    let mut missing = rule("lk-missing", "i", &Value::Null);
    missing["template"]["spec"]["serviceAccountName"] = json!("lk-missing");
    for (name, spec) in [
        ("missing", missing),
        ("web", rule("lk-web", "i", &Value::Null)),
        ("greedy", rule("lk-greedy", "i", &json!({"resources": {"requests": {"cpu": "100000"}}}))),
        ("privileged", rule("lk-privileged", "i", &privileged)),
    ] {
        t.own_rule(name, spec).await.unwrap();
    }
    for (name, host, app) in [
        ("served", "a", "lk-web"),
        ("greedy", "a", "lk-greedy"),
        ("refused", "a", "lk-privileged"),
        ("missing", "a", "lk-missing"),
        ("without", "none", "lk-web"),
        ("waiting", "down", "lk-web"),
    ] {
        t.start(name, host, json!({"app": app})).await;
    }
    let (work, own) = (t.work(), t.own_rules());
    says(&work, "greedy", &["Unschedulable"]).await;
    says(&work, "without", &["NoDPU"]).await;
    says(&work, "waiting", &["DPUNotReady"]).await;
    for (name, words) in
        [("privileged", "root on the DPU"), ("missing", "lk-missing"), ("greedy", "Insufficient cpu")]
    {
        until(&format!("{name} says {words}"), &own, name, |rule| {
            let conditions = rule.status.unwrap_or_default().conditions;
            let reported = conditions.iter().any(|condition| condition.message.contains(words));
            holds(reported, format!("{conditions:?}"))
        })
        .await;
    }

    let (_, metrics) = get(admin, "/metrics").await.unwrap();
    let (_, state) = get(admin, "/debug/state").await.unwrap();
    let log = std::fs::read_to_string(o.plane.log("agent-lk")).in_words().unwrap();
    let sources = [
        ("the cluster", objects(o), "Unschedulable"),
        ("the log", log, "greedy"),
        ("the metrics", metrics, "outrigger_agent_workloads"),
        ("the state", state, "Synced"),
        ("the wire", downlink(o).await, "DPUNotReady"),
    ];
    let mut all = Vec::new();
    for (source, text, expected) in &sources {
        assert!(text.contains(expected), "{source} is not what it should be: {text:.2000}");
        all.extend(found(source, text));
    }
    assert!(all.is_empty(), "{} names:\n{}", all.len(), all.join("\n"));
    o.plane.command("term agent-lk").unwrap();
    // Nothing has room for companions of one of them, and the scheduler would try again and again.
    let rules = [PLATFORM, "lk-platform-rule-2"];
    let delete = ["delete", "adminworkloadrules", "-n", keys::ADMIN_NAMESPACE, "--wait=false"];
    o.plane.infra.kubectl(&[&delete[..], &rules].concat()).unwrap();
}
