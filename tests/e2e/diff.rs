//! `outrigger diff` says what happens: random changes of rules, the prediction, and the real control plane.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};

use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, DeleteParams, ListParams};
use kube::{Resource, ResourceExt};
use outrigger_api::AdminWorkloadRule;
use outrigger_api::conditions::Status;
use outrigger_core::keys;
use outrigger_tests::outrigger::Outrigger;
use outrigger_tests::tenant::{Tenant, admin_rule, annotation, is_ready, node_of, rule, rule_for};
use outrigger_tests::{InWords, eventually, holds};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};

/// Where admin rules and their companions are.
const UNIVERSE: &str = "universe";

/// A kind of rules. A rule of each may have the same name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Own,
    Admin,
}

impl Kind {
    fn as_str(self) -> &'static str {
        match self {
            Self::Own => "WorkloadRule",
            Self::Admin => "AdminWorkloadRule",
        }
    }
}

/// A rule's kind and name.
type RuleId = (Kind, String);

/// A companion: its uid, its injected facts, and its Node.
type Seen = (String, BTreeMap<String, String>, String);

/// Changes of companions by name: CHANGE and the annotations that change.
type Changes = BTreeMap<String, (String, BTreeSet<String>)>;

struct Stage {
    t: Tenant,
    random: StdRng,
    /// The specs of the rules that there are.
    rules: BTreeMap<RuleId, Value>,
    /// How often each change was predicted for companions of each kind of rules.
    counts: BTreeMap<(String, String), usize>,
}

/// What is done to one rule.
struct Operation {
    id: RuleId,
    /// `None`: it is deleted.
    spec: Option<Value>,
    valid: bool,
}

/// The prediction for these rules, and the exit code.
fn diff(t: &Tenant, rules: &[Value], more: &[&str]) -> (Option<i32>, Value) {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let (infra, tenant) = (&t.outrigger.plane.infra, &t.outrigger.plane.tenant);
    let file = t.outrigger.plane.dir.join(format!("diff-{}.json", COUNT.fetch_add(1, Ordering::Relaxed)));
    std::fs::write(&file, json!({"apiVersion": "v1", "kind": "List", "items": rules}).to_string()).unwrap();
    let flags = [
        format!("--filename={}", file.display()),
        format!("--kubeconfig={}", infra.kubeconfig.display()),
        format!("--tenant-kubeconfig={}", tenant.kubeconfig.display()),
    ];
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    t.outrigger.report(&[&["diff", "--tenant", &t.id, "-n", &t.source], more, &flags].concat()).unwrap()
}

impl Stage {
    fn operation(&mut self) -> Operation {
        let kind = if self.random.random_bool(0.5) { Kind::Admin } else { Kind::Own };
        let id = (kind, format!("r{}", self.random.random_range(0..3)));
        let apps = ["web", "db", "nothing"];
        let app = *apps.choose(&mut self.random).unwrap();
        let Some(mut spec) = self.rules.get(&id).cloned() else {
            return Operation { id, spec: Some(rule_for("app", app)), valid: true };
        };
        let number = self.random.random_range(0..3);
        let mut valid = true;
        match self.random.random_range(0..12) {
            0..3 => spec["workloadTerms"] = rule_for("app", app)["workloadTerms"].take(),
            3 | 4 => spec["template"]["spec"]["containers"][0]["image"] = json!(format!("image-{number}")),
            5 => spec["dpuSelectionPolicy"] = json!(if number > 0 { "Any" } else { "SameNode" }),
            6 | 7 => {
                let facts = [".metadata.resourceNamespace", ".state.extra.labels.app", ".state.nodeName"];
                let mut all = vec![
                    json!({"workloadKey": ".metadata.resourceName", "asAnnotation": {"name": "workload-name"}}),
                ];
                for (i, fact) in facts.iter().enumerate().take(number) {
                    all.push(json!({"workloadKey": fact, "asAnnotation": {"name": format!("fact-{i}")}}));
                }
                spec["workloadInfoInject"] = json!(all);
            }
            8 => {
                let kind = if number > 0 { "OnDelete" } else { "RollingUpdate" };
                spec["updateStrategy"] = json!({"type": kind});
            }
            9 => return Operation { id, spec: None, valid },
            10 => {
                // No rule may tolerate every taint.
                spec["template"]["spec"]["tolerations"] = json!([{"operator": "Exists"}]);
                valid = false;
            }
            _ if kind == Kind::Admin => spec["tenantSelector"] = self.selector(number),
            _ => {}
        }
        Operation { id, spec: Some(spec), valid }
    }

