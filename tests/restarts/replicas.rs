//! Two managers at once, claims on hosts that no webhook saw, and plain text.

use k8s_openapi::api::core::v1::Node;
use std::time::Duration;

use kube::api::{Api, DeleteParams};
use kube::{Client, ResourceExt};
use outrigger_api::Tenant as Object;
use outrigger_api::conditions::Status;
use outrigger_core::keys;
use outrigger_tests::outrigger::{Outrigger, ports, tenant_identity};
use outrigger_tests::stream::{self, stream};
use outrigger_tests::tenant::{Tenant, dpu, rule_with, tenant, tenant_is};
use outrigger_tests::{InWords, always, eventually, holds, until};
use serde_json::json;
use tonic::Code;

use crate::restarts::{alone, companion_writes};

#[tokio::test]
async fn of_two_managers_the_one_with_the_latest_claim_writes() {
    let (_one, o) = alone().await;
    let (port, admin) = o.another_manager("manager-2", &[]).await;
    let t = Tenant::with_rule_only(o, "two").await;
    let claim = async || {
        let status = t.object().get("two").await.unwrap().status.unwrap();
        status.stream.map(|s| (s.claim, s.connected, s.holder)).unwrap()
    };
    let first = t.opens_stream(t.on_a(&["w1", "w2"])).await;
    let before = t.serves(&["w1", "w2"]).await;
    let (number, connected, one) = claim().await;
    assert_eq!((number, connected), (1, true));

    // The agent jumps. Its old connection stays half open: nobody reads what is sent on it.
    let second = t.opens_stream_at(port, t.on_a(&["w1", "w2", "w3"])).await;
    let after = t.serves(&["w1", "w2", "w3"]).await;
    assert!(before.iter().all(|(name, uid)| after.get(name) == Some(uid)), "nothing was made twice");
    let (number, _, two) = claim().await;
    assert_eq!(number, 2);
    assert_ne!(one, two);
    let status = first.1.await.unwrap().unwrap_err();
    assert_eq!(status.code(), Code::Aborted, "{status}");
    let _ = first.0.send(stream::sync([])).await;

    // The older claim no longer writes anything, whatever happens.
    let frozen = companion_writes(&o.manager_metrics().await);
    t.pods().delete(&t.companions().await.unwrap()[0].name_any(), &DeleteParams::default()).await.unwrap();
    t.sync(&second, &["w1", "w2"]).await;
    t.serves(&["w1", "w2"]).await;
    t.rule("r", rule_with("/template/metadata/labels/app", json!("newer"))).await;
    eventually("all are replaced", || async {
        let all = t.ready(2).await;
        let new = all.iter().filter(|c| c.labels().get("app").is_some_and(|v| v == "newer")).count();
        holds(new == 2, format!("{new}"))
    })
    .await;
    assert_eq!(companion_writes(&o.manager_metrics().await), frozen);
    t.condition("r", "Synced", Status::True, "StreamConnected").await;

    // It jumps back: the first one knows no workloads until the sync, and then serves.
    let tls = o.client_tls("two", &[&tenant_identity("two")]);
    let third = stream(o.grpc_port, &tls, &[b"two"]).await.unwrap();
    let status = second.1.await.unwrap().unwrap_err();
    assert_eq!(status.code(), Code::Aborted, "{status}");
    assert_eq!(claim().await, (3, true, one));
    t.serves(&["w1", "w2"]).await;
    let frozen = companion_writes(&Outrigger::metrics_of(admin).await.unwrap());
    t.sync(&third, &["w2"]).await;
    t.serves(&["w2"]).await;
    assert_eq!(companion_writes(&Outrigger::metrics_of(admin).await.unwrap()), frozen);

    // The leader goes: the other one leads, in its place.
    o.plane.command("term manager").unwrap();
    let status = third.1.await.unwrap().unwrap_err();
    assert_eq!(status.code(), Code::Unavailable, "{status}");
    let nodes = t.nodes();
    let began = std::time::Instant::now();
    o.plane.infra.apply(&[dpu("two-late", &t.node("a"))]).unwrap();
    until("somebody leads", &nodes, "two-late", |node| {
        holds(node.labels().contains_key(keys::NODE_TENANT), "nobody")
    })
    .await;
    println!("a new leader has acted after {:?}", began.elapsed());
    let _fourth = t.opens_stream_at(port, t.on_a(&["w2", "w4"])).await;
    t.serves(&["w2", "w4"]).await;
    o.plane.command("start manager").unwrap();
    o.ready().await;
    o.plane.command("term manager-2").unwrap();
}

