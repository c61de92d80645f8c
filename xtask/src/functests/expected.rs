//! The checked-in list of what every spec of the suite is expected to do, and how a run is compared with it.
//!
//! ```text
//! passed | NAME                    failed: REASON | NAME
//! n/a: REASON | NAME               untried: REASON | NAME
//! ```
//!
//! In place of a name, `file~ PATTERN`, `label~ PATTERN` and `name~ PATTERN` speak of every spec that matches and has no line of its own; the
//! first such line decides. What is `n/a` cannot apply here and what is `untried` nobody has looked at: neither runs.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::Write as _;

use anyhow::{Context, Result, bail, ensure};
use regex::Regex;
use serde::Serialize;

use crate::ginkgo::Spec;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    Passed,
    Failed(String),
    NotApplicable(String),
    Untried(String),
}

impl Verdict {
    fn parse(text: &str) -> Option<Self> {
        let (word, reason) = text.split_once(':').map_or((text, ""), |(word, reason)| (word, reason.trim()));
        match (word.trim(), reason.is_empty()) {
            ("passed", true) => Some(Self::Passed),
            ("failed", false) => Some(Self::Failed(reason.to_owned())),
            ("n/a", false) => Some(Self::NotApplicable(reason.to_owned())),
            ("untried", false) => Some(Self::Untried(reason.to_owned())),
            _ => None,
        }
    }

    pub fn runs(&self) -> bool {
        matches!(self, Self::Passed | Self::Failed(_))
    }
}

#[derive(Debug)]
enum Rule {
    File(Regex),
    Label(Regex),
    Name(Regex),
}

impl Rule {
    fn parse(text: &str) -> Option<Result<Self, regex::Error>> {
        let (word, pattern) = text.split_once("~ ")?;
        let pattern = Regex::new(pattern.trim());
        match word {
            "file" => Some(pattern.map(Self::File)),
            "label" => Some(pattern.map(Self::Label)),
            "name" => Some(pattern.map(Self::Name)),
            _ => None,
        }
    }

    fn matches(&self, spec: &Spec) -> bool {
        match self {
            Self::File(pattern) => pattern.is_match(&spec.file),
            Self::Label(pattern) => spec.labels.iter().any(|label| pattern.is_match(label)),
            Self::Name(pattern) => pattern.is_match(&spec.name),
        }
    }
}

/// The list.
#[derive(Debug, Default)]
pub struct Expected {
    specs: HashMap<String, Verdict>,
    rules: Vec<(Rule, Verdict)>,
}

impl Expected {
    pub fn parse(text: &str) -> Result<Self> {
        let mut expected = Self::default();
        for (index, line) in text.lines().enumerate() {
            let at = || format!("line {}: {line}", index + 1);
            if line.trim().is_empty() || line.starts_with('#') {
                continue;
            }
            let (verdict, rest) = line.split_once(" | ").with_context(at)?;
            let Some(verdict) = Verdict::parse(verdict) else {
                bail!("not understood at {}", at());
            };
            match Rule::parse(rest) {
                Some(rule) => {
                    ensure!(!verdict.runs(), "what runs has a line for each spec at {}", at());
                    expected.rules.push((rule.with_context(at)?, verdict));
                }
                None => {
                    let before = expected.specs.insert(rest.to_owned(), verdict);
                    ensure!(before.is_none(), "a second line for a spec at {}", at());
                }
            }
        }
        Ok(expected)
    }

    fn of(&self, spec: &Spec) -> Option<&Verdict> {
        self.specs.get(&spec.name).or_else(|| {
            let rule = self.rules.iter().find(|(rule, _)| rule.matches(spec));
            rule.map(|(_, verdict)| verdict)
        })
    }

    /// What every spec of the suite is expected to do. The suite has some names twice; such specs share a line and run together.
    pub fn plan(&self, suite: &[Spec]) -> Plan {
        let mut plan = Plan::default();
        for spec in suite {
            match self.of(spec) {
                Some(verdict) => {
                    plan.specs.insert(spec.name.clone(), (spec.clone(), verdict.clone()));
                }
                None => {
                    plan.unlisted.insert(spec.name.clone());
                }
            }
        }
        let known: BTreeSet<&str> = suite.iter().map(|spec| spec.name.as_str()).collect();
        plan.gone = self.specs.keys().filter(|name| !known.contains(name.as_str())).cloned().collect();
        plan
    }
}

