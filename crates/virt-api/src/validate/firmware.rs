//! How a guest starts: boot loader, kernel from outside, tables of the vendor.

use ferrovirt_api::v1::{DomainSpec, VirtualMachineInstanceSpec};

use super::{Findings, storage};

pub(super) fn check(domain: &DomainSpec, path: &str, found: &mut Findings) {
    loaders(domain, path, found);
    // Secure boot is on unless it is refused, and needs system management mode to keep its keys. Under TDX they are part of
    // the firmware.
    let bootloader = domain.firmware.as_ref().and_then(|firmware| firmware.bootloader.as_ref());
    let secure =
        bootloader.and_then(|bootloader| bootloader.efi.as_ref()).is_some_and(|efi| efi.secure_boot != Some(false));
    let smm = domain.features.as_ref().and_then(|features| features.smm.as_ref());
    let tdx = domain.launch_security.as_ref().is_some_and(|security| security.tdx.is_some());
    if secure && !tdx && smm.is_none_or(|smm| smm.enabled == Some(false)) {
        let domain = format!("{path}.domain");
        let message =
            format!("{domain} has EFI SecureBoot enabled. SecureBoot requires SMM, which is currently disabled.");
        found.invalid(domain, message);
    }
}

/// The boot loader, and a kernel from outside.
pub(super) fn loaders(domain: &DomainSpec, path: &str, found: &mut Findings) {
    let Some(firmware) = &domain.firmware else { return };
    let field = format!("{path}.domain.firmware");
    let bootloader = firmware.bootloader.as_ref();
    if bootloader.is_some_and(|bootloader| bootloader.efi.is_some() && bootloader.bios.is_some()) {
        let loader = format!("{field}.bootloader");
        let message = format!("{loader} has both EFI and BIOS configured, but they are mutually exclusive.");
        found.invalid(loader, message);
    }
    if let Some(boot) = &firmware.kernel_boot {
        let field = format!("{field}.kernelBoot");
        match &boot.container {
            None if !boot.kernel_args.is_empty() => found.invalid(
                format!("{field}.kernelArgs"),
                "kernel arguments cannot be provided without an external kernel",
            ),
            None => {}
            Some(container) => {
                let field = format!("{field}.container");
                if container.image.is_empty() {
                    found.required(format!("{field}.image"), format!("{field} must be defined with an image"));
                }
                let paths = [("kernelPath", &container.kernel_path), ("initrdPath", &container.initrd_path)];
                if paths.iter().all(|(_, path)| path.is_empty()) {
                    let message =
                        format!("{field} must be defined with at least one of the following: kernelPath, initrdPath");
                    found.required(field.clone(), message);
                }
                for (key, path) in paths.into_iter().filter(|(_, path)| !path.is_empty()) {
                    storage::absolute(path, format!("{field}.{key}"), found);
                }
            }
        }
    }
}

/// ACPI tables that come from secrets. Their path is upstream's.
pub(super) fn tables(spec: &VirtualMachineInstanceSpec, path: &str, found: &mut Findings) {
    let Some(acpi) = spec.domain.firmware.as_ref().and_then(|firmware| firmware.acpi.as_ref()) else { return };
    let field = format!("{path}.acpi");
    if acpi.slic_name_ref.is_empty() && acpi.msdm_name_ref.is_empty() {
        return found.invalid(field, "ACPI was set but no SLIC nor MSDM volume reference was set");
    }
    for (name, key) in [(&acpi.slic_name_ref, "slicNameRef"), (&acpi.msdm_name_ref, "msdmNameRef")] {
        if name.is_empty() {
            continue;
        }
        match spec.volumes.iter().find(|volume| volume.name == *name) {
            None => found.invalid(format!("{field}.{key}"), format!("{field} does not have a matching Volume.")),
            Some(volume) if volume.secret.is_none() => {
                found.invalid(format!("{field}.{key}"), format!("{field} refers to Volume of unsupported type."));
            }
            Some(_) => {}
        }
    }
}
