//! Agent and manager of different versions. What an agent of an earlier version says is a recording of its bytes; a manager
//! of an earlier version is one that knows less.

mod managers;
mod record;

use bytes::Bytes;
use http::uri::PathAndQuery;
use kube::ResourceExt;
use kube::api::DeleteParams;
use outrigger_api::conditions::Status;
use outrigger_core::keys;
use outrigger_proto::v1::workload_stream_request::Message as Kind;
use outrigger_proto::v1::{WorkloadChunkedStreamRequest, WorkloadStreamRequest, WorkloadSync};
use outrigger_tests::outrigger::{Outrigger, tenant_identity};
use outrigger_tests::stream::{about, channel, update};
use outrigger_tests::tenant::{Tenant, annotation, node_of, rule_for, rule_with};
use outrigger_tests::wire::{Raw, messages};
use outrigger_tests::{always, eventually, holds, is_gone, root};
use prost::Message as _;
use serde_json::json;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

use managers::Older;

/// What an agent has said on its stream: a sync with `first`, updates until `second` is ready, and the end of `first`. Made by
/// [`record::record`].
struct Recording {
    version: &'static str,
    /// Its tenant, whose Pods were on the host `<tenant>-a`.
    tenant: &'static str,
    method: &'static str,
}

/// The agent of the first version, which says everything in one message.
const FIRST: Recording = Recording { version: "0.1.0", tenant: "recorded", method: "WorkloadStream" };

/// The agent of the version that began to sync in chunks.
const CHUNKED: Recording =
    Recording { version: "0.2.0", tenant: "recorded-2", method: "WorkloadChunkedStream" };

impl Recording {
    fn file(&self) -> std::path::PathBuf {
        root().join(format!("tests/e2e/skew/agent-{}.stream", self.version))
    }

    fn messages(&self) -> Vec<Bytes> {
        messages(std::fs::read(self.file()).unwrap().into())
    }

    /// A manager understands it: the one workload that is left has a companion.
    async fn is_understood(&self) {
        let o = Outrigger::shared().await;
        let t = Tenant::with_rule_only(o, self.tenant).await;
        let all = self.messages();
        assert!(all.len() >= 3, "a sync, an update, a delete: {}", all.len());
        let stream = replay(o, self.tenant, self.method, &all).await;
        let companion = eventually("the one that is left has a companion", || async {
            let companion = t.companion().await;
            match annotation(&companion, "workload-name") {
                Some("second") => Ok(companion),
                other => Err(format!("{other:?}")),
            }
        })
        .await;
        assert_eq!(node_of(&companion), t.node("a-dpu1"));
        let workload = annotation(&companion, "entire-workload").unwrap();
        let host = format!("{}-a", self.tenant);
        assert!(workload.contains(&host) && workload.contains("\"app\":\"web\""), "{workload}");
        t.condition("r", "Synced", Status::True, "StreamConnected").await;
        drop(stream);
    }
}

/// Sends these messages as they are, and leaves the stream open for as long as the sender lives.
async fn replay(o: &Outrigger, tenant: &str, method: &str, all: &[Bytes]) -> mpsc::Sender<Bytes> {
    let tls = o.client_tls(tenant, &[&tenant_identity(tenant)]);
    let mut client = tonic::client::Grpc::new(channel(&tls, o.grpc_port).await.unwrap());
    let (sender, receiver) = mpsc::channel(16);
    let request = about(tenant, ReceiverStream::new(receiver));
    let path: PathAndQuery = format!("/universe.workload.v1.WorkloadService/{method}").parse().unwrap();
    tokio::spawn(async move {
        client.ready().await.unwrap();
        client.client_streaming::<_, Bytes, Bytes, Raw>(request, path, Raw).await
    });
    for message in all {
        sender.send(message.clone()).await.unwrap();
    }
    sender
}

#[tokio::test]
async fn what_the_first_agent_said_is_understood() {
    FIRST.is_understood().await;
}

