//! The slots of Machines, admitted by three webhooks at once. Nobody else counts here: the manager is stopped, and the test
//! writes the Machine's status.

use std::fmt::Debug;
use std::sync::Arc;

use futures::StreamExt;
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::api::{Api, DeleteParams, ListParams};
use kube::{Client, Resource, ResourceExt};
use outrigger_api::Machine;
use outrigger_core::keys;
use outrigger_tests::outrigger::{Outrigger, ports};
use outrigger_tests::tenant::takes_pods;
use outrigger_tests::{InWords, create, dry_run, eventually, merge, merge_status};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::restarts::alone;

const NAMESPACE: &str = "slots";

/// Label that says which replica is asked. The API server has one connection to a webhook, and so asks one replica for long.
const ASKS: &str = "asks";

/// Sends what is about guests and Machines to several servers, by what the object says.
fn send_to(o: &Outrigger, servers: &[u16]) {
    let mut configurations = o.webhook_configurations().unwrap();
    for configuration in &mut configurations {
        let webhooks = configuration["webhooks"].as_array_mut().unwrap();
        let ours = |webhook: &Value| {
            matches!(webhook["name"].as_str(), Some("guests.outrigger.dev" | "machines.outrigger.dev"))
        };
        let (own, mut all): (Vec<Value>, Vec<Value>) = webhooks.drain(..).partition(ours);
        for (i, port) in servers.iter().enumerate() {
            all.extend(own.iter().cloned().map(|mut webhook| {
                webhook["name"] = json!(format!("r{i}-{}", webhook["name"].as_str().unwrap()));
                let url = webhook["clientConfig"]["url"].as_str().unwrap();
                let url = url.replace(&format!(":{}/", o.webhook_port), &format!(":{port}/"));
                webhook["clientConfig"]["url"] = json!(url);
                webhook["objectSelector"]["matchLabels"][ASKS] = json!(format!("r{i}"));
                webhook
            }));
        }
        *webhooks = all;
    }
    o.plane.infra.apply(&configurations).unwrap();
}

/// `i`: which replica is asked.
fn guest(name: &str, i: usize) -> Pod {
    let labels = json!({ASKS: format!("r{}", i % 3), keys::MACHINE_GROUP: "slots", keys::MACHINE_TYPE: "small", keys::POD_ROLE: "guest"});
    serde_json::from_value(json!({"metadata": {"name": name, "labels": labels},
        "spec": {"containers": [{"name": "c", "image": "i"}], "terminationGracePeriodSeconds": 0}}))
    .unwrap()
}

fn machine(name: &str, group: &str, node: &str, i: usize) -> Machine {
    serde_json::from_value(json!({"apiVersion": "imperator.tenzen-y.io/v1alpha1", "kind": "Machine",
        "metadata": {"name": name, "labels": {keys::MACHINE_GROUP: group, ASKS: format!("r{}", i % 3)}},
        "spec": {"nodePool": [{"name": node, "mode": "ready", "machineType": [{"name": "small"}]}],
            "machineTypes": [{"name": "small", "spec": {"cpu": "100m", "memory": "64Mi"}, "available": 50}]}}))
    .unwrap()
}

/// Asks until it is taken, or refused in these words, with the code: a busy machine has other answers too.
async fn answer<K>(api: &Api<K>, object: &K, dry: bool, words: &str) -> Result<K, (u16, String)>
where
    K: Resource + Clone + DeserializeOwned + Serialize + Debug,
{
    eventually("an answer", || async {
        match if dry { dry_run(api, object).await } else { create(api, object).await } {
            Ok(object) => Ok(Ok(object)),
            Err(kube::Error::Api(status)) if status.message.contains(words) => {
                Ok(Err((status.code, status.message.clone())))
            }
            // It was created, and the answer got lost.
            Err(kube::Error::Api(status)) if status.code == 409 => {
                Ok(Ok(api.get(&object.name_any()).await.in_words()?))
            }
            Err(error) => Err(error.to_string()),
        }
    })
    .await
}