    /// Selects the tenant by its name, or by what every tenant has, or another one.
    fn selector(&self, number: usize) -> Value {
        match number {
            0 => json!({"matchLabels": {keys::TENANT: self.t.id}}),
            1 => json!({"matchExpressions": [{"key": keys::TENANT, "operator": "Exists"}]}),
            _ => json!({"matchLabels": {keys::TENANT: "another"}}),
        }
    }

    fn object(&self, (kind, name): &RuleId, spec: &Value) -> Value {
        match kind {
            Kind::Own => rule(&self.t.namespace, name, spec.clone()),
            Kind::Admin => admin_rule(UNIVERSE, name, spec.clone()),
        }
    }

    fn admin_rules(&self) -> Api<AdminWorkloadRule> {
        Api::namespaced(self.t.infra.clone(), UNIVERSE)
    }

    /// The Pods of both kinds of rules.
    async fn pods(&self) -> Result<Vec<Pod>, String> {
        let params = ListParams::default().labels(keys::RULE);
        let admin: Api<Pod> = Api::namespaced(self.t.infra.clone(), UNIVERSE);
        let mut all = self.t.pods().list(&params).await.in_words()?.items;
        all.extend(admin.list(&params).await.in_words()?.items);
        Ok(all)
    }

    /// The prediction, and the exit code.
    fn predicted(&self, operation: &Operation) -> (Option<i32>, Value) {
        let mut rules = self.rules.clone();
        match &operation.spec {
            Some(spec) => rules.insert(operation.id.clone(), spec.clone()),
            None => rules.remove(&operation.id),
        };
        let rules: Vec<Value> = rules.iter().map(|(id, spec)| self.object(id, spec)).collect();
        diff(&self.t, &rules, &["--prune=WorkloadRule,AdminWorkloadRule"])
    }

    async fn seen(&self) -> Result<BTreeMap<String, Seen>, String> {
        let mut all = self.pods().await?;
        all.retain(|pod| pod.metadata.deletion_timestamp.is_none());
        let of = |pod: &Pod| {
            let names: Vec<String> = annotation(pod, keys::INJECTED)
                .and_then(|names| serde_json::from_str(names).ok())
                .unwrap_or_default();
            let facts = names.into_iter().map(|name| {
                let value = annotation(pod, &name).unwrap_or_default().to_owned();
                (name, value)
            });
            (pod.name_any(), (pod.uid().unwrap_or_default(), facts.collect(), node_of(pod).to_owned()))
        };
        Ok(all.iter().map(of).collect())
    }

