//! What holds for every text: both readings are the same, or Outrigger refuses the text at a line and a column.

use outrigger_core::yaml::ReadError;

use super::judge::{judge, own};

/// How many texts came out how.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Count {
    pub(crate) alike: usize,
    pub(crate) refused_by_both: usize,
    pub(crate) refused_alone: usize,
}

/// Compares the readings of texts. The second list has the texts that only Outrigger refuses, with the reasons.
pub(crate) fn compare<T: AsRef<[u8]>>(texts: &[T]) -> (Count, Vec<(String, String)>) {
    let (mut count, mut alone, mut wrong) = (Count::default(), Vec::new(), Vec::new());
    for (text, reading) in texts.iter().zip(judge(texts)) {
        let shown = String::from_utf8_lossy(text.as_ref()).into_owned();
        match (own(text.as_ref()), reading.documents()) {
            (Ok(own), Some(theirs)) if own == theirs => count.alike += 1,
            (Err(ReadError::At { .. }), None) => count.refused_by_both += 1,
            (Err(ReadError::At { why, .. }), Some(_)) => {
                count.refused_alone += 1;
                alone.push((shown, why));
            }
            (own, theirs) => wrong.push(format!("{shown:?}\n  here {own:?}\n  kubectl {theirs:?}")),
        }
    }
    assert!(wrong.is_empty(), "{} of {} are wrong:\n{}", wrong.len(), texts.len(), wrong.join("\n"));
    (count, alone)
}
