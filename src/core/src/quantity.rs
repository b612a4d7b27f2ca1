//! Kubernetes quantities (`k8s.io/apimachinery/pkg/api/resource`): exact numbers with a suffix, such as `1500m` or `48Gi`.

use std::fmt;
use std::str::FromStr;

use serde_json::Value;

use crate::text;

/// Most characters of an invalid quantity that an error quotes.
const MAX_SHOWN: usize = 64;

/// How many of the smallest unit, the nano, make one.
const NANOS: i128 = 1_000_000_000;

/// Decimal suffixes with their powers of ten.
const DECIMAL: [(&str, i32); 10] =
    [("n", -9), ("u", -6), ("m", -3), ("", 0), ("k", 3), ("M", 6), ("G", 9), ("T", 12), ("P", 15), ("E", 18)];

/// Binary suffixes with their powers of two.
const BINARY: [(&str, u32); 6] = [("Ki", 10), ("Mi", 20), ("Gi", 30), ("Ti", 40), ("Pi", 50), ("Ei", 60)];

/// In which way a quantity is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Format {
    Decimal,
    Exponent,
    Binary,
}

/// A quantity. Two of them are equal when they are as much, however they are written.
#[derive(Debug, Clone, Copy)]
pub struct Quantity {
    nanos: i128,
    format: Format,
}

impl Quantity {
    /// What a field holds, text or number, rounded up to billionths and cut to the range, as the API server does. Null is as
    /// good as nothing. `None` where it is no quantity.
    pub fn of(value: &Value) -> Option<Self> {
        match value {
            Value::String(text) => parse(text),
            Value::Number(number) => parse(&number.to_string()),
            Value::Null => Some(Self::whole(0)),
            _ => None,
        }
    }

    /// It in billionths.
    pub fn nanos(&self) -> i128 {
        self.nanos
    }

    /// A whole number.
    pub fn whole(count: u64) -> Self {
        Self { nanos: i128::from(count) * NANOS, format: Format::Decimal }
    }

    /// Rounded up to thousandths, as the API server does with what containers ask for.
    #[must_use]
    pub fn ceil_milli(self) -> Self {
        let milli = NANOS / 1000;
        Self { nanos: divide_up(self.nanos, milli).saturating_mul(milli), ..self }
    }

    /// Both together, cut to the range. It is written as this one, or as the other where this is nothing, as the API server does.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        let format = if self.is_zero() { other.format } else { self.format };
        Self { nanos: self.nanos.saturating_add(other.nanos), format }
    }

    /// What is left of it without another, cut to the range.
    #[must_use]
    pub fn minus(self, other: Self) -> Self {
        self.plus(Self { nanos: other.nanos.saturating_neg(), ..other })
    }

    /// Whether it is less than nothing.
    pub fn is_negative(&self) -> bool {
        self.nanos < 0
    }

    /// Whether it is nothing.
    pub fn is_zero(&self) -> bool {
        self.nanos == 0
    }

    /// Whether it is a number without a fraction.
    pub fn is_whole(&self) -> bool {
        self.nanos % NANOS == 0
    }

    /// How often `size` goes into this, at most; `None` where `size` is nothing or less.
    pub fn holds(&self, size: &Self) -> Option<u64> {
        (size.nanos > 0).then(|| u64::try_from((self.nanos / size.nanos).max(0)).unwrap_or(u64::MAX))
    }
}

impl PartialEq for Quantity {
    fn eq(&self, other: &Self) -> bool {
        self.nanos == other.nanos
    }
}

impl Eq for Quantity {}

impl PartialOrd for Quantity {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Quantity {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.nanos.cmp(&other.nanos)
    }
}

/// A text that is no quantity.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no quantity; write a number with a suffix such as m, k, M, G, Ki, Mi or Gi, or none")]
pub struct NoQuantity(String);

impl FromStr for Quantity {
    type Err = NoQuantity;

    fn from_str(text: &str) -> Result<Self, NoQuantity> {
        parse(text).ok_or_else(|| NoQuantity(text::truncate(text, MAX_SHOWN).into_owned()))
    }
}

fn parse(text: &str) -> Option<Quantity> {
    let text = text.trim();
    let (negative, rest) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let digits = |text: &str| text.bytes().take_while(u8::is_ascii_digit).count();
    let (whole, rest) = rest.split_at(digits(rest));
    let (part, suffix) = match rest.strip_prefix('.') {
        Some(rest) => rest.split_at(digits(rest)),
        None => ("", rest),
    };
    if whole.is_empty() && part.is_empty() && suffix.is_empty() {
        return None;
    }
    // Beyond 18 digits nothing is exact, nor needs to be.
    let mut value: i128 = 0;
    for digit in whole.bytes().chain(part.bytes().take(18)) {
        value = value.saturating_mul(10).saturating_add(i128::from(digit - b'0'));
    }
    let shift = i32::try_from(part.len().min(18)).ok()?;
    let (nanos, format) = match BINARY.iter().find(|(name, _)| *name == suffix) {
        Some((_, power)) => {
            let up = value.saturating_mul(1_i128 << power).saturating_mul(NANOS);
            (divide_up(up, 10_i128.saturating_pow(shift.unsigned_abs())), Format::Binary)
        }
        None => {
            let (exponent, format) = decimal(suffix)?;
            let exponent = exponent.saturating_add(9).saturating_sub(shift);
            let power = 10_i128.saturating_pow(exponent.unsigned_abs());
            let nanos = if exponent >= 0 { value.saturating_mul(power) } else { divide_up(value, power) };
            (nanos, format)
        }
    };
    Some(Quantity { nanos: if negative { -nanos } else { nanos }, format })
}

fn divide_up(value: i128, by: i128) -> i128 {
    value / by + i128::from(value % by > 0)
}

