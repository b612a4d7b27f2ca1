//! What the last release has installed becomes what this version installs, by the commands of docs/upgrades.md: as a new
//! installation, with the same objects. The Deployments only seem to run here; `tests/rolling` upgrades what runs.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use outrigger_core::keys::CORE_NAMESPACE;
use outrigger_tests::control_plane::{Cluster, ControlPlane, tool};
use outrigger_tests::outrigger::SYSTEM;
use outrigger_tests::root;
use outrigger_tests::shipped::{kustomize, name, objects, of_kind, of_last_release, output};
use serde_json::{Value, json};

use crate::deploy::cluster::{block, node, shell};

/// What is upgraded: an overlay, the components that are added to it, and the parts that run. The first two have all parts between them.
///
/// The component `cert-manager` isn't: what its controllers write differs from one cluster to the next.
const KUSTOMIZED: [(&str, &[&str], &[&str]); 5] = [
    ("infrastructure", &["imperator", "liqo"], &["webhook", "manager"]),
    ("all-in-one", &[], &["webhook", "manager", "agent"]),
    ("infrastructure", &["self-signed"], &["webhook", "manager"]),
    ("tenant", &[], &["agent"]),
    ("webhook-only", &[], &["webhook"]),
];

/// Further values of the chart, the parts that run, and what the page adds to the command that upgrades them.
const CHARTS: [(&[&str], &[&str], &str); 2] = [
    (&["--set", "selfSigned.enabled=true"], &["webhook", "manager"], ""),
    (&["-f", "deploy/helm/values/tenant.yaml"], &["agent"], "--set 'agent.namespaces={*}'"),
];

/// What the page says to delete, where somebody has the manifests by kustomize.
const LEFT: &str = "kubectl delete --ignore-not-found";

fn nodes(plane: &ControlPlane) {
    let all = ["one", "two", "three"].map(|name| node(name, json!({}), json!([])));
    plane.infra.apply(&all).unwrap();
    plane.tenant.apply(&all).unwrap();
}

/// The objects of these names that a cluster has.
fn found(cluster: &Cluster, wanted: &[Value]) -> BTreeMap<String, Value> {
    let list = json!({"apiVersion": "v1", "kind": "List", "items": wanted});
    let text = cluster
        .kubectl_with(&["get", "--ignore-not-found", "-f", "-", "-o", "json"], &list.to_string())
        .unwrap();
    if text.trim().is_empty() {
        return BTreeMap::new();
    }
    let mut list: Value = serde_json::from_str(&text).unwrap();
    let items = if list["items"].is_array() { list["items"].take() } else { json!([list]) };
    items.as_array().unwrap().iter().map(|object| (name(object), object.clone())).collect()
}

fn uids(all: &BTreeMap<String, Value>) -> BTreeMap<&String, &Value> {
    all.iter().map(|(name, object)| (name, &object["metadata"]["uid"])).collect()
}

/// An object without what is of one cluster, or was written by its controllers.
fn bare(object: &Value) -> Value {
    let mut object = object.clone();
    let metadata = object["metadata"].as_object_mut().unwrap();
    for field in ["uid", "resourceVersion", "creationTimestamp", "managedFields", "generation"] {
        metadata.remove(field);
    }
    // The controller of Deployments counts the templates that there have been.
    if let Some(annotations) = metadata.get_mut("annotations").and_then(Value::as_object_mut) {
        annotations.remove("deployment.kubernetes.io/revision");
        if annotations.is_empty() {
            metadata.remove("annotations");
        }
    }
    object.as_object_mut().unwrap().remove("status");
    if object["kind"] == "Service" {
        for field in ["clusterIP", "clusterIPs"] {
            object["spec"].as_object_mut().unwrap().remove(field);
        }
    }
    object
}

/// One installation that is upgraded.
struct Upgrade<'a> {
    what: String,
    plane: &'a ControlPlane,
    /// What the last release and this version install.
    old: Vec<Value>,
    new: Vec<Value>,
}

