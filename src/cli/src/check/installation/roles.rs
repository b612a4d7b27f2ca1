//! The roles that are shipped, with an installation's own names: the very files of `deploy/` and `certs/`.

use anyhow::Context;
use outrigger_core::json::text;
use outrigger_core::keys;
use outrigger_core::yaml::{self, OF_FILES};
use serde_json::Value;

use super::parts::Part;

/// What an installation may have set differently from the files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Names {
    /// Namespace of the parts.
    pub(crate) system: String,
    /// Namespace of admin rules. Where this name, or one of the next three, is empty, there is no such namespace.
    pub(super) rules: String,
    /// Namespace of the admin rules' companions.
    pub(super) resources: String,
    /// Namespace of Machines' reservations and ledgers.
    pub(super) core: String,
    /// Namespace of a tenant's own rules, in its cluster.
    pub(super) tenant_rules: String,
    pub(super) machines: bool,
    pub(super) webhook_self_signed: bool,
    pub(super) manager_self_signed: bool,
    pub(super) queries: bool,
}

const WEBHOOK: &str = include_str!("../../../../../deploy/base/webhook/rbac.yaml");
const MANAGER: &str = include_str!("../../../../../deploy/base/manager/rbac.yaml");
const AGENT: &str = include_str!("../../../../../deploy/base/agent/rbac.yaml");
const ADMIN: &str = include_str!("../../../../../deploy/base/admin/rbac.yaml");
const SLOTS: &str = include_str!("../../../../../deploy/base/slots/rbac.yaml");
const MACHINES: &str = include_str!("../../../../../deploy/base/machines/rbac.yaml");
const QUERIES: &str = include_str!("../../../../../deploy/base/queries/rbac.yaml");
const WEBHOOK_SELF_SIGNED: &str = include_str!("../../../../../certs/self-signed/webhook/certificates.yaml");
const MANAGER_SELF_SIGNED: &str = include_str!("../../../../../certs/self-signed/manager/certificates.yaml");

/// The role that the manager binds by itself, in each tenant's namespace.
pub(super) const TENANT_ROLE: &str = "outrigger-manager-tenant";

/// The roles and bindings that these parts need.
pub(super) fn shipped(parts: &[Part], names: &Names) -> anyhow::Result<Vec<Value>> {
    let mut all = Vec::new();
    for part in parts {
        for file in files(*part, names) {
            take(file, names, &mut all)?;
        }
    }
    Ok(all)
}

fn files(part: Part, names: &Names) -> Vec<&'static str> {
    let (always, optional) = match part {
        Part::Webhook => {
            (&[WEBHOOK, ADMIN, SLOTS][..], [(names.webhook_self_signed, WEBHOOK_SELF_SIGNED)].to_vec())
        }
        Part::Manager => (
            &[MANAGER, ADMIN][..],
            [
                (names.machines, MACHINES),
                (names.manager_self_signed, MANAGER_SELF_SIGNED),
                (names.queries, QUERIES),
            ]
            .to_vec(),
        ),
        Part::Agent => (&[AGENT][..], Vec::new()),
    };
    let chosen = optional.into_iter().filter_map(|(is_needed, file)| is_needed.then_some(file));
    always.iter().copied().chain(chosen).collect()
}

/// The roles and bindings of a file, with the installation's own names.
fn take(file: &str, names: &Names, all: &mut Vec<Value>) -> anyhow::Result<()> {
    for mut object in yaml::documents(file, OF_FILES).context("a shipped role can't be read")? {
        if !text(&object, "/apiVersion").starts_with("rbac.") {
            continue;
        }
        let admin = match (file, text(&object, "/metadata/name")) {
            (AGENT, _) => &names.tenant_rules,
            (ADMIN, "outrigger-manager-admin-rules" | "outrigger-webhook-admin-rules") => &names.rules,
            _ => &names.resources,
        };
        rename(&mut object, admin, names);
        let is_somewhere = object.pointer("/metadata/namespace").is_none_or(|name| name != "");
        if is_somewhere && !all.contains(&object) {
            all.push(object);
        }
    }
    Ok(())
}

/// Puts the installation's namespaces in the place of the shipped ones.
fn rename(value: &mut Value, admin: &str, names: &Names) {
    match value {
        Value::Object(map) => map.values_mut().for_each(|value| rename(value, admin, names)),
        Value::Array(list) => list.iter_mut().for_each(|value| rename(value, admin, names)),
        Value::String(text) => match text.as_str() {
            keys::SYSTEM_NAMESPACE => names.system.clone_into(text),
            keys::ADMIN_NAMESPACE => admin.clone_into(text),
            keys::CORE_NAMESPACE => names.core.clone_into(text),
            _ => {}
        },
        _ => {}
    }
}
