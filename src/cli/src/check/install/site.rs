//! One cluster's share of an installation: what is installed there, and what of it isn't as it should be.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::jiff::Timestamp;
use kube::api::ListParams;
use outrigger_core::keys;
use outrigger_runtime::cluster::ClusterArgs;
use outrigger_webhook::settings::AdmissionArgs;
use serde_json::{Value, json};

use super::cluster::{Answer, Cluster, DEPLOYMENT, ENDPOINT_SLICE, LEASE, NAMESPACE, POD, together};
use super::shipped::{self, Names, Part};
use super::{LiveArgs, rights};
use crate::check::findings::{Finding, Subject};
use crate::check::install::judge::versions::{self, Version};
use crate::check::install::judge::{self, Found, admission, definitions, list, missing, parts, reach, text};
use crate::explain::live::client;
use crate::files::InputError;

/// Labels of everything that is ours.
const OURS: &str = "app.kubernetes.io/name=outrigger";

/// The Lease of the replica that leads.
const LEASE_NAME: &str = "outrigger-manager";

/// The container of a part, in its Deployment.
const CONTAINER: &str = "/spec/template/spec/containers/0";

/// Where its image is, as findings name it.
pub(super) const IMAGE: &str = "spec.template.spec.containers[0].image";

/// What a part's Pods go before.
const PRIORITY: &str = "/spec/template/spec/priorityClassName";

/// A cluster, and what of it has been read.
pub(super) struct Site {
    pub(super) cluster: Cluster,
    pub(super) parts: Vec<Part>,
    pub(super) names: Names,
    /// What of the shipped objects is there, beside what is shipped.
    pub(super) objects: Vec<(Value, Answer)>,
    /// Secrets and ConfigMaps that Pods wait for.
    pub(super) held: BTreeMap<(&'static str, String), Answer>,
    /// The API server's version.
    pub(super) kubernetes: String,
    /// We run in the cluster itself, so its Services can be reached.
    pub(super) inside: bool,
    /// The versions that run of each part, once it is judged.
    pub(super) running: BTreeMap<Part, BTreeSet<Version>>,
    pub(super) findings: Vec<Finding>,
}

impl Site {
    /// Reads what is there.
    pub(super) async fn read(
        args: &LiveArgs,
        admission: &AdmissionArgs,
        cluster: &ClusterArgs,
        flag: &str,
        only: &[Part],
    ) -> anyhow::Result<Self> {
        let inside = cluster.is_own().await;
        let cluster = Cluster::new(client(cluster, flag).await?);
        let kubernetes = cluster.version().await.map_err(|e| InputError::new(flag, format_args!("{e:#}")))?;
        let system = match &args.system_namespace {
            Some(namespace) => namespace.clone(),
            None => system_namespace(&cluster).await,
        };
        let all = together(
            Part::ALL.iter().map(|part| cluster.get(DEPLOYMENT.0, DEPLOYMENT.1, &system, part.name())),
        );
        let deployments: Vec<(Part, Answer)> = Part::ALL.into_iter().zip(all.await).collect();
        let parts =
            if only.is_empty() { parts_of(&cluster, &system, &deployments).await } else { only.to_vec() };
        let names = names(admission, &system, &deployments);
        let wanted = shipped::objects(&parts, &names)?;
        // Roles are judged all together, but for the one that nobody binds yet.
        let is_asked = |wanted: &Value| {
            !text(wanted, "/apiVersion").starts_with("rbac.")
                || text(wanted, "/metadata/name") == shipped::TENANT_ROLE
        };
        let ask = async |wanted| if is_asked(wanted) { cluster.like(wanted).await } else { Answer::Unread };
        let found = together(wanted.iter().map(ask)).await;
        let objects = wanted.into_iter().zip(found).collect();
        let (held, running, findings) = (BTreeMap::new(), BTreeMap::new(), Vec::new());
        let mut site = Self { cluster, parts, names, objects, held, kubernetes, inside, running, findings };
        site.hold().await;
        Ok(site)
    }

    /// Whether a part is to be here.
    pub(super) fn has(&self, part: Part) -> bool {
        self.parts.contains(&part)
    }

