//! Templates are compared by what the API server makes of them.

use kube::ResourceExt;
use outrigger_cases::{Put, templates, with};
use outrigger_core::claim::Devices;
use outrigger_core::companion;
use outrigger_core::keys;
use outrigger_core::rule::DpuSelectionPolicy;
use outrigger_tests::outrigger::Outrigger;
use outrigger_tests::reviews::MANAGER;
use outrigger_tests::tenant::{Tenant, annotation, rule_for};
use outrigger_tests::{eventually, holds, until};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};

/// An API server with a namespace in which Outrigger does nothing.
struct Stage {
    client: kube::Client,
}

/// What a template becomes: what the API server stores, or that it refuses it, and the hash.
struct Made {
    stored: Option<Value>,
    hash: String,
}

impl Stage {
    async fn new() -> Self {
        let infra = &Outrigger::shared().await.plane.infra;
        infra
            .apply(&[json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "templates"}})])
            .unwrap();
        Self { client: infra.client().await }
    }

    async fn make(&self, template: &Value) -> Made {
        let hash = companion::content_hash(DpuSelectionPolicy::Any, template, &Devices::default());
        Made { stored: self.stored(template).await.ok(), hash }
    }

    /// Creates an object as the manager does, from the metadata that companions get.
    async fn stored(&self, template: &Value) -> Result<Value, String> {
        let (group, resource) = match template["kind"].as_str() {
            Some("Pod") => ("/api/v1", "pods"),
            _ => ("/apis/resource.k8s.io/v1", "resourceclaims"),
        };
        let metadata = |key: &str| template["metadata"][key].clone();
        let object = json!({"apiVersion": template["apiVersion"], "kind": template["kind"], "spec": template["spec"],
            "metadata": {"name": "x", "labels": metadata("labels"), "annotations": metadata("annotations")}});
        let path = format!("{group}/namespaces/templates/{resource}?dryRun=All");
        let request = http::Request::post(path).header("content-type", "application/json");
        let request = request.body(object.to_string().into_bytes()).unwrap();
        let made: Value = self.client.request(request).await.map_err(|error| error.to_string())?;
        let metadata = |key: &str| made["metadata"][key].clone();
        Ok(json!([metadata("labels"), metadata("annotations"), made["spec"]]))
    }
}

#[tokio::test]
async fn templates_are_the_same_if_the_api_server_makes_the_same_of_them() {
    let stage = Stage::new().await;
    let mut failures = Vec::new();
    for template in templates() {
        let base = stage.make(&template.base).await;
        if let Err(error) = stage.stored(&template.base).await {
            panic!("{error}: {}", template.base);
        }
        for (all, same) in [(template.same(), true), (template.different(), false)] {
            for put in &all {
                let made = stage.make(&with(&template.base, [put])).await;
                let found = (made.stored == base.stored, made.hash == base.hash);
                if made.stored.is_none() || found != (same, same) {
                    failures.push(format!("{put:?}: stored, hash as before: {found:?}, {:?}", made.stored));
                }
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// Less than `most` of them.
fn some(all: &[Put], most: usize, random: &mut StdRng) -> Vec<Put> {
    (0..random.random_range(0..most)).map(|_| all[random.random_range(0..all.len())].clone()).collect()
}

#[tokio::test]
async fn random_templates_are_the_same_if_the_api_server_makes_the_same_of_them() {
    let stage = Stage::new().await;
    let seed = std::env::var("OUTRIGGER_TEMPLATES_SEED").map_or(1, |seed| seed.parse().unwrap());
    let (mut random, mut equal, mut unequal) = (StdRng::seed_from_u64(seed), 0, 0);
    for template in templates() {
        let mut made: Vec<(Vec<Put>, Made)> = Vec::new();
        for _ in 0..60 {
            let mut puts = some(&template.different(), 3, &mut random);
            puts.extend(some(&template.same(), 20, &mut random));
            let one = stage.make(&with(&template.base, &puts)).await;
            made.push((puts, one));
        }
        made.retain(|(_, made)| made.stored.is_some());
        for (i, (puts, a)) in made.iter().enumerate() {
            for (others, b) in &made[..i] {
                let (stored, hash) = (a.stored == b.stored, a.hash == b.hash);
                assert_eq!(stored, hash, "OUTRIGGER_TEMPLATES_SEED={seed}: {puts:?} and {others:?}");
                if hash { equal += 1 } else { unequal += 1 }
            }
        }
    }
    println!("seed {seed}: {equal} pairs are equal, {unequal} are not");
    assert!(equal > 100 && unequal > 100, "{equal} {unequal}");
}

/// A rule for the workload, whose template has all of this.
fn noisy(noise: &Value) -> Value {
    let mut rule = rule_for("app", "web");
    json_patch::merge(&mut rule["template"], noise);
    rule
}

#[tokio::test]
async fn noise_replaces_no_companion_and_neither_does_an_upgrade() {
    let t = Tenant::with_rule(Outrigger::shared().await, "noise").await;
    t.web("w").await;
    let before = t.companion().await;
    let seen = async |generation: i64| {
        until("the rule is served", &t.rules(), "r", |rule| {
            let status = rule.status.unwrap_or_default();
            let served = status.observed_generation == Some(generation) && status.updated == Some(1);
            holds(served && status.ready == Some(1), format!("{status:?}"))
        })
        .await;
    };
    let noise = json!({"status": {}, "metadata": {"name": "x", "generation": 1},
        "spec": {"restartPolicy": "Always", "dnsPolicy": "ClusterFirst", "securityContext": {}, "tolerations": []}});
    seen(t.rule("r", noisy(&noise)).await.metadata.generation.unwrap()).await;
    assert_eq!(t.companion().await.uid(), before.uid());

    // A workload that comes now has a companion that says what the template means. One of an earlier release doesn't.
    t.web("v").await;
    let all = t.ready(2).await;
    let new = all.iter().find(|pod| pod.uid() != before.uid()).unwrap();
    let content = annotation(new, keys::CONTENT_HASH).expect("a hash").to_owned();
    assert_eq!(annotation(&before, keys::TEMPLATE_HASH), Some(&*content));
    assert_ne!(annotation(new, keys::TEMPLATE_HASH), Some(&*content));
    let as_before = json!({"metadata": {"annotations": {keys::CONTENT_HASH: null}}});
    let user = format!("--as={MANAGER}");
    let namespace = format!("--namespace={}", t.namespace);
    let name = new.name_any();
    t.outrigger.plane.infra.patch(&format!("pod/{name}"), &[&namespace, &user], &as_before).unwrap();
    eventually("the manager writes it again", || async {
        let pod = t.pods().get(&name).await.map_err(|error| error.to_string())?;
        holds(annotation(&pod, keys::CONTENT_HASH) == Some(&*content), format!("{:?}", pod.annotations()))
    })
    .await;
    let uids = |all: &[k8s_openapi::api::core::v1::Pod]| {
        all.iter().map(|pod| pod.uid().unwrap()).collect::<std::collections::BTreeSet<_>>()
    };
    assert_eq!(uids(&t.ready(2).await), uids(&all));

    // Something that the API server stores.
    t.rule("r", noisy(&json!({"spec": {"restartPolicy": "Always", "terminationGracePeriodSeconds": 3}})))
        .await;
    eventually("both are others", || async {
        let now = uids(&t.companions().await?);
        holds(now.len() == 2 && now.is_disjoint(&uids(&all)), format!("{now:?}"))
    })
    .await;
}
