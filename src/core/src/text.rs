//! Texts from elsewhere, shortened for messages. Cuts never split a character, and `…` or another mark stands for what is
//! missing.

use std::borrow::Cow;

/// Most characters of a value that a message quotes.
const QUOTED: usize = 80;

/// Most characters of an admission warning of which an API server shows all.
pub const MAX_WARNING: usize = 120;

/// A value as messages quote it: 80 characters at most.
pub fn quoted(value: &str) -> Cow<'_, str> {
    truncate(value, QUOTED)
}

/// A text with at most `most` characters: of a longer one the last is `…`. Limits of the Kubernetes API that count
/// characters, and limits for readers.
pub fn truncate(text: &str, most: usize) -> Cow<'_, str> {
    if text.len() <= most || text.chars().nth(most).is_none() {
        return Cow::Borrowed(text);
    }
    Cow::Owned(text.chars().take(most.saturating_sub(1)).chain(['…']).collect())
}

/// A text with at most `most` bytes in UTF-8: a longer one ends with `mark`. Limits that count bytes.
pub fn truncate_bytes<'a>(text: &'a str, most: usize, mark: &str) -> Cow<'a, str> {
    if text.len() <= most {
        return Cow::Borrowed(text);
    }
    let end = text.floor_char_boundary(most.saturating_sub(mark.len()));
    Cow::Owned(format!("{}{mark}", &text[..end]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_character_is_split_and_limits_hold() {
        for (text, most, expected) in
            [("", 0, ""), ("abc", 3, "abc"), ("abcd", 3, "ab…"), ("äöü", 3, "äöü"), ("äöüß", 3, "äö…")]
        {
            assert_eq!(truncate(text, most), expected, "{text}");
        }
        for (text, most, mark, expected) in [
            ("abc", 3, "…", "abc"),
            ("abcdef", 5, "…", "ab…"),
            ("äöüß", 5, "...", "ä..."),
            ("äöü", 4, "", "äö"),
        ] {
            let found = truncate_bytes(text, most, mark);
            assert_eq!(found, expected, "{text}");
            assert!(found.len() <= most);
        }
        assert_eq!(quoted(&"x".repeat(100)).chars().count(), 80);
    }
}
