//! Nodes of a tenant's cluster that are in no host of the tenant: no DPU serves the workloads there.

use kube::api::ListParams;
use outrigger_api::Tenant;
use outrigger_core::host::HostLabels;
use outrigger_core::json::{list, text};
use outrigger_core::keys;
use outrigger_core::node::Node;
use outrigger_core::tenant::Tenant as Domain;
use serde_json::Value;

use super::parts::{Installation, Part};
use crate::check::findings::{Finding, NODE_WITHOUT_HOST, Subject};
use crate::cluster::{Answer, Cluster, Kind, each};

const NODE: Kind = Kind("v1", "Node");
const TENANT: Kind = Kind("outrigger.dev/v1alpha1", "Tenant");

/// Label of Nodes that workloads avoid: they need no DPU.
const CONTROL_PLANE: &str = "node-role.kubernetes.io/control-plane";

/// Most Nodes that are listed. The others are counted.
const MOST: usize = 50;

/// A Node of a tenant's cluster.
#[derive(Debug)]
struct Seen {
    node: Node,
    /// The agent has written the state of the host's DPU at it.
    is_marked: bool,
}

/// Compares the Nodes of a tenant's cluster with its Tenant. Both may be in one cluster.
pub(super) async fn between(infrastructure: &Installation, tenant: &Installation) -> Vec<Finding> {
    let Some(id) = tenant.argument(Part::Agent, "tenant-id") else { return Vec::new() };
    let object = match infrastructure.cluster.get(TENANT, "", &id).await {
        Answer::There(object) => object,
        Answer::Absent => {
            let why = format!(
                "Tenant {id}, which the agent is for, doesn't exist, so Nodes weren't compared with its hosts"
            );
            infrastructure.cluster.note(why);
            return Vec::new();
        }
        Answer::Unread => return Vec::new(),
    };
    let domain = serde_json::from_value::<Tenant>(object).ok().and_then(|tenant| tenant.compile().ok());
    // An invalid Tenant says so itself.
    let Some(domain) = domain else { return Vec::new() };
    let mut parts = [Part::Webhook, Part::Manager].into_iter();
    let configured = parts.find_map(|part| infrastructure.argument(part, "host-label"));
    let labels: HostLabels = configured.and_then(|labels| labels.parse().ok()).unwrap_or_default();
    // In one cluster the label is that of DPUs.
    let one_cluster = std::ptr::eq(infrastructure, tenant);
    let mut seen = nodes(&tenant.cluster).await;
    seen.retain(|seen| !one_cluster || labels.read(&seen.node.labels).is_none());
    let findings = seen.iter().filter_map(|seen| stranger(&seen.node, &domain, &labels)).collect();
    bounded(&tenant.cluster, findings)
}

/// The same by what the agent has written at Nodes, where the tenant wants that.
pub(super) async fn alone(tenant: &Installation) -> Vec<Finding> {
    bounded(&tenant.cluster, unmarked(&nodes(&tenant.cluster).await))
}

async fn nodes(cluster: &Cluster) -> Vec<Seen> {
    let (api, mut all) = (cluster.api(NODE, ""), Vec::new());
    let read = each(&api, ListParams::default(), |node| {
        all.push(Seen::of(&node));
        true
    });
    if let Err(why) = read.await {
        let why = why.brief();
        cluster
            .note(format!("nodes can't be listed, so they weren't compared with the tenant's hosts: {why}"));
        return Vec::new();
    }
    all
}

impl Seen {
    fn of(node: &Value) -> Self {
        let mut conditions = list(node, "/status/conditions").iter();
        let is_marked = conditions.any(|condition| text(condition, "/type") == keys::DPU_READY);
        Self { node: Node::of(node), is_marked }
    }
}

/// What is wrong with a Node of a tenant's cluster: neither its name nor its labels name a host of the tenant, or both name different ones.
fn stranger(node: &Node, tenant: &Domain, host_labels: &HostLabels) -> Option<Finding> {
    let id = &tenant.policy.tenant;
    let host = tenant.host_names.host(&node.name).filter(|host| tenant.hosts.contains(*host));
    let (path, message) = match (host, host_labels.read(&node.labels)) {
        (Some(host), Some((key, named))) if named != host => {
            let message = format!("is {named:?}, and Tenant {id} has this Node in host {host:?}");
            (format!("metadata.labels[{key}]"), message)
        }
        (Some(_), _) => return None,
        (None, Some((key, named))) => {
            let message = if tenant.hosts.contains(named) {
                format!(
                    "is {named:?}, a host of Tenant {id}, whose spec.hostNames has no entry for this Node"
                )
            } else {
                format!("is {named:?}, which Tenant {id} doesn't have in spec.hosts")
            };
            (format!("metadata.labels[{key}]"), message)
        }
        (None, None) if node.labels.contains_key(CONTROL_PLANE) => return None,
        (None, None) => {
            let message = format!("is {:?}, which is the Node of no host of Tenant {id}", node.name);
            ("metadata.name".to_owned(), message)
        }
    };
    Some(Finding::new(&NODE_WITHOUT_HOST, &Subject::cluster("Node", &node.name), path, message))
}

