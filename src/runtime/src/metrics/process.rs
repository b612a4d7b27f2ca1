//! Standard metrics of this process, read from `/proc/self`.

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Unit;
use serde_json::{Map, Value};

use super::TASKS;
use crate::environment::Clock;

/// Clock ticks per second in `/proc/<pid>/stat` (`USER_HZ`, proc_pid_stat(5)): 100 on all current architectures of Linux.
const TICKS: f64 = 100.0;

/// Collector that reads `/proc/self` at each export. On systems without it only the start time is exported.
#[derive(Debug)]
pub struct ProcessMetrics {
    started: f64,
}

/// Values read from `/proc/self` at one time.
#[derive(Debug, Default, Clone, PartialEq)]
struct Sample {
    cpu_seconds: Option<f64>,
    resident_bytes: Option<i64>,
    virtual_bytes: Option<i64>,
    threads: Option<i64>,
    open_fds: Option<i64>,
    max_fds: Option<i64>,
}

impl Default for ProcessMetrics {
    /// For a process that starts now.
    fn default() -> Self {
        Self { started: Clock::system().wall().as_duration().as_secs_f64() }
    }
}

impl ProcessMetrics {
    /// The current values, for `/debug/state`.
    pub fn state() -> Value {
        let sample = Sample::take();
        let mut state = Map::new();
        if let Some(cpu) = sample.cpu_seconds {
            state.insert("cpu_seconds".to_owned(), cpu.into());
        }
        for (name, _, value) in sample.gauges() {
            if let Some(value) = value {
                state.insert(name.to_owned(), value.into());
            }
        }
        Value::Object(state)
    }
}

impl Sample {
    fn take() -> Self {
        let read = |name: &str| std::fs::read_to_string(format!("/proc/self/{name}")).unwrap_or_default();
        Self {
            // Reading the directory needs a file descriptor of its own, which is subtracted.
            open_fds: std::fs::read_dir("/proc/self/fd")
                .ok()
                .and_then(|all| i64::try_from(all.count()).ok())
                .map(|n| n - 1),
            ..Self::parse(&read("stat"), &read("status"), &read("limits"))
        }
    }

    fn parse(stat: &str, status: &str, limits: &str) -> Self {
        // The second field is the command in parentheses, which may itself contain spaces and parentheses.
        let after = stat.rsplit_once(") ").map(|(_, rest)| rest).unwrap_or_default();
        let ticks = |field: usize| after.split(' ').nth(field - 3).and_then(|text| text.parse::<f64>().ok());
        let number = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
            line.split_whitespace().next()?.parse::<i64>().ok()
        };
        let limit = limits.lines().find_map(|line| line.strip_prefix("Max open files"));
        Self {
            cpu_seconds: ticks(14).zip(ticks(15)).map(|(user, system)| (user + system) / TICKS),
            resident_bytes: number("VmRSS").map(|kib| kib * 1024),
            virtual_bytes: number("VmSize").map(|kib| kib * 1024),
            threads: number("Threads"),
            open_fds: None,
            max_fds: limit.and_then(|line| line.split_whitespace().next()?.parse().ok()),
        }
    }

    /// Name, help text and value of each gauge.
    fn gauges(&self) -> [(&'static str, &'static str, Option<i64>); 5] {
        [
            ("resident_memory_bytes", "Resident memory of the process.", self.resident_bytes),
            ("virtual_memory_bytes", "Virtual memory of the process.", self.virtual_bytes),
            ("threads", "Threads of the process.", self.threads),
            ("open_fds", "Open file descriptors.", self.open_fds),
            ("max_fds", "Limit of open file descriptors.", self.max_fds),
        ]
    }
}

impl Collector for ProcessMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let sample = Sample::take();
        let mut show = |name: &str, help: &str, unit: Option<&Unit>, metric: &dyn EncodeMetric| {
            metric.encode(encoder.encode_descriptor(name, help, unit, metric.metric_type())?)
        };
        if let Some(cpu) = sample.cpu_seconds {
            let help = "CPU time of the process.";
            show("process_cpu", help, Some(&Unit::Seconds), &ConstCounter::new(cpu))?;
        }
        for (name, help, value) in sample.gauges() {
            let Some(value) = value else { continue };
            let (name, unit) = match name.strip_suffix("_bytes") {
                Some(name) => (name, Some(&Unit::Bytes)),
                None => (name, None),
            };
            show(&format!("process_{name}"), help, unit, &ConstGauge::new(value))?;
        }
        let help = "When the process started, Unix time.";
        show("process_start_time", help, Some(&Unit::Seconds), &ConstGauge::new(self.started))
    }
}

/// Collector of the number of tasks of a runtime. Metrics are exported by another one, which answers while this one is busy.
#[derive(Debug)]
pub struct TaskMetrics(Option<tokio::runtime::Handle>);

impl Default for TaskMetrics {
    /// Of the runtime in which this is called. Outside of any, nothing is exported.
    fn default() -> Self {
        Self(tokio::runtime::Handle::try_current().ok())
    }
}

impl Collector for TaskMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let Some(runtime) = &self.0 else { return Ok(()) };
        let tasks = i64::try_from(runtime.metrics().num_alive_tasks()).unwrap_or(i64::MAX);
        TASKS.show(&mut encoder, &ConstGauge::new(tasks))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proc_files_are_parsed() {
        let stat =
            "7 (a) (b c) S 1 7 7 0 -1 4194560 1 0 0 0 250 150 0 0 20 0 9 0 100 1 1 18446744073709551615";
        let status = "Name:\tx\nVmSize:\t    2048 kB\nVmRSS:\t    1024 kB\nThreads:\t9\n";
        let limits =
            "Limit  Soft Limit  Hard Limit  Units\nMax open files            1024       4096    files\n";
        let sample = Sample::parse(stat, status, limits);
        assert_eq!(
            sample,
            Sample {
                cpu_seconds: Some(4.0),
                resident_bytes: Some(1 << 20),
                virtual_bytes: Some(2 << 20),
                threads: Some(9),
                open_fds: None,
                max_fds: Some(1024),
            }
        );
        assert_eq!(Sample::parse("", "", ""), Sample::default());
        let own = Sample::take();
        assert!(own.resident_bytes > Some(0) && own.open_fds > Some(2) && own.threads > Some(0), "{own:?}");
    }
}
