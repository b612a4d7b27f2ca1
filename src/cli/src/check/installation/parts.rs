//! The parts of Outrigger in one cluster, and what their Deployments say.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use clap::{Args, Command, FromArgMatches, ValueEnum};
use outrigger_core::json::{label, list, text};
use outrigger_core::keys;
use outrigger_core::tenant::Enforcement;
use outrigger_webhook::WebhookArgs;
use outrigger_webhook::settings::AdmissionArgs;
use serde_json::Value;

use super::roles::Names;
use super::versions::{self, Version};
use crate::check::findings::{Finding, LEVELS, Subject};
use crate::cluster::{Answer, Cluster, DEPLOYMENT, Kind, MUTATING, NAMESPACE, POD, VALIDATING, together};
use crate::files::InputError;

/// Label of all of Outrigger's own Deployments and Pods.
pub(crate) const OWN: &str = "app.kubernetes.io/name=outrigger";

/// The subcommand that runs the webhook.
const WEBHOOK: &str = "webhook";

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum Part {
    /// Admission.
    Webhook,
    /// Workload streams and companions.
    Manager,
    /// The tenant's side.
    Agent,
}

impl Part {
    pub(crate) const ALL: [Self; 3] = [Self::Webhook, Self::Manager, Self::Agent];

    /// The name of its Deployment, Service and service account.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Webhook => keys::WEBHOOK,
            Self::Manager => keys::MANAGER,
            Self::Agent => keys::AGENT,
        }
    }

    /// The part in a sentence.
    fn word(self) -> &'static str {
        match self {
            Self::Webhook => "the webhook",
            Self::Manager => "the manager",
            Self::Agent => "the agent",
        }
    }
}

/// One cluster's share of an installation.
pub(crate) struct Installation {
    pub(crate) cluster: Cluster,
    parts: Vec<Part>,
    pub(crate) deployments: BTreeMap<Part, Value>,
    running: BTreeMap<Part, BTreeSet<Version>>,
    /// Outrigger's webhook configurations, or that they can't be read.
    pub(crate) configurations: Vec<(Kind, Answer)>,
    pub(crate) names: Names,
}

