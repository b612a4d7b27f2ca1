//! The question of a host to its cluster's agent: may the Pods of these ResourceClaims start? It is JSON over HTTPS.
//!
//! The plugin on the host (`outrigger host`) asks, with a token of its service account; the agent answers when the companions of all of
//! these Pods are Ready, and after [`HOLD`] at the latest.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The path, by POST.
pub const PATH: &str = "/v1/prepare";

/// Maximum number of claims of a question. A Pod has one, and the kubelet asks for each Pod.
pub const MAX_CLAIMS: usize = 8;

/// Maximum size of a question in bytes: its claims with names of the maximum length.
pub const MAX_QUESTION: usize = 8 << 10;

/// Maximum size of an answer in bytes: as many claims with messages of the maximum length, and their escapes.
pub const MAX_ANSWER: usize = 64 << 10;

/// How long the agent waits for companions before it answers. The kubelet ends its own call after 45 s.
pub const HOLD: Duration = Duration::from_secs(20);

/// The question.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Question {
    /// The claims.
    pub claims: Vec<Claim>,
}

/// A ResourceClaim.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claim {
    /// Its namespace.
    pub namespace: String,
    /// Its name, which the cluster has generated.
    pub name: String,
    /// Its uid, which the answer repeats.
    pub uid: String,
}

/// The answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    /// One for each claim, in the order of the question.
    pub claims: Vec<Prepared>,
}

/// Whether the Pod of a claim may start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Prepared {
    /// The claim's uid.
    pub uid: String,
    /// Whether the Pod may start.
    pub ready: bool,
    /// Why it has to wait, in one word of the model of reasons; empty if it may start.
    #[serde(default)]
    pub cause: String,
    /// The same for people.
    #[serde(default)]
    pub message: String,
}
