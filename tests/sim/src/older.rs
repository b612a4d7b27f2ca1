//! Peers of the release before: agents and managers of the present program, whose calls and messages have only what that release knows
//! of the protocol.
//!
//! What it knows is in its recorded descriptors. The numbers of fields alone don't say it: those above 1000 are Outrigger's own, and the
//! first release had some of them, such as `origin` and `revision` of a rule. On the wire it makes no difference which of two peers is the
//! older one: what it doesn't send is what it ignores, and a call that it doesn't serve is one that it never makes.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::middleware::{Next, from_fn};
use axum::response::Response;
use bytes::{Buf, BufMut, Bytes, BytesMut};
use http::header::CONTENT_LENGTH;
use http_body::Frame;
use http_body_util::BodyExt;
use prost::encoding::{
    DecodeContext, WireType, decode_key, decode_varint, encode_key, encode_varint, skip_field,
};
use prost::{DecodeError, Message};
use prost_types::field_descriptor_proto::Type;
use prost_types::{DescriptorProto, FileDescriptorSet};
use tonic::Status;

/// One of the two sides of the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The agents of all tenants.
    Agents,
    /// All managers.
    Managers,
}

/// What each message begins with: a byte that says whether it is compressed, and its length.
const HEADER: usize = 5;

/// The last release that is recorded.
static BEFORE: LazyLock<Release> = LazyLock::new(|| {
    const RECORDED: &[u8] = include_bytes!("../../upgrades/0.1.0/universe.binpb");
    Release::of(&FileDescriptorSet::decode(RECORDED).expect("the recorded descriptors"))
});

/// What a release knows of the protocol. Names of messages are full and begin with a dot, as in descriptors.
struct Release {
    /// The messages of request and response, by the paths of calls.
    calls: BTreeMap<String, [String; 2]>,
    /// The fields of messages by their numbers, each with the message that it holds, if it holds one.
    messages: BTreeMap<String, BTreeMap<u32, Option<String>>>,
}

impl Release {
    fn of(set: &FileDescriptorSet) -> Self {
        let mut release = Self { calls: BTreeMap::new(), messages: BTreeMap::new() };
        for file in &set.file {
            for message in &file.message_type {
                release.add(&format!(".{}", file.package()), message);
            }
            for service in &file.service {
                for method in &service.method {
                    let path = format!("/{}.{}/{}", file.package(), service.name(), method.name());
                    let messages = [method.input_type(), method.output_type()].map(str::to_owned);
                    release.calls.insert(path, messages);
                }
            }
        }
        release
    }