impl Installation {
    /// Reads what is there. `only`: the parts that belong into the cluster; where it is empty, those that are found.
    pub(crate) async fn read(
        cluster: Cluster,
        admission: &AdmissionArgs,
        namespace: Option<&str>,
        only: &[Part],
    ) -> Result<Self, &'static str> {
        let system = match namespace {
            Some(namespace) => namespace.to_owned(),
            None => system_namespace(&cluster).await,
        };
        let all =
            together(Part::ALL.into_iter().map(|part| cluster.get(DEPLOYMENT, &system, part.name()))).await;
        let kinds = [MUTATING, VALIDATING];
        let configurations =
            together(kinds.into_iter().map(|kind| cluster.get(kind, "", keys::WEBHOOK_CONFIGURATION))).await;
        let configurations: Vec<(Kind, Answer)> = kinds.into_iter().zip(configurations).collect();
        let answers = all.iter().chain(configurations.iter().map(|(_, answer)| answer));
        if answers.into_iter().all(|answer| *answer == Answer::Unread) {
            return Err(
                "neither a Deployment nor a webhook configuration of the installation may be read: nothing can be said of \
                 it; docs/check.md tells the rights that are needed",
            );
        }
        let found = Part::ALL.into_iter().zip(all);
        let deployments: BTreeMap<Part, Value> =
            found.filter_map(|(part, answer)| Some((part, answer.there()?))).collect();
        let is_registered = configurations.iter().any(|(_, answer)| matches!(answer, Answer::There(_)));
        let is_here =
            |part: &Part| deployments.contains_key(part) || (*part == Part::Webhook && is_registered);
        let mut parts = only.to_vec();
        if parts.is_empty() {
            parts.extend(Part::ALL.into_iter().filter(is_here));
        }
        if parts.is_empty() {
            return Err(
                "no part of Outrigger is in the cluster; --system-namespace names its namespace, --part a part",
            );
        }
        let names = names(admission, &system, &deployments);
        let pods = cluster.list(POD, &system, OWN).await.unwrap_or_default();
        let versions = |(part, deployment): (&Part, &Value)| (*part, running_versions(deployment, &pods));
        let running = deployments.iter().map(versions).collect();
        Ok(Self { cluster, parts, deployments, running, configurations, names })
    }

    pub(crate) fn has(&self, part: Part) -> bool {
        self.parts.contains(&part)
    }

    pub(crate) fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// The value of a part's flag.
    pub(crate) fn argument(&self, part: Part, flag: &str) -> Option<String> {
        argument(self.deployments.get(&part)?, flag)
    }

    /// The webhook's settings; those that its Deployment doesn't have are this command's.
    ///
    /// # Errors
    /// If its Deployment has settings that this program can't read: a decision by others could be wrong.
    pub(crate) fn admission(&self, own: &AdmissionArgs) -> Result<AdmissionArgs, InputError> {
        let names = &self.names;
        let own = AdmissionArgs {
            admin_rules_namespace: names.rules.clone(),
            admin_resources_namespace: names.resources.clone(),
            core_namespace: names.core.clone(),
            ..own.clone()
        };
        let Some(webhook) = self.deployments.get(&Part::Webhook) else { return Ok(own) };
        admission(webhook, own).map_err(|why| {
            let place = format!("{} {}", self.subject(Part::Webhook), self.path(Part::Webhook, "args"));
            InputError::new(place, why)
        })
    }

    pub(crate) fn running(&self, part: Part) -> BTreeSet<Version> {
        self.running.get(&part).cloned().unwrap_or_default()
    }

    /// Compares the versions of the parts with this program's.
    pub(crate) fn versions(&self) -> Vec<Finding> {
        let mut findings = Vec::new();
        let Some(own) = Version::parse(env!("CARGO_PKG_VERSION")) else { return findings };
        for (part, versions) in self.running.iter().filter(|(part, _)| self.has(**part)) {
            if versions.is_empty() {
                self.cluster.note(format!(
                    "neither the image of {} nor its label app.kubernetes.io/version tells a version, so it wasn't \
                     compared with the other parts",
                    part.word()
                ));
            }
            findings.extend(
                versions.iter().filter_map(|version| self.skew(*part, *version, "this program", own)),
            );
        }
        findings
    }

    /// Compares the levels of enforcement of Tenants that name none: the webhook's decides, and the manager's is what Tenants say.
    pub(crate) fn levels(&self) -> Option<Finding> {
        let [webhook, manager] = [Part::Webhook, Part::Manager].map(|part| self.deployments.get(&part));
        levels(&self.subject(Part::Webhook), &self.path(Part::Webhook, "args"), webhook?, manager?)
    }

    /// Compares a version of a part with another version.
    pub(crate) fn skew(&self, part: Part, found: Version, other: &str, version: Version) -> Option<Finding> {
        versions::skew(&self.subject(part), &self.path(part, "image"), part.word(), found, (other, version))
    }

    /// Path of a field of a part's own container, as findings name it.
    pub(crate) fn path(&self, part: Part, field: &str) -> String {
        let index = self.deployments.get(&part).map_or(0, |deployment| own_container(deployment).0);
        format!("spec.template.spec.containers[{index}].{field}")
    }

    /// A part's Deployment, as findings name it.
    pub(crate) fn subject(&self, part: Part) -> Subject {
        Subject::new("Deployment", &self.names.system, part.name())
    }

    /// What a part's Pods have in a file, where it may be read: by the Deployment's volumes, else in the Secret in which the
    /// part keeps the certificate that it signs itself.
    pub(crate) async fn entry(&self, part: Part, file: &str) -> Option<Entry> {
        let self_signed = match part {
            Part::Webhook if self.names.webhook_self_signed => Some(keys::WEBHOOK_SELF_SIGNED),
            Part::Manager if self.names.manager_self_signed => Some(keys::MANAGER_SELF_SIGNED),
            _ => None,
        };
        let self_signed = self_signed.filter(|_| file == "tls.crt");
        let (kind, name, key) = mounted(self.deployments.get(&part)?, file)
            .or_else(|| Some(("Secret", self_signed?.to_owned(), file.to_owned())))?;
        let object = self.cluster.get(Kind("v1", kind), &self.names.system, &name).await.there()?;
        let pem = data(&object, &key)?;
        let subject = Subject::new(kind, &self.names.system, &name);
        Some(Entry { subject, path: format!("data[{key}]"), pem })
    }

    /// A namespace in which the webhook judges Pods, with its tenant, if there is one.
    pub(crate) async fn tenant_namespace(&self) -> Option<(String, String)> {
        let all = self.cluster.list(NAMESPACE, "", keys::TENANT).await?;
        let lives = |namespace: &&Value| namespace.pointer("/metadata/deletionTimestamp").is_none();
        all.iter().find(lives).map(|namespace| {
            let tenant = label(namespace, keys::TENANT).unwrap_or_default();
            (text(namespace, "/metadata/name").to_owned(), tenant.to_owned())
        })
    }
}

/// A key of a Secret or ConfigMap.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) subject: Subject,
    pub(crate) path: String,
    pub(crate) pem: Vec<u8>,
}

