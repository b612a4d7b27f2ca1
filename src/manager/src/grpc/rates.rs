//! How many calls about rules a tenant's callers may make in a time, and how many bytes they may send.
//!
//! Each call may lead to a write of half a mebibyte, of which etcd keeps every version for minutes. So calls and bytes a second
//! have limits, and who is faster is slowed down; only who would wait for long is refused.

use outrigger_core::map::HashMap;
use std::sync::Arc;
use std::time::Duration;

use outrigger_core::tenant::Limits;
use outrigger_runtime::bucket::{Bucket, Rate};
use outrigger_runtime::environment::Clock;
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout};
use tonic::Status;

use super::intake::Payer;
use super::limits::{RULE_BURST_SECONDS, RULE_CALL_PATIENCE};
use crate::sweep::Sweep;

/// What may come at once after a pause.
const BURST: Duration = Duration::from_secs(RULE_BURST_SECONDS as u64);

/// Payers of whom nothing was heard for this long are forgotten: their buckets are full again by then.
const FORGOTTEN: Duration = Duration::from_secs(2 * RULE_BURST_SECONDS as u64);

/// The rates of all payers' calls.
#[derive(Debug)]
pub(super) struct Rates {
    known: Mutex<KnownRates>,
    clock: Clock,
}

#[derive(Debug, Default)]
struct KnownRates {
    by_payer: HashMap<Payer, PayerRate>,
    sweep: Sweep,
}

#[derive(Debug)]
struct PayerRate {
    calls: Bucket,
    bytes: Bucket,
    /// The one List that there may be at once.
    list: Arc<Semaphore>,
    seen: Instant,
}

/// A call that may be made now. A List ends its turn when this is dropped.
#[derive(Debug)]
pub(super) struct Turn {
    _list: Option<OwnedSemaphorePermit>,
}

impl Rates {
    pub(super) fn new(clock: Clock) -> Self {
        Self { known: Mutex::default(), clock }
    }

    /// Waits until a call may be made. `limits`: those of the tenant; without any, which is so for administrators, there is no
    /// rate. Returns RESOURCE_EXHAUSTED when that takes too long.
    pub(super) async fn turn(
        &self,
        payer: &Payer,
        is_list: bool,
        limits: Option<&Limits>,
    ) -> Result<Turn, Status> {
        if let Some(limits) = limits {
            let per_second = limits.rule_calls_per_second.into();
            let wait = self.with(payer, |rate, now| {
                rate.calls.reserve(Rate::per_second(per_second, BURST), 1.0, RULE_CALL_PATIENCE, now)
            });
            wait_for(wait, "ruleCallsPerSecond", "calls", 1, per_second).await?;
        }
        if !is_list {
            return Ok(Turn { _list: None });
        }
        let list = self.with(payer, |rate, _| rate.list.clone());
        match timeout(RULE_CALL_PATIENCE, list.acquire_owned()).await {
            Ok(permit) => Ok(Turn { _list: permit.ok() }),
            Err(_) => Err(Status::resource_exhausted(format!(
                "1 List of this tenant's rules is being answered for more than {} s, at most 1 at once is allowed; \
                 read its answer, or end it",
                RULE_CALL_PATIENCE.as_secs()
            ))),
        }
    }

    /// Waits until a message of so many bytes may be used.
    pub(super) async fn bytes(
        &self,
        payer: &Payer,
        bytes: usize,
        limits: Option<&Limits>,
    ) -> Result<(), Status> {
        let Some(limits) = limits else { return Ok(()) };
        let (amount, per_second) = (u64::try_from(bytes).unwrap_or(u64::MAX), limits.rule_bytes_per_second);
        let wait = self.with(payer, |rate, now| {
            rate.bytes.reserve(Rate::per_second(per_second, BURST), amount as f64, RULE_CALL_PATIENCE, now)
        });
        wait_for(wait, "ruleBytesPerSecond", "bytes", amount, per_second).await
    }

    fn with<T>(&self, payer: &Payer, f: impl FnOnce(&mut PayerRate, Instant) -> T) -> T {
        let now = self.clock.now();
        let mut known = self.known.lock();
        let KnownRates { by_payer, sweep } = &mut *known;
        if !by_payer.contains_key(payer) {
            sweep.before_new(by_payer, |rate| {
                now.saturating_duration_since(rate.seen) < FORGOTTEN
                    || !(rate.calls.is_full(now) && rate.bytes.is_full(now))
                    || Arc::strong_count(&rate.list) > 1
            });
        }
        let rate = by_payer.entry(payer.clone()).or_insert_with(|| PayerRate {
            calls: Bucket::new(now),
            bytes: Bucket::new(now),
            list: Arc::new(Semaphore::new(1)),
            seen: now,
        });
        rate.seen = now;
        f(rate, now)
    }
}

