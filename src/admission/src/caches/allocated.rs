//! Nodes of the devices that are allocated to ResourceClaims, and hosts of Nodes.

use outrigger_core::map::{HashMap, remove_from};
use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::resource::v1::ResourceClaim;
use kube::ResourceExt;
use kube::core::PartialObjectMeta;
use outrigger_api::pod_claims;
use outrigger_core::host::HostLabels;
use outrigger_core::keys;
use parking_lot::RwLock;
use serde_json::{Value, json};

use super::{Caches, put};

/// Maximum size of a cached node selector, in bytes of JSON. The scheduler's own names one Node or one label for each device, and a
/// claim has at most 32 devices. For a larger selector there are no warnings.
const MAX_BYTES: usize = 16 * 1024;

/// Claim -> terms of its allocation's node selector.
type OfNamespace = BTreeMap<String, Arc<[Value]>>;

#[derive(Debug)]
pub(super) struct Allocated {
    /// By namespace. Claims that Kubernetes creates for one Pod are left out: they are the majority, and no other Pod can name them.
    terms: RwLock<HashMap<String, OfNamespace>>,
    /// Node -> the values of the labels that name its host, in their order.
    hosts: RwLock<HashMap<String, Vec<Option<String>>>>,
    host_labels: HostLabels,
}

impl Default for Allocated {
    /// Without any, where the default labels name the host of a DPU.
    fn default() -> Self {
        Self::new(&HostLabels::default())
    }
}

impl Allocated {
    pub(super) fn new(host_labels: &HostLabels) -> Self {
        Self { terms: RwLock::default(), hosts: RwLock::default(), host_labels: host_labels.clone() }
    }

    /// Takes in a Node, which has been deleted where there is none: its host.
    pub(super) fn node(&self, name: &str, node: Option<&PartialObjectMeta<Node>>) {
        let labels = |node: &PartialObjectMeta<Node>| -> Vec<Option<String>> {
            self.host_labels.keys().map(|key| node.labels().get(key).cloned()).collect()
        };
        let host = node.map(labels).filter(|labels| labels.iter().any(Option::is_some));
        if self.hosts.read().get(name) != host.as_ref() {
            put(&self.hosts, name.to_owned(), host);
        }
    }

    /// Takes in a claim, which has been deleted where there is none: the Nodes of its devices.
    pub(super) fn claim(&self, namespace: &str, name: &str, claim: Option<&ResourceClaim>) {
        let mut all = self.terms.write();
        if let Some(terms) = claim.and_then(terms) {
            all.entry(namespace.to_owned()).or_default().insert(name.to_owned(), terms.into());
        } else {
            remove_from(&mut all, namespace, |own| own.remove(name));
        }
    }
}

/// The terms of the node selector of a claim's allocation, if they are to be cached.
fn terms(claim: &ResourceClaim) -> Option<Vec<Value>> {
    if pod_claims::owner(claim).is_some() {
        return None;
    }
    let selector = claim.status.as_ref()?.allocation.as_ref()?.node_selector.as_ref()?;
    let terms: Vec<Value> =
        selector.node_selector_terms.iter().filter_map(|term| serde_json::to_value(term).ok()).collect();
    let size: usize = terms.iter().map(|term| term.to_string().len()).sum();
    (size <= MAX_BYTES && !terms.is_empty()).then_some(terms)
}

impl Caches {
    /// The Nodes of a claim's devices, as terms of a node selector; `None` for a claim without devices, or with devices that every
    /// Node can use.
    ///
    /// The selector names a Node, but placement selects by labels, so the labels of the named Nodes are added.
    pub fn allocated(&self, namespace: &str, claim: &str) -> Option<Vec<Value>> {
        let terms = self.allocated.terms.read().get(namespace)?.get(claim)?.clone();
        Some(terms.iter().map(|term| self.with_labels(term)).collect())
    }

    fn with_labels(&self, term: &Value) -> Value {
        let mut term = term.clone();
        let Some(nodes) = named(&term) else { return term };
        let owner = |node: &String| self.node_owner(node).flatten();
        let owners = nodes.iter().map(owner).collect::<Option<Vec<_>>>();
        // Where one Node is unknown, no value can be excluded.
        let owners =
            owners.map(|owners| json!({"key": keys::NODE_TENANT, "operator": "In", "values": owners}));
        let known = self.allocated.hosts.read();
        let of_nodes: Option<Vec<_>> = nodes.iter().map(|node| known.get(node)).collect();
        let by_host = |(i, key): (usize, &str)| {
            let value = |labels: &&Vec<Option<String>>| labels.get(i).cloned().flatten();
            let values: Vec<Option<String>> = of_nodes.as_ref()?.iter().map(value).collect();
            if values.iter().all(Option::is_none) {
                return Some(json!({"key": key, "operator": "DoesNotExist"}));
            }
            let values: Vec<String> = values.into_iter().collect::<Option<_>>()?;
            Some(json!({"key": key, "operator": "In", "values": values}))
        };
        let hosts = self.allocated.host_labels.keys().enumerate().filter_map(by_host);
        for expression in owners.into_iter().chain(hosts) {
            match term.get_mut("matchExpressions") {
                Some(Value::Array(all)) => all.push(expression),
                _ => term["matchExpressions"] = json!([expression]),
            }
        }
        term
    }
}

