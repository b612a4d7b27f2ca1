//! Objects that many have written: the API server joins the records of the earliest writers under the name `ancient-changes`.

use k8s_openapi::api::core::v1::{Namespace, Node};
use kube::api::{Api, Patch, PatchParams};
use kube::{Resource, ResourceExt as _};
use outrigger_cases::merged;
use outrigger_core::keys;
use outrigger_tests::{InWords, eventually, holds};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use crate::policies::accounts::Account::{self, Agent, Manager};
use crate::policies::setup::Setup;

/// Writers that the API server records separately (`DefaultMaxUpdateManagers` of apimachinery).
const SEPARATE: usize = 10;

/// Makes an object, and lets others, whose names sort first, write it until the next writer's record makes the API server join two of them.
async fn crowd<K>(api: &Api<K>, object: &Value)
where
    K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + DeserializeOwned,
{
    let (name, object) = (object["metadata"]["name"].as_str().unwrap(), Patch::Apply(object));
    let updates = |object: &K| {
        let entries = object.managed_fields().iter();
        entries.filter(|entry| entry.operation.as_deref() == Some("Update")).count()
    };
    api.patch(name, &PatchParams::apply("w"), &object).await.unwrap();
    for i in 0.. {
        let seen = api.get(name).await.unwrap();
        match updates(&seen) {
            SEPARATE => return,
            // kwok removes all records when it takes a Node over. The next apply begins them again.
            0 => drop(api.patch(name, &PatchParams::apply("w").force(), &object).await.unwrap()),
            _ => {}
        }
        let patch = json!({"metadata": {"labels": {format!("l{i}"): "x"}}});
        api.patch(name, &PatchParams::apply(&format!("a{i}")), &Patch::Merge(patch)).await.unwrap();
        assert!(i < 10 * SEPARATE, "{name}: {:?}", seen.managed_fields());
    }
}

/// Writes many fields under a name that is somebody else's.
async fn pretend<K>(api: &Api<K>, name: &str, writer: &str)
where
    K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + DeserializeOwned,
{
    let domain = ["a".repeat(60), "b".repeat(60), "c".repeat(60)].join(".");
    let value = std::time::UNIX_EPOCH.elapsed().unwrap().as_nanos().to_string();
    let annotations: Map<String, Value> = (0..200).map(|i| (format!("{domain}/{i}"), json!(value))).collect();
    let patch = Patch::Merge(json!({"metadata": {"annotations": annotations}}));
    api.patch(name, &PatchParams::apply(writer), &patch).await.unwrap();
}

fn writers(object: &Value) -> Vec<&str> {
    let entries = object["metadata"]["managedFields"].as_array();
    entries.into_iter().flatten().filter_map(|entry| entry["manager"].as_str()).collect()
}

#[tokio::test]
async fn the_api_servers_own_record_of_early_writers_keeps_nobody_from_writing() {
    let setup = Setup::shared().await;
    let client = &setup.plane.infra.client().await;
    let known = &setup.cases.objects;
    let node = merged(&known["node"], &json!({"metadata": {"name": "crowded"}}));
    let namespace = merged(&known["namespace"], &json!({"metadata": {"name": "crowded"}}));
    let label = json!({"metadata": {"labels": {"imperator.tenzen-y.io/node-pool": "ready"}}});
    let offloading = json!({"metadata": {"labels": {"liqo.io/scheduling-enabled": "true"}}});
    let taint = json!({"key": "outrigger.dev/dpu-not-ready", "effect": "NoSchedule"});
    let (of_node, of_namespace) = ("PATCH /api/v1/nodes/crowded", "PATCH /api/v1/namespaces/crowded");
    let asked: [(Account, &str, &Value); 3] =
        [(Manager, of_node, &label), (Manager, of_namespace, &offloading), (Agent, of_node, &taint)];
    for (who, ask, body) in asked {
        eventually("the records are joined", || async {
            crowd(&Api::<Node>::all(client.clone()), &node).await;
            crowd(&Api::<Namespace>::all(client.clone()), &namespace).await;
            let mut body = body.clone();
            if matches!(who, Agent) {
                // The agent keeps the taints of others, such as those of Kubernetes for a Node that isn't ready yet.
                let node = Api::<Node>::all(client.clone()).get("crowded").await.in_words()?;
                let taints = node.spec.and_then(|spec| spec.taints).unwrap_or_default();
                let others = taints.into_iter().map(|taint| json!(taint));
                body = json!({"spec": {"taints": others.chain([body]).collect::<Vec<_>>()}});
            }
            let written = who.dry_run(client, ask, &body).await;
            let written = written.map_err(|refusal| format!("{who:?} {ask}: {refusal}"))?;
            // kwok may have removed the Node's records meanwhile, and controllers may have written its taints.
            holds(writers(&written).contains(&"ancient-changes"), format!("{:?}", writers(&written)))
        })
        .await;
    }
}

#[tokio::test]
async fn whoever_writes_under_the_name_of_another_keeps_it_from_nothing() {
    let setup = Setup::shared().await;
    let client = &setup.plane.infra.client().await;
    let namespace = merged(&setup.cases.objects["namespace"], &json!({"metadata": {"name": "posed"}}));
    let (api, params) = (Api::<Namespace>::all(client.clone()), PatchParams::apply("w").force());
    eventually("there are more records under its name than the manager may have", || async {
        // The API server keeps records of an object that has been applied.
        api.patch("posed", &params, &Patch::Apply(&namespace)).await.in_words()?;
        pretend(&api, "posed", keys::MANAGER).await;
        let records = json!(api.get("posed").await.in_words()?.managed_fields()).to_string();
        holds(records.len() > 8192 + 2048, records.len().to_string())
    })
    .await;
    let offloading = json!({"metadata": {"labels": {"liqo.io/scheduling-enabled": "true"}}});
    Manager.dry_run(client, "PATCH /api/v1/namespaces/posed", &offloading).await.unwrap();
}
