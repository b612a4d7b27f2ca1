//! Quantities (`k8s.io/apimachinery/pkg/api/resource`): `500m`, `2Gi`, `1e3`, also as JSON numbers.

use serde_json::Value;

/// Billionths in one: the finest that the API keeps.
const NANO: i128 = 1_000_000_000;

/// A quantity in billionths, rounded up as the API server does; what is beyond the range is the end of it. `None` where it is
/// no quantity.
pub(crate) fn nanos(value: &Value) -> Option<i128> {
    match value {
        Value::String(text) => parse(text.trim()),
        Value::Number(number) => parse(&number.to_string()),
        // The decoder takes null for nothing.
        Value::Null => Some(0),
        _ => None,
    }
}

fn parse(text: &str) -> Option<i128> {
    if text.is_empty() {
        return None;
    }
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
    let (base, exponent) = scale(suffix)?;
    // Beyond 18 digits nothing is exact any more, nor needs to be.
    let mut value: i128 = 0;
    for digit in whole.bytes().chain(part.bytes().take(18)) {
        value = value.saturating_mul(10).saturating_add(i128::from(digit - b'0'));
    }
    let shift = i32::try_from(part.len().min(18)).ok()?;
    let scaled = if base == 2 {
        let up = value.saturating_mul(1_i128 << exponent).saturating_mul(NANO);
        divide_up(up, 10_i128.saturating_pow(shift.unsigned_abs()))
    } else {
        let exponent = exponent.saturating_add(9).saturating_sub(shift);
        let power = 10_i128.saturating_pow(exponent.unsigned_abs());
        if exponent >= 0 { value.saturating_mul(power) } else { divide_up(value, power) }
    };
    Some(if negative { -scaled } else { scaled })
}

fn divide_up(value: i128, by: i128) -> i128 {
    value / by + i128::from(value % by > 0)
}

/// What a suffix multiplies by: base and exponent.
fn scale(suffix: &str) -> Option<(u8, i32)> {
    Some(match suffix {
        "" => (10, 0),
        "n" => (10, -9),
        "u" => (10, -6),
        "m" => (10, -3),
        "k" => (10, 3),
        "M" => (10, 6),
        "G" => (10, 9),
        "T" => (10, 12),
        "P" => (10, 15),
        "E" => (10, 18),
        "Ki" => (2, 10),
        "Mi" => (2, 20),
        "Gi" => (2, 30),
        "Ti" => (2, 40),
        "Pi" => (2, 50),
        "Ei" => (2, 60),
        _ => {
            let exponent = suffix.strip_prefix(['e', 'E'])?;
            let number = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
            let is_number = !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit());
            (10, is_number.then(|| exponent.parse().ok())??)
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn quantities_as_the_api_server_reads_them() {
        for (value, wanted) in [
            (json!("1"), NANO),
            (json!(2), 2 * NANO),
            (json!(1.5), NANO * 3 / 2),
            (json!("500m"), NANO / 2),
            (json!("1e3"), 1000 * NANO),
            (json!("1E-3"), NANO / 1000),
            (json!("1E"), 1_000_000_000_000_000_000 * NANO),
            (json!("-1k"), -1000 * NANO),
            (json!("1.5Gi"), (1 << 29) * 3 * NANO),
            (json!("0.1n"), 1),
            (json!(" 1 "), NANO),
            (json!("1.G"), 1_000_000_000 * NANO),
            (json!(null), 0),
        ] {
            assert_eq!(nanos(&value), Some(wanted), "{value}");
        }
        for value in
            [json!(""), json!("x"), json!("1Kb"), json!("1e"), json!("1e+"), json!("1 k"), json!(true)]
        {
            assert_eq!(nanos(&value), None, "{value}");
        }
        assert_eq!(nanos(&json!("9".repeat(60))), Some(i128::MAX));
        assert_eq!(nanos(&json!("1e999999999")), Some(i128::MAX));
        assert_eq!(nanos(&json!("1e-999999999")), Some(1));
    }
}
