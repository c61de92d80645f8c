//! Kubernetes quantities (`1.5Gi`, `250m`, `1e3`), exact to a billionth.
//!
//! Parsing and printing follow `resource.Quantity`: more precise numbers are rounded away from zero, the suffix decides the
//! family in which the value is printed again, and the printed form is canonical (`0.5` becomes `500m`, `1024Mi` becomes `1Gi`).

use std::{
    cmp::Ordering,
    fmt,
    ops::{Add, AddAssign, Mul, Sub},
    str::FromStr,
};

use k8s_openapi::apimachinery::pkg::api::resource::Quantity as WireQuantity;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

const NANO: i128 = 1_000_000_000;
/// Go keeps magnitudes below 2^63.
const MAX_NANO: i128 = (i64::MAX as i128) * NANO;

const DECIMAL: [(&str, i128); 10] = [
    ("E", NANO * 1_000_000_000_000_000_000),
    ("P", NANO * 1_000_000_000_000_000),
    ("T", NANO * 1_000_000_000_000),
    ("G", NANO * 1_000_000_000),
    ("M", NANO * 1_000_000),
    ("k", NANO * 1_000),
    ("", NANO),
    ("m", 1_000_000),
    ("u", 1_000),
    ("n", 1),
];
const BINARY: [(&str, i128); 6] = [
    ("Ei", NANO << 60),
    ("Pi", NANO << 50),
    ("Ti", NANO << 40),
    ("Gi", NANO << 30),
    ("Mi", NANO << 20),
    ("Ki", NANO << 10),
];

/// An exact quantity. Two quantities are equal if their values are, whatever their suffixes.
#[derive(Debug, Clone, Copy, Default)]
pub struct Quantity {
    nano: i128,
    family: Family,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Family {
    #[default]
    Decimal,
    Binary,
    Exponent,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a quantity such as 500m, 2 or 1.5Gi")]
pub struct ParseQuantityError(String);

impl Quantity {
    pub fn parse(text: &str) -> Result<Self, ParseQuantityError> {
        text.parse()
    }

    /// So many bytes, printed with binary suffixes.
    pub fn bytes(bytes: u64) -> Self {
        Self { nano: (i128::from(bytes) * NANO).min(MAX_NANO), family: Family::Binary }
    }

    /// So many thousandths, printed with decimal suffixes.
    pub fn milli(milli: i64) -> Self {
        Self { nano: i128::from(milli) * 1_000_000, family: Family::Decimal }
    }

    /// The value rounded up to a whole number.
    pub fn value(self) -> i64 {
        clamp(div_up(self.nano, NANO))
    }

    /// The value as a number of bytes, rounded up; nothing below zero.
    pub fn as_bytes(self) -> u64 {
        u64::try_from(self.value()).unwrap_or(0)
    }

    /// The value in thousandths, rounded up.
    pub fn as_milli(self) -> i64 {
        clamp(div_up(self.nano, 1_000_000))
    }

    pub fn is_zero(self) -> bool {
        self.nano == 0
    }

    pub fn is_negative(self) -> bool {
        self.nano < 0
    }

    /// True if the value is a whole number.
    pub fn is_integer(self) -> bool {
        self.nano % NANO == 0
    }
}

impl FromStr for Quantity {
    type Err = ParseQuantityError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        parse(text).ok_or_else(|| ParseQuantityError(text.to_owned()))
    }
}

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.nano == 0 {
            return f.write_str("0");
        }
        if self.family == Family::Binary && self.nano.abs() >= 1024 * NANO && self.nano % NANO == 0 {
            let fits = BINARY.iter().find(|(_, unit)| self.nano % unit == 0);
            return match fits {
                Some((suffix, unit)) => write!(f, "{}{suffix}", self.nano / unit),
                None => write!(f, "{}", self.nano / NANO),
            };
        }
        let (suffix, unit) = DECIMAL.iter().find(|(_, unit)| self.nano % unit == 0).copied().unwrap_or(("n", 1));
        if self.family == Family::Exponent && !suffix.is_empty() {
            let exponent = match suffix {
                "n" => -9,
                "u" => -6,
                "m" => -3,
                "k" => 3,
                "M" => 6,
                "G" => 9,
                "T" => 12,
                "P" => 15,
                _ => 18,
            };
            return write!(f, "{}e{exponent}", self.nano / unit);
        }
        write!(f, "{}{suffix}", self.nano / unit)
    }
}

impl PartialEq for Quantity {
    fn eq(&self, other: &Self) -> bool {
        self.nano == other.nano
    }
}

impl Eq for Quantity {}

impl PartialOrd for Quantity {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Quantity {
    fn cmp(&self, other: &Self) -> Ordering {
        self.nano.cmp(&other.nano)
    }
}

impl Add for Quantity {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        // A zero has no family of its own, so that sums started from it print like what was added.
        let family = if self.nano == 0 { other.family } else { self.family };
        Self { nano: limit(self.nano + other.nano), family }
    }
}

