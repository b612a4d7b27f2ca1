use std::time::Duration;

use outrigger_runtime::ready::Readiness;
use serde_json::json;

use outrigger_proto::companion::HostStatus;

use super::super::plan::Op;
use super::*;
use crate::nodes::HostListener;

/// A board and the objects of its API server.
struct Stage {
    devices: Devices,
    slices: BTreeMap<String, ResourceSlice>,
    /// By namespace and name.
    templates: BTreeMap<(String, String), ResourceClaimTemplate>,
    written: u64,
    /// What every write answers.
    outcome: WriteOutcome,
}

fn host(name: &str, ready: bool) -> HostStatus {
    let reason = if ready { "" } else { "DPUNotReady" };
    HostStatus { node_name: name.into(), dpu_ready: ready, reason: reason.into(), ..HostStatus::default() }
}

fn place(template: &ResourceClaimTemplate) -> (String, String) {
    (template.metadata.namespace.clone().unwrap(), template.metadata.name.clone().unwrap())
}

fn ours(namespace: &str) -> (String, String) {
    (namespace.to_owned(), keys::COMPANIONS_CLAIM.to_owned())
}

fn gone<K>(namespace: &str, name: &str) -> Change<K> {
    Change::Gone { namespace: namespace.into(), name: name.into(), uid: "u".into() }
}

impl Stage {
    /// Everything is listed, and nothing is there.
    fn new() -> Self {
        Self::with(&Readiness::default())
    }

    /// The same with these warnings.
    fn with(readiness: &Readiness) -> Self {
        let [foreign, taken] = ["foreign", "taken"].map(|name| readiness.warning(name));
        let devices = Devices::new(Clock::system(), foreign, taken, Arc::default());
        devices.scope(Some(Scope::All));
        devices.listed();
        devices.classed(Class::Exists("c".into()));
        let (slices, templates) = (BTreeMap::new(), BTreeMap::new());
        Self { devices, slices, templates, written: 0, outcome: WriteOutcome::Ok }
    }

    /// Opens a stream on which these hosts are received, and nothing else.
    fn receive(&self, hosts: &[(&str, bool)]) {
        self.devices.opened();
        for (name, ready) in hosts {
            HostListener::received(&self.devices, &host(name, *ready));
        }
        HostListener::complete(&self.devices);
    }

    fn node(&self, name: &str, pods: Option<&str>) {
        let status = pods.map_or(json!({}), |pods| json!({"allocatable": {"pods": pods}}));
        let node = json!({"metadata": {"name": name, "uid": name}, "status": status});
        HostListener::node(&self.devices, &Change::Applied(serde_json::from_value(node).unwrap()));
    }

    fn namespace(&self, name: &str, deleted: bool) {
        let deleted = deleted.then_some("2026-01-01T00:00:00Z");
        let namespace = json!({"metadata": {"name": name, "deletionTimestamp": deleted}});
        self.devices.namespace(Change::Applied(serde_json::from_value(namespace).unwrap()));
    }

    fn store(&mut self, mut slice: ResourceSlice) {
        self.written += 1;
        slice.metadata.uid.get_or_insert_with(|| "u".to_owned());
        slice.metadata.resource_version = Some(self.written.to_string());
        self.slices.insert(slice.metadata.name.clone().unwrap(), slice.clone());
        self.devices.slice(Change::Applied(slice));
    }

    /// Performs the writes that are due, and returns what was written.
    fn writes(&mut self) -> Vec<Key> {
        let mut all = Vec::new();
        while let Ok((key, write)) = self.devices.take() {
            let mut deleted = Vec::new();
            if self.outcome == WriteOutcome::Ok {
                match write {
                    Write::Slices(ops) => {
                        for op in ops {
                            match op {
                                Op::Create(slice) | Op::Update { slice, .. } => self.store(*slice),
                                Op::Delete { name, uid } => deleted.push((name, uid)),
                            }
                        }
                    }
                    Write::Orphans(orphans) => deleted.extend(orphans),
                    Write::CreateTemplate(template) => {
                        self.templates.insert(place(&template), (*template).clone());
                        self.devices.template(Change::Applied(*template));
                    }
                    Write::DeleteTemplate(hold, uid) => deleted.push((hold.template().to_owned(), uid)),
                }
            }
            let (names, uids): (Vec<_>, Vec<_>) = deleted.into_iter().unzip();
            uids.iter().for_each(|uid: &String| self.devices.deleted(&key, uid));
            self.devices.done(&key, self.outcome, 0.0);
            for name in names {
                match &key {
                    Key::Node(_) => {
                        self.slices.remove(&name);
                        self.devices.slice(gone("", &name));
                    }
                    Key::Namespace(namespace) => {
                        self.templates.remove(&(namespace.clone(), name.clone()));
                        self.devices.template(gone(namespace, &name));
                    }
                }
            }
            all.push(key);
        }
        all
    }

