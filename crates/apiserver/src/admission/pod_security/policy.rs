//! The levels that a namespace's labels ask for.

use std::collections::BTreeMap;
use std::fmt;

use ferrovirt_schema::Cause;
use serde_json::json;

const PREFIX: &str = "pod-security.kubernetes.io/";
/// The newest minor version that there are rules for: that of the API.
pub const LATEST: u32 = 36;

/// From the weakest to the strictest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    Privileged,
    Baseline,
    Restricted,
}

impl Level {
    fn parse(text: &str) -> Option<Self> {
        match text {
            "privileged" => Some(Self::Privileged),
            "baseline" => Some(Self::Baseline),
            "restricted" => Some(Self::Restricted),
            _ => None,
        }
    }
}

/// The rules of which minor version; None for the latest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Version(Option<u32>);

impl Version {
    fn parse(text: &str) -> Option<Self> {
        if text == "latest" {
            return Some(Self(None));
        }
        let minor = text.strip_prefix("v1.")?;
        let plain = minor == "0" || (!minor.starts_with('0') && minor.bytes().all(|b| b.is_ascii_digit()));
        minor.parse().ok().filter(|_| plain).map(|minor| Self(Some(minor)))
    }

    /// A version that is still to come has the rules of the latest.
    pub fn minor(self) -> u32 {
        self.0.map_or(LATEST, |minor| minor.min(LATEST))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limit {
    pub level: Level,
    pub version: Version,
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let level = match self.level {
            Level::Privileged => "privileged",
            Level::Baseline => "baseline",
            Level::Restricted => "restricted",
        };
        match self.version.0 {
            None => write!(f, "{level}:latest"),
            Some(minor) => write!(f, "{level}:v1.{minor}"),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policy {
    pub enforce: Limit,
    pub audit: Limit,
    pub warn: Limit,
}

impl Policy {
    /// What the labels of a namespace ask for, and what is wrong with them. What cannot be read is enforced most strictly.
    pub fn of(labels: &BTreeMap<String, String>) -> (Self, Vec<Cause>) {
        let mut faults = Vec::new();
        let mut read = |mode: &str, default: Level, unreadable: Level| {
            let mut limit = Limit { level: default, version: Version(None) };
            let mut good = false;
            if let Some(text) = labels.get(&format!("{PREFIX}{mode}")) {
                good = Level::parse(text).is_some();
                limit.level = Level::parse(text).unwrap_or(unreadable);
                if !good {
                    faults.push(fault(mode, text, "must be one of privileged, baseline, restricted"));
                }
            }
            let key = format!("{mode}-version");
            if let Some(text) = labels.get(&format!("{PREFIX}{key}")) {
                match Version::parse(text) {
                    Some(version) => limit.version = version,
                    None => faults.push(fault(&key, text, "must be \"latest\" or \"v1.x\"")),
                }
            }
            (limit, good)
        };
        let (enforce, enforced) = read("enforce", Level::Baseline, Level::Restricted);
        let (audit, _) = read("audit", Level::Privileged, Level::Privileged);
        let (mut warn, _) = read("warn", Level::Privileged, Level::Privileged);
        let said = |key: &str| labels.contains_key(&format!("{PREFIX}{key}"));
        if !said("warn") && enforced && enforce.level > warn.level {
            warn.level = enforce.level;
            if !said("warn-version") {
                warn.version = enforce.version;
            }
        }
        (Self { enforce, audit, warn }, faults)
    }
}

fn fault(key: &str, value: &str, why: &str) -> Cause {
    Cause::invalid(format!("metadata.labels[{PREFIX}{key}]"), &json!(value), why)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_read_as_upstream_reads_them() {
        type Labels = &'static [(&'static str, &'static str)];
        let cases: &[(Labels, &str, usize)] = &[
            (&[], "baseline:latest privileged:latest privileged:latest", 0),
            (&[("enforce", "privileged")], "privileged:latest privileged:latest privileged:latest", 0),
            (&[("enforce", "restricted")], "restricted:latest privileged:latest restricted:latest", 0),
            (
                &[
                    ("enforce", "restricted"),
                    ("enforce-version", "v1.20"),
                    ("warn", "baseline"),
                    ("audit", "restricted"),
                ],
                "restricted:v1.20 restricted:latest baseline:latest",
                0,
            ),
            (
                &[("enforce", "baseline"), ("enforce-version", "v1.99")],
                "baseline:v1.99 privileged:latest baseline:v1.99",
                0,
            ),
            // What nobody understands is the strictest for pods, and silent for others.
            (&[("enforce", "none"), ("warn", "x")], "restricted:latest privileged:latest privileged:latest", 2),
            (&[("enforce", "Privileged")], "restricted:latest privileged:latest privileged:latest", 1),
            (
                &[("enforce-version", "1.2"), ("audit-version", "v1.02")],
                "baseline:latest privileged:latest privileged:latest",
                2,
            ),
        ];
        for (labels, expected, faults) in cases {
            let labels = labels.iter().map(|(key, value)| (format!("{PREFIX}{key}"), (*value).to_owned())).collect();
            let (Policy { enforce, audit, warn }, found) = Policy::of(&labels);
            assert_eq!(format!("{enforce} {audit} {warn}"), *expected, "{labels:?}");
            assert_eq!(found.len(), *faults, "{labels:?}: {found:?}");
        }
        assert_eq!(Version::parse("v1.99").map(Version::minor), Some(LATEST));
    }
}
