//! What the hypervisor of a node can give to guests, as libvirt says it, and the labels by which pods find such a node.
//!
//! The launcher's `probe` finds it out, because only its image has the hypervisor; the node's agent writes the labels.

use std::collections::BTreeMap;

use ferrovirt_api::names;
use serde::{Deserialize, Serialize};

/// What fits into the last words of a container.
pub const LAST_WORDS: usize = 4096;
/// The file in which `probe --out` leaves them.
pub const FACTS_FILE: &str = "facts.json";
/// No list of a node's has so many entries.
const MOST: usize = 1000;

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct NodeFacts {
    /// Guests here run without hardware virtualization.
    pub emulated: bool,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub machine_types: Vec<String>,
    /// Models that a guest here can have.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub cpu_models: Vec<String>,
    /// Models that libvirt knows, but this node's CPU is not good enough for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub other_models: Vec<String>,
    /// All that a guest with the host's model sees.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub cpu_features: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host_model: Option<String>,
    /// What the host's model has beyond the named one.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub host_model_features: Vec<String>,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub vendor: String,
    /// Interfaces of Hyper-V, in libvirt's names.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub hyperv: Vec<String>,
    /// Ways to keep a guest's memory from its host: `sev`, `sev-es`, `sev-snp`, `tdx`, `s390-pv`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub protection: Vec<String>,
    /// Ticks of the CPU's clock in a second, and whether guests can have another number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tsc: Option<(u64, bool)>,
}

/// The beginnings of all labels that are made here. One of a node that no longer belongs to its facts is taken away.
const OURS: [&str; 10] = [
    names::CPU_MODEL_LABEL,
    names::SUPPORTED_HOST_MODEL_MIGRATION_CPU,
    names::CPU_FEATURE_LABEL,
    names::HOST_MODEL_CPU_LABEL,
    names::HOST_MODEL_REQUIRED_FEATURES_LABEL,
    names::CPU_MODEL_VENDOR_LABEL,
    names::CPU_TIMER_LABEL,
    names::HYPERV_LABEL,
    names::SUPPORTED_MACHINE_TYPE_LABEL,
    names::NODE_HOST_MODEL_IS_OBSOLETE_LABEL,
];
const PROTECTION: [(&str, &str); 5] = [
    ("sev", names::SEV_LABEL),
    ("sev-es", names::SEV_ES_LABEL),
    ("sev-snp", names::SEV_SNP_LABEL),
    ("tdx", names::TDX_LABEL),
    ("s390-pv", names::SECURE_EXECUTION_LABEL),
];
/// Models that are offered to nobody unless the cluster has a list of its own. Upstream's, which also has each of them with `-v1`.
const OBSOLETE: [&str; 17] = [
    "486",
    "pentium",
    "pentium2",
    "pentium3",
    "pentiumpro",
    "coreduo",
    "n270",
    "core2duo",
    "Conroe",
    "athlon",
    "phenom",
    "qemu64",
    "qemu32",
    "kvm64",
    "kvm32",
    "Opteron_G1",
    "Opteron_G2",
];

impl NodeFacts {
    /// What is taken for granted until the hypervisor was asked, so that the first guest need not wait for that.
    pub fn assumed(arch: &str) -> Self {
        let boards: &[&str] = if arch == "arm64" { &["virt"] } else { &["pc", "q35"] };
        Self { machine_types: boards.iter().map(|board| (*board).to_owned()).collect(), ..Self::default() }
    }

    /// As text of at most `limit` bytes. What only migrations ask for is left out if there is no room; none if that is not enough.
    pub fn to_text(&self, limit: usize) -> Option<String> {
        let short = Self { other_models: vec![], ..self.clone() };
        let texts = [self, &short].into_iter().filter_map(|facts| serde_json::to_string(facts).ok());
        texts.into_iter().find(|text| text.len() <= limit)
    }

    /// The labels of a node. `obsolete` is the cluster's own list, if it has one.
    pub fn labels(&self, obsolete: &BTreeMap<String, bool>) -> BTreeMap<String, String> {
        let is_obsolete = |model: &str| match obsolete.is_empty() {
            true => OBSOLETE.contains(&model.strip_suffix("-v1").unwrap_or(model)),
            false => obsolete.contains_key(model),
        };
        let mut labels = BTreeMap::new();
        let mut add = |prefix: &str, names: &mut dyn Iterator<Item = &str>| {
            for name in names.filter(|name| is_name(name)).take(MOST) {
                labels.insert(format!("{prefix}{name}"), "true".to_owned());
            }
        };
        let all = |list: &[String]| list.to_vec();
        let current = |list: &[String]| list.iter().filter(|model| !is_obsolete(model)).cloned().collect::<Vec<_>>();
        let (usable, others) = (current(&self.cpu_models), current(&self.other_models));
        for (prefix, list) in [
            (names::SUPPORTED_MACHINE_TYPE_LABEL, all(&self.machine_types)),
            (names::CPU_MODEL_LABEL, usable.clone()),
            (names::SUPPORTED_HOST_MODEL_MIGRATION_CPU, usable),
            (names::SUPPORTED_HOST_MODEL_MIGRATION_CPU, others),
            (names::CPU_FEATURE_LABEL, all(&self.cpu_features)),
            (names::HOST_MODEL_REQUIRED_FEATURES_LABEL, all(&self.host_model_features)),
            (names::HYPERV_LABEL, self.hyperv.iter().map(|name| enlightenment(name).to_owned()).collect()),
            (names::HOST_MODEL_CPU_LABEL, self.host_model.iter().cloned().collect()),
            (names::CPU_MODEL_VENDOR_LABEL, vec![self.vendor.clone()]),
        ] {
            add(prefix, &mut list.iter().map(String::as_str));
        }
        // Without hardware virtualization the model is the emulator's and says nothing of the host.
        if !self.emulated && self.host_model.as_deref().is_some_and(is_obsolete) {
            labels.insert(names::NODE_HOST_MODEL_IS_OBSOLETE_LABEL.into(), "true".into());
        }
        if let Some((frequency, scalable)) = self.tsc {
            labels.insert(format!("{}tsc-frequency", names::CPU_TIMER_LABEL), frequency.to_string());
            labels.insert(format!("{}tsc-scalable", names::CPU_TIMER_LABEL), scalable.to_string());
        }
        for (_, label) in PROTECTION.iter().filter(|(name, _)| self.protection.iter().any(|one| one == name)) {
            labels.insert((*label).into(), "true".into());
        }
        labels
    }
}

