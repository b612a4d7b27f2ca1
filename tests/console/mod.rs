//! `outrigger console` in a real browser, on real clusters: what its pages look like, what they are without a mouse and without
//! eyes, what they show of others, and what they do when something is away.

mod hostile;
mod keyboard;
mod live;
mod pictures;
mod soak;
mod stage;
mod views;
mod walk;
mod workloads;
