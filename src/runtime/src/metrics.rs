//! All metrics, in one table. Servers register their metrics from it. Tests compare the reference documentation and the output
//! of running servers with it.
//!
//! Names and units follow the conventions of OpenMetrics and Prometheus. The values of labels are enums or constants in the
//! code: values from outside, such as names of objects, would make the number of series unbounded.

use std::fmt::Write;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::registry::{Metric as Registered, Registry, Unit};

mod process;
mod table;

pub use process::{ProcessMetrics, TaskMetrics};
pub use table::*;

/// Upper bounds of latency buckets, in seconds: 0.1 ms to 10 s, three per decade.
pub const LATENCY_BUCKETS: [f64; 16] =
    [0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0];

/// Upper bounds of buckets for durations of microseconds, in seconds: 1 µs to 10 ms.
pub const MICRO_BUCKETS: [f64; 13] = [
    0.000_001, 0.000_002, 0.000_005, 0.000_01, 0.000_02, 0.000_05, 0.000_1, 0.000_2, 0.000_5, 0.001, 0.002,
    0.005, 0.01,
];

/// Prefix of all names except those of [`STANDARD`].
pub const PREFIX: &str = "outrigger";

/// The type of a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A value that only increases. Its sample has the suffix `_total`.
    Counter,
    /// A value that increases and decreases.
    Gauge,
    /// A distribution in buckets.
    Histogram,
    /// Always 1, with the information in its labels. Its sample has the suffix `_info`.
    Info,
}

/// A server that exports metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Server {
    /// `outrigger webhook`
    Webhook,
    /// `outrigger manager`
    Manager,
    /// `outrigger agent`
    Agent,
    /// `outrigger host`
    Host,
    /// `outrigger console-server`
    Console,
}

/// The values that a label can have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Values {
    /// One of these.
    OneOf(&'static [&'static str]),
    /// Names that are constants of the code or of the build. The text describes them in the documentation.
    Named(&'static str),
}

/// The definition of a metric.
#[derive(Debug, Clone, Copy)]
pub struct Metric {
    /// Its name, without prefix, unit and the suffix of its type.
    pub name: &'static str,
    /// Its type.
    pub kind: Kind,
    /// Its unit: `seconds` or `bytes`, or empty.
    pub unit: &'static str,
    /// Its labels with their possible values.
    pub labels: &'static [(&'static str, Values)],
    /// The servers that export it.
    pub of: &'static [Server],
    /// Its help text, without a full stop.
    pub help: &'static str,
}

impl Kind {
    /// The name in `# TYPE` lines.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
            Self::Info => "info",
        }
    }
}

impl Server {
    /// All servers.
    pub const ALL: &'static [Self] = &[Self::Webhook, Self::Manager, Self::Agent, Self::Host, Self::Console];

    /// The name of its subcommand.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Webhook => "webhook",
            Self::Manager => "manager",
            Self::Agent => "agent",
            Self::Host => "host",
            Self::Console => "console-server",
        }
    }
}

impl Values {
    /// Whether the label can have this value.
    pub fn allow(self, value: &str) -> bool {
        match self {
            Self::OneOf(values) => values.contains(&value),
            Self::Named(_) => !value.is_empty() && value.len() <= 64 && value.is_ascii(),
        }
    }
}

impl Metric {
    /// The name of its family in `# TYPE` lines, with the prefix.
    pub fn family(&self) -> String {
        let Self { name, unit, .. } = self;
        if unit.is_empty() { format!("{PREFIX}_{name}") } else { format!("{PREFIX}_{name}_{unit}") }
    }

    /// The name in queries. A histogram has the further suffixes `_bucket`, `_count` and `_sum`.
    pub fn sample(&self) -> String {
        let suffix = match self.kind {
            Kind::Counter => "_total",
            Kind::Info => "_info",
            Kind::Gauge | Kind::Histogram => "",
        };
        self.family() + suffix
    }

    fn unit(&self) -> Option<Unit> {
        match self.unit {
            "" => None,
            "seconds" => Some(Unit::Seconds),
            "bytes" => Some(Unit::Bytes),
            other => Some(Unit::Other(other.to_owned())),
        }
    }

    /// Registers it.
    pub fn register(&self, registry: &mut Registry, metric: impl Registered) {
        match self.unit() {
            Some(unit) => registry.register_with_unit(self.name, self.help, unit, metric),
            None => registry.register(self.name, self.help, metric),
        }
    }

    /// Encodes it in a collector, for a value that is computed when it is exported.
    ///
    /// # Errors
    /// If the encoder fails.
    pub fn show(&self, encoder: &mut DescriptorEncoder<'_>, metric: &dyn EncodeMetric) -> std::fmt::Result {
        let help = format!("{}.", self.help);
        let unit = self.unit();
        metric.encode(encoder.encode_descriptor(self.name, &help, unit.as_ref(), metric.metric_type())?)
    }

    /// Its row in the documentation.
    pub fn row(&self) -> String {
        let mut labels = Vec::new();
        for (name, values) in self.labels {
            let values = match values {
                Values::OneOf(values) => values.join(", "),
                Values::Named(words) => (*words).to_owned(),
            };
            labels.push(format!("{name}: {values}"));
        }
        let of = if self.of == Server::ALL {
            "all".to_owned()
        } else {
            self.of.iter().map(|server| server.as_str()).collect::<Vec<_>>().join(", ")
        };
        let mut row = String::new();
        let (name, kind) = (self.sample(), self.kind.as_str());
        let _ = write!(row, "| `{name}` | {kind} | {of} | {} | {} |", labels.join("; "), self.help);
        row
    }
}

/// Registers a collector, which is called at each export.
pub fn collect(registry: &mut Registry, collector: impl Collector) {
    registry.register_collector(Box::new(collector));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_the_conventions_and_are_unique() {
        let mut seen = std::collections::BTreeSet::new();
        for metric in ALL {
            let name = metric.family();
            assert!(seen.insert(name.clone()), "{name} is declared twice");
            assert!(
                name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_'),
                "{name}"
            );
            assert!(
                !name.ends_with("_total") && !name.ends_with("_info"),
                "{name}: the suffix is added by its type"
            );
            let first = metric.help.chars().next().unwrap();
            assert!(!first.is_lowercase() && !metric.help.ends_with('.'), "{name}: {:?}", metric.help);
            assert!(!metric.of.is_empty(), "{name} is exported by no server");
            for (label, values) in metric.labels {
                assert!(label.bytes().all(|b| b.is_ascii_lowercase() || b == b'_'), "{name}: {label}");
                if let Values::OneOf(values) = values {
                    assert!(!values.is_empty() && values.len() <= 32, "{name}: {label}");
                }
            }
        }
    }

    #[test]
    fn the_documentation_has_every_metric() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/metrics.md");
        let text = std::fs::read_to_string(path).unwrap();
        let documented: Vec<&str> = text.lines().filter(|line| line.starts_with("| `outrigger_")).collect();
        let rows: Vec<String> = ALL.iter().map(|metric| metric.row()).collect();
        assert_eq!(documented, rows, "docs/reference/metrics.md should have:\n{}\n", rows.join("\n"));
        for name in STANDARD {
            assert!(text.contains(&format!("`{name}`")), "{name} isn't in the documentation");
        }
    }
}
