//! What a scalar of YAML 1.1 means: the rules of go.yaml.in/yaml/v2 (`resolve.go`), which kubectl uses.

use serde_json::Value;

/// Where the types of YAML are named.
const NAMESPACE: &str = "tag:yaml.org,2002:";

/// The tag of a merge key.
pub(super) const MERGE: &str = "tag:yaml.org,2002:merge";

/// A scalar.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Scalar {
    Null,
    Boolean(bool),
    Integer(i64),
    /// An integer of 64 bits that has no sign.
    Unsigned(u64),
    /// Everything else that is a number, also if it is none of JSON.
    Number(f64),
    Text(String),
}

/// The key of an entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Key {
    pub(super) text: String,
    /// It was a number or a boolean.
    pub(super) is_converted: bool,
}

impl Scalar {
    /// As JSON.
    pub(super) fn into_value(self) -> Result<Value, String> {
        Ok(match self {
            Self::Null => Value::Null,
            Self::Boolean(boolean) => boolean.into(),
            Self::Integer(integer) => integer.into(),
            Self::Unsigned(integer) => float(integer as f64),
            Self::Number(number) if number.is_finite() => float(number),
            Self::Number(number) => return Err(format!("{number} is no number of JSON")),
            Self::Text(text) => text.into(),
        })
    }

    /// As the key of an object, which is a text in JSON. `None` for null, which is no key, and for fractions and large numbers, because
    /// kubectl rounds them.
    pub(super) fn key(&self) -> Option<Key> {
        let (text, is_converted) = match self {
            Self::Text(text) => (text.clone(), false),
            Self::Boolean(boolean) => (boolean.to_string(), true),
            Self::Integer(integer) => (integer.to_string(), true),
            Self::Null | Self::Unsigned(_) | Self::Number(_) => return None,
        };
        Some(Key { text, is_converted })
    }
}

/// The number that kubectl sends: Go writes the fewest digits that mean it, and kubectl reads them again, as an integer if they are one.
fn float(number: f64) -> Value {
    /// From here on Go writes an exponent.
    const LARGE: f64 = 1e21;
    let written = (number.abs() < LARGE).then(|| number.to_string());
    written.and_then(|digits| digits.parse::<i64>().ok()).map_or_else(|| number.into(), Value::from)
}

/// Turns the numbers in a value of JSON into those that kubectl sends.
pub(super) fn send(value: &mut Value) {
    match value {
        Value::Number(number) if !number.is_i64() => {
            if let Some(number) = number.as_f64() {
                *value = float(number);
            }
        }
        Value::Array(list) => list.iter_mut().for_each(send),
        Value::Object(object) => object.values_mut().for_each(send),
        _ => {}
    }
}

/// Reads a scalar. `is_plain`: it has neither quotes nor a tag. A tag that isn't one of YAML's own makes it a text.
pub(super) fn read(text: String, is_plain: bool, tag: Option<&str>) -> Result<Scalar, String> {
    let Some(tag) = tag else {
        return Ok(if is_plain { plain(&text).unwrap_or(Scalar::Text(text)) } else { Scalar::Text(text) });
    };
    let name = tag.strip_prefix(NAMESPACE).unwrap_or_default();
    match name {
        "null" | "bool" | "int" | "float" => {}
        "binary" => return Err("!!binary isn't read: write the base64 text without a tag".to_owned()),
        "timestamp" => return Err("!!timestamp isn't read: write the time without a tag".to_owned()),
        _ => return Ok(Scalar::Text(text)),
    }
    match (name, plain(&text)) {
        ("null", Some(found @ Scalar::Null))
        | ("bool", Some(found @ Scalar::Boolean(_)))
        | ("int", Some(found @ (Scalar::Integer(_) | Scalar::Unsigned(_))))
        | ("float", Some(found @ (Scalar::Integer(_) | Scalar::Number(_)))) => Ok(found),
        _ => Err(format!("{text:?} is no !!{name}")),
    }
}

/// What a scalar without quotes is, unless it is a text.
pub(super) fn plain(text: &str) -> Option<Scalar> {
    Some(match text {
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
        other => return number(other),
    })
}

fn number(text: &str) -> Option<Scalar> {
    let first = text.chars().next()?;
    if !first.is_ascii_digit() && !"+-.".contains(first) {
        return None;
    }
    let digits = text.replace('_', "");
    // Go itself reads what begins with a point: underscores stand between digits there.
    let is_digit = |character: char| character.is_ascii_digit();
    let parts: Vec<&str> = text.split('_').collect();
    let is_between = |pair: &[&str]| pair[0].ends_with(is_digit) && pair[1].starts_with(is_digit);
    if first == '.' && !parts.windows(2).all(is_between) {
        return None;
    }
    let decimal = || digits.parse().ok().filter(|number: &f64| is_decimal(&digits) && number.is_finite());
    // The library reads what follows `0b` once more, with a sign.
    let signed = || digits.strip_prefix("0b").and_then(|digits| i64::from_str_radix(digits, 2).ok());
    integer(&digits).or_else(|| decimal().map(Scalar::Number)).or_else(|| signed().map(Scalar::Integer))
}

/// An integer as Go's `strconv.ParseInt` reads it with base 0: the prefix of the digits says the base, and 0 alone means 8.
fn integer(text: &str) -> Option<Scalar> {
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
        (false, Err(_)) if !text.starts_with('+') => Some(Scalar::Unsigned(size)),
        (false, Err(_)) => None,
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
