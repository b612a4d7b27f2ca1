//! Traces (OpenTelemetry, OTLP over gRPC), where they are asked for. Otherwise no span is ever made: they are of a level
//! that nobody listens to then, and asking for that costs a load.
//!
//! What is sent are spans of our own crates, with the fields that they name. Events, and so the log, stay here; so do the
//! spans of libraries, the one that sends among them.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::Args;
use http::HeaderMap;
use opentelemetry::propagation::{Extractor, Injector, TextMapPropagator};
use opentelemetry::trace::{SpanContext, TraceContextExt, TracerProvider};
use opentelemetry::{Context, KeyValue};
use opentelemetry_otlp::{SpanExporter, WithExportConfig, WithTonicConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{SdkTracer, SdkTracerProvider, SpanData, SpanExporter as Export};
use tonic::metadata::{KeyAndValueRef, MetadataMap};
use tonic::transport::{Certificate, ClientTlsConfig};
use tracing::{Metadata, Span, Subscriber, debug, debug_span, info, warn};
use tracing_opentelemetry::OpenTelemetrySpanExt;
use tracing_subscriber::Layer;
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::registry::LookupSpan;

/// Longest time that the last traces may take at the end of the process, if draining leaves as much.
const FLUSH: Duration = Duration::from_secs(5);

/// Where traces go.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Traces")]
pub struct TraceArgs {
    /// Collector that gets traces by OTLP over gRPC: https://HOST:4317, or http:// with --otlp-insecure. Without it, and
    /// without $OTEL_EXPORTER_OTLP_ENDPOINT, there are no traces. Sampling is set by $OTEL_TRACES_SAMPLER.
    #[arg(long, env = "OUTRIGGER_OTLP_ENDPOINT", value_name = "URL")]
    pub otlp_endpoint: Option<String>,

    /// Certificates, PEM, that the collector's certificate must be signed by. Without it, and without
    /// $OTEL_EXPORTER_OTLP_CERTIFICATE: those that the system trusts. It is read once, when the process begins.
    #[arg(long, env = "OUTRIGGER_OTLP_CA_FILE", value_name = "FILE")]
    pub otlp_ca_file: Option<PathBuf>,

    /// Send traces in plain text to a collector that is named by http://: whoever is between can read them. So does
    /// $OTEL_EXPORTER_OTLP_INSECURE.
    #[arg(long, env = "OUTRIGGER_OTLP_INSECURE")]
    pub otlp_insecure: bool,
}

/// Traces that are being sent.
#[derive(Debug, Clone)]
pub(crate) struct Traces {
    provider: SdkTracerProvider,
    tracer: SdkTracer,
}

/// A setting's value, or that of the first variable that has one.
fn or_variable<T: From<String>>(setting: Option<T>, names: &[&str]) -> Option<T> {
    let variable = |name: &&str| std::env::var(name).ok().filter(|value| !value.is_empty()).map(T::from);
    setting.or_else(|| names.iter().find_map(variable))
}

impl TraceArgs {
    /// Begins to send traces, if that is asked for. Spans are collected and sent from a thread of their own; what a dead
    /// collector doesn't take is dropped, and nobody waits for it.
    ///
    /// # Errors
    /// When the endpoint is no URL, or one in plain text that nobody has asked for, or the CA can't be read.
    pub(super) fn traces(&self, service: &'static str) -> anyhow::Result<Option<Traces>> {
        let endpoint = self.otlp_endpoint.clone().filter(|endpoint| !endpoint.is_empty());
        let names = ["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"];
        let Some(endpoint) = or_variable(endpoint, &names) else { return Ok(None) };
        if std::env::var("OTEL_SDK_DISABLED").is_ok_and(|value| value.eq_ignore_ascii_case("true")) {
            return Ok(None);
        }
        if !endpoint.starts_with("https://") && !self.insecure() {
            bail!(
                "--otlp-endpoint {endpoint:?} is no https:// URL: use one, or send traces in plain text by --otlp-insecure"
            );
        }
        let mut builder = SpanExporter::builder().with_tonic().with_endpoint(&endpoint);
        if endpoint.starts_with("https://") {
            builder = builder.with_tls_config(self.tls()?);
        }
        let exporter =
            builder.build().with_context(|| format!("--otlp-endpoint {endpoint:?} can't be used"))?;
        Ok(Some(Traces::new(service, Quiet { exporter, failing: Arc::default() })))
    }

    fn insecure(&self) -> bool {
        let names = ["OTEL_EXPORTER_OTLP_TRACES_INSECURE", "OTEL_EXPORTER_OTLP_INSECURE"];
        self.otlp_insecure
            || or_variable::<String>(None, &names).is_some_and(|value| value.eq_ignore_ascii_case("true"))
    }

    fn tls(&self) -> anyhow::Result<ClientTlsConfig> {
        let names = ["OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE", "OTEL_EXPORTER_OTLP_CERTIFICATE"];
        let Some(file) = or_variable(self.otlp_ca_file.clone(), &names) else {
            return Ok(ClientTlsConfig::new().with_native_roots());
        };
        let pem = std::fs::read(&file)
            .with_context(|| format!("--otlp-ca-file {} can't be read", file.display()))?;
        Ok(ClientTlsConfig::new().ca_certificate(Certificate::from_pem(pem)))
    }
}

impl Traces {
    fn new(service: &'static str, exporter: impl Export + 'static) -> Self {
        // OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES win, as they do everywhere.
        let mut resource =
            Resource::builder().with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")));
        if std::env::var_os("OTEL_SERVICE_NAME").is_none() {
            resource = resource.with_service_name(service);
        }
        let provider = SdkTracerProvider::builder()
            .with_resource(resource.build())
            .with_batch_exporter(exporter)
            .build();
        let tracer = provider.tracer("outrigger");
        Self { provider, tracer }
    }

    /// Takes spans in.
    pub(super) fn layer<S>(&self) -> impl Layer<S> + use<S>
    where
        S: Subscriber + for<'a> LookupSpan<'a> + Send + Sync,
    {
        tracing_opentelemetry::layer()
            .with_tracer(self.tracer.clone())
            .with_location(false)
            .with_threads(false)
            .with_tracked_inactivity(false)
            .with_context_activation(false)
            .with_filter(filter_fn(is_ours).with_max_level_hint(tracing::Level::DEBUG))
    }

    /// Sends what has not been sent, for as long as draining leaves. To be called at the very end.
    pub(crate) async fn flush(self, left: Duration) {
        let flushed =
            tokio::task::spawn_blocking(move || self.provider.shutdown_with_timeout(left.min(FLUSH))).await;
        match flushed {
            Ok(Ok(())) => debug!("all traces have been sent"),
            Ok(Err(error)) => warn!(%error, "the last traces could not be sent"),
            Err(error) => warn!(%error, "the last traces could not be sent"),
        }
    }
}

/// Whether it is a span of one of our own crates.
fn is_ours(metadata: &Metadata<'_>) -> bool {
    metadata.is_span() && metadata.target().starts_with("outrigger")
}

/// Says once that a collector can't be reached, and once that it can again.
#[derive(Debug)]
struct Quiet<E> {
    exporter: E,
    failing: Arc<AtomicBool>,
}

impl<E: Export> Export for Quiet<E> {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        match self.exporter.export(batch).await {
            Ok(()) => {
                if self.failing.swap(false, Ordering::Relaxed) {
                    info!("traces are sent again");
                }
            }
            Err(error) => {
                if !self.failing.swap(true, Ordering::Relaxed) {
                    warn!(%error, "traces can't be sent, and are dropped until they can");
                }
            }
        }
        Ok(())
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.exporter.shutdown_with_timeout(timeout)
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.exporter.set_resource(resource);
    }
}

