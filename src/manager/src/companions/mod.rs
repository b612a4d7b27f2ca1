//! Companions: the objects that serve matched workloads, where they live, what is observed of them, and their controller.

pub(crate) mod location;
pub(crate) mod object;
pub mod observe;
pub(crate) mod templates;

mod controller;
mod planned;
pub(crate) mod refusal;

pub(crate) use controller::Companions;
