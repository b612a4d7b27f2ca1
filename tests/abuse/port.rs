//! The webhook's port and its admin port.

use kube::api::Api;
use outrigger_runtime::tls::ClientTls;
use outrigger_tests::attacks::{hold, pod_of_expressions};
use outrigger_tests::control_plane::ControlPlane;
use outrigger_tests::outrigger::{Outrigger, get, ports};
use outrigger_tests::tenant::{self, Tenant};
use outrigger_tests::{InWords, create, merge, refusal};
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::abuse::{alone, is_modest, neighbour};

/// The argument that its webhook alone has.
fn webhook(o: &Outrigger) -> String {
    format!("--bind-address=127.0.0.1:{}", o.webhook_port)
}

/// Without a certificate of a client.
fn stranger(o: &Outrigger) -> ClientTls {
    ClientTls { ca: o.authority.file(), identity: None }
}

#[tokio::test]
async fn requests_that_never_end_take_no_memory_from_others() {
    let _alone = alone().await;
    let o = Outrigger::shared().await;
    let neighbour = neighbour(o, "hold").await;
    let mut attack = Vec::new();
    for _ in 0..20 {
        attack.push(hold(&stranger(o), o.webhook_port, "/mutate/pods").await.unwrap());
        neighbour.goes_on(5).await;
    }
    // Beyond what a body may take before it is given up, and what a request may.
    for _ in 0..8 {
        neighbour.goes_on(20).await;
    }
    is_modest("webhook", &webhook(o));
    drop(attack);
    neighbour.undisturbed().await;
    is_modest("webhook", &webhook(o));
}

#[tokio::test]
async fn connections_that_say_nothing_keep_nobody_out() {
    let _alone = alone().await;
    let o = Outrigger::shared().await;
    let neighbour = neighbour(o, "idle").await;
    let mut silent = Vec::new();
    for i in 0..1500 {
        silent.push(TcpStream::connect(("127.0.0.1", o.webhook_port)).await.unwrap());
        if i % 4 == 0 {
            let mut stream = TcpStream::connect(("127.0.0.1", o.webhook_admin)).await.unwrap();
            stream.write_all(b"GET /readyz HTTP/1.1\r\nHo").await.unwrap();
            silent.push(stream);
        }
        if i % 100 == 0 {
            neighbour.goes_on(2).await;
            for path in ["/livez", "/readyz"] {
                assert_eq!(get(o.webhook_admin, path).await.unwrap().0, 200, "{path}");
            }
        }
    }
    neighbour.goes_on(10).await;
    neighbour.undisturbed().await;
    is_modest("webhook", &webhook(o));
}