impl AddAssign for Quantity {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl Sub for Quantity {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        let family = if self.nano == 0 { other.family } else { self.family };
        Self { nano: limit(self.nano - other.nano), family }
    }
}

impl Mul<i64> for Quantity {
    type Output = Self;

    fn mul(self, factor: i64) -> Self {
        Self { nano: limit(self.nano.saturating_mul(i128::from(factor))), family: self.family }
    }
}

impl TryFrom<&WireQuantity> for Quantity {
    type Error = ParseQuantityError;

    fn try_from(wire: &WireQuantity) -> Result<Self, Self::Error> {
        wire.0.parse()
    }
}

impl From<Quantity> for WireQuantity {
    fn from(quantity: Quantity) -> Self {
        Self(quantity.to_string())
    }
}

impl Serialize for Quantity {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Quantity {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Wire {
            Text(String),
            Number(serde_json::Number),
        }
        let text = match Wire::deserialize(deserializer)? {
            Wire::Text(text) => text,
            Wire::Number(number) => number.to_string(),
        };
        text.parse().map_err(serde::de::Error::custom)
    }
}

fn parse(text: &str) -> Option<Quantity> {
    let (negative, rest) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    let number_end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
    let (number, suffix) = rest.split_at(number_end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
        return None;
    }
    let (family, unit, exponent) = parse_suffix(suffix)?;

    // digits * unit * 10^(exponent - fraction digits), rounded away from zero and capped.
    let digits = whole.trim_start_matches('0').to_owned() + fraction;
    let shift = exponent - i32::try_from(fraction.len()).ok()?;
    let nano = scaled(&digits, unit, shift);
    Some(Quantity { nano: if negative { -nano } else { nano }, family })
}

fn parse_suffix(suffix: &str) -> Option<(Family, i128, i32)> {
    if let Some((_, unit)) = BINARY.iter().find(|(name, _)| *name == suffix) {
        return Some((Family::Binary, *unit, 0));
    }
    if let Some((_, unit)) = DECIMAL.iter().find(|(name, _)| *name == suffix) {
        return Some((Family::Decimal, *unit, 0));
    }
    let exponent = suffix.strip_prefix(['e', 'E'])?;
    let digits = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    // Exponents that leave i32 are far beyond both ends of the range.
    let exponent = exponent.parse().unwrap_or(if exponent.starts_with('-') { -1000 } else { 1000 });
    Some((Family::Exponent, NANO, exponent.clamp(-1000, 1000)))
}

/// `digits * unit * 10^shift`, rounded up, at most [`MAX_NANO`].
fn scaled(digits: &str, unit: i128, shift: i32) -> i128 {
    let digits = digits.trim_start_matches('0');
    if digits.is_empty() {
        return 0;
    }
    // 38 digits fit an i128; units go up to 30 bits beyond that, so longer numbers are cut first, remembering a remainder.
    let mut value: i128 = 0;
    let mut shift = i64::from(shift);
    let mut inexact = false;
    for (index, digit) in digits.bytes().enumerate() {
        if value > i128::MAX / 10 - 10 {
            inexact |= digits.as_bytes()[index..].iter().any(|d| *d != b'0');
            shift += i64::try_from(digits.len() - index).unwrap_or(i64::MAX / 2);
            break;
        }
        value = value * 10 + i128::from(digit - b'0');
    }
    // Shrink before multiplying, as far as that loses nothing.
    let mut unit = unit;
    while shift < 0 && unit % 10 == 0 {
        unit /= 10;
        shift += 1;
    }
    while shift < 0 && value % 10 == 0 {
        value /= 10;
        shift += 1;
    }
    let mut product = match value.checked_mul(unit) {
        Some(product) => product,
        None if shift >= 0 => return MAX_NANO,
        None => {
            while shift < 0 && value.checked_mul(unit).is_none() {
                inexact |= value % 10 != 0;
                value /= 10;
                shift += 1;
            }
            match value.checked_mul(unit) {
                Some(product) => product,
                None => return MAX_NANO,
            }
        }
    };
    while shift > 0 && product <= MAX_NANO {
        product = product.saturating_mul(10);
        shift -= 1;
    }
    while shift < 0 && product > 0 {
        inexact |= product % 10 != 0;
        product /= 10;
        shift += 1;
    }
    (product + i128::from(inexact)).min(MAX_NANO)
}

fn limit(nano: i128) -> i128 {
    nano.clamp(-MAX_NANO, MAX_NANO)
}

fn div_up(value: i128, by: i128) -> i128 {
    let quotient = value / by;
    if value % by > 0 { quotient + 1 } else { quotient }
}

fn clamp(value: i128) -> i64 {
    i64::try_from(value).unwrap_or(if value < 0 { i64::MIN } else { i64::MAX })
}
