//! Traces (OpenTelemetry, OTLP over gRPC), if they are enabled. Otherwise spans are disabled by their level, which costs one load.
//!
//! Only spans of Outrigger's crates are exported, with the fields that they name. Events, and so the log, aren't exported, nor are
//! spans of libraries such as the exporter's own.

use std::path::PathBuf;
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
use tonic::metadata::MetadataMap;
use tonic::transport::{Certificate, ClientTlsConfig};
use tracing::{Metadata, Span, Subscriber, debug, debug_span, info, warn};
use tracing_opentelemetry::OpenTelemetrySpanExt;
use tracing_subscriber::Layer;
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::registry::LookupSpan;

/// Longest time for exporting the last traces at shutdown, within the drain timeout.
const FLUSH: Duration = Duration::from_secs(5);

/// Settings of traces.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Traces")]
pub struct TraceArgs {
    /// Collector to which traces are exported by OTLP over gRPC: https://HOST:4317, or http:// with --otlp-insecure. Without
    /// it, and without $OTEL_EXPORTER_OTLP_ENDPOINT, there are no traces. Sampling is set by $OTEL_TRACES_SAMPLER.
    #[arg(long, env = "OUTRIGGER_OTLP_ENDPOINT", value_name = "URL")]
    pub otlp_endpoint: Option<String>,

    /// CA certificates, PEM, that verify the collector's certificate. Without it, and without
    /// $OTEL_EXPORTER_OTLP_CERTIFICATE: the CAs of the system. It is read once, when the process starts.
    #[arg(long, env = "OUTRIGGER_OTLP_CA_FILE", value_name = "FILE")]
    pub otlp_ca_file: Option<PathBuf>,

    /// Export traces in plain text to a collector with an http:// URL: anybody on the network path can read them. The same as
    /// $OTEL_EXPORTER_OTLP_INSECURE.
    #[arg(long, env = "OUTRIGGER_OTLP_INSECURE")]
    pub otlp_insecure: bool,
}

#[derive(Debug, Clone)]
pub(crate) struct Traces {
    provider: SdkTracerProvider,
    tracer: SdkTracer,
}

/// The value of a setting, or of the first environment variable that has one.
fn or_variable<T: From<String>>(setting: Option<T>, names: &[&str]) -> Option<T> {
    let variable = |name: &&str| std::env::var(name).ok().filter(|value| !value.is_empty()).map(T::from);
    setting.or_else(|| names.iter().find_map(variable))
}

impl TraceArgs {
    /// Starts the exporter, if traces are enabled. Its own thread exports spans in batches, and drops them if the collector is
    /// unavailable. Fails if the endpoint is no URL, or one in plain text without --otlp-insecure, or the CA can't be read.
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
        Ok(Some(Traces::new(service, LoggedExporter { exporter, failing: AtomicBool::default() })))
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
        // OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES take precedence, as specified by OpenTelemetry.
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

    /// The subscriber layer that records spans.
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
            .with_filter(filter_fn(is_own_span).with_max_level_hint(tracing::Level::DEBUG))
    }

    /// Exports the remaining spans within this time. It is called at the end of the process.
    pub(crate) async fn flush(self, left: Duration) {
        let flushed =
            tokio::task::spawn_blocking(move || self.provider.shutdown_with_timeout(left.min(FLUSH))).await;
        match flushed {
            Ok(Ok(())) => debug!("exported all traces"),
            Ok(Err(error)) => warn!(%error, "failed to export the last traces"),
            Err(error) => warn!(%error, "failed to export the last traces"),
        }
    }
}

/// Whether it is a span of one of Outrigger's crates.
fn is_own_span(metadata: &Metadata<'_>) -> bool {
    metadata.is_span() && metadata.target().starts_with("outrigger")
}

/// Logs once when exporting starts to fail, and once when it succeeds again.
#[derive(Debug)]
struct LoggedExporter<E> {
    exporter: E,
    failing: AtomicBool,
}

