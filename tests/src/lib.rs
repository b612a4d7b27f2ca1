//! End-to-end tests on a real control plane, the demo, and the load benches.
