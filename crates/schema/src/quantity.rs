//! Amounts such as `100m`, `1.5Gi` and `3e6`, exactly.

use std::fmt;

/// Nanos of a unit; the smallest amount that can be written.
const UNIT: i128 = 1_000_000_000;
/// Beyond this an amount is cut, as upstream cuts at 2^63.
const MAX: i128 = i64::MAX as i128 * UNIT;

const DECIMAL: &[(&str, i32)] =
    &[("n", -9), ("u", -6), ("m", -3), ("", 0), ("k", 3), ("M", 6), ("G", 9), ("T", 12), ("P", 15), ("E", 18)];
const BINARY: &[(&str, u32)] = &[("Ki", 10), ("Mi", 20), ("Gi", 30), ("Ti", 40), ("Pi", 50), ("Ei", 60)];

/// How an amount is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Notation {
    Decimal,
    Binary,
    Exponent,
}

/// An amount that remembers how it was written. Equality and order are those of the amount.
#[derive(Debug, Clone, Copy)]
pub struct Quantity {
    nanos: i128,
    notation: Notation,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a quantity")]
pub struct QuantityError(String);

impl Quantity {
    pub const ZERO: Self = Self { nanos: 0, notation: Notation::Decimal };

    pub fn parse(text: &str) -> Result<Self, QuantityError> {
        parse(text).ok_or_else(|| QuantityError(text.to_owned()))
    }

    /// A JSON string or number.
    pub fn from_json(value: &serde_json::Value) -> Result<Self, QuantityError> {
        match value {
            serde_json::Value::String(text) => Self::parse(text),
            other => Self::parse(&other.to_string()),
        }
    }

    /// A whole number of units.
    pub fn whole(count: i64) -> Self {
        Self { nanos: i128::from(count) * UNIT, notation: Notation::Decimal }
    }

    pub fn is_zero(self) -> bool {
        self.nanos == 0
    }

    /// Written as the left one is, or as the right one if the left one is nothing.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        let notation = if self.is_zero() { other.notation } else { self.notation };
        Self { nanos: (self.nanos + other.nanos).clamp(-MAX, MAX), notation }
    }

    #[must_use]
    pub fn minus(self, other: Self) -> Self {
        self.plus(Self { nanos: -other.nanos, ..other })
    }

    /// For sums that must not be cut on the way.
    pub fn nanos(self) -> i128 {
        self.nanos
    }

    /// Another amount, written as this one is.
    #[must_use]
    pub fn with_nanos(self, nanos: i128) -> Self {
        Self { nanos: nanos.clamp(-MAX, MAX), ..self }
    }

    /// Only good for showing.
    pub fn as_f64(self) -> f64 {
        self.nanos as f64 / UNIT as f64
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

/// The canonical form: no fraction, the largest suffix that allows it.
impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.nanos == 0 {
            return f.write_str("0");
        }
        let whole = self.nanos / UNIT;
        if self.notation == Notation::Binary && self.nanos % UNIT == 0 && whole.abs() >= 1024 {
            let fits = BINARY.iter().rev().find(|(_, bits)| whole % (1i128 << bits) == 0);
            return match fits {
                Some((suffix, bits)) => write!(f, "{}{suffix}", whole >> bits),
                None => write!(f, "{whole}"),
            };
        }
        for (suffix, exponent) in DECIMAL.iter().rev() {
            let step = power(exponent + 9).unwrap_or(1);
            if self.nanos % step == 0 {
                return match (self.notation, exponent) {
                    (Notation::Exponent, exponent) if *exponent != 0 => write!(f, "{}e{exponent}", self.nanos / step),
                    _ => write!(f, "{}{suffix}", self.nanos / step),
                };
            }
        }
        write!(f, "{whole}")
    }
}

fn power(exponent: i32) -> Option<i128> {
    10i128.checked_pow(u32::try_from(exponent).ok()?)
}

