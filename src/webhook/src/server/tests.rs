use std::net::SocketAddr;
use std::time::Duration;

use outrigger_admission::webhooks::{endpoint, endpoints, gate_endpoints, watches};
use outrigger_api::Change;
use outrigger_core::keys;
use outrigger_runtime::bind::Bind;
use outrigger_runtime::environment::Environment;
use outrigger_runtime::serve::{Limits, Server};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::*;

#[test]
fn nothing_is_admitted_by_watches_that_are_not_listed_yet() {
    let labels = json!({keys::MACHINE_GROUP: "g", keys::MACHINE_TYPE: "t", keys::POD_ROLE: "guest"});
    let request = |operation: &str, labels: &serde_json::Value| -> Request {
        let object = json!({"metadata": {"name": "p", "labels": labels}});
        serde_json::from_value(json!({"uid": "r", "operation": operation, "namespace": "n",
            "kind": {"version": "v1", "kind": "Pod"}, "object": object}))
        .unwrap()
    };
    let guest = request("CREATE", &labels);
    let readiness = Readiness::default();
    let (listed, other) = (readiness.wait_for(watches::GUESTS), readiness.wait_for("nodes"));
    let unlisted =
        |endpoint: &Endpoint, request: &Request| endpoint.unlisted(request, || readiness.missing());
    for path in ["/mutate/pods", "/validate/guests"] {
        let endpoint = endpoint(path).unwrap();
        let refused = unlisted(endpoint, &guest).unwrap();
        assert!(
            matches!(&refused.decision, Decision::Deny { code: 503, message, .. } if message.contains("all guests yet")),
            "{refused:?}"
        );
        assert!(unlisted(endpoint, &request("UPDATE", &labels)).is_none());
        assert!(unlisted(endpoint, &request("CREATE", &json!({}))).is_none());
    }
    let classes = readiness.wait_for(watches::PRIORITY_CLASSES);
    let pods = endpoint("/validate/pods").unwrap();
    let mut named = request("CREATE", &json!({}));
    assert!(unlisted(pods, &named).is_none());
    named.object["spec"]["priorityClassName"] = json!("c");
    assert!(unlisted(pods, &named).is_some());
    classes.done();
    assert!(unlisted(pods, &named).is_none());
    listed.done();
    readiness.end();
    assert!(
        unlisted(endpoint("/validate/guests").unwrap(), &guest).is_none(),
        "it shuts down, and knows all"
    );
    drop(other);
}

/// A webhook on loopback in plain text, and where.
async fn webhook(writers: Writers, limits: Limits) -> SocketAddr {
    serving(endpoints(), writers, limits).await
}

fn service(writers: Writers) -> AdmissionService {
    let caches = Arc::new(Caches::default());
    let settings = Settings::default();
    let metrics = Metrics::new(&mut outrigger_runtime::admin::registry());
    let nowhere = kube::Config::new("http://127.0.0.1:1".parse().unwrap());
    let nowhere = kube::Client::try_from(nowhere).unwrap();
    let clock = Environment::system().clock;
    AdmissionService {
        ledgers: Ledgers::new(nowhere, &settings.core_namespace, caches.clone(), clock),
        caches,
        changes: watch::channel(()).1,
        settings,
        metrics,
        readiness: Readiness::default(),
        budget: Arc::new(Budget::new(clock)),
        writers,
        clock,
    }
}

/// As [`webhook`], with these paths.
async fn serving(endpoints: Vec<&'static Endpoint>, writers: Writers, limits: Limits) -> SocketAddr {
    let router = service(writers).router_of(endpoints);
    let listener = "127.0.0.1:0".parse::<Bind>().unwrap().listen().unwrap();
    let address = listener.address().unwrap();
    let never = CancellationToken::new();
    tokio::spawn(Server::new("test", listener).limits(limits).run(router, never.clone(), never));
    address
}

