//! How many calls each identity has open.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tonic::Status;

use crate::grpc::limits::CALLS_PER_IDENTITY;
use crate::identity::Caller;

type Counts = Mutex<HashMap<Arc<str>, usize>>;

/// Counts calls that are open.
#[derive(Debug, Default)]
pub(super) struct Identities(Arc<Counts>);

/// A call that is open. It is over when this is dropped.
#[derive(Debug)]
pub(super) struct Call {
    counts: Arc<Counts>,
    identity: Arc<str>,
}

impl Identities {
    /// A call begins.
    ///
    /// # Errors
    /// RESOURCE_EXHAUSTED when the caller has as many open as anybody may have.
    pub(super) fn call(&self, caller: &Caller) -> Result<Call, Status> {
        let identity: Arc<str> = caller.to_string().into();
        let mut counts = self.0.lock();
        let count = counts.entry(identity.clone()).or_default();
        if *count >= CALLS_PER_IDENTITY {
            return Err(Status::resource_exhausted(format!(
                "{identity} has {count} calls open, at most {CALLS_PER_IDENTITY} are allowed; end one"
            )));
        }
        *count += 1;
        Ok(Call { counts: self.0.clone(), identity })
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        let mut counts = self.counts.lock();
        if let Some(count) = counts.get_mut(&self.identity) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.identity);
            }
        }
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
        assert!(identities.0.lock().is_empty());
    }
}
