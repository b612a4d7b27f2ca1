//! Choices that the bytes of an input make.

use arbitrary::{Arbitrary, Unstructured};
use serde_json::{Map, Value};

/// The bytes of an input as a sequence of choices. When they are used up, every further choice is the first one, so each input ends.
pub(crate) struct Choice<'a>(Unstructured<'a>);

const WORDS: [&str; 14] = [
    "",
    "a",
    "b",
    "app",
    "web",
    "host-a",
    "blue",
    "tenant-blue",
    "x/y",
    "é\u{0}\u{1F980}",
    "~1/~0",
    "-",
    "\\\"",
    "0",
];

impl<'a> Choice<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self(Unstructured::new(bytes))
    }

    /// A number from 0 to `count - 1`.
    pub(crate) fn below(&mut self, count: usize) -> usize {
        self.0.int_in_range(0..=count.saturating_sub(1)).unwrap_or_default()
    }

    /// True in one of `count` cases, and never when the bytes are used up.
    pub(crate) fn one_in(&mut self, count: usize) -> bool {
        self.below(count) == count - 1
    }

    pub(crate) fn of<T: Clone>(&mut self, list: &[T]) -> T {
        list[self.below(list.len())].clone()
    }

    pub(crate) fn any<T: Arbitrary<'a> + Default>(&mut self) -> T {
        self.0.arbitrary().unwrap_or_default()
    }

    /// A list of fewer than `count` entries.
    pub(crate) fn list<T>(&mut self, count: usize, mut entry: impl FnMut(&mut Self) -> T) -> Vec<T> {
        (0..self.below(count)).map(|_| entry(self)).collect()
    }

    /// A text that something may depend on, or any text.
    pub(crate) fn text(&mut self) -> String {
        match self.below(12) {
            10 => self.any(),
            11 => "x".repeat(self.below(400)),
            _ => self.of(&WORDS).to_owned(),
        }
    }

    /// Any JSON, at most so deep.
    pub(crate) fn json(&mut self, depth: usize) -> Value {
        match self.below(if depth == 0 { 6 } else { 9 }) {
            0 => Value::Null,
            1 => self.any::<bool>().into(),
            2 => self.any::<i64>().into(),
            3 => self.any::<u32>().into(),
            // Read back exactly by every reader of JSON.
            4 => (f64::from(self.any::<i32>()) / 64.0).into(),
            5 => self.text().into(),
            6 => self.list(4, |choice| choice.json(depth - 1)).into(),
            _ => {
                let members = self.list(4, |choice| (choice.text(), choice.json(depth - 1)));
                Value::Object(members.into_iter().collect::<Map<_, _>>())
            }
        }
    }

    /// Changes something somewhere in a value.
    pub(crate) fn scramble(&mut self, value: &mut Value) {
        let inside = !self.one_in(5);
        match value {
            Value::Object(map) if inside && !map.is_empty() => {
                let at = self.below(map.len());
                let Some(key) = map.keys().nth(at).cloned() else { return };
                match self.below(10) {
                    0 => _ = map.remove(&key),
                    1 => _ = map.insert("zz".to_owned(), self.json(2)),
                    _ => map.get_mut(&key).into_iter().for_each(|inner| self.scramble(inner)),
                }
            }
            Value::Array(list) if inside && !list.is_empty() => {
                let at = self.below(list.len());
                match self.below(10) {
                    0 => _ = list.remove(at),
                    1 => list.push(list[at].clone()),
                    2 => list.insert(at, self.json(2)),
                    _ => self.scramble(&mut list[at]),
                }
            }
            other => *other = self.json(2),
        }
    }

    /// Changes bytes: flips, cuts, repeats and inserts.
    pub(crate) fn corrupt(&mut self, bytes: &mut Vec<u8>) {
        for _ in 0..=self.below(4) {
            let at = self.below(bytes.len().max(1));
            let end = (at + self.below(16)).min(bytes.len());
            match self.below(5) {
                0 => bytes.truncate(at),
                1 => bytes.insert(at.min(bytes.len()), self.any()),
                2 => _ = bytes.drain(at.min(end)..end),
                3 => bytes.extend_from_within(at.min(end)..end),
                _ => {
                    let bit = 1u8 << self.below(8);
                    bytes.get_mut(at).into_iter().for_each(|byte| *byte ^= bit);
                }
            }
        }
    }
}