/// Where something began: a span that may have ended long ago, of this process or of another. Empty without traces.
#[derive(Debug, Clone, Default)]
pub struct Origin(Option<Box<SpanContext>>);

impl Origin {
    /// In this span.
    pub fn of(span: &Span) -> Self {
        if span.is_disabled() {
            return Self(None);
        }
        let context = span.context().span().span_context().clone();
        Self(context.is_valid().then(|| Box::new(context)))
    }

    /// Makes a span that has not been entered yet continue what began here.
    pub fn continued_by(&self, span: &Span) {
        if let Some(context) = &self.0 {
            // Where this fails there is no such span.
            let _ = span.set_parent(Context::new().with_remote_span_context((**context).clone()));
        }
    }
}

/// Has a span point to the one that a request's headers name (W3C `traceparent`). It stays in a trace of our own, for which our
/// own sampler decides: who reaches a port may write anything. Nothing else comes along (`tracestate`).
pub fn link_headers(span: &Span, headers: &HeaderMap) {
    if !span.is_disabled() {
        link(span, &Headers(headers));
    }
}

fn link(span: &Span, named: &dyn Extractor) {
    let theirs = TraceContextPropagator::new().extract_with_context(&Context::new(), named);
    span.add_link(theirs.span().span_context().clone());
}

/// Names the current span in a request's headers, so that who gets it may continue its trace.
pub fn inject_headers(headers: &mut HeaderMap) {
    let span = Span::current();
    if !span.is_disabled() {
        TraceContextPropagator::new().inject_context(&span.context(), &mut HeadersMut(headers));
    }
}

