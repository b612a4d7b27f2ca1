//! Tests of the whole: real clusters, real processes. One control plane serves all tests of this binary; each test has
//! tenants of its own.

mod admission;
mod grpc;
mod lifecycle;
