//! Boot firmware, kernel boot and SMBIOS strings.

use ferrovirt_api::v1;

use super::{Conversion, arch};
use crate::spec::{AcpiTable, Arch, Boot, Firmware, KernelBoot, Preparation, SystemInfo};

/// A machine that starts paused waits this long in the boot menu once it goes on, so that somebody can be quick enough.
const PAUSED_BOOT_MENU_MS: u32 = 10_000;

pub(super) fn convert(c: &mut Conversion<'_>) -> Firmware {
    let machine = c.vmi.spec.domain.machine.as_ref().map(|machine| machine.type_.clone()).unwrap_or_default();
    let machine_type = if machine.is_empty() { arch::default_machine_type(c.ctx.arch).into() } else { machine };
    let firmware = c.vmi.spec.domain.firmware.as_ref();
    Firmware {
        machine_type,
        smbios: arch::has_smbios(c.ctx.arch),
        boot: boot(c, firmware),
        kernel: firmware.and_then(|firmware| kernel(c, firmware)),
        boot_menu_ms: starts_paused(c.vmi).then_some(PAUSED_BOOT_MENU_MS),
        acpi_tables: firmware.map(|firmware| acpi_tables(c, firmware)).unwrap_or_default(),
    }
}

pub(super) fn system_info(c: &Conversion<'_>) -> SystemInfo {
    let mut system = Vec::new();
    if let Some(firmware) = &c.vmi.spec.domain.firmware {
        system.push(entry("uuid", &firmware.uuid));
        if !firmware.serial.is_empty() {
            system.push(entry("serial", &firmware.serial));
        }
    }
    if let Some(smbios) = &c.ctx.smbios {
        system.extend([
            entry("manufacturer", &smbios.manufacturer),
            entry("family", &smbios.family),
            entry("product", &smbios.product),
            entry("sku", &smbios.sku),
            entry("version", &smbios.version),
        ]);
    }
    let chassis = c.vmi.spec.domain.chassis.as_ref().map(|chassis| {
        vec![
            entry("manufacturer", &chassis.manufacturer),
            entry("version", &chassis.version),
            entry("serial", &chassis.serial),
            entry("asset", &chassis.asset),
            entry("sku", &chassis.sku),
        ]
    });
    SystemInfo { system, chassis: chassis.unwrap_or_default(), ..SystemInfo::default() }
}

pub(super) fn starts_paused(vmi: &v1::VirtualMachineInstance) -> bool {
    vmi.spec.start_strategy.as_deref() == Some(v1::values::start_strategy::PAUSED)
}

fn boot(c: &mut Conversion<'_>, firmware: Option<&v1::Firmware>) -> Boot {
    let bootloader = firmware.and_then(|firmware| firmware.bootloader.as_ref());
    let Some(efi) = bootloader.and_then(|bootloader| bootloader.efi.as_ref()) else {
        let use_serial = bootloader.and_then(|bootloader| bootloader.bios.as_ref()).and_then(|bios| bios.use_serial);
        return Boot::Bios { use_serial: use_serial.filter(|serial| *serial) };
    };
    let ctx = c.ctx;
    let Some(configuration) = &ctx.efi_configuration else {
        if ctx.as_upstream {
            return Boot::default();
        }
        let wanted = if efi.secure_boot.unwrap_or(true) { "EFI firmware with secure boot" } else { "EFI firmware" };
        c.refuse("spec.domain.firmware.bootloader.efi", format!("the launcher's image has no {wanted}"));
        return Boot::default();
    };
    let name = c.vmi.metadata.name.as_deref().unwrap_or_default();
    // Upstream keeps it elsewhere for machines that do not run as root.
    let directory = match (c.ctx.as_upstream, c.vmi.status.runtime_user) {
        (true, 1..) => format!("{}/libvirt/qemu/nvram", c.ctx.layout.private),
        _ => c.ctx.layout.nvram.clone(),
    };
    let nvram = format!("{directory}/{name}_VARS.fd");
    if configuration.uses_firmware_auto_selection {
        let features = vec![("secure-boot".into(), true), ("enrolled-keys".into(), true)];
        let nvram = (c.vmi.spec.architecture != Arch::Aarch64.go_name()).then_some(nvram);
        return Boot::EfiAuto { features, nvram };
    }
    let security = c.vmi.spec.domain.launch_security.as_ref();
    if security.is_some_and(|security| security.snp.is_some() || security.tdx.is_some()) {
        let (code, secure) = (configuration.efi_code.clone(), configuration.secure_loader);
        return Boot::Efi { code, vars_template: String::new(), nvram: String::new(), secure };
    }
    let template = configuration.efi_vars.clone();
    if !template.is_empty() {
        c.prepare(Preparation::Nvram { path: nvram.clone(), template: template.clone() });
    }
    Boot::Efi {
        code: configuration.efi_code.clone(),
        vars_template: template,
        nvram,
        secure: configuration.secure_loader,
    }
}

fn kernel(c: &mut Conversion<'_>, firmware: &v1::Firmware) -> Option<KernelBoot> {
    let source = firmware.kernel_boot.as_ref()?;
    let mut kernel = KernelBoot { arguments: source.kernel_args.clone(), ..KernelBoot::default() };
    if let Some(container) = &source.container {
        match &c.ctx.kernel_boot {
            Some(files) => {
                if !container.kernel_path.is_empty() {
                    kernel.kernel.clone_from(&files.kernel);
                }
                if !container.initrd_path.is_empty() {
                    kernel.initrd.clone_from(&files.initrd);
                }
            }
            None if c.ctx.as_upstream => {
                let place = |path: &str| match path.rsplit('/').next() {
                    Some(base) if !path.is_empty() => {
                        format!("{}/kernel-boot/{base}", c.ctx.layout.container_disks)
                    }
                    _ => String::new(),
                };
                kernel.kernel = place(&container.kernel_path);
                kernel.initrd = place(&container.initrd_path);
            }
            None => c.refuse("spec.domain.firmware.kernelBoot.container", "the kernel image is not there"),
        }
    }
    Some(kernel)
}

fn acpi_tables(c: &mut Conversion<'_>, firmware: &v1::Firmware) -> Vec<AcpiTable> {
    let Some(acpi) = &firmware.acpi else {
        return Vec::new();
    };
    if acpi.slic_name_ref.is_empty() && acpi.msdm_name_ref.is_empty() {
        c.refuse("spec.domain.firmware.acpi", "needs slicNameRef or msdmNameRef");
    }
    let mut tables = Vec::new();
    for (kind, volume) in [("slic", &acpi.slic_name_ref), ("msdm", &acpi.msdm_name_ref)] {
        if volume.is_empty() {
            continue;
        }
        let field = format!("spec.domain.firmware.acpi.{kind}NameRef");
        match c.vmi.spec.volumes.iter().find(|candidate| candidate.name == *volume) {
            Some(found) if found.secret.is_some() => tables.push(AcpiTable {
                kind: kind.into(),
                path: format!("{}/secret/{volume}/{kind}.bin", c.ctx.layout.private),
            }),
            Some(_) => c.refuse(field, format!("volume {volume:?} is not a secret")),
            None => c.refuse(field, format!("there is no volume {volume:?}")),
        }
    }
    tables
}

fn entry(name: &str, value: &str) -> (String, String) {
    (name.into(), value.into())
}
