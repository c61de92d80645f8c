//! Networks of an instance: the names that secondary ones have in its pod.

use ferrovirt_api::v1::{Network, VirtualMachineInstance};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

/// What Multus, and `node-lite` like it, reads from a pod.
pub const NETWORKS_ANNOTATION: &str = "k8s.v1.cni.cncf.io/networks";
/// What a pod asks for networks with, or for another one than the cluster's own.
pub const ASKING_ANNOTATIONS: [&str; 2] = [NETWORKS_ANNOTATION, "v1.multus-cni.io/default-network"];
/// The pod's own interface, as CNI names it.
pub const POD_INTERFACE: &str = "eth0";

/// The interface of the pod for a network: the first for the pod network, else a name that follows from the network's.
pub fn pod_interface(network: &Network) -> String {
    match &network.multus {
        Some(multus) if !multus.default => format!("pod{}", short_hash(&network.name)),
        _ => POD_INTERFACE.into(),
    }
}

/// Part of the names of what belongs to a network, short enough for a network device.
pub fn short_hash(network: &str) -> String {
    let digest = Sha256::digest(network.as_bytes());
    digest.iter().take(6).map(|byte| format!("{byte:02x}")).collect::<String>().chars().take(11).collect()
}

/// The annotation that asks for the secondary networks of an instance. None if it has none.
pub fn annotation(vmi: &VirtualMachineInstance) -> Option<String> {
    let own = vmi.metadata.namespace.as_deref().unwrap_or_default();
    let mut wanted: Vec<Value> = vec![];
    for network in &vmi.spec.networks {
        let Some(multus) = network.multus.as_ref().filter(|multus| !multus.default) else { continue };
        let (namespace, name) = multus.network_name.split_once('/').unwrap_or((own, &multus.network_name));
        let interface = vmi.spec.domain.devices.interfaces.iter().find(|i| i.name == network.name);
        let mut entry = json!({ "interface": pod_interface(network), "name": name, "namespace": namespace });
        if let Some(mac) = interface.map(|i| &i.mac_address).filter(|mac| !mac.is_empty()) {
            entry["mac"] = json!(mac);
        }
        wanted.push(entry);
    }
    (!wanted.is_empty()).then(|| Value::Array(wanted).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secondary_networks_are_asked_for_by_stable_names() {
        let vmi: VirtualMachineInstance = serde_json::from_value(json!({
            "metadata": { "name": "a", "namespace": "team" },
            "spec": {
                "domain": { "devices": { "interfaces": [
                    { "name": "default", "masquerade": {} },
                    { "name": "red", "bridge": {}, "macAddress": "02:00:00:00:00:07" },
                    { "name": "blue", "bridge": {} },
                ] } },
                "networks": [
                    { "name": "default", "pod": {} },
                    { "name": "red", "multus": { "networkName": "lan" } },
                    { "name": "blue", "multus": { "networkName": "shared/storage" } },
                ],
            },
        }))
        .unwrap();
        let wanted: Value = serde_json::from_str(&annotation(&vmi).unwrap()).unwrap();
        assert_eq!(
            wanted,
            json!([
                { "interface": "podb1f51a511f1", "name": "lan", "namespace": "team", "mac": "02:00:00:00:00:07" },
                { "interface": "pod16477688c0e", "name": "storage", "namespace": "shared" },
            ])
        );
        assert!(wanted[0]["interface"].as_str().unwrap().len() <= 15);
    }

    #[test]
    fn a_network_of_another_namespace_is_not_attached_by_an_annotation() {
        let mut vmi: VirtualMachineInstance = serde_json::from_value(json!({
            "metadata": { "name": "a", "namespace": "team", "uid": "1", "annotations": {
                NETWORKS_ANNOTATION: "kube-system/secret", "v1.multus-cni.io/default-network": "kube-system/secret", "mine": "kept",
            } },
            "spec": { "domain": { "devices": {} }, "networks": [{ "name": "default", "pod": {} }] },
        }))
        .unwrap();
        let config = crate::pod::Config::default();
        let annotations = crate::pod::render(&vmi, &config).metadata.annotations.unwrap();
        assert!(ASKING_ANNOTATIONS.iter().all(|key| !annotations.contains_key(*key)), "{annotations:?}");
        assert_eq!(annotations["mine"], "kept");
        let lan = json!({ "name": "lan", "multus": { "networkName": "lan" } });
        vmi.spec.networks.push(serde_json::from_value(lan).unwrap());
        let annotations = crate::pod::render(&vmi, &config).metadata.annotations.unwrap();
        assert!(annotations[NETWORKS_ANNOTATION].contains("\"namespace\":\"team\""), "{annotations:?}");
    }
}