impl<E: Export> Export for LoggedExporter<E> {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        match self.exporter.export(batch).await {
            Ok(()) => {
                if self.failing.swap(false, Ordering::Relaxed) {
                    info!("exporting traces again");
                }
            }
            Err(error) => {
                if !self.failing.swap(true, Ordering::Relaxed) {
                    warn!(%error, "failed to export traces; dropping them until the collector is available");
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

/// A span that caused later work. It may have ended, and may be of another process. Empty without traces.
#[derive(Debug, Clone, Default)]
pub struct Origin(Option<Box<SpanContext>>);

impl Origin {
    /// This span.
    pub fn of(span: &Span) -> Self {
        if span.is_disabled() {
            return Self(None);
        }
        let context = span.context().span().span_context().clone();
        Self(context.is_valid().then(|| Box::new(context)))
    }

    /// Makes this the parent of a span that has not been entered yet.
    pub fn continued_by(&self, span: &Span) {
        if let Some(context) = &self.0 {
            // It fails only if the span is disabled.
            let _ = span.set_parent(Context::new().with_remote_span_context((**context).clone()));
        }
    }
}

/// Links a span to the one in a request's headers (W3C `traceparent`). The span stays in a trace of its own, which Outrigger's
/// sampler decides about, because clients can send any headers. `tracestate` is ignored.
pub fn link_headers(span: &Span, headers: &HeaderMap) {
    if !span.is_disabled() {
        let parent = TraceParent(headers.get(TRACEPARENT).and_then(|value| value.to_str().ok()));
        let remote = TraceContextPropagator::new().extract_with_context(&Context::new(), &parent);
        span.add_link(remote.span().span_context().clone());
    }
}

/// Adds the current span to a request's headers, so that the server can continue its trace.
pub fn inject_headers(headers: &mut HeaderMap) {
    let span = Span::current();
    if !span.is_disabled() {
        TraceContextPropagator::new().inject_context(&span.context(), &mut HeadersMut(headers));
    }
}

/// As [`inject_headers`], for the metadata of a gRPC call.
pub fn inject_metadata(metadata: &mut MetadataMap) {
    inject_headers(metadata.as_mut());
}

/// Creates the span of an authorized gRPC call, if the call has a `traceparent`. Other calls have none, because agents call every
/// few seconds. `name` is the service and the method.
///
/// Callers are tenants, so the span starts a trace of its own, [linked](link_headers) to the caller's.
pub fn called(name: &'static str, metadata: &MetadataMap) -> Span {
    if metadata.get(TRACEPARENT).is_none() {
        return Span::none();
    }
    let span = debug_span!("rpc", otel.name = name, otel.kind = "server");
    link_headers(&span, metadata.as_ref());
    span
}

/// The header with the trace and the span of the caller.
const TRACEPARENT: &str = "traceparent";

/// The value of that header, and of no other.
struct TraceParent<'a>(Option<&'a str>);

impl Extractor for TraceParent<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        self.0.filter(|_| key == TRACEPARENT)
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
    use std::sync::Arc;

    use opentelemetry_sdk::error::OTelSdkError;
    use parking_lot::Mutex;
    use tracing::error;
    use tracing_subscriber::layer::SubscriberExt;

    use super::*;

    #[derive(Debug, Clone, Default)]
    struct Kept(Arc<Mutex<Vec<SpanData>>>);

    impl Export for Kept {
        async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
            self.0.lock().extend(batch);
            Ok(())
        }
    }

    /// An exporter that always fails.
    #[derive(Debug)]
    struct Dead;

    impl Export for Dead {
        async fn export(&self, _: Vec<SpanData>) -> OTelSdkResult {
            Err(OTelSdkError::InternalFailure("unavailable".to_owned()))
        }
    }

    #[tokio::test]
    async fn a_trace_continues_across_processes_and_queues() {
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
                drop(debug_span!(target: "hyper", "library"));
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
        // The caller's span is linked.
        assert_eq!(spans[0].parent_span_id, opentelemetry::SpanId::INVALID);
        let [link] = spans[0].links.links.as_slice() else { panic!("{:?}", spans[0].links) };
        assert_eq!(link.span_context.span_id().to_string(), "00f067aa0ba902b7");
        assert_eq!(link.span_context.trace_state().header(), "");
        assert_eq!(spans[1].parent_span_id, spans[0].span_context.span_id());
        let next = sent["traceparent"].to_str().unwrap().to_owned();
        assert!(next.contains(&spans[1].span_context.span_id().to_string()), "{next}");
    }

    #[tokio::test]
    async fn the_span_of_a_caller_is_linked_and_has_no_other_effect() {
        let kept = Kept::default();
        let traces = Traces::new("test", kept.clone());
        let subscriber = tracing_subscriber::registry().with(traces.layer());
        tracing::subscriber::with_default(subscriber, || {
            let mut metadata = MetadataMap::new();
            drop(called("/s/Untraced", &metadata));
            metadata.insert(TRACEPARENT, "nonsense".parse().unwrap());
            drop(called("/s/Nonsense", &metadata));
            // The caller hasn't sampled it, which has no effect.
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
    fn without_traces_nothing_is_kept_and_nothing_is_exported() {
        let span = debug_span!("disabled");
        assert!(Origin::of(&span).0.is_none());
        let mut headers = HeaderMap::new();
        span.in_scope(|| inject_headers(&mut headers));
        assert!(headers.is_empty());
        assert!(TraceArgs::default().traces("test").unwrap().is_none());
    }

    #[tokio::test]
    async fn an_unavailable_collector_is_logged_once_and_delays_nothing() {
        let quiet = LoggedExporter { exporter: Dead, failing: AtomicBool::default() };
        assert!(quiet.export(Vec::new()).await.is_ok());
        assert!(quiet.failing.load(Ordering::Relaxed));
        // There is no collector, so spans are dropped.
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
