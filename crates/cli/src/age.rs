//! How long ago something was, as kubectl writes it.

use jiff::Timestamp;

/// Since this moment of the API; empty if it is none.
pub fn since(timestamp: &str, now: Timestamp) -> String {
    match timestamp.parse::<Timestamp>() {
        Ok(then) => text(now.duration_since(then).as_secs()),
        Err(_) => String::new(),
    }
}

/// Clocks differ: what is not yet, is now.
fn text(seconds: i64) -> String {
    ferrovirt_apiserver::human_duration(seconds.max(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_kubectls() {
        for (seconds, expected) in [
            (-5, "0s"),
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (150, "2m30s"),
            (600, "10m"),
            (7200, "120m"),
            (10_800, "3h"),
            (12_000, "3h20m"),
            (90_000, "25h"),
            (172_800, "2d"),
            (180_000, "2d2h"),
            (864_000, "10d"),
            (70_000_000, "2y80d"),
            (300_000_000, "9y"),
        ] {
            assert_eq!(text(seconds), expected, "{seconds}");
        }
        let now: Timestamp = "2026-01-01T00:01:00Z".parse().unwrap();
        assert_eq!(since("2026-01-01T00:00:00Z", now), "60s");
        assert_eq!(since("", now), "");
    }
}