#[tokio::test]
async fn what_an_agent_says_in_chunks_is_understood() {
    CHUNKED.is_understood().await;
}

/// A field that no version knows yet: number 1999, some bytes.
const UNKNOWN: &[u8] = &[0xfa, 0x7c, 3, b'n', b'e', b'w'];

/// A message of a type with one field of this number that is a message too, with a field in each that nobody knows.
fn from_the_future(number: u8, inner: &[u8]) -> Bytes {
    let inner = [inner, UNKNOWN].concat();
    let mut message = vec![number << 3 | 2];
    prost::encoding::encode_varint(inner.len() as u64, &mut message);
    message.extend(inner);
    message.extend(UNKNOWN);
    message.into()
}

#[tokio::test]
async fn what_a_later_agent_adds_is_left_alone() {
    let o = Outrigger::shared().await;
    let t = Tenant::with_rule_only(o, "skew-new").await;
    let workload = update("later", &t.node("a")).encode_to_vec();
    let sync = WorkloadStreamRequest { message: Some(Kind::WorkloadSync(WorkloadSync::default())) };
    let all = [sync.encode_to_vec().into(), from_the_future(1, &workload)];
    assert!(WorkloadStreamRequest::decode(all[1].clone()).is_ok(), "it is a message at all");
    let stream = replay(o, "skew-new", FIRST.method, &all).await;
    let companion = t.companion().await;
    assert_eq!(annotation(&companion, "workload-name"), Some("later"));
    drop(stream);
}

/// An agent for the tenant, at a manager in plain text. Returns its admin port.
fn agent(t: &Tenant, manager: u16) -> u16 {
    t.start_agent_with_admin(&Tenant::in_plain_text(&format!("http://127.0.0.1:{manager}")))
}

#[tokio::test]
async fn a_manager_without_rules_gets_workloads_all_the_same() {
    let o = Outrigger::shared().await;
    let t = Tenant::without_agent(o, "skew-norules", &[("a", 1)]).await;
    let older = Older::without_rules();
    t.own_rule("r", rule_for("app", "web")).await.unwrap();
    t.web("one").await;
    let admin = agent(&t, older.serve());
    let (_, message) = t.own_condition("r", "Synced", Status::False, "ManagerTooOld").await;
    assert!(message.contains("upgrade"), "{message}");
    // It takes no chunks either, and so hears everything in one message.
    older.hears(&["one"]).await;
    t.web("two").await;
    older.hears(&["one", "two"]).await;
    o.ready_at("it", admin).await;
    o.plane.command("term agent-skew-norules").unwrap();
    let log = std::fs::read_to_string(o.plane.log("agent-skew-norules")).unwrap();
    assert_eq!(log.matches("does not support rules").count(), 1, "{log}");
    assert_eq!(log.matches("does not support chunks").count(), 1, "{log}");
    // Nothing was made over there, so nothing holds the rule up.
    t.own_rules().delete("r", &DeleteParams::default()).await.unwrap();
    is_gone(&t.own_rules(), "r").await;
}

#[tokio::test]
async fn a_manager_that_reports_nothing_of_its_rules_gets_each_once() {
    let o = Outrigger::shared().await;
    let t = Tenant::without_agent(o, "skew-silent", &[("a", 1)]).await;
    let older = Older::silent();
    older.has("byhand", b"{}");
    agent(&t, older.serve());
    t.own_rule("r", rule_for("app", "web")).await.unwrap();
    older.eventually(&["create r"]).await;
    t.own_condition("r", "Synced", Status::Unknown, "Pending").await;
    // The same name, and nobody knows whose: it is not the agent's to change.
    t.own_rule("byhand", rule_for("app", "web")).await.unwrap();
    t.own_condition("byhand", "Accepted", Status::False, "NameTaken").await;
    always("nothing is written again", Duration::from_secs(4), || async { older.are(&["create r"]) }).await;
    // Likewise when it turns up between the list and the call: nothing of it is written, also when the agent's rule is deleted.
    older.has_unseen("raced", b"{}");
    t.own_rule("raced", rule_for("app", "web")).await.unwrap();
    t.own_condition("raced", "Accepted", Status::False, "NameTaken").await;
    let raced = t.own_rules().get("raced").await.unwrap();
    assert!(raced.finalizers().is_empty(), "{:?}", raced.finalizers());
    t.own_rules().delete("raced", &DeleteParams::default()).await.unwrap();
    t.own_rule("r", rule_for("app", "db")).await.unwrap();
    older.eventually(&["create r", "refused raced", "update r"]).await;
    t.own_rules().delete("r", &DeleteParams::default()).await.unwrap();
    older.eventually(&["create r", "refused raced", "update r", "delete r"]).await;
    is_gone(&t.own_rules(), "r").await;
    o.plane.command("term agent-skew-silent").unwrap();
}

