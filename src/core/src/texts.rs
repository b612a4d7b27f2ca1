//! A map of texts in a single allocation, for the labels and annotations of very many workloads.
//!
//! A `BTreeMap` of five labels takes more than 600 bytes and ten further allocations. [`Texts`] takes the texts themselves and
//! ten bytes for each entry.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Serialize, Serializer};

/// A map of texts to texts, in the order of the keys. A change copies the map.
///
/// It is a text that begins with a table: the number of entries, then the ends of each entry's key and value. Numbers have
/// [`NUMBER`] characters of 7 bits, so that the whole is valid UTF-8. An empty map is an empty text.
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub struct Texts(Box<str>);

/// Characters of a number: texts up to 32 GiB.
const NUMBER: usize = 5;

impl Texts {
    /// The map of these entries. Of several entries with one key the last counts.
    pub fn new<'a>(mut entries: Vec<(&'a str, &'a str)>) -> Self {
        if entries.is_empty() {
            return Self::default();
        }
        entries.sort_by_key(|(key, _)| *key);
        entries.dedup_by(|later, earlier| {
            let same = later.0 == earlier.0;
            if same {
                *earlier = *later;
            }
            same
        });
        let mut end = NUMBER * (1 + 2 * entries.len());
        let bytes: usize = entries.iter().map(|(key, value)| key.len() + value.len()).sum();
        let mut text = String::with_capacity(end + bytes);
        push_number(&mut text, entries.len());
        for part in entries.iter().flat_map(|(key, value)| [key, value]) {
            end += part.len();
            push_number(&mut text, end);
        }
        for (key, value) in entries {
            text.push_str(key);
            text.push_str(value);
        }
        Self(text.into_boxed_str())
    }

    /// How many entries there are.
    pub fn len(&self) -> usize {
        if self.0.is_empty() { 0 } else { self.number(0) }
    }

    /// Whether there is no entry.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The value of a key; `None` where there is no such key.
    pub fn get(&self, key: &str) -> Option<&str> {
        let (mut from, mut to) = (0, self.len());
        while from < to {
            let middle = from + (to - from) / 2;
            let (found, value) = self.entry(middle);
            match found.cmp(key) {
                std::cmp::Ordering::Equal => return Some(value),
                std::cmp::Ordering::Less => from = middle + 1,
                std::cmp::Ordering::Greater => to = middle,
            }
        }
        None
    }

    /// All entries, in the order of their keys.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        (0..self.len()).map(|at| self.entry(at))
    }

    /// All keys, in their order.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.iter().map(|(key, _)| key)
    }

    /// Sets the value of a key.
    pub fn set(&mut self, key: &str, value: &str) {
        *self = Self::new(self.iter().chain([(key, value)]).collect());
    }

    /// Keeps the entries with these keys.
    pub fn retain(&mut self, keeps: impl Fn(&str) -> bool) {
        if !self.keys().all(&keeps) {
            *self = Self::new(self.iter().filter(|(key, _)| keeps(key)).collect());
        }
    }

    fn entry(&self, at: usize) -> (&str, &str) {
        let table = 2 * at;
        // The end of the value before it, or that of the table.
        let begin = if at == 0 { NUMBER * (1 + 2 * self.len()) } else { self.number(table) };
        let (key, value) = (self.number(table + 1), self.number(table + 2));
        (self.0.get(begin..key).unwrap_or_default(), self.0.get(key..value).unwrap_or_default())
    }

    fn number(&self, at: usize) -> usize {
        let digits = self.0.as_bytes().get(NUMBER * at..NUMBER * (at + 1)).unwrap_or_default();
        digits.iter().fold(0, |number, digit| number << 7 | usize::from(*digit))
    }
}

fn push_number(text: &mut String, number: usize) {
    for place in (0..NUMBER).rev() {
        text.push(char::from((number >> (7 * place)) as u8 & 0x7f));
    }
}

impl<K: AsRef<str>, V: AsRef<str>, const N: usize> From<[(K, V); N]> for Texts {
    fn from(entries: [(K, V); N]) -> Self {
        Self::new(entries.iter().map(|(key, value)| (key.as_ref(), value.as_ref())).collect())
    }
}

impl From<&BTreeMap<String, String>> for Texts {
    fn from(entries: &BTreeMap<String, String>) -> Self {
        Self::new(entries.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect())
    }
}

impl fmt::Debug for Texts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

impl Serialize for Texts {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn of_one_key_the_last_value_counts() {
        let mut texts = Texts::from([("b", "1"), ("a", ""), ("b", "2")]);
        assert_eq!(texts.iter().collect::<Vec<_>>(), [("a", ""), ("b", "2")]);
        assert_eq!((texts.keys().collect::<Vec<_>>(), texts.is_empty()), (vec!["a", "b"], false));
        assert_eq!(format!("{texts:?}"), r#"{"a": "", "b": "2"}"#);
        texts.set("b", "3");
        assert_eq!(texts, Texts::from([("b", "3"), ("a", "")]));
        texts.retain(|key| key == "c");
        assert_eq!((&texts, texts.is_empty()), (&Texts::default(), true));
    }

    proptest! {
        #[test]
        fn it_is_the_map_that_it_was_made_of(
            map in proptest::collection::btree_map(".{0,3}", ".{0,300}", 0..12), other in ".{0,3}",
        ) {
            let texts = Texts::from(&map);
            prop_assert!(texts.iter().eq(map.iter().map(|(key, value)| (key.as_str(), value.as_str()))));
            prop_assert_eq!(texts.len(), map.len());
            for key in map.keys().chain([&other]) {
                prop_assert_eq!(texts.get(key), map.get(key).map(String::as_str));
            }
            prop_assert_eq!(serde_json::to_string(&texts).unwrap(), serde_json::to_string(&map).unwrap());
        }
    }
}
