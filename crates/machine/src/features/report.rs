//! The feature table as data and as text: for `ferrovirt hypervisors` and for the documentation.

use std::fmt::Write;

use ferrovirt_api::names;
use serde::Serialize;

use super::{FEATURES, Gap};
use crate::{
    hypervisor::{Hypervisor, KNOWN, Known},
    overhead::MIB,
    spec::Acceleration,
};

/// One hypervisor of the list.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Row {
    pub name: &'static str,
    pub implemented: bool,
    /// Why there is no driver for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub missing: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub traits: Option<Traits>,
    pub features: Vec<Support>,
}

/// What a driver says of itself.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Traits {
    /// Device resource that its pods ask for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<&'static str>,
    /// Runs without its device, more slowly.
    pub emulates: bool,
    /// Reads ISO images; otherwise generated volumes are raw disks.
    pub iso: bool,
    pub balloon: bool,
    pub privileged: bool,
    /// What its processes need beside the guest's memory.
    pub overhead_mib: u64,
}

#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Support {
    pub feature: &'static str,
    pub supported: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<&'static str>,
}

/// What is accepted, so that manifests from elsewhere work, and does nothing yet, whatever the hypervisor can do.
const NOT_YET: &[Gap] = &[Gap {
    feature: "liveMigration",
    reason: "machines do not move to other nodes yet; `evictionStrategy: LiveMigrate` is accepted all the same",
}];

/// The label of nodes that can run the hypervisor.
pub fn node_label(hypervisor: &str) -> String {
    format!("{}{hypervisor}", names::HYPERVISOR_LABEL)
}

/// All hypervisors of the list with all features.
pub fn rows() -> Vec<Row> {
    KNOWN.iter().map(row).collect()
}

fn row(known: &Known) -> Row {
    let gaps = known.driver.map(|driver| driver.gaps());
    let feature = |key: &'static str| {
        let reason = match gaps {
            Ok(gaps) => gaps.iter().chain(NOT_YET).find(|gap: &&Gap| gap.feature == key).map(|gap| gap.reason),
            Err(missing) => Some(missing),
        };
        Support { feature: key, supported: reason.is_none(), reason }
    };
    Row {
        name: known.name,
        implemented: known.driver.is_ok(),
        missing: known.driver.err(),
        traits: known.driver.ok().map(traits),
        features: FEATURES.iter().map(|entry| feature(entry.key)).collect(),
    }
}

fn traits(driver: &'static dyn Hypervisor) -> Traits {
    Traits {
        device: driver.device(),
        emulates: driver.can_emulate(),
        iso: driver.supports_iso(),
        balloon: driver.supports_memory_ballooning(),
        privileged: driver.runs_privileged(),
        overhead_mib: driver.overheads(Acceleration::Hardware).total() / MIB,
    }
}

/// The table as Markdown.
pub fn markdown() -> String {
    let rows = rows();
    let mut out = String::new();
    let mut line = |text: String| {
        // Writing to a string does not fail.
        let _ = writeln!(out, "{text}");
    };
    line("| hypervisor | driver | device | without it | ISO | balloon | privileged | overhead |".into());
    line("|---|---|---|---|---|---|---|---|".into());
    for row in &rows {
        line(match (&row.traits, row.missing) {
            (Some(traits), _) => format!(
                "| `{}` | yes | {} | {} | {} | {} | {} | {} MiB |",
                row.name,
                traits.device.map_or_else(|| "none".into(), |device| format!("`{device}`")),
                if traits.emulates { "emulates" } else { "–" },
                yes(traits.iso),
                yes(traits.balloon),
                yes(traits.privileged),
                traits.overhead_mib,
            ),
            (None, missing) => format!("| `{}` | no: {} | | | | | | |", row.name, missing.unwrap_or_default()),
        });
    }
    let drivers: Vec<&Row> = rows.iter().filter(|row| row.implemented).collect();
    let names: Vec<String> = drivers.iter().map(|row| format!("`{}`", row.name)).collect();
    line(String::new());
    line(format!("| feature | {} |", names.join(" | ")));
    line(format!("|---|{}", "---|".repeat(drivers.len())));
    for (index, feature) in FEATURES.iter().enumerate() {
        let cells: Vec<&str> = drivers
            .iter()
            .filter_map(|row| row.features.get(index))
            .map(|support| support.reason.unwrap_or("yes"))
            .collect();
        line(format!("| `{}` | {} |", feature.key, cells.join(" | ")));
    }
    out
}

fn yes(value: bool) -> &'static str {
    if value { "yes" } else { "no" }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_hypervisor_has_a_row_and_every_gap_a_reason() {
        let keys: BTreeSet<&str> = FEATURES.iter().map(|feature| feature.key).collect();
        assert_eq!(keys.len(), FEATURES.len(), "keys are unique");
        for row in rows() {
            assert_eq!(row.features.len(), FEATURES.len(), "{}", row.name);
            assert_eq!(row.implemented, row.traits.is_some(), "{}", row.name);
            assert!(row.features.iter().all(|f| f.supported == f.reason.is_none()), "{}", row.name);
            assert!(row.features.iter().all(|f| f.reason.is_none_or(|reason| reason.len() > 10)), "{}", row.name);
        }
        for driver in crate::hypervisor::drivers() {
            for gap in driver.gaps().iter().chain(NOT_YET) {
                assert!(keys.contains(gap.feature), "{}: nothing asks for {}", driver.name(), gap.feature);
            }
        }
    }
}
