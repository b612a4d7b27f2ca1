//! Whether the API server reaches the webhook: by a handshake with the CA bundles of the configurations, and by a dry run.

use anyhow::Context;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use outrigger_core::json::{list, text};
use outrigger_core::keys;
use outrigger_runtime::probe::{self, Shown, Who};
use serde_json::{Value, json};

use super::connections::Address;
use super::parts::{Entry, Installation, Part};
use super::{certificates, reach};
use crate::check::findings::{CA_UNUSABLE, Finding, Subject, UNREACHABLE};
use crate::cluster::{Answer, Kind, MUTATING, POD, VALIDATING, short};

/// The port of a Service that an entry calls where it names none.
const PORT: i64 = 443;

/// Entries of a configuration that call the same address and trust the same CAs.
#[derive(Debug, Clone, PartialEq)]
struct Callee {
    /// Path of the first entry.
    path: String,
    /// How many entries there are.
    entries: usize,
    /// `HOST:PORT`
    target: String,
    /// The target is a Service, not a URL.
    is_service: bool,
    /// The CA bundle, base64.
    bundle: String,
}

fn callees(configuration: &Value) -> Vec<Callee> {
    let mut all: Vec<Callee> = Vec::new();
    for (i, entry) in list(configuration, "/webhooks").iter().enumerate() {
        if !reach::is_own(text(entry, "/name")) {
            continue;
        }
        let of = |pointer: &str| text(entry, pointer).to_owned();
        let url = text(entry, "/clientConfig/url");
        let target = if url.is_empty() {
            let [namespace, name] =
                ["namespace", "name"].map(|key| of(&format!("/clientConfig/service/{key}")));
            let port = entry.pointer("/clientConfig/service/port").and_then(Value::as_i64).unwrap_or(PORT);
            format!("{name}.{namespace}.svc:{port}")
        } else {
            // Each entry has its own path.
            Address::of_url(url).map_or_else(|| url.to_owned(), |address| address.to_string())
        };
        let bundle = of("/clientConfig/caBundle");
        match all.iter_mut().find(|other| {
            (&other.target, other.is_service, &other.bundle) == (&target, url.is_empty(), &bundle)
        }) {
            Some(other) => other.entries += 1,
            None => {
                let path = format!("webhooks[{i}].clientConfig.caBundle");
                all.push(Callee { path, entries: 1, target, is_service: url.is_empty(), bundle });
            }
        }
    }
    all
}

/// Examines CA bundles, the webhook's certificate, and the API server's own calls.
pub(super) async fn examine(installation: &Installation, now: i64) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (Kind(_, kind), answer) in &installation.configurations {
        let subject = Subject::cluster(kind, keys::WEBHOOK_CONFIGURATION);
        match answer {
            Answer::Unread => {}
            Answer::Absent => {
                let message = "doesn't exist: the API server doesn't call the webhook";
                findings.push(Finding::new(&UNREACHABLE, &subject, "", message));
            }
            Answer::There(configuration) => {
                for callee in callees(configuration) {
                    let of_callee = self::callee(installation, &subject, &callee, now).await;
                    findings.extend(of_callee);
                }
            }
        }
    }
    for attempt in dry_runs(installation).await {
        // What has been found already isn't reported again.
        let is_known = |f: &Finding| f.check == attempt.check && f.subject == attempt.subject;
        if !findings.iter().any(is_known) {
            findings.push(attempt);
        }
    }
    findings
}

async fn callee(installation: &Installation, subject: &Subject, callee: &Callee, now: i64) -> Vec<Finding> {
    let cluster = &installation.cluster;
    let path = match callee.entries {
        1 => callee.path.clone(),
        n => format!("{} (of {n} entries)", callee.path),
    };
    if callee.bundle.is_empty() && !callee.is_service {
        cluster.note(format!(
            "{subject} {path}: is empty, so the API server trusts the CAs of its own machine, which can't be seen from here"
        ));
        return Vec::new();
    }
    let pem = match STANDARD.decode(&callee.bundle) {
        Ok(pem) => pem,
        Err(error) => {
            return vec![Finding::new(&CA_UNUSABLE, subject, path, format_args!("can't be read: {error}"))];
        }
    };
    let mut findings: Vec<Finding> = certificates::bundle(subject, &path, &pem, now).into_iter().collect();
    if !probe::certificates(&pem).is_ok_and(|all| !all.is_empty()) {
        return findings;
    }
    if let Ok(n @ 1..) = probe::unusable(&pem) {
        cluster.note(format!("{subject} {path}: {n} of the CAs can't be used to verify a certificate"));
    }
    let served = installation.entry(Part::Webhook, "tls.crt").await;
    let shown = match Address::of_url(&format!("https://{}", callee.target)) {
        None => Err(anyhow::anyhow!("this is no address")),
        // Services are reached from within their cluster only, where a NetworkPolicy may forbid it.
        Some(address) if callee.is_service && !cluster.is_own => of_secret(served.as_ref(), &pem, &address),
        Some(address) => match address.shown(Who::ApiServer, &pem, &address.host).await {
            Err(_) if callee.is_service => of_secret(served.as_ref(), &pem, &address),
            shown => shown,
        },
    };
    if let Err(why) = &shown
        && callee.is_service
    {
        cluster.note(format!("the certificate of {} can't be seen from here: {why:#}", callee.target));
        return findings;
    }
    if let Ok(shown) = &shown {
        let of_secret = served.as_ref().map(|entry| (&entry.subject, &entry.path));
        let (subject, path) = of_secret.unwrap_or((subject, &path));
        let what = "the webhook's certificate";
        findings.extend(certificates::one(subject, path, what, &shown.certificate, now));
    }
    findings.extend(reach::connection(subject, &path, &callee.target, &shown, &findings));
    findings
}

