//! The workload stream, sent by the test itself: what an agent would never say, and what a Pod can't do.

use std::collections::HashMap;

use kube::ResourceExt;
use outrigger_api::conditions::Status;
use outrigger_proto::v1::workload_chunked_stream_request::Message as Chunked;
use outrigger_proto::v1::workload_service_client::WorkloadServiceClient;
use outrigger_proto::v1::workload_stream_request::Message;
use outrigger_proto::v1::{
    WorkloadDelete, WorkloadSync, WorkloadSyncBegin, WorkloadSyncChunk, WorkloadSyncEnd, WorkloadUpdate,
    workload_state,
};
use outrigger_runtime::tls::ClientTls;
use outrigger_tests::outrigger::{ADMIN, Outrigger};
use outrigger_tests::stream::{Opened, channel, chunked_stream, stream, sync, update};
use outrigger_tests::tenant::{Tenant, node_of, rule_for};
use outrigger_tests::{InWords, eventually, holds, until};
use prost::Message as _;
use serde_json::json;
use tokio::sync::mpsc;
use tonic::Code;

/// A stream as the administrator, who may speak for every tenant.
async fn open(outrigger: &Outrigger, tenant: &[&[u8]]) -> Opened {
    let tls = outrigger.client_tls("tester", &[ADMIN]);
    stream(outrigger.grpc_port, &tls, tenant).await.unwrap()
}

async fn refused(tenant: &[&[u8]], message: Message) -> tonic::Status {
    let (sender, call) = open(Outrigger::shared().await, tenant).await;
    let _ = sender.send(message).await;
    call.await.unwrap().unwrap_err()
}

#[tokio::test]
async fn a_workload_that_moves_takes_its_companion_along() {
    let outrigger = Outrigger::shared().await;
    let t = Tenant::without_agent(outrigger, "moves", &[("a", 1), ("b", 1)]).await;
    t.rule("r", rule_for("app", "web")).await;
    let (sender, call) = open(outrigger, &[b"moves"]).await;
    sender.send(sync([])).await.unwrap();
    sender.send(Message::WorkloadUpdate(update("vm", &t.node("a")))).await.unwrap();
    let before = t.companion().await;
    assert_eq!(node_of(&before), t.node("a-dpu1"));
    sender.send(Message::WorkloadUpdate(update("vm", &t.node("b")))).await.unwrap();
    let after = eventually("it has moved", || async {
        let c = t.companion().await;
        if node_of(&c) == t.node("b-dpu1") { Ok(c) } else { Err(node_of(&c).to_owned()) }
    })
    .await;
    assert_eq!(after.name_any(), before.name_any());
    let delete = WorkloadDelete { workload_metadata: update("vm", "").workload_metadata };
    sender.send(Message::WorkloadDelete(delete)).await.unwrap();
    t.ready(0).await;
    drop(sender);
    call.await.unwrap().unwrap();
}

/// So many workloads with as many bytes each, and one that a rule matches.
fn large(count: usize, bytes: usize, node: &str) -> Vec<WorkloadUpdate> {
    let mut updates: Vec<WorkloadUpdate> = (0..count)
        .map(|i| {
            let mut other = update(&format!("w{i}"), "nowhere");
            let labels = workload_state::ExtraData {
                data: HashMap::from([("filling".to_owned(), "x".repeat(bytes))]),
            };
            other.workload_state.as_mut().unwrap().extra.insert("labels".into(), labels);
            other
        })
        .collect();
    updates.push(update("one", node));
    updates
}

#[tokio::test]
async fn a_large_sync_is_taken_in_one_message() {
    let outrigger = Outrigger::shared().await;
    let t = Tenant::with_rule_only(outrigger, "large-sync").await;
    let (sender, call) = open(outrigger, &[b"large-sync"]).await;
    let sync = WorkloadSync { workload_updates: large(8000, 3900, &t.node("a")) };
    assert!((30 << 20..32 << 20).contains(&sync.encoded_len()), "{}", sync.encoded_len());
    sender.send(Message::WorkloadSync(sync)).await.unwrap();
    t.companion().await;
    t.condition_says("r", "Matched", Status::True, "Matches", &["1 of 8001"]).await;
    drop(sender);
    call.await.unwrap().unwrap();
}

/// A sync in chunks of these workloads, without its end.
async fn send_chunks(sender: &mpsc::Sender<Chunked>, updates: Vec<WorkloadUpdate>) {
    let begin = WorkloadSyncBegin { workloads: i64::try_from(updates.len()).unwrap() };
    sender.send(Chunked::WorkloadSyncBegin(begin)).await.unwrap();
    for chunk in updates.chunks(100) {
        let chunk = WorkloadSyncChunk { workload_updates: chunk.to_vec() };
        sender.send(Chunked::WorkloadSyncChunk(chunk)).await.unwrap();
    }
}

