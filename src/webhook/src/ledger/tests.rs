use axum::extract::{Path, RawQuery, State};
use axum::http::StatusCode;
use axum::routing::get;
use axum::{Json, Router};
use kube::Config;
use outrigger_admission::machines::{MachineClaim, SlotReservation};
use outrigger_admission::review::Request;
use outrigger_admission::webhooks::decide;
use outrigger_admission::{Context, Decision, Settings};
use outrigger_api::Change;
use outrigger_core::groups::Claim;
use outrigger_core::keys;
use outrigger_core::map::HashMap;
use outrigger_core::slots::GRANT_SECONDS;
use outrigger_runtime::environment::Environment;
use serde_json::{Value, json};

use super::*;

/// ConfigMaps as the API server keeps them: version, object.
type Objects = Arc<Mutex<HashMap<String, (u64, Value)>>>;

/// The guests as the API server lists them; nothing where it can't.
type Pods = Arc<Mutex<Option<Vec<Value>>>>;

type Answer = (StatusCode, Json<Value>);

fn status(code: u16) -> Answer {
    let reason = if code == 404 { "NotFound" } else { "Conflict" };
    let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "message": "no",
        "reason": reason});
    (StatusCode::from_u16(code).unwrap(), Json(status))
}

fn stored(objects: &mut HashMap<String, (u64, Value)>, name: String, mut object: Value) -> Answer {
    let version = objects.values().map(|(version, _)| *version).max().unwrap_or_default() + 1;
    object["metadata"]["resourceVersion"] = json!(version.to_string());
    objects.insert(name, (version, object.clone()));
    (StatusCode::OK, Json(object))
}

async fn read(State(objects): State<Objects>, Path(name): Path<String>) -> Answer {
    objects
        .lock()
        .get(&name)
        .map_or_else(|| status(404), |(_, object)| (StatusCode::OK, Json(object.clone())))
}

async fn create(State(objects): State<Objects>, Json(mut object): Json<Value>) -> Answer {
    let mut objects = objects.lock();
    object["metadata"]["uid"] = json!(format!("uid-{}", objects.len()));
    let name = object["metadata"]["name"].as_str().unwrap().to_owned();
    if objects.contains_key(&name) { status(409) } else { stored(&mut objects, name, object) }
}

