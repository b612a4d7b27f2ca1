//! How many calls each identity has open.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tonic::Status;

use super::shared::Shared;
use crate::grpc::limits::CALLS_PER_IDENTITY;
use crate::identity::Caller;

/// Counts calls that are open.
#[derive(Debug, Default)]
pub(super) struct Identities(Shared<Semaphore>);

/// A call that is open. It ends when this is dropped.
pub(super) type Call = OwnedSemaphorePermit;

impl Identities {
    /// A call begins.
    ///
    /// # Errors
    /// RESOURCE_EXHAUSTED when the caller has as many open as one identity may have.
    pub(super) fn call(&self, caller: &Caller) -> Result<Call, Status> {
        let identity: Arc<str> = caller.to_string().into();
        let calls = self.0.get(&identity, || Semaphore::new(CALLS_PER_IDENTITY));
        calls.try_acquire_owned().map_err(|_| {
            Status::resource_exhausted(format!(
                "{identity} has {CALLS_PER_IDENTITY} calls open, at most {CALLS_PER_IDENTITY} are allowed; end one"
            ))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identity_has_so_many_calls_and_no_more() {
        let identities = Identities::default();
        let open: Vec<_> =
            (0..CALLS_PER_IDENTITY).map(|_| identities.call(&Caller::Local).unwrap()).collect();
        let refused = identities.call(&Caller::Local).unwrap_err();
        assert!(refused.message().contains("has 128 calls open, at most 128 are allowed"), "{refused}");
        let other = Caller::Certificate { names: Vec::new(), not_after: std::time::UNIX_EPOCH };
        assert!(identities.call(&other).is_ok(), "another one isn't concerned");
        drop(open);
        assert!(identities.call(&Caller::Local).is_ok());
    }
}
