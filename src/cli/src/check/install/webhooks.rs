//! Whether the API server can call the webhook: by whom it is told to trust, by what is shown, and by its own word.

use std::collections::BTreeSet;

use anyhow::Context;
use kube::api::ListParams;
use outrigger_runtime::expiry;
use outrigger_runtime::probe::{self, Shown, Verdict, Who};
use serde_json::{Value, json};

use super::cluster::POD;
use super::shipped::Part;
use super::site::{Site, selects, tenant_namespace};
use super::tls::{self, Address};
use crate::check::findings::{ADMISSION, Finding, Subject};
use crate::check::install::judge::certificates::{self, Bundle};
use crate::check::install::judge::{Found, list, reach, short, subject, text};

const KINDS: [&str; 2] = ["MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"];

/// The name of our configurations.
const NAME: &str = "outrigger";

/// The port of a Service that an entry calls where it names none.
const PORT: i64 = 443;

/// Entries of a configuration that call the same place and trust the same CAs.
#[derive(Debug, Clone, PartialEq)]
struct Callee {
    /// Path of the first entry.
    path: String,
    /// How many entries there are.
    entries: usize,
    /// Where: a URL, or a Service.
    place: Place,
    /// The bundle, base64.
    bundle: String,
}

#[derive(Debug, Clone, PartialEq)]
enum Place {
    Url(String),
    Service { namespace: String, name: String, port: i64 },
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Url(address) => f.write_str(address),
            Self::Service { namespace, name, port } => write!(f, "{name}.{namespace}.svc:{port}"),
        }
    }
}

/// The callees of our own entries.
fn callees(wanted: &Value, found: &Value) -> Vec<Callee> {
    let names: BTreeSet<&str> = list(wanted, "/webhooks").iter().map(|entry| text(entry, "/name")).collect();
    let mut all: Vec<Callee> = Vec::new();
    for (i, entry) in list(found, "/webhooks").iter().enumerate() {
        if !names.contains(text(entry, "/name")) {
            continue;
        }
        let of = |pointer: &str| text(entry, pointer).to_owned();
        let place = match text(entry, "/clientConfig/url") {
            "" => Place::Service {
                namespace: of("/clientConfig/service/namespace"),
                name: of("/clientConfig/service/name"),
                port: entry.pointer("/clientConfig/service/port").and_then(Value::as_i64).unwrap_or(PORT),
            },
            // Each entry has its own path.
            url => Place::Url(Address::of_url(url).map_or_else(|| url.to_owned(), |a| a.to_string())),
        };
        let bundle = of("/clientConfig/caBundle");
        match all.iter_mut().find(|other| other.place == place && other.bundle == bundle) {
            Some(other) => other.entries += 1,
            None => all.push(Callee {
                path: format!("webhooks[{i}].clientConfig.caBundle"),
                entries: 1,
                place,
                bundle,
            }),
        }
    }
    all
}

/// The ports of the webhook's Service that configurations call.
pub(super) fn ports(site: &Site) -> Vec<i64> {
    let mut ports = BTreeSet::new();
    for (wanted, found) in configurations(site) {
        for callee in callees(wanted, found) {
            if let Place::Service { port, .. } = callee.place {
                ports.insert(port);
            }
        }
    }
    ports.into_iter().collect()
}

fn configurations(site: &Site) -> impl Iterator<Item = (&Value, &Value)> {
    let is_one = |wanted: &Value| KINDS.contains(&text(wanted, "/kind"));
    site.objects.iter().filter_map(move |(wanted, found)| is_one(wanted).then_some((wanted, found.there()?)))
}

/// Judges bundles, what the webhook shows, and what the API server says of its own calls.
pub(super) async fn judge(site: &Site) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut secret_told = false;
    for (wanted, found) in configurations(site) {
        let subject = subject(found);
        for callee in callees(wanted, found) {
            let (told, of_secret) = self::callee(site, &subject, &callee).await;
            let mut told = told;
            // One certificate is told of once, whoever calls.
            if secret_told {
                told.retain(|finding| finding.subject == subject);
            }
            secret_told |= of_secret;
            findings.extend(told);
        }
    }
    let attempts = attempts(site).await;
    for attempt in attempts {
        // What was found already needs no second witness.
        let known = |f: &Finding| f.check == attempt.check && f.subject == attempt.subject;
        if !findings.iter().any(known) {
            findings.push(attempt);
        }
    }
    findings
}

