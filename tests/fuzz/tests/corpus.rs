//! The corpus, and the first seeds of each target.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use outrigger_fuzz::{TARGETS, Target, run};

/// The seeds that are kept, and the first ones.
fn replay(target: Target, seeds: &str, first: u64) {
    let kept: Vec<u64> = seeds.lines().map(|line| line.parse().unwrap()).collect();
    assert!(kept.len() > 20, "{target:?} has a corpus");
    let mut outcomes = [0; 3];
    for seed in kept.into_iter().chain(0..first) {
        let report = run(target, seed).unwrap_or_else(|why| panic!("{target:?}, seed {seed}: {why}"));
        outcomes[report.outcome as usize] += 1;
    }
    // A generator that makes nothing but refused inputs, or nothing but good ones, tests little.
    let all: usize = outcomes.iter().sum();
    assert!(outcomes.iter().all(|count| count * 50 > all), "{target:?}: {outcomes:?}");
}

#[test]
fn reviews_of_the_corpus_are_answered() {
    replay(Target::Reviews, include_str!("../corpus/reviews.txt"), 500);
}

#[test]
fn messages_of_the_corpus_are_received() {
    replay(Target::Messages, include_str!("../corpus/messages.txt"), 1000);
}

#[test]
fn rules_of_the_corpus_are_compiled() {
    replay(Target::Rules, include_str!("../corpus/rules.txt"), 500);
}

#[test]
fn texts_of_the_corpus_are_read_or_refused() {
    replay(Target::Texts, include_str!("../corpus/texts.txt"), 1000);
}

#[test]
fn the_same_seed_makes_the_same_input() {
    for target in TARGETS {
        for seed in 0..100 {
            let [one, other] = [run(target, seed), run(target, seed)].map(|ran| ran.unwrap().signature);
            assert_eq!(one, other, "{target:?} {seed}");
        }
    }
}