    async fn later(&mut self, seconds: u64) -> Vec<Key> {
        tokio::time::advance(Duration::from_secs(seconds)).await;
        self.writes()
    }

    /// The number of devices of each Node.
    fn published(&self) -> Vec<(String, usize)> {
        let of = |slice: &ResourceSlice| slice.spec.devices.as_ref().map_or(0, Vec::len);
        let mut all = BTreeMap::<String, usize>::new();
        for slice in self.slices.values() {
            *all.entry(slice.spec.pool.name.clone()).or_default() += of(slice);
        }
        all.into_iter().collect()
    }
}

fn nodes(all: &[(&str, usize)]) -> Vec<(String, usize)> {
    all.iter().map(|(name, devices)| ((*name).to_owned(), *devices)).collect()
}

#[tokio::test(start_paused = true)]
async fn hosts_whose_dpus_take_companions_have_devices() {
    let mut stage = Stage::new();
    for name in ["a", "b", "other"] {
        stage.node(name, Some("110"));
    }
    stage.node("young", None);
    assert_eq!(stage.writes(), [], "nothing was received");
    stage.receive(&[("a", true), ("b", false), ("young", true), ("absent", true)]);
    assert_eq!(stage.writes(), [Key::Node("a".into())]);
    assert_eq!(stage.published(), nodes(&[("a", 110)]));
    assert_eq!(stage.later(60).await, [], "nothing more is written");
    stage.node("young", Some("250"));
    stage.writes();
    assert_eq!(stage.published(), nodes(&[("a", 110), ("young", 250)]));
    HostListener::received(&stage.devices, &host("a", false));
    stage.writes();
    assert_eq!(stage.published(), nodes(&[("young", 250)]), "Pods are placed elsewhere");
    HostListener::received(&stage.devices, &host("a", true));
    stage.writes();
    assert_eq!(stage.published(), nodes(&[("a", 110), ("young", 250)]));
}

#[tokio::test(start_paused = true)]
async fn the_last_truth_stays_while_nothing_is_reported() {
    let mut stage = Stage::new();
    stage.node("a", Some("10"));
    stage.receive(&[("a", true)]);
    stage.writes();
    HostListener::down(&stage.devices);
    stage.node("a", Some("20"));
    assert_eq!(stage.later(600).await, []);
    assert_eq!(stage.published(), nodes(&[("a", 10)]));
    // Another stream that says nothing of it: after a while that means that it is no host.
    stage.receive(&[]);
    assert_eq!(stage.writes(), []);
    assert_eq!(stage.later(11).await, [Key::Node("a".into())]);
    assert_eq!(stage.published(), []);
}

#[tokio::test(start_paused = true)]
async fn slices_of_a_node_that_the_watch_lacks_are_deleted_after_asking() {
    let mut stage = Stage::new();
    stage.node("a", Some("10"));
    stage.receive(&[("a", true)]);
    stage.writes();
    HostListener::node(&stage.devices, &gone("", "a"));
    let (key, write) = stage.devices.take().unwrap();
    assert_eq!(write, Write::Orphans(vec![("a-companions-0".into(), "u".into())]));
    // The API server has it.
    stage.devices.done(&key, WriteOutcome::Failed, 0.0);
    assert_eq!(stage.writes(), []);
    assert_eq!(stage.later(61).await, [Key::Node("a".into())], "it is asked again");
    assert_eq!(stage.published(), []);
    assert!(stage.devices.state.lock().pools.is_empty(), "nothing is remembered");
}

#[tokio::test(start_paused = true)]
async fn each_namespace_whose_pods_are_sent_has_a_template() {
    let mut stage = Stage::new();
    for name in ["shop", "kube-system"] {
        stage.namespace(name, false);
    }
    stage.namespace("ends", true);
    assert_eq!(stage.writes(), [Key::Namespace("shop".into())]);
    assert_eq!(stage.later(60).await, []);
    stage.devices.scope(Some(Scope::new(["other"]).unwrap()));
    assert_eq!(stage.later(60).await, [], "Pods may claim it");
    stage.namespace("other", false);
    assert_eq!(stage.writes(), [Key::Namespace("other".into())]);
    // Somebody deletes one, and one is of another version.
    stage.templates.remove(&ours("other"));
    stage.devices.template(gone("other", keys::COMPANIONS_CLAIM));
    assert_eq!(stage.writes(), [Key::Namespace("other".into())]);
    let mut older = stage.templates[&ours("other")].clone();
    older.spec.spec.devices = None;
    stage.devices.template(Change::Applied(older.clone()));
    assert_eq!(stage.writes().len(), 2, "it is deleted and created");
    assert!(stage.templates[&ours("other")].spec.spec.devices.is_some());
    older.metadata.labels = None;
    stage.devices.template(Change::Applied(older));
    assert_eq!(stage.later(60).await, [], "it is somebody else's");
}

