//! Which nodes may run an instance, by what nodes say of themselves in labels: architecture, processor, board, what their
//! kernel offers to guests.

use std::collections::BTreeMap;

use ferrovirt_api::{
    names,
    v1::{CPUFeature, FeatureHyperv, VirtualMachineInstance},
};
use ferrovirt_machine::hypervisor::DEFAULT;
use k8s_openapi::api::core::v1::{Affinity, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm};

use super::{Config, hypervisor};

const ARCHITECTURE: &str = "kubernetes.io/arch";
const TSC_FREQUENCY: &str = "scheduling.node.kubevirt.io/tsc-frequency";
/// Models that are whatever the node has.
const NODES_OWN: [&str; 2] = ["host-model", "host-passthrough"];

/// The labels that a node must have. What the cluster says holds for every owner of a VM, so it goes over what an instance says.
pub(super) fn selector(vmi: &VirtualMachineInstance, config: &Config) -> BTreeMap<String, String> {
    let mut selector = vmi.spec.node_selector.clone();
    selector.extend(config.node_selectors.clone());
    if !vmi.spec.architecture.is_empty() {
        selector.insert(ARCHITECTURE.into(), vmi.spec.architecture.to_lowercase());
    }
    let labels = [names::NODE_SCHEDULABLE.to_owned(), format!("{}{}", names::HYPERVISOR_LABEL, hypervisor(vmi))];
    let labels = labels.into_iter().chain(needed(vmi, config));
    selector.extend(labels.map(|label| (label, "true".to_owned())));
    selector
}

fn needed(vmi: &VirtualMachineInstance, config: &Config) -> Vec<String> {
    let domain = &vmi.spec.domain;
    let mut labels = vec![];
    if crate::resources::pins_cpus(vmi) {
        labels.push(names::CPU_MANAGER.into());
    }
    if domain.cpu.as_ref().is_some_and(|cpu| cpu.realtime.is_some()) {
        labels.push(names::REALTIME_LABEL.into());
    }
    labels.extend(protection(vmi).into_iter().map(str::to_owned));
    // Other drivers choose board and processor themselves, and nodes say nothing of theirs.
    if hypervisor(vmi) != DEFAULT {
        return labels;
    }
    if let Some(cpu) = domain.cpu.as_ref().filter(|cpu| !cpu.model.is_empty()) {
        if !NODES_OWN.contains(&cpu.model.as_str()) {
            labels.push(format!("{}{}", names::CPU_MODEL_LABEL, cpu.model));
        }
        let required = cpu.features.iter().filter(|feature| matches!(feature.policy.as_str(), "" | "require"));
        labels.extend(required.map(|feature| format!("{}{}", names::CPU_FEATURE_LABEL, feature.name)));
    }
    // What it runs on since its first start; a type that stands for the newest may be another by now.
    let machine =
        [&vmi.status.machine, &domain.machine].into_iter().flatten().find(|machine| !machine.type_.is_empty());
    labels.extend(machine.map(|machine| format!("{}{}", names::SUPPORTED_MACHINE_TYPE_LABEL, machine.type_)));
    let hyperv = domain.features.as_ref().and_then(|features| features.hyperv.as_ref());
    if let Some(hyperv) = hyperv.filter(|_| config.hyperv_strict) {
        labels.extend(enlightenments(hyperv));
    }
    let frequency = vmi.status.topology_hints.as_ref().and_then(|hints| hints.tsc_frequency);
    if let Some(frequency) = frequency.filter(|frequency| *frequency > 0 && needs_frequency(vmi)) {
        labels.push(format!("{TSC_FREQUENCY}-{frequency}"));
    }
    labels
}

/// What the processor must do to keep a guest's memory from its host.
fn protection(vmi: &VirtualMachineInstance) -> Vec<&'static str> {
    let Some(security) = &vmi.spec.domain.launch_security else { return vec![] };
    let encrypted = security.sev.as_ref().and_then(|sev| sev.policy.as_ref()).and_then(|policy| policy.encrypted_state);
    let wanted = [
        (names::SEV_LABEL, security.sev.is_some() || security.snp.is_some()),
        (names::SEV_ES_LABEL, encrypted == Some(true)),
        (names::SEV_SNP_LABEL, security.snp.is_some()),
        (names::TDX_LABEL, security.tdx.is_some()),
        (names::SECURE_EXECUTION_LABEL, vmi.spec.architecture == "s390x"),
    ];
    wanted.into_iter().filter(|(_, wanted)| *wanted).map(|(label, _)| label).collect()
}

