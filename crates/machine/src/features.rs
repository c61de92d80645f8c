//! The feature table: what a VMI can ask for, and which hypervisor cannot do it, with the reason.
//!
//! A feature is a key and a function that finds the fields that ask for it. A hypervisor lists its gaps by key. Admission
//! and documentation read the same table.

mod report;

use ferrovirt_api::v1::{CPU, VirtualMachineInstance, VirtualMachineInstanceSpec};

pub use report::{Row, Support, Traits, markdown, node_label, rows};

use crate::{
    convert::{self, FieldError},
    hypervisor,
};

/// A feature that some hypervisor may lack.
pub struct Feature {
    /// Stable key, used by [`Gap`]s and in documentation.
    pub key: &'static str,
    /// The fields below `spec` that ask for it.
    asked: fn(&VirtualMachineInstanceSpec) -> Vec<String>,
}

/// A feature that a hypervisor lacks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gap {
    pub feature: &'static str,
    pub reason: &'static str,
}

/// Everything that the VMI asks for and its hypervisor cannot do.
pub fn unsupported(vmi: &VirtualMachineInstance) -> Vec<FieldError> {
    unsupported_in(&vmi.spec, "spec")
}

/// The same for the spec of a template; `path` is where it stands in its object.
pub fn unsupported_in(spec: &VirtualMachineInstanceSpec, path: &str) -> Vec<FieldError> {
    let driver = match hypervisor::find(spec.hypervisor.as_deref().unwrap_or(hypervisor::DEFAULT)) {
        Ok(driver) => driver,
        Err(message) => return vec![FieldError::new(format!("{path}.hypervisor"), message)],
    };
    let mut errors = Vec::new();
    for feature in FEATURES {
        let Some(gap) = driver.gaps().iter().find(|gap| gap.feature == feature.key) else {
            continue;
        };
        for field in (feature.asked)(spec) {
            let message = format!("hypervisor {} does not support this: {}", driver.name(), gap.reason);
            errors.push(FieldError::new(format!("{path}.{field}"), message));
        }
    }
    errors
}