/// One callee: findings, and whether the certificate that is shown was judged.
async fn callee(site: &Site, subject: &Subject, callee: &Callee) -> (Vec<Finding>, bool) {
    let now = expiry::now();
    let mut findings = Vec::new();
    let path = match callee.entries {
        1 => callee.path.clone(),
        n => format!("{} (of {n} entries)", callee.path),
    };
    if callee.bundle.is_empty() && matches!(callee.place, Place::Url(_)) {
        site.cluster.note(format!(
            "{subject} {path}: is empty, so the API server trusts whom its own machine trusts; that can't be seen from here"
        ));
        return (findings, false);
    }
    let pem = match tls::decoded(&callee.bundle) {
        Ok(pem) => pem,
        Err(unreadable) => {
            findings.extend(certificates::bundle(subject, &path, &unreadable, now));
            return (findings, false);
        }
    };
    let bundle = tls::bundle(&pem);
    findings.extend(certificates::bundle(subject, &path, &bundle, now));
    if !matches!(&bundle, Bundle::Of(all) if !all.is_empty()) {
        return (findings, false);
    }
    if let Ok(n @ 1..) = probe::unusable(&pem) {
        site.cluster.note(format!(
            "{subject} {path}: {n} of the CAs can't be used, and what they sign isn't taken for trusted"
        ));
    }
    let Some((address, shown)) = shown(site, &callee.place, &pem).await else { return (findings, false) };
    let of_secret =
        shown.as_ref().ok().and_then(|shown| tls::life(&shown.certificate).ok()).and_then(|life| {
            let (subject, path) = served(site);
            certificates::life(&subject, &path, "the webhook's certificate", &life, now)
        });
    findings.extend(of_secret);
    let connection = reach::connection(subject, &path, &address, &tls::outcome(&shown), &findings);
    findings.extend(connection);
    (findings, shown.is_ok())
}

/// Where the webhook's certificate comes from.
fn served(site: &Site) -> (Subject, String) {
    let (kind, name, key) = secret(site);
    (Subject { kind: kind.to_owned(), namespace: site.names.system.clone(), name }, format!("data[{key}]"))
}

fn secret(site: &Site) -> (&'static str, String, String) {
    let of = |name: &str| ("Secret", name.to_owned(), "tls.crt".to_owned());
    if site.names.webhook_self_signed {
        return of("outrigger-webhook-self-signed");
    }
    site.file(Part::Webhook, "tls.crt").unwrap_or_else(|| of("outrigger-webhook-tls"))
}

/// What the webhook shows, and at which address: as directly as it can be asked from here, else what its Secret says. `None`:
/// neither can be had, which is noted.
async fn shown(site: &Site, place: &Place, ca: &[u8]) -> Option<(String, anyhow::Result<Shown>)> {
    let (namespace, name, port) = match place {
        Place::Url(url) => {
            let Some(address) = Address::of_url(&format!("https://{url}")) else {
                return Some((url.clone(), Err(anyhow::anyhow!("this is no https URL"))));
            };
            let shown = address.shown(Who::ApiServer, ca, &address.host).await;
            return Some((address.to_string(), shown));
        }
        Place::Service { namespace, name, port } => (namespace, name, *port),
    };
    let host = format!("{name}.{namespace}.svc");
    let address = format!("{host}:{port}");
    let why = match service(site, (namespace, name, port), ca, &host).await {
        Ok(shown) => return Some((address, Ok(shown))),
        Err(error) => error,
    };
    let (kind, name, key) = secret(site);
    if let Found::There(secret) = site.held(kind, &name)
        && let Some(chain) = tls::data(secret, &key)
        && let Ok(shown) = probe::server(Who::ApiServer, &chain, ca, &host)
    {
        site.cluster.note(format!(
            "{address} couldn't be asked from here ({why:#}), so what is in the Secret {name} was taken for what is served"
        ));
        return Some((address, Ok(shown)));
    }
    site.cluster.note(format!(
        "{address} couldn't be asked from here ({why:#}), nor its Secret read: what it shows wasn't looked at"
    ));
    None
}

/// How many of a Service's Pods are asked at most.
const MOST_PODS: usize = 8;

