use outrigger_core::bounds;
use outrigger_runtime::environment::Environment;
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::bodies::{FIRST, SLOW, SLOW_FIRST};
use super::*;

fn from(last: u8) -> Option<IpAddr> {
    Some(IpAddr::from([10, 0, 0, last]))
}

/// Reads a body that comes now.
async fn read(budget: &Arc<Budget>, body: Body, from: Option<IpAddr>) -> Result<Held, NoBody> {
    budget.read(body, from, Instant::now() + PATIENCE).await
}

/// A body that comes as it is sent, being read.
fn coming(
    budget: &Arc<Budget>,
    from: Option<IpAddr>,
) -> (mpsc::UnboundedSender<Bytes>, tokio::task::JoinHandle<Result<Held, NoBody>>) {
    let (send, mut sent) = mpsc::unbounded_channel();
    let frames =
        futures::stream::poll_fn(move |cx| sent.poll_recv(cx).map(|data| data.map(Ok::<_, std::io::Error>)));
    let (budget, body) = (budget.clone(), Body::from_stream(frames));
    (send, tokio::spawn(async move { read(&budget, body, from).await }))
}

fn held(budget: &Budget) -> usize {
    let bodies = budget.bodies.lock();
    Room::ALL.into_iter().map(|room| bodies.held(room)).sum()
}

const PIECE: usize = 64 << 10;

fn piece() -> Bytes {
    vec![b' '; PIECE].into()
}

