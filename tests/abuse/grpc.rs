//! A tenant with a certificate, against the manager's gRPC port.

use std::convert::Infallible;

use bytes::Bytes;
use futures::StreamExt;
use futures::future::join_all;
use http::Request;
use http_body_util::StreamBody;
use hyper::body::Frame;
use outrigger_api::conditions::Status;
use outrigger_proto::v1;
use outrigger_proto::v1::workload_rule_service_client::WorkloadRuleServiceClient;
use outrigger_proto::v1::workload_stream_request::Message;
use outrigger_tests::attacks::{self, STREAM};
use outrigger_tests::outrigger::{Outrigger, tenant_identity};
use outrigger_tests::stream::{self, about, update};
use outrigger_tests::tenant::{Tenant, rule_for};
use outrigger_tests::{InWords, eventually, holds};
use serde_json::json;
use tonic::Code;
use tonic::transport::Channel;

use crate::abuse::{alone, is_modest, neighbour};

pub(crate) async fn channel(o: &Outrigger, tenant: &str) -> Channel {
    stream::channel(&o.client_tls(tenant, &[&tenant_identity(tenant)]), o.grpc_port).await.unwrap()
}

/// Sends one message of these bytes; what the manager says to that.
async fn say(o: &Outrigger, tenant: &str, message: Bytes) -> tonic::Status {
    attacks::say(channel(o, tenant).await, tenant, message).await.unwrap_err()
}

#[tokio::test]
async fn workloads_of_two_bytes_are_refused_before_they_are_decoded() {
    let _alone = alone().await;
    let o = Outrigger::shared().await;
    let neighbour = neighbour(o, "ab-quiet").await;
    let t = Tenant::without_agent(o, "ab-empty", &[]).await;
    let empty = attacks::sync(8 << 20, &[]);
    // A state with a map of maps of nothing: each item is two bytes too.
    let items = [&[0x12, 0x80, 0x08][..], &[0x1a, 0].repeat(512)].concat();
    let items = attacks::sync(16 << 10, &items);
    assert!(empty.len() >= 16 << 20 && items.len() >= 16 << 20);
    for _ in 0..2 {
        let all = [&empty, &items].map(|message| say(o, "ab-empty", message.clone()));
        for status in join_all(all).await {
            assert!([Code::ResourceExhausted, Code::Aborted].contains(&status.code()), "{status}");
        }
        neighbour.goes_on(5).await;
    }
    let status = eventually("it is refused", || async {
        let status = say(o, "ab-empty", empty.clone()).await;
        if status.code() == Code::ResourceExhausted { Ok(status) } else { Err(status.to_string()) }
    })
    .await;
    let words = "has 8388608 entries of repeated fields, at most 50000 are allowed";
    assert!(status.message().contains(words), "{status}");
    t.reaches_limits(&[words]).await;
    neighbour.undisturbed().await;
    is_modest("manager", &format!("--bind-address=tcp://127.0.0.1:{}", o.grpc_port));
}

/// A call with the beginning of a message of so many bytes, that never goes on.
async fn hold(channel: &Channel, tenant: &str, length: u32) {
    use tonic::client::GrpcService as _;
    let header: Bytes = [&[0][..], &length.to_be_bytes()].concat().into();
    let frames = futures::stream::once(async move { Ok::<_, Infallible>(Frame::data(header)) });
    let body = StreamBody::new(frames.chain(futures::stream::pending()));
    let request = Request::post(format!("http://manager.outrigger{STREAM}"))
        .header("content-type", "application/grpc")
        .header("tenant-id", tenant)
        .header("te", "trailers")
        .body(tonic::body::Body::new(body))
        .unwrap();
    let mut channel = channel.clone();
    std::future::poll_fn(|context| channel.poll_ready(context)).await.unwrap();
    tokio::spawn(channel.call(request));
}

#[tokio::test]
async fn messages_that_never_end_hold_up_nobody_else() {
    let _alone = alone().await;
    let o = Outrigger::shared().await;
    let _loud = Tenant::without_agent(o, "ab-hold", &[]).await;
    let loud = channel(o, "ab-hold").await;
    for _ in 0..4 {
        hold(&loud, "ab-hold", 32 << 20).await;
    }
    let t = Tenant::with_rule_only(o, "ab-beside").await;
    let opened = t.opens_stream([update("w1", &t.node("a"))]).await;
    t.ready(1).await;
    // Its next sync is large enough to need a part of the budget.
    let mut updates: Vec<_> = (0..5_000).map(|i| update(&format!("x{i}"), "nowhere")).collect();
    for update in &mut updates {
        update.workload_state.as_mut().unwrap().extra.clear();
    }
    updates.push(update("w1", &t.node("a")));
    opened.0.send(Message::WorkloadSync(v1::WorkloadSync { workload_updates: updates })).await.unwrap();
    opened.0.send(Message::WorkloadUpdate(update("w2", &t.node("a")))).await.unwrap();
    t.ready(2).await;
    assert!(!opened.1.is_finished(), "its stream has ended");
    t.condition_says("r", "Matched", Status::True, "Matches", &["2 of 5002"]).await;
}

