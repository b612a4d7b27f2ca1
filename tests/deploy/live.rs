//! `outrigger check --live` on an installation: it finds nothing in a healthy one, and in one with a fault the fault.
//!
//! The Deployments only seem to run here; webhook and manager are processes beside them, on loopback.

use std::process::{Command, Output};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use outrigger_tests::control_plane::{Cluster, ControlPlane};
use outrigger_tests::eventually;
use outrigger_tests::outrigger::{INFRASTRUCTURE, Outrigger, SYSTEM, TENANT, binary, tenant_identity};
use outrigger_tests::pki::Authority;
use outrigger_tests::shipped::kustomize;
use outrigger_tests::tenant::{host, tenant};
use serde_json::{Value, json};

mod existing;

const BLUE: &str = "blue";

const MUTATING: &str = "MutatingWebhookConfiguration outrigger";
const VALIDATING: &str = "ValidatingWebhookConfiguration outrigger";

/// An installation of both clusters.
struct Stage {
    outrigger: Outrigger,
}

/// Exit code, findings and notes.
type Report = (Option<i32>, Vec<String>, Vec<String>);

impl Stage {
    async fn new() -> Self {
        let stage = Self { outrigger: Outrigger::new(ControlPlane::start().unwrap()).unwrap() };
        let o = &stage.outrigger;
        o.install().unwrap();
        o.start_webhook().unwrap();
        o.start_manager().unwrap();
        let (infra, cluster) = (&o.plane.infra, &o.plane.tenant);
        infra.apply(&[host("one"), host("two"), host("three")]).unwrap();
        cluster.apply(&[host("host")]).unwrap();

        let file = |name: &str| std::fs::read(o.plane.dir.join("pki").join(name)).unwrap();
        o.authority.issue("agent-cluster", &[&tenant_identity(BLUE)]).unwrap();
        let pair = |name: &str, of: &str| {
            secret(
                name,
                json!({"tls.crt": STANDARD.encode(file(&format!("{of}.crt"))),
                "tls.key": STANDARD.encode(file(&format!("{of}.key")))}),
            )
        };
        let ca = o.authority.pem();
        let client_ca = secret("outrigger-agent-ca", json!({"ca.crt": STANDARD.encode(&ca)}));
        infra
            .apply(&[
                pair("outrigger-webhook-tls", "webhook"),
                pair("outrigger-manager-tls", "manager"),
                client_ca,
            ])
            .unwrap();
        let trusts = json!({"apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": "outrigger-ca", "namespace": SYSTEM}, "data": {"ca.crt": ca}});
        cluster.apply(&[pair("outrigger-agent-tls", "agent-cluster"), trusts]).unwrap();

