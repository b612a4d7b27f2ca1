//! What is shipped, as it would be installed: the very files of `webhooks/`, `deploy/` and `certs/`.

use anyhow::Context;
use clap::ValueEnum;
use outrigger_core::keys;
use serde::Deserialize;
use serde_json::Value;

use crate::check::install::judge::text;

/// A part of Outrigger.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(super) enum Part {
    /// Admission.
    Webhook,
    /// Workload streams and companions.
    Manager,
    /// The tenant's side.
    Agent,
}

impl Part {
    pub(super) const ALL: [Self; 3] = [Self::Webhook, Self::Manager, Self::Agent];

    /// The name of its Deployment, Service and service account.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Webhook => "outrigger-webhook",
            Self::Manager => "outrigger-manager",
            Self::Agent => "outrigger-agent",
        }
    }

    /// What it is called in a sentence.
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Webhook => "the webhook",
            Self::Manager => "the manager",
            Self::Agent => "the agent",
        }
    }
}

/// How an installation differs from what is written in the files: what can be set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Names {
    /// Namespace of the parts.
    pub(super) system: String,
    /// Label on DPU Nodes.
    pub(super) host_label: String,
    /// Namespace of admin rules. Where it is empty, as with the next one and a tenant's: there are none.
    pub(super) rules: String,
    /// Namespace of their companions.
    pub(super) resources: String,
    /// Namespace of Machines' reservations and ledgers.
    pub(super) core: String,
    /// Namespace of a tenant's own rules, in its cluster.
    pub(super) tenant_rules: String,
    /// PriorityClass of the parts.
    pub(super) priority: String,
    /// The manager serves Machines.
    pub(super) machines: bool,
    /// The manager serves NamespaceOffloadings.
    pub(super) offloading: bool,
    /// The webhook keeps its certificates itself.
    pub(super) webhook_self_signed: bool,
    /// The manager keeps its certificates itself.
    pub(super) manager_self_signed: bool,
}

const NAMESPACE: &str = include_str!("../../../../../deploy/base/namespace/namespace.yaml");
const MUTATING: &str = include_str!("../../../../../webhooks/mutating.yaml");
const VALIDATING: &str = include_str!("../../../../../webhooks/validating.yaml");
const POLICIES: &str = include_str!("../../../../../webhooks/policies.yaml");
const WEBHOOK: [&str; 3] = [
    include_str!("../../../../../deploy/base/webhook/rbac.yaml"),
    include_str!("../../../../../deploy/base/webhook/deployment.yaml"),
    include_str!("../../../../../deploy/base/webhook/service.yaml"),
];
const MANAGER: [&str; 3] = [
    include_str!("../../../../../deploy/base/manager/rbac.yaml"),
    include_str!("../../../../../deploy/base/manager/deployment.yaml"),
    include_str!("../../../../../deploy/base/manager/service.yaml"),
];
const AGENT_RBAC: &str = include_str!("../../../../../deploy/base/agent/rbac.yaml");
const AGENT: &str = include_str!("../../../../../deploy/base/agent/deployment.yaml");
const ADMIN: &str = include_str!("../../../../../deploy/base/admin/rbac.yaml");
const SLOTS: &str = include_str!("../../../../../deploy/base/slots/rbac.yaml");
const MACHINES: &str = include_str!("../../../../../deploy/base/machines/rbac.yaml");
const WEBHOOK_SELF_SIGNED: &str = include_str!("../../../../../certs/self-signed/webhook/certificates.yaml");
const MANAGER_SELF_SIGNED: &str = include_str!("../../../../../certs/self-signed/manager/certificates.yaml");

/// The role that the manager binds by itself, in each tenant's namespace.
pub(super) const TENANT_ROLE: &str = "outrigger-manager-tenant";

/// Everything that these parts need, each object once, definitions included.
pub(super) fn objects(parts: &[Part], names: &Names) -> anyhow::Result<Vec<Value>> {
    let mut all = Vec::new();
    take(NAMESPACE, names, &mut all)?;
    for part in parts {
        for text in files(*part, names) {
            take(text, names, &mut all)?;
        }
    }
    for definition in outrigger_api::crds() {
        let definition = serde_json::to_value(definition)?;
        if is_needed(text(&definition, "/spec/group"), text(&definition, "/spec/names/kind"), parts, names) {
            all.push(definition);
        }
    }
    Ok(all)
}

