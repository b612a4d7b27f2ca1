//! Logs and traces.

mod line;
mod output;
mod trace;

use std::io::IsTerminal;

use anyhow::Context;
use clap::{Args, ValueEnum};
use parking_lot::Mutex;
use tracing::level_filters::LevelFilter;
use tracing::{Level, Metadata, Subscriber};
use tracing_subscriber::filter::{FilterExt, ParseError, filter_fn};
use tracing_subscriber::layer::{Filter, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, Registry, reload};

use self::line::Bounded;
pub(crate) use self::output::Output;
pub use self::output::say;
use self::trace::Traces;
pub use self::trace::{Origin, TraceArgs, called, inject_headers, inject_metadata, link_headers};

/// Settings of the log. It is written to standard error by its own thread, so that a slow reader delays only the log. Lines beyond
/// a bounded number are dropped and counted.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Logs")]
pub struct LogArgs {
    /// Minimum level of log lines: error, warn, info, debug or trace; or directives such as
    /// `info,outrigger_manager=debug`. With --debug-endpoints it can be changed while the process runs.
    #[arg(long, env = "OUTRIGGER_LOG_LEVEL", default_value = "info", value_name = "LEVEL")]
    pub log_level: String,

    /// Format of the log: text, or json with one object per line.
    #[arg(long, env = "OUTRIGGER_LOG_FORMAT", default_value = "text", value_name = "FORMAT")]
    pub log_format: LogFormat,
}

/// Format of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// Text.
    Text,
    /// A JSON object per line.
    Json,
}

#[derive(Debug)]
pub(crate) struct Telemetry {
    pub(crate) level: LogLevel,
    pub(crate) traces: Option<Traces>,
    pub(crate) output: Output,
}

/// The level of the log while the process runs.
#[derive(Debug)]
pub struct LogLevel {
    handle: reload::Handle<EnvFilter, Registry>,
    /// The directives that were set last.
    now: Mutex<String>,
}

impl LogLevel {
    /// The filter of the log with these directives, and its level. Fails if they can't be parsed.
    fn new(directives: &str) -> Result<(reload::Layer<EnvFilter, Registry>, Self), ParseError> {
        let (filter, handle) = reload::Layer::new(EnvFilter::try_new(directives)?);
        Ok((filter, Self { handle, now: Mutex::new(directives.to_owned()) }))
    }

    /// The directives that were set last.
    pub fn get(&self) -> String {
        self.now.lock().clone()
    }

    /// Sets these directives. Fails if they can't be parsed; the level is unchanged then.
    pub(crate) fn set(&self, directives: &str) -> Result<(), String> {
        let filter = EnvFilter::try_new(directives)
            .map_err(|error| format!("invalid log level {directives:?}: {error}"))?;
        let mut now = self.now.lock();
        self.handle.reload(filter).map_err(|error| error.to_string())?;
        directives.clone_into(&mut now);
        Ok(())
    }
}

/// Leaves out lines that may contain an object of a cluster: kube logs a response that it can't parse as a whole, also if it is a
/// Secret. The caller logs the error.
fn holds_no_object(metadata: &Metadata<'_>) -> bool {
    metadata.target() != "kube_client::client" || *metadata.level() == Level::ERROR
}

/// What the log shows. The hint lets a process skip what is below the level of the log before it is made: without one, each span of
/// a message, and of the libraries that receive it, would be recorded and dropped.
fn shown<S: Subscriber>(level: reload::Layer<EnvFilter, S>) -> impl Filter<S> {
    level.and(filter_fn(holds_no_object).with_max_level_hint(LevelFilter::TRACE))
}

/// Initializes the log, and traces if they are enabled. `service` is the service name in traces. It is called once, in a tokio
/// runtime. Fails if the level or the endpoint of traces is invalid, or the log was initialized before.
pub(crate) fn init(service: &'static str, log: &LogArgs, trace: &TraceArgs) -> anyhow::Result<Telemetry> {
    let (filter, level) =
        LogLevel::new(&log.log_level).with_context(|| format!("invalid --log-level {:?}", log.log_level))?;
    let traces = trace.traces(service)?;
    let (to, output) = Output::new()?;
    let json = log.log_format == LogFormat::Json;
    let line = move || Bounded { json, to: to.clone() };
    let text = tracing_subscriber::fmt::layer().with_writer(line).with_ansi(std::io::stderr().is_terminal());
    let layer = match log.log_format {
        LogFormat::Text => text.boxed(),
        // Spans are for traces only. A line has all of its values in its own fields.
        LogFormat::Json => {
            text.json().flatten_event(true).with_current_span(false).with_span_list(false).boxed()
        }
    };
    tracing_subscriber::registry()
        .with(layer.with_filter(shown(filter)))
        .with(traces.as_ref().map(Traces::layer))
        .try_init()
        .map_err(|e| anyhow::anyhow!("the log was initialized before: {e}"))?;
    output::report_panics();
    Ok(Telemetry { level, traces, output })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_invalid_level_is_refused() {
        let args = LogArgs { log_level: "info,x=loud".to_owned(), log_format: LogFormat::Text };
        let error = format!("{:#}", init("test", &args, &TraceArgs::default()).unwrap_err());
        assert!(error.contains("--log-level") && error.contains("loud"), "{error}");
    }

    #[test]
    fn responses_that_the_client_cannot_parse_are_never_logged() {
        let (filter, level) = LogLevel::new("trace").unwrap();
        let layer = tracing_subscriber::fmt::layer().with_test_writer();
        let subscriber = tracing_subscriber::registry().with(layer.with_filter(shown(filter)));
        tracing::subscriber::with_default(subscriber, || {
            for _ in 0..2 {
                assert!(!tracing::enabled!(target: "kube_client::client", Level::WARN));
                assert!(tracing::enabled!(target: "kube_client::client", Level::ERROR));
                assert!(tracing::enabled!(target: "kube_client::client::tls", Level::WARN));
                level.set("warn,kube_client=trace").unwrap();
            }
        });
    }

    #[test]
    fn what_is_below_the_level_is_not_made() {
        let (filter, level) = LogLevel::new("info").unwrap();
        let layer = tracing_subscriber::fmt::layer().with_test_writer();
        let subscriber = tracing_subscriber::registry()
            .with(layer.with_filter(shown(filter)))
            .with(None::<Traces>.as_ref().map(Traces::layer));
        assert_eq!(subscriber.max_level_hint(), Some(LevelFilter::INFO));
        level.set("warn,outrigger_manager=debug").unwrap();
        assert_eq!(subscriber.max_level_hint(), Some(LevelFilter::DEBUG));
    }

    #[test]
    fn the_level_changes_at_run_time() {
        let (filter, level) = LogLevel::new("warn").unwrap();
        let subscriber = tracing_subscriber::registry()
            .with(tracing_subscriber::fmt::layer().with_test_writer().with_filter(filter));
        tracing::subscriber::with_default(subscriber, || {
            assert!(!tracing::enabled!(tracing::Level::DEBUG));
            level.set("warn,outrigger_runtime=debug").unwrap();
            assert!(tracing::enabled!(tracing::Level::DEBUG));
            assert_eq!(level.get(), "warn,outrigger_runtime=debug");
            let error = level.set("outrigger_runtime=loud").unwrap_err();
            assert!(error.contains("loud"), "{error}");
            assert!(tracing::enabled!(tracing::Level::DEBUG), "an invalid level changes nothing");
            level.set("error").unwrap();
            assert!(!tracing::enabled!(tracing::Level::WARN));
        });
    }
}
