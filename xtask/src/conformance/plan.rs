//! Which tests run, and why the others do not.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail, ensure};
use regex::Regex;

/// The lines of the list, in order.
pub struct Rules {
    reasons: BTreeMap<String, String>,
    lines: Vec<(Regex, Verdict)>,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Verdict {
    Run,
    /// The key of a reason.
    Out(String),
}

/// Every test has one place.
#[derive(Debug, Default, PartialEq)]
pub struct Plan {
    /// Can share a server with each other.
    pub parallel: Vec<String>,
    /// Want to be alone.
    pub serial: Vec<String>,
    /// By reason.
    pub left_out: BTreeMap<String, Vec<String>>,
}

impl Rules {
    pub fn parse(text: &str) -> Result<Self> {
        let mut rules = Self { reasons: BTreeMap::new(), lines: Vec::new() };
        for (index, line) in text.lines().enumerate() {
            let at = || format!("line {}: {line}", index + 1);
            let (word, rest) = line.trim().split_once(' ').unwrap_or((line.trim(), ""));
            let rest = rest.trim();
            let (pattern, verdict) = match word {
                "" => continue,
                _ if word.starts_with('#') => continue,
                "reason" => {
                    let (key, reason) = rest.split_once(' ').with_context(at)?;
                    rules.reasons.insert(key.to_owned(), reason.trim().to_owned());
                    continue;
                }
                "run" => (rest, Verdict::Run),
                "out" => {
                    let (key, pattern) = rest.split_once(' ').with_context(at)?;
                    ensure!(rules.reasons.contains_key(key), "no such reason at {}", at());
                    (pattern.trim(), Verdict::Out(key.to_owned()))
                }
                _ => bail!("not understood at {}", at()),
            };
            rules.lines.push((Regex::new(pattern).with_context(at)?, verdict));
        }
        Ok(rules)
    }

    pub fn plan(&self, tests: &[String]) -> Plan {
        let mut plan = Plan::default();
        for test in tests {
            let verdict = self.lines.iter().find(|(pattern, _)| pattern.is_match(test)).map(|(_, v)| v);
            match verdict {
                Some(Verdict::Out(key)) => {
                    plan.left_out.entry(self.reasons[key].clone()).or_default().push(test.clone());
                }
                _ if test.contains("[Serial]") => plan.serial.push(test.clone()),
                _ => plan.parallel.push(test.clone()),
            }
        }
        plan
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_line_that_matches_decides() {
        let rules =
            Rules::parse("# about\nreason image  runs an image\n\nrun ^a good\nout image ^a\n").expect("parses");
        let tests = ["a good one", "a bad one", "b", "b [Serial]"].map(str::to_owned);
        let plan = rules.plan(&tests);
        assert_eq!(plan.parallel, ["a good one", "b"]);
        assert_eq!(plan.serial, ["b [Serial]"]);
        assert_eq!(plan.left_out, BTreeMap::from([("runs an image".to_owned(), vec!["a bad one".to_owned()])]));
        for bad in ["out nope x", "go x", "run (", "reason image"] {
            assert!(Rules::parse(bad).is_err(), "{bad}");
        }
    }
}