/// As [`inject_headers`], into the metadata of a gRPC call.
pub fn inject_metadata(metadata: &mut MetadataMap) {
    let span = Span::current();
    if !span.is_disabled() {
        let mut headers = HeaderMap::new();
        TraceContextPropagator::new().inject_context(&span.context(), &mut HeadersMut(&mut headers));
        for entry in MetadataMap::from_headers(headers).iter() {
            if let KeyAndValueRef::Ascii(key, value) = entry {
                metadata.insert(key.clone(), value.clone());
            }
        }
    }
}

/// A span of a gRPC call whose caller says that it traces it, to be made when the caller has been let in; none for others: a
/// rule's agent asks every few seconds. `name` is the service and the method.
///
/// Callers are tenants, and the collector is not theirs. So it begins a trace of its own, for which our own sampler decides,
/// and the caller's is only pointed to; nothing that the caller may write freely (`tracestate`) comes along.
pub fn called(name: &'static str, metadata: &MetadataMap) -> Span {
    if metadata.get(TRACEPARENT).is_none() {
        return Span::none();
    }
    let span = debug_span!("rpc", otel.name = name, otel.kind = "server");
    if !span.is_disabled() {
        link(&span, &Parent(metadata));
    }
    span
}

/// The header that names a trace and a span in it.
const TRACEPARENT: &str = "traceparent";

/// That header, and no other.
struct Parent<'a>(&'a MetadataMap);

impl Extractor for Parent<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key).filter(|_| key == TRACEPARENT)?.to_str().ok()
    }

    fn keys(&self) -> Vec<&str> {
        vec![TRACEPARENT]
    }
}

/// That header, and no other.
struct Headers<'a>(&'a HeaderMap);

impl Extractor for Headers<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key).filter(|_| key == TRACEPARENT)?.to_str().ok()
    }

    fn keys(&self) -> Vec<&str> {
        vec![TRACEPARENT]
    }
}

struct HeadersMut<'a>(&'a mut HeaderMap);

impl Injector for HeadersMut<'_> {
    fn set(&mut self, key: &str, value: String) {
        if let (Ok(name), Ok(value)) = (http::HeaderName::try_from(key), http::HeaderValue::try_from(value)) {
            self.0.insert(name, value);
        }
    }
}

#[cfg(test)]
mod tests {
    use opentelemetry_sdk::error::OTelSdkError;
    use parking_lot::Mutex;
    use tracing::error;
    use tracing_subscriber::layer::SubscriberExt;

    use super::*;

    /// Keeps what it gets.
    #[derive(Debug, Clone, Default)]
    struct Kept(Arc<Mutex<Vec<SpanData>>>);

