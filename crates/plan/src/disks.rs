//! The disks that an instance gets for volumes that it shows to its guest in no other way.

use std::collections::BTreeSet;

use ferrovirt_api::v1::{Disk, VirtualMachineInstanceSpec};

/// Gives every volume without a disk or a file system a disk of its name, as upstream does: `virtctl create vm` writes
/// volumes only.
pub fn add_default(spec: &mut VirtualMachineInstanceSpec) {
    let devices = &mut spec.domain.devices;
    let shown: BTreeSet<String> = devices
        .disks
        .iter()
        .map(|disk| disk.name.clone())
        .chain(devices.filesystems.iter().map(|filesystem| filesystem.name.clone()))
        .collect();
    let hidden = spec.volumes.iter().filter(|volume| {
        // These are not disks: one is a device of its own, the other is written to, not read from.
        volume.downward_metrics.is_none() && volume.memory_dump.is_none() && !shown.contains(&volume.name)
    });
    devices.disks.extend(hidden.map(|volume| Disk { name: volume.name.clone(), ..Default::default() }));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn volumes_become_disks_unless_they_are_shown_already() {
        let mut spec: VirtualMachineInstanceSpec = serde_json::from_value(serde_json::json!({
            "domain": { "devices": {
                "disks": [{ "name": "root", "disk": { "bus": "sata" } }],
                "filesystems": [{ "name": "shared", "virtiofs": {} }],
            } },
            "volumes": [
                { "name": "root", "containerDisk": { "image": "x" } },
                { "name": "shared", "persistentVolumeClaim": { "claimName": "c" } },
                { "name": "cloudinitdisk", "cloudInitNoCloud": { "userData": "x" } },
                { "name": "metrics", "downwardMetrics": {} },
            ],
        }))
        .unwrap();
        add_default(&mut spec);
        let names: Vec<&str> = spec.domain.devices.disks.iter().map(|disk| disk.name.as_str()).collect();
        assert_eq!(names, ["root", "cloudinitdisk"]);
        let once = spec.clone();
        add_default(&mut spec);
        assert_eq!(spec, once);
    }
}