/// Asks until there is an answer about a slot.
async fn ask(pods: &Api<Pod>, pod: Pod, dry: bool) -> Result<Pod, String> {
    let (code, words) = match answer(pods, &pod, dry, "there is no <small> left").await {
        Ok(pod) => return Ok(pod),
        Err(refusal) => refusal,
    };
    assert!(code == 403 && words.ends_with("there is no <small> left"), "{code} {words}");
    Err(words)
}

/// How often webhooks have admitted guests, and how often they have answered about any.
async fn counted(admin_ports: &[u16]) -> (u64, Vec<u64>) {
    let (mut admitted, mut answers) = (0, Vec::new());
    for port in admin_ports {
        let metrics = Outrigger::metrics_of(*port).await.unwrap();
        let lines = metrics.lines().filter(|line| line.starts_with("outrigger_guests_total"));
        let counts: Vec<(bool, u64)> = lines
            .map(|line| (line.contains("\"Admitted\""), line.rsplit(' ').next().unwrap().parse().unwrap()))
            .collect();
        admitted += counts.iter().filter(|(is, _)| *is).map(|(_, count)| count).sum::<u64>();
        answers.push(counts.iter().map(|(_, count)| count).sum());
    }
    (admitted, answers)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_slots_take_ten_of_two_hundred_guests_whichever_replica_is_asked() {
    let (_one, o) = alone().await;
    o.plane.command("stop manager").unwrap();
    let [a, b, c, admin_a, admin_b, admin_c] = ports().unwrap();
    let admins = [admin_a, admin_b, admin_c];
    for (i, (port, admin)) in [a, b, c].into_iter().zip(admins).enumerate() {
        o.start_webhook_replica(&format!("slots-{i}"), port, admin, &[]).unwrap();
    }
    for (i, admin) in admins.into_iter().enumerate() {
        o.ready_at(&format!("slots-{i}"), admin).await;
    }
    send_to(o, &[a, b, c]);

    let client = o.plane.infra.client_without_retries().await;
    let (machines, pods): (Api<Machine>, Api<Pod>) =
        (Api::all(client.clone()), Api::namespaced(client.clone(), NAMESPACE));

    one_machine_has_a_group_and_a_node(o, &machines).await;
    prepare(o, &client, &machines).await;
    // Every replica knows all of it.
    eventually("the replicas know the slots", || {
        let pods = pods.clone();
        async move {
            for i in 0..3 {
                dry_run(&pods, &guest("dry", i)).await.in_words()?;
            }
            Ok::<_, String>(())
        }
    })
    .await;
    let ledgers: Api<ConfigMap> = Api::namespaced(client.clone(), keys::CORE_NAMESPACE);
    let of_type = ListParams::default().labels(&format!("{}=slots", keys::MACHINE_GROUP));
    assert_eq!(ledgers.list(&of_type).await.unwrap().items.len(), 0, "dry runs take none");
    let (before, _) = counted(&admins).await;

    let pods = Arc::new(pods);
    let asked = (0..200).map(|i| {
        let pods = pods.clone();
        tokio::spawn(async move { ask(&pods, guest(&format!("g{i}"), i), false).await })
    });
    let answers: Vec<Result<Pod, String>> =
        futures::stream::iter(asked).buffer_unordered(200).map(Result::unwrap).collect().await;
    let admitted: Vec<&Pod> = answers.iter().flatten().collect();
    assert_eq!(admitted.len(), 10);
    let live = pods.list(&ListParams::default()).await.unwrap().items;
    assert_eq!(live.len(), 10);
    for pod in admitted {
        let pod = serde_json::to_value(pod).unwrap();
        assert_eq!(
            pod["spec"]["containers"][0]["resources"]["limits"],
            json!({"cpu": "100m", "memory": "64Mi"})
        );
        assert!(pod["spec"]["tolerations"].to_string().contains("imperator.tenzen-y.io/small"), "{pod}");
    }
    let (after, each) = counted(&admins).await;
    println!("admitted {} (with repetitions), answers by replica {each:?}", after - before);
    assert!(each.iter().all(|count| *count > 0), "each replica was asked: {each:?}");
    let ledger = ledgers.list(&of_type).await.unwrap().items;
    assert_eq!(ledger.len(), 1);
    assert_eq!(ledger[0].owner_references()[0].kind, "Machine");

    // One goes, one comes, and then none.
    assert!(ask(&pods, guest("late", 1), true).await.is_err());
    pods.delete(&live[0].name_any(), &DeleteParams::default()).await.unwrap();
    eventually("its slot is free", || async { ask(&pods, guest("late", 1), true).await.map(drop) }).await;
    ask(&pods, guest("late", 1), false).await.unwrap();
    assert!(ask(&pods, guest("later", 2), false).await.is_err());
    a_guest_stays_what_it_is(&pods).await;

    o.plane.infra.apply(&o.webhook_configurations().unwrap()).unwrap();
    for i in 0..3 {
        o.plane.command(&format!("term slots-{i}")).unwrap();
    }
    o.plane.command("start manager").unwrap();
    o.ready().await;
}

/// A namespace of guests, and a Machine whose status says that there are ten slots.
async fn prepare(o: &Outrigger, client: &Client, machines: &Api<Machine>) {
    let label = json!({keys::INJECT_RESOURCE: keys::INJECT_ENABLED});
    let namespace =
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE, "labels": label}});
    o.plane.infra.apply(&[namespace]).unwrap();
    takes_pods(client, NAMESPACE).await;
    create(machines, &machine("slots", "slots", "slots-own", 0)).await.unwrap();
    let usage = json!({"maximum": 50, "reserved": 10, "used": 0, "waiting": 0, "slots": 10});
    let status = json!({"availableMachines": [{"name": "small", "usage": usage}]});
    merge_status(machines, "slots", status).await.unwrap();
}