        infra.apply(&deployments(INFRASTRUCTURE)).unwrap();
        let mut agents = deployments(TENANT);
        let env = &mut agents[0]["spec"]["template"]["spec"]["containers"][0]["env"];
        for variable in env.as_array_mut().unwrap() {
            if variable["name"] == "OUTRIGGER_MANAGER_ADDRESS" {
                variable["value"] = json!(format!("https://127.0.0.1:{}", o.grpc_port));
            }
        }
        cluster.apply(&agents).unwrap();
        o.ready().await;
        infra
            .apply(&[tenant(BLUE, json!({"identities": [tenant_identity(BLUE)], "hosts": ["host"]}))])
            .unwrap();
        eventually("the tenant's namespace is there", || async {
            infra.kubectl(&["get", "namespace", "tenant-blue"])
        })
        .await;
        for (cluster, parts) in [(infra, &["webhook", "manager"][..]), (cluster, &["agent"])] {
            for part in parts {
                rolled_out(cluster, part);
            }
        }
        stage
    }

    fn infra(&self) -> &Cluster {
        &self.outrigger.plane.infra
    }

    fn kubectl(&self, args: &[&str]) {
        self.infra().kubectl(args).unwrap();
    }

    /// Changes an object of the infrastructure cluster by a JSON patch.
    fn patch(&self, kind: &str, name: &str, patch: &Value) {
        self.infra().patch(&format!("{kind}/{name}"), &[], patch).unwrap();
    }

    /// Replaces the certificate in the manager's Secret.
    fn certificate(&self, certificate: &str) {
        let patch = json!({"data": {"tls.crt": certificate}});
        self.infra().patch("secret/outrigger-manager-tls", &["-n", SYSTEM], &patch).unwrap();
    }

    fn run(&self, args: &[&str]) -> Output {
        let mut all = vec!["check", "--live"];
        all.extend(args);
        self.outrigger.output(&all).unwrap()
    }

    /// What is found in both clusters.
    fn check(&self) -> Report {
        let infra = format!("--kubeconfig={}", self.infra().kubeconfig.display());
        let cluster = format!("--tenant-kubeconfig={}", self.outrigger.plane.tenant.kubeconfig.display());
        report_of(&self.run(&["-o", "json", &infra, &cluster]))
    }

    /// Waits until exactly this is found. Caches of API servers take a moment.
    async fn finds(&self, what: &str, expected: &[&str]) {
        let errors = expected.iter().any(|finding| !is_warning(finding));
        let code = Some(i32::from(errors));
        eventually(what, || async {
            let (found, findings, notes) = self.check();
            // The details of messages are tested in src/cli.
            let short: Vec<String> =
                findings.iter().map(|f| f.split(": ").next().unwrap().to_owned()).collect();
            if (found, &short[..])
                == (code, &expected.iter().map(|e| (*e).to_owned()).collect::<Vec<_>>()[..])
            {
                Ok(())
            } else {
                Err(format!("{found:?} {findings:#?} {notes:#?}"))
            }
        })
        .await;
    }

    /// Applies what is shipped once more.
    fn mend(&self) {
        let mut objects = kustomize(INFRASTRUCTURE).unwrap();
        objects.retain(|object| object["webhooks"].is_null());
        objects.extend(self.outrigger.webhook_configurations().unwrap());
        self.infra().apply(&objects).unwrap();
    }
}

fn is_warning(finding: &str) -> bool {
    ["certificate-ends", "versions-differ", "gate-open", "node-without-host"]
        .iter()
        .any(|id| finding.starts_with(id))
}

fn report_of(output: &Output) -> Report {
    let said = String::from_utf8_lossy(&output.stderr);
    let report: Value =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {said}"));
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let finding = |f: &Value| {
        let o = &f["object"];
        let slash = if o["namespace"].is_string() { "/" } else { "" };
        let subject = format!("{} {}{slash}{}", text(&o["kind"]), text(&o["namespace"]), text(&o["name"]));
        let path = text(&f["path"]);
        format!("{} {subject} {path}: {}", text(&f["check"]), text(&f["message"]))
    };
    let list = |field: &str| report[field].as_array().unwrap().clone();
    let findings = list("findings").iter().map(finding).collect();
    (output.status.code(), findings, list("notes").iter().map(text).collect())
}

fn deployments(overlay: &str) -> Vec<Value> {
    let mut objects = kustomize(overlay).unwrap();
    objects.retain(|object| object["kind"] == "Deployment");
    objects
}

fn secret(name: &str, data: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": SYSTEM}, "data": data})
}

