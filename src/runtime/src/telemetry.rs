//! Logs and traces.

mod line;
mod output;
mod trace;

use std::io::IsTerminal;

use anyhow::Context;
use clap::{Args, ValueEnum};
use parking_lot::Mutex;
use tracing::{Level, Metadata};
use tracing_subscriber::filter::{FilterExt, filter_fn};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, Registry, reload};

use self::line::Lines;
pub(crate) use self::output::Output;
pub use self::output::say;
use self::trace::Traces;
pub use self::trace::{Origin, TraceArgs, called, inject_headers, inject_metadata, link_headers};

/// How logs are written. They go to standard error, by a thread of their own: a reader that is slow or has stopped delays nothing
/// but the log. Lines beyond a bounded number are dropped and counted.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Logs")]
pub struct LogArgs {
    /// Least level that is logged: error, warn, info, debug or trace; or directives such as
    /// `info,outrigger_manager=debug`. With --debug-endpoints it can be changed while the process runs.
    #[arg(long, env = "OUTRIGGER_LOG_LEVEL", default_value = "info", value_name = "LEVEL")]
    pub log_level: String,

    /// Form of the log: text for people, json for machines (one object a line).
    #[arg(long, env = "OUTRIGGER_LOG_FORMAT", default_value = "text", value_name = "FORMAT")]
    pub log_format: LogFormat,
}

/// Form of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// For people.
    Text,
    /// For machines.
    Json,
}

/// What has begun to be told: the level of the log, which may change, and the traces.
#[derive(Debug)]
pub(crate) struct Telemetry {
    /// The level of the log.
    pub(crate) level: LogLevel,
    /// Where traces go, if anywhere.
    pub(crate) traces: Option<Traces>,
    /// The thread that writes the log.
    pub(crate) output: Output,
}

/// The level of the log while the process runs.
#[derive(Debug)]
pub struct LogLevel {
    handle: reload::Handle<EnvFilter, Registry>,
    /// As it was asked for last.
    now: Mutex<String>,
}

impl LogLevel {
    /// As it was asked for last.
    pub fn get(&self) -> String {
        self.now.lock().clone()
    }

    /// Logs by these directives from now on.
    ///
    /// # Errors
    /// When they can't be read, in words; the level stays what it is then.
    pub fn set(&self, directives: &str) -> Result<(), String> {
        let filter =
            filter(directives).map_err(|error| format!("{directives:?} is no log level: {error}"))?;
        let mut now = self.now.lock();
        self.handle.reload(filter).map_err(|error| error.to_string())?;
        directives.clone_into(&mut now);
        Ok(())
    }
}

fn filter(directives: &str) -> Result<EnvFilter, tracing_subscriber::filter::ParseError> {
    EnvFilter::try_new(directives)
}

/// Whether a line can't hold an object of a cluster. An answer that can't be read is logged whole by the client that got it,
/// Secrets too; who has asked logs why it didn't work.
fn holds_no_object(metadata: &Metadata<'_>) -> bool {
    metadata.target() != "kube_client::client" || *metadata.level() == Level::ERROR
}

/// Begins to log, and to send traces where that is asked for. `service` is what traces call this process. To be called
/// once, in a tokio runtime.
///
/// # Errors
/// When the level can't be read, the traces' endpoint can't be used, or logging has begun already.
pub(crate) fn init(service: &'static str, log: &LogArgs, trace: &TraceArgs) -> anyhow::Result<Telemetry> {
    let filter =
        filter(&log.log_level).with_context(|| format!("--log-level {:?} can't be read", log.log_level))?;
    let traces = trace.traces(service)?;
    let (filter, handle) = reload::Layer::new(filter);
    let (to, output) = Output::new()?;
    let lines = Lines { json: log.log_format == LogFormat::Json, to };
    let text = tracing_subscriber::fmt::layer().with_writer(lines).with_ansi(std::io::stderr().is_terminal());
    let layer = match log.log_format {
        LogFormat::Text => text.boxed(),
        // Spans are for traces; what a line is about is in its own fields.
        LogFormat::Json => {
            text.json().flatten_event(true).with_current_span(false).with_span_list(false).boxed()
        }
    };
    tracing_subscriber::registry()
        .with(layer.with_filter(filter.and(filter_fn(holds_no_object))))
        .with(traces.as_ref().map(Traces::layer))
        .try_init()
        .map_err(|e| anyhow::anyhow!("logging has begun already: {e}"))?;
    output::report_panics();
    let level = LogLevel { handle, now: Mutex::new(log.log_level.clone()) };
    Ok(Telemetry { level, traces, output })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_level_that_is_none_is_refused() {
        let args = LogArgs { log_level: "info,x=loud".to_owned(), log_format: LogFormat::Text };
        let error = format!("{:#}", init("test", &args, &TraceArgs::default()).unwrap_err());
        assert!(error.contains("--log-level") && error.contains("loud"), "{error}");
    }

    #[test]
    fn what_the_client_could_not_read_is_not_told_at_any_level() {
        let (filter, handle) = reload::Layer::new(filter("trace").unwrap());
        let level = LogLevel { handle, now: Mutex::new("trace".to_owned()) };
        let layer = tracing_subscriber::fmt::layer().with_test_writer();
        let subscriber =
            tracing_subscriber::registry().with(layer.with_filter(filter.and(filter_fn(holds_no_object))));
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
    fn the_level_changes_while_something_logs() {
        let (filter, handle) = reload::Layer::new(filter("warn").unwrap());
        let level = LogLevel { handle, now: Mutex::new("warn".to_owned()) };
        let subscriber = tracing_subscriber::registry()
            .with(tracing_subscriber::fmt::layer().with_test_writer().with_filter(filter));
        tracing::subscriber::with_default(subscriber, || {
            assert!(!tracing::enabled!(tracing::Level::DEBUG));
            level.set("warn,outrigger_runtime=debug").unwrap();
            assert!(tracing::enabled!(tracing::Level::DEBUG));
            assert_eq!(level.get(), "warn,outrigger_runtime=debug");
            let error = level.set("outrigger_runtime=loud").unwrap_err();
            assert!(error.contains("loud"), "{error}");
            assert!(tracing::enabled!(tracing::Level::DEBUG), "what can't be read changes nothing");
            level.set("error").unwrap();
            assert!(!tracing::enabled!(tracing::Level::WARN));
        });
    }
}