#[tokio::test(start_paused = true)]
async fn what_has_the_name_of_something_that_was_deleted_is_not_taken_for_it() {
    let stage = Stage::new();
    let outdated = |uid: &str| {
        let mut outdated = template("shop", Hold::Start);
        outdated.spec.spec.devices = None;
        outdated.metadata.uid = Some(uid.to_owned());
        stage.devices.template(Change::Applied(outdated));
    };
    stage.namespace("shop", false);
    outdated("first");
    let deletes = |uid: &str| Write::DeleteTemplate(Hold::Start, uid.to_owned());
    let (key, write) = stage.devices.take().unwrap();
    assert_eq!(write, deletes("first"));
    // The watch shows the next one before the writer has the answer.
    outdated("second");
    stage.devices.deleted(&key, "first");
    stage.devices.done(&key, WriteOutcome::Ok, 0.0);
    let (_, write) = stage.devices.take().unwrap();
    assert_eq!(write, deletes("second"));
}

#[tokio::test(start_paused = true)]
async fn what_is_created_has_an_owner_although_the_class_is_deleted_after_the_decision() {
    let stage = Stage::new();
    stage.node("a", Some("300"));
    stage.receive(&[("a", true)]);
    stage.namespace("shop", false);
    let writes = [stage.devices.take().unwrap().1, stage.devices.take().unwrap().1];
    stage.devices.classed(Class::Missing);
    let mut created = Vec::new();
    for write in writes {
        match write {
            Write::Slices(ops) => created.extend(ops.into_iter().map(|op| match op {
                Op::Create(slice) => slice.metadata,
                op => panic!("{op:?}"),
            })),
            Write::CreateTemplate(template) => created.push(template.metadata),
            write => panic!("{write:?}"),
        }
    }
    assert_eq!(created.len(), 4, "three slices and a template");
    for object in created {
        let owners = object.owner_references.unwrap_or_default();
        let owners: Vec<_> = owners.iter().map(|owner| (&*owner.name, &*owner.uid)).collect();
        assert_eq!(owners, [(keys::COMPANIONS_DRIVER, "c")], "{:?}", object.name);
    }
}

#[tokio::test(start_paused = true)]
async fn a_dpu_that_flaps_costs_six_changes_a_minute_and_ends_right() {
    let mut stage = Stage::new();
    stage.node("a", Some("10"));
    stage.receive(&[("a", true)]);
    let mut count = 0;
    for n in 0..600 {
        HostListener::received(&stage.devices, &host("a", n % 2 == 1));
        count += stage.later(1).await.len();
    }
    assert!((60..=70).contains(&count), "{count}");
    HostListener::received(&stage.devices, &host("a", true));
    stage.later(20).await;
    assert_eq!(stage.published(), nodes(&[("a", 10)]));
}

#[tokio::test(start_paused = true)]
async fn what_is_not_published_is_reported() {
    let mut stage = Stage::new();
    stage.devices.binding(true);
    stage.devices.claims(true);
    let publishing = stage.devices.publishing();
    let is = |expected| assert_eq!(*publishing.borrow(), expected);
    is(Publishing::Working);
    stage.devices.supported(false);
    is(Publishing::Unsupported);
    stage.devices.classed(Class::Missing);
    is(Publishing::Unsupported);
    stage.node("a", Some("10"));
    stage.receive(&[("a", true)]);
    assert_eq!(stage.writes(), []);
    stage.devices.supported(true);
    is(Publishing::NoClass);
    assert_eq!(stage.writes(), [], "what is published has to have an owner");
    stage.devices.classed(Class::Forbidden);
    is(Publishing::Forbidden);
    assert_eq!(stage.writes(), []);
    stage.devices.classed(Class::Exists("c".into()));
    is(Publishing::Working);
    stage.outcome = WriteOutcome::Forbidden;
    assert_eq!(stage.writes().len(), 1);
    is(Publishing::Forbidden);
    assert_eq!(stage.later(50).await, [], "an administrator has to act first");
    stage.outcome = WriteOutcome::Ok;
    assert_eq!(stage.later(11).await.len(), 1);
    is(Publishing::Working);
    stage.devices.unread();
    is(Publishing::Forbidden);
    stage.devices.listed();
    is(Publishing::Working);
}

