//! Histories of the simulation, by the program that runs them: each has a process of its own.

#![allow(clippy::unwrap_used)]

use std::process::{Command, Output};

use outrigger_sim::older::Side;
use outrigger_sim::world::Scope;

fn sim(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_sim")).args(arguments).output().unwrap()
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn histories_of_many_seeds_keep_every_invariant_and_come_to_rest() {
    // Those from 2,000 on have more of what the product has.
    for seeds in [["--first=0", "--count=10"], ["--first=2000", "--count=30"]] {
        let ran = sim(&[&seeds[..], &["--events=100"]].concat());
        assert!(ran.status.success(), "{}", text(&ran));
    }
}

#[test]
fn a_seed_leads_to_one_history() {
    let histories = ["2", "3", "5"].map(|seed| {
        let run = || text(&sim(&["--seed", seed, "--events=100"]));
        let (one, other) = (run(), run());
        let differs = one.lines().zip(other.lines()).find(|(one, other)| one != other);
        assert_eq!(differs, None, "seed {seed}");
        assert_eq!(one.len(), other.len(), "seed {seed}");
        one
    });
    // A history may be without companions: some mixes leave out what they need.
    let companions = |history: &String| history.contains(" create pods tenant-");
    assert!(histories.iter().any(companions), "there are companions in one of them");
}

#[test]
fn histories_with_peers_of_the_release_before_keep_every_invariant_and_repeat_themselves() {
    for side in [Side::Agents, Side::Managers] {
        let seed = (Scope::FIRST..).find(|seed| Scope::of(*seed).older == Some(side)).unwrap().to_string();
        let run = || sim(&["--seed", seed.as_str(), "--events=100"]);
        let (one, other) = (run(), run());
        assert!(one.status.success(), "seed {seed}: {}", text(&one));
        assert!(text(&one).contains(" starts with the protocol of the release before"), "seed {seed}");
        assert_eq!(text(&one), text(&other), "seed {seed}");
    }
}