#[tokio::test]
async fn calls_for_rules_are_slowed_down_and_then_refused_and_others_go_on() {
    let _alone = alone().await;
    let o = Outrigger::shared().await;
    let loud = Tenant::without_agent(o, "ab-calls", &[]).await;
    let quiet = Tenant::without_agent(o, "ab-few", &[]).await;
    for tenant in [&loud, &quiet] {
        tenant.rule("r", rule_for("app", "web")).await;
    }
    loud.set(json!({"limits": {"ruleCallsPerSecond": 1}})).await.unwrap();
    let mut calls = WorkloadRuleServiceClient::new(channel(o, "ab-calls").await);
    let words = "Tenant spec.limits.ruleCallsPerSecond: 1 more calls would wait for";
    eventually("the limit is known and held", || async {
        let all = (0..40).map(|_| {
            let mut calls = calls.clone();
            async move { calls.get(about("ab-calls", v1::GetRequest { id: "r".into() })).await.err() }
        });
        let refused: Vec<_> = join_all(all).await.into_iter().flatten().collect();
        assert!(refused.iter().all(|status| status.code() == Code::ResourceExhausted), "{refused:?}");
        match refused.iter().find(|status| status.message().starts_with(words)) {
            Some(status) if status.message().contains("at most 1 a second are allowed") => Ok(()),
            _ => Err(format!("{refused:?}")),
        }
    })
    .await;
    let mut others = WorkloadRuleServiceClient::new(channel(o, "ab-few").await);
    for _ in 0..20 {
        others.get(about("ab-few", v1::GetRequest { id: "r".into() })).await.unwrap();
    }
    loud.set(json!({"limits": {}})).await.unwrap();
    eventually("it is served again", || async {
        let get = about("ab-calls", v1::GetRequest { id: "r".into() });
        calls.clone().get(get).await.map(drop).in_words()
    })
    .await;
    // Pages are of 16 rules at most, whatever is asked for.
    for i in 0..17 {
        quiet.rule(&format!("p{i}"), rule_for("app", "none")).await;
    }
    let list = v1::ListRequest { page_size: 500, ..v1::ListRequest::default() };
    let page = others.list(about("ab-few", list)).await.unwrap().into_inner();
    assert_eq!((page.rules.len(), page.next_page_token.is_empty()), (16, false));
    let all = others.list(about("ab-few", v1::ListRequest::default())).await.unwrap().into_inner();
    assert_eq!(all.rules.len(), 18);
    // A rule that is written as it is leaves no trace.
    let rule =
        others.get(about("ab-few", v1::GetRequest { id: "r".into() })).await.unwrap().into_inner().rule;
    let version = quiet.rules().get("r").await.unwrap().metadata.generation;
    let update = v1::UpdateRequest { rule };
    calls = others;
    calls.update(about("ab-few", update)).await.unwrap();
    assert_eq!(quiet.rules().get("r").await.unwrap().metadata.generation, version);
}

#[tokio::test]
async fn one_identity_cannot_use_up_the_connections() {
    let _alone = alone().await;
    let o = Outrigger::shared().await;
    let neighbour = neighbour(o, "ab-conn-q").await;
    let loud = Tenant::without_agent(o, "ab-conn", &[]).await;
    // It has a stream, and then many idle connections: these go, the stream stays.
    let (sender, call) = loud.opens_stream([]).await;
    let mut idle = Vec::new();
    for _ in 0..200 {
        idle.push(channel(o, "ab-conn").await);
    }
    neighbour.goes_on(5).await;
    let mut other = WorkloadRuleServiceClient::new(channel(o, "ab-conn-q").await);
    other.get(about("ab-conn-q", v1::GetRequest { id: "neighbour".into() })).await.unwrap();
    let established = || {
        let port = format!(":{:04X}", o.grpc_port);
        let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
        let of = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        of.filter(|parts| parts[1].ends_with(&port) && parts[3] == "01").count()
    };
    eventually("what is too much is closed", || async {
        let count = established();
        holds(count < 100, count.to_string())
    })
    .await;
    assert!(!call.is_finished(), "the stream is no idle connection");
    drop((sender, idle));
    neighbour.undisturbed().await;
}