    /// Waits until the manager has nothing left to do for the rules.
    async fn settle(&self) {
        eventually("all rules are served", || async {
            let own = self.t.rules().list(&Default::default()).await.in_words()?.items;
            let admin = self.admin_rules().list(&Default::default()).await.in_words()?.items;
            let mut served: BTreeMap<RuleId, Counts> = BTreeMap::new();
            for rule in &own {
                let s = rule.status.clone().unwrap_or_default();
                let counts = [s.matched, s.created, s.ready, s.updated];
                served.insert((Kind::Own, rule.name_any()), Counts::of(rule, s.observed_generation, counts));
            }
            for rule in &admin {
                let s = rule.status.clone().unwrap_or_default();
                let counts = [s.matched, s.created, s.ready, s.updated];
                served
                    .insert((Kind::Admin, rule.name_any()), Counts::of(rule, s.observed_generation, counts));
            }
            holds(served.keys().eq(self.rules.keys()), format!("{:?}", served.keys()))?;
            let mut expected = 0;
            for (id, Counts { is_observed, counts: [matched, created, ready, updated] }) in served {
                let on_delete = self.rules[&id].pointer("/updateStrategy/type") == Some(&json!("OnDelete"));
                let is_done = is_observed
                    && created == matched
                    && ready == created
                    && (on_delete || updated == created);
                holds(is_done, format!("{id:?}: {matched} {created} {ready} {updated}, {is_observed}"))?;
                expected += usize::try_from(created).unwrap();
            }
            let pods = self.pods().await?;
            let up = pods.iter().filter(|pod| is_ready(pod)).count();
            holds(pods.len() == expected && up == expected, format!("{up} of {expected} of {}", pods.len()))
        })
        .await;
    }

    /// The first changes are of every kind, the others are random.
    fn next(&mut self, number: usize) -> Operation {
        let id = |kind| (kind, "r0".to_owned());
        let changed = |kind: Kind, pointer: &str, value: Value| {
            let mut spec = self.rules[&id(kind)].clone();
            let (parent, field) = pointer.rsplit_once('/').unwrap();
            spec.pointer_mut(parent).unwrap()[field] = value;
            (kind, spec)
        };
        let all = json!([{"asAnnotation": {"name": "all"}}]);
        let image = "/template/spec/containers/0/image";
        let (kind, spec) = match number {
            0 => (Kind::Own, rule_for("app", "web")),
            1 => changed(Kind::Own, "/updateStrategy", json!({"type": "OnDelete"})),
            2 => changed(Kind::Own, image, json!("another")),
            3 => changed(Kind::Own, "/updateStrategy", json!({"type": "RollingUpdate"})),
            4 => changed(Kind::Own, "/workloadInfoInject", all),
            5 => (Kind::Admin, rule_for("app", "db")),
            6 => changed(Kind::Admin, image, json!("another")),
            7 => changed(Kind::Admin, "/workloadInfoInject", all),
            8 => changed(Kind::Admin, "/tenantSelector", self.selector(2)),
            9 => changed(Kind::Admin, "/tenantSelector", self.selector(1)),
            _ => return self.operation(),
        };
        Operation { id: id(kind), spec: Some(spec), valid: true }
    }

    /// Applies a rule, or deletes it.
    async fn write(&self, id: &RuleId, spec: Option<Value>) -> Result<(), String> {
        let (kind, name) = id;
        match (kind, spec) {
            (Kind::Own, Some(spec)) => self.t.try_rule(name, spec).await.map(drop),
            (Kind::Own, None) => {
                self.t.rules().delete(name, &DeleteParams::default()).await.map(drop).in_words()
            }
            (Kind::Admin, Some(spec)) => {
                self.t.outrigger.plane.infra.apply(&[self.object(id, &spec)]).map(drop).in_words()
            }
            (Kind::Admin, None) => {
                self.admin_rules().delete(name, &DeleteParams::default()).await.map(drop).in_words()
            }
        }
    }