/// True for a label that only these facts give to a node.
pub fn is_ours(label: &str) -> bool {
    OURS.iter().any(|prefix| label.starts_with(prefix)) || PROTECTION.iter().any(|(_, known)| *known == label)
}

/// Upstream's labels have two of them under other names.
fn enlightenment(name: &str) -> &str {
    match name {
        "stimer" => "synictimer",
        "vendor_id" => "vendorid",
        name => name,
    }
}

/// One name that is none would lose all labels: they are written at once.
fn is_name(name: &str) -> bool {
    let edge = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    let bytes = name.as_bytes();
    let inner = bytes.iter().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'));
    name.len() <= 63 && inner && edge(bytes.first()) && edge(bytes.last())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts() -> NodeFacts {
        serde_json::from_value(serde_json::json!({
            "machineTypes": ["q35", "pc-q35-9.0", "no such name!"],
            "cpuModels": ["Nehalem", "qemu64"], "otherModels": ["EPYC-Rome"], "cpuFeatures": ["sse4.1", "vmx"],
            "hostModel": "Nehalem", "hostModelFeatures": ["invtsc"], "vendor": "Intel",
            "hyperv": ["vpindex", "stimer"], "protection": ["sev", "sev-es"], "tsc": [2_000_000_000, true],
        }))
        .unwrap()
    }

    #[test]
    fn a_node_says_what_it_can_run() {
        let labels = facts().labels(&BTreeMap::new());
        let shown: Vec<String> = labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
        assert_eq!(
            shown,
            [
                "cpu-feature.node.kubevirt.io/sse4.1=true",
                "cpu-feature.node.kubevirt.io/vmx=true",
                "cpu-model-migration.node.kubevirt.io/EPYC-Rome=true",
                "cpu-model-migration.node.kubevirt.io/Nehalem=true",
                "cpu-model.node.kubevirt.io/Nehalem=true",
                "cpu-timer.node.kubevirt.io/tsc-frequency=2000000000",
                "cpu-timer.node.kubevirt.io/tsc-scalable=true",
                "cpu-vendor.node.kubevirt.io/Intel=true",
                "host-model-cpu.node.kubevirt.io/Nehalem=true",
                "host-model-required-features.node.kubevirt.io/invtsc=true",
                "hyperv.node.kubevirt.io/synictimer=true",
                "hyperv.node.kubevirt.io/vpindex=true",
                "kubevirt.io/sev=true",
                "kubevirt.io/sev-es=true",
                "machine-type.node.kubevirt.io/pc-q35-9.0=true",
                "machine-type.node.kubevirt.io/q35=true",
            ]
        );
        assert!(labels.keys().all(|label| is_ours(label)));
        assert!(
            !is_ours(names::NODE_SCHEDULABLE) && !is_ours("kubernetes.io/arch") && !is_ours("kubevirt.io/sev-other")
        );
    }

    #[test]
    fn the_cluster_says_which_models_are_obsolete() {
        let labels = facts().labels(&BTreeMap::from([("Nehalem".to_owned(), true)]));
        assert!(!labels.contains_key("cpu-model.node.kubevirt.io/Nehalem"));
        assert_eq!(labels["cpu-model.node.kubevirt.io/qemu64"], "true");
        assert_eq!(labels[names::NODE_HOST_MODEL_IS_OBSOLETE_LABEL], "true");
        let emulated = NodeFacts { emulated: true, host_model: Some("qemu64-v1".into()), ..facts() };
        let labels = emulated.labels(&BTreeMap::new());
        assert!(!labels.contains_key(names::NODE_HOST_MODEL_IS_OBSOLETE_LABEL));
    }

    #[test]
    fn facts_fit_into_last_words_or_are_not_said() {
        let facts = facts();
        let text = facts.to_text(LAST_WORDS).unwrap();
        assert_eq!(serde_json::from_str::<NodeFacts>(&text).unwrap(), facts);
        let short = facts.to_text(text.len() - 1).unwrap();
        assert!(serde_json::from_str::<NodeFacts>(&short).unwrap().other_models.is_empty());
        assert_eq!(facts.to_text(20), None);
    }
}