fn pod(spec: &Value) -> k8s_openapi::api::core::v1::Pod {
    let mut pod = json!({"metadata": {"generateName": "large-"}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    json_patch::merge(&mut pod["spec"], spec);
    serde_json::from_value(pod).unwrap()
}

/// What the API server says to the creation of a Pod, as JSON of its own.
async fn try_pod(t: &Tenant, pod: &Value) -> Result<(), String> {
    let request = http::Request::post(format!("/api/v1/namespaces/{}/pods?dryRun=All", t.namespace))
        .header("content-type", "application/json")
        .body(pod.to_string().into_bytes())
        .unwrap();
    t.infra.request::<Value>(request).await.map(drop).in_words()
}

#[tokio::test]
async fn what_takes_long_or_much_is_refused_and_holds_nobody_up() {
    let _alone = alone().await;
    let o = Outrigger::shared().await;
    let t = Tenant::without_agent(o, "much", &[("a", 1)]).await;
    let neighbour = neighbour(o, "beside").await;
    let selector = pod_of_expressions();
    let env = json!({"metadata": {"generateName": "p-"}, "spec": {"containers":
        [{"name": "c", "image": "i", "env": vec![json!({}); 200_000]}]}});
    for pod in [&selector, &env] {
        let said = refusal(|| try_pod(&t, pod)).await;
        assert!(said.contains("values") && said.contains("at most 100000 are allowed"), "{said}");
        assert!(said.contains("make the object smaller"), "{said}");
        for said in futures::future::join_all((0..2).map(|_| try_pod(&t, pod))).await {
            let said = said.expect_err("it is refused");
            // The API server takes seconds of a core to write each, which counts towards the time that it allows the webhook.
            let is_expected =
                said.contains("at most 100000 are allowed") || said.contains("context deadline exceeded");
            assert!(is_expected, "{said}");
        }
        assert_eq!(get(o.webhook_admin, "/livez").await.unwrap().0, 200);
        neighbour.goes_on(5).await;
    }
    // As much as a review may have, and no more: it is validated, for its size. The policy is asked before the validating webhook.
    let fewer = json!({"metadata": {"generateName": "p-"}, "spec": {"containers":
        [{"name": "c", "image": "i", "env": (0..8_000).map(|i| json!({"name": format!("E{i}"), "value": "v"})).collect::<Vec<_>>()}]}});
    for said in futures::future::join_all((0..8).map(|_| try_pod(&t, &fewer))).await {
        let said = said.expect_err("it is refused");
        assert!(said.contains("at most 524288") || said.contains("more than 576 KiB"), "{said}");
    }
    neighbour.undisturbed().await;
    is_modest("webhook", &webhook(o));
}

#[tokio::test]
async fn a_pod_whose_status_would_not_fit_is_refused() {
    let t = Tenant::without_agent(Outrigger::shared().await, "large", &[("a", 1)]).await;
    let pods: Api<k8s_openapi::api::core::v1::Pod> = t.pods();
    let args = |bytes: usize| {
        pod(&json!({"containers": [{"name": "c", "image": "i", "args": ["x".repeat(bytes)]}]}))
    };
    let error = create(&pods, &args(520 << 10)).await.unwrap_err().to_string();
    for words in
        ["spec.containers", "bytes of JSON, at most 524288 are allowed in a tenant's namespace", "ConfigMaps"]
    {
        assert!(error.contains(words), "{error}");
    }
    let made = create(&pods, &args(400 << 10)).await.unwrap();
    let name = made.metadata.name.unwrap();
    let grow = |bytes: usize| {
        let patch = json!({"metadata": {"annotations": {"large": "y".repeat(bytes)}}});
        let pods = pods.clone();
        let name = name.clone();
        async move { merge(&pods, &name, patch).await }
    };
    grow(10 << 10).await.unwrap();
    // Less than what the policy refuses, which is asked first and counts more generously.
    let error = grow(140 << 10).await.unwrap_err().to_string();
    assert!(error.contains("(before the change 4") && error.contains("at most 524288"), "{error}");
}

/// The answer to a forged review, of whoever reaches the port.
async fn forge(o: &Outrigger, port: u16, path: &str) -> Result<Value, String> {
    let review = json!({"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": {"uid": "forged",
        "kind": {"group": "imperator.tenzen-y.io", "version": "v1alpha1", "kind": "Machine"}, "operation": "CREATE",
        "object": {}}})
    .to_string();
    let (_, body) = o.post(port, None, http::Request::builder().uri(path), review).await?;
    serde_json::from_str(&body).map_err(|e| format!("{e}: {body}"))
}

/// A control plane of its own: all calls of its API server go to this webhook.
#[tokio::test]
async fn forged_reviews_are_refused_where_the_api_server_shows_a_certificate() {
    let o = Outrigger::new(ControlPlane::start_infra().unwrap()).unwrap().of_one_test();
    o.install().unwrap();
    let ca = o.plane.dir.join("infra/webhooks/ca.crt");
    let ca = format!("--tls-client-ca-file={}", ca.display());
    o.start_webhook_with(&[ca.clone(), "--tls-client-auth=writers".to_owned()]).unwrap();
    o.start_manager().unwrap();
    o.ready().await;
    let machine = |name: &str| tenant::machine(name, &[], &[("small", 1)]);
    o.plane.infra.apply(&[machine("one")]).unwrap();
    let said = forge(*o, o.webhook_port, "/validate/machines").await.unwrap();
    assert_eq!(
        (&said["response"]["uid"], &said["response"]["status"]["code"]),
        (&json!("forged"), &json!(403)),
        "{said}"
    );
    let message = said["response"]["status"]["message"].as_str().unwrap();
    assert!(message.contains("has to show a certificate"), "{message}");
    let said = forge(*o, o.webhook_port, "/mutate/pods").await.unwrap();
    assert_eq!(said["response"]["status"]["code"], 400, "it is validated: {said}");
    // Everybody: who has none doesn't get to ask.
    let [port, admin] = ports().unwrap();
    o.start_webhook_replica("webhook-all", port, admin, &[ca]).unwrap();
    o.ready_at("webhook-all", admin).await;
    assert!(forge(*o, port, "/mutate/pods").await.is_err());
    o.plane.command("stop webhook").unwrap();
    o.start_webhook_replica(
        "webhook-all-2",
        o.webhook_port,
        o.webhook_admin,
        &[format!("--tls-client-ca-file={}", o.plane.dir.join("infra/webhooks/ca.crt").display())],
    )
    .unwrap();
    o.ready_at("webhook-all-2", o.webhook_admin).await;
    o.plane.infra.apply(&[machine("two")]).unwrap();
}