/// Of Hyper-V's interfaces those that a node's kernel must have; QEMU has the others by itself.
fn enlightenments(hyperv: &FeatureHyperv) -> Vec<String> {
    let on = |state: &Option<ferrovirt_api::v1::FeatureState>| state.as_ref().and_then(|state| state.enabled);
    let table = [
        ("vpindex", on(&hyperv.vpindex)),
        ("runtime", on(&hyperv.runtime)),
        ("reset", on(&hyperv.reset)),
        ("synic", on(&hyperv.synic)),
        ("synictimer", hyperv.synictimer.as_ref().and_then(|timer| timer.enabled)),
        ("frequencies", on(&hyperv.frequencies)),
        ("reenlightenment", on(&hyperv.reenlightenment)),
        ("tlbflush", hyperv.tlbflush.as_ref().and_then(|flush| flush.enabled)),
        ("ipi", on(&hyperv.ipi)),
    ];
    let wanted = table.into_iter().filter(|(_, enabled)| *enabled == Some(true));
    let mut labels: Vec<String> = wanted.map(|(name, _)| format!("{}{name}", names::HYPERV_LABEL)).collect();
    // Only Intel's processors have what this one speeds up.
    if hyperv.evmcs.as_ref().is_some_and(|state| state.enabled != Some(false)) {
        labels.push(format!("{}Intel", names::CPU_MODEL_VENDOR_LABEL));
    }
    labels
}

/// A guest that was promised a steady clock, or that has to be told when it changes.
fn needs_frequency(vmi: &VirtualMachineInstance) -> bool {
    let domain = &vmi.spec.domain;
    let steady =
        |feature: &CPUFeature| feature.name == "invtsc" && matches!(feature.policy.as_str(), "require" | "force");
    let hyperv = domain.features.as_ref().and_then(|features| features.hyperv.as_ref());
    domain.cpu.as_ref().is_some_and(|cpu| cpu.features.iter().any(steady))
        || hyperv.and_then(|hyperv| hyperv.reenlightenment.as_ref()?.enabled) == Some(true)
}

/// The instance's own affinity, and what a node must not have: a processor that the cluster calls obsolete, for a guest that
/// takes what the node has; a feature that the guest must not see.
pub(super) fn affinity(vmi: &VirtualMachineInstance) -> Option<Affinity> {
    let mut affinity = vmi.spec.affinity.clone();
    let cpu = vmi.spec.domain.cpu.as_ref();
    if cpu.is_none_or(|cpu| matches!(cpu.model.as_str(), "" | "host-model")) {
        without(&mut affinity, names::NODE_HOST_MODEL_IS_OBSOLETE_LABEL.into());
    }
    let features = cpu.into_iter().flat_map(|cpu| &cpu.features);
    for feature in features.filter(|feature| feature.policy == "forbid") {
        without(&mut affinity, format!("{}{}", names::CPU_FEATURE_LABEL, feature.name));
    }
    affinity
}

/// One term is enough for a node to fit, so none of them may be without the requirement.
fn without(affinity: &mut Option<Affinity>, label: String) {
    let requirement = NodeSelectorRequirement { key: label, operator: "DoesNotExist".into(), values: None };
    let node_affinity = affinity.get_or_insert_default().node_affinity.get_or_insert_default();
    let required = &mut node_affinity.required_during_scheduling_ignored_during_execution;
    match required {
        Some(required) => {
            for term in &mut required.node_selector_terms {
                term.match_expressions.get_or_insert_default().push(requirement.clone());
            }
        }
        None => {
            let term = NodeSelectorTerm { match_expressions: Some(vec![requirement]), match_fields: None };
            *required = Some(NodeSelector { node_selector_terms: vec![term] });
        }
    }
}

