//! A collector of traces that keeps what it gets.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Request, Response, Status};

/// A span.
#[derive(Debug, Clone)]
pub struct Span {
    /// Which process it is of: `service.name`.
    pub service: String,
    /// Its name.
    pub name: String,
    /// The trace that it is in, in hexadecimal.
    pub trace: String,
    /// Its id.
    pub id: String,
    /// That of the span that it is in; empty for the first of a trace.
    pub parent: String,
    /// Those of spans that it points to, elsewhere.
    pub links: Vec<String>,
    /// What it tells.
    pub attributes: BTreeMap<String, String>,
}

/// A collector on loopback, until its runtime ends.
#[derive(Debug, Clone, Default)]
pub struct Collector {
    spans: Arc<Mutex<Vec<Span>>>,
    /// Where it listens.
    pub port: u16,
}

impl Collector {
    /// Starts one.
    pub async fn start() -> anyhow::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let this = Self { port: listener.local_addr()?.port(), ..Self::default() };
        let server = tonic::transport::Server::builder().add_service(TraceServiceServer::new(this.clone()));
        tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
        Ok(this)
    }

    /// Where traces are to be sent.
    pub fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Everything that has come in.
    pub fn spans(&self) -> Vec<Span> {
        self.spans.lock().expect("nobody panics in here").clone()
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[tonic::async_trait]
impl TraceService for Collector {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        let text = |value: Option<Value>| match value {
            Some(Value::StringValue(text)) => text,
            Some(other) => format!("{other:?}"),
            None => String::new(),
        };
        let mut spans = self.spans.lock().map_err(|e| Status::internal(e.to_string()))?;
        for resource in request.into_inner().resource_spans {
            let attributes = resource.resource.map(|resource| resource.attributes).unwrap_or_default();
            let service = attributes.into_iter().find(|pair| pair.key == "service.name");
            let service =
                service.and_then(|pair| pair.value).map(|value| text(value.value)).unwrap_or_default();
            for span in resource.scope_spans.into_iter().flat_map(|scope| scope.spans) {
                let attribute = |pair: opentelemetry_proto::tonic::common::v1::KeyValue| {
                    (pair.key, text(pair.value.and_then(|value| value.value)))
                };
                spans.push(Span {
                    service: service.clone(),
                    name: span.name,
                    trace: hex(&span.trace_id),
                    id: hex(&span.span_id),
                    parent: hex(&span.parent_span_id),
                    links: span.links.iter().map(|link| hex(&link.span_id)).collect(),
                    attributes: span.attributes.into_iter().map(attribute).collect(),
                });
            }
        }
        Ok(Response::new(ExportTraceServiceResponse { partial_success: None }))
    }
}