    async fn step(&mut self, number: usize) {
        let operation = self.next(number);
        let before = self.seen().await.unwrap();
        let (code, report) = self.predicted(&operation);
        let (kind, name) = &operation.id;
        let label = format!("change {number}: {kind:?} {name} {:?}: {report}", operation.spec);
        let predicted = changes_of(&report);
        for entry in report["companions"].as_array().unwrap() {
            let of = |key: &str| entry[key].as_str().unwrap().to_owned();
            *self.counts.entry((of("ruleKind"), of("change"))).or_default() += 1;
        }
        let is_it = |rule: &&Value| rule["name"] == *name && rule["kind"] == kind.as_str();
        let verdict = report["rules"].as_array().unwrap().iter().find(is_it);
        let verdict = verdict.unwrap_or_else(|| panic!("{label}"));
        if !operation.valid {
            assert_eq!((code, &predicted), (Some(3), &Changes::new()), "{label}");
            let path = verdict["errors"][0]["path"].as_str().unwrap();
            let refusal = self.write(&operation.id, operation.spec).await.unwrap_err();
            assert!(refusal.contains(path), "{refusal}: {label}");
            return;
        }
        let is_unchanged = verdict["change"] == "Unchanged";
        assert_eq!(code, Some(i32::from(!is_unchanged)), "{label}");
        self.write(&operation.id, operation.spec.clone()).await.unwrap();
        match operation.spec {
            Some(spec) => self.rules.insert(operation.id, spec),
            None => self.rules.remove(&operation.id),
        };
        eventually(&label, || async {
            let happened = happened(&before, &self.seen().await?);
            holds(happened == actual(&predicted), format!("{happened:?}"))
        })
        .await;
        self.settle().await;
        let now = self.seen().await.unwrap();
        assert_eq!(happened(&before, &now), actual(&predicted), "later too: {label}");
        for entry in report["companions"].as_array().unwrap() {
            if entry["change"] == "Created" || entry["change"] == "Replaced" {
                let node = &now[entry["companion"].as_str().unwrap()].2;
                assert!(entry["nodes"].as_array().unwrap().contains(&json!(node)), "on {node}: {label}");
            }
        }
    }
}

/// What a rule's status says.
struct Counts {
    /// It is about the rule's present generation.
    is_observed: bool,
    /// Companions that match, are created, are ready, and have the present template.
    counts: [i64; 4],
}

impl Counts {
    fn of(rule: &impl Resource, observed: Option<i64>, counts: [Option<i64>; 4]) -> Self {
        Self {
            is_observed: observed == rule.meta().generation,
            counts: counts.map(Option::unwrap_or_default),
        }
    }
}

fn changes_of(report: &Value) -> Changes {
    let texts = |value: &Value| -> BTreeSet<String> {
        value.as_array().into_iter().flatten().map(|text| text.as_str().unwrap().to_owned()).collect()
    };
    let all = report["companions"].as_array().unwrap().iter();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    all.map(|entry| (text(&entry["companion"]), (text(&entry["change"]), texts(&entry["annotations"]))))
        .collect()
}

/// The changes that can be seen: a companion that keeps an earlier template stays as it is.
fn actual(predicted: &Changes) -> Changes {
    predicted
        .iter()
        .filter(|(_, (change, _))| change != "Outdated")
        .map(|(a, b)| (a.clone(), b.clone()))
        .collect()
}

fn happened(before: &BTreeMap<String, Seen>, now: &BTreeMap<String, Seen>) -> Changes {
    let mut all = Changes::new();
    for name in before.keys().chain(now.keys()) {
        let change = match (before.get(name), now.get(name)) {
            (Some(_), None) => ("Deleted", BTreeSet::new()),
            (None, Some(_)) => ("Created", BTreeSet::new()),
            (Some(a), Some(b)) if a.0 != b.0 => ("Replaced", BTreeSet::new()),
            (Some(a), Some(b)) if a.1 != b.1 => {
                let keys = a.1.keys().chain(b.1.keys());
                ("Annotated", keys.filter(|key| a.1.get(*key) != b.1.get(*key)).cloned().collect())
            }
            _ => continue,
        };
        all.insert(name.clone(), (change.0.to_owned(), change.1));
    }
    all
}