/// Nodes at which the agent says nothing, where it says something at others: it does so at each host of the tenant.
fn unmarked(seen: &[Seen]) -> Vec<Finding> {
    if !seen.iter().any(|seen| seen.is_marked) {
        return Vec::new();
    }
    let is_stranger = |seen: &&Seen| !seen.is_marked && !seen.node.labels.contains_key(CONTROL_PLANE);
    let message =
        format!("lack {}, which the agent writes at each Node that is a host of the tenant", keys::DPU_READY);
    seen.iter()
        .filter(is_stranger)
        .map(|seen| {
            let subject = Subject::cluster("Node", &seen.node.name);
            Finding::new(&NODE_WITHOUT_HOST, &subject, "status.conditions", &message)
        })
        .collect()
}

fn bounded(cluster: &Cluster, mut findings: Vec<Finding>) -> Vec<Finding> {
    if findings.len() > MOST {
        cluster.note(format!("{} more Nodes are in no host of the tenant", findings.len() - MOST));
        findings.truncate(MOST);
    }
    findings
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn node(name: &str, labels: Value) -> Value {
        json!({"metadata": {"name": name, "labels": labels}})
    }

    #[test]
    fn a_node_has_to_fit_a_host_by_its_name_or_by_an_entry() {
        let tenant = json!({"apiVersion": "outrigger.dev/v1alpha1", "kind": "Tenant", "metadata": {"name": "blue"},
            "spec": {"hosts": ["a", "b", "c"], "hostNames": [{"node": "worker", "host": "b"}]}});
        let tenant = serde_json::from_value::<Tenant>(tenant).unwrap().compile().unwrap();
        let found = |name: &str, labels: Value| {
            let node = Node::of(&node(name, labels));
            let finding = stranger(&node, &tenant, &HostLabels::default());
            finding.map_or_else(String::new, |finding| format!("{} {}", finding.path, finding.message))
        };
        let named = |host: &str| json!({keys::DPU_NODE_NAME: host});
        let label = format!("metadata.labels[{}]", keys::DPU_NODE_NAME);
        for (name, labels, expected) in [
            ("a", json!({}), String::new()),
            ("a", named("a"), String::new()),
            ("worker", named("b"), String::new()),
            ("master", json!({CONTROL_PLANE: ""}), String::new()),
            (
                "x",
                json!({}),
                "metadata.name is \"x\", which is the Node of no host of Tenant blue".to_owned(),
            ),
            // Host b is another Node.
            (
                "b",
                json!({}),
                "metadata.name is \"b\", which is the Node of no host of Tenant blue".to_owned(),
            ),
            ("a", named("c"), format!("{label} is \"c\", and Tenant blue has this Node in host \"a\"")),
            (
                "x",
                named("c"),
                format!(
                    "{label} is \"c\", a host of Tenant blue, whose spec.hostNames has no entry for this Node"
                ),
            ),
            ("x", named("y"), format!("{label} is \"y\", which Tenant blue doesn't have in spec.hosts")),
            (
                "x",
                json!({keys::DPU_HOST: "y"}),
                format!(
                    "metadata.labels[{}] is \"y\", which Tenant blue doesn't have in spec.hosts",
                    keys::DPU_HOST
                ),
            ),
        ] {
            assert_eq!(found(name, labels.clone()), expected, "{name} {labels}");
        }
    }

    #[test]
    fn the_agent_marks_each_host_or_none() {
        let marked = |name: &str| {
            let mut node = node(name, json!({}));
            node["status"] = json!({"conditions": [{"type": "Ready"}, {"type": keys::DPU_READY}]});
            Seen::of(&node)
        };
        let plain = |name: &str, labels: Value| Seen::of(&node(name, labels));
        let names = |seen: &[Seen]| -> Vec<String> {
            unmarked(seen).into_iter().map(|finding| finding.subject.name).collect()
        };
        assert_eq!(names(&[plain("a", json!({})), plain("b", json!({}))]), [""; 0]);
        let control_plane = plain("c", json!({CONTROL_PLANE: ""}));
        assert_eq!(names(&[marked("a"), plain("b", json!({})), control_plane]), ["b"]);
    }
}
