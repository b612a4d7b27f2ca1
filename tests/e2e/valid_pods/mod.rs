//! No mutation makes a Pod invalid: what the API server takes as it was written, it takes after Outrigger's steps too, or Outrigger
//! says which field keeps it from being mutated. The Pods are random ones, each by its number.

mod random;

use futures::StreamExt;
use kube::Client;
use outrigger_core::keys;
use outrigger_tests::outrigger::Outrigger;
use outrigger_tests::tenant::{Tenant, machine, takes_pods, usage};
use outrigger_tests::{InWords, eventually, holds};
use serde_json::{Value, json};

/// The machine group, and the beginning of the namespaces' names.
const NAME: &str = "valid-pods";

/// The kind of patch that kubectl sends for debugging.
const STRATEGIC: &str = "application/strategic-merge-patch+json";

/// Requests at once.
const AT_ONCE: usize = 6;

/// The namespaces in which Pods are mutated, by what they are.
struct Stage {
    client: Client,
    plain: String,
    offloaded: String,
    both: String,
    tenant: String,
}

/// The answer of the API server to a Pod.
type Answer = Result<Value, String>;

impl Stage {
    async fn new(name: &'static str) -> Self {
        let o = Outrigger::shared().await;
        let client = o.plane.infra.client().await;
        let t = Tenant::without_agent(o, name, &[("a", 1)]).await;
        let [plain, offloaded, both] = ["plain", "off", "both"].map(|of| format!("{name}-{of}"));
        let inject = json!({keys::INJECT_RESOURCE: keys::INJECT_ENABLED});
        let mut objects = Vec::new();
        for (namespace, labels) in [(&plain, json!({})), (&offloaded, json!({})), (&both, inject)] {
            objects.push(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace, "labels": labels}}));
        }
        let terms = json!([{"matchExpressions": [{"key": "region", "operator": "In", "values": ["us"]}]},
            {"matchExpressions": [{"key": "gpu", "operator": "Exists"}]}]);
        for namespace in [&offloaded, &both] {
            objects.push(json!({"apiVersion": "offloading.liqo.io/v1beta1", "kind": "NamespaceOffloading",
                "metadata": {"name": "offloading", "namespace": namespace},
                "spec": {"podOffloadingStrategy": "Remote", "clusterSelector": {"nodeSelectorTerms": terms}}}));
        }
        let size = json!({"cpu": "64", "memory": "64Gi", "pods": "110", "nvidia.com/gpu": "8"});
        objects.push(json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": format!("{name}-n1"), "labels": {keys::GPU_FAMILY: "turing"}},
            "status": {"capacity": size, "allocatable": size}}));
        o.plane.infra.apply(&objects).unwrap();
        let size = json!({"cpu": "4", "memory": "8Gi", "gpu": {"type": "nvidia.com/gpu", "num": "1", "family": "turing"}});
        let mut group = machine(name, &[(&format!("{name}-n1"), "t")], &[("t", 1)]);
        group["spec"]["machineTypes"][0]["spec"] = size;
        eventually("the Machine is admitted", || async { o.plane.infra.apply(std::slice::from_ref(&group)) })
            .await;
        usage(&kube::Api::all(client.clone()), name, "t", [1, 1, 0, 0, 1]).await;
        for namespace in [&plain, &offloaded, &both, &t.namespace] {
            takes_pods(&client, namespace).await;
        }
        let this = Self { client, plain, offloaded, both, tenant: t.namespace.clone() };
        eventually("admission knows the namespaces", || async {
            let pod = this.guest(2);
            let (offloaded, both) =
                (this.ask(&this.offloaded, &pod).await?, this.ask(&this.both, &pod).await?);
            let tolerates = |pod: &Value| pod["spec"]["tolerations"].to_string().contains(keys::NOT_ALLOWED);
            let is_guest = both["metadata"]["annotations"][keys::INJECTED_CONTAINER].is_string();
            holds(tolerates(&offloaded) && tolerates(&both) && is_guest, both.to_string())
        })
        .await;
        this
    }

    /// The Pod of this number, with the labels of a guest: in namespaces without slots they mean nothing.
    fn guest(&self, number: u64) -> Value {
        let mut pod = random::pod(number);
        let labels = pod["metadata"]["labels"].as_object_mut().unwrap();
        let group = self.plain.trim_end_matches("-plain");
        for (key, value) in
            [(keys::MACHINE_GROUP, group), (keys::MACHINE_TYPE, "t"), (keys::POD_ROLE, keys::GUEST)]
        {
            labels.insert(key.to_owned(), json!(value));
        }
        pod
    }

    /// Creates a Pod, as a dry run.
    async fn ask(&self, namespace: &str, pod: &Value) -> Answer {
        self.send("POST", &format!("/api/v1/namespaces/{namespace}/pods?dryRun=All"), "application/json", pod)
            .await
    }

    async fn send(&self, method: &str, path: &str, kind: &str, body: &Value) -> Answer {
        let request = http::Request::builder().method(method).uri(path).header("content-type", kind);
        let request = request.body(body.to_string().into_bytes()).unwrap();
        self.client.request(request).await.in_words()
    }
}