async fn changes(id: &str, seed: u64, count: usize) {
    // All admin rules of the cluster are compared, so no other test may have some there.
    let outrigger = Outrigger::start().await.unwrap().of_one_test();
    let t = Tenant::new(*outrigger, id, &[("a", 1), ("b", 2)]).await;
    for (name, host, app) in [
        ("web-1", "a", "web"),
        ("web-2", "b", "web"),
        ("web-3", "b", "web"),
        ("db-1", "a", "db"),
        ("db-2", "b", "db"),
    ] {
        t.start(name, host, json!({"app": app})).await;
    }
    eventually("all workloads are ready", || async {
        let pods = t.work().list(&Default::default()).await.in_words()?.items;
        holds(pods.iter().filter(|pod| is_ready(pod)).count() == 5, format!("{}", pods.len()))
    })
    .await;
    let random = StdRng::seed_from_u64(seed);
    let mut stage = Stage { t, random, rules: BTreeMap::new(), counts: BTreeMap::new() };
    for number in 0..count {
        stage.step(number).await;
    }
    println!("{count} changes, predicted: {:?}", stage.counts);
    for (kind, changes) in [
        (Kind::Own, &["Created", "Replaced", "Outdated", "Annotated", "Deleted"][..]),
        (Kind::Admin, &["Created", "Replaced", "Annotated", "Deleted"]),
    ] {
        for change in changes {
            let is_there = stage.counts.contains_key(&(kind.as_str().to_owned(), (*change).to_owned()));
            assert!(is_there, "no {change} of {kind:?} in {count} changes: {:?}", stage.counts);
        }
    }
}

#[tokio::test]
async fn changes_of_rules_happen_as_predicted() {
    changes("diff", 3, 16).await;
}

#[tokio::test]
#[ignore = "long"]
async fn three_hundred_changes_of_rules_happen_as_predicted() {
    changes("diff-long", 4, 300).await;
}

/// How many companions have a change, and the reasons.
fn predicted_as<'a>(report: &'a Value, change: &str) -> (usize, BTreeSet<&'a str>) {
    let all =
        report["companions"].as_array().unwrap().iter().filter(|companion| companion["change"] == change);
    let reasons = all.clone().filter_map(|companion| companion["reason"].as_str());
    (all.count(), reasons.collect())
}

#[tokio::test]
async fn companions_that_a_quota_refuses_are_named_in_the_words_of_the_api_server() {
    let t = Tenant::new(Outrigger::shared().await, "dquota", &[("a", 1)]).await;
    t.webs("w", 0..3).await;
    let infra = &t.outrigger.plane.infra;
    for (name, hard, created) in
        [("few", json!({"pods": "2"}), 2), ("limited", json!({"limits.cpu": "1"}), 0)]
    {
        let quota = json!({"apiVersion": "v1", "kind": "ResourceQuota",
            "metadata": {"name": name, "namespace": t.namespace}, "spec": {"hard": hard}});
        infra.apply(&[quota]).unwrap();
        eventually("the quota is counted", || async {
            let quota = infra.get(&["quota", name, "-n", &t.namespace]).in_words()?;
            holds(quota["status"]["used"].is_object(), quota.to_string())
        })
        .await;
        let (code, report) = diff(&t, &[rule(&t.namespace, "r", rule_for("app", "web"))], &[]);
        let (refused, reasons) = predicted_as(&report, "Refused");
        assert_eq!((code, refused), (Some(3), 3 - created), "{report}");
        assert_eq!(predicted_as(&report, "Created").0, created, "{report}");
        assert_eq!(reasons.len(), 1, "{reasons:?}");

        t.rule("r", rule_for("app", "web")).await;
        let reason = reasons.first().unwrap();
        t.condition_says("r", "Ready", Status::False, "Refused", &[reason]).await;
        assert_eq!(t.ready(created).await.len(), created);
        t.rules().delete("r", &DeleteParams::default()).await.unwrap();
        t.ready(0).await;
        infra.kubectl(&["delete", "quota", name, "-n", &t.namespace]).unwrap();
    }
}
