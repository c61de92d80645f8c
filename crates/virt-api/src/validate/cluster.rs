//! What the rules have to know of the cluster: its `KubeVirt` object's configuration, with upstream's defaults.

use ferrovirt_api::v1::{ArchSpecificConfiguration, KubeVirtConfiguration};
use ferrovirt_plan::cluster_defaults;

pub struct Cluster<'a>(pub &'a KubeVirtConfiguration);

impl Cluster<'_> {
    pub(super) fn gate(&self, name: &str) -> bool {
        cluster_defaults::feature_gate(self.0, name)
    }

    /// Changes of a VM's template reach its running instance, unless the cluster stages them.
    pub(super) fn live_update(&self) -> bool {
        self.0.vm_rollout_strategy.as_deref().is_none_or(|strategy| strategy == "LiveUpdate")
    }

    pub(super) fn bridge_on_pod_network(&self) -> bool {
        let network = self.0.network.as_ref();
        network.and_then(|network| network.permit_bridge_interface_on_pod_network).unwrap_or(true)
    }

    /// A guest may reserve a disk that others reach as well.
    pub(super) fn reservations(&self) -> bool {
        let own = self.0.persistent_reservation_configuration.as_ref().and_then(|own| own.enabled);
        own.unwrap_or_else(|| self.gate("PersistentReservation"))
    }

    /// What an instance that names none has.
    pub(super) fn architecture<'a>(&'a self, own: &'a str) -> &'a str {
        if own.is_empty() { cluster_defaults::architecture(self.0) } else { own }
    }

    /// Patterns of the machine types that may be asked for.
    pub(super) fn machines(&self, architecture: &str) -> Vec<String> {
        if !self.0.emulated_machines.is_empty() {
            return self.0.emulated_machines.clone();
        }
        let all = self.0.architecture_configuration.as_ref();
        let (own, defaults): (Option<&ArchSpecificConfiguration>, &[&str]) = match architecture {
            "arm64" => (all.and_then(|all| all.arm64.as_ref()), &["virt*"]),
            "s390x" => (all.and_then(|all| all.s390x.as_ref()), &["s390-ccw-virtio*"]),
            _ => (all.and_then(|all| all.amd64.as_ref()), &["q35*", "pc-q35*"]),
        };
        match own.map(|own| &own.emulated_machines) {
            Some(machines) if !machines.is_empty() => machines.clone(),
            _ => defaults.iter().map(|pattern| (*pattern).to_owned()).collect(),
        }
    }
}

/// Shell patterns as far as machine types need them: `*` and `?`.
pub(super) fn matches(pattern: &str, text: &str) -> bool {
    let mut rest = pattern.chars();
    match rest.next() {
        None => text.is_empty(),
        Some('*') => (0..=text.len())
            .filter(|at| text.is_char_boundary(*at))
            .any(|at| matches(rest.as_str(), text.get(at..).unwrap_or_default())),
        Some(first) => {
            let mut letters = text.chars();
            letters.next().is_some_and(|letter| first == '?' || letter == first)
                && matches(rest.as_str(), letters.as_str())
        }
    }
}