#[tokio::test]
async fn a_sync_of_any_size_is_taken_in_chunks_and_counts_at_its_end() {
    let outrigger = Outrigger::shared().await;
    let t = Tenant::with_rule_only(outrigger, "chunked").await;
    let tls = outrigger.client_tls("chunked", &[ADMIN]);
    let (sender, call) = chunked_stream(outrigger.grpc_port, &tls, "chunked").await.unwrap();
    let updates = large(8000, 9000, &t.node("a"));
    assert!(updates.iter().map(prost::Message::encoded_len).sum::<usize>() > 64 << 20);
    send_chunks(&sender, updates).await;
    sender.send(Chunked::WorkloadSyncEnd(WorkloadSyncEnd {})).await.unwrap();
    let companion = t.companion().await;
    t.condition_says("r", "Matched", Status::True, "Matches", &["1 of 8001"]).await;
    // One that is broken off takes nothing away, and what it has sent counts.
    send_chunks(&sender, vec![update("two", &t.node("a"))]).await;
    t.ready(2).await;
    drop(sender);
    call.await.unwrap().unwrap();
    let (sender, call) = chunked_stream(outrigger.grpc_port, &tls, "chunked").await.unwrap();
    send_chunks(&sender, vec![update("one", &t.node("a"))]).await;
    connected(&t, true).await;
    assert_eq!(t.ready(2).await.iter().filter(|c| c.uid() == companion.uid()).count(), 1);
    sender.send(Chunked::WorkloadSyncEnd(WorkloadSyncEnd {})).await.unwrap();
    assert_eq!(t.ready(1).await[0].uid(), companion.uid());
    // What doesn't belong into a sync is refused.
    send_chunks(&sender, vec![]).await;
    sender.send(Chunked::WorkloadUpdate(update("x", "n"))).await.unwrap();
    let status = call.await.unwrap().unwrap_err();
    assert!(status.message().contains("workload_sync_begin has begun a sync"), "{status}");
    let (sender, call) = chunked_stream(outrigger.grpc_port, &tls, "chunked").await.unwrap();
    sender.send(Chunked::WorkloadSyncEnd(WorkloadSyncEnd {})).await.unwrap();
    let status = call.await.unwrap().unwrap_err();
    assert!(status.message().contains("no sync has begun"), "{status}");
    assert_eq!(t.ready(1).await[0].uid(), companion.uid());
}

