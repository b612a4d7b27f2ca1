//! Client of the manager's service for rules, with limits on its responses.
//!
//! The manager is another party and may send responses of any size. Responses with rules are measured before they are
//! decoded, and the number of pages of a list is limited.

use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::time::Duration;

use http::uri::PathAndQuery;
use outrigger_api::wire_bounds::{self, Bounds};
use outrigger_core::map::HashSet;
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

const DEADLINE: Duration = Duration::from_secs(30);

/// Limits of one response. A brief list of a thousand rules with their conditions has request 2 MiB and 5,000 entries; a
/// manager without brief lists sends complete rules.
pub const ANSWER: Bounds = Bounds { bytes: 32 << 20, entries: 100_000, items: 0 };

/// Page size of a list. Managers that don't page brief lists send all rules.
const PAGE: i32 = 1000;
/// Maximum number of listed rules of a tenant.
pub(super) const MAX_RULES: usize = 20_000;

/// Client of the manager's service for rules, for one tenant.
#[derive(Debug, Clone)]
pub(super) struct RuleClient {
    channel: Channel,
    tenant: AsciiMetadataValue,
}

impl RuleClient {
    pub(super) fn new(channel: Channel, tenant: AsciiMetadataValue) -> Self {
        Self { channel, tenant }
    }

    /// Lists the tenant's rules in brief form, by name. Returns `OUT_OF_RANGE` if the response exceeds
    /// a limit.
    pub(super) async fn list(&self) -> Result<BTreeMap<String, v1::Rule>, Status> {
        let mut rules = BTreeMap::new();
        let mut tokens = HashSet::default();
        let mut token = String::new();
        loop {
            let list = v1::ListRequest { brief: true, page_size: PAGE, page_token: token };
            let page: v1::ListResponse =
                self.unary("/universe.workload.v1.WorkloadRuleService/List", list).await?;
            rules.extend(page.rules.into_iter().map(|rule| (rule.id.clone(), rule)));
            if rules.len() > MAX_RULES {
                return Err(Status::out_of_range(format!("the manager lists more than {MAX_RULES} rules")));
            }
            token = page.next_page_token;
            if token.is_empty() {
                return Ok(rules);
            }
            if !tokens.insert(token.clone()) || tokens.len() > MAX_RULES / 100 {
                return Err(Status::out_of_range("the manager's list of rules has too many pages"));
            }
        }
    }

    /// Reads a rule, bypassing the manager's caches. Returns `OUT_OF_RANGE` if the response exceeds
    /// a limit.
    pub(super) async fn get(&self, id: String) -> Result<Option<v1::Rule>, Status> {
        let answer: v1::GetResponse =
            self.unary("/universe.workload.v1.WorkloadRuleService/Get", v1::GetRequest { id }).await?;
        Ok(answer.rule)
    }

    pub(super) async fn create(&self, rule: Option<v1::Rule>) -> Result<(), Status> {
        self.write_client().create(self.request(v1::CreateRequest { rule })).await.map(drop)
    }

    pub(super) async fn update(&self, rule: Option<v1::Rule>) -> Result<(), Status> {
        self.write_client().update(self.request(v1::UpdateRequest { rule })).await.map(drop)
    }

    /// Deletes a rule: the version with this etag, if it isn't empty.
    pub(super) async fn delete(&self, id: String, etag: String) -> Result<(), Status> {
        self.write_client().delete(self.request(v1::DeleteRequest { id, etag })).await.map(drop)
    }

    /// Client of the writing calls, whose responses are empty messages.
    fn write_client(&self) -> WorkloadRuleServiceClient<Channel> {
        WorkloadRuleServiceClient::new(self.channel.clone()).max_decoding_message_size(1 << 10)
    }

    async fn unary<Q, A>(&self, path: &'static str, message: Q) -> Result<A, Status>
    where
        Q: Message + 'static,
        A: Message + Default + 'static,
    {
        let (mut client, path, codec) = measured(self.channel.clone(), path, ANSWER).await?;
        client.unary(self.request(message), path, codec).await.map(Response::into_inner)
    }

    fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        request.metadata_mut().insert(TENANT_ID, self.tenant.clone());
        request.set_timeout(DEADLINE);
        inject_metadata(request.metadata_mut());
        request
    }
}

/// Returns what a call of a method needs whose responses are measured by these limits, as soon as the connection can take it.
pub(crate) async fn measured<Q, A>(
    channel: Channel,
    path: &'static str,
    bounds: Bounds,
) -> Result<(Grpc<Channel>, PathAndQuery, Measured<Q, A>), Status> {
    let shape = shape::method(path).map(|method| method.response);
    let shape = shape.ok_or_else(|| Status::internal("the agent lacks the call"))?;
    let mut client = Grpc::new(channel).max_decoding_message_size(bounds.bytes);
    client.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
    Ok((client, PathAndQuery::from_static(path), Measured { shape, bounds, of: PhantomData }))
}

/// prost's codec, which measures responses before it decodes them.
pub(crate) struct Measured<Q, A> {
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
        // tonic has buffered the complete message.
        let wire = from.copy_to_bytes(from.remaining());
        wire_bounds::check(self.shape, &wire, &self.bounds)
            .map_err(|error| Status::out_of_range(format!("the manager's response is rejected: {error}")))?;
        let message = A::decode(wire);
        message
            .map(Some)
            .map_err(|error| Status::internal(format!("the manager's response is malformed: {error}")))
    }
}
