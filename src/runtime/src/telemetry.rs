//! Logs.

use std::io::IsTerminal;

use anyhow::Context;
use clap::{Args, ValueEnum};
use tracing_subscriber::EnvFilter;

/// How logs are written. They go to standard error.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Logs")]
pub struct LogArgs {
    /// Least level that is logged: error, warn, info, debug or trace; or directives such as
    /// `info,outrigger_manager=debug`.
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

impl LogArgs {
    /// Begins to log. To be called once.
    ///
    /// # Errors
    /// When the level can't be read, or logging has begun already.
    pub fn init(&self) -> anyhow::Result<()> {
        let filter = EnvFilter::try_new(&self.log_level)
            .with_context(|| format!("--log-level {:?} can't be read", self.log_level))?;
        let builder = tracing_subscriber::fmt()
            .with_env_filter(filter)
            .with_writer(std::io::stderr)
            .with_ansi(std::io::stderr().is_terminal());
        match self.log_format {
            LogFormat::Text => builder.try_init(),
            LogFormat::Json => builder.json().flatten_event(true).with_current_span(false).try_init(),
        }
        .map_err(|e| anyhow::anyhow!("logging has begun already: {e}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_level_that_is_none_is_refused() {
        let args = LogArgs { log_level: "info,x=loud".to_owned(), log_format: LogFormat::Text };
        let error = format!("{:#}", args.init().unwrap_err());
        assert!(error.contains("--log-level") && error.contains("loud"), "{error}");
    }
}
