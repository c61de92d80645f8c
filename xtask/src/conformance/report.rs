//! What a run of the suite says, from Ginkgo's own JSON report.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use anyhow::Result;
use serde::Serialize;

use super::plan::Plan;
use crate::ginkgo;

/// The result, as it is written to a file.
#[derive(Serialize, Default, Debug)]
pub struct Summary {
    pub passed: Vec<String>,
    /// With the first words of what went wrong.
    pub failed: BTreeMap<String, String>,
    /// Skipped by the suite itself.
    pub skipped: BTreeMap<String, String>,
    /// By reason.
    pub left_out: BTreeMap<String, Vec<String>>,
}

impl Summary {
    pub fn new(plan: &Plan) -> Self {
        Self { left_out: plan.left_out.clone(), ..Self::default() }
    }

    /// Adds one report. Tests of `expected` that it does not have count as failed: the suite ended before them.
    pub fn add(&mut self, report: &str, expected: &[String]) -> Result<()> {
        for spec in ginkgo::read(report)? {
            if !spec.is_spec() {
                if !matches!(spec.state.as_str(), "passed" | "skipped") {
                    self.failed.insert(format!("({})", spec.kind), spec.message);
                }
                continue;
            }
            let (name, message) = (spec.name, spec.message);
            if !expected.contains(&name) {
                continue;
            }
            match spec.state.as_str() {
                "passed" => self.passed.push(name),
                "skipped" | "pending" => {
                    self.skipped.insert(name, message);
                }
                state => {
                    self.failed.insert(name, format!("{state}: {message}"));
                }
            }
        }
        let known = |name: &String| {
            self.passed.contains(name) || self.failed.contains_key(name) || self.skipped.contains_key(name)
        };
        let missing: Vec<String> = expected.iter().filter(|name| !known(name)).cloned().collect();
        self.failed.extend(missing.into_iter().map(|name| (name, "the suite ended before it".to_owned())));
        Ok(())
    }

    pub fn text(&self) -> String {
        let mut out = String::new();
        let mut section = |title: &str, lines: Vec<String>| {
            let _ = writeln!(out, "{title} ({})", lines.len());
            lines.iter().for_each(|line| {
                let _ = writeln!(out, "  {line}");
            });
        };
        section("passed", self.passed.clone());
        for (reason, tests) in &self.left_out {
            section(&format!("left out: {reason}"), tests.clone());
        }
        let with_reason = |map: &BTreeMap<String, String>| {
            map.iter().map(|(name, why)| format!("{name}\n      {}", why.replace('\n', "\n      "))).collect()
        };
        section("skipped by the suite", with_reason(&self.skipped));
        section("failed", with_reason(&self.failed));
        let left_out: usize = self.left_out.values().map(Vec::len).sum();
        let _ = writeln!(
            out,
            "{} passed, {} failed, {} skipped by the suite, {left_out} left out",
            self.passed.len(),
            self.failed.len(),
            self.skipped.len()
        );
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_expected_test_has_a_result() {
        let report = r#"[{"SpecReports": [
            {"ContainerHierarchyTexts": null, "LeafNodeText": "", "LeafNodeType": "SynchronizedBeforeSuite", "State": "passed"},
            {"ContainerHierarchyTexts": ["[sig-x] A"], "LeafNodeText": "works", "LeafNodeType": "It", "State": "passed"},
            {"ContainerHierarchyTexts": ["[sig-x] A"], "LeafNodeText": "breaks", "LeafNodeType": "It", "State": "failed", "Failure": {"Message": "why"}},
            {"ContainerHierarchyTexts": ["[sig-x] B"], "LeafNodeText": "is not asked for", "LeafNodeType": "It", "State": "skipped"}
        ]}]"#;
        let expected = ["[sig-x] A works", "[sig-x] A breaks", "[sig-x] A never ran"].map(str::to_owned);
        let mut summary = Summary::default();
        summary.add(report, &expected).expect("reads");
        assert_eq!(summary.passed, ["[sig-x] A works"]);
        assert_eq!(summary.failed.keys().collect::<Vec<_>>(), ["[sig-x] A breaks", "[sig-x] A never ran"]);
        assert!(summary.text().ends_with("1 passed, 2 failed, 0 skipped by the suite, 0 left out\n"));
    }
}