/// The list, applied to the specs that the suite has.
#[derive(Debug, Default)]
pub struct Plan {
    pub specs: BTreeMap<String, (Spec, Verdict)>,
    /// Specs that no line speaks of.
    pub unlisted: BTreeSet<String>,
    /// Lines of specs that the suite does not have.
    pub gone: BTreeSet<String>,
}

/// What became of a spec that ran.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Outcome {
    pub state: State,
    pub message: String,
    pub seconds: u64,
    /// It failed before it passed.
    pub second_try: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    Passed,
    Failed,
    Skipped,
}

/// A run beside what was expected of it.
#[derive(Debug, Default, Serialize)]
pub struct Comparison {
    pub passed: Vec<String>,
    pub second_try: Vec<String>,
    /// Failed as expected: spec and the list's reason.
    pub failed: BTreeMap<String, String>,
    pub not_applicable: BTreeMap<String, Vec<String>>,
    pub untried: BTreeMap<String, Vec<String>>,
    /// What became of those that ran all the same.
    pub tried: BTreeMap<String, Outcome>,
    /// What is wrong, each with what was seen.
    pub wrong: BTreeMap<String, String>,
}

impl Comparison {
    /// Compares with the outcomes of those specs that were asked to run.
    pub fn new(plan: &Plan, asked: impl Fn(&str) -> bool, outcomes: &BTreeMap<String, Outcome>) -> Self {
        let mut out = Self::default();
        for name in &plan.unlisted {
            out.wrong.insert(name.clone(), "the list has no line for this spec".to_owned());
        }
        for name in &plan.gone {
            out.wrong
                .insert(name.clone(), "the suite has no such spec any more; take its line out of the list".to_owned());
        }
        for (name, (_, verdict)) in &plan.specs {
            let outcome = match verdict {
                Verdict::NotApplicable(reason) => {
                    out.not_applicable.entry(reason.clone()).or_default().push(name.clone());
                    continue;
                }
                Verdict::Untried(reason) => {
                    if let Some(outcome) = outcomes.get(name) {
                        out.tried.insert(name.clone(), outcome.clone());
                    }
                    out.untried.entry(reason.clone()).or_default().push(name.clone());
                    continue;
                }
                _ if !asked(name) => continue,
                Verdict::Passed | Verdict::Failed(_) => outcomes.get(name),
            };
            let wrong = match (verdict, outcome) {
                (_, None) => "the suite ended before it".to_owned(),
                (_, Some(o)) if o.state == State::Skipped => format!("the suite skipped it: {}", o.message),
                (Verdict::Failed(reason), Some(o)) if o.state == State::Failed => {
                    out.failed.insert(name.clone(), reason.clone());
                    continue;
                }
                (Verdict::Failed(reason), Some(_)) => format!("passed; the list expects a failure: {reason}"),
                (_, Some(o)) if o.state == State::Failed => format!("failed: {}", o.message),
                (_, Some(o)) => {
                    if o.second_try {
                        out.second_try.push(name.clone());
                    }
                    out.passed.push(name.clone());
                    continue;
                }
            };
            out.wrong.insert(name.clone(), wrong);
        }
        out
    }

