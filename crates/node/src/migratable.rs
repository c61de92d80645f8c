//! Why an instance cannot be migrated while it runs, in upstream's words. Pure.

use ferrovirt_api::v1::VirtualMachineInstance;

pub(crate) struct Obstacle {
    pub reason: &'static str,
    pub message: String,
}

/// What keeps the instance from migrating with its disks on shared storage.
pub(crate) fn live(vmi: &VirtualMachineInstance) -> Obstacle {
    if let Some(volume) = vmi.spec.volumes.iter().find(|volume| volume.host_disk.is_some()) {
        return not("DisksNotLiveMigratable", &format!("cannot migrate VMI with non-shared HostDisk {}", volume.name));
    }
    common(vmi)
}

/// What keeps the instance from migrating together with its disks.
pub(crate) fn storage(vmi: &VirtualMachineInstance) -> Obstacle {
    common(vmi)
}

fn common(vmi: &VirtualMachineInstance) -> Obstacle {
    let devices = &vmi.spec.domain.devices;
    let on_pod = |name: &str| vmi.spec.networks.iter().any(|network| network.name == name && network.pod.is_some());
    if devices.interfaces.iter().any(|i| on_pod(&i.name) && i.masquerade.is_none()) {
        return not(
            "InterfaceNotLiveMigratable",
            "cannot migrate VMI which does not use masquerade, bridge with \
             kubevirt.io/allow-pod-bridge-network-live-migration VM annotation or a migratable plugin to connect to the \
             pod network",
        );
    }
    if !devices.filesystems.is_empty() {
        return not("VirtIOFSNotLiveMigratable", "VMI uses virtiofs");
    }
    if !devices.host_devices.is_empty() || !devices.gpus.is_empty() {
        return not("HostDeviceNotLiveMigratable", "VMI uses a PCI host devices");
    }
    if vmi.spec.domain.cpu.as_ref().is_some_and(|cpu| cpu.model == "host-passthrough") {
        return not("CPUModeNotLiveMigratable", "VMI uses host-passthrough, which needs the same CPU on every node");
    }
    // Nothing of the instance itself stands in the way.
    not("MigrationNotSupported", "this version of Ferrovirt does not migrate running instances")
}

fn not(reason: &'static str, message: &str) -> Obstacle {
    Obstacle { reason, message: message.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_first_obstacle_is_named() {
        let on_pod = |binding: &str| {
            let interface = json!({ "name": "a", binding: {} });
            json!({ "networks": [{ "name": "a", "pod": {} }], "domain": { "devices": { "interfaces": [interface] } } })
        };
        let host_disk = json!({ "volumes": [{ "name": "a", "hostDisk": { "path": "/x", "type": "Disk" } }] });
        let cases = [
            (json!({}), "MigrationNotSupported", "MigrationNotSupported"),
            (host_disk, "DisksNotLiveMigratable", "MigrationNotSupported"),
            (on_pod("bridge"), "InterfaceNotLiveMigratable", "InterfaceNotLiveMigratable"),
            (on_pod("masquerade"), "MigrationNotSupported", "MigrationNotSupported"),
        ];
        for (spec, live_reason, storage_reason) in cases {
            let vmi: VirtualMachineInstance = serde_json::from_value(json!({ "metadata": {}, "spec": spec })).unwrap();
            assert_eq!((live(&vmi).reason, storage(&vmi).reason), (live_reason, storage_reason), "{:?}", vmi.spec);
        }
    }
}
