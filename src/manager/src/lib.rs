//! The manager: workload streams in, companion Pods out.