/// The certificate that the webhook serves according to its Secret.
fn of_secret(served: Option<&Entry>, ca: &[u8], address: &Address) -> anyhow::Result<Shown> {
    let served = served.context("it can't be called from here, and its Secret can't be read")?;
    probe::server(Who::ApiServer, &served.pem, ca, &address.host)
}

/// Has the API server call the webhook for a Tenant and a Pod, as dry runs.
async fn dry_runs(installation: &Installation) -> Vec<Finding> {
    let cluster = &installation.cluster;
    let tenant = json!({"apiVersion": "outrigger.dev/v1alpha1", "kind": "Tenant",
        "metadata": {"name": "outrigger-check"}, "spec": {}});
    let mut attempts = vec![(Kind("outrigger.dev/v1alpha1", "Tenant"), tenant, None)];
    if let Some((namespace, tenant)) = installation.tenant_namespace().await {
        attempts.push((POD, pod(&namespace), Some(tenant)));
    }
    let mut findings = Vec::new();
    for (kind, object, tenant) in attempts {
        match (cluster.dry_run(kind, &object).await, tenant) {
            (Ok(created), Some(tenant)) if !reach::is_placed(&created, &tenant) => {
                let message = format!(
                    "a Pod that is created in {} isn't restricted to the DPUs of tenant {tenant:?}: the webhook isn't \
                     called, or its answer is changed",
                    text(&created, "/metadata/namespace")
                );
                let subject = Subject::cluster(MUTATING.1, keys::WEBHOOK_CONFIGURATION);
                findings.push(Finding::new(&UNREACHABLE, &subject, "webhooks", message));
            }
            (Ok(_), _) => {}
            (Err(answer), _) => {
                // Both configurations may have an entry of a name; the path that was called tells which it was.
                let called = if answer.contains("/mutate/") { MUTATING } else { VALIDATING };
                let subject = Subject::cluster(called.1, keys::WEBHOOK_CONFIGURATION);
                match reach::dry_run(&subject, &answer) {
                    Some(finding) => findings.push(finding),
                    None => cluster.note(format!(
                        "a dry run with a {} doesn't tell whether the API server reaches the webhook: {}",
                        kind.1,
                        short(&answer)
                    )),
                }
            }
        }
    }
    findings
}

/// A Pod that meets every Pod Security Standard.
fn pod(namespace: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"generateName": "outrigger-check-", "namespace": namespace},
        "spec": {"securityContext": {"runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [{"name": "c", "image": "registry.example/none", "securityContext":
                {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}}}]}})
}

#[cfg(test)]
mod tests {
    use outrigger_core::yaml;

    use super::*;

    #[test]
    fn entries_with_one_target_and_bundle_are_validated_together() {
        let shipped = include_str!("../../../../../webhooks/mutating.yaml");
        let mut configuration = yaml::documents(shipped, yaml::OF_FILES).unwrap().remove(0);
        configuration["webhooks"][1]["clientConfig"]["caBundle"] = json!("eA==");
        configuration["webhooks"][2]["clientConfig"] = json!({"url": "https://h:1/mutate/pods"});
        let foreign = json!({"name": "other", "clientConfig": {"url": "https://other"}});
        configuration["webhooks"].as_array_mut().unwrap().push(foreign);
        let found: Vec<String> = callees(&configuration)
            .iter()
            .map(|callee| format!("{}: {} of {}", callee.path, callee.entries, callee.target))
            .collect();
        assert_eq!(
            found,
            [
                "webhooks[0].clientConfig.caBundle: 2 of outrigger-webhook.outrigger-system.svc:443",
                "webhooks[1].clientConfig.caBundle: 1 of outrigger-webhook.outrigger-system.svc:443",
                "webhooks[2].clientConfig.caBundle: 1 of h:1",
            ]
        );
    }
}