/// What a Service's Pods show: directly from within the cluster, from elsewhere through the API server.
async fn service(
    site: &Site,
    (namespace, name, port): (&str, &str, i64),
    ca: &[u8],
    host: &str,
) -> anyhow::Result<Shown> {
    if site.inside {
        let port = u16::try_from(port).context("no such port")?;
        // A policy of the network may keep us from it.
        if let Ok(shown) = (Address { host: host.to_owned(), port }).shown(Who::ApiServer, ca, host).await {
            return Ok(shown);
        }
    }
    let service = site.object("Service", name).there().context("there is no such Service")?;
    let slices = site.slices(name).await.unwrap_or_default();
    let target = list(service, "/spec/ports")
        .iter()
        .find(|other| other["port"].as_i64() == Some(port))
        .and_then(|of| {
            let mut ports = slices.iter().flat_map(|slice| list(slice, "/ports"));
            ports.find(|other| text(other, "/name") == text(of, "/name"))?["port"].as_u64()
        });
    let target = target.and_then(|port| u16::try_from(port).ok()).context("it leads to nobody")?;
    let pods = site.cluster.list(POD, namespace, ListParams::default()).await.unwrap_or_default();
    let ready = |pod: &&Value| {
        let conditions = list(pod, "/status/conditions");
        conditions.iter().any(|c| text(c, "/type") == "Ready" && text(c, "/status") == "True")
    };
    let chosen = pods.iter().filter(ready).filter(|pod| selects(service.pointer("/spec/selector"), pod));
    let names: Vec<&str> = chosen.map(|pod| text(pod, "/metadata/name")).take(MOST_PODS).collect();
    let mut trusted = None;
    let mut failure = anyhow::anyhow!("it leads to nobody who is ready");
    for pod in names {
        match tls::forwarded(&site.cluster.client, (namespace, pod, target), ca, host).await {
            // Calls come to any of them, so one that is wrong speaks for all.
            Ok(shown) if shown.verdict != Verdict::Trusted => return Ok(shown),
            Ok(shown) => trusted = trusted.or(Some(shown)),
            Err(error) => {
                site.cluster
                    .note(format!("Pod {namespace}/{pod} couldn't be asked what it shows: {error:#}"));
                failure = error;
            }
        }
    }
    trusted.ok_or(failure)
}

/// Asks the API server to make what it has to ask the webhook about, without making it.
async fn attempts(site: &Site) -> Vec<Finding> {
    let mut objects = Vec::new();
    let defined = site.object("CustomResourceDefinition", "tenants.outrigger.dev").there().is_some();
    objects.extend(defined.then(|| {
        let tenant = json!({"apiVersion": "outrigger.dev/v1alpha1", "kind": "Tenant",
            "metadata": {"name": "outrigger-check"}, "spec": {}});
        (tenant, None)
    }));
    let namespace = tenant_namespace(&site.cluster).await;
    objects.extend(namespace.map(|(namespace, tenant)| (pod(&namespace), Some(tenant))));
    if objects.is_empty() {
        site.cluster.note(
            "there is neither a tenant's namespace nor the kind Tenant: whether the API server itself reaches the webhook \
             wasn't tried",
        );
    }
    let entries = |kind: &'static str| -> BTreeSet<&str> {
        let of = site.objects.iter().filter(move |(wanted, _)| text(wanted, "/kind") == kind);
        of.flat_map(|(wanted, _)| list(wanted, "/webhooks")).map(|entry| text(entry, "/name")).collect()
    };
    let mut findings: Vec<Finding> = Vec::new();
    for (object, tenant) in objects {
        let answer = match site.cluster.attempt(&object).await {
            Ok(made) => {
                findings.extend(tenant.and_then(|tenant| placed(&made, &tenant)));
                continue;
            }
            Err(answer) => answer,
        };
        // Both configurations may have an entry of a name; the path that was called tells which it was.
        let kind = if answer.contains("/mutate/") { KINDS[0] } else { KINDS[1] };
        match reach::attempt(&Subject::cluster(kind, NAME), &answer, &entries(kind)) {
            Some(finding) => findings.push(finding),
            None => site.cluster.note(format!(
                "whether the API server itself reaches the webhook wasn't tried with a {}: {}",
                text(&object, "/kind"),
                short(&answer)
            )),
        }
    }
    findings
}

/// Whether the webhook has placed a Pod that would have been made.
fn placed(pod: &Value, tenant: &str) -> Option<Finding> {
    (!reach::is_placed(pod, tenant)).then(|| {
        let message = format!(
            "a Pod would be made in {} that isn't kept to the DPUs of tenant {tenant:?}: the webhook isn't asked, or \
             somebody changes what it says",
            text(pod, "/metadata/namespace")
        );
        Finding::new(&ADMISSION, &Subject::cluster(KINDS[0], NAME), "webhooks", message)
    })
}

/// A Pod that nobody would refuse anywhere.
fn pod(namespace: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"generateName": "outrigger-check-", "namespace": namespace},
        "spec": {"securityContext": {"runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [{"name": "c", "image": "registry.example/none", "securityContext":
                {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}}}]}})
}

/// Callees as tests look at them.
#[cfg(test)]
pub(super) fn told(wanted: &Value, found: &Value) -> Vec<String> {
    callees(wanted, found).iter().map(|c| format!("{}: {} of {}", c.path, c.entries, c.place)).collect()
}