#[tokio::test]
async fn a_manager_that_leaves_a_part_out_is_not_written_to_for_ever() {
    let o = Outrigger::shared().await;
    let t = Tenant::without_agent(o, "skew-part", &[("a", 1)]).await;
    let older = Older::forgetful();
    agent(&t, older.serve());
    let mut spec = rule_for("app", "web");
    t.own_rule("whole", spec.clone()).await.unwrap();
    spec["updateStrategy"] = json!({"type": "OnDelete"});
    let rule = t.own_rule("r", spec).await.unwrap();
    t.own_rule("waits", rule_with("/ordering", json!("BeforeReady"))).await.unwrap();
    t.own_rule("lingers", rule_with("/lingerSeconds", json!(60))).await.unwrap();
    for name in ["r", "waits", "lingers"] {
        let (_, message) = t.own_condition(name, "Accepted", Status::False, "ManagerTooOld").await;
        assert!(message.contains("drops fields"), "{message}");
    }
    let writes = older.calls();
    always("nothing is written again", Duration::from_secs(5), || async {
        holds(older.calls() == writes, format!("{:?}", older.calls()))
    })
    .await;
    assert_eq!(writes.iter().filter(|call| call.ends_with(" whole")).count(), 1, "{writes:?}");
    assert!(!rule.finalizers().contains(&keys::ABANDON.to_owned()));
    older.is_upgraded();
    t.own_condition("r", "Synced", Status::Unknown, "Pending").await;
    t.own_rules().delete("r", &DeleteParams::default()).await.unwrap();
    eventually("it goes", || async {
        holds(older.calls().contains(&"delete r".to_owned()), format!("{:?}", older.calls()))
    })
    .await;
    o.plane.command("term agent-skew-part").unwrap();
}

#[test]
fn the_recordings_are_of_the_numbers_that_never_change() {
    // workload_sync = 3, workload_update = 1, workload_delete = 2, each length-delimited.
    let tags = |all: &[Bytes]| all.iter().map(|message| message[0]).collect::<Vec<_>>();
    let all = FIRST.messages();
    let found = tags(&all);
    assert_eq!(found.first(), Some(&0x1a), "{found:?}");
    assert!(found.contains(&0x0a) && found.contains(&0x12), "{found:?}");
    for message in &all {
        let decoded = WorkloadStreamRequest::decode(message.clone()).unwrap();
        assert_eq!(decoded.encoded_len(), message.len(), "every field of it is known");
    }
    // workload_sync_begin = 1001, workload_sync_chunk = 1002, workload_sync_end = 1003: two bytes each.
    let all = CHUNKED.messages();
    let begins: Vec<&[u8]> = all.iter().take(3).map(|message| &message[..2]).collect();
    assert_eq!(begins, [[0xca, 0x3e], [0xd2, 0x3e], [0xda, 0x3e]]);
    assert!(tags(&all[3..]).iter().all(|tag| [0x0a, 0x12].contains(tag)), "{:?}", tags(&all));
    for message in &all {
        let decoded = WorkloadChunkedStreamRequest::decode(message.clone()).unwrap();
        assert_eq!(decoded.encoded_len(), message.len(), "every field of it is known");
    }
}
