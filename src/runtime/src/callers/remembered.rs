//! Answers that are used again for a while: so many of them at most.

use std::collections::VecDeque;

use outrigger_core::map::HashMap;
use tokio::time::Instant;

/// The digest of a question.
pub(super) type Key = [u8; 32];

/// Answers by the digests of their questions.
#[derive(Debug)]
pub(super) struct Remembered<V> {
    most: usize,
    answers: HashMap<Key, (Instant, V)>,
    /// In the order in which they came in. Each time is that of the answer at this place, which a later one may have replaced.
    order: VecDeque<(Instant, Key)>,
}

impl<V: Clone> Remembered<V> {
    /// Remembers no more than `most` answers: beyond that, the one that came in first is forgotten.
    pub(super) fn new(most: usize) -> Self {
        Self { most, answers: HashMap::default(), order: VecDeque::new() }
    }

    /// The answer, if it is still used at this time.
    pub(super) fn get(&self, key: &Key, now: Instant) -> Option<V> {
        let (until, answer) = self.answers.get(key)?;
        (*until > now).then(|| answer.clone())
    }

    /// Remembers an answer until then.
    pub(super) fn insert(&mut self, key: Key, answer: V, until: Instant, now: Instant) {
        self.answers.insert(key, (until, answer));
        self.order.push_back((until, key));
        let (order, most) = (&mut self.order, self.most);
        let is_over = |order: &VecDeque<(Instant, Key)>| {
            order.len() > most || order.front().is_some_and(|(until, _)| *until <= now)
        };
        while is_over(order)
            && let Some((until, key)) = order.pop_front()
        {
            // A later answer has replaced it.
            if self.answers.get(&key).is_some_and(|(of, _)| *of == until) {
                self.answers.remove(&key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use sha2::{Digest, Sha256};

    use super::*;

    const LONG: Duration = Duration::from_secs(10);

    fn key(n: usize) -> Key {
        Sha256::digest(n.to_string()).into()
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_is_used_until_its_time_and_there_are_no_more_than_the_limit() {
        const MOST: usize = 64;
        let (mut remembered, now) = (Remembered::new(MOST), Instant::now());
        remembered.insert(key(0), "a", now + LONG, now);
        assert_eq!(remembered.get(&key(0), now + LONG - Duration::from_millis(1)), Some("a"));
        assert_eq!(remembered.get(&key(0), now + LONG), None);
        assert_eq!(remembered.get(&key(1), now), None);
        // It is asked again, and the end of the first answer doesn't remove the second.
        let later = now + Duration::from_secs(9);
        remembered.insert(key(0), "b", later + LONG, later);
        remembered.insert(key(1), "c", now + 2 * LONG, now + LONG);
        assert_eq!(remembered.get(&key(0), now + LONG), Some("b"));
        for n in 0..=MOST {
            remembered.insert(key(n), "d", now + 2 * LONG, now + LONG);
        }
        assert!(remembered.answers.len() <= MOST && remembered.order.len() <= MOST);
    }
}