/// The power of ten that a suffix stands for.
fn decimal(suffix: &str) -> Option<(i32, Format)> {
    if let Some((_, power)) = DECIMAL.iter().find(|(name, _)| *name == suffix) {
        return Some((*power, Format::Decimal));
    }
    let exponent = suffix.strip_prefix(['e', 'E'])?;
    Some((exponent.parse().ok()?, Format::Exponent))
}

/// In the shortest form without a fraction, as the API server stores it.
impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.nanos == 0 {
            return f.write_str("0");
        }
        // Less than a kilo is written as a decimal.
        if self.format == Format::Binary && self.nanos.abs() >= 1024 * NANOS {
            let whole = divide_up(self.nanos, NANOS);
            let unit = BINARY.iter().rev().find(|(_, power)| whole % (1 << power) == 0);
            return match unit {
                Some((name, power)) => write!(f, "{}{name}", whole >> power),
                None => write!(f, "{whole}"),
            };
        }
        // The first always divides: what is counted are nanos.
        let fits = |power: i32| 10_i128.checked_pow(u32::try_from(power + 9).unwrap_or_default());
        let unit = DECIMAL.iter().rev().find_map(|(name, power)| {
            fits(*power).filter(|unit| self.nanos % unit == 0).map(|unit| (name, power, self.nanos / unit))
        });
        match unit {
            Some((_, power, count)) if self.format == Format::Exponent && *power != 0 => {
                write!(f, "{count}e{power}")
            }
            Some((name, _, count)) => write!(f, "{count}{name}"),
            None => write!(f, "{}n", self.nanos),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn of(text: &str) -> Quantity {
        text.parse().unwrap()
    }

    #[test]
    fn the_same_amount_is_the_same_however_it_is_written() {
        for (a, b) in [
            ("2000m", "2"),
            ("1Gi", "1024Mi"),
            ("1k", "1000"),
            ("1e3", "1000"),
            ("0.5", "500m"),
            (".5", "0.5"),
            ("5.", "5"),
            ("+1", "1"),
            ("1E", "1e18"),
            ("0.1n", "1n"),
            ("1e-30", "1n"),
        ] {
            assert_eq!(of(a), of(b), "{a} {b}");
        }
        assert!(of("-1").is_negative() && of("-1") < of("0") && of("0m").is_zero());
        assert!(!of("0").is_negative() && !of("1n").is_negative() && !of("1n").is_zero());
    }

    #[test]
    fn sums_are_written_as_their_first_part() {
        for (a, b, sum, rest) in [
            ("500m", "2", "2500m", "-1500m"),
            ("1Gi", "512Mi", "1536Mi", "512Mi"),
            ("0", "1Mi", "1Mi", "-1Mi"),
            ("3", "1", "4", "2"),
            ("1500", "1Ki", "2524", "476"),
        ] {
            assert_eq!(
                (of(a).plus(of(b)).to_string(), of(a).minus(of(b)).to_string()),
                (sum.into(), rest.into())
            );
        }
    }

    #[test]
    fn it_is_written_as_the_api_server_stores_it() {
        for (text, canonical) in [
            ("2000m", "2"),
            ("4", "4"),
            ("24Gi", "24Gi"),
            ("1024Mi", "1Gi"),
            ("1.5Gi", "1536Mi"),
            ("512Ki", "512Ki"),
            ("0.5Ki", "512"),
            ("1Ki", "1Ki"),
            // Parts of a byte are rounded up.
            ("1.0004Ki", "1025"),
            ("1.5e3", "1500"),
            ("0.5", "500m"),
            ("1000", "1k"),
            ("1500", "1500"),
            ("1e3", "1e3"),
            ("-0.1", "-100m"),
            ("0", "0"),
            ("1E", "1E"),
        ] {
            assert_eq!(of(text).to_string(), canonical, "{text}");
            assert_eq!(of(&of(text).to_string()).to_string(), canonical);
        }
    }

    #[test]
    fn what_is_no_quantity_is_refused() {
        for text in
            ["", "x", "1x", "1 k", "1.2.3", "-", "1e", "1e+", "1ki", "1KI", "1Kb", "--1", "1e9999999999"]
        {
            assert!(text.parse::<Quantity>().is_err(), "{text}");
        }
        assert_eq!(Quantity::of(&json!(true)), None);
    }

    #[test]
    fn numbers_and_what_is_beyond_the_range_are_read_as_the_api_server_does() {
        assert_eq!(Quantity::of(&json!(1.5)), Some(of("1500m")));
        assert_eq!(Quantity::of(&json!(null)), Some(of("0")));
        assert_eq!(of(" 1 "), of("1"));
        assert_eq!(of(&"9".repeat(60)).nanos(), i128::MAX);
        assert_eq!(of("1e999999999").nanos(), i128::MAX);
        assert_eq!(of("1e-999999999").nanos(), 1);
    }

    #[test]
    fn thousandths_are_rounded_up() {
        for (text, up) in
            [("0.33333", "334m"), ("1u", "1m"), ("0.3333Ki", "341300m"), ("1500m", "1500m"), ("2Gi", "2Gi")]
        {
            assert_eq!(of(text).ceil_milli().to_string(), up, "{text}");
        }
        assert!(of("1e999").ceil_milli() >= of("1e20"));
    }

    #[test]
    fn how_often_one_goes_into_another() {
        assert_eq!(of("10").holds(&of("3")), Some(3));
        assert_eq!(of("64Gi").holds(&of("24Gi")), Some(2));
        assert_eq!(of("1").holds(&of("2")), Some(0));
        assert_eq!(of("1").holds(&of("0")), None);
        assert_eq!(of("-1").holds(&of("1")), Some(0));
    }
}