#[tokio::test(start_paused = true)]
async fn a_body_takes_its_part_as_it_comes_and_gives_it_back() {
    let budget = Arc::new(Budget::new(Environment::system().clock));
    let (send, reading) = coming(&budget, from(1));
    for i in 1..=3 {
        send.send(piece()).unwrap();
        sleep(LOOK).await;
        assert_eq!(held(&budget), (i * PIECE).next_power_of_two());
    }
    drop(send);
    let whole = reading.await.unwrap().unwrap();
    assert_eq!(whole.bytes.len(), 3 * PIECE);
    assert!(held(&budget) > 0 && budget.bodies.lock().is_idle());
    drop(whole);
    assert_eq!(held(&budget), 0);
    assert!(budget.bodies.lock().is_empty());
    let empty = read(&budget, Body::empty(), from(1)).await.unwrap();
    assert!(empty.bytes.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_body_that_is_too_large_is_counted_and_not_kept() {
    let budget = Arc::new(Budget::new(Environment::system().clock));
    let (send, reading) = coming(&budget, None);
    send.send(Bytes::from_static(b"{\"request\": ")).unwrap();
    let pieces = BOUNDS.bytes / PIECE + 3;
    for _ in 0..pieces {
        send.send(piece()).unwrap();
    }
    drop(send);
    let Err(NoBody::TooLarge(beginning, length)) = reading.await.unwrap() else { panic!("it is too large") };
    assert_eq!(length, 12 + pieces * PIECE);
    assert!(beginning.starts_with(b"{\"request\": ") && beginning.len() <= BEGINNING);
    assert_eq!(held(&budget), 0);
}

/// Bodies that never end, from one address or from several, keep nobody else out.
#[tokio::test(start_paused = true)]
async fn bodies_that_never_end_are_aborted_for_others() {
    let budget = Arc::new(Budget::new(Environment::system().clock));
    let mut hanging = Vec::new();
    let mut hang = |last: u8| {
        let (send, reading) = coming(&budget, from(last));
        for _ in 0..4 * 16 {
            send.send(piece()).unwrap();
        }
        hanging.push((send, reading));
    };
    // 4 MiB each: more than the share of the first address, and more than all.
    (0..8).for_each(|_| hang(1));
    sleep(LOOK).await;
    assert!(held(&budget) <= of_one(BODIES) + 8 * FIRST);
    let small = || {
        let budget = budget.clone();
        async move { read(&budget, Body::from(piece()), from(9)).await.map(|held| held.bytes.len()) }
    };
    assert_eq!(small().await.unwrap(), PIECE, "there is room at once");
    hang(2);
    hang(3);
    (0..6).for_each(|_| hang(2));
    sleep(LOOK * 3).await;
    for _ in 0..3 {
        assert_eq!(small().await.unwrap(), PIECE);
        assert!(held(&budget) <= BODIES + FIRSTS);
    }
    sleep(SLOW).await;
    // The rest of those that were given up may still come, and isn't kept.
    let large = Body::from_stream(futures::stream::iter(
        (0..16).map(|_| Ok::<_, std::io::Error>(vec![b' '; 1 << 19])),
    ));
    assert_eq!(read(&budget, large, from(9)).await.unwrap().bytes.len(), 8 << 20, "there is room again");
    for (send, reading) in hanging {
        drop(send);
        match reading.await.unwrap() {
            Ok(_) => {}
            Err(NoBody::Crowded(beginning)) => assert!(beginning.len() <= BEGINNING),
            Err(other) => panic!("{other:?}"),
        }
    }
    assert_eq!(held(&budget), 0);
}

/// Small bodies wait neither for large ones that never end, nor long for as many small ones.
#[tokio::test(start_paused = true)]
async fn small_bodies_have_a_budget_of_their_own() {
    let budget = Arc::new(Budget::new(Environment::system().clock));
    let small = |last: u8| {
        let budget = budget.clone();
        async move { read(&budget, Body::from(vec![b' '; FIRST]), from(last)).await.map(|held| held.bytes.len()) }
    };
    let mut hanging = Vec::new();
    for last in 1..=2 {
        for _ in 0..12 {
            let (send, reading) = coming(&budget, from(last));
            (0..4 * 16).for_each(|_| send.send(piece()).unwrap());
            hanging.push((send, reading));
        }
    }
    sleep(LOOK).await;
    assert!(held(&budget) > BODIES - (8 << 20), "the room for large ones is full");
    // From an address of theirs too.
    for last in [1, 2, 9] {
        assert_eq!(timeout(Duration::ZERO, small(last)).await.expect("at once").unwrap(), FIRST);
    }
    // As many small ones as there is room for, from an address that shares nothing else.
    for _ in 0..of_one(FIRSTS) / FIRST {
        let (send, reading) = coming(&budget, from(3));
        send.send(vec![b' '; FIRST].into()).unwrap();
        hanging.push((send, reading));
    }
    sleep(LOOK).await;
    assert_eq!(timeout(Duration::ZERO, small(9)).await.expect("others have room").unwrap(), FIRST);
    assert!(timeout(SLOW_FIRST / 2, small(3)).await.is_err(), "the address has its share");
    assert_eq!(timeout(SLOW_FIRST, small(3)).await.expect("a slow one makes room").unwrap(), FIRST);
    drop(hanging);
}

#[tokio::test(start_paused = true)]
async fn only_large_reviews_wait_for_large_reviews() {
    let budget = Budget::new(Environment::system().clock);
    let of = |bytes: usize, values: usize| bounds::Measured { bytes, values, depth: 1 };
    let tree = |measured, copies| budget.tree(measured, copies, Instant::now() + PATIENCE);
    let all = tree(of(BOUNDS.bytes, BOUNDS.values), 3).await.unwrap();
    assert!(all.large.is_some());
    assert!(tree(of(LARGE + 1, 1), 1).await.is_none(), "there is no room for a second");
    let mut small = Vec::new();
    for _ in 0..200 {
        let one = timeout(Duration::ZERO, tree(of(3_000, 100), 3)).await.expect("at once").unwrap();
        assert!(one.large.is_none());
        small.push(one);
    }
    drop(all);
    assert!(tree(of(1, LARGE_VALUES + 1), 1).await.unwrap().large.is_some());
}

#[tokio::test(start_paused = true)]
async fn reviews_that_wait_for_a_cache_leave_the_budget_to_others() {
    let budget = Budget::new(Environment::system().clock);
    let heavy = bounds::Measured { bytes: LARGE / 2, values: LARGE_VALUES / 2, depth: 1 };
    let tree = |copies| budget.tree(heavy, copies, Instant::now() + PATIENCE);
    let mut waiting = Vec::new();
    // As many as there is room for, and far more than that.
    for _ in 0..100 {
        let mut one = timeout(Duration::ZERO, tree(1)).await.expect("at once").unwrap();
        if budget.wait(&mut one) {
            waiting.push(one);
        }
    }
    assert_eq!(waiting.len(), WAITING_TREES / (heavy.weight().div_ceil(UNIT) * UNIT));
    let all = TREES / UNIT;
    assert_eq!(budget.trees.available_permits(), all, "they have given it back");
    drop(waiting);
    assert_eq!(budget.waiting.available_permits(), WAITING_TREES / UNIT);
    let mut large =
        budget.tree(bounds::Measured { bytes: LARGE + 1, ..heavy }, 1, Instant::now()).await.unwrap();
    assert!(!budget.wait(&mut large), "a large one would keep others of its kind from their thread");
}

/// A refusal comes before the API server has given up, and so does the end of a request that its client has forgotten.
#[test]
fn all_waits_are_shorter_than_the_timeouts_of_the_configurations() {
    use outrigger_admission::webhooks::{TIMEOUT, WRITER_TIMEOUT};
    const { assert!(PATIENCE.as_millis() < TIMEOUT.as_millis()) };
    const { assert!(PATIENCE.as_millis() + crate::ledger::DEADLINE.as_millis() < WRITER_TIMEOUT.as_millis()) };
    const { assert!(WRITER_TIMEOUT.as_millis() < crate::REQUEST.as_millis()) };
}

/// The largest review fits, and a Pod that may be there is never too large to be validated.
#[test]
fn the_limits_fit_together() {
    let weight = bounds::Measured { bytes: BOUNDS.bytes, values: BOUNDS.values, depth: 1 }.weight();
    assert!(weight < LARGE_TREES, "{weight}");
    let light = bounds::Measured { bytes: LARGE, values: LARGE_VALUES, depth: 1 }.weight();
    assert!(3 * light < TREES, "{light}");
    const { assert!(BOUNDS.bytes.next_power_of_two() <= of_one(BODIES)) };
    // Who has no room because of slow bodies still sees them aborted.
    const { assert!(SLOW.as_millis() + 2 * LOOK.as_millis() < PATIENCE.as_millis()) };
    // The object and the old one.
    const { assert!(3 * outrigger_core::validate::MAX_COMPANION_BYTES < BOUNDS.bytes) };
}