fn parse(text: &str) -> Option<Quantity> {
    let (negative, rest) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
    let (number, suffix) = rest.split_at(end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
        return None;
    }
    let (scale, notation) = scale(suffix)?;
    // Digits that no i64 holds are cut to the maximum anyway.
    let digits = |text: &str| text.trim_start_matches('0').len();
    if digits(whole) > 30 {
        return Some(Quantity { nanos: if negative { -MAX } else { MAX }, notation });
    }
    let units: i128 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
    let mut nanos = units.checked_mul(scale.0).map(|n| n / scale.1);
    // Fractions of a nano are rounded up, away from zero.
    let kept: String = fraction.chars().take(18).collect();
    if let (Some(sum), false) = (nanos, kept.is_empty()) {
        let divisor = power(i32::try_from(kept.len()).ok()?)?;
        let part = kept.parse::<i128>().ok()?.checked_mul(scale.0)?;
        let exact = divisor * scale.1;
        nanos = Some(sum + part / exact + i128::from(part % exact != 0));
    } else if let Some(sum) = nanos
        && units.checked_mul(scale.0).is_some_and(|n| n % scale.1 != 0)
    {
        nanos = Some(sum + 1);
    }
    let nanos = nanos.unwrap_or(MAX).min(MAX);
    Some(Quantity { nanos: if negative { -nanos } else { nanos }, notation })
}

/// Nanos per unit of a suffix, as a fraction, and the notation it belongs to.
fn scale(suffix: &str) -> Option<((i128, i128), Notation)> {
    if let Some((_, exponent)) = DECIMAL.iter().find(|(s, _)| *s == suffix) {
        return Some(((power(exponent + 9)?, 1), Notation::Decimal));
    }
    if let Some((_, bits)) = BINARY.iter().find(|(s, _)| *s == suffix) {
        return Some((((1i128 << bits) * UNIT, 1), Notation::Binary));
    }
    let exponent: i32 = suffix.strip_prefix(['e', 'E'])?.parse().ok()?;
    match exponent {
        0..=18 => Some(((power(exponent + 9)?, 1), Notation::Exponent)),
        -18..0 => {
            let shift = exponent + 9;
            let pair = if shift >= 0 { (power(shift)?, 1) } else { (1, power(-shift)?) };
            Some((pair, Notation::Exponent))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_read_and_written() {
        let cases = [
            ("0", "0"),
            ("100m", "100m"),
            ("0.1", "100m"),
            ("1000m", "1"),
            ("1500m", "1500m"),
            ("1.5Gi", "1536Mi"),
            ("1024Mi", "1Gi"),
            ("1000Ki", "1000Ki"),
            ("1024", "1024"),
            ("3e6", "3e6"),
            ("12e-1", "1200e-3"),
            ("1E", "1E"),
            ("5000000", "5M"),
            (".5", "500m"),
            ("-1Gi", "-1Gi"),
            ("0.0000000001", "1n"),
            ("99999999999999999999999999999999999999999", "9223372036854775807"),
        ];
        for (text, expected) in cases {
            assert_eq!(Quantity::parse(text).unwrap().to_string(), expected, "{text}");
        }
        for bad in ["", "Gi", "1.2.3", "1Kb", "1 Gi", "e", "1e99", "--1", "0x10", "1_0", "½"] {
            assert!(Quantity::parse(bad).is_err(), "{bad}");
        }
        let sum = Quantity::parse("1Gi").unwrap().plus(Quantity::parse("512Mi").unwrap());
        assert_eq!(sum.to_string(), "1536Mi");
        assert!(sum > Quantity::parse("1500M").unwrap());
        assert_eq!(Quantity::parse("1").unwrap(), Quantity::parse("1000m").unwrap());
        assert_eq!(Quantity::parse("1").unwrap().minus(Quantity::parse("1000m").unwrap()), Quantity::ZERO);
    }
}
