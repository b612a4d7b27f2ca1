//! Histories with a fault.

use std::io;
use std::process::{Command, Output};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use outrigger_core::fault::VARIABLE;

use super::{Fault, REACHED};

/// What histories with a fault have shown.
#[derive(Debug, Default)]
pub struct Search {
    /// How many ran.
    pub ran: u64,
    /// In how many the fault had an effect.
    pub reached: u64,
    /// The number of histories up to the first one that violated something, and what.
    pub found: Option<(u64, String)>,
}

/// Runs histories with a fault until one violates something, two at the same time. `history` makes the process of a number, and
/// `violated` says what its output shows.
pub fn search(
    fault: &Fault,
    count: u64,
    history: impl Fn(u64) -> io::Result<Command> + Sync,
    violated: impl Fn(&io::Result<Output>) -> Option<String> + Sync,
) -> Search {
    let (next, found) = (AtomicU64::new(0), Mutex::new(Search::default()));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= count {
                        return;
                    }
                    let ran =
                        history(number).and_then(|mut history| history.env(VARIABLE, fault.name).output());
                    // A history that violates something without the fault too says nothing of it.
                    let violation = violated(&ran).filter(|_| {
                        let without = history(number).and_then(|mut history| history.output());
                        violated(&without).is_none()
                    });
                    let reached = ran.as_ref().is_ok_and(|output| reached(output) > 0);
                    let mut search = found.lock().unwrap();
                    search.ran += 1;
                    search.reached += u64::from(reached);
                    if let Some(violation) = violation {
                        next.store(count, Ordering::Relaxed);
                        let earlier = search.found.as_ref().is_some_and(|(before, _)| *before <= number + 1);
                        if !earlier {
                            search.found = Some((number + 1, violation));
                        }
                    }
                }
            });
        }
    });
    found.into_inner().unwrap()
}

/// How often the fault had an effect, by the output of a history.
fn reached(output: &Output) -> u64 {
    let text = String::from_utf8_lossy(&output.stdout);
    let reached = text.lines().find_map(|line| line.strip_prefix(REACHED)?.parse().ok());
    reached.unwrap_or_default()
}
