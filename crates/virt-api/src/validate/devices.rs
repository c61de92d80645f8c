//! The small devices, and those that a feature gate guards.

use ferrovirt_api::v1::VirtualMachineInstanceSpec;

use super::{Cluster, Findings};

pub(super) fn inputs(spec: &VirtualMachineInstanceSpec, path: &str, found: &mut Findings) {
    for (index, input) in spec.domain.devices.inputs.iter().enumerate() {
        let field = format!("{path}.domain.devices.inputs[{index}]");
        if !["", "virtio", "usb"].contains(&input.bus.as_str()) {
            found.invalid(format!("{field}.bus"), "Input device can have only virtio or usb bus.");
        }
        if input.type_ != "tablet" {
            found.invalid(format!("{field}.type"), "Input device can have only tablet type.");
        }
    }
}

pub(super) fn check(spec: &VirtualMachineInstanceSpec, path: &str, cluster: &Cluster<'_>, found: &mut Findings) {
    let (domain, devices) = (&spec.domain, &spec.domain.devices);
    let framebuffers = devices.gpus.iter().filter(|gpu| {
        let display = gpu.virtual_gpu_options.as_ref().and_then(|options| options.display.as_ref());
        display.is_some_and(|display| {
            display.enabled != Some(false)
                && display.ram_fb.as_ref().is_none_or(|framebuffer| framebuffer.enabled == Some(true))
        })
    });
    if framebuffers.count() > 1 {
        found.invalid(format!("{path}.GPUs"), "configuring multiple displays with ramfb is not valid ");
    }
    if !devices.host_devices.is_empty() && !cluster.gate("HostDevices") {
        found.invalid(format!("{path}.HostDevices"), "Host Devices feature gate is not enabled in kubevirt-config");
    }
    if let Some(sound) = &devices.sound {
        let field = format!("{path}.Sound");
        if !["", "ich9", "ac97"].contains(&sound.model.as_str()) {
            found.invalid(field.clone(), "Sound device type is not supported. Options: 'ich9' or 'ac97'");
        }
        if sound.name.is_empty() {
            found.invalid(field, "Sound device requires a name field.");
        }
    }
    super::architecture::launch_security(spec, path, cluster, found);
    if devices.autoattach_vsock == Some(true) && !cluster.gate("VSOCK") {
        found.invalid(
            format!("{path}.domain.devices.autoattachVSOCK"),
            "VSOCK feature gate is not enabled in kubevirt-config",
        );
    }
    let reserved = devices.disks.iter().any(|disk| disk.lun.as_ref().is_some_and(|lun| lun.reservation));
    if reserved && !cluster.reservations() {
        found.invalid(
            format!("{path}.domain.devices.disks.luns.reservation"),
            "persistent reservation is not enabled in kubevirt config",
        );
    }
    if devices.downward_metrics.is_some() && !cluster.gate("DownwardMetrics") {
        found.invalid(
            format!("{path}.domain.devices.downwardMetrics"),
            "downwardMetrics virtio serial is not allowed: DownwardMetrics feature gate is not enabled",
        );
    }
    for filesystem in &devices.filesystems {
        let volume = spec.volumes.iter().find(|volume| volume.name == filesystem.name);
        let stored =
            volume.is_some_and(|volume| volume.persistent_volume_claim.is_some() || volume.data_volume.is_some());
        if stored && !cluster.gate("EnableVirtioFsStorageVolumes") {
            found.invalid(
                format!("{path}.domain.devices.filesystems"),
                "virtiofs is not allowed: virtiofs feature gate is not enabled for PVC",
            );
        }
    }
    if devices.video.is_some() && devices.autoattach_graphics_device == Some(false) {
        found.invalid(
            format!("{path}.video"),
            "Video configuration is not allowed when autoattachGraphicsDevice is set to false",
        );
    }
    let panics = format!("{path}.domain.devices.panicDevices");
    let architecture = cluster.architecture(&spec.architecture);
    if !devices.panic_devices.is_empty() && architecture == "s390x" {
        let message = format!("custom panic devices are not supported on {architecture} architecture");
        found.invalid(panics.clone(), message);
    }
    for (index, device) in devices.panic_devices.iter().enumerate() {
        if let Some(model) = device.model.as_deref().filter(|model| !["hyperv", "isa", "pvpanic"].contains(model)) {
            found.invalid(format!("{panics}[{index}].model"), format!("invalid PanicDeviceModel({model})"));
        }
    }
    if domain.reboot_policy.is_some() && !cluster.gate("RebootPolicy") {
        found.invalid(
            format!("{path}.domain.rebootPolicy"),
            "RebootPolicy is specified but the RebootPolicy feature gate is not enabled",
        );
    }
    let reserved = domain.memory.as_ref().is_some_and(|memory| memory.reserved_overhead.is_some());
    if reserved && !cluster.gate("ReservedOverheadMemlock") {
        found.invalid(
            format!("{path}.domain.memory.reservedOverhead"),
            "Reserved overhead memlock feature gate is not enabled in kubevirt-config",
        );
    }
}
