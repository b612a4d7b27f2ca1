//! How much the simulation sees: each fault of a list is put back, and histories run until one violates something.
//!
//! `make sim-faults` builds the program with the feature `faults` and runs it. A fault is chosen at run time, by
//! [`outrigger_core::fault::VARIABLE`], so one build has all of them.

mod list;
mod run;
mod units;

pub use list::{FAULTS, Fault};
pub use run::{Search, search};
pub use units::{Units, build};

/// What a history prints of how often its fault had an effect.
pub const REACHED: &str = "reached: ";

/// How often the fault of this process has had an effect; `None` in a build without switches.
pub fn reached() -> Option<u64> {
    #[cfg(feature = "faults")]
    return Some(outrigger_core::fault::reached());
    #[cfg(not(feature = "faults"))]
    None
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};
    use std::path::Path;

    use super::*;

    /// The names of the switches in a crate's code, with the crate.
    fn switches(folder: &Path, part: &str, found: &mut BTreeSet<(String, String)>) {
        const SWITCH: &str = "fault(\"";
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                switches(&path, part, found);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = std::fs::read_to_string(&path).unwrap();
                let calls = text.match_indices(SWITCH).filter(|(at, _)| {
                    // `default("x")` is none, and neither is what a comment says.
                    let before = text[..*at].chars().next_back().unwrap_or(' ');
                    let line = text[..*at].lines().next_back().unwrap_or_default();
                    !before.is_alphanumeric() && before != '_' && !line.trim_start().starts_with("//")
                });
                // Nor is a function of this name with a second argument.
                let calls = calls.filter_map(|(at, _)| text[at + SWITCH.len()..].split_once('"'));
                let names = calls.filter(|(_, after)| after.starts_with(')')).map(|(name, _)| name);
                found.extend(names.map(|name| (name.to_owned(), part.to_owned())));
            }
        }
    }

    #[test]
    fn the_list_and_the_switches_of_the_product_are_the_same() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../src");
        let mut found = BTreeSet::new();
        for entry in std::fs::read_dir(&root).unwrap() {
            let folder = entry.unwrap().path();
            let part = folder.file_name().unwrap().to_str().unwrap().to_owned();
            switches(&folder.join("src"), &part, &mut found);
        }
        let listed: BTreeSet<_> =
            FAULTS.iter().map(|fault| (fault.name.to_owned(), fault.part.to_owned())).collect();
        assert_eq!(found, listed);
        assert_eq!(listed.len(), FAULTS.len(), "no name comes twice");
        let mut parts: BTreeMap<&str, usize> = BTreeMap::new();
        FAULTS.iter().for_each(|fault| *parts.entry(fault.part).or_default() += 1);
        let deciding = ["admission", "agent", "core", "host", "manager", "runtime"];
        assert!(parts.keys().eq(&deciding), "{parts:?}");
        assert!(FAULTS.len() >= 40);
    }

    #[test]
    #[cfg(not(feature = "faults"))]
    fn a_build_without_the_feature_has_no_switch() {
        const { assert!(!outrigger_core::fault::COMPILED) };
        assert!(FAULTS.iter().all(|fault| !outrigger_core::fault(fault.name)));
        assert_eq!(reached(), None);
    }
}
