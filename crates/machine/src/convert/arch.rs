//! What differs between architectures, in one place.

use ferrovirt_api::v1::VirtualMachineInstance;

use crate::spec::Arch;

/// Model name of virtio devices.
pub(crate) fn virtio_model(arch: Arch, transitional: bool) -> &'static str {
    match (arch, transitional) {
        (Arch::S390x, _) => "virtio",
        (_, true) => "virtio-transitional",
        (_, false) => "virtio-non-transitional",
    }
}

pub(crate) fn scsi_model(arch: Arch, virtio_model: &str) -> String {
    match arch {
        Arch::S390x => "virtio-scsi".into(),
        _ => virtio_model.into(),
    }
}

/// Machine type for a VMI that names none.
pub fn default_machine_type(arch: Arch) -> &'static str {
    match arch {
        Arch::X86_64 => "q35",
        Arch::Aarch64 => "virt",
        Arch::S390x => "s390-ccw-virtio",
    }
}

pub(crate) fn usb_needed(arch: Arch, vmi: &VirtualMachineInstance) -> bool {
    let devices = &vmi.spec.domain.devices;
    match arch {
        Arch::Aarch64 => true,
        Arch::S390x => false,
        Arch::X86_64 => {
            devices.inputs.iter().any(|input| input.bus.is_empty() || input.bus == "usb")
                || devices.disks.iter().any(|disk| disk.disk.as_ref().is_some_and(|target| target.bus == "usb"))
                || devices.client_passthrough.is_some()
        }
    }
}

pub(crate) fn has_cpu_hotplug(arch: Arch) -> bool {
    arch != Arch::Aarch64
}

pub(crate) fn has_smbios(arch: Arch) -> bool {
    arch != Arch::S390x
}

pub(crate) fn has_rom_tuning(arch: Arch) -> bool {
    arch != Arch::S390x
}

pub(crate) fn has_memfd(arch: Arch) -> bool {
    arch != Arch::S390x
}

/// libvirt's CPU map lists `mpx` for models that current CPUs and QEMU no longer have it for.
pub(crate) fn needs_mpx_disabled(arch: Arch) -> bool {
    arch == Arch::X86_64
}

pub(crate) fn has_vm_port(arch: Arch) -> bool {
    arch == Arch::X86_64
}

pub(crate) fn can_disable_pci_hole64(arch: Arch) -> bool {
    arch == Arch::X86_64
}
