//! Go's text form of durations, which `metav1.Duration` has in JSON: `1h30m0s`, `1.5s`, `250ms`.

const UNITS: [(&str, i64); 8] = [
    ("ns", 1),
    ("us", 1_000),
    ("µs", 1_000),
    ("μs", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
];

/// Nanoseconds of a duration, if it is one.
pub fn parse(text: &str) -> Option<i64> {
    let (negative, mut rest) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    if rest == "0" {
        return Some(0);
    }
    if rest.is_empty() {
        return None;
    }
    let mut total: i64 = 0;
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, tail) = rest.split_at(end);
        let end = tail.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(end);
        let (_, scale) = UNITS.iter().find(|(name, _)| *name == unit)?;
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if whole.is_empty() && fraction.is_empty() {
            return None;
        }
        let whole: i64 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
        total = total.checked_add(whole.checked_mul(*scale)?)?;
        let mut place = *scale;
        for digit in fraction.bytes() {
            if !digit.is_ascii_digit() {
                return None;
            }
            place /= 10;
            total = total.checked_add(i64::from(digit - b'0') * place)?;
        }
        rest = tail;
    }
    Some(if negative { -total } else { total })
}

/// The shortest form Go would print.
pub fn format(nanos: i64) -> String {
    let sign = if nanos < 0 { "-" } else { "" };
    let size = nanos.unsigned_abs();
    if size == 0 {
        return "0s".to_owned();
    }
    for (limit, unit) in [(1_000, "ns"), (1_000_000, "µs"), (1_000_000_000, "ms")] {
        if size < limit {
            return format!("{sign}{}{unit}", decimal(size, limit / 1_000));
        }
    }
    let (minutes, rest) = (size / 60_000_000_000, size % 60_000_000_000);
    let seconds = decimal(rest, 1_000_000_000);
    match (minutes / 60, minutes % 60) {
        (0, 0) => format!("{sign}{seconds}s"),
        (0, minutes) => format!("{sign}{minutes}m{seconds}s"),
        (hours, minutes) => format!("{sign}{hours}h{minutes}m{seconds}s"),
    }
}

fn decimal(value: u64, unit: u64) -> String {
    let (whole, rest) = (value / unit, value % unit);
    if rest == 0 {
        return whole.to_string();
    }
    let digits = unit.ilog10() as usize;
    let fraction = format!("{rest:0digits$}");
    format!("{whole}.{}", fraction.trim_end_matches('0'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ways() {
        for (text, nanos) in [
            ("0s", 0),
            ("5m0s", 300_000_000_000),
            ("1h30m0s", 5_400_000_000_000),
            ("1.5s", 1_500_000_000),
            ("250ms", 250_000_000),
            ("1.000000001s", 1_000_000_001),
            ("2.5µs", 2_500),
            ("-1m0.5s", -60_500_000_000),
        ] {
            assert_eq!(parse(text), Some(nanos), "{text}");
            assert_eq!(format(nanos), text);
        }
        assert_eq!(parse("90m"), Some(5_400_000_000_000));
        for bad in ["", "s", "1", "1d", "1.s.", "--1s", ".s", "1e3s"] {
            assert_eq!(parse(bad), None, "{bad}");
        }
        assert_eq!(format(i64::MIN), "-2562047h47m16.854775808s");
    }
}
