//! What must hold when Tenants are deleted and created again.

use std::collections::BTreeSet;
use std::time::Duration;

use outrigger_core::keys;
use serde_json::Value;

use super::Judge;
use super::wanted::has_no_origin;
use crate::model::Commit;
use crate::world::{ADOPTED, MOVING, TENANTS, World, namespace_of, text};

/// Kinds in which nothing may be left of a Tenant that no longer exists.
const KINDS: [&str; 11] = [
    "tenants",
    "namespaces",
    "nodes",
    "pods",
    "secrets",
    "workloadrules",
    "adminworkloadrules",
    "resourceclaims",
    "resourceclaimtemplates",
    "resourcequotas",
    "rolebindings",
];

/// After so long a manager that has seen another one's claim has ended what it was doing for the tenant.
const HOLDS: Duration = Duration::from_secs(10);

/// Whether a Tenant's status shows a stream that is open and has synced. A sync that a former holder has shown passes where its clock is
/// ahead.
fn is_synced(stream: &Value) -> bool {
    stream["connected"] == true
        && !text(stream, "/holder").is_empty()
        && stream["refused"].is_null()
        && text(stream, "/lastSync") >= text(stream, "/since")
}

impl Judge {
    /// A Tenant is written. One that is deleted or created has its companions deleted or created; those of others have to stay.
    pub(super) fn tenant_written(&self, commit: &Commit) {
        let Some((id, _)) = TENANTS.into_iter().find(|(id, _)| *id == commit.name) else { return };
        let states = [&commit.old, &commit.new].map(Option::as_ref);
        let life = |tenant: &Value| {
            let metadata = &tenant["metadata"];
            (metadata["uid"].clone(), metadata["deletionTimestamp"].is_null())
        };
        let [old, new] = states.map(|tenant| tenant.map(|tenant| life(tenant)));
        let [before, after] = states.map(|tenant| {
            tenant.map(|tenant| [tenant["spec"]["hosts"].clone(), tenant["spec"]["hostNames"].clone()])
        });
        if let Some([_, names]) = &after {
            self.named(id, names);
        }
        let mut found = self.found.lock();
        let uids = states.into_iter().flatten().map(|tenant| text(tenant, "/metadata/uid").to_owned());
        found.tenant_uids.extend(uids);
        if old != new {
            found.reborn.insert(id);
        }
        let holder = |tenant: &Value| text(tenant, "/status/stream/holder").to_owned();
        if states.map(|tenant| tenant.map(|tenant| holder(tenant))).windows(2).any(|pair| pair[0] != pair[1])
        {
            found.claimed.insert(id, commit.time);
            let connected =
                commit.new.as_ref().is_some_and(|tenant| tenant["status"]["stream"]["connected"] == true);
            if connected && commit.client.starts_with("manager") {
                found.holders.insert(id, (commit.client.clone(), commit.revision));
            } else {
                found.holders.remove(id);
            }
        }
        // Another tenant's companions may be on the host that moves.
        let moves = |spec: &Option<[Value; 2]>| {
            spec.as_ref().is_some_and(|[hosts, _]| hosts.to_string().contains(MOVING))
        };
        found.moved |= match (&before, &after) {
            (Some(before), Some(after)) => before != after,
            _ => moves(&before) || moves(&after),
        };
    }

    /// A manager creates a companion of a tenant. None does that while it knows that another one serves the tenant.
    pub(super) fn beside_the_holder(&self, world: &World, commit: &Commit, id: &'static str) {
        let holder = {
            let found = self.found.lock();
            found.holders.get(id).filter(|_| !found.restored && !found.reborn.contains(id)).cloned()
        };
        let Some((holder, revision)) = holder.filter(|(holder, _)| *holder != commit.client) else { return };
        let connected = world
            .infra
            .get("tenants", None, id)
            .is_some_and(|tenant| tenant["status"]["stream"]["connected"] == true);
        let shown = world.infra.shown(&commit.client, "tenants", revision);
        let knows = shown.is_some_and(|shown| shown + HOLDS <= commit.sent);
        if knows && connected && commit.client.starts_with("manager") {
            let client = &commit.client;
            self.violation(world, format!("{client} creates a companion of {id}, which {holder} serves"));
        }
    }

