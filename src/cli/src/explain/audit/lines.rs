//! The lines of a log, of which some may be no events: a log may begin or end in the middle of a line, and other programs may
//! write into it.

use std::io::{BufRead, Read, Result};

/// Longest line, in bytes. An event of level RequestResponse has a Pod three times: 1.5 MiB each at most, and its patch.
pub(super) const MAX_LINE: u64 = 16 << 20;

/// Most lines of a kind that are named by their numbers.
const NAMED: usize = 5;

/// Why a line is left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    /// It is no JSON.
    NoJson,
    /// It is JSON, but no Event of `audit.k8s.io/v1`.
    NoEvent,
}

/// The lines that were left out.
#[derive(Debug, Default)]
pub(super) struct Faults {
    no_json: Numbers,
    no_event: Numbers,
    too_long: Numbers,
}

#[derive(Debug, Default)]
struct Numbers {
    count: usize,
    first: Vec<u64>,
}

impl Numbers {
    fn add(&mut self, number: u64) {
        self.count += 1;
        if self.first.len() < NAMED {
            self.first.push(number);
        }
    }

    /// `lines 3 and 7`, or `line 3`.
    fn note(&self, place: &str, what: &str) -> Option<String> {
        let first: Vec<String> = self.first.iter().map(u64::to_string).collect();
        let more = self.count - first.len();
        let lines = if self.count == 1 { "line" } else { "lines" };
        let more = if more == 0 { String::new() } else { format!(" and {more} more") };
        (self.count > 0).then(|| format!("{place}: {lines} {}{more} left out: {what}", first.join(", ")))
    }
}

impl Faults {
    /// One sentence for each kind of fault that there was.
    pub(super) fn notes(&self, place: &str) -> impl Iterator<Item = String> {
        let too_long = format!("more than {MAX_LINE} bytes");
        [
            self.no_json.note(place, "no JSON"),
            self.no_event.note(place, "no Event of audit.k8s.io/v1"),
            self.too_long.note(place, &too_long),
        ]
        .into_iter()
        .flatten()
    }
}

/// Calls `each` with every line that isn't blank.
pub(super) fn read(
    mut input: impl BufRead,
    faults: &mut Faults,
    mut each: impl FnMut(&[u8]) -> std::result::Result<(), Fault>,
) -> Result<()> {
    let mut line = Vec::new();
    for number in 1.. {
        line.clear();
        if (&mut input).take(MAX_LINE + 1).read_until(b'\n', &mut line)? == 0 {
            break;
        }
        if line.len() as u64 > MAX_LINE && line.last() != Some(&b'\n') {
            faults.too_long.add(number);
            input.skip_until(b'\n')?;
            continue;
        }
        let text = line.trim_ascii();
        match if text.is_empty() { Ok(()) } else { each(text) } {
            Ok(()) => {}
            Err(Fault::NoJson) => faults.no_json.add(number),
            Err(Fault::NoEvent) => faults.no_event.add(number),
        }
    }
    Ok(())
}
