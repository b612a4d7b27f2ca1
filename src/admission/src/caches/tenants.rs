//! Tenants, and who has what only one of them may have.

use std::collections::BTreeSet;
use std::sync::Arc;

use outrigger_api::Change;
use outrigger_core::ids::TenantId;
use outrigger_core::map::{HashMap, remove_from};
use outrigger_core::steps::step;
use outrigger_core::tenant::Tenant;
use parking_lot::RwLock;

use super::Caches;
use super::specs::Specs;

/// What one tenant has, and no other one may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Exclusive {
    /// A namespace of the infrastructure cluster.
    Namespace,
    /// A name in client certificates.
    Identity,
    /// A host.
    Host,
}

#[derive(Debug, Default)]
pub(super) struct Tenants {
    /// `None` for one that is not valid.
    specs: Specs<TenantId, Option<Arc<Tenant>>>,
    /// Who has what, so that a Tenant is compared with those that have the same and not with all.
    holders: RwLock<HashMap<(Exclusive, String), BTreeSet<TenantId>>>,
}

impl Tenants {
    pub(super) fn len(&self) -> usize {
        self.specs.len()
    }

    fn hold(&self, id: &TenantId, before: Option<&Tenant>, now: Option<&Tenant>) {
        let mut holders = self.holders.write();
        for key in before.into_iter().flat_map(exclusive) {
            remove_from(&mut holders, &key, |held| held.remove(id));
        }
        for key in now.into_iter().flat_map(exclusive) {
            holders.entry(key).or_default().insert(id.clone());
        }
    }
}

/// What a tenant has for itself.
fn exclusive(tenant: &Tenant) -> impl Iterator<Item = (Exclusive, String)> + '_ {
    let identities =
        tenant.identities.iter().map(|identity| (Exclusive::Identity, identity.as_str().to_owned()));
    let hosts = tenant.hosts.iter().map(|host| (Exclusive::Host, host.clone()));
    std::iter::once((Exclusive::Namespace, tenant.namespace.clone())).chain(identities).chain(hosts)
}

impl Caches {
    /// A tenant; without its spec where that is not valid.
    pub fn tenant(&self, id: &TenantId) -> Option<Option<Arc<Tenant>>> {
        self.tenants.specs.get(id).map(|cached| cached.spec)
    }

    /// Other tenants that have this already, in the order of their ids. Those that are not valid have nothing.
    pub fn other_holders(&self, what: Exclusive, value: &str, id: &str) -> Vec<TenantId> {
        let holders = self.tenants.holders.read();
        let held = holders.get(&(what, value.to_owned())).into_iter().flatten();
        held.inspect(|_| step()).filter(|other| other.as_str() != id).cloned().collect()
    }

    /// Takes in a tenant.
    pub fn apply_tenant(&self, change: Change<outrigger_api::Tenant>) {
        let (_, name, tenant) = change.into_parts();
        let Ok(id) = TenantId::new(&name) else { return };
        let mut now = None;
        let (changed, before) = self.tenants.specs.apply(id.clone(), tenant, |tenant| {
            now = tenant.compile().ok().map(Arc::new);
            now.clone()
        });
        if changed {
            self.tenants.hold(&id, before.flatten().as_deref(), now.as_deref());
            self.changed();
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::tests::applied;

    fn apply(caches: &Caches, name: &str, generation: i64, spec: &Value) {
        let object = json!({"apiVersion": "outrigger.dev/v1alpha1", "kind": "Tenant",
            "metadata": {"name": name, "generation": generation}, "spec": spec});
        caches.apply_tenant(applied(object));
    }

    #[test]
    fn what_a_tenant_has_is_its_own_until_it_gives_it_up() {
        let caches = Caches::default();
        let holders = |what, value: &str| {
            let all = caches.other_holders(what, value, "me");
            all.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        apply(&caches, "b", 1, &json!({"hosts": ["h"], "identities": ["i.example"], "namespace": "n"}));
        apply(&caches, "a", 1, &json!({"hosts": ["h"]}));
        apply(&caches, "me", 1, &json!({"hosts": ["h"]}));
        assert_eq!(holders(Exclusive::Host, "h"), ["a", "b"]);
        assert_eq!(holders(Exclusive::Identity, "i.example"), ["b"]);
        assert_eq!(holders(Exclusive::Namespace, "n"), ["b"]);
        assert_eq!(holders(Exclusive::Namespace, "tenant-a"), ["a"]);
        assert_eq!(holders(Exclusive::Identity, "h"), [""; 0], "a host is no identity");
        apply(&caches, "b", 2, &json!({"hosts": ["other"]}));
        assert_eq!(
            (holders(Exclusive::Host, "h"), holders(Exclusive::Namespace, "n")),
            (vec!["a".into()], vec![])
        );
        // One that is not valid has nothing.
        apply(&caches, "a", 2, &json!({"hosts": ["NO"]}));
        assert_eq!(holders(Exclusive::Host, "h"), [""; 0]);
        for name in ["a", "b", "me"] {
            caches.apply_tenant(Change::Gone {
                namespace: String::new(),
                name: name.into(),
                uid: String::new(),
            });
        }
        assert!(caches.tenants.holders.read().is_empty(), "nothing is kept of those that are gone");
    }
}
