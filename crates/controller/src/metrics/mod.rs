//! What the controllers tell Prometheus, in upstream's names and labels.

mod instances;
mod machines;
mod phases;

use std::sync::{Arc, Mutex, PoisonError};

use ferrovirt_api::{
    Folded,
    v1::{KubeVirt, VirtualMachine, VirtualMachineInstance},
};
use ferrovirt_metrics::Family;
use kube::runtime::reflector::Store;

pub(crate) use phases::Phases;

/// Where the controllers put what they know. Clones share it; a scrape reads it.
#[derive(Clone, Default)]
pub struct Metrics(Arc<Inner>);

#[derive(Default)]
struct Inner {
    machines: Mutex<Option<Store<Folded<VirtualMachine>>>>,
    instances: Mutex<Option<Store<Folded<VirtualMachineInstance>>>>,
    kubevirts: Mutex<Option<Store<KubeVirt>>>,
    phases: Phases,
}

impl Metrics {
    pub(crate) fn set_machines(&self, store: Store<Folded<VirtualMachine>>) {
        *self.0.machines.lock().unwrap_or_else(PoisonError::into_inner) = Some(store);
    }

    pub(crate) fn set_instances(&self, store: Store<Folded<VirtualMachineInstance>>) {
        *self.0.instances.lock().unwrap_or_else(PoisonError::into_inner) = Some(store);
    }

    pub(crate) fn set_kubevirts(&self, store: Store<KubeVirt>) {
        *self.0.kubevirts.lock().unwrap_or_else(PoisonError::into_inner) = Some(store);
    }

    pub(crate) fn phases(&self) -> &Phases {
        &self.0.phases
    }

    /// Everything, as of now. A controller that has not started leads nothing and has nothing to tell.
    pub fn collect(&self) -> Vec<Family> {
        let machines = state(&self.0.machines);
        let instances = state(&self.0.instances);
        let leading = machines.is_some() && instances.is_some();
        let emulation = state(&self.0.kubevirts).unwrap_or_default().iter().any(|kubevirt| {
            kubevirt.spec.configuration.developer_configuration.as_ref().is_some_and(|d| d.use_emulation)
        });
        let flag = |on: bool| if on { 1.0 } else { 0.0 };
        let version = env!("CARGO_PKG_VERSION").to_owned();
        let mut families = vec![
            Family::gauge("kubevirt_info", "Version information.").with([("kubevirt_version", version)], 1.0),
            Family::gauge("kubevirt_virt_controller_ready_status", "Whether a controller could take the lead.")
                .with([], 1.0),
            Family::gauge("kubevirt_virt_controller_leading_status", "Whether this controller leads.")
                .with([], flag(leading)),
            Family::gauge("kubevirt_configuration_emulation_enabled", "Whether guests may be emulated.")
                .with([], flag(emulation)),
        ];
        families.extend(machines::families(unfolded(machines)));
        families.extend(instances::families(unfolded(instances), emulation));
        families.extend(self.0.phases.families());
        families
    }
}

fn state<K>(store: &Mutex<Option<Store<K>>>) -> Option<Vec<Arc<K>>>
where
    K: kube::runtime::reflector::Lookup + Clone + 'static,
    K::DynamicType: Eq + std::hash::Hash + Clone,
{
    store.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map(Store::state)
}

/// One after the other: a scrape does not hold all of them at once.
fn unfolded<K: serde::de::DeserializeOwned>(objects: Option<Vec<Arc<Folded<K>>>>) -> impl Iterator<Item = K> {
    objects.into_iter().flatten().filter_map(|object| object.unfold().ok())
}

/// Annotations by which templates say what kind of guest they are for.
fn system_info(annotations: Option<&std::collections::BTreeMap<String, String>>) -> [(&'static str, String); 3] {
    ["os", "workload", "flavor"].map(|name| {
        let value = annotations.and_then(|annotations| annotations.get(&format!("vm.kubevirt.io/{name}")));
        (name, value.cloned().unwrap_or_default())
    })
}

/// Labels of a virtual card: how it is bound, to what, and what it looks like to the guest.
fn cards(spec: &ferrovirt_api::v1::VirtualMachineInstanceSpec) -> impl Iterator<Item = [(&'static str, String); 5]> {
    spec.domain.devices.interfaces.iter().map(|interface| {
        let network = spec.networks.iter().find(|network| network.name == interface.name);
        let network = match network {
            Some(network) if network.pod.is_some() => "pod networking".to_owned(),
            Some(network) => network.multus.as_ref().map(|m| m.network_name.clone()).unwrap_or_default(),
            None => String::new(),
        };
        let (kind, binding) = match interface {
            i if i.masquerade.is_some() => ("core", "masquerade".to_owned()),
            i if i.bridge.is_some() => ("core", "bridge".to_owned()),
            i if i.sriov.is_some() => ("core", "sriov".to_owned()),
            i if i.binding.is_some() => ("plugin", i.binding.as_ref().map(|b| b.name.clone()).unwrap_or_default()),
            _ => ("", String::new()),
        };
        let model = if interface.model.is_empty() { "<none>".to_owned() } else { interface.model.clone() };
        [
            ("vnic_name", interface.name.clone()),
            ("binding_type", kind.to_owned()),
            ("network", network),
            ("binding_name", binding),
            ("model", model),
        ]
    })
}
