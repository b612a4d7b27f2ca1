//! What a process costs, as the kernel counts it, and what its shipped Pod may have.

use std::time::Duration;

use nix::time::ClockId;
use nix::unistd::Pid;
use serde_json::Value;

use crate::outrigger::{INFRASTRUCTURE, TENANT};
use crate::shipped;

/// The process that has this argument.
pub fn process(argument: &str) -> u32 {
    find(argument).unwrap_or_else(|| panic!("no process has the argument {argument}"))
}

/// The process that has this argument, if there is one. One that has just been started shows its arguments a moment later.
pub fn find(argument: &str) -> Option<u32> {
    let processes = std::fs::read_dir("/proc").expect("processes").flatten();
    let mut found = processes.filter_map(|entry| {
        let pid = entry.file_name().to_str()?.parse::<u32>().ok()?;
        let line = std::fs::read(entry.path().join("cmdline")).ok()?;
        let is = line.split(|byte| *byte == 0).any(|word| word == argument.as_bytes());
        is.then_some(pid)
    });
    found.next()
}

/// The most memory that a process has had, in bytes, since it began or since [`forget_peak`].
pub fn peak(pid: u32) -> u64 {
    memory(pid, "VmHWM:")
}

/// The memory that a process has now, in bytes.
pub fn resident(pid: u32) -> u64 {
    memory(pid, "VmRSS:")
}

/// Bytes in MiB.
pub fn mebibytes(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

/// A field of `/proc/PID/status` that is a number of kilobytes, in bytes.
fn memory(pid: u32, field: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("the process runs");
    let line = status.lines().find_map(|line| line.strip_prefix(field)).expect("the field");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") * 1024
}

/// From now on what a process has is its [`peak`] (proc(5), `clear_refs`).
pub fn forget_peak(pid: u32) {
    std::fs::write(format!("/proc/{pid}/clear_refs"), "5").expect("the process runs");
}

/// The processor time that a process has had, with that of its threads that have ended (clock_getcpuclockid(3)). The kernel counts
/// it in nanoseconds; `/proc/PID/stat` has hundredths of a second, too coarse for a process that mostly waits.
pub fn processor_time(pid: u32) -> Duration {
    let pid = Pid::from_raw(pid.try_into().expect("a process id"));
    ClockId::pid_cpu_clock_id(pid).and_then(ClockId::now).expect("the process runs").into()
}

/// What the shipped Pod of a part, `webhook`, `manager` or `agent`, may have, in bytes.
pub fn memory_limit(part: &str) -> u64 {
    let objects =
        shipped::kustomize(if part == "agent" { TENANT } else { INFRASTRUCTURE }).expect("an overlay");
    let name = format!("outrigger-{part}");
    let deployment = shipped::of_kind(&objects, "Deployment")
        .find(|object| object["metadata"]["name"] == *name)
        .expect("a Deployment");
    let limit = deployment
        .pointer("/spec/template/spec/containers/0/resources/limits/memory")
        .and_then(Value::as_str);
    let limit = limit.expect("a limit").parse::<outrigger_core::quantity::Quantity>().expect("a quantity");
    limit.holds(&"1".parse().expect("a quantity")).expect("a number of bytes")
}