async fn wait_for(
    wait: Result<Duration, Duration>,
    limit: &str,
    what: &str,
    amount: u64,
    per_second: u64,
) -> Result<(), Status> {
    match wait {
        Ok(wait) => {
            if !wait.is_zero() {
                tokio::time::sleep(wait).await;
            }
            Ok(())
        }
        Err(wait) => Err(Status::resource_exhausted(format!(
            "Tenant spec.limits.{limit}: {amount} more {what} would wait for {} s, at most {per_second} a second are allowed; try \
             again then",
            wait.as_secs()
        ))),
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use outrigger_runtime::environment::Environment;

    use super::*;

    fn limits() -> Limits {
        Limits { rule_calls_per_second: 2, rule_bytes_per_second: 100, ..Limits::default() }
    }

    #[tokio::test(start_paused = true)]
    async fn a_burst_goes_through_then_calls_are_slowed_down_and_at_last_refused() {
        let (rates, payer) = (Rates::new(Environment::system().clock), Payer::from("a"));
        let start = Instant::now();
        for _ in 0..20 {
            rates.turn(&payer, false, Some(&limits())).await.unwrap();
        }
        assert_eq!(start.elapsed(), Duration::ZERO);
        rates.turn(&payer, false, Some(&limits())).await.unwrap();
        assert_eq!(start.elapsed(), Duration::from_millis(500));
        // Many at once: each waits for all before it.
        let (payer, limits) = (&payer, limits());
        let all = (0..30).map(|_| rates.turn(payer, false, Some(&limits)));
        let results = futures::future::join_all(all).await;
        let refused: Vec<_> = results.into_iter().filter_map(Result::err).collect();
        assert_eq!(refused.len(), 10);
        let words = "Tenant spec.limits.ruleCallsPerSecond: 1 more calls would wait for 10 s, at most 2 a second are allowed";
        assert!(refused[0].message().starts_with(words), "{}", refused[0]);
        assert!(rates.turn(&Payer::from("b"), false, Some(&limits)).now_or_never().is_some(), "others go on");
        assert!(rates.turn(payer, false, None).now_or_never().is_some(), "administrators have no rate");
    }

    #[tokio::test(start_paused = true)]
    async fn one_message_of_more_than_the_burst_goes_through_and_the_next_pays_for_it() {
        let (rates, payer) = (Rates::new(Environment::system().clock), Payer::from("a"));
        let start = Instant::now();
        rates.bytes(&payer, 1_500, Some(&limits())).await.unwrap();
        assert_eq!(start.elapsed(), Duration::ZERO);
        rates.bytes(&payer, 100, Some(&limits())).await.unwrap();
        assert_eq!(start.elapsed(), Duration::from_secs(6));
        let limits = limits();
        let (first, second) =
            tokio::join!(rates.bytes(&payer, 900, Some(&limits)), rates.bytes(&payer, 900, Some(&limits)));
        first.unwrap();
        let error = second.unwrap_err();
        assert!(
            error.message().contains("ruleBytesPerSecond: 900 more bytes would wait for 18 s"),
            "{error}"
        );
        for i in 1..Sweep::LEAST {
            rates.bytes(&Payer::from(i.to_string()), 1, Some(&limits)).await.unwrap();
        }
        tokio::time::advance(FORGOTTEN).await;
        rates.bytes(&Payer::from("b"), 1, Some(&limits)).await.unwrap();
        assert_eq!(rates.known.lock().by_payer.len(), 1, "who has nothing left to pay is forgotten");
    }

    #[tokio::test(start_paused = true)]
    async fn a_tenant_has_one_list_at_once() {
        let (rates, payer) = (Rates::new(Environment::system().clock), Payer::from("a"));
        let first = rates.turn(&payer, true, Some(&limits())).await.unwrap();
        let error = rates.turn(&payer, true, Some(&limits())).await.unwrap_err();
        assert!(error.message().contains("at most 1 at once"), "{error}");
        assert!(rates.turn(&Payer::from("b"), true, Some(&limits())).now_or_never().is_some());
        assert!(rates.turn(&payer, false, Some(&limits())).now_or_never().is_some(), "other calls go on");
        drop(first);
        assert!(rates.turn(&payer, true, Some(&limits())).now_or_never().is_some());
    }
}
