//! Every metric there is, in one table: the servers register theirs from it, the documentation's reference is compared with
//! it, and so is what running servers show.
//!
//! Names and units are as OpenMetrics and Prometheus want them. Labels have values from enums or from names in the code:
//! what comes from outside, such as an object's name, would make as many series.

use std::fmt::Write;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Metric as Registered, Registry, Unit};

mod process;
mod table;

pub use process::ProcessMetrics;
pub use table::*;

/// Upper bounds of latency buckets, in seconds: 0.1 ms to 10 s, about three a decade.
pub const LATENCY_BUCKETS: [f64; 16] =
    [0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0];

/// Upper bounds of buckets for what takes microseconds, in seconds: 1 µs to 10 ms.
pub const MICRO_BUCKETS: [f64; 13] = [
    0.000_001, 0.000_002, 0.000_005, 0.000_01, 0.000_02, 0.000_05, 0.000_1, 0.000_2, 0.000_5, 0.001, 0.002,
    0.005, 0.01,
];

/// What all names begin with, but for those of [`STANDARD`].
pub const PREFIX: &str = "outrigger";

/// What a metric is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Goes up; its sample ends in `_total`.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Counts in buckets.
    Histogram,
    /// Always 1; what it tells is in its labels. Its sample ends in `_info`.
    Info,
}

/// Who shows a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Server {
    /// `outrigger webhook`
    Webhook,
    /// `outrigger manager`
    Manager,
    /// `outrigger agent`
    Agent,
}

/// The values that a label may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Values {
    /// One of these.
    OneOf(&'static [&'static str]),
    /// Names that stand in the code, or in the build; in words what they are.
    Named(&'static str),
}

/// A metric.
#[derive(Debug, Clone, Copy)]
pub struct Metric {
    /// Its name, without prefix, unit and the suffix of its type.
    pub name: &'static str,
    /// What it is.
    pub kind: Kind,
    /// What it counts in: `seconds` or `bytes`. Empty for plain numbers.
    pub unit: &'static str,
    /// Its labels and what these may be.
    pub labels: &'static [(&'static str, Values)],
    /// Who shows it.
    pub of: &'static [Server],
    /// What it tells, in half a sentence.
    pub help: &'static str,
}

impl Kind {
    /// As `# TYPE` lines have it.
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
    /// All of them.
    pub const ALL: &'static [Self] = &[Self::Webhook, Self::Manager, Self::Agent];

    /// As the subcommand is called.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Webhook => "webhook",
            Self::Manager => "manager",
            Self::Agent => "agent",
        }
    }
}

impl Values {
    /// Whether a value is one of these.
    pub fn allow(self, value: &str) -> bool {
        match self {
            Self::OneOf(values) => values.contains(&value),
            Self::Named(_) => !value.is_empty() && value.len() <= 64 && value.is_ascii(),
        }
    }
}

impl Metric {
    /// The name of its family, as `# TYPE` lines have it. Not for [`STANDARD`] ones, which have no prefix.
    pub fn family(&self) -> String {
        let Self { name, unit, .. } = self;
        if unit.is_empty() { format!("{PREFIX}_{name}") } else { format!("{PREFIX}_{name}_{unit}") }
    }

    /// The name that queries use; a histogram's has `_bucket`, `_count` and `_sum` after it.
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

    /// Has a registry show it.
    pub fn register(&self, registry: &mut Registry, metric: impl Registered) {
        match self.unit() {
            Some(unit) => registry.register_with_unit(self.name, self.help, unit, metric),
            None => registry.register(self.name, self.help, metric),
        }
    }

    /// Has it shown by a collector: for what is counted only when somebody asks.
    ///
    /// # Errors
    /// When nothing can be written.
    pub fn show(&self, encoder: &mut DescriptorEncoder<'_>, metric: &dyn EncodeMetric) -> std::fmt::Result {
        let help = format!("{}.", self.help);
        let kind = match self.kind {
            Kind::Counter => MetricType::Counter,
            Kind::Gauge => MetricType::Gauge,
            Kind::Histogram => MetricType::Histogram,
            Kind::Info => MetricType::Info,
        };
        metric.encode(encoder.encode_descriptor(self.name, &help, self.unit().as_ref(), kind)?)
    }

    /// Its line in the documentation.
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

/// Has a registry ask this whenever it is read.
pub fn collect(registry: &mut Registry, collector: impl Collector) {
    registry.register_collector(Box::new(collector));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_the_conventions_and_are_there_once() {
        let mut seen = std::collections::BTreeSet::new();
        for metric in ALL {
            let name = metric.family();
            assert!(seen.insert(name.clone()), "{name} is there twice");
            assert!(
                name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_'),
                "{name}"
            );
            assert!(
                !name.ends_with("_total") && !name.ends_with("_info"),
                "{name}: the suffix comes by itself"
            );
            let first = metric.help.chars().next().unwrap();
            assert!(!first.is_lowercase() && !metric.help.ends_with('.'), "{name}: {:?}", metric.help);
            assert!(!metric.of.is_empty(), "{name} is nobody's");
            for (label, values) in metric.labels {
                assert!(label.bytes().all(|b| b.is_ascii_lowercase() || b == b'_'), "{name}: {label}");
                if let Values::OneOf(values) = values {
                    assert!(!values.is_empty() && values.len() <= 32, "{name}: {label}");
                }
            }
        }
    }

    /// The documentation's reference is this table.
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