pub static FEATURES: &[Feature] = &[
    feature("accessCredentials", |spec| some(!spec.access_credentials.is_empty(), "accessCredentials")),
    feature("blockSizeMatchVolume", |spec| {
        each(&spec.domain.devices.disks, "domain.devices.disks", "blockSize.matchVolume", |disk| {
            let size = disk.block_size.as_ref();
            size.and_then(|size| size.match_volume.as_ref()).is_some_and(|on| on.enabled != Some(false))
        })
    }),
    feature("bootloader", |spec| {
        let bootloader = spec.domain.firmware.as_ref().is_some_and(|firmware| firmware.bootloader.is_some());
        some(bootloader, "domain.firmware.bootloader")
    }),
    feature("bridgeBinding", |spec| {
        each(&spec.domain.devices.interfaces, INTERFACES, "bridge", |interface| interface.bridge.is_some())
    }),
    feature("changedBlockTracking", |spec| {
        each(&spec.domain.devices.disks, "domain.devices.disks", "changedBlockTracking", |disk| {
            disk.changed_block_tracking == Some(true)
        })
    }),
    feature("containerDisk", |spec| {
        each(&spec.volumes, "volumes", "containerDisk", |volume| volume.container_disk.is_some())
    }),
    feature("containerPath", |spec| {
        each(&spec.volumes, "volumes", "containerPath", |volume| volume.container_path.is_some())
    }),
    feature("contentDisks", |spec| {
        each(&spec.volumes, "volumes", "", |volume| {
            volume.config_map.is_some()
                || volume.secret.is_some()
                || volume.downward_api.is_some()
                || volume.service_account.is_some()
                || volume.sysprep.is_some()
        })
    }),
    feature("cpuModel", |spec| {
        let cpu = spec.domain.cpu.as_ref();
        let named = |cpu: &CPU| !matches!(cpu.model.as_str(), "" | "host-model" | "host-passthrough");
        let mut fields = some(cpu.is_some_and(named), "domain.cpu.model");
        fields.extend(some(cpu.is_some_and(|cpu| !cpu.features.is_empty()), "domain.cpu.features"));
        fields
    }),
    feature("dedicatedCpus", |spec| {
        let cpu = spec.domain.cpu.as_ref();
        let mut fields = some(cpu.is_some_and(|cpu| cpu.dedicated_cpu_placement), "domain.cpu.dedicatedCpuPlacement");
        fields.extend(some(cpu.is_some_and(|c| c.isolate_emulator_thread), "domain.cpu.isolateEmulatorThread"));
        fields
    }),
    feature("downwardMetrics", |spec| {
        let device = spec.domain.devices.downward_metrics.is_some();
        let mut fields = some(device, "domain.devices.downwardMetrics");
        fields.extend(each(&spec.volumes, "volumes", "downwardMetrics", |volume| volume.downward_metrics.is_some()));
        fields
    }),
    feature("efiPersistent", |spec| {
        let efi = efi(spec).is_some_and(|efi| efi.persistent == Some(true));
        some(efi, "domain.firmware.bootloader.efi.persistent")
    }),
    feature("efiSecureBoot", |spec| {
        let efi = efi(spec).is_some_and(|efi| efi.secure_boot != Some(false));
        some(efi, "domain.firmware.bootloader.efi.secureBoot")
    }),
    feature("emptyDisk", |spec| each(&spec.volumes, "volumes", "emptyDisk", |volume| volume.empty_disk.is_some())),
    feature("ephemeralVolume", |spec| each(&spec.volumes, "volumes", "ephemeral", |volume| volume.ephemeral.is_some())),
    feature("filesystems", |spec| each(&spec.domain.devices.filesystems, "domain.devices.filesystems", "", |_| true)),
    feature("gpus", |spec| each(&spec.domain.devices.gpus, "domain.devices.gpus", "", |_| true)),
    feature("graphics", |spec| {
        let devices = &spec.domain.devices;
        let mut fields =
            some(devices.autoattach_graphics_device == Some(true), "domain.devices.autoattachGraphicsDevice");
        fields.extend(some(devices.video.is_some(), "domain.devices.video"));
        fields.extend(each(&devices.inputs, "domain.devices.inputs", "", |_| true));
        fields
    }),
    feature("hostDevices", |spec| each(&spec.domain.devices.host_devices, "domain.devices.hostDevices", "", |_| true)),
    feature("hostDisk", |spec| each(&spec.volumes, "volumes", "hostDisk", |volume| volume.host_disk.is_some())),
    feature("hugepages", |spec| {
        let hugepages = spec.domain.memory.as_ref().is_some_and(|memory| memory.hugepages.is_some());
        some(hugepages, "domain.memory.hugepages")
    }),
    feature("kernelBoot", |spec| {
        let kernel = spec.domain.firmware.as_ref().is_some_and(|firmware| firmware.kernel_boot.is_some());
        some(kernel, "domain.firmware.kernelBoot")
    }),
    feature("launchSecurity", |spec| some(spec.domain.launch_security.is_some(), "domain.launchSecurity")),
    feature("liveMigration", |spec| some(spec.eviction_strategy.as_deref() == Some("LiveMigrate"), "evictionStrategy")),
    feature("lunReservation", |spec| {
        each(&spec.domain.devices.disks, "domain.devices.disks", "lun.reservation", |disk| {
            disk.lun.as_ref().is_some_and(|lun| lun.reservation)
        })
    }),
    feature("memoryDump", |spec| each(&spec.volumes, "volumes", "memoryDump", |volume| volume.memory_dump.is_some())),
    // `maxGuest` is a ceiling that every instance may have: nothing is lost until the guest is to grow, and then it says that
    // it needs a restart.
    feature("memoryHotplug", |_| Vec::new()),
    feature("moreDisks", |spec| {
        let roots = spec.volumes.iter().filter(|volume| convert::can_be_root(volume)).count();
        some(roots > 1, "volumes")
    }),
    feature("multus", |spec| each(&spec.networks, "networks", "multus", |network| network.multus.is_some())),
    feature("networkBindingPlugin", |spec| {
        each(&spec.domain.devices.interfaces, INTERFACES, "binding", |interface| interface.binding.is_some())
    }),
    feature("networkResourceClaim", |spec| {
        each(&spec.networks, "networks", "resourceClaim", |network| network.resource_claim.is_some())
    }),
    feature("numaPassthrough", |spec| {
        let numa = spec.domain.cpu.as_ref().and_then(|cpu| cpu.numa.as_ref());
        let asked = numa.is_some_and(|numa| numa.guest_mapping_passthrough.is_some());
        some(asked, "domain.cpu.numa.guestMappingPassthrough")
    }),
    feature("panicDevices", |spec| {
        each(&spec.domain.devices.panic_devices, "domain.devices.panicDevices", "", |_| true)
    }),
    feature("passt", |spec| {
        each(&spec.domain.devices.interfaces, INTERFACES, "passtBinding", |interface| interface.passt_binding.is_some())
    }),
    feature("realtime", |spec| {
        some(spec.domain.cpu.as_ref().is_some_and(|cpu| cpu.realtime.is_some()), "domain.cpu.realtime")
    }),
    feature("resourceClaims", |spec| some(!spec.resource_claims.is_empty(), "resourceClaims")),
    feature("sound", |spec| some(spec.domain.devices.sound.is_some(), "domain.devices.sound")),
    feature("sriov", |spec| {
        each(&spec.domain.devices.interfaces, INTERFACES, "sriov", |interface| interface.sriov.is_some())
    }),
    feature("startPaused", |spec| some(spec.start_strategy.as_deref() == Some("Paused"), "startStrategy")),
    feature("tpm", |spec| {
        let tpm = spec.domain.devices.tpm.as_ref().is_some_and(|tpm| tpm.enabled != Some(false));
        some(tpm, "domain.devices.tpm")
    }),
    feature("tpmPersistent", |spec| {
        let tpm = spec.domain.devices.tpm.as_ref();
        let kept = tpm.is_some_and(|tpm| tpm.enabled != Some(false) && tpm.persistent == Some(true));
        some(kept, "domain.devices.tpm.persistent")
    }),
    feature("usbRedirection", |spec| {
        some(spec.domain.devices.client_passthrough.is_some(), "domain.devices.clientPassthrough")
    }),
    feature("utilityVolumes", |spec| some(!spec.utility_volumes.is_empty(), "utilityVolumes")),
    feature("vsock", |spec| some(spec.domain.devices.autoattach_vsock == Some(true), "domain.devices.autoattachVSOCK")),
    feature("watchdog", |spec| some(spec.domain.devices.watchdog.is_some(), "domain.devices.watchdog")),
];