/// Roles and bindings of everything, also of what isn't installed: whoever has these rights may have them.
pub(super) fn roles(names: &Names) -> anyhow::Result<Vec<Value>> {
    let mut all = Vec::new();
    let everything = Names {
        machines: true,
        offloading: true,
        webhook_self_signed: true,
        manager_self_signed: true,
        ..names.clone()
    };
    for part in Part::ALL {
        for text in files(part, &everything) {
            take(text, &everything, &mut all)?;
        }
    }
    all.retain(|object| text(object, "/apiVersion").starts_with("rbac."));
    Ok(all)
}

fn files(part: Part, names: &Names) -> Vec<&'static str> {
    let mut files = Vec::new();
    match part {
        Part::Webhook => {
            files.extend(WEBHOOK);
            files.extend([MUTATING, VALIDATING, ADMIN, SLOTS]);
            files.extend(names.webhook_self_signed.then_some(WEBHOOK_SELF_SIGNED));
        }
        Part::Manager => {
            files.extend(MANAGER);
            files.extend([POLICIES, ADMIN]);
            files.extend(names.machines.then_some(MACHINES));
            files.extend(names.manager_self_signed.then_some(MANAGER_SELF_SIGNED));
        }
        Part::Agent => files.extend([AGENT_RBAC, AGENT]),
    }
    files
}

/// Whether a definition is these parts' own. Where Liqo or Imperator serve their kinds, the definitions are theirs.
fn is_needed(group: &str, kind: &str, parts: &[Part], names: &Names) -> bool {
    if !parts.contains(&Part::Manager) {
        let rules = parts.contains(&Part::Agent) && !names.tenant_rules.is_empty();
        return kind == "WorkloadRule" && rules;
    }
    match group {
        keys::OFFLOADING_GROUP => names.offloading,
        keys::MACHINE_GROUP_DOMAIN => names.machines,
        _ => true,
    }
}

/// The documents of a file, with the installation's own names.
fn take(file: &str, names: &Names, all: &mut Vec<Value>) -> anyhow::Result<()> {
    for document in serde_yaml::Deserializer::from_str(file) {
        let object = Value::deserialize(document).context("what is shipped can't be read")?;
        if object.is_null() {
            continue;
        }
        let universes = match (file, text(&object, "/kind"), text(&object, "/metadata/name")) {
            (AGENT_RBAC, ..) => vec![&names.tenant_rules],
            (ADMIN, "Namespace", _) => vec![&names.rules, &names.resources],
            (ADMIN, _, "outrigger-manager-admin-rules" | "outrigger-webhook-admin-rules") => {
                vec![&names.rules]
            }
            _ => vec![&names.resources],
        };
        for universe in universes {
            if universe.is_empty() && is_in_universe(&object) {
                continue;
            }
            let mut object = object.clone();
            rename(&mut object, universe, names);
            add(object, all);
        }
    }
    Ok(())
}

/// Whether an object is a namespace whose name can be set, or in one.
fn is_in_universe(object: &Value) -> bool {
    let is = |pointer| text(object, pointer) == keys::ADMIN_NAMESPACE;
    is("/metadata/namespace") || (text(object, "/kind") == "Namespace" && is("/metadata/name"))
}

fn add(object: Value, all: &mut Vec<Value>) {
    let name = |o: &Value| {
        let of = |pointer| text(o, pointer).to_owned();
        (of("/kind"), of("/metadata/namespace"), of("/metadata/name"))
    };
    if !all.iter().any(|other| name(other) == name(&object)) {
        all.push(object);
    }
}

/// Puts the installation's own names into all texts of an object.
fn rename(value: &mut Value, universe: &str, names: &Names) {
    match value {
        Value::Object(map) => map.values_mut().for_each(|value| rename(value, universe, names)),
        Value::Array(list) => list.iter_mut().for_each(|value| rename(value, universe, names)),
        Value::String(text) => {
            if text == keys::ADMIN_NAMESPACE {
                universe.clone_into(text);
            } else if text == keys::CORE_NAMESPACE {
                names.core.clone_into(text);
            } else {
                // CEL names it in quotes.
                let quoted = format!("'{}'", keys::ADMIN_NAMESPACE);
                let priority = |name: &str| format!("== '{name}'");
                *text = text
                    .replace(keys::SYSTEM_NAMESPACE, &names.system)
                    .replace(keys::DPU_HOST, &names.host_label)
                    .replace(&quoted, &format!("'{universe}'"))
                    .replace(&priority(keys::PRIORITY), &priority(&names.priority));
            }
        }
        _ => {}
    }
}