#[tokio::test]
async fn a_sync_over_a_limit_is_refused_before_its_chunks_and_the_tenant_says_so() {
    let outrigger = Outrigger::shared().await;
    let t = Tenant::without_agent(outrigger, "chunked-over", &[("a", 1)]).await;
    t.set(json!({"limits": {"workloads": 3}})).await.unwrap();
    let tls = outrigger.client_tls("chunked-over", &[ADMIN]);
    let words = "Tenant spec.limits.workloads: 4 would be used, at most 3 are allowed";
    eventually("the limit is known", || async {
        let opened = chunked_stream(outrigger.grpc_port, &tls, "chunked-over").await;
        let (sender, call) = opened.in_words()?;
        let begin = WorkloadSyncBegin { workloads: 4 };
        sender.send(Chunked::WorkloadSyncBegin(begin)).await.in_words()?;
        drop(sender);
        match call.await.in_words()? {
            Err(status) if status.message() == words => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    t.reaches_limits(&[words]).await;
}

#[tokio::test]
async fn a_newer_stream_of_a_tenant_takes_over() {
    let outrigger = Outrigger::shared().await;
    let t = Tenant::with_rule_only(outrigger, "newer").await;
    let (old, old_call) = open(outrigger, &[b"newer"]).await;
    old.send(sync([update("w", &t.node("a"))])).await.unwrap();
    let before = t.companion().await;
    let (new, _new_call) = open(outrigger, &[b"newer"]).await;
    new.send(Message::WorkloadUpdate(update("x", &t.node("a")))).await.unwrap();
    t.ready(2).await;
    // It ends by itself, and whatever it still says is not heard.
    let _ = old.send(sync([])).await;
    let status = old_call.await.unwrap().unwrap_err();
    assert_eq!(status.code(), Code::Aborted, "{status}");
    assert!(
        t.ready(2).await.iter().any(|c| c.uid() == before.uid()),
        "the old stream's word no longer counts"
    );
}

/// Waits until a manager counts so many open streams.
async fn streams(admin: u16, expected: f64) {
    eventually(&format!("{expected} streams"), || async {
        let now = Outrigger::metric(admin, "outrigger_workload_streams", "").await?;
        holds((now - expected).abs() < 0.5, now.to_string())
    })
    .await;
}

/// Waits until the Tenant says that it is connected, or that it is not.
async fn connected(t: &Tenant, expected: bool) {
    until(&format!("connected: {expected}"), &t.object(), &t.id, |tenant| {
        let stream = tenant.status.unwrap_or_default().stream.ok_or("no stream")?;
        holds(stream.connected == expected, format!("{stream:?}"))
    })
    .await;
}

#[tokio::test]
async fn a_stream_whose_agent_goes_away_ends_as_any_other() {
    let outrigger = Outrigger::shared().await;
    let t = Tenant::without_agent(outrigger, "goes-away", &[("a", 1)]).await;
    let (grpc, admin) = outrigger.another_manager("manager-gone", &[]).await;
    let _manager = outrigger.plane.ends("manager-gone");
    t.start_agent(&[format!("--manager-address=https://127.0.0.1:{grpc}")]);
    streams(admin, 1.0).await;
    connected(&t, true).await;
    outrigger.plane.command("stop agent-goes-away").unwrap();
    streams(admin, 0.0).await;
    connected(&t, false).await;
    // One after the other they wait for their turn to claim, and go while they do: more than there may be at once.
    let tls = outrigger.client_tls("goes-away", &[ADMIN]);
    for _ in 0..6 {
        let (sender, call) = stream(grpc, &tls, &[b"goes-away"]).await.unwrap();
        streams(admin, 1.0).await;
        call.abort();
        drop(sender);
        streams(admin, 0.0).await;
    }
    let (sender, call) = stream(grpc, &tls, &[b"goes-away"]).await.unwrap();
    sender.send(sync([])).await.unwrap();
    connected(&t, true).await;
    drop(sender);
    call.await.unwrap().unwrap();
    outrigger.plane.command("term manager-gone").unwrap();
}

#[tokio::test]
async fn what_is_no_tenant_is_refused() {
    let sync = || sync([]);
    for (tenant, code, part) in [
        (&[][..], Code::InvalidArgument, "tenant-id: is missing"),
        (&[&b""[..]], Code::InvalidArgument, "tenant id is empty"),
        (&[b"Not A Tenant"], Code::InvalidArgument, "malformed"),
        (&[b"../x"], Code::InvalidArgument, "malformed"),
        (&["ä".as_bytes()], Code::InvalidArgument, "ASCII"),
        (&[b"a", b"b"], Code::InvalidArgument, "more than once"),
        (&[b"unheard-of"], Code::NotFound, "unheard-of"),
    ] {
        let status = refused(tenant, sync()).await;
        assert_eq!(status.code(), code, "{status}");
        assert!(status.message().contains(part), "{status}");
    }
}

#[tokio::test]
async fn what_is_no_workload_is_refused_by_its_field() {
    let outrigger = Outrigger::shared().await;
    let _t = Tenant::without_agent(outrigger, "nowork", &[]).await;
    eventually("the tenant is known", || async {
        let (sender, call) = open(outrigger, &[b"nowork"]).await;
        drop(sender);
        call.await.in_words()?.in_words()
    })
    .await;
    let mut no_id = update("", "n");
    no_id.workload_metadata.as_mut().unwrap().id = String::new();
    let mut vm = update("w", "n");
    vm.workload_metadata.as_mut().unwrap().resource_type = "v1/VM".into();
    for (message, part) in [
        (Message::WorkloadUpdate(WorkloadUpdate::default()), "workload_update.workload_metadata: is missing"),
        (Message::WorkloadDelete(WorkloadDelete::default()), "workload_delete.workload_metadata: is missing"),
        (Message::WorkloadUpdate(no_id), "workload_update.workload_metadata.id: workload id is empty"),
        (
            sync([update("a", ""), vm]),
            "workload_sync.workload_updates[1].workload_metadata.resource_type: \"v1/VM\"",
        ),
    ] {
        let status = refused(&[b"nowork"], message).await;
        assert_eq!(status.code(), Code::InvalidArgument, "{status}");
        assert!(status.message().contains(part), "{status}");
    }
}

#[tokio::test]
async fn a_message_over_the_limit_is_refused() {
    let t = Tenant::without_agent(Outrigger::shared().await, "toolarge", &[]).await;
    let mut huge = update("w", "n");
    huge.workload_state.as_mut().unwrap().node_name = "x".repeat(33 << 20);
    let status = eventually("the tenant is known", || async {
        let status = refused(&[b"toolarge"], Message::WorkloadUpdate(huge.clone())).await;
        if status.code() == Code::NotFound { Err("not yet".to_owned()) } else { Ok(status) }
    })
    .await;
    assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
    let words = "bytes, at most 33554432 are allowed";
    assert!(status.message().contains("has 346") && status.message().contains(words), "{status}");
    t.reaches_limits(&[words]).await;
}

#[tokio::test]
async fn a_client_without_certificate_is_refused() {
    let outrigger = Outrigger::shared().await;
    let tls = ClientTls { ca: outrigger.authority.file(), identity: None };
    // With TLS 1.3 the refusal comes after the client has finished its part, so with the first call at the latest.
    let outcome = match channel(&tls, outrigger.grpc_port).await {
        Err(error) => Err(format!("{error:#}")),
        Ok(channel) => {
            let mut client = WorkloadServiceClient::new(channel);
            client.workload_stream(tokio_stream::empty()).await.map(drop).in_words()
        }
    };
    assert!(outcome.is_err());
}