    pub fn text(&self) -> String {
        let mut out = String::new();
        for (reason, names) in &self.not_applicable {
            let _ = writeln!(out, "not applicable ({}): {reason}", names.len());
        }
        for (reason, names) in &self.untried {
            let _ = writeln!(out, "untried ({}): {reason}", names.len());
        }
        for (name, outcome) in &self.tried {
            let _ = writeln!(
                out,
                "tried, {:?}: {name}\n      {}",
                outcome.state,
                outcome.message.replace('\n', "\n      ")
            );
        }
        for (name, reason) in &self.failed {
            let _ = writeln!(out, "known failure: {name}\n      {reason}");
        }
        for name in &self.second_try {
            let _ = writeln!(out, "passed at the second try: {name}");
        }
        for (name, wrong) in &self.wrong {
            let _ = writeln!(out, "WRONG: {name}\n      {}", wrong.replace('\n', "\n      "));
        }
        let count = |map: &BTreeMap<String, Vec<String>>| map.values().map(Vec::len).sum::<usize>();
        let _ = writeln!(
            out,
            "{} passed, {} failed as expected, {} not applicable, {} untried, {} not as the list says",
            self.passed.len(),
            self.failed.len(),
            count(&self.not_applicable),
            count(&self.untried),
            self.wrong.len()
        );
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(name: &str, file: &str, label: &str) -> Spec {
        Spec { name: name.into(), file: file.into(), labels: vec![label.into()], kind: "It".into(), ..Spec::default() }
    }

    fn outcome(state: State) -> Outcome {
        Outcome { state, message: "why".into(), seconds: 1, second_try: false }
    }

    const LIST: &str = "# about\npassed | starts\nfailed: no such feature | migrates\nn/a: one node | moves\n\
                        n/a: needs cards | label~ ^SRIOV$\nuntried: slow | file~ storage/\nn/a: never reached | name~ ^disk\n";

    fn suite() -> Vec<Spec> {
        vec![
            spec("starts", "storage/a.go", ""),
            spec("migrates", "b.go", "SRIOV"),
            spec("moves", "b.go", ""),
            spec("card", "b.go", "SRIOV"),
            spec("disk", "tests/storage/c.go", ""),
        ]
    }

    fn compare(list: &str, suite: &[Spec], outcomes: &[(&str, State)]) -> Comparison {
        let plan = Expected::parse(list).expect("parses").plan(suite);
        let outcomes = outcomes.iter().map(|(name, state)| ((*name).to_owned(), outcome(*state))).collect();
        Comparison::new(&plan, |_| true, &outcomes)
    }

    #[test]
    fn a_run_as_the_list_says_has_nothing_wrong() {
        let out = compare(LIST, &suite(), &[("starts", State::Passed), ("migrates", State::Failed)]);
        assert_eq!(out.wrong, BTreeMap::new());
        assert_eq!(out.passed, ["starts"]);
        assert_eq!(out.failed["migrates"], "no such feature");
        // A line for a spec goes before rules, and the first rule that matches decides.
        assert_eq!(out.not_applicable["one node"], ["moves"]);
        assert_eq!(out.not_applicable["needs cards"], ["card"]);
        assert_eq!(out.untried["slow"], ["disk"]);
        let tried =
            compare(LIST, &suite(), &[("starts", State::Passed), ("migrates", State::Failed), ("disk", State::Failed)]);
        assert_eq!((tried.wrong.len(), tried.tried["disk"].state), (0, State::Failed));
        assert!(
            out.text()
                .ends_with("1 passed, 1 failed as expected, 2 not applicable, 1 untried, 0 not as the list says\n")
        );
    }

    #[test]
    fn every_difference_is_wrong() {
        let wrong = |outcomes: &[(&str, State)]| compare(LIST, &suite(), outcomes).wrong;
        let failed = wrong(&[("starts", State::Failed), ("migrates", State::Failed)]);
        assert_eq!(failed.into_iter().collect::<Vec<_>>(), [("starts".to_owned(), "failed: why".to_owned())]);
        let unexpected = wrong(&[("starts", State::Passed), ("migrates", State::Passed)]);
        assert_eq!(unexpected["migrates"], "passed; the list expects a failure: no such feature");
        let skipped = wrong(&[("starts", State::Skipped), ("migrates", State::Skipped)]);
        assert_eq!(skipped.len(), 2);
        let cut = wrong(&[("starts", State::Passed)]);
        assert_eq!(cut["migrates"], "the suite ended before it");

        let mut more = suite();
        more.push(spec("is new", "d.go", ""));
        let out = compare(LIST, &more, &[("starts", State::Passed), ("migrates", State::Failed)]);
        assert_eq!(out.wrong.keys().collect::<Vec<_>>(), ["is new"]);
        let out = compare(LIST, &suite()[1..], &[("migrates", State::Failed)]);
        assert_eq!(out.wrong.keys().collect::<Vec<_>>(), ["starts"]);
    }

    #[test]
    fn only_what_was_asked_for_is_compared() {
        let plan = Expected::parse(LIST).expect("parses").plan(&suite());
        let out = Comparison::new(
            &plan,
            |name| name == "migrates",
            &BTreeMap::from([("migrates".into(), outcome(State::Failed))]),
        );
        assert_eq!((out.wrong.len(), out.passed.len(), out.failed.len()), (0, 0, 1));
    }

    #[test]
    fn bad_lines_are_refused() {
        for bad in [
            "passed",
            "passed: why | x",
            "failed | x",
            "failed: | x",
            "n/a | x",
            "passed | file~ x",
            "n/a: why | file~ (",
            "passed | x\npassed | x",
        ] {
            assert!(Expected::parse(bad).is_err(), "{bad}");
        }
    }
}
