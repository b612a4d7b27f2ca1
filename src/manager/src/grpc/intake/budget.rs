//! Bytes of messages that are in memory, kept per tenant and over all tenants.
//!
//! A message holds its share of a [`Pool`] for as long as its bytes are there. Who finds the tenant's part of the pool used up
//! waits for the tenant's own messages alone, before anything is taken of the part that all share.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::shared::Shared;
use crate::grpc::limits;

/// The id of the tenant that messages count for, or that of administrators.
pub(crate) type Payer = Arc<str>;

/// What may be in memory of all callers' messages.
#[derive(Debug)]
pub(crate) struct Budget {
    buffered: Arc<Semaphore>,
    decoded: Arc<Semaphore>,
    shares: Shared<Share>,
}

/// One payer's part of it.
#[derive(Debug)]
pub(crate) struct Share {
    /// Messages that aren't complete yet, or are complete and not decoded.
    pub(crate) buffered: Pool,
    /// Messages that are decoded and not taken in yet.
    pub(crate) decoded: Pool,
}

/// A budget of bytes within another one.
#[derive(Debug)]
pub(crate) struct Pool {
    own: Arc<Semaphore>,
    most: usize,
    all: Arc<Semaphore>,
}

/// Bytes that are taken. They are given back when this is dropped.
#[derive(Debug, Default)]
pub(crate) struct Held {
    _own: Option<OwnedSemaphorePermit>,
    _all: Option<OwnedSemaphorePermit>,
}

impl Default for Budget {
    fn default() -> Self {
        Self {
            buffered: Arc::new(Semaphore::new(limits::BUFFERED_BYTES)),
            decoded: Arc::new(Semaphore::new(limits::DECODED_BYTES)),
            shares: Shared::default(),
        }
    }
}

impl Budget {
    /// The share of a payer. It is the same one for all calls that are open at the same time.
    pub(crate) fn share(&self, payer: &Payer) -> Arc<Share> {
        self.shares.get(payer, || Share {
            buffered: Pool::new(limits::BUFFERED_BYTES_PER_TENANT, &self.buffered),
            decoded: Pool::new(limits::DECODED_BYTES_PER_TENANT, &self.decoded),
        })
    }
}

impl Pool {
    fn new(most: usize, all: &Arc<Semaphore>) -> Self {
        Self { own: Arc::new(Semaphore::new(most)), most, all: all.clone() }
    }

    /// Takes so many bytes, and waits until they are there. A message of more than one payer may have takes all of that: its
    /// own bounds are the limit then.
    pub(crate) async fn take(&self, bytes: usize) -> Held {
        if bytes <= limits::SMALL_BYTES {
            return Held::default();
        }
        let bytes = u32::try_from(bytes.min(self.most)).unwrap_or(u32::MAX);
        let own = self.own.clone().acquire_many_owned(bytes).await.ok();
        let all = self.all.clone().acquire_many_owned(bytes).await.ok();
        Held { _own: own, _all: all }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    fn payer(name: &str) -> Payer {
        name.into()
    }

    #[test]
    fn a_payer_waits_for_itself_and_leaves_the_others_alone() {
        let budget = Budget::default();
        let (a, b) = (budget.share(&payer("a")), budget.share(&payer("b")));
        let most = limits::DECODED_BYTES_PER_TENANT;
        let all_of_a = a.decoded.take(most).now_or_never().unwrap();
        let mut waiting = Box::pin(a.decoded.take(most));
        assert!(waiting.as_mut().now_or_never().is_none());
        assert!(a.decoded.take(limits::SMALL_BYTES).now_or_never().is_some(), "small ones always go");
        let left = limits::DECODED_BYTES - most;
        let of_b = b.decoded.take(left).now_or_never();
        assert!(of_b.is_some(), "what `a` waits for takes nothing of what is left for `b`");
        drop((all_of_a, of_b));
        assert!(waiting.as_mut().now_or_never().is_some());
    }

    #[test]
    fn all_together_have_a_limit() {
        let budget = Budget::default();
        let most = limits::BUFFERED_BYTES_PER_TENANT;
        let names = ["a", "b", "c"].map(|name| budget.share(&payer(name)));
        let held: Vec<_> =
            names[..2].iter().map(|share| share.buffered.take(most).now_or_never().unwrap()).collect();
        assert!(names[2].buffered.take(most).now_or_never().is_none());
        drop(held);
        assert!(
            names[2].buffered.take(2 * most).now_or_never().is_some(),
            "more than may be is all that may be"
        );
    }

    #[test]
    fn the_largest_message_fits_into_one_tenants_part() {
        use outrigger_api::wire_bounds::Measure;
        for bounds in [limits::STREAM_MESSAGE, limits::RULE_MESSAGE] {
            let largest = Measure { bytes: bounds.bytes, entries: bounds.entries, items: bounds.items };
            assert!(largest.decoded_bytes() <= limits::DECODED_BYTES_PER_TENANT, "{largest:?}");
            assert!(bounds.bytes <= limits::BUFFERED_BYTES_PER_TENANT);
        }
    }
}
