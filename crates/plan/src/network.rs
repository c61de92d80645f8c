//! The network that an instance gets without asking for one.

use ferrovirt_api::v1::{Interface, InterfaceMasquerade, Network, PodNetwork, VirtualMachineInstanceSpec};

/// Puts an instance that names no network on the pod network, behind its pod's address.
pub fn add_default(spec: &mut VirtualMachineInstanceSpec) {
    let devices = &mut spec.domain.devices;
    if devices.autoattach_pod_interface == Some(false) || !devices.interfaces.is_empty() || !spec.networks.is_empty() {
        return;
    }
    devices.interfaces.push(Interface {
        name: "default".into(),
        masquerade: Some(InterfaceMasquerade {}),
        ..Default::default()
    });
    spec.networks.push(Network { name: "default".into(), pod: Some(PodNetwork::default()), ..Default::default() });
}