/// Whether Outrigger, or Pod Security, has refused a Pod with the path of a field, and not the API server what Outrigger made of it.
fn names_a_field(refusal: &str) -> bool {
    let by_outrigger = refusal.contains(".outrigger.dev\" denied the request")
        || refusal.contains("ValidatingAdmissionPolicy 'outrigger-");
    by_outrigger && ["spec.", "metadata."].iter().any(|path| refusal.contains(path))
        || refusal.contains("violates PodSecurity")
}

/// The parts that no step may change, of a Pod as the API server answers with it. `holder`: the container that got a slot.
fn untouched(pod: &Value, holder: &Value) -> Value {
    let mut spec = pod["spec"].clone();
    for field in ["affinity", "tolerations", "resources"] {
        spec.as_object_mut().unwrap().remove(field);
    }
    let containers = spec["containers"].as_array_mut().unwrap().iter_mut();
    containers
        .filter(|container| container["name"] == *holder)
        .for_each(|container| container["resources"] = json!({"claims": container["resources"]["claims"]}));
    spec
}

/// What is wrong with the answers to the Pod of this number, and whether it was taken as a guest.
async fn judge(s: &Stage, number: u64) -> (Vec<String>, bool) {
    let pod = s.guest(number);
    let before = match s.ask(&s.plain, &pod).await {
        Ok(before) => before,
        Err(refusal) => return (vec![format!("{number} is not valid: {refusal}\n{pod}")], false),
    };
    let is_mirror = pod["metadata"]["annotations"].get(keys::MIRROR_POD).is_some();
    let (mut wrong, mut taken) = (Vec::new(), false);
    for namespace in [&s.offloaded, &s.both, &s.tenant] {
        match s.ask(namespace, &pod).await {
            Err(refusal) if names_a_field(&refusal) && *namespace != s.offloaded => {}
            Err(refusal) => wrong.push(format!("{number} in {namespace}: {refusal}\n{pod}")),
            Ok(after) => {
                let holder = &after["metadata"]["annotations"][keys::INJECTED_CONTAINER];
                taken |= holder.is_string();
                let gets_slot = *namespace == s.both && !is_mirror;
                let same = if is_mirror {
                    before["spec"] == after["spec"]
                } else {
                    untouched(&before, holder) == untouched(&after, holder)
                };
                if !same || gets_slot != holder.is_string() {
                    wrong.push(format!("{number} in {namespace}: {before}\nbecame {after}"));
                }
            }
        }
    }
    (wrong, taken)
}

async fn judge_all(name: &'static str, count: u64) {
    let s = Stage::new(name).await;
    let began = std::time::Instant::now();
    let answers: Vec<(Vec<String>, bool)> = futures::stream::iter(0..count)
        .map(|number| judge(&s, number))
        .buffer_unordered(AT_ONCE)
        .collect()
        .await;
    let wrong: Vec<&str> = answers.iter().flat_map(|(wrong, _)| wrong).map(String::as_str).collect();
    let all: Vec<String> = wrong.iter().map(|text| text.chars().take(400).collect()).collect();
    assert!(
        wrong.is_empty(),
        "{} of {count}:\n{}\nthe first in full: {}",
        wrong.len(),
        all.join("\n"),
        wrong[0]
    );
    let taken = answers.iter().filter(|(_, taken)| *taken).count();
    println!("{count} Pods in four namespaces each: {taken} guests, in {:?}", began.elapsed());
    assert!(taken > usize::try_from(count).unwrap() / 2, "only {taken} of {count} were taken as guests");
}

#[tokio::test]
async fn a_valid_pod_is_valid_after_mutation() {
    judge_all(NAME, 100).await;
}

#[tokio::test]
#[ignore = "long"]
async fn a_thousand_valid_pods_are_valid_after_mutation() {
    judge_all("valid-many", 1500).await;
}

/// Debugging and resizing are requests of their own, about Pods that are there.
#[tokio::test]
async fn a_mutated_pod_is_debugged_and_resized_as_any_other() {
    let s = Stage::new("valid-later").await;
    let debug = json!({"spec": {"ephemeralContainers": [{"name": "debug", "image": "i", "targetContainerName": "c0"}]}});
    let resize =
        json!({"spec": {"containers": [{"name": "c0", "resources": {"requests": {"cpu": "150m"}}}]}});
    let numbers = (0..20).filter(|number| number % 20 > 1);
    let wrong: Vec<String> = futures::stream::iter(numbers)
        .map(async |number| {
            let mut pod = random::pod(number);
            pod["spec"]["nodeSelector"] = json!({"nowhere": "x"});
            let mut said = Vec::new();
            for namespace in [&s.plain, &s.offloaded] {
                let pods = format!("/api/v1/namespaces/{namespace}/pods");
                s.send("POST", &pods, "application/json", &pod).await.unwrap();
                let one = format!("{pods}/p{number}");
                let answers = [("ephemeralcontainers", &debug), ("resize", &resize)];
                let mut of = Vec::new();
                for (sub, patch) in answers {
                    let answer = s.send("PATCH", &format!("{one}/{sub}"), STRATEGIC, patch).await;
                    of.push((sub, answer.err().map(|refusal| refusal.replace(namespace.as_str(), ""))));
                }
                said.push(of);
            }
            (said[0] != said[1]).then(|| format!("{number}: {said:?}"))
        })
        .buffer_unordered(AT_ONCE)
        .filter_map(async |wrong| wrong)
        .collect()
        .await;
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