/// Twelve Machines at once ask three replicas for one group, and then for one node.
async fn one_machine_has_a_group_and_a_node(o: &Outrigger, machines: &Api<Machine>) {
    let node = |name: &str| json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}});
    let nodes: Vec<Value> =
        (0..12).map(|i| node(&format!("slots-{i}"))).chain(["slots-own", "slots-one"].map(node)).collect();
    o.plane.infra.apply(&nodes).unwrap();
    for same in ["group", "node"] {
        let one = |i: usize| match same {
            "group" => machine(&format!("group-{i}"), "slots-one", &format!("slots-{i}"), i),
            _ => machine(&format!("node-{i}"), &format!("slots-g{i}"), "slots-one", i),
        };
        // The nodes are known to all, so that nothing else is a reason.
        eventually("the nodes are known", || async {
            for (i, replica) in (0..12).flat_map(|i| (0..3).map(move |replica| (i, replica))) {
                let name = format!("slots-{i}");
                let node = if same == "node" { "slots-one" } else { &name };
                let probe = machine("slots-probe", "slots-probe", node, replica);
                dry_run(machines, &probe).await.in_words()?;
            }
            Ok::<_, String>(())
        })
        .await;
        let words =
            if same == "group" { "machineGroup label is duplicate" } else { "is in machine-group <slots-g" };
        let asked = (0..12).map(|i| {
            let (machines, machine) = (machines.clone(), one(i));
            tokio::spawn(async move { answer(&machines, &machine, false, words).await })
        });
        let answers: Vec<_> =
            futures::stream::iter(asked).buffer_unordered(12).map(Result::unwrap).collect().await;
        assert_eq!(answers.iter().flatten().count(), 1, "{answers:?}");
        for machine in answers.iter().flatten() {
            machines.delete(&machine.name_any(), &DeleteParams::default()).await.unwrap();
        }
    }
}

/// Metadata may change, the labels of its slot may not.
async fn a_guest_stays_what_it_is(pods: &Api<Pod>) {
    let patch = |labels: Value| {
        let metadata = json!({"metadata": {"labels": labels, "annotations": {"noted": "yes"}}});
        async move { merge(pods, "late", metadata).await }
    };
    patch(json!({"app": "x"})).await.unwrap();
    for key in [keys::MACHINE_GROUP, keys::MACHINE_TYPE, keys::POD_ROLE] {
        let refused = patch(json!({key: "other"})).await.unwrap_err().to_string();
        assert!(refused.contains("it is forbidden to update the Pod: metadata.labels["), "{refused}");
        let refused = patch(json!({key: null})).await.unwrap_err().to_string();
        assert!(refused.contains(key), "{refused}");
    }
}