async fn replace(
    State(objects): State<Objects>,
    Path(name): Path<String>,
    Json(object): Json<Value>,
) -> Answer {
    let mut objects = objects.lock();
    let version: u64 = object["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap();
    match objects.get(&name) {
        Some((current, _)) if *current == version => stored(&mut objects, name, object),
        Some(_) => status(409),
        None => status(404),
    }
}

/// Decodes what kube's client encodes.
fn parameters(query: Option<String>) -> HashMap<String, String> {
    let decoded = |text: &str| text.replace("%3D", "=").replace("%2C", ",").replace("%2F", "/");
    let query = query.unwrap_or_default();
    let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    pairs.map(|(key, value)| (key.to_owned(), decoded(value))).collect()
}

/// Lists one object a page, so that the client has to continue.
fn listed(all: &[Value], query: &HashMap<String, String>) -> Answer {
    assert!(!query.contains_key("resourceVersion"), "{query:?}");
    let at: usize = query.get("continue").map_or(0, |at| at.parse().unwrap());
    let next = if at + 1 < all.len() { (at + 1).to_string() } else { String::new() };
    let items: Vec<&Value> = all.iter().skip(at).take(1).collect();
    (StatusCode::OK, Json(json!({"metadata": {"continue": next}, "items": items})))
}

async fn guests_listed(State(pods): State<Pods>, RawQuery(query): RawQuery) -> Answer {
    let query = parameters(query);
    let selector = "imperator.tenzen-y.io/machine-group=g,imperator.tenzen-y.io/machine-type=t,\
                    imperator.tenzen-y.io/pod-role=guest";
    assert_eq!(query["labelSelector"], selector);
    pods.lock().as_ref().map_or_else(|| status(500), |pods| listed(pods, &query))
}

/// `late` has a label that no watch has shown yet.
async fn namespaces_listed(RawQuery(query): RawQuery) -> Answer {
    let query = parameters(query);
    assert_eq!(query["labelSelector"], "imperator.tenzen.io/inject-resource=enabled");
    listed(&["n", "late"].map(|name| json!({"metadata": {"name": name}})), &query)
}

/// The Machine as the API server has it: that of the caches, unless there is another object `machine`; none where that is `null`.
async fn machine(State(objects): State<Objects>) -> Answer {
    match objects.lock().get("machine") {
        Some((_, Value::Null)) => status(404),
        Some((_, machine)) => (StatusCode::OK, Json(machine.clone())),
        None => (StatusCode::OK, Json(json!({"metadata": {"name": "m", "uid": "u"}}))),
    }
}

/// The Machines as the API server lists them: the object `machines`; it can't list them where that is `null`.
async fn machines_listed(State(objects): State<Objects>, RawQuery(query): RawQuery) -> Answer {
    let query = parameters(query);
    match objects.lock().get("machines") {
        Some((_, Value::Null)) => status(500),
        Some((_, machines)) => listed(machines.as_array().unwrap(), &query),
        None => listed(&[], &query),
    }
}

/// An API server without guests, and a client of it.
async fn api_server() -> (Client, Objects) {
    api_server_with(Arc::new(Mutex::new(Some(Vec::new())))).await
}

/// An API server that has ConfigMaps and these guests, and a client of it.
async fn api_server_with(pods: Pods) -> (Client, Objects) {
    let objects = Objects::default();
    let lists = Router::new()
        .route("/api/v1/pods", get(guests_listed))
        .route("/api/v1/namespaces", get(namespaces_listed))
        .with_state(pods);
    let router = Router::new()
        .route("/api/v1/namespaces/core/configmaps", axum::routing::post(create))
        .route("/api/v1/namespaces/core/configmaps/{name}", get(read).put(replace))
        .route("/apis/imperator.tenzen-y.io/v1alpha1/machines/m", get(machine))
        .route("/apis/imperator.tenzen-y.io/v1alpha1/machines", get(machines_listed))
        .with_state(objects.clone())
        .merge(lists);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let client = client(listener.local_addr().unwrap().port());
    tokio::spawn(async move { axum::serve(listener, router).await });
    (client, objects)
}

fn client(port: u16) -> Client {
    let mut config = Config::new(format!("http://127.0.0.1:{port}").parse().unwrap());
    config.default_retry = false;
    Client::try_from(config).unwrap()
}

/// A replica whose cache shows the Machine, and never a guest.
fn replica(client: &Client, slots: u32) -> Arc<Ledgers> {
    let caches = Arc::new(Caches::default());
    let namespace =
        json!({"metadata": {"name": "n", "labels": {keys::INJECT_RESOURCE: keys::INJECT_ENABLED}}});
    caches.namespace(Change::Applied(serde_json::from_value(namespace).unwrap()));
    let machine = json!({"apiVersion": "imperator.tenzen-y.io/v1alpha1", "kind": "Machine",
        "metadata": {"name": "m", "uid": "u", "labels": {keys::MACHINE_GROUP: "g"}},
        "spec": {"nodePool": [], "machineTypes": [{"name": "t", "spec": {"cpu": 1, "memory": 1}, "available": 100}]},
        "status": {"availableMachines": [{"name": "t", "usage": {"maximum": 100, "slots": slots}}]}});
    caches.apply_machine(Change::Applied(serde_json::from_value(machine).unwrap()), Duration::ZERO);
    Ledgers::new(client.clone(), "core", caches, Environment::system().clock)
}

/// What a replica reserves for a new guest.
fn wanted(ledgers: &Ledgers, name: &str, dry_run: bool) -> SlotReservation {
    let labels = json!({keys::MACHINE_GROUP: "g", keys::MACHINE_TYPE: "t", keys::POD_ROLE: "guest"});
    let object = json!({"metadata": {"name": name, "uid": format!("uid-{name}"), "labels": labels},
        "spec": {"containers": [{"name": "c"}]}});
    let mut request: Request =
        serde_json::from_value(json!({"uid": "r", "operation": "CREATE", "namespace": "n",
        "kind": {"version": "v1", "kind": "Pod"}, "dryRun": dry_run, "object": object}))
        .unwrap();
    let settings = Settings::default();
    let cx = Context::new(&ledgers.caches, &settings);
    let labels = [(keys::INJECT_RESOURCE, keys::INJECT_ENABLED)].into();
    match decide(cx, &mut request, Some(&labels)).unwrap().reserve.unwrap() {
        Reservation::Slot(slot) => *slot,
        Reservation::Machine(claim) => panic!("{claim:?}"),
    }
}

/// Code and message of a refusal.
fn refusal(decision: Decision) -> (u16, String) {
    match decision {
        Decision::Deny { code, message, .. } => (code, message),
        allowed @ Decision::Allow { .. } => panic!("{allowed:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn ten_slots_take_ten_guests_with_several_replicas() {
    let (client, objects) = api_server().await;
    let replicas = [10; 3].map(|slots| replica(&client, slots));
    let asked: Vec<_> = (0..200)
        .map(|i| {
            let ledgers = replicas[i % 3].clone();
            tokio::spawn(
                async move { ledgers.take_slot(&wanted(&ledgers, &i.to_string(), i % 7 == 0)).await },
            )
        })
        .collect();
    let mut admitted = 0;
    for (i, asked) in asked.into_iter().enumerate() {
        match asked.await.unwrap() {
            Ok(()) if i % 7 != 0 => admitted += 1,
            Ok(()) => {}
            Err(Admission { guest, decision, .. }) => {
                let (code, message) = refusal(decision);
                assert_eq!((guest, code), (Some(GuestOutcome::NoneLeft), 403), "{message}");
                assert!(message.ends_with("namespace: <n>; there is no <t> left"), "{message}");
            }
        }
    }
    assert_eq!(admitted, 10);
    // A queue is removed after its last answer.
    let removed = async {
        while !replicas.iter().all(|replica| replica.queues.lock().is_empty()) {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(DEADLINE, removed).await.expect("queues without a request are removed");
    let objects = objects.lock();
    let (version, ledger) = objects.values().next().unwrap();
    assert!(*version <= 10, "asks share writes: {version}");
    assert_eq!(ledger["metadata"]["ownerReferences"][0]["uid"], "u");
    assert_eq!(ledger["metadata"]["labels"][keys::MACHINE_TYPE], "t");
    let grants: Value = serde_json::from_str(ledger["data"]["ledger"].as_str().unwrap()).unwrap();
    assert_eq!(grants.as_array().unwrap().len(), 10);
}

/// Advances tokio's time.
async fn pass(time: Duration) {
    tokio::time::pause();
    tokio::time::advance(time).await;
    tokio::time::resume();
}

#[tokio::test]
async fn a_grant_counts_until_a_replica_has_seen_it_for_long_enough() {
    let (client, objects) = api_server().await;
    let (one, other) = (replica(&client, 1), replica(&client, 1));
    let outcome = async |ledgers: &Arc<Ledgers>, name: &str, dry_run: bool| {
        ledgers.take_slot(&wanted(ledgers, name, dry_run)).await.map_err(|refused| refused.guest)
    };
    assert_eq!(outcome(&one, "a", false).await, Ok(()));
    // It was granted long ago, by the clock of another machine.
    for (_, object) in objects.lock().values_mut() {
        let ledger = object["data"]["ledger"].as_str().unwrap().to_owned();
        let mut grants: Value = serde_json::from_str(&ledger).unwrap();
        grants[0]["at"] = json!(0);
        object["data"]["ledger"] = json!(grants.to_string());
    }
    for ledgers in [&one, &other] {
        assert_eq!(outcome(ledgers, "b", true).await, Err(Some(GuestOutcome::NoneLeft)));
    }
    pass(Duration::from_secs(GRANT_SECONDS)).await;
    let late = replica(&client, 1);
    assert_eq!(
        outcome(&late, "b", true).await,
        Err(Some(GuestOutcome::NoneLeft)),
        "it sees the grant for the first time"
    );
    assert_eq!(outcome(&other, "b", false).await, Ok(()));
}

#[tokio::test]
async fn a_ledger_is_tidied_when_its_grants_are_over() {
    let (client, objects) = api_server().await;
    let ledgers = replica(&client, 1);
    let wanted = wanted(&ledgers, "a", false);
    ledgers.take_slot(&wanted).await.unwrap();
    let name = objects.lock().keys().next().unwrap().clone();
    let grants = || objects.lock()[&name].1["data"]["ledger"].as_str().unwrap().to_owned();
    assert_eq!(ledgers.tidy(&name, &wanted.slot).await, Ok(true));
    assert_ne!(grants(), "[]");
    pass(Duration::from_secs(GRANT_SECONDS)).await;
    assert_eq!(ledgers.tidy(&name, &wanted.slot).await, Ok(false));
    assert_eq!(grants(), "[]");
    assert!(ledgers.sightings.lock().is_empty());
}

#[tokio::test]
async fn guests_that_no_watch_has_shown_have_their_slots() {
    let pods = Pods::default();
    let (client, _) = api_server_with(pods.clone()).await;
    let ledgers = replica(&client, 2);
    let pod = |namespace: &str, name: &str, phase: &str| json!({"metadata": {"namespace": namespace, "name": name}, "status": {"phase": phase}});
    let outcome = async |name: &str| {
        ledgers.take_slot(&wanted(&ledgers, name, true)).await.map_err(|refused| refused.guest)
    };
    assert_eq!(outcome("a").await, Err(Some(GuestOutcome::Unavailable)), "they can't be listed");
    let ended = [pod("n", "x", "Succeeded"), pod("n", "y", "Failed"), pod("unlabelled", "z", "Running")];
    *pods.lock() = Some([&ended[..], &[pod("n", "b", "Pending")]].concat());
    assert_eq!(outcome("a").await, Ok(()));
    *pods.lock() = Some([&ended[..], &[pod("n", "b", "Pending"), pod("late", "c", "Running")]].concat());
    assert_eq!(outcome("a").await, Err(Some(GuestOutcome::NoneLeft)));
}

#[tokio::test]
async fn without_a_count_slots_are_refused_with_the_reason() {
    let message_of = async |ledgers: &Arc<Ledgers>, dry_run: bool| {
        let refused = ledgers.take_slot(&wanted(ledgers, "p", dry_run)).await.unwrap_err();
        let (code, message) = refusal(refused.decision);
        assert_eq!((code, refused.guest), (503, Some(GuestOutcome::Unavailable)), "{message}");
        message
    };
    // Nothing listens on that port.
    let gone = replica(&client(1), 1);
    for dry_run in [false, true] {
        let message = message_of(&gone, dry_run).await;
        assert!(
            message.starts_with(
                "name: <p>, namespace: <n>; the slots of <t> can't be counted now: ConfigMap core/slots-"
            ) && message.ends_with("; try again"),
            "{message}"
        );
    }
    let refused = gone.claim(&claim("a", "g", &[], false)).await.unwrap_err();
    assert_eq!(refusal(refused).0, 503);

    let (client, objects) = api_server().await;
    let ledgers = replica(&client, 1);
    ledgers.take_slot(&wanted(&ledgers, "p", true)).await.unwrap();
    assert!(objects.lock().is_empty(), "a dry run writes nothing");
    ledgers.take_slot(&wanted(&ledgers, "p", false)).await.unwrap();
    let name = objects.lock().keys().next().unwrap().clone();
    objects.lock().get_mut(&name).unwrap().1["data"]["ledger"] = json!("{");
    let message = message_of(&ledgers, false).await;
    assert!(
        message.contains("data.ledger is no list of grants") && message.contains("delete it"),
        "{message}"
    );
}

fn claim(machine: &str, group: &str, nodes: &[&str], dry_run: bool) -> MachineClaim {
    let pool: Vec<String> = nodes.iter().map(|node| (*node).to_owned()).collect();
    let claim = Claim {
        machine: machine.to_owned(),
        uid: machine.to_owned(),
        generation: 1,
        group: Some(group.to_owned()),
        nodes: pool.clone(),
        at: 0,
    };
    MachineClaim { claim, dry_run, pool }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_machines_at_once_one_has_the_group_and_the_node() {
    let (client, _) = api_server().await;
    let replicas = [1; 3].map(|slots| replica(&client, slots));
    for same in ["group", "node"] {
        let asked: Vec<_> = (0..30)
            .map(|i: usize| {
                let ledgers = replicas[i % 3].clone();
                let claim = match same {
                    "group" => claim(&i.to_string(), "same", &[], false),
                    _ => claim(&i.to_string(), &format!("g{i}"), &["other", "same"][i.min(1)..], false),
                };
                tokio::spawn(async move { ledgers.claim(&claim).await })
            })
            .collect();
        let mut had = 0;
        for asked in asked {
            match asked.await.unwrap() {
                Ok(()) => had += 1,
                Err(refused) => {
                    let (code, message) = refusal(refused);
                    let begin =
                        if same == "group" { "machineGroup label is duplicate" } else { "spec.nodePool[" };
                    assert!(code == 403 && message.starts_with(begin), "{code} {message}");
                }
            }
        }
        assert_eq!(had, 1, "{same}");
    }
    assert!(replicas[0].claim(&claim("late", "free", &["free"], true)).await.is_ok());
    let later = replicas[1].claim(&claim("later", "free", &["free"], false)).await;
    assert!(later.is_ok(), "a dry run claims nothing");
}

#[tokio::test]
async fn a_machine_that_no_watch_has_shown_has_its_group_and_its_nodes() {
    let (client, objects) = api_server().await;
    let ledgers = replica(&client, 1);
    let lists = |machines: Value| objects.lock().insert("machines".to_owned(), (0, machines));
    let other = |name: &str, group: &str, node: &str| {
        json!({"metadata": {"name": name, "uid": name, "labels": {keys::MACHINE_GROUP: group}},
            "spec": {"nodePool": [{"name": node, "mode": "ready", "machineType": []}], "machineTypes": []}})
    };
    lists(json!([other("first", "g", "n1"), other("second", "h", "n2")]));
    for (group, node, expected) in [
        ("g", "free", "machineGroup label is duplicate"),
        ("other", "n2", "spec.nodePool["),
        ("other", "free", ""),
    ] {
        let answer = ledgers.claim(&claim("new", group, &[node], false)).await.map_err(refusal);
        let (code, message) = answer.err().unwrap_or_default();
        assert!(
            message.starts_with(expected) && (code == 403) != expected.is_empty(),
            "{group} {node}: {code} {message}"
        );
    }
    lists(Value::Null);
    let (code, message) = refusal(ledgers.claim(&claim("new", "third", &["n3"], false)).await.unwrap_err());
    assert_eq!(code, 503, "{message}");
    assert!(message.contains("Machines can't be listed"), "{message}");
}

#[tokio::test]
async fn no_slot_of_a_machine_that_is_deleted_is_given_by_a_new_ledger() {
    let (client, objects) = api_server().await;
    let replicas = [replica(&client, 3), replica(&client, 3)];
    let another = json!({"metadata": {"name": "m", "uid": "another"}});
    let leaving = json!({"metadata": {"name": "m", "uid": "u", "deletionTimestamp": "2026-01-01T00:00:00Z"}});
    for (machine, why) in [
        (Value::Null, "Machine m is deleted"),
        (another, "Machine m is deleted"),
        (leaving, "Machine m is being deleted"),
    ] {
        objects.lock().insert("machine".to_owned(), (0, machine));
        // Again, and under another name at another replica: the ledger exists by then.
        for (ledgers, name) in [(&replicas[0], "a"), (&replicas[0], "a"), (&replicas[1], "b")] {
            let refused = ledgers.take_slot(&wanted(ledgers, name, false)).await.unwrap_err();
            let (code, message) = refusal(refused.decision);
            assert_eq!((refused.guest, code), (Some(GuestOutcome::Unavailable), 503), "{message}");
            assert!(message.contains(why), "{message}");
        }
    }
    objects.lock().remove("machine");
    replicas[0].take_slot(&wanted(&replicas[0], "a", false)).await.unwrap();
}

#[tokio::test]
async fn a_ledger_keeps_its_machine_when_it_is_tidied_or_written_by_a_replica_that_knows_an_earlier_one() {
    let (client, objects) = api_server().await;
    let ledgers = replica(&client, 3);
    let slot = wanted(&ledgers, "a", false);
    ledgers.take_slot(&slot).await.unwrap();
    let name = objects.lock().keys().next().unwrap().clone();
    let owner = || objects.lock()[&name].1["metadata"]["ownerReferences"][0]["uid"].clone();
    // The Machine is created again: the caches show the earlier one.
    let set_owner = |uid: &str| {
        objects.lock().get_mut(&name).unwrap().1["metadata"]["ownerReferences"][0]["uid"] = json!(uid);
    };
    set_owner("new");
    objects.lock().insert("machine".to_owned(), (0, json!({"metadata": {"name": "m", "uid": "new"}})));
    let refused = ledgers.take_slot(&wanted(&ledgers, "b", false)).await.unwrap_err();
    assert_eq!(refusal(refused.decision).0, 503);
    assert_eq!(owner(), "new", "the garbage collector would remove the ledger");
    pass(Duration::from_secs(GRANT_SECONDS)).await;
    assert_eq!(ledgers.tidy(&name, &slot.slot).await, Ok(false));
    assert_eq!(owner(), "new");
}