/// What of a pod's selector no node has, each in words. `nodes` are the labels of every node.
pub fn unmet<'a>(
    selector: &BTreeMap<String, String>,
    nodes: impl Iterator<Item = &'a BTreeMap<String, String>> + Clone,
) -> Vec<String> {
    // Why a hypervisor runs nowhere is said elsewhere, with what the nodes say of it.
    let asked = selector.iter().filter(|(key, _)| !key.starts_with(names::HYPERVISOR_LABEL));
    let unmet = asked.filter(|(key, value)| !nodes.clone().any(|labels| labels.get(*key) == Some(*value)));
    let words = [
        (names::CPU_MODEL_LABEL, "CPU model"),
        (names::CPU_FEATURE_LABEL, "CPU feature"),
        (names::SUPPORTED_MACHINE_TYPE_LABEL, "machine type"),
        (names::HYPERV_LABEL, "Hyper-V feature"),
    ];
    let text = unmet.map(|(key, value)| {
        if key == ARCHITECTURE {
            let mut there: Vec<&str> = nodes.clone().filter_map(|labels| labels.get(key)).map(String::as_str).collect();
            there.sort_unstable();
            there.dedup();
            return format!("no node has the architecture {value} (they have {})", there.join(", "));
        }
        let known = words.iter().find_map(|(prefix, what)| Some((what, key.strip_prefix(prefix)?)));
        match known {
            Some((what, name)) => format!("no node has the {what} {name}"),
            None => format!("no node has the label {key}={value}"),
        }
    });
    text.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn vmi(spec: Value) -> VirtualMachineInstance {
        serde_json::from_value(json!({ "metadata": { "name": "a" }, "spec": spec })).unwrap()
    }

    /// The labels beyond those that every pod asks for.
    fn selected(vmi: &VirtualMachineInstance, config: &Config) -> Vec<String> {
        let all = selector(vmi, config);
        assert_eq!(all[names::NODE_SCHEDULABLE], "true");
        let own = format!("{}{}", names::HYPERVISOR_LABEL, hypervisor(vmi));
        assert_eq!(all[&own], "true");
        let more = all.into_iter().filter(|(key, _)| key != names::NODE_SCHEDULABLE && *key != own);
        more.map(|(key, value)| if value == "true" { key } else { format!("{key}={value}") }).collect()
    }

    #[test]
    fn a_node_must_be_able_to_run_what_is_asked_for() {
        let feature = |name: &str, policy: &str| json!({ "name": name, "policy": policy });
        let on = json!({ "enabled": true });
        let cases = [
            (json!({ "domain": {} }), vec![]),
            (json!({ "domain": {}, "architecture": "ARM64" }), vec!["kubernetes.io/arch=arm64"]),
            (
                json!({ "domain": { "cpu": { "model": "Conroe", "features": [
                    feature("lahf_lm", "require"), feature("mmx", "disable"), feature("ssse3", "forbid"), feature("x", "") ] } } }),
                vec![
                    "cpu-feature.node.kubevirt.io/lahf_lm",
                    "cpu-feature.node.kubevirt.io/x",
                    "cpu-model.node.kubevirt.io/Conroe",
                ],
            ),
            (json!({ "domain": { "cpu": { "model": "host-model" } } }), vec![]),
            (
                json!({ "domain": { "cpu": { "model": "host-passthrough", "features": [feature("vmx", "require")] } } }),
                vec!["cpu-feature.node.kubevirt.io/vmx"],
            ),
            (json!({ "domain": { "machine": { "type": "q35" } } }), vec!["machine-type.node.kubevirt.io/q35"]),
            (
                json!({ "domain": { "cpu": { "dedicatedCpuPlacement": true, "realtime": {} } } }),
                vec!["kubevirt.io/cpumanager", "kubevirt.io/realtime"],
            ),
            (json!({ "domain": { "launchSecurity": { "sev": {} } } }), vec!["kubevirt.io/sev"]),
            (
                json!({ "domain": { "launchSecurity": { "sev": { "policy": { "encryptedState": true } } } } }),
                vec!["kubevirt.io/sev", "kubevirt.io/sev-es"],
            ),
            (
                json!({ "domain": { "launchSecurity": { "sev": { "policy": { "encryptedState": false } } } } }),
                vec!["kubevirt.io/sev"],
            ),
            (json!({ "domain": { "launchSecurity": { "snp": {} } } }), vec!["kubevirt.io/sev", "kubevirt.io/sev-snp"]),
            (json!({ "domain": { "launchSecurity": { "tdx": {} } } }), vec!["kubevirt.io/tdx"]),
            (
                json!({ "architecture": "s390x", "domain": { "launchSecurity": {} } }),
                vec!["kubernetes.io/arch=s390x", "kubevirt.io/s390-pv"],
            ),
            (
                json!({ "domain": { "features": { "hyperv": { "synic": on, "synictimer": on, "frequencies": on, "ipi": on,
                    "vapic": on, "relaxed": on, "tlbflush": on, "runtime": { "enabled": false }, "evmcs": {} } } } }),
                vec![
                    "cpu-vendor.node.kubevirt.io/Intel",
                    "hyperv.node.kubevirt.io/frequencies",
                    "hyperv.node.kubevirt.io/ipi",
                    "hyperv.node.kubevirt.io/synic",
                    "hyperv.node.kubevirt.io/synictimer",
                    "hyperv.node.kubevirt.io/tlbflush",
                ],
            ),
            // Its nodes say nothing of boards and models.
            (
                json!({ "hypervisor": "lxc", "domain": { "machine": { "type": "q35" }, "cpu": { "model": "Conroe" } } }),
                vec![],
            ),
        ];
        let strict = Config { hyperv_strict: true, ..Config::default() };
        for (spec, expected) in cases {
            assert_eq!(selected(&vmi(spec.clone()), &strict), expected, "{spec}");
        }
        let hyperv = json!({ "domain": { "features": { "hyperv": { "synic": on } } } });
        assert!(selected(&vmi(hyperv), &Config::default()).is_empty(), "only where the cluster wants to be strict");
    }

    #[test]
    fn the_machine_type_that_it_has_goes_before_the_one_that_was_asked_for() {
        let mut vmi = vmi(json!({ "domain": { "machine": { "type": "q35" } } }));
        vmi.status.machine = serde_json::from_value(json!({ "type": "pc-q35-9.0" })).unwrap();
        assert_eq!(selected(&vmi, &Config::default()), ["machine-type.node.kubevirt.io/pc-q35-9.0"]);
    }

    #[test]
    fn a_clock_that_must_not_change_needs_a_node_with_its_frequency() {
        let invtsc = json!({ "cpu": { "features": [{ "name": "invtsc", "policy": "require" }] } });
        let told = json!({ "features": { "hyperv": { "reenlightenment": { "enabled": true } } } });
        for (domain, hints, expected) in [
            (json!({}), Some(123), false),
            (invtsc.clone(), None, false),
            (invtsc, Some(123), true),
            (told.clone(), Some(123), true),
            (told, Some(0), false),
        ] {
            let mut vmi = vmi(json!({ "domain": domain }));
            vmi.status.topology_hints =
                hints.map(|hint| serde_json::from_value(json!({ "tscFrequency": hint })).unwrap());
            let label = "scheduling.node.kubevirt.io/tsc-frequency-123".to_owned();
            assert_eq!(selected(&vmi, &Config::default()).contains(&label), expected, "{domain} {hints:?}");
        }
    }

    #[test]
    fn what_the_cluster_says_of_nodes_no_instance_takes_back() {
        let vmi = vmi(json!({ "domain": {}, "architecture": "arm64",
            "nodeSelector": { "kubernetes.io/arch": "amd64", "for": "me", "mine": "x", names::NODE_SCHEDULABLE: "false" } }));
        let node_selectors = BTreeMap::from([("for".to_owned(), "vms".to_owned())]);
        let config = Config { node_selectors, ..Config::default() };
        assert_eq!(selected(&vmi, &config), ["for=vms", "kubernetes.io/arch=arm64", "mine=x"]);
    }

    #[test]
    fn nodes_with_what_is_forbidden_are_left_out_of_every_alternative() {
        let keys = |spec: Value| {
            let affinity = serde_json::to_value(affinity(&vmi(spec))).unwrap();
            let terms =
                &affinity["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"];
            let of = |term: &Value| {
                let expressions = term["matchExpressions"].as_array().unwrap();
                expressions.iter().map(|one| one["key"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
            };
            terms.as_array().map(|terms| terms.iter().map(of).collect::<Vec<_>>())
        };
        let obsolete = names::NODE_HOST_MODEL_IS_OBSOLETE_LABEL.to_owned();
        for cpu in [json!(null), json!({}), json!({ "model": "host-model" })] {
            assert_eq!(keys(json!({ "domain": { "cpu": cpu } })), Some(vec![vec![obsolete.clone()]]));
        }
        assert_eq!(keys(json!({ "domain": { "cpu": { "model": "Conroe" } } })), None);
        let term = |key: &str| json!({ "matchExpressions": [{ "key": key, "operator": "Exists" }] });
        let required = json!({ "nodeSelectorTerms": [term("a"), term("b")] });
        let spec = json!({
            "domain": { "cpu": { "model": "Conroe", "features": [{ "name": "mmx", "policy": "forbid" }] } },
            "affinity": { "nodeAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": required } },
        });
        let mmx = "cpu-feature.node.kubevirt.io/mmx".to_owned();
        assert_eq!(keys(spec), Some(vec![vec!["a".into(), mmx.clone()], vec!["b".into(), mmx]]));
    }

    #[test]
    fn what_no_node_has_is_said_in_words() {
        let labels = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
            pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
        };
        let nodes = [
            labels(&[("kubernetes.io/arch", "amd64"), (names::NODE_SCHEDULABLE, "true")]),
            labels(&[("kubernetes.io/arch", "amd64"), ("cpu-model.node.kubevirt.io/Penryn", "true")]),
        ];
        let asked = labels(&[
            (names::NODE_SCHEDULABLE, "true"),
            ("hypervisor.node.kubevirt.io/lxc", "true"),
            ("kubernetes.io/arch", "arm64"),
            ("cpu-model.node.kubevirt.io/Penryn", "true"),
            ("cpu-feature.node.kubevirt.io/avx9", "true"),
            ("machine-type.node.kubevirt.io/isapc", "true"),
            ("disk", "fast"),
        ]);
        assert_eq!(
            unmet(&asked, nodes.iter()),
            [
                "no node has the CPU feature avx9",
                "no node has the label disk=fast",
                "no node has the architecture arm64 (they have amd64)",
                "no node has the machine type isapc",
            ]
        );
    }
}