/// Status and body of an answer. `body` is sent as it comes.
async fn ask(
    address: SocketAddr,
    path: &str,
    length: usize,
    body: impl Iterator<Item = Vec<u8>>,
) -> (u16, String) {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let head =
        format!("POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    for piece in body {
        stream.write_all(&piece).await.unwrap();
    }
    let mut answer = String::new();
    timeout(SOON, stream.read_to_string(&mut answer)).await.expect("it is answered").unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

async fn review_of(address: SocketAddr, path: &str, object: &Value) -> Value {
    let review = json!({"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": {"uid": "u-7",
        "kind": {"group": "", "version": "v1", "kind": "Pod"}, "operation": "UPDATE", "namespace": "n", "object": object}});
    let review = review.to_string().into_bytes();
    let (status, body) = ask(address, path, review.len(), std::iter::once(review)).await;
    assert_eq!(status, 200, "{body}");
    serde_json::from_str(&body).unwrap()
}

const SOON: Duration = Duration::from_secs(20);

/// The API server ignores failures of calls of the webhooks that advise, but no refusals.
#[tokio::test]
async fn a_path_that_advises_answers_with_a_failure_but_to_what_is_too_large_and_others_with_a_refusal() {
    let address = serving(gate_endpoints(), Writers::Anybody, Limits::default()).await;
    let many = json!({"spec": {"containers": [{"env": vec![json!({}); review::BOUNDS.values]}]}});
    let review = |kind: &str, object: &Value| {
        let review = json!({"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": {"uid": "u-7",
            "kind": {"group": "", "version": "v1", "kind": kind}, "operation": "CREATE", "namespace": "n", "object": object}});
        review.to_string().into_bytes()
    };
    for endpoint in gate_endpoints() {
        for (kind, object, status, words) in [
            ("Pod", &many, 413, "at most 100000"),
            ("Secret", &json!({}), 400, "this path admits v1/Pod"),
            ("Pod", &json!({}), 503, "have not been listed yet"),
        ] {
            let body = review(kind, object);
            let (found, answer) = ask(address, endpoint.path, body.len(), std::iter::once(body)).await;
            let fails = endpoint.advises && status != 413;
            assert_eq!(found, if fails { status } else { 200 }, "{answer}");
            assert!(answer.contains(words), "{answer}");
            assert_eq!(answer.contains("\"allowed\":false"), !fails, "{answer}");
        }
    }
}

#[tokio::test]
async fn what_is_too_large_is_denied_as_a_review_with_its_uid() {
    let address = webhook(Writers::Anybody, Limits::default()).await;
    let many = json!({"spec": {"containers": [{"env": vec![json!({}); review::BOUNDS.values]}]}});
    let response = &review_of(address, "/mutate/pods", &many).await["response"];
    assert_eq!((&response["uid"], &response["allowed"]), (&json!("u-7"), &json!(false)));
    assert_eq!(response["status"]["code"], 413);
    let message = response["status"]["message"].as_str().unwrap();
    for words in ["values", "at most 100000", "make the object smaller"] {
        assert!(message.contains(words), "{message}");
    }
    // Too large to be read to its end; and one that is no review at all.
    let beginning = |text: &str| text.as_bytes().to_vec();
    for (text, status) in [(r#"{"request": {"uid": "u-8", "object": ""#, 200), ("[", 413)] {
        let pieces = (0..160).map(|_| vec![b' '; 64 << 10]);
        let (length, body) = (text.len() + (160 << 16), std::iter::once(beginning(text)).chain(pieces));
        let (found, body) = ask(address, "/validate/pods", length, body).await;
        assert_eq!(found, status, "{body}");
        assert!(body.contains(&format!("has {length} bytes of JSON, at most {MAX_BODY}")), "{body}");
        assert!(status != 200 || body.contains("\"uid\":\"u-8\""), "{body}");
    }
}

#[tokio::test]
async fn a_large_review_is_validated_like_a_small_one() {
    let address = webhook(Writers::Anybody, Limits::default()).await;
    for count in [1, 20_000] {
        let pod = json!({"spec": {"containers": [{"env": vec![json!({"name": "x"}); count]}]}});
        let response = review_of(address, "/mutate/pods", &pod).await["response"].clone();
        assert_eq!(response, json!({"uid": "u-7", "allowed": true}), "an update is not changed");
    }
}

#[test]
fn a_client_that_hangs_up_frees_nothing_that_its_large_review_still_needs() {
    // All large reviews have one thread, which is busy.
    let runtime = tokio::runtime::Builder::new_current_thread().max_blocking_threads(1).enable_all().build();
    runtime.unwrap().block_on(async {
        let (release, latch) = std::sync::mpsc::channel::<()>();
        tokio::task::spawn_blocking(move || latch.recv());
        let service = Arc::new(service(Writers::Anybody));
        let pod = json!({"spec": {"containers": [{"env": vec![json!({"name": "x"}); 20_000]}]}});
        let request = json!({"uid": "r", "operation": "UPDATE", "namespace": "n", "kind": {"version": "v1", "kind": "Pod"},
            "object": pod});
        let measured = review::measure(request.to_string().as_bytes()).unwrap();
        let now = service.clock.now();
        let tree = service.budget.tree(measured, 1, now).await.unwrap();
        let mut others = Vec::new();
        while let Some(other) = service.budget.tree(measured, 1, now).await {
            others.push(other);
        }
        let request = serde_json::from_value(request).unwrap();
        let asked = service.ask(endpoint("/validate/pods").unwrap(), request, tree);
        assert!(timeout(Duration::from_millis(1), asked).await.is_err(), "the thread is busy");
        assert!(service.budget.tree(measured, 1, now).await.is_none(), "the review isn't decided yet");
        release.send(()).unwrap();
        assert!(service.budget.tree(measured, 1, now + SOON).await.is_some());
    });
}

#[tokio::test]
async fn a_guest_that_waits_for_its_slot_leaves_the_budget_to_others() {
    // Its connections are accepted, and nothing is answered.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", silent.local_addr().unwrap()).parse().unwrap();
    let client = kube::Client::try_from(kube::Config::new(address)).unwrap();
    let mut service = service(Writers::Anybody);
    let caches = service.caches.clone();
    service.ledgers = Ledgers::new(client, "core", caches.clone(), service.clock);
    let namespace =
        json!({"metadata": {"name": "n", "labels": {keys::INJECT_RESOURCE: keys::INJECT_ENABLED}}});
    caches.namespace(Change::Applied(serde_json::from_value(namespace).unwrap()));
    let machine = json!({"apiVersion": "imperator.tenzen-y.io/v1alpha1", "kind": "Machine",
        "metadata": {"name": "m", "uid": "u", "labels": {keys::MACHINE_GROUP: "g"}},
        "spec": {"nodePool": [], "machineTypes": [{"name": "t", "spec": {"cpu": 1, "memory": 1}, "available": 9}]},
        "status": {"availableMachines": [{"name": "t", "usage": {"maximum": 9, "slots": 9}}]}});
    caches.apply_machine(Change::Applied(serde_json::from_value(machine).unwrap()), Duration::ZERO);
    let labels = json!({keys::MACHINE_GROUP: "g", keys::MACHINE_TYPE: "t", keys::POD_ROLE: "guest"});
    let guest = |count: usize| {
        json!({"uid": "r", "operation": "CREATE", "namespace": "n", "kind": {"version": "v1", "kind": "Pod"},
            "object": {"metadata": {"name": "p", "uid": "u", "labels": labels},
                "spec": {"containers": [{"name": "c", "env": vec![json!({"name": "x"}); count]}]}}})
    };
    let measured = |count: usize| review::measure(guest(count).to_string().as_bytes()).unwrap();
    let mut request: Request = serde_json::from_value(guest(1000)).unwrap();
    let labels = [(keys::INJECT_RESOURCE, keys::INJECT_ENABLED)].into();
    let mutated = webhooks::decide(Context::new(&caches, &service.settings), &mut request, Some(&labels));
    assert!(mutated.unwrap().reserve.is_some(), "it needs a slot");

    let (service, mut others) = (Arc::new(service), Vec::new());
    let now = service.clock.now();
    let tree = service.budget.tree(measured(1000), 1, now).await.unwrap();
    for count in [1000, 0] {
        while let Some(other) = service.budget.tree(measured(count), 1, now).await {
            others.push(other);
        }
    }
    let (judge, guests) = (service.clone(), endpoint("/validate/guests").unwrap());
    let judged = tokio::spawn(async move { judge.judge(guests, request, tree, (now, now)).await });
    assert!(service.budget.tree(measured(500), 1, now + SOON).await.is_some(), "it needs its texts alone");
    judged.abort();
}

#[tokio::test]
async fn paths_that_write_can_demand_a_certificate() {
    let address = webhook(Writers::Certified, Limits::default()).await;
    for path in ["/validate/guests", "/validate/machines"] {
        let response = &review_of(address, path, &json!({})).await["response"];
        assert_eq!((&response["uid"], &response["status"]["code"]), (&json!("u-7"), &json!(403)), "{path}");
        assert!(response["status"]["message"].as_str().unwrap().contains("has to show a certificate"));
    }
    assert_eq!(review_of(address, "/mutate/pods", &json!({})).await["response"]["allowed"], true);
    let open = webhook(Writers::Anybody, Limits::default()).await;
    assert_eq!(review_of(open, "/validate/guests", &json!({})).await["response"]["allowed"], true);
}

/// As many streams as there may be, each with a body that never ends: others are answered, and the connection ends.
#[tokio::test]
async fn bodies_that_never_end_delay_no_other_request() {
    let limits = Limits { request: Duration::from_secs(2), ..crate::limits(512) };
    let address = webhook(Writers::Anybody, limits).await;
    let (mut sender, connection) =
        h2::client::handshake(TcpStream::connect(address).await.unwrap()).await.unwrap();
    let connection = tokio::spawn(connection);
    let mut hanging = Vec::new();
    for _ in 0..16 {
        let request = http::Request::post("http://x/mutate/pods").body(()).unwrap();
        sender = sender.ready().await.unwrap();
        let (answer, mut body) = sender.send_request(request, false).unwrap();
        hanging.push(answer);
        tokio::spawn(async move {
            let mut left = 4 << 20;
            while left > 0 {
                body.reserve_capacity(left);
                let Some(Ok(room)) = futures::future::poll_fn(|cx| body.poll_capacity(cx)).await else {
                    break;
                };
                let _ = body.send_data(vec![b' '; room].into(), false);
                left -= room;
            }
            // It is held open.
            let _ = futures::future::poll_fn(|cx| body.poll_reset(cx)).await;
        });
    }
    for _ in 0..20 {
        assert_eq!(review_of(address, "/mutate/pods", &json!({})).await["response"]["allowed"], true);
    }
    for answer in hanging {
        // By the deadline, or to make room for another.
        let answer = timeout(SOON, answer).await.expect("each ends");
        assert!(answer.is_err() || answer.is_ok_and(|answer| answer.status() == 503));
    }
    drop(sender);
    let _ = timeout(SOON, connection).await.expect("the connection ends");
}
