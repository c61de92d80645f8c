//! The `format` keyword: the formats Kubernetes checks. Unknown ones are not checked, as there.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use base64::Engine as _;
use serde_json::Number;

use crate::{Quantity, rfc3339};

/// Whether a string has the format.
pub(super) fn string_ok(format: &str, text: &str) -> bool {
    match format {
        "date-time" | "datetime" => rfc3339::parse(text).is_some(),
        "date" => rfc3339::parse(&format!("{text}T00:00:00Z")).is_some(),
        "byte" => base64::engine::general_purpose::STANDARD.decode(text).is_ok(),
        "ipv4" => text.parse::<Ipv4Addr>().is_ok(),
        "ipv6" => text.parse::<Ipv6Addr>().is_ok(),
        "cidr" => is_cidr(text),
        "mac" => is_mac(text),
        "uuid" => is_uuid(text),
        "duration" => is_duration(text),
        "quantity" => Quantity::parse(text).is_ok(),
        _ => true,
    }
}

/// Whether a number fits the format.
pub(super) fn number_ok(format: &str, number: &Number) -> bool {
    match format {
        "int32" => integer(number).is_some_and(|n| i32::try_from(n).is_ok()),
        "int64" => integer(number).is_some_and(|n| i64::try_from(n).is_ok()),
        "float" => number.as_f64().is_none_or(|f| f.abs() <= f64::from(f32::MAX)),
        _ => true,
    }
}

fn integer(number: &Number) -> Option<i128> {
    let whole = |f: &f64| f.fract() == 0.0 && f.abs() < 1e30;
    number
        .as_i64()
        .map(i128::from)
        .or_else(|| number.as_u64().map(i128::from))
        .or_else(|| number.as_f64().filter(whole).map(|f| f as i128))
}

fn is_cidr(text: &str) -> bool {
    let Some((address, bits)) = text.split_once('/') else {
        return false;
    };
    let max = match address.parse() {
        Ok(IpAddr::V4(_)) => 32,
        Ok(IpAddr::V6(_)) => 128,
        Err(_) => return false,
    };
    bits.parse::<u8>().is_ok_and(|n| n <= max)
}

fn is_mac(text: &str) -> bool {
    let hex = |part: &str, len: usize| part.len() == len && part.bytes().all(|b| b.is_ascii_hexdigit());
    let groups = |sep: char, len: usize| {
        let parts: Vec<&str> = text.split(sep).collect();
        matches!(parts.len() * len / 2, 6 | 8 | 20) && parts.iter().all(|part| hex(part, len))
    };
    groups(':', 2) || groups('-', 2) || groups('.', 4)
}

/// Lenient on dashes, as upstream's pattern is.
fn is_uuid(text: &str) -> bool {
    let plain: String = text.chars().filter(|c| *c != '-').collect();
    plain.len() == 32 && plain.bytes().all(|b| b.is_ascii_hexdigit())
}

/// `1h30m`, `-1.5s`, `0`, and the long unit names that upstream also takes (`3 days`).
fn is_duration(text: &str) -> bool {
    const UNITS: [&str; 26] = [
        "ns", "us", "µs", "ms", "s", "m", "h", "d", "w", "nano", "nanos", "micro", "micros", "milli", "millis", "sec",
        "secs", "second", "seconds", "min", "minute", "minutes", "hour", "hours", "day", "days",
    ];
    let mut rest = text.strip_prefix(['-', '+']).unwrap_or(text);
    if rest == "0" {
        return true;
    }
    if rest.is_empty() {
        return false;
    }
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let (number, tail) = rest.split_at(digits);
        if number.parse::<f64>().is_err() {
            return false;
        }
        let tail = tail.trim_start();
        let letters = tail.find(|c: char| !c.is_alphabetic()).unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(letters);
        if !UNITS.contains(&unit) && !matches!(unit, "week" | "weeks") {
            return false;
        }
        rest = tail.trim_start();
    }
    true
}
