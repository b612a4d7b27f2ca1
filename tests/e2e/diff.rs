//! `outrigger diff` says what happens: random changes of rules, the prediction, and the real control plane.

use std::collections::{BTreeMap, BTreeSet};

use kube::ResourceExt;
use kube::api::DeleteParams;
use outrigger_core::keys;
use outrigger_tests::outrigger::Outrigger;
use outrigger_tests::tenant::{Tenant, annotation, is_ready, node_of, rule, rule_for};
use outrigger_tests::{InWords, eventually, holds};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};

/// A companion: its uid, its injected facts, and its Node.
type Seen = (String, BTreeMap<String, String>, String);

/// Changes of companions by name: CHANGE and the annotations that change.
type Changes = BTreeMap<String, (String, BTreeSet<String>)>;

struct Stage {
    t: Tenant,
    random: StdRng,
    /// The specs of the rules that there are, by name.
    rules: BTreeMap<String, Value>,
    /// How often each change was predicted.
    counts: BTreeMap<String, usize>,
}

/// What is done to one rule.
struct Operation {
    name: String,
    /// `None`: it is deleted.
    spec: Option<Value>,
    valid: bool,
}

impl Stage {
    fn operation(&mut self) -> Operation {
        let name = format!("r{}", self.random.random_range(0..3));
        let apps = ["web", "db", "nothing"];
        let app = *apps.choose(&mut self.random).unwrap();
        let Some(mut spec) = self.rules.get(&name).cloned() else {
            return Operation { name, spec: Some(rule_for("app", app)), valid: true };
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
            9 => return Operation { name, spec: None, valid },
            10 => {
                spec["template"]["spec"]["hostPID"] = json!(true);
                valid = false;
            }
            _ => {}
        }
        Operation { name, spec: Some(spec), valid }
    }

    /// The prediction, and the exit code.
    fn predicted(&self, operation: &Operation) -> (Option<i32>, Value) {
        let (infra, tenant) = (&self.t.outrigger.plane.infra, &self.t.outrigger.plane.tenant);
        let mut rules = self.rules.clone();
        match &operation.spec {
            Some(spec) => rules.insert(operation.name.clone(), spec.clone()),
            None => rules.remove(&operation.name),
        };
        let rules: Vec<Value> =
            rules.iter().map(|(name, spec)| rule(&self.t.namespace, name, spec.clone())).collect();
        let file =
            std::env::temp_dir().join(format!("outrigger-diff-{}-{}.json", self.t.id, std::process::id()));
        std::fs::write(&file, json!({"apiVersion": "v1", "kind": "List", "items": rules}).to_string())
            .unwrap();
        let output = self
            .t
            .outrigger
            .output(&[
                "diff",
                "--prune",
                "-o=json",
                "--tenant",
                &self.t.id,
                "-n",
                &self.t.source,
                &format!("--filename={}", file.display()),
                &format!("--kubeconfig={}", infra.kubeconfig.display()),
                &format!("--tenant-kubeconfig={}", tenant.kubeconfig.display()),
            ])
            .unwrap();
        std::fs::remove_file(&file).unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        let report = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {said}"));
        (output.status.code(), report)
    }

    async fn seen(&self) -> Result<BTreeMap<String, Seen>, String> {
        let all = self.t.companions().await?;
        let of = |pod: &k8s_openapi::api::core::v1::Pod| {
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
            let rules = self.t.rules().list(&Default::default()).await.in_words()?.items;
            let mut names: Vec<String> = rules.iter().map(ResourceExt::name_any).collect();
            names.sort();
            holds(names.iter().eq(self.rules.keys()), format!("{names:?}"))?;
            let mut expected = 0;
            for rule in &rules {
                let status = rule.status.clone().unwrap_or_default();
                let on_delete =
                    self.rules[&rule.name_any()].pointer("/updateStrategy/type") == Some(&json!("OnDelete"));
                let is_done = status.observed_generation == rule.metadata.generation
                    && status.created == status.matched
                    && status.ready == status.created
                    && (on_delete || status.updated == status.created);
                holds(is_done, format!("{}: {status:?}", rule.name_any()))?;
                expected += usize::try_from(status.created.unwrap_or_default()).unwrap();
            }
            let pods = self.t.pods().list(&Default::default()).await.in_words()?.items;
            let up = pods.iter().filter(|pod| is_ready(pod)).count();
            holds(pods.len() == expected && up == expected, format!("{up} of {expected} of {}", pods.len()))
        })
        .await;
    }

    /// The first changes are of every kind, the others are random.
    fn next(&mut self, number: usize) -> Operation {
        let own = self.rules.get("r0").cloned();
        let changed = |pointer: &str, value: Value| {
            let mut spec = own.clone().unwrap();
            let (parent, field) = pointer.rsplit_once('/').unwrap();
            spec.pointer_mut(parent).unwrap()[field] = value;
            spec
        };
        let spec = match number {
            0 => rule_for("app", "web"),
            1 => changed("/updateStrategy", json!({"type": "OnDelete"})),
            2 => changed("/template/spec/containers/0/image", json!("another")),
            _ => return self.operation(),
        };
        Operation { name: "r0".to_owned(), spec: Some(spec), valid: true }
    }

    async fn step(&mut self, number: usize) {
        let operation = self.next(number);
        let before = self.seen().await.unwrap();
        let (code, report) = self.predicted(&operation);
        let label = format!("change {number}: {} {:?}: {report}", operation.name, operation.spec);
        let predicted = changes_of(&report);
        for (change, _) in predicted.values() {
            *self.counts.entry(change.clone()).or_default() += 1;
        }
        let verdict = report["rules"].as_array().unwrap().iter().find(|rule| rule["name"] == operation.name);
        let verdict = verdict.unwrap_or_else(|| panic!("{label}"));
        if !operation.valid {
            assert_eq!((code, &predicted), (Some(3), &Changes::new()), "{label}");
            let path = verdict["errors"][0]["path"].as_str().unwrap();
            let refusal = self.t.try_rule(&operation.name, operation.spec.unwrap()).await.unwrap_err();
            assert!(refusal.contains(path), "{refusal}: {label}");
            return;
        }
        let is_unchanged = verdict["change"] == "Unchanged";
        assert_eq!(code, Some(i32::from(!is_unchanged)), "{label}");
        match &operation.spec {
            Some(spec) => {
                self.rules.insert(operation.name.clone(), spec.clone());
                self.t.rule(&operation.name, spec.clone()).await;
            }
            None => {
                self.rules.remove(&operation.name);
                self.t.rules().delete(&operation.name, &DeleteParams::default()).await.unwrap();
            }
        }
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
    let t = Tenant::new(Outrigger::shared().await, id, &[("a", 1), ("b", 2)]).await;
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
    for change in ["Created", "Replaced", "Outdated", "Annotated", "Deleted"] {
        assert!(stage.counts.contains_key(change), "no {change} in {count} changes: {:?}", stage.counts);
    }
}

#[tokio::test]
async fn twenty_changes_of_rules_happen_as_predicted() {
    changes("diff", 3, 20).await;
}

#[tokio::test]
#[ignore = "long"]
async fn three_hundred_changes_of_rules_happen_as_predicted() {
    changes("diff-long", 4, 300).await;
}