/// The namespace in which one of the parts runs, else the default.
pub(crate) async fn system_namespace(cluster: &Cluster) -> String {
    let all = cluster.list(DEPLOYMENT, "", OWN).await.unwrap_or_default();
    let is_part = |o: &&Value| Part::ALL.iter().any(|part| part.name() == text(o, "/metadata/name"));
    let found = all.iter().find(is_part).map(|o| text(o, "/metadata/namespace"));
    found.unwrap_or(keys::SYSTEM_NAMESPACE).to_owned()
}

/// The names that the installation uses: those of the Deployments' flags, else those of this command's.
fn names(admission: &AdmissionArgs, system: &str, deployments: &BTreeMap<Part, Value>) -> Names {
    let of = |part: Part, flag: &str| argument(deployments.get(&part)?, flag);
    let either = |flag: &str, default: &str| {
        let configured = of(Part::Webhook, flag).or_else(|| of(Part::Manager, flag));
        configured.unwrap_or_else(|| default.to_owned())
    };
    let is = |part, flag, value: &str| of(part, flag).as_deref() == Some(value);
    Names {
        system: system.to_owned(),
        rules: either("admin-rules-namespace", &admission.admin_rules_namespace),
        resources: either("admin-resources-namespace", &admission.admin_resources_namespace),
        core: either("core-namespace", &admission.core_namespace),
        tenant_rules: of(Part::Agent, "rules-namespace").unwrap_or_else(|| keys::ADMIN_NAMESPACE.to_owned()),
        machines: !is(Part::Manager, "manage-machines", "false"),
        webhook_self_signed: is(Part::Webhook, "tls", "self-signed"),
        manager_self_signed: is(Part::Manager, "tls", "self-signed"),
        queries: of(Part::Manager, "query-address").is_some(),
    }
}

/// The container of the part itself and its index: it is named as the Deployment is after "outrigger-". Others may have put containers
/// before it.
fn own_container(deployment: &Value) -> (usize, &Value) {
    let containers = list(deployment, "/spec/template/spec/containers");
    let name = text(deployment, "/metadata/name");
    let is_own =
        |container: &Value| name.rsplit_once('-').is_some_and(|(_, name)| text(container, "/name") == name);
    let index = containers.iter().position(is_own).unwrap_or_default();
    (index, containers.get(index).unwrap_or(&Value::Null))
}

/// The value of a flag in a Deployment's arguments, or of its variable in the environment.
pub(crate) fn argument(deployment: &Value, flag: &str) -> Option<String> {
    let (_, container) = own_container(deployment);
    let args = list(container, "/args");
    let name = format!("--{flag}");
    let mut given = args.iter().filter_map(Value::as_str).enumerate();
    let given = given.find_map(|(i, arg)| match arg.strip_prefix(&name)? {
        "" => args.get(i + 1)?.as_str(),
        rest => rest.strip_prefix('='),
    });
    let name = format!("OUTRIGGER_{}", flag.to_uppercase().replace('-', "_"));
    given.or_else(|| variable(container, &name)?.ok()).map(str::to_owned)
}

/// The value of a variable in a container's environment: of several entries the last one's. An error: it is elsewhere.
fn variable<'a>(container: &'a Value, name: &str) -> Option<Result<&'a str, String>> {
    let found = list(container, "/env").iter().rev().find(|other| text(other, "/name") == name)?;
    let is_elsewhere = found.get("valueFrom").is_some();
    // API servers leave an empty value out.
    Some(if is_elsewhere { Err(format!("{name} has valueFrom")) } else { Ok(text(found, "/value")) })
}

