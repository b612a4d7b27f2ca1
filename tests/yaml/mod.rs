//! Manifests are read as kubectl reads them or refused, and what Outrigger prints, kubectl reads back: thousands of texts, by the code of
//! kubectl in one process ([`judge`]), without a control plane.

mod commands;
mod corpus;
mod judge;
mod printed;
mod random;
mod rules;