fn rolled_out(cluster: &Cluster, part: &str) {
    let name = format!("deployment/outrigger-{part}");
    cluster.kubectl(&["rollout", "status", "-n", SYSTEM, &name, "--timeout=120s"]).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_healthy_installation_has_no_findings_and_a_faulty_one_has_its_faults() {
    let s = Stage::new().await;
    s.finds("nothing is wrong", &[]).await;
    let (_, _, notes) = s.check();
    assert_eq!(notes, Vec::<String>::new());
    status(&s);

    trust(&s).await;
    rights(&s).await;
    versions(&s).await;
    agents(&s).await;
    open_gate(&s).await;
    hosts(&s).await;
    existing::existing(&s).await;
    limited(&s);
    processes(&s).await;
}

/// A Node of the tenant's cluster that no host of the Tenant is.
async fn hosts(s: &Stage) {
    let hosts = |hosts: Value| s.patch("tenant", BLUE, &json!({"spec": {"hosts": hosts}}));
    hosts(json!(["other"]));
    s.finds("the Node is no host", &["node-without-host Node host metadata.name"]).await;
    hosts(json!(["host"]));
    s.finds("it is one again", &[]).await;
}

/// A gate that answers whoever reaches it. The Deployment runs nothing here: kwok plays its Pod.
async fn open_gate(s: &Stage) {
    const ARGS: &str = "/spec/template/spec/containers/0/args";
    let cluster = &s.outrigger.plane.tenant;
    let agent = cluster.get(&["deployment", "outrigger-agent", "-n", SYSTEM]).unwrap();
    let before = agent.pointer(ARGS).unwrap();
    let set = |more: &[&str]| {
        let args: Vec<Value> =
            before.as_array().unwrap().iter().cloned().chain(more.iter().map(|flag| json!(flag))).collect();
        let patch = json!([{"op": "replace", "path": ARGS, "value": args}]);
        cluster.patch("deployment/outrigger-agent", &["-n", SYSTEM], &patch).unwrap();
    };
    set(&["--gate-address=:9443"]);
    let open = format!("gate-open Deployment {SYSTEM}/outrigger-agent spec.template.spec.containers[0].args");
    s.finds("anybody may ask the gate", &[&open]).await;
    set(&["--gate-address=:9443", "--tls-client-ca-file=/etc/outrigger/gate-clients/ca.crt"]);
    s.finds("the gate requires a certificate", &[]).await;
    set(&[]);
}

/// `outrigger status` shows the parts and their certificates.
fn status(s: &Stage) {
    let kubeconfig = format!("--kubeconfig={}", s.infra().kubeconfig.display());
    let (_, report) = s.outrigger.report(&["status", &kubeconfig]).unwrap();
    assert_eq!(report["notVisible"], json!([]), "{report}");
    for (i, part) in ["outrigger-webhook", "outrigger-manager"].into_iter().enumerate() {
        let row = &report["installation"]["parts"][i];
        assert_eq!((&row["part"], &row["ready"]), (&json!(part), &row["replicas"]), "{report}");
        assert_eq!(row["versions"].as_array().map(Vec::len), Some(1), "{report}");
    }
    let certificates = report["certificates"].as_array().unwrap().iter();
    let found: Vec<String> = certificates
        .map(|row| {
            assert_eq!(row["state"], "Valid", "{report}");
            format!("{} {}", row["part"].as_str().unwrap(), row["object"].as_str().unwrap())
        })
        .collect();
    let of = |part: &str, secret: &str| format!("outrigger-{part} Secret {SYSTEM}/outrigger-{secret}");
    assert_eq!(
        found,
        [of("webhook", "webhook-tls"), of("manager", "manager-tls"), of("manager", "agent-ca")]
    );
    let text = s.outrigger.output(&["status", &kubeconfig]).unwrap();
    let text = String::from_utf8_lossy(&text.stdout);
    assert!(
        text.starts_with("installation (namespace outrigger-system)\nPART ") && !text.contains('\u{1b}'),
        "{text}"
    );
}

/// Judges an installation of Helm's under another namespace: rights and versions are right, and nobody has made
/// certificates yet.
pub(crate) async fn lacks_certificates_only(cluster: &Cluster) {
    const OF_CERTIFICATES: [&str; 3] = ["ca-mismatch", "ca-unusable", "unreachable"];
    eventually("only certificates are missing", || async {
        let mut command = Command::new(binary().unwrap());
        command.args(["check", "--live", "-o", "json", "--kubeconfig"]).arg(&cluster.kubeconfig);
        let (_, findings, notes) = report_of(&command.output().unwrap());
        let is_expected = |finding: &&String| OF_CERTIFICATES.iter().any(|id| finding.starts_with(id));
        let other: Vec<&String> = findings.iter().filter(|finding| !is_expected(finding)).collect();
        if findings.is_empty() || !other.is_empty() { Err(format!("{other:#?} {notes:#?}")) } else { Ok(()) }
    })
    .await;
}

/// CA bundles of the API server, and when certificates expire.
async fn trust(s: &Stage) {
    let o = &s.outrigger;
    let other = Authority::new(&o.plane.dir.join("other"), "other").unwrap();
    let validating = "validatingwebhookconfiguration";
    let entries = o.webhook_configurations().unwrap()[1]["webhooks"].as_array().unwrap().len();
    let bundle = |i: usize, pem: &str| json!({"op": "replace", "path": format!("/webhooks/{i}/clientConfig/caBundle"), "value": STANDARD.encode(pem)});
    let all: Vec<Value> = (0..entries).map(|i| bundle(i, &other.pem())).collect();
    s.patch(validating, "outrigger", &json!(all));
    let at = "webhooks[0].clientConfig.caBundle";
    s.finds("the CA is another one", &[&format!("ca-mismatch {VALIDATING} {at} (of {entries} entries)")])
        .await;
    s.mend();
    s.patch(validating, "outrigger", &json!([bundle(0, "nothing")]));
    s.finds("what is trusted is no certificate", &[&format!("ca-unusable {VALIDATING} {at}")]).await;
    s.mend();

    // The Service can't be called from outside of the cluster: its Secret has the certificate, and the API server says that
    // the Service doesn't have the port.
    let mut configured = o.webhook_configurations().unwrap();
    for webhook in configured[0]["webhooks"].as_array_mut().unwrap() {
        let bundle = webhook["clientConfig"]["caBundle"].clone();
        webhook["clientConfig"] = json!({"caBundle": bundle, "service": {"name": "outrigger-webhook",
            "namespace": SYSTEM, "path": "/mutate/pods", "port": 444}});
    }
    s.kubectl(&["delete", "mutatingwebhookconfiguration", "outrigger"]);
    s.infra().apply(&configured[..1]).unwrap();
    // The certificate of the process has the name of loopback only.
    s.finds(
        "the certificate has another name, and nobody answers",
        &[
            &format!("ca-mismatch {MUTATING} webhooks[0].clientConfig.caBundle (of 4 entries)"),
            &format!("unreachable {MUTATING} webhooks[pods.outrigger.dev]"),
        ],
    )
    .await;
    s.kubectl(&["delete", "mutatingwebhookconfiguration", "outrigger"]);
    s.finds("a configuration is missing", &[&format!("unreachable {MUTATING} ")]).await;
    s.mend();

    let ends = |days: i64| {
        o.authority
            .issue_with("ending", &["127.0.0.1"], |params| {
                let now = time::OffsetDateTime::now_utc();
                params.not_before = now - time::Duration::days(80);
                params.not_after = now + time::Duration::days(days);
            })
            .unwrap();
        STANDARD.encode(std::fs::read(o.plane.dir.join("pki/ending.crt")).unwrap())
    };
    for (days, check) in [(3, "certificate-ends"), (-3, "certificate-ended")] {
        s.certificate(&ends(days));
        let at = format!("Secret {SYSTEM}/outrigger-manager-tls data[tls.crt]");
        s.finds("the manager's certificate ends", &[&format!("{check} {at}")]).await;
    }
    let good = std::fs::read(o.plane.dir.join("pki/manager.crt")).unwrap();
    s.certificate(&STANDARD.encode(good));
    s.finds("all of it is mended", &[]).await;
}

async fn rights(s: &Stage) {
    let account = format!("ServiceAccount {SYSTEM}/outrigger-webhook");
    s.patch("clusterrole", "outrigger-webhook", &json!([{"op": "remove", "path": "/rules/1"}]));
    s.finds("a right is missing", &[&format!("right-missing {account} ")]).await;
    let (_, findings, _) = s.check();
    assert!(findings[0].ends_with("may not get, list, watch tenants.outrigger.dev"), "{findings:?}");
    s.mend();

    s.patch(
        "clusterrole",
        "outrigger-manager-tenant",
        &json!([{"op": "remove", "path": "/rules/0/verbs/1"}]),
    );
    let account = format!("ServiceAccount {SYSTEM}/outrigger-manager");
    s.finds("a right in tenants' namespaces is missing", &[&format!("right-missing {account} ")]).await;
    s.mend();
    s.finds("all of it is mended", &[]).await;
}

async fn versions(s: &Stage) {
    for (version, check) in [("0.1.0", "versions-differ"), ("0.4.0", "version-skew")] {
        let image = format!("manager=registry.example/outrigger:{version}");
        s.kubectl(&["set", "image", "deployment/outrigger-manager", "-n", SYSTEM, &image]);
        rolled_out(s.infra(), "manager");
        let image = "spec.template.spec.containers[0].image";
        s.finds(
            "the manager is of another version",
            &[
                &format!("{check} Deployment {SYSTEM}/outrigger-agent {image}"),
                &format!("{check} Deployment {SYSTEM}/outrigger-manager {image}"),
            ],
        )
        .await;
    }
    s.mend();
    rolled_out(s.infra(), "manager");

    s.finds("all of it is mended", &[]).await;
}

async fn agents(s: &Stage) {
    let cluster = &s.outrigger.plane.tenant;
    let trust = |pem: &str| {
        let patch = json!({"data": {"ca.crt": pem}});
        cluster.patch("configmap/outrigger-ca", &["-n", SYSTEM], &patch).unwrap();
    };
    let other = std::fs::read_to_string(s.outrigger.plane.dir.join("other/ca.crt")).unwrap();
    trust(&other);
    let at = format!("ca-mismatch ConfigMap {SYSTEM}/outrigger-ca data[ca.crt]");
    // What the manager shows itself, and what its Secret says.
    s.finds("the agent trusts somebody else", &[&at, &at]).await;
    trust(&s.outrigger.authority.pem());
    s.finds("all of it is mended", &[]).await;

    // The tenant's cluster alone.
    let alone = format!("--kubeconfig={}", cluster.kubeconfig.display());
    let (code, findings, notes) = report_of(&s.run(&["-o", "json", &alone]));
    assert_eq!((code, findings), (Some(0), vec![]), "{notes:?}");
}

/// A user who may read little gets notes on what wasn't examined.
fn limited(s: &Stage) {
    let infra = s.infra();
    s.kubectl(&["create", "serviceaccount", "reader", "-n", "default"]);
    let kubeconfig = s.outrigger.plane.dir.join("reader.kubeconfig");
    infra.service_account("default", "reader", &kubeconfig).unwrap();
    let reader = format!("--kubeconfig={}", kubeconfig.display());
    let output = s.run(&[&reader, "--part", "webhook"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("nothing can be said of it"), "{said}");
    let account = "--serviceaccount=default:reader";
    s.kubectl(&["create", "rolebinding", "reader", "-n", SYSTEM, "--clusterrole=view", account]);
    let (code, findings, notes) = report_of(&s.run(&["-o", "json", &reader, "--part", "webhook"]));
    assert_eq!((code, findings), (Some(0), vec![]), "{notes:?}");
    let noted = |what: &str| notes.iter().any(|note| note.contains(what));
    for what in ["deployments can't be listed", "MutatingWebhookConfiguration outrigger", "weren't examined"]
    {
        assert!(noted(what), "{what}: {notes:#?}");
    }
    let output = s.run(&[&reader, "--part", "webhook"]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.starts_with("note: "), "{text}");
}

/// A webhook that doesn't run.
async fn processes(s: &Stage) {
    s.outrigger.plane.command("stop webhook").unwrap();
    let at = |configuration: &str, entries: usize| {
        format!("unreachable {configuration} webhooks[0].clientConfig.caBundle (of {entries} entries)")
    };
    s.finds("the webhook doesn't answer", &[&at(MUTATING, 4), &at(VALIDATING, 9)]).await;
    // SARIF and text say the same.
    let infra = format!("--kubeconfig={}", s.infra().kubeconfig.display());
    let output = s.run(&["-o", "sarif", &infra]);
    let log: Value = serde_json::from_slice(&output.stdout).unwrap();
    let results = log["runs"][0]["results"].as_array().unwrap();
    assert_eq!(results.iter().filter(|result| result["ruleId"] == "unreachable").count(), 2);
    let output = s.run(&[&infra]);
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.ends_with("2 errors, 0 warnings, 0 notes\n"), "{text}");
}