impl Upgrade<'_> {
    /// The names of what this version no longer has.
    fn gone(&self) -> BTreeSet<String> {
        let new: BTreeSet<String> = self.new.iter().map(name).collect();
        self.old.iter().map(name).filter(|name| !new.contains(name)).collect()
    }

    /// Upgrades, by `upgrade`. Every object stays the one that it was, and is as in the other cluster, where `install` has
    /// installed this version on nothing.
    fn run(&self, install: impl FnOnce(&Cluster), upgrade: impl FnOnce(&Cluster)) {
        let (cluster, fresh) = (&self.plane.infra, &self.plane.tenant);
        let before = found(cluster, &self.old);
        assert_eq!(before.len(), self.old.len(), "{}", self.what);
        upgrade(cluster);
        install(fresh);
        let (after, expected) = (found(cluster, &self.new), found(fresh, &self.new));
        assert_eq!(expected.len(), self.new.len(), "{}", self.what);
        assert_eq!(after.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>(), "{}", self.what);
        let mut kept = uids(&after);
        kept.retain(|name, _| before.contains_key(*name));
        let mut had = uids(&before);
        had.retain(|name, _| after.contains_key(*name));
        assert!(!kept.is_empty());
        assert_eq!(kept, had, "{}: an object was created again", self.what);
        for (name, object) in &after {
            let difference = json_patch::diff(&bare(&expected[name]), &bare(object));
            assert!(difference.is_empty(), "{}: {name} isn't as if it were new: {difference}", self.what);
        }
        if of_kind(&self.new, "CustomResourceDefinition").next().is_some() {
            definitions(cluster, &self.what);
        }
    }

    /// Objects that this version no longer installs have been deleted.
    fn has_left_nothing(&self) {
        let gone: Vec<Value> =
            self.old.iter().filter(|object| self.gone().contains(&name(object))).cloned().collect();
        let left = found(&self.plane.infra, &gone);
        assert!(left.is_empty(), "{}: {:?} are left", self.what, left.keys().collect::<Vec<_>>());
    }
}

/// Objects are stored in versions that their definitions still have.
fn definitions(cluster: &Cluster, what: &str) {
    cluster.established().unwrap();
    let all = cluster.get(&["crd"]).unwrap();
    let all = all["items"].as_array().unwrap();
    assert!(!all.is_empty(), "{what}");
    for definition in all {
        let versions = definition["spec"]["versions"].as_array().unwrap();
        for stored in definition["status"]["storedVersions"].as_array().unwrap() {
            let served = versions.iter().any(|v| &v["name"] == stored && v["served"] == true);
            assert!(served, "{what}: {} is stored as {stored}", definition["metadata"]["name"]);
        }
    }
}

