//! What a scalar of YAML 1.1 means: the rules of go.yaml.in/yaml/v2 (`resolve.go`), which kubectl uses.

use std::borrow::Cow;

use granit_parser::{ScalarStyle, Tag};
use serde_json::Value;

/// Where the types of YAML are named.
const NAMESPACE: &str = "tag:yaml.org,2002:";

/// A scalar.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Scalar<'a> {
    Null,
    Boolean(bool),
    Integer(i64),
    /// Everything else that is a number: fractions, integers of more than 63 bits, those that are no numbers of JSON.
    Number(f64),
    Text(Cow<'a, str>),
}

impl Scalar<'_> {
    /// As JSON. Go writes a float without a fraction like an integer, and kubectl reads it again as one.
    pub(super) fn into_value(self) -> Result<Value, String> {
        /// From here on Go writes an exponent.
        const LARGE: f64 = 1e21;
        Ok(match self {
            Self::Null => Value::Null,
            Self::Boolean(boolean) => boolean.into(),
            Self::Integer(integer) => integer.into(),
            Self::Number(number) if number.fract() == 0.0 && number.abs() < LARGE => {
                // A saturated integer isn't the same number.
                #[allow(clippy::cast_possible_truncation)]
                let integer = number as i64;
                if integer as f64 == number && integer != i64::MAX { integer.into() } else { number.into() }
            }
            Self::Number(number) if number.is_finite() => number.into(),
            Self::Number(number) => return Err(format!("{number} is no number of JSON")),
            Self::Text(text) => text.into_owned().into(),
        })
    }

    /// As the key of an object, which is a text in JSON.
    pub(super) fn into_key(self) -> Result<String, String> {
        match self {
            Self::Text(text) => Ok(text.into_owned()),
            Self::Boolean(boolean) => Ok(boolean.to_string()),
            Self::Integer(integer) => Ok(integer.to_string()),
            Self::Null => Err("a key can't be null: quote it".to_owned()),
            Self::Number(_) => {
                Err("a key that is a fraction or a large number has no text that all agree on: quote it"
                    .to_owned())
            }
        }
    }
}

/// Whether a key asks for the entries of another object.
pub(super) fn is_merge(text: &str, style: ScalarStyle, tag: Option<&Tag>) -> bool {
    let by_tag = |tag: &Tag| tag.suffix_in_namespace(NAMESPACE).is_some_and(|name| name == "merge");
    text == "<<" && tag.map_or(style == ScalarStyle::Plain, by_tag)
}

/// Reads a scalar. A tag that isn't one of YAML's own makes it a text.
pub(super) fn read<'a>(
    text: Cow<'a, str>,
    style: ScalarStyle,
    tag: Option<&Tag>,
) -> Result<Scalar<'a>, String> {
    let Some(tag) = tag else {
        return Ok(if style == ScalarStyle::Plain { plain(text) } else { Scalar::Text(text) });
    };
    let name = tag.suffix_in_namespace(NAMESPACE).unwrap_or_default();
    let found = match &*name {
        "null" | "bool" | "int" | "float" => plain(text.clone()),
        "binary" => return Err("!!binary isn't read: write the base64 text without a tag".to_owned()),
        _ => return Ok(Scalar::Text(text)),
    };
    match (&*name, &found) {
        ("null", Scalar::Null)
        | ("bool", Scalar::Boolean(_))
        | ("int" | "float", Scalar::Integer(_))
        | ("float", Scalar::Number(_)) => Ok(found),
        _ => Err(format!("{text:?} is no !!{name}")),
    }
}

/// A scalar without quotes.
fn plain(text: Cow<'_, str>) -> Scalar<'_> {
    match &*text {
        "" | "~" | "null" | "Null" | "NULL" => Scalar::Null,
        "y" | "Y" | "yes" | "Yes" | "YES" | "true" | "True" | "TRUE" | "on" | "On" | "ON" => {
            Scalar::Boolean(true)
        }
        "n" | "N" | "no" | "No" | "NO" | "false" | "False" | "FALSE" | "off" | "Off" | "OFF" => {
            Scalar::Boolean(false)
        }
        ".nan" | ".NaN" | ".NAN" => Scalar::Number(f64::NAN),
        ".inf" | ".Inf" | ".INF" | "+.inf" | "+.Inf" | "+.INF" => Scalar::Number(f64::INFINITY),
        "-.inf" | "-.Inf" | "-.INF" => Scalar::Number(f64::NEG_INFINITY),
        other => number(other).unwrap_or(Scalar::Text(text)),
    }
}

fn number(text: &str) -> Option<Scalar<'static>> {
    if !text.starts_with(|first: char| first.is_ascii_digit() || "+-.".contains(first)) {
        return None;
    }
    let digits = text.replace('_', "");
    if let Some(number) = integer(&digits) {
        return Some(number);
    }
    let number = digits.parse::<f64>().ok().filter(|_| is_decimal(&digits))?;
    number.is_finite().then_some(Scalar::Number(number))
}

/// An integer as Go's `strconv.ParseInt` reads it with base 0: the prefix of the digits says the base, and 0 alone means 8.
fn integer(text: &str) -> Option<Scalar<'static>> {
    let (is_negative, digits) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    let prefix = digits.get(..2).filter(|_| digits.len() > 2).map(str::to_ascii_lowercase);
    let (radix, digits) = match prefix.as_deref() {
        Some("0b") => (2, &digits[2..]),
        Some("0o") => (8, &digits[2..]),
        Some("0x") => (16, &digits[2..]),
        _ if digits.len() > 1 && digits.starts_with('0') => (8, &digits[1..]),
        _ => (10, digits),
    };
    if !digits.chars().all(|digit| digit.is_digit(radix)) {
        return None;
    }
    let size = u64::from_str_radix(digits, radix).ok()?;
    match (is_negative, i64::try_from(size)) {
        (false, Ok(integer)) => Some(Scalar::Integer(integer)),
        (false, Err(_)) => Some(Scalar::Number(size as f64)),
        (true, _) => 0i64.checked_sub_unsigned(size).map(Scalar::Integer),
    }
}

/// Whether a text is a number as YAML writes one: a sign, digits with a point somewhere, an exponent.
fn is_decimal(text: &str) -> bool {
    let text = text.strip_prefix(['+', '-']).unwrap_or(text);
    let (number, exponent) =
        text.split_once(['e', 'E']).map_or((text, None), |(number, rest)| (number, Some(rest)));
    let are_digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let is_number = match number.split_once('.') {
        Some(("", fraction)) => are_digits(fraction),
        Some((whole, fraction)) => are_digits(whole) && (fraction.is_empty() || are_digits(fraction)),
        None => are_digits(number),
    };
    is_number && exponent.is_none_or(|digits| are_digits(digits.strip_prefix(['+', '-']).unwrap_or(digits)))
}
