//! What Ginkgo says of a suite and its specs, from its own JSON report.

use anyhow::{Context, Result};
use serde::Deserialize;

/// One spec, or a step around them such as `BeforeSuite`.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Spec {
    /// The texts of its containers and its own.
    pub name: String,
    /// The file of the spec itself.
    pub file: String,
    /// Those of its containers, too.
    pub labels: Vec<String>,
    /// `It` for a spec.
    pub kind: String,
    /// `passed`, `failed`, `skipped`, …
    pub state: String,
    /// What went wrong, cut to a length that people read.
    pub message: String,
    pub seconds: u64,
}

impl Spec {
    pub fn is_spec(&self) -> bool {
        self.kind == "It"
    }
}

const MESSAGE: usize = 2000;

/// All specs of a report, in its order.
pub fn read(report: &str) -> Result<Vec<Spec>> {
    let suites: Vec<Suite> = serde_json::from_str(report).context("reading Ginkgo's report")?;
    Ok(suites.into_iter().flat_map(|s| s.spec_reports.unwrap_or_default()).map(Spec::from).collect())
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Suite {
    spec_reports: Option<Vec<Raw>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Raw {
    container_hierarchy_texts: Option<Vec<String>>,
    container_hierarchy_labels: Option<Vec<Option<Vec<String>>>>,
    leaf_node_text: String,
    leaf_node_type: String,
    leaf_node_labels: Option<Vec<String>>,
    leaf_node_location: Option<Location>,
    state: String,
    failure: Option<Failure>,
    /// In nanoseconds.
    run_time: Option<u64>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Location {
    file_name: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Failure {
    message: Option<String>,
}

impl From<Raw> for Spec {
    fn from(raw: Raw) -> Self {
        let mut words = raw.container_hierarchy_texts.unwrap_or_default();
        words.push(raw.leaf_node_text);
        let containers = raw.container_hierarchy_labels.unwrap_or_default().into_iter().flatten().flatten();
        let message = raw.failure.and_then(|f| f.message).unwrap_or_default();
        Self {
            name: words.join(" "),
            file: raw.leaf_node_location.and_then(|l| l.file_name).unwrap_or_default(),
            labels: containers.chain(raw.leaf_node_labels.unwrap_or_default()).collect(),
            kind: raw.leaf_node_type,
            state: raw.state,
            message: message.chars().take(MESSAGE).collect(),
            seconds: raw.run_time.unwrap_or_default() / 1_000_000_000,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_labels_and_files_are_read() {
        let report = r#"[{"SpecReports": [
            {"ContainerHierarchyTexts": ["A", "b"], "ContainerHierarchyLabels": [["x"], null], "LeafNodeText": "works",
             "LeafNodeType": "It", "LeafNodeLabels": ["y"], "LeafNodeLocation": {"FileName": "m/tests/a.go", "LineNumber": 3},
             "State": "failed", "Failure": {"Message": "why"}, "RunTime": 3500000000}
        ]}, {"SpecReports": null}]"#;
        let wanted = Spec {
            name: "A b works".into(),
            file: "m/tests/a.go".into(),
            labels: vec!["x".into(), "y".into()],
            kind: "It".into(),
            state: "failed".into(),
            message: "why".into(),
            seconds: 3,
        };
        assert_eq!(read(report).expect("reads"), [wanted]);
    }
}