#[tokio::test(start_paused = true)]
async fn a_failed_write_is_tried_again_and_a_node_that_goes_meanwhile_is_forgotten() {
    let mut stage = Stage::new();
    stage.node("a", Some("10"));
    stage.receive(&[("a", true)]);
    stage.outcome = WriteOutcome::Failed;
    assert_eq!(stage.writes().len(), 1);
    assert_eq!(stage.later(1).await.len(), 1);
    HostListener::node(&stage.devices, &gone("", "a"));
    assert_eq!(stage.later(60).await, []);
    HostListener::node(&stage.devices, &gone("", "never seen"));
    assert!(stage.devices.state.lock().pools.is_empty());
}

#[tokio::test(start_paused = true)]
async fn slices_of_others_are_reported_as_long_as_they_keep_a_node_from_having_devices() {
    let readiness = Readiness::default();
    let mut stage = Stage::with(&readiness);
    for name in ["a", "b"] {
        stage.node(name, Some("10"));
    }
    stage.receive(&[("a", true), ("b", true)]);
    stage.outcome = WriteOutcome::Failed;
    assert_eq!(stage.writes().len(), 2);
    for name in ["b", "a"] {
        stage.devices.taken(name, &format!("{name}-companions-0"), "former");
    }
    let said = || readiness.warnings().into_iter().map(|(_, text)| text).collect::<String>();
    let text = said();
    assert!(text.starts_with(
        "Node a and others can't have devices: the ResourceSlice a-companions-0 is of the tenant former "
    ));
    assert!(text.ends_with(": kubectl delete resourceslices -l outrigger.dev/tenant=former"), "{text}");
    // One is to have none, and the slices of the other are deleted.
    HostListener::received(&stage.devices, &host("a", false));
    stage.writes();
    assert!(said().starts_with("Node b can't have devices: "), "{}", said());
    stage.outcome = WriteOutcome::Ok;
    stage.later(60).await;
    assert_eq!((said(), stage.published()), (String::new(), nodes(&[("b", 10)])));
}

#[tokio::test(start_paused = true)]
async fn what_is_forbidden_and_no_longer_needed_is_not_reported() {
    let mut stage = Stage::new();
    stage.devices.binding(true);
    stage.devices.claims(true);
    let publishing = stage.devices.publishing();
    stage.namespace("shop", false);
    stage.outcome = WriteOutcome::Forbidden;
    assert_eq!(stage.writes().len(), 1);
    assert_eq!(*publishing.borrow(), Publishing::Forbidden);
    stage.devices.namespace(gone("", "shop"));
    assert_eq!(stage.later(61).await, []);
    assert_eq!(*publishing.borrow(), Publishing::Working);
}

#[tokio::test(start_paused = true)]
async fn devices_have_binding_conditions_where_the_cluster_has_them_and_claims_can_be_read() {
    let mut stage = Stage::new();
    let (publishing, settled) = (stage.devices.publishing(), stage.devices.settled());
    let is = |expected, known| assert_eq!((*publishing.borrow(), *settled.borrow()), (expected, known));
    stage.node("a", Some("10"));
    stage.namespace("shop", false);
    stage.receive(&[("a", true)]);
    assert_eq!(stage.writes().len(), 2);
    is(Publishing::NoBinding, false);
    stage.devices.binding(true);
    stage.devices.claims(false);
    is(Publishing::BindingForbidden, true);
    assert_eq!(stage.later(60).await, [], "nobody would set the conditions");
    stage.devices.claims(true);
    is(Publishing::Working, true);
    assert_eq!(stage.later(60).await.len(), 2);
    assert_eq!(stage.published(), nodes(&[("a", 20)]));
    assert_eq!(stage.templates.len(), 2);
    assert_eq!(stage.later(60).await, [], "nothing more is written");
    // The cluster has lost the feature: devices are withdrawn, and Pods may still claim by the template.
    stage.devices.binding(false);
    is(Publishing::NoBinding, true);
    assert_eq!(stage.later(60).await, [Key::Node("a".into())]);
    assert_eq!((stage.published(), stage.templates.len()), (nodes(&[("a", 10)]), 2));
}