    /// How the system differs from what the Tenants say.
    pub(super) fn tenants_missing(&self, world: &World) -> Vec<String> {
        let mut missing = Vec::new();
        let nodes = world.infra.list("nodes");
        for (id, _) in TENANTS {
            let adopted = world.adopts && id == ADOPTED;
            let namespace = world.infra.get("namespaces", None, &namespace_of(id));
            let tenant = world.infra.get("tenants", None, id);
            match &tenant {
                Some(tenant) if !tenant["metadata"]["deletionTimestamp"].is_null() => {
                    missing.push(format!("Tenant {id} is still being deleted"));
                }
                Some(tenant) => {
                    // An adopted one has no owner.
                    let uid = if adopted { "" } else { text(tenant, "/metadata/uid") };
                    let owner =
                        namespace.as_ref().map(|found| text(found, "/metadata/ownerReferences/0/uid"));
                    if owner != Some(uid) {
                        missing
                            .push(format!("the namespace of Tenant {id} is of {owner:?}, and not of {uid}"));
                    }
                    let dpus = nodes
                        .iter()
                        .filter(|node| node["metadata"]["labels"][keys::NODE_TENANT] == id)
                        .count();
                    if tenant["status"]["dpus"] != dpus {
                        missing.push(format!(
                            "Tenant {id} has {dpus} DPUs, and shows {}",
                            tenant["status"]["dpus"]
                        ));
                    }
                    let stream = &tenant["status"]["stream"];
                    // The leader writes that of a manager that was killed, if its entry had been written since a restore.
                    let wrong = if world.has_agent(id) {
                        !is_synced(stream)
                    } else {
                        stream["connected"] == true && has_entry(world, text(stream, "/holder"))
                    };
                    if wrong {
                        missing.push(format!("Tenant {id} doesn't show its agent's stream: {stream}"));
                    }
                }
                None if namespace.is_some() && !adopted => {
                    missing.push(format!("Tenant {id} is gone, and its namespace isn't"));
                }
                None => {
                    let rules = world.infra.list("workloadrules").into_iter();
                    let left = rules.filter(|rule| {
                        let is_admins = world.scope.foreign && has_no_origin(rule);
                        text(rule, "/metadata/namespace") == namespace_of(id) && !is_admins
                    });
                    missing.extend(left.map(|rule| {
                        format!("Tenant {id} is gone, and its rule {} isn't", text(&rule, "/metadata/name"))
                    }));
                }
            }
            for node in &nodes {
                let labelled = node["metadata"]["labels"][keys::NODE_TENANT] == id;
                let taints = node["spec"]["taints"].as_array();
                let tainted = taints.into_iter().flatten().any(|taint| taint["value"] == id);
                if tenant.is_none() && (labelled || tainted) {
                    let name = text(node, "/metadata/name");
                    missing.push(format!("Tenant {id} is gone, and Node {name} is marked for it"));
                }
            }
            for rule in world.infra.list("adminworkloadrules") {
                if tenant.is_none() && !rule["status"]["tenants"][id].is_null() {
                    let name = text(&rule, "/metadata/name");
                    missing
                        .push(format!("Tenant {id} is gone, and the status of platform rule {name} has it"));
                }
            }
        }
        if missing.is_empty() {
            missing.extend(self.left_of_tenants(world));
        }
        missing
    }

    /// Objects that name the uid of a Tenant that doesn't exist, but for the claim under which a companion was made.
    fn left_of_tenants(&self, world: &World) -> Vec<String> {
        let mut gone = self.found.lock().tenant_uids.clone();
        for tenant in world.infra.list("tenants") {
            gone.remove(text(&tenant, "/metadata/uid"));
        }
        if gone.is_empty() {
            return Vec::new();
        }
        let mut left = Vec::new();
        for kind in KINDS {
            for object in world.infra.list(kind) {
                if let Some(uid) = named(&object, &gone) {
                    let name = text(&object, "/metadata/name");
                    left.push(format!("{kind} {name} names the uid {uid} of a Tenant that is gone"));
                }
            }
        }
        left
    }
}

/// One of these uids that an object has. The claim under which a companion was made stays: a manager that didn't know the new Tenant
/// yet may have made it.
fn named<'a>(value: &Value, uids: &'a BTreeSet<String>) -> Option<&'a String> {
    match value {
        Value::String(text) => uids.iter().find(|uid| text.contains(uid.as_str())),
        Value::Array(items) => items.iter().find_map(|item| named(item, uids)),
        Value::Object(fields) => fields
            .iter()
            .filter(|(key, _)| *key != keys::STREAM_CLAIM)
            .find_map(|(_, value)| named(value, uids)),
        _ => None,
    }
}

/// Whether the Lease that all managers share has an entry of this one: a missing one says nothing to the leader.
fn has_entry(world: &World, holder: &str) -> bool {
    let lease = world.infra.get("leases", Some(keys::SYSTEM_NAMESPACE), keys::MANAGER_REPLICAS);
    let entries = lease.as_ref().and_then(|lease| lease["metadata"]["annotations"].as_object());
    entries.into_iter().flatten().any(|(key, _)| key.ends_with(holder))
}

/// Whether a tenant may have companions: its Tenant exists and isn't being deleted.
pub(super) fn lives(world: &World, id: &str) -> bool {
    let tenant = world.infra.get("tenants", None, id);
    tenant.is_some_and(|tenant| tenant["metadata"]["deletionTimestamp"].is_null())
}
