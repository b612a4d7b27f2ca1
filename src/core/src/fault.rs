//! Switches by which the simulation puts faults back, to measure what it sees. Released programs have none.
//!
//! A switch is `fault("name")` in a condition, behind everything that has to hold for the fault to change what happens: so a fault is
//! counted where it has an effect, and nowhere else. The names, with a sentence for each, are in `tests/sim/src/faults/list.rs`. Without
//! the feature `faults` every switch is a constant `false`. A program that is built with the feature has at most one fault, which
//! [`VARIABLE`] names.

/// Whether this build has switches.
pub const COMPILED: bool = cfg!(feature = "faults");

/// The environment variable with the name of the fault that a process has.
pub const VARIABLE: &str = "OUTRIGGER_FAULT";

/// Whether the process has this fault.
#[cfg(not(feature = "faults"))]
#[inline]
#[must_use]
pub const fn fault(_: &'static str) -> bool {
    false
}

#[cfg(feature = "faults")]
pub use switches::{fault, reached};

#[cfg(feature = "faults")]
mod switches {
    use std::sync::LazyLock;
    use std::sync::atomic::{AtomicU64, Ordering};

    static ACTIVE: LazyLock<Option<String>> = LazyLock::new(|| std::env::var(super::VARIABLE).ok());
    static REACHED: AtomicU64 = AtomicU64::new(0);

    /// Whether the process has this fault. Counts how often it has had an effect.
    pub fn fault(name: &'static str) -> bool {
        let has = ACTIVE.as_deref() == Some(name);
        if has {
            REACHED.fetch_add(1, Ordering::Relaxed);
        }
        has
    }

    /// How often the fault of the process has had an effect.
    pub fn reached() -> u64 {
        REACHED.load(Ordering::Relaxed)
    }
}