    impl Export for Kept {
        async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
            self.0.lock().extend(batch);
            Ok(())
        }
    }

    /// Never takes anything.
    #[derive(Debug)]
    struct Dead;

    impl Export for Dead {
        async fn export(&self, _: Vec<SpanData>) -> OTelSdkResult {
            Err(OTelSdkError::InternalFailure("nobody is there".to_owned()))
        }
    }

    #[tokio::test]
    async fn a_trace_goes_on_across_processes_and_queues() {
        const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let kept = Kept::default();
        let traces = Traces::new("test", kept.clone());
        let subscriber = tracing_subscriber::registry().with(traces.layer());
        let sent = tracing::subscriber::with_default(subscriber, || {
            let mut headers = HeaderMap::new();
            headers.insert("traceparent", PARENT.parse().unwrap());
            headers.insert("tracestate", "evil=1".parse().unwrap());
            let request = debug_span!("request", uid = "u");
            link_headers(&request, &headers);
            let origin = request.in_scope(|| {
                error!(object = "secret", "an event");
                Origin::of(&Span::current())
            });
            drop(request);
            let later = debug_span!("later");
            origin.continued_by(&later);
            later.in_scope(|| {
                let mut headers = HeaderMap::new();
                inject_headers(&mut headers);
                drop(debug_span!(target: "hyper", "not ours"));
                headers
            })
        });
        traces.flush(Duration::from_secs(5)).await;
        let spans = kept.0.lock();
        let names: Vec<&str> = spans.iter().map(|span| span.name.as_ref()).collect();
        assert_eq!(names, ["request", "later"]);
        for span in spans.iter() {
            assert_eq!(span.span_context.trace_id(), spans[0].span_context.trace_id());
            assert_ne!(span.span_context.trace_id().to_string(), "4bf92f3577b34da6a3ce929d0e0e4736");
            assert_eq!(span.span_context.trace_state().header(), "");
            assert!(span.events.is_empty(), "{:?}", span.events);
        }
        // Whoever called is pointed to.
        assert_eq!(spans[0].parent_span_id, opentelemetry::SpanId::INVALID);
        let [link] = spans[0].links.links.as_slice() else { panic!("{:?}", spans[0].links) };
        assert_eq!(link.span_context.span_id().to_string(), "00f067aa0ba902b7");
        assert_eq!(link.span_context.trace_state().header(), "");
        assert_eq!(spans[1].parent_span_id, spans[0].span_context.span_id());
        let next = sent["traceparent"].to_str().unwrap().to_owned();
        assert!(next.contains(&spans[1].span_context.span_id().to_string()), "{next}");
    }

    #[tokio::test]
    async fn who_calls_is_pointed_to_and_decides_nothing() {
        let kept = Kept::default();
        let traces = Traces::new("test", kept.clone());
        let subscriber = tracing_subscriber::registry().with(traces.layer());
        tracing::subscriber::with_default(subscriber, || {
            let mut metadata = MetadataMap::new();
            drop(called("/s/Untraced", &metadata));
            metadata.insert(TRACEPARENT, "nonsense".parse().unwrap());
            drop(called("/s/Nonsense", &metadata));
            // Not sampled over there, which is nothing to us.
            let parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00";
            metadata.insert(TRACEPARENT, parent.parse().unwrap());
            metadata.insert("tracestate", "evil=1".parse().unwrap());
            drop(called("/s/Traced", &metadata));
        });
        traces.flush(Duration::from_secs(5)).await;
        let spans = kept.0.lock();
        let names: Vec<&str> = spans.iter().map(|span| span.name.as_ref()).collect();
        assert_eq!(names, ["/s/Nonsense", "/s/Traced"]);
        assert!(spans[0].links.links.is_empty());
        let span = &spans[1];
        assert_ne!(span.span_context.trace_id().to_string(), "4bf92f3577b34da6a3ce929d0e0e4736");
        assert_eq!(span.parent_span_id, opentelemetry::SpanId::INVALID);
        let [link] = span.links.links.as_slice() else { panic!("{:?}", span.links) };
        assert_eq!(link.span_context.trace_id().to_string(), "4bf92f3577b34da6a3ce929d0e0e4736");
        assert_eq!(link.span_context.span_id().to_string(), "00f067aa0ba902b7");
        for state in [link.span_context.trace_state(), span.span_context.trace_state()] {
            assert_eq!(state.header(), "");
        }
    }

    #[test]
    fn without_traces_nothing_is_kept_and_nothing_is_sent() {
        let span = debug_span!("nobody listens");
        assert!(Origin::of(&span).0.is_none());
        let mut headers = HeaderMap::new();
        span.in_scope(|| inject_headers(&mut headers));
        assert!(headers.is_empty());
        assert!(TraceArgs::default().traces("test").unwrap().is_none());
    }

    #[tokio::test]
    async fn a_dead_collector_is_told_of_once_and_holds_nobody_up() {
        let failing = Arc::new(AtomicBool::new(false));
        let quiet = Quiet { exporter: Dead, failing: failing.clone() };
        assert!(quiet.export(Vec::new()).await.is_ok());
        assert!(failing.load(Ordering::Relaxed));
        // Nobody listens there, and spans are dropped.
        let endpoint = Some("http://127.0.0.1:9".to_owned());
        let traces = TraceArgs { otlp_endpoint: endpoint, otlp_ca_file: None, otlp_insecure: true }
            .traces("test")
            .unwrap()
            .unwrap();
        let subscriber = tracing_subscriber::registry().with(traces.layer());
        tracing::subscriber::with_default(subscriber, || {
            for _ in 0..10_000 {
                drop(debug_span!("dropped"));
            }
        });
        traces.flush(Duration::from_millis(200)).await;
        for (args, words) in [
            (
                TraceArgs {
                    otlp_endpoint: Some("no url".to_owned()),
                    otlp_insecure: true,
                    ..TraceArgs::default()
                },
                "--otlp-endpoint",
            ),
            (
                TraceArgs { otlp_endpoint: Some("http://127.0.0.1:9".to_owned()), ..TraceArgs::default() },
                "by --otlp-insecure",
            ),
            (
                TraceArgs {
                    otlp_endpoint: Some("https://127.0.0.1:9".to_owned()),
                    otlp_ca_file: Some("/nowhere".into()),
                    ..TraceArgs::default()
                },
                "--otlp-ca-file",
            ),
        ] {
            let error = format!("{:#}", args.traces("test").unwrap_err());
            assert!(error.contains(words), "{error}");
        }
    }
}
