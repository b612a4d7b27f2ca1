//! The agent: a tenant cluster's Pods in, a workload stream out.
