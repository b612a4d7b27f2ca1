//! The gRPC interface `universe.workload.v1`: messages, clients and servers, generated from the `.proto` files beside
//! this crate. They are byte-compatible with NVIDIA's: the same field numbers and enum values.
//!
//! Nothing in here decides anything. `outrigger-api` turns these messages into the domain's types and refuses what
//! does not fit; nobody else reads their fields.

/// `universe.*`
pub mod universe {
    /// `universe.workload.*`
    pub mod workload {
        /// `universe.workload.v1`: workloads and rules of one tenant.
        #[allow(missing_docs, unreachable_pub, clippy::all, clippy::pedantic)]
        pub mod v1 {
            tonic::include_proto!("universe.workload.v1");
        }
    }
}

pub use universe::workload::v1;

/// Request metadata key that names the tenant a call is about.
pub const TENANT_ID: &str = "tenant-id";
