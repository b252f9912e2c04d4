//! What a YAML scalar means, by the core schema of YAML 1.2.

use super::Value;

/// The value of an unquoted scalar.
pub(super) fn plain(text: &str) -> Value {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => Value::Null,
        "true" | "True" | "TRUE" => Value::Bool(true),
        "false" | "False" | "FALSE" => Value::Bool(false),
        ".inf" | ".Inf" | ".INF" | "+.inf" | "+.Inf" | "+.INF" => Value::Float(f64::INFINITY),
        "-.inf" | "-.Inf" | "-.INF" => Value::Float(f64::NEG_INFINITY),
        ".nan" | ".NaN" | ".NAN" => Value::Float(f64::NAN),
        _ => number(text).unwrap_or_else(|| Value::Text(text.to_owned())),
    }
}

/// The number that `text` spells, whole where it fits 64 bits.
pub(crate) fn number(text: &str) -> Option<Value> {
    let radix = |digits: &str, base| {
        let plain = digits.bytes().all(|b| b.is_ascii_alphanumeric());
        plain
            .then(|| i64::from_str_radix(digits, base).ok())
            .flatten()
            .map(Value::Int)
    };
    if let Some(digits) = text.strip_prefix("0x") {
        return radix(digits, 16);
    }
    if let Some(digits) = text.strip_prefix("0o") {
        return radix(digits, 8);
    }
    if !looks_decimal(text) {
        return None;
    }
    if let Ok(whole) = text.parse() {
        return Some(Value::Int(whole));
    }
    text.parse().ok().map(Value::Float)
}

/// `[-+]? ( \. digits | digits ( \. digits? )? ) ( [eE] [-+]? digits )?`
fn looks_decimal(text: &str) -> bool {
    let unsigned = text.strip_prefix(['-', '+']).unwrap_or(text);
    let (mantissa, exponent) = match unsigned.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, Some(exponent)),
        None => (unsigned, None),
    };
    let digits = |part: &str| part.bytes().all(|b| b.is_ascii_digit());
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let exponent_fits = exponent.is_none_or(|exponent| {
        let unsigned = exponent.strip_prefix(['-', '+']).unwrap_or(exponent);
        !unsigned.is_empty() && digits(unsigned)
    });
    exponent_fits && digits(whole) && digits(fraction) && !(whole.is_empty() && fraction.is_empty())
}