    fn add(&mut self, within: &str, message: &DescriptorProto) {
        let name = format!("{within}.{}", message.name());
        for nested in &message.nested_type {
            self.add(&name, nested);
        }
        let fields = message.field.iter().map(|field| {
            let holds = (field.r#type() == Type::Message).then(|| field.type_name().to_owned());
            (u32::try_from(field.number()).unwrap_or_default(), holds)
        });
        self.messages.insert(name, fields.collect());
    }

    /// A message without the fields that the release doesn't know, at every depth.
    fn known(&self, name: &str, mut wire: &[u8]) -> Result<Vec<u8>, DecodeError> {
        let fields = self.messages.get(name);
        let mut known = Vec::with_capacity(wire.len());
        while !wire.is_empty() {
            let whole = wire;
            let (number, kind) = decode_key(&mut wire)?;
            let mut value = wire;
            skip_field(kind, number, &mut wire, DecodeContext::default())?;
            match fields.and_then(|fields| fields.get(&number)) {
                None => {}
                Some(Some(holds)) if kind == WireType::LengthDelimited => {
                    value = &value[..value.len() - wire.len()];
                    decode_varint(&mut value)?;
                    let part = self.known(holds, value)?;
                    encode_key(number, kind, &mut known);
                    encode_varint(part.len() as u64, &mut known);
                    known.extend(part);
                }
                Some(_) => known.extend_from_slice(&whole[..whole.len() - wire.len()]),
            }
        }
        Ok(known)
    }

    /// Takes the messages that have come completely out of a part of a body, and leaves of each what the release knows.
    fn take(&self, name: &str, from: &mut BytesMut) -> Bytes {
        let mut all = BytesMut::new();
        while let Some(mut header) = from.get(..HEADER) {
            let (compressed, length) = (header.get_u8(), header.get_u32() as usize);
            assert_eq!(compressed, 0, "{name}: nothing here compresses messages");
            if from.len() < HEADER + length {
                break;
            }
            let message = from.split_to(HEADER + length);
            let known = self.known(name, &message[HEADER..]).expect("a message of the protocol");
            all.put_u8(0);
            all.put_u32(u32::try_from(known.len()).expect("no message grows"));
            all.extend_from_slice(&known);
        }
        all.freeze()
    }

    /// A body of such messages.
    fn body(&'static self, name: &'static str, body: Body) -> Body {
        let mut received = BytesMut::new();
        Body::new(body.map_frame(move |frame| match frame.into_data() {
            Ok(data) => {
                received.extend_from_slice(&data);
                Frame::data(self.take(name, &mut received))
            }
            Err(trailers) => trailers,
        }))
    }
}

/// A manager's services, if the manager or who calls it is of the release before.
pub(crate) fn between(router: Router) -> Router {
    router.layer(from_fn(pass))
}

async fn pass(request: Request, next: Next) -> Response {
    let release: &'static Release = &BEFORE;
    let Some([asks, answers]) = release.calls.get(request.uri().path()) else {
        return Status::unimplemented("the release before has no such call").into_http();
    };
    let response = next.run(request.map(|body| release.body(asks, body))).await;
    let mut response = response.map(|body| release.body(answers, body));
    // It may be of a longer body.
    response.headers_mut().remove(CONTENT_LENGTH);
    response
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::sync::Arc;

    use axum::routing::post;
    use outrigger_proto::{DESCRIPTORS, v1};
    use parking_lot::Mutex;
    use tower::ServiceExt;

    use super::*;

    /// What an agent of the release before has sent, and what one of a later version has.
    const SENT: &[u8] = include_bytes!("../../e2e/skew/agent-0.1.0.stream");
    const SENT_LATER: &[u8] = include_bytes!("../../e2e/skew/agent-0.2.0.stream");

    const STREAM: &str = "/universe.workload.v1.WorkloadService/WorkloadStream";
    const UPDATE: &str = "/universe.workload.v1.WorkloadRuleService/Update";
    const GET: &str = "/universe.workload.v1.WorkloadRuleService/Get";

    /// What the release before knows of the messages that a caller sends, which come in parts of this size.
    fn passed(path: &str, sent: &[u8], size: usize) -> Vec<u8> {
        let (mut received, mut passed) = (BytesMut::new(), Vec::new());
        for part in sent.chunks(size) {
            received.extend_from_slice(part);
            passed.extend(BEFORE.take(&BEFORE.calls[path][0], &mut received));
        }
        assert_eq!(received.len(), 0, "all of it were whole messages");
        passed
    }

    fn framed(message: &impl Message) -> Vec<u8> {
        let message = message.encode_to_vec();
        let mut framed = vec![0_u8];
        framed.put_u32(u32::try_from(message.len()).unwrap());
        framed.extend(message);
        framed
    }

    /// A workload with what `more` adds to its state.
    fn update(more: v1::WorkloadState) -> v1::WorkloadUpdate {
        let metadata = v1::WorkloadMetadata { id: "u".into(), ..Default::default() };
        let extra = v1::workload_state::ExtraData { data: HashMap::from([("app".into(), "web".into())]) };
        let extra = HashMap::from([("labels".into(), extra)]);
        let state = v1::WorkloadState { node_name: "host-a".into(), ready: true, extra, ..more };
        v1::WorkloadUpdate {
            workload_metadata: Some(metadata),
            workload_state: Some(state),
            annotation_keys: None,
        }
    }

    fn sync(update: v1::WorkloadUpdate) -> v1::WorkloadStreamRequest {
        let sync = v1::WorkloadSync { workload_updates: vec![update] };
        let message = v1::workload_stream_request::Message::WorkloadSync(sync);
        v1::WorkloadStreamRequest { message: Some(message) }
    }

    /// A rule of an agent, and the same with fields that were added later.
    fn rules() -> [v1::Rule; 2] {
        let strategy = v1::RuleUpdateStrategy {
            r#type: "RollingUpdate".into(),
            max_unavailable: "1".into(),
            ..Default::default()
        };
        let claim = v1::RuleDeviceClaim { name: "engine".into(), ..Default::default() };
        let data = v1::RuleData {
            dpu_selection_policy: "Any".into(),
            update_strategy: Some(strategy.clone()),
            device_claims: vec![claim],
            ..Default::default()
        };
        let rule =
            v1::Rule { id: "r".into(), data: Some(data.clone()), origin: "uid".into(), ..Default::default() };
        let strategy =
            v1::RuleUpdateStrategy { resize: "Replace".into(), mutable_fields: "InPlace".into(), ..strategy };
        let data = v1::RuleData {
            update_strategy: Some(strategy),
            ordering: "BeforeReady".into(),
            linger_seconds: 60,
            gated_workloads: "Serve".into(),
            ..data
        };
        let newer = v1::Rule { data: Some(data), etag: "1".into(), ..rule.clone() };
        [rule, newer]
    }

    #[test]
    fn what_an_agent_of_the_release_before_has_sent_stays_as_it_is() {
        for size in [1, 4, 7, 100, SENT.len()] {
            assert_eq!(passed(STREAM, SENT, size), SENT, "{size}");
        }
        assert_ne!(passed(STREAM, SENT_LATER, 100), SENT_LATER, "the control: syncs in chunks are newer");
    }

    #[test]
    fn fields_that_were_added_later_are_left_out_at_every_depth() {
        let group = v1::DisruptionGroup { id: "g".into(), desired_healthy: Some(1) };
        let mut newer = update(v1::WorkloadState {
            disruption_groups: vec![group],
            withheld_annotations: vec!["note".into()],
            omitted_bytes: 1,
            gated: true,
            revision: 7,
            ..Default::default()
        });
        newer.annotation_keys = Some(v1::AnnotationKeys { sent: vec!["*".into()], withheld: Vec::new() });
        let known = framed(&sync(update(v1::WorkloadState::default())));
        assert_eq!(passed(STREAM, &framed(&sync(newer)), 16), known);
        let [rule, newer] = rules().map(|rule| framed(&v1::UpdateRequest { rule: Some(rule) }));
        assert_eq!(passed(UPDATE, &newer, 16), rule);
    }

    #[test]
    fn what_was_added_to_messages_since_has_numbers_above_1000() {
        let present = Release::of(&FileDescriptorSet::decode(DESCRIPTORS).unwrap());
        let mut added = Vec::new();
        for (name, fields) in &BEFORE.messages {
            let numbers = present.messages[name].keys().filter(|number| !fields.contains_key(*number));
            added.extend(numbers.map(|number| (name.as_str(), *number)));
        }
        assert!(added.contains(&(".universe.workload.v1.WorkloadState", 1005)), "{added:?}");
        assert!(added.iter().all(|(_, number)| *number > 1000), "{added:?}");
    }

    #[tokio::test]
    async fn a_call_passes_in_both_directions_and_one_that_was_added_later_does_not() {
        let [rule, newer] = rules();
        let answer = framed(&v1::GetResponse { rule: Some(newer.clone()) });
        let seen = Arc::new(Mutex::new(Vec::new()));
        let sees = seen.clone();
        let update = move |body: Bytes| async move { sees.lock().extend(body) };
        let get = move || async move { answer };
        let chunked = STREAM.replace("WorkloadStream", "WorkloadChunkedStream");
        let router = Router::new().route(UPDATE, post(update)).route(GET, post(get));
        let router = between(router.route(&chunked, post(|| async {})));
        let call = async |path: &str, body: Vec<u8>| {
            let request = http::Request::post(path).body(Body::from(body)).unwrap();
            let response = router.clone().oneshot(request).await.unwrap();
            let status = response.headers().get("grpc-status").cloned();
            (status, response.into_body().collect().await.unwrap().to_bytes())
        };
        call(UPDATE, framed(&v1::UpdateRequest { rule: Some(newer) })).await;
        assert_eq!(*seen.lock(), framed(&v1::UpdateRequest { rule: Some(rule.clone()) }));
        let (status, answer) = call(GET, Vec::new()).await;
        assert_eq!((status, answer.to_vec()), (None, framed(&v1::GetResponse { rule: Some(rule) })));
        let (status, _) = call(&chunked, Vec::new()).await;
        assert_eq!(status.unwrap(), "12", "UNIMPLEMENTED");
    }
}