const INTERFACES: &str = "domain.devices.interfaces";

const fn feature(key: &'static str, asked: fn(&VirtualMachineInstanceSpec) -> Vec<String>) -> Feature {
    Feature { key, asked }
}

fn efi(spec: &VirtualMachineInstanceSpec) -> Option<&ferrovirt_api::v1::EFI> {
    spec.domain.firmware.as_ref()?.bootloader.as_ref()?.efi.as_ref()
}

fn some(asked: bool, field: &str) -> Vec<String> {
    if asked { vec![field.into()] } else { Vec::new() }
}

/// The items of a list that ask, as `list[index].field`.
fn each<T>(items: &[T], list: &str, field: &str, asks: impl Fn(&T) -> bool) -> Vec<String> {
    let dot = if field.is_empty() { "" } else { "." };
    let asking = items.iter().enumerate().filter(|(_, item)| asks(item));
    asking.map(|(index, _)| format!("{list}[{index}]{dot}{field}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_gap_is_a_feature_and_every_key_is_unique() {
        for known in &hypervisor::KNOWN {
            for gap in known.driver.iter().flat_map(|driver| driver.gaps()) {
                assert_eq!(FEATURES.iter().filter(|feature| feature.key == gap.feature).count(), 1, "{}", gap.feature);
            }
        }
        assert!(FEATURES.windows(2).all(|pair| pair[0].key < pair[1].key), "sorted");
    }

    #[test]
    fn all_unsupported_features_are_named_with_their_fields() {
        let vmi: VirtualMachineInstance = serde_json::from_value(serde_json::json!({
            "spec": {
                "domain": {
                    "cpu": {"dedicatedCpuPlacement": true, "realtime": {}},
                    "memory": {"guest": "1Gi", "maxGuest": "4Gi", "hugepages": {"pageSize": "2Mi"}},
                    "launchSecurity": {"sev": {}},
                    "firmware": {"bootloader": {"efi": {}}},
                    "devices": {
                        "gpus": [{"name": "g"}],
                        "hostDevices": [{"name": "h"}],
                        "tpm": {"persistent": true},
                        "filesystems": [{"name": "f", "virtiofs": {}}],
                        "clientPassthrough": {},
                        "interfaces": [{"name": "a", "masquerade": {}}, {"name": "b", "sriov": {}}]
                    }
                },
                "networks": [{"name": "a", "pod": {}}, {"name": "b", "multus": {"networkName": "n"}}],
                "volumes": [{"name": "d", "memoryDump": {"claimName": "c"}}]
            }
        }))
        .unwrap();
        let fields: Vec<String> = unsupported(&vmi).into_iter().map(|error| error.field).collect();
        assert_eq!(
            fields,
            [
                "spec.domain.devices.gpus[0]",
                "spec.domain.devices.hostDevices[0]",
                "spec.domain.launchSecurity",
                "spec.volumes[0].memoryDump",
                "spec.domain.cpu.realtime",
                "spec.domain.devices.interfaces[1].sriov",
                "spec.domain.devices.clientPassthrough",
            ]
        );
    }

    #[test]
    fn an_unknown_hypervisor_is_all_there_is_to_say() {
        let spec = VirtualMachineInstanceSpec { hypervisor: Some("xen".into()), ..Default::default() };
        let errors = unsupported_in(&spec, "spec.template.spec");
        assert_eq!(errors.len(), 1);
        assert_eq!(errors[0].field, "spec.template.spec.hypervisor");
    }
}
