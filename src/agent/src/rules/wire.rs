//! The calls of the manager's service for rules, and how much of an answer is taken.
//!
//! The manager is another party: what it says may be as large as it likes. Answers with rules are measured on their bytes before
//! anything is decoded, and a list has only so many pages.

use std::collections::{BTreeMap, HashSet};
use std::marker::PhantomData;
use std::time::Duration;

use outrigger_api::wire_bounds::{self, Bounds};
use outrigger_proto::shape::{self, Shape};
use outrigger_proto::v1::workload_rule_service_client::WorkloadRuleServiceClient;
use outrigger_proto::{TENANT_ID, v1};
use outrigger_runtime::telemetry::inject_metadata;
use prost::Message;
use prost::bytes::Buf;
use tonic::client::Grpc;
use tonic::codec::{BufferSettings, Codec, DecodeBuf, Decoder};
use tonic::metadata::AsciiMetadataValue;
use tonic::transport::Channel;
use tonic::{Request, Response, Status};

/// How long a call may take.
const DEADLINE: Duration = Duration::from_secs(30);

/// What one answer may have. A brief list of a thousand rules with their conditions has about 2 MiB and 5,000 entries; a manager
/// that knows no brief lists sends whole rules.
pub const ANSWER: Bounds = Bounds { bytes: 32 << 20, entries: 100_000, items: 0 };

/// Rules that are asked for at once. Managers that don't page brief lists send all.
const PAGE: i32 = 1000;
/// Most rules of a tenant that are taken in.
pub(super) const MOST_RULES: usize = 20_000;

/// The manager's service for rules, as a tenant sees it.
#[derive(Debug, Clone)]
pub(super) struct Rules {
    channel: Channel,
    tenant: AsciiMetadataValue,
}

impl Rules {
    pub(super) fn new(channel: Channel, tenant: AsciiMetadataValue) -> Self {
        Self { channel, tenant }
    }

    /// The tenant's rules in short, by name.
    ///
    /// # Errors
    /// As the manager says; `OUT_OF_RANGE` when that is more than is taken.
    pub(super) async fn list(&self) -> Result<BTreeMap<String, v1::Rule>, Status> {
        let mut rules = BTreeMap::new();
        let mut tokens = HashSet::new();
        let mut token = String::new();
        loop {
            let list = v1::ListRequest { brief: true, page_size: PAGE, page_token: token };
            let page: v1::ListResponse =
                self.ask("/universe.workload.v1.WorkloadRuleService/List", list).await?;
            rules.extend(page.rules.into_iter().map(|rule| (rule.id.clone(), rule)));
            if rules.len() > MOST_RULES {
                return Err(Status::out_of_range(format!("the manager lists more than {MOST_RULES} rules")));
            }
            token = page.next_page_token;
            if token.is_empty() {
                return Ok(rules);
            }
            if !tokens.insert(token.clone()) || tokens.len() > MOST_RULES / 100 {
                return Err(Status::out_of_range("the manager's list of rules has no end"));
            }
        }
    }

    /// The rule of this name, asked past all caches.
    ///
    /// # Errors
    /// As the manager says; `OUT_OF_RANGE` when that is more than is taken.
    pub(super) async fn get(&self, id: String) -> Result<Option<v1::Rule>, Status> {
        let answer: v1::GetResponse =
            self.ask("/universe.workload.v1.WorkloadRuleService/Get", v1::GetRequest { id }).await?;
        Ok(answer.rule)
    }

    /// Makes a rule.
    ///
    /// # Errors
    /// As the manager says.
    pub(super) async fn create(&self, rule: Option<v1::Rule>) -> Result<(), Status> {
        self.writes().create(self.about(v1::CreateRequest { rule })).await.map(drop)
    }

    /// Replaces a rule.
    ///
    /// # Errors
    /// As the manager says.
    pub(super) async fn update(&self, rule: Option<v1::Rule>) -> Result<(), Status> {
        self.writes().update(self.about(v1::UpdateRequest { rule })).await.map(drop)
    }

    /// Deletes a rule.
    ///
    /// # Errors
    /// As the manager says.
    pub(super) async fn delete(&self, id: String) -> Result<(), Status> {
        self.writes().delete(self.about(v1::DeleteRequest { id })).await.map(drop)
    }

    /// Their answers are empty messages.
    fn writes(&self) -> WorkloadRuleServiceClient<Channel> {
        WorkloadRuleServiceClient::new(self.channel.clone()).max_decoding_message_size(1 << 10)
    }

    async fn ask<Q, A>(&self, path: &'static str, question: Q) -> Result<A, Status>
    where
        Q: Message + 'static,
        A: Message + Default + 'static,
    {
        let shape = shape::method(path).map(|method| method.response);
        let shape = shape.ok_or_else(|| Status::unimplemented(path))?;
        let mut client = Grpc::new(self.channel.clone()).max_decoding_message_size(ANSWER.bytes);
        client.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
        let path = http::uri::PathAndQuery::from_static(path);
        let codec = Measured { shape, bounds: ANSWER, of: PhantomData };
        client.unary(self.about(question), path, codec).await.map(Response::into_inner)
    }

    fn about<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        request.metadata_mut().insert(TENANT_ID, self.tenant.clone());
        request.set_timeout(DEADLINE);
        inject_metadata(request.metadata_mut());
        request
    }
}

/// prost's codec, behind a measure.
struct Measured<Q, A> {
    shape: &'static Shape,
    bounds: Bounds,
    of: PhantomData<(Q, A)>,
}

impl<Q, A> Codec for Measured<Q, A>
where
    Q: Message + 'static,
    A: Message + Default + 'static,
{
    type Encode = Q;
    type Decode = A;
    type Encoder = tonic_prost::ProstEncoder<Q>;
    type Decoder = Self;

    fn encoder(&mut self) -> Self::Encoder {
        tonic_prost::ProstEncoder::new(BufferSettings::default())
    }

    fn decoder(&mut self) -> Self {
        Self { shape: self.shape, bounds: self.bounds, of: PhantomData }
    }
}

impl<Q, A: Message + Default> Decoder for Measured<Q, A> {
    type Item = A;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<A>, Status> {
        // A message is in one piece: tonic waits until it is there.
        let wire = from.copy_to_bytes(from.remaining());
        wire_bounds::check(self.shape, &wire, &self.bounds)
            .map_err(|error| Status::out_of_range(format!("the manager's answer is not taken: {error}")))?;
        let message = A::decode(wire);
        message
            .map(Some)
            .map_err(|error| Status::internal(format!("the manager's answer is malformed: {error}")))
    }
}
