//! Limits for pods whose namespace counts limits. A quota on them refuses pods that have none, and owners of VMs should not have to
//! know how much their VM's pod needs beside the guest.

use std::collections::BTreeMap;

use ferrovirt_api::names;
use k8s_openapi::{api::core::v1::ResourceQuota, apimachinery::pkg::apis::meta::v1::LabelSelector};

use crate::selector;

/// Memory that a pod may use for each that it asks for.
const MEMORY_RATIO: f64 = 2.0;

/// What pods of one namespace get where their instance says nothing.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct AutoLimits {
    /// As much CPU as the guest has.
    pub cpu: bool,
    /// So many times the memory that is asked for.
    pub memory: Option<f64>,
}

/// From the quotas and the labels of a namespace, and the cluster's word on which namespaces have limits of CPU in any case.
pub fn of<'a>(
    quotas: impl Iterator<Item = &'a ResourceQuota>,
    labels: &BTreeMap<String, String>,
    cpu_in: Option<&LabelSelector>,
) -> AutoLimits {
    let (mut cpu, mut memory) = (cpu_in.is_some_and(|selector| selector::matches(selector, labels)), false);
    for hard in quotas.filter_map(|quota| quota.spec.as_ref()?.hard.as_ref()) {
        cpu |= hard.contains_key("limits.cpu");
        memory |= hard.contains_key("limits.memory");
    }
    AutoLimits { cpu, memory: memory.then(|| ratio(labels)) }
}

fn ratio(labels: &BTreeMap<String, String>) -> f64 {
    let told = labels.get(names::AUTO_MEMORY_LIMITS_RATIO_LABEL).and_then(|text| text.parse::<f64>().ok());
    told.filter(|ratio| ratio.is_finite() && *ratio >= 1.0).unwrap_or(MEMORY_RATIO)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_namespace_that_counts_limits_gets_them() {
        let quota = |hard: &str| -> ResourceQuota {
            serde_json::from_value(json!({ "metadata": {}, "spec": { "hard": { hard: "1" } } })).unwrap()
        };
        let labels = |key: &str, value: &str| BTreeMap::from([(key.to_owned(), value.to_owned())]);
        let selector: LabelSelector = serde_json::from_value(json!({ "matchLabels": { "auto": "true" } })).unwrap();
        let ratio = names::AUTO_MEMORY_LIMITS_RATIO_LABEL;
        for (quotas, labels, cpu, memory) in [
            (vec![], labels("x", "y"), false, None),
            (vec![], labels("auto", "true"), true, None),
            (vec![quota("cpu"), quota("memory")], labels("x", "y"), false, None),
            (vec![quota("limits.cpu")], labels("x", "y"), true, None),
            (vec![quota("limits.memory")], labels("x", "y"), false, Some(2.0)),
            (vec![quota("limits.memory")], labels(ratio, "3.2"), false, Some(3.2)),
            (vec![quota("limits.memory")], labels(ratio, "not_a_float"), false, Some(2.0)),
            (vec![quota("limits.memory")], labels(ratio, "0.5"), false, Some(2.0)),
            (vec![quota("limits.memory")], labels(ratio, "inf"), false, Some(2.0)),
        ] {
            assert_eq!(
                of(quotas.iter(), &labels, Some(&selector)),
                AutoLimits { cpu, memory },
                "{quotas:?} {labels:?}"
            );
        }
        assert_eq!(of([].iter(), &labels("auto", "true"), None), AutoLimits::default());
    }
}