    /// What is there of a shipped object.
    pub(super) fn object(&self, kind: &str, name: &str) -> &Answer {
        let is_it = |(wanted, _): &&(Value, Answer)| {
            text(wanted, "/kind") == kind && text(wanted, "/metadata/name") == name
        };
        self.objects.iter().find(is_it).map_or(&Answer::Absent, |(_, found)| found)
    }

    /// A part's Deployment, where it is there.
    pub(super) fn deployment(&self, part: Part) -> Option<&Value> {
        self.object("Deployment", part.name()).there()
    }

    /// The Secret or ConfigMap out of which a part's Pods have a file of this name, and the key.
    pub(super) fn file(&self, part: Part, file: &str) -> Option<(&'static str, String, String)> {
        parts::mounts(self.deployment(part)?).into_iter().find_map(|mount| {
            let (key, _) = mount.keys.into_iter().find(|(_, path)| path == file)?;
            Some((mount.kind, mount.name, key))
        })
    }

    /// A Secret or ConfigMap of the installation.
    pub(super) fn held(&self, kind: &'static str, name: &str) -> Found<'_> {
        self.held.get(&(kind, name.to_owned())).map_or(Found::Unread, Answer::found)
    }

    /// Reads the Secrets and ConfigMaps that Pods wait for, and where the parts keep their own certificates.
    async fn hold(&mut self) {
        let mut wanted: Vec<(&'static str, String)> = Vec::new();
        for part in &self.parts {
            let mounts = self.deployment(*part).map(parts::mounts).unwrap_or_default();
            wanted.extend(mounts.into_iter().map(|mount| (mount.kind, mount.name)));
        }
        for (is_so, name) in [
            (self.names.webhook_self_signed, "outrigger-webhook-self-signed"),
            (self.names.manager_self_signed, "outrigger-manager-self-signed"),
        ] {
            wanted.extend(is_so.then(|| ("Secret", name.to_owned())));
        }
        wanted.sort();
        wanted.dedup();
        let system = &self.names.system;
        let found = together(wanted.iter().map(|(kind, name)| self.cluster.get("v1", kind, system, name)));
        let found = found.await;
        self.held = wanted.into_iter().zip(found).collect();
    }

    /// Judges everything that this cluster alone can tell.
    pub(super) async fn judge(&mut self) -> anyhow::Result<()> {
        for (wanted, found) in &self.objects {
            self.findings.extend(object(wanted, found));
        }
        let mut findings = self.mounted();
        if self.has(Part::Webhook) || self.has(Part::Manager) {
            findings
                .extend(versions::kubernetes(&Subject::cluster("APIServer", "version"), &self.kubernetes));
        }
        let (images, priorities, leader, services, rights) = tokio::join!(
            self.images(),
            self.priorities(),
            self.leader(),
            self.services(),
            rights::judge(&self.cluster, &self.parts, &self.names, &self.objects),
        );
        let (images, running) = images;
        self.running = running;
        if let Some(webhook) = self.deployment(Part::Webhook).filter(|_| self.names.machines) {
            findings.extend(parts::writers(webhook, argument(webhook, "tls-client-ca-file").as_deref()));
        }
        findings.extend(images.into_iter().chain(priorities).chain(leader).chain(services).chain(rights?));
        self.findings.extend(findings);
        Ok(())
    }

    fn mounted(&self) -> Vec<Finding> {
        let mut findings = Vec::new();
        for part in &self.parts {
            let Some(deployment) = self.deployment(*part) else { continue };
            let subject = judge::subject(deployment);
            for mount in parts::mounts(deployment) {
                findings.extend(parts::mounted(&subject, &mount, self.held(mount.kind, &mount.name)));
            }
        }
        findings
    }

    /// Which images run: of each part one, and of a version that goes with this program's.
    async fn images(&self) -> (Vec<Finding>, BTreeMap<Part, BTreeSet<Version>>) {
        let (mut findings, mut running) = (Vec::new(), BTreeMap::new());
        let params = ListParams::default().labels(OURS);
        let pods = self.cluster.list(POD, &self.names.system, params).await.unwrap_or_default();
        for part in &self.parts {
            let Some(deployment) = self.deployment(*part) else { continue };
            let subject = judge::subject(deployment);
            let images = images(deployment, &pods);
            let template = text(deployment, &format!("{CONTAINER}/image"));
            findings.extend(versions::replicas(&subject, template, &images));
            let versions = running_versions(deployment, &images);
            if let (false, Some(own)) = (versions.is_empty(), Version::parse(env!("CARGO_PKG_VERSION"))) {
                let of = |found| versions::skew(&subject, IMAGE, part.word(), found, ("this program", own));
                findings.extend(versions.iter().copied().filter_map(of));
            } else {
                self.cluster.note(format!(
                    "{subject}: neither its image nor its label app.kubernetes.io/version tells a version, so whether \
                     it goes with the other parts wasn't looked at"
                ));
            }
            running.insert(*part, versions);
        }
        (findings, running)
    }

    /// Whether the PriorityClasses are there that the parts name: without them no Pod of theirs is made.
    async fn priorities(&self) -> Vec<Finding> {
        let of = |part: &Part| Some(text(self.deployment(*part)?, PRIORITY).to_owned());
        let mut all: Vec<String> = self.parts.iter().filter_map(of).filter(|name| !name.is_empty()).collect();
        all.sort();
        all.dedup();
        let wanted: Vec<Value> = all.iter().map(|name| priority_class(name)).collect();
        let found = together(wanted.iter().map(|wanted| self.cluster.like(wanted))).await;
        wanted
            .iter()
            .zip(found)
            .filter(|(_, found)| *found == Answer::Absent)
            .map(|(w, _)| missing(w))
            .collect()
    }

    /// Whether somebody leads.
    async fn leader(&self) -> Option<Finding> {
        let manager = self.deployment(Part::Manager).filter(|_| self.has(Part::Manager))?;
        let namespace = argument(manager, "lease-namespace").unwrap_or_else(|| self.names.system.clone());
        let lease = self.cluster.get(LEASE.0, LEASE.1, &namespace, LEASE_NAME).await;
        let renewed =
            lease.there().and_then(|lease| text(lease, "/spec/renewTime").parse::<Timestamp>().ok());
        let subject = Subject { kind: "Lease".to_owned(), namespace, name: LEASE_NAME.to_owned() };
        // This machine's clock may be another one.
        let now = match renewed {
            Some(_) => self.cluster.now().await,
            None => None,
        };
        if renewed.is_some() && now.is_none() {
            self.cluster.note(format!(
                "the API server doesn't say what time it is, so whether {subject} is held wasn't looked at"
            ));
            return None;
        }
        let ago = renewed.zip(now).map(|(at, now)| now.saturating_sub(at.as_second()));
        parts::lease(&subject, lease.found(), ago)
    }

    /// Whether Services lead to somebody. The one of the webhook counts where configurations name it.
    async fn services(&self) -> Vec<Finding> {
        let mut findings = Vec::new();
        for part in [Part::Webhook, Part::Manager] {
            let Some(service) = self.object("Service", part.name()).there() else { continue };
            let Some(slices) = self.slices(text(service, "/metadata/name")).await else { continue };
            let ports: Vec<i64> = match part {
                Part::Webhook => super::webhooks::ports(self),
                _ => list(service, "/spec/ports").iter().take(1).filter_map(|p| p["port"].as_i64()).collect(),
            };
            findings.extend(ports.into_iter().filter_map(|port| reach::service(service, &slices, port)));
        }
        findings
    }

    /// The EndpointSlices of a Service.
    pub(super) async fn slices(&self, service: &str) -> Option<Vec<Value>> {
        let params = ListParams::default().labels(&format!("kubernetes.io/service-name={service}"));
        self.cluster.list(ENDPOINT_SLICE, &self.names.system, params).await
    }
}

fn priority_class(name: &str) -> Value {
    json!({"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}})
}

/// Whether nothing could be read of what an installation is: then nothing that is found says anything of it.
pub(super) fn is_blind(objects: &[(Value, Answer)]) -> bool {
    let is_it = |wanted: &Value| {
        text(wanted, "/kind") == "Deployment"
            || text(wanted, "/apiVersion").starts_with("admissionregistration.k8s.io/")
    };
    objects.iter().filter(|(wanted, _)| is_it(wanted)).all(|(_, found)| *found == Answer::Unread)
}

/// One of the objects that are shipped. Roles and bindings are judged by what they allow, all together.
pub(super) fn object(wanted: &Value, found: &Answer) -> Vec<Finding> {
    let kind = text(wanted, "/kind");
    if text(wanted, "/apiVersion").starts_with("rbac.") {
        return Vec::new();
    }
    let found = match found {
        Answer::There(found) => found,
        Answer::Absent => return vec![missing(wanted)],
        Answer::Unread => return Vec::new(),
    };
    match kind {
        "MutatingWebhookConfiguration" | "ValidatingWebhookConfiguration" => {
            admission::configuration(wanted, found)
        }
        "ValidatingAdmissionPolicy" => admission::policy(wanted, found),
        "ValidatingAdmissionPolicyBinding" => admission::binding(wanted, found),
        "CustomResourceDefinition" => definitions::definition(wanted, found),
        "Deployment" => parts::deployment(found).into_iter().collect(),
        _ => Vec::new(),
    }
}

/// Where the parts are: wherever one of them runs, else where they are by default.
async fn system_namespace(cluster: &Cluster) -> String {
    let default = || keys::SYSTEM_NAMESPACE.to_owned();
    let params = ListParams::default().labels(OURS);
    let all = cluster.list(DEPLOYMENT, "", params).await.unwrap_or_default();
    let ours = |o: &&Value| Part::ALL.iter().any(|part| part.name() == text(o, "/metadata/name"));
    all.iter().find(ours).map_or_else(default, |o| text(o, "/metadata/namespace").to_owned())
}

/// The parts of which there is something. Where there is nothing it is an infrastructure cluster that lacks everything.
async fn parts_of(cluster: &Cluster, system: &str, deployments: &[(Part, Answer)]) -> Vec<Part> {
    let trace = async |(part, deployment): &(Part, Answer)| {
        let account = cluster.get("v1", "ServiceAccount", system, part.name());
        let there = |answer: &Answer| answer.there().is_some();
        let registered = match part {
            Part::Webhook => Some("ValidatingWebhookConfiguration"),
            Part::Manager => Some("ValidatingAdmissionPolicy"),
            Part::Agent => None,
        };
        let name = if *part == Part::Webhook { "outrigger" } else { "outrigger-pods" };
        let registered = match registered {
            Some(kind) => there(&cluster.get("admissionregistration.k8s.io/v1", kind, "", name).await),
            None => false,
        };
        (registered || there(deployment) || there(&account.await)).then_some(*part)
    };
    let found: Vec<Part> = together(deployments.iter().map(trace)).await.into_iter().flatten().collect();
    if found.is_empty() { vec![Part::Webhook, Part::Manager] } else { found }
}

/// What the installation calls things: as its parts are told to, else as the flags say.
fn names(admission: &AdmissionArgs, system: &str, deployments: &[(Part, Answer)]) -> Names {
    let of = |part: Part, flag: &str| {
        deployments.iter().find(|(other, _)| *other == part).and_then(|(_, d)| argument(d.there()?, flag))
    };
    let either = |flag: &str, default: &str| {
        let told = of(Part::Webhook, flag).or_else(|| of(Part::Manager, flag));
        told.unwrap_or_else(|| default.to_owned())
    };
    let is = |part, flag, value: &str| of(part, flag).as_deref() == Some(value);
    // Only a class of ours is kept for us alone, not one of the system's.
    let class = |(_, deployment): &(Part, Answer)| Some(text(deployment.there()?, PRIORITY).to_owned());
    let ours = |name: &String| !name.is_empty() && !name.starts_with("system-");
    Names {
        priority: deployments
            .iter()
            .find_map(class)
            .filter(ours)
            .unwrap_or_else(|| keys::PRIORITY.to_owned()),
        system: system.to_owned(),
        host_label: either("host-label", &admission.host_label),
        rules: either("admin-rules-namespace", &admission.admin_rules_namespace),
        resources: either("admin-resources-namespace", &admission.admin_resources_namespace),
        core: either("core-namespace", &admission.core_namespace),
        tenant_rules: of(Part::Agent, "rules-namespace").unwrap_or_else(|| keys::ADMIN_NAMESPACE.to_owned()),
        machines: !is(Part::Manager, "manage-machines", "false"),
        offloading: !is(Part::Manager, "manage-offloading", "false"),
        webhook_self_signed: is(Part::Webhook, "tls", "self-signed"),
        manager_self_signed: is(Part::Manager, "tls", "self-signed"),
    }
}

/// What a part is told by a flag, or by the flag's twin in the environment.
pub(super) fn argument(deployment: &Value, flag: &str) -> Option<String> {
    let args = list(deployment, &format!("{CONTAINER}/args"));
    let name = format!("--{flag}");
    for (i, arg) in args.iter().filter_map(Value::as_str).enumerate() {
        match arg.strip_prefix(&name) {
            Some("") => return args.get(i + 1).and_then(Value::as_str).map(str::to_owned),
            Some(rest) if rest.starts_with('=') => return Some(rest[1..].to_owned()),
            _ => {}
        }
    }
    let twin = format!("OUTRIGGER_{}", flag.to_uppercase().replace('-', "_"));
    let env = list(deployment, &format!("{CONTAINER}/env"));
    let variable = env.iter().find(|variable| text(variable, "/name") == twin)?;
    // API servers leave an empty value out.
    variable.get("valueFrom").is_none().then(|| text(variable, "/value").to_owned())
}

/// The images of a Deployment's Pods, and how many have each. Others may have put containers of theirs before ours.
pub(super) fn images(deployment: &Value, pods: &[Value]) -> Vec<(String, usize)> {
    let labels = deployment.pointer("/spec/selector/matchLabels");
    let name = text(deployment, &format!("{CONTAINER}/name"));
    let runs = |pod: &&Value| {
        pod.pointer("/metadata/deletionTimestamp").is_none()
            && !matches!(text(pod, "/status/phase"), "Failed" | "Succeeded")
            && selects(labels, pod)
    };
    let mut images: BTreeMap<String, usize> = BTreeMap::new();
    for pod in pods.iter().filter(runs) {
        if let Some(own) = list(pod, "/spec/containers").iter().find(|c| text(c, "/name") == name) {
            *images.entry(text(own, "/image").to_owned()).or_default() += 1;
        }
    }
    images.into_iter().collect()
}

/// The versions that run of a part: those of its Pods' images; where these tell none, that of the Deployment's.
pub(super) fn running_versions(deployment: &Value, images: &[(String, usize)]) -> BTreeSet<Version> {
    let running: BTreeSet<Version> =
        images.iter().filter_map(|(image, _)| Version::of_image(image)).collect();
    if running.is_empty() { version(deployment).into_iter().collect() } else { running }
}

/// The version of a part, by its image, else by the label that Helm sets.
pub(super) fn version(deployment: &Value) -> Option<Version> {
    let label = deployment.pointer("/metadata/labels/app.kubernetes.io~1version").and_then(Value::as_str);
    Version::of_image(text(deployment, &format!("{CONTAINER}/image")))
        .or_else(|| Version::parse(label.unwrap_or_default()))
}

/// Whether a map of labels selects an object.
pub(super) fn selects(wanted: Option<&Value>, object: &Value) -> bool {
    let empty = json!({});
    let labels = object.pointer("/metadata/labels").unwrap_or(&empty);
    let wanted = wanted.and_then(Value::as_object);
    wanted.is_some_and(|wanted| wanted.iter().all(|(key, value)| labels.get(key) == Some(value)))
}

/// A namespace in which the webhook judges Pods, if there is one, and whose it is.
pub(super) async fn tenant_namespace(cluster: &Cluster) -> Option<(String, String)> {
    let params = ListParams::default().labels(keys::TENANT);
    let all = cluster.list(NAMESPACE, "", params).await?;
    let lives = |o: &&Value| o.pointer("/metadata/deletionTimestamp").is_none();
    all.iter().find(lives).map(|o| {
        let tenant = o["metadata"]["labels"][keys::TENANT].as_str().unwrap_or_default();
        (text(o, "/metadata/name").to_owned(), tenant.to_owned())
    })
}