#[tokio::test]
async fn a_host_that_two_claim_at_once_belongs_to_neither() {
    let (_one, o) = alone().await;
    let infra: Client = o.plane.infra.client().await;
    let (tenants, nodes): (Api<Object>, Api<Node>) = (Api::all(infra.clone()), Api::all(infra));
    // As if both had been admitted in the same moment.
    let patch = json!([{"op": "remove", "path": "/webhooks/3"}]);
    o.plane.infra.patch("validatingwebhookconfiguration/outrigger", &[], &patch).unwrap();
    o.plane.infra.apply(&[dpu("c-dpu2", "c-host2")]).unwrap();
    let old = tenant("c-old", json!({"hosts": ["c-host2"], "identities": ["c.example"]}));
    o.plane.infra.apply(&[old]).unwrap();
    tenant_is(&tenants, "c-old", "Ready", Status::True, "Served").await;
    let both = eventually("two claims get through", || async {
        let claims = ["c-one", "c-two"].map(|id| tenant(id, json!({"hosts": ["c-host1"]})));
        o.plane.infra.apply(&claims).in_words()
    });
    both.await;
    for (id, rival) in [("c-one", "c-two"), ("c-two", "c-one")] {
        let message = tenant_is(&tenants, id, "HostsReady", Status::False, "HostConflict").await;
        assert!(message.contains(&format!("c-host1 is claimed by tenant {rival} too")), "{message}");
        tenant_is(&tenants, id, "Ready", Status::False, "HostConflict").await;
    }
    o.plane.infra.apply(&[dpu("c-dpu1", "c-host1")]).unwrap();
    let owner = async |name: &str| nodes.get(name).await.unwrap().labels().get(keys::NODE_TENANT).cloned();
    always("no tenant owns it", Duration::from_secs(2), async || match owner("c-dpu1").await {
        None => Ok(()),
        Some(owner) => Err(owner),
    })
    .await;
    // A claim on what another has already: that one keeps it, and both say so. The same for identities.
    let late = tenant("c-two", json!({"hosts": ["c-host2"], "identities": ["c.example"]}));
    o.plane.infra.apply(&[late]).unwrap();
    tenant_is(&tenants, "c-old", "HostsReady", Status::False, "HostConflict").await;
    tenant_is(&tenants, "c-two", "HostsReady", Status::False, "HostConflict").await;
    let message = tenant_is(&tenants, "c-old", "Accepted", Status::False, "IdentityConflict").await;
    assert!(message.contains("c.example is an identity of tenant c-two too"), "{message}");
    assert_eq!(owner("c-dpu2").await.as_deref(), Some("c-old"));
    // One gives way, and the other is served.
    tenant_is(&tenants, "c-one", "Ready", Status::True, "Served").await;
    eventually("it is the other's", async || match owner("c-dpu1").await.as_deref() {
        Some("c-one") => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await;
    o.plane.infra.apply(&o.webhook_configurations().unwrap()).unwrap();
    o.plane.infra.kubectl(&["delete", "tenants", "c-old", "c-one", "c-two", "--timeout=60s"]).unwrap();
}

#[tokio::test]
async fn plain_text_is_for_a_socket_and_only_when_asked_for() {
    let (_one, o) = alone().await;
    let t = Tenant::with_rule_only(o, "plain").await;
    let [admin] = ports().unwrap();
    let socket = format!("unix://{}", o.plane.dir.join("grpc.sock").display());
    let manager = [
        "--insecure".to_owned(),
        format!("--bind-address={socket}"),
        format!("--admin-address=127.0.0.1:{admin}"),
    ];
    o.run_bare("manager-plain", "manager", &manager).unwrap();
    o.ready_at("manager-plain", admin).await;
    let agent = [
        "--insecure".to_owned(),
        format!("--manager-address={socket}"),
        "--tenant-id=plain".to_owned(),
        format!("--namespace={}", t.source),
        "--admin-address=127.0.0.1:0".to_owned(),
    ];
    o.run_bare("agent-plain", "agent", &agent).unwrap();
    t.web("w").await;
    t.companion().await;
    o.plane.command("term manager-plain").unwrap();
    o.plane.command("term agent-plain").unwrap();
    // Anywhere else it is refused at the start.
    for (args, words) in [
        (&["--insecure", "--bind-address=tcp://0.0.0.0:0"][..], "only allowed on loopback"),
        (&["--bind-address=tcp://127.0.0.1:0"], "--tls-cert-file and --tls-key-file are needed"),
    ] {
        let output = o.output(&[&["manager"], args].concat()).unwrap();
        assert!(!output.status.success());
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(text.contains(words), "{text}");
    }
    let pair = o.authority.issue("noca", &["127.0.0.1"]).unwrap();
    let [cert, key] = pair.serving_flags();
    let output = o.output(&["manager", "--bind-address=tcp://127.0.0.1:0", &cert, &key]).unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && text.contains("--tls-client-ca-file is needed"), "{text}");
}
