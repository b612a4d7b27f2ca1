//! Structure-aware fuzzing: inputs that are nearly right, made of random bytes, and what must hold for each of them.
//!
//! An input is a target and a seed. The seed gives bytes, and the bytes choose by way of [`arbitrary`]. A target hands the input to
//! the code that a server runs and checks the answer; where a property doesn't hold, it fails with the input.
// Generators and checks fail by panicking, as tests do.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod admission;
mod choice;
mod messages;
mod objects;
mod reviews;
mod rules;
mod texts;
mod world;

use rand::rngs::SmallRng;
use rand::{RngCore, SeedableRng};
use serde_json::Value;

use choice::Choice;

/// What an input is made for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Target {
    /// AdmissionReviews for every path of the webhook.
    Reviews,
    /// Messages of `universe.workload.v1` and `universe.admin.workload.v1`.
    Messages,
    /// WorkloadRules and AdminWorkloadRules, with the companions that are made of them.
    Rules,
    /// Texts as YAML or JSON.
    Texts,
}

/// All targets.
pub const TARGETS: [Target; 4] = [Target::Reviews, Target::Messages, Target::Rules, Target::Texts];

/// The result of an input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// It was accepted.
    Accepted,
    /// It was understood and refused.
    Denied,
    /// It could not be decoded.
    Undecodable,
}

/// What a target reports of an input for which all properties hold.
#[derive(Debug)]
pub struct Report {
    /// The result.
    pub outcome: Outcome,
    /// What kind of answer it got: equal answers to different inputs have equal texts here.
    pub signature: String,
    /// A patch that was made, where one was.
    pub patch: Option<Box<Patched>>,
}

impl Report {
    fn new(outcome: Outcome, signature: impl Into<String>) -> Self {
        Self { outcome, signature: signature.into(), patch: None }
    }
}

/// An object, its JSON Patch, and the object that the patch makes of it.
#[derive(Debug, serde::Serialize)]
pub struct Patched {
    /// The object before.
    pub object: Value,
    /// The JSON Patch as the answer has it.
    pub patch: Value,
    /// The object after.
    pub patched: Value,
}

/// Fills the caches, so that no input is measured with that.
pub fn prepare() {
    std::sync::LazyLock::force(&world::WORLD);
}

/// Runs the input of a seed. The error says which property doesn't hold, and has the input.
pub fn run(target: Target, seed: u64) -> Result<Report, String> {
    let mut random = SmallRng::seed_from_u64(seed);
    // Short inputs are simple ones.
    let mut bytes = [0; 4096];
    let length = [64, 256, 1024, 4096][usize::try_from(seed % 4).unwrap()];
    random.fill_bytes(&mut bytes[..length]);
    let choice = &mut Choice::new(&bytes[..length]);
    match target {
        Target::Reviews => admission::run(choice),
        Target::Messages => messages::run(choice),
        Target::Rules => rules::run(choice),
        Target::Texts => texts::run(choice),
    }
}

/// The kind of a message: without the values that it quotes, and without numbers.
fn kind_of(message: &str) -> String {
    let quoted = message.split('"').step_by(2).collect::<Vec<_>>().join("_");
    let plain: String = quoted.chars().filter(|c| c.is_ascii_alphabetic() || " .:[]".contains(*c)).collect();
    plain.chars().take(60).collect()
}