/// The names of the Nodes in a term, if it has some.
fn named(term: &Value) -> Option<Vec<String>> {
    let field = term.get("matchFields")?.as_array()?.iter().find(|field| {
        let is = |key: &str, text: &str| field.get(key).and_then(Value::as_str) == Some(text);
        is("key", "metadata.name") && is("operator", "In")
    })?;
    let names = field.get("values")?.as_array()?;
    Some(names.iter().filter_map(|name| name.as_str().map(str::to_owned)).collect())
}

#[cfg(test)]
mod tests {
    use outrigger_api::Change;

    use super::*;
    use crate::tests::applied;
    use outrigger_core::selector::clash::opposition;
    use outrigger_core::selector::{node_named, requirement};

    fn claim(name: &str, terms: &Value, owner: Option<&str>) -> Change<ResourceClaim> {
        let owner = owner.map(
            |kind| json!([{"apiVersion": "v1", "kind": kind, "name": "x", "uid": "u", "controller": true}]),
        );
        let object = json!({"metadata": {"name": name, "namespace": "n", "ownerReferences": owner},
            "spec": {}, "status": {"allocation": {"nodeSelector": {"nodeSelectorTerms": terms}}}});
        applied(object)
    }

    fn on(node: &str) -> Value {
        json!([node_named(node)])
    }

    fn node(caches: &Caches, name: &str, host: &str) {
        let labels = json!({keys::NODE_TENANT: "blue", keys::DPU_HOST: host});
        let node = json!({"metadata": {"name": name, "labels": labels}});
        caches.node(applied(node));
    }

    #[test]
    fn what_is_kept_and_what_it_means_for_placement() {
        let caches = Caches::default();
        caches.claim(claim("c", &on("dpu-b"), None));
        assert_eq!(
            caches.allocated("n", "c").unwrap(),
            on("dpu-b").as_array().unwrap().clone(),
            "no such Node known"
        );
        node(&caches, "dpu-b", "b");
        let terms = caches.allocated("n", "c").unwrap();
        let on_host = |host: &str| {
            let mut pod = json!({"spec": {}});
            outrigger_core::selector::require(&mut pod, keys::DPU_HOST, host).unwrap();
            opposition(&pod, &terms)
        };
        assert_eq!(on_host("b"), None);
        let (own, theirs) = on_host("a").unwrap();
        assert_eq!(
            (own, theirs),
            (format!("{} In [a]", keys::DPU_HOST), format!("{} In [b]", keys::DPU_HOST))
        );
        // Claims of one Pod, of devices on any Node, and of very many Nodes.
        caches.claim(claim("c", &on("dpu-b"), Some("Pod")));
        assert_eq!(caches.allocated("n", "c"), None);
        caches.claim(claim("c", &on("dpu-b"), Some("WorkloadRule")));
        assert!(caches.allocated("n", "c").is_some());
        caches.claim(claim("c", &json!([]), None));
        assert_eq!(caches.allocated("n", "c"), None);
        caches.claim(claim("c", &on(&"x".repeat(MAX_BYTES)), None));
        assert_eq!(caches.allocated("n", "c"), None);
        assert!(caches.allocated.terms.read().is_empty(), "nothing is left");
    }

    #[test]
    fn a_claim_with_as_many_devices_as_it_can_have_is_kept() {
        let caches = Caches::default();
        let name = |i: usize| format!("{i:x<253}");
        let terms: Vec<Value> = (0..32).map(|i| on(&name(i))[0].take()).collect();
        caches.claim(claim("c", &json!(terms), None));
        assert_eq!(caches.allocated("n", "c"), Some(terms));
    }

    #[test]
    fn what_is_known_of_a_node_is_added_to_what_its_term_says() {
        let caches = Caches::default();
        node(&caches, "dpu-b", "b");
        let own = requirement("zone", "z");
        let mut terms = on("dpu-b");
        terms[0]["matchExpressions"] = json!([own]);
        caches.claim(claim("c", &terms, None));
        let lacks = |key: &str| json!({"key": key, "operator": "DoesNotExist"});
        terms[0]["matchExpressions"] = json!([
            own,
            requirement(keys::NODE_TENANT, "blue"),
            lacks(keys::DPU_NODE_NAME),
            requirement(keys::DPU_HOST, "b")
        ]);
        assert_eq!(caches.allocated("n", "c"), terms.as_array().cloned());
        // Nothing is known of the Nodes of a term that names none, or those that the devices are not on.
        for (key, operator) in [("metadata.name", "NotIn"), ("metadata.namespace", "In")] {
            let field = json!({"key": key, "operator": operator, "values": ["dpu-b"]});
            let terms = json!([{"matchFields": [field]}]);
            caches.claim(claim("c", &terms, None));
            assert_eq!(caches.allocated("n", "c"), terms.as_array().cloned(), "{key} {operator}");
        }
    }
}