fn rolled_out(cluster: &Cluster, parts: &[&str]) {
    for part in parts {
        let deployment = format!("deployment/outrigger-{part}");
        cluster.kubectl(&["rollout", "status", "-n", SYSTEM, &deployment, "--timeout=120s"]).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn kustomize_upgrades_the_last_release_and_the_page_deletes_what_it_leaves() {
    by_kustomize(&KUSTOMIZED[..1]);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "long"]
async fn kustomize_upgrades_the_other_overlays_of_the_last_release() {
    by_kustomize(&KUSTOMIZED[1..]);
}

fn by_kustomize(installations: &[(&str, &[&str], &[&str])]) {
    let old = of_last_release().unwrap();
    for &(overlay, components, parts) in installations {
        let plane = ControlPlane::start().unwrap();
        nodes(&plane);
        if components.contains(&"imperator") {
            let namespace =
                json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": CORE_NAMESPACE}});
            plane.infra.apply(std::slice::from_ref(&namespace)).unwrap();
            plane.tenant.apply(&[namespace]).unwrap();
        }
        // A user's own overlay, of which the tree beside it is replaced by that of the next version.
        let mine = tempfile::tempdir_in(root().join("target")).unwrap();
        let mine = mine.path();
        let lists: String = components
            .iter()
            .map(|component| format!("  - ../outrigger/deploy/components/{component}\n"))
            .collect();
        let text = format!("resources: [../outrigger/deploy/overlays/{overlay}]\ncomponents:\n{lists}");
        std::fs::create_dir(mine.join("mine")).unwrap();
        std::fs::write(mine.join("mine/kustomization.yaml"), text).unwrap();
        let rendered = |tree: &Path| {
            let link = mine.join("outrigger");
            let _ = std::fs::remove_file(&link);
            std::os::unix::fs::symlink(tree, link).unwrap();
            objects(&plane.infra.kubectl(&["kustomize", mine.join("mine").to_str().unwrap()]).unwrap())
                .unwrap()
        };
        let upgrade = Upgrade {
            what: format!("{overlay} {components:?}"),
            plane: &plane,
            old: rendered(old.path()),
            new: rendered(&root()),
        };
        let apply = |cluster: &Cluster| {
            let page = block("upgrades.md", "kubectl apply --server-side -k .\nkubectl -n");
            shell(&mine.join("mine"), &cluster.kubeconfig, &page);
            rolled_out(cluster, parts);
        };
        assert_ne!(upgrade.old, upgrade.new, "{}", upgrade.what);
        rendered(old.path());
        apply(&plane.infra);
        rendered(&root());
        upgrade.run(apply, apply);
        // A neighbour's component leaves out what has the neighbour's name, and nothing else.
        let new: BTreeSet<String> = upgrade.new.iter().map(name).collect();
        let shipped = kustomize(&crate::deploy::overlay(overlay)).unwrap();
        let mut shipped = shipped.iter().map(name);
        let lacks =
            shipped.find(|name| !new.contains(name) && !components.iter().any(|one| name.contains(one)));
        assert_eq!(lacks, None, "{}", upgrade.what);
        let mut page = block("upgrades.md", LEFT);
        if overlay == "all-in-one" {
            page += &block("upgrades.md", "kubectl delete clusterrolebinding");
        }
        shell(mine, &plane.infra.kubeconfig, &page);
        upgrade.has_left_nothing();
        // It deletes nothing else.
        assert_eq!(found(&plane.infra, &upgrade.new).len(), upgrade.new.len());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn helm_upgrades_the_last_release_and_leaves_nothing() {
    by_helm(&CHARTS[..1]);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "long"]
async fn helm_upgrades_the_other_values_of_the_last_release() {
    by_helm(&CHARTS[1..]);
}

fn by_helm(charts: &[(&[&str], &[&str], &str)]) {
    let old = of_last_release().unwrap();
    for &(values, parts, more) in charts {
        let plane = ControlPlane::start().unwrap();
        nodes(&plane);
        let helm = |cluster: &Cluster, tree: &Path, args: &[&str]| {
            let mut command = Command::new(tool("helm").unwrap());
            command.args(args).args(["-n", SYSTEM]).current_dir(tree);
            command.env("KUBECONFIG", &cluster.kubeconfig).env("HOME", &plane.dir);
            output(command).unwrap()
        };
        let installed = |cluster: &Cluster, tree: &Path| {
            let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SYSTEM,
                "labels": {"pod-security.kubernetes.io/enforce": "restricted"}}});
            cluster.apply(&[namespace]).unwrap();
            helm(cluster, tree, &[&["install", "outrigger", "deploy/helm/outrigger"], values].concat());
            rolled_out(cluster, parts);
        };
        let rendered = |tree: &Path| {
            let args = [&["template", "outrigger", "deploy/helm/outrigger"], values].concat();
            objects(&helm(&plane.infra, tree, &args)).unwrap()
        };
        let upgrade = Upgrade {
            what: format!("{values:?}"),
            plane: &plane,
            old: rendered(old.path()),
            new: rendered(&root()),
        };
        assert!(of_kind(&upgrade.old, "Deployment").count() == parts.len());
        installed(&plane.infra, old.path());
        // As the page says it. Values are kept, and new ones have their defaults.
        let text = std::fs::read_to_string(root().join("docs/upgrades.md")).unwrap();
        assert!(text.contains(more), "the page doesn't say {more}");
        let command = format!("{} {more}", block("upgrades.md", "helm upgrade outrigger")).replace('\'', "");
        let args: Vec<&str> = command.split_whitespace().skip(1).collect();
        upgrade.run(
            |fresh| installed(fresh, &root()),
            |cluster| {
                helm(cluster, &root(), &args);
                rolled_out(cluster, parts);
            },
        );
        upgrade.has_left_nothing();
    }
}