/// Changes settings to those of the webhook's Deployment. The webhook's own command reads them, so none is forgotten.
///
/// # Errors
/// What can't be read.
pub(crate) fn admission(webhook: &Value, mut settings: AdmissionArgs) -> Result<AdmissionArgs, String> {
    let (_, container) = own_container(webhook);
    let words = ["/command", "/args"].into_iter().flat_map(|field| list(container, field));
    let words = words.map(|word| word.as_str().unwrap_or_default()).skip_while(|word| *word != WEBHOOK);
    let mut words: Vec<String> = words.map(str::to_owned).collect();
    if words.is_empty() {
        return Err(format!("has no subcommand {WEBHOOK}"));
    }
    if !list(container, "/envFrom").is_empty() {
        return Err("envFrom may have settings".to_owned());
    }
    let own = AdmissionArgs::augment_args_for_update(Command::new(WEBHOOK));
    for arg in own.get_arguments() {
        let (Some(flag), Some(name)) = (arg.get_long(), arg.get_env().and_then(OsStr::to_str)) else {
            continue;
        };
        let flag = format!("--{flag}");
        let is_flag = |word: &String| word.split('=').next() == Some(&flag);
        if words.iter().any(is_flag) {
            continue;
        }
        match variable(container, name).transpose()? {
            Some(value) if arg.get_action().takes_values() => words.insert(1, format!("{flag}={value}")),
            Some("true") => words.insert(1, flag),
            _ => {}
        }
    }
    // What a Deployment doesn't say is neither in this process's environment nor a default.
    let command = WebhookArgs::augment_args_for_update(Command::new(WEBHOOK));
    let said = command.mut_args(|arg| arg.env(None).default_value(None)).try_get_matches_from(words);
    let wrong = |error: clap::Error| error.to_string().lines().next().unwrap_or_default().to_owned();
    let said = said.map_err(wrong)?;
    for arg in own.get_arguments() {
        let mut values = said.get_raw(arg.get_id().as_str()).into_iter().flatten();
        if let Some(value) = values.find(|value| value.to_string_lossy().contains("$(")) {
            return Err(format!("{} refers to a variable", value.display()));
        }
    }
    settings.update_from_arg_matches(&said).map_err(wrong)?;
    Ok(settings)
}

/// The volume's Secret or ConfigMap from which a Deployment's Pods have a file of this name, and the key.
pub(crate) fn mounted(deployment: &Value, file: &str) -> Option<(&'static str, String, String)> {
    let volumes = list(deployment, "/spec/template/spec/volumes").iter();
    let mut sources =
        volumes.flat_map(|volume| std::iter::once(volume).chain(list(volume, "/projected/sources")));
    sources.find_map(|source| {
        let (kind, of) = [("Secret", "secret"), ("ConfigMap", "configMap")]
            .into_iter()
            .find_map(|(kind, field)| Some((kind, source.get(field)?)))?;
        let name = of.get("secretName").or_else(|| of.get("name"))?.as_str()?;
        let item = list(of, "/items").iter().find(|item| text(item, "/path") == file)?;
        Some((kind, name.to_owned(), text(item, "/key").to_owned()))
    })
}

/// A key of a Secret or ConfigMap.
pub(crate) fn data(object: &Value, key: &str) -> Option<Vec<u8>> {
    let value = object.get("data")?.get(key)?.as_str()?;
    if text(object, "/kind") == "Secret" {
        STANDARD.decode(value).ok()
    } else {
        Some(value.as_bytes().to_vec())
    }
}

/// Compares the levels of the Deployments of webhook and manager.
pub(crate) fn levels(subject: &Subject, path: &str, webhook: &Value, manager: &Value) -> Option<Finding> {
    let of = |deployment| {
        argument(deployment, "enforcement").unwrap_or_else(|| Enforcement::default().to_string())
    };
    let (decides, says) = (of(webhook), of(manager));
    let message = format!(
        "--enforcement is {decides}, which the webhook applies, and {says} for the manager, which is what Tenants say in their status"
    );
    (decides != says).then(|| Finding::new(&LEVELS, subject, path, message))
}

/// Whether a Pod hasn't ended, and isn't being deleted.
pub(crate) fn is_running(pod: &Value) -> bool {
    pod.pointer("/metadata/deletionTimestamp").is_none()
        && !matches!(text(pod, "/status/phase"), "Failed" | "Succeeded")
}

/// The versions of a part by its Pods' images; without those, by the Deployment's image, else by the label that Helm
/// sets.
pub(crate) fn running_versions(deployment: &Value, pods: &[Value]) -> BTreeSet<Version> {
    let labels = deployment.pointer("/spec/selector/matchLabels").and_then(Value::as_object);
    let (_, container) = own_container(deployment);
    let name = text(container, "/name");
    let is_selected = |pod: &Value| {
        let of_pod = pod.pointer("/metadata/labels");
        labels.is_some_and(|all| {
            all.iter().all(|(key, value)| of_pod.and_then(|labels| labels.get(key)) == Some(value))
        })
    };
    let runs = |pod: &&Value| is_running(pod) && is_selected(pod);
    let containers = pods.iter().filter(runs).flat_map(|pod| list(pod, "/spec/containers"));
    let own = containers.filter(|container| text(container, "/name") == name);
    let versions: BTreeSet<Version> =
        own.filter_map(|container| Version::of_image(text(container, "/image"))).collect();
    if !versions.is_empty() {
        return versions;
    }
    let image = Version::of_image(text(container, "/image"));
    let label = || Version::parse(text(deployment, "/metadata/labels/app.kubernetes.io~1version"));
    image.or_else(label).into_iter().collect()
}
