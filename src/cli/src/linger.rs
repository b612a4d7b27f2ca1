//! What is said of companions that outlive their workloads.

use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use outrigger_core::reason::Cause;

/// Why a companion of an ended workload stays, and how long. `ended`: the recorded end of the workload, in milliseconds since 1970.
pub(crate) fn lingers(ended: Option<i64>, time: Duration) -> String {
    let cause = Cause::Lingering.as_str();
    let seconds = time.as_secs();
    match ended.and_then(|ended| Timestamp::from_millisecond(ended).ok()) {
        Some(ended) => format!("{cause}: the workload ended at {ended:.0}, lingerSeconds is {seconds}"),
        None => format!("{cause}: the workload has ended, lingerSeconds is {seconds}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recorded_end_that_cannot_be_read_is_not_shown() {
        let said = |ended| lingers(ended, Duration::from_secs(60));
        assert_eq!(
            said(Some(1_500)),
            "Lingering: the workload ended at 1970-01-01T00:00:01Z, lingerSeconds is 60"
        );
        for ended in [None, Some(outrigger_core::companion::UNREADABLE_END)] {
            assert_eq!(said(ended), "Lingering: the workload has ended, lingerSeconds is 60");
        }
    }
}
