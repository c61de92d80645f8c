//! What a guest boots with besides its disks: EFI firmware of the launcher's image, and a kernel out of an image.

use std::fs::File;

use ferrovirt_api::v1::VirtualMachineInstance;
use ferrovirt_machine::convert::{EfiConfiguration, FieldError, KernelFiles};
use rustix::fs::OFlags;

use crate::process::Process;

/// Where distributions keep the firmware: code, then the template of its variables.
const PLAIN: &[(&str, &str)] = &[
    ("/usr/share/OVMF/OVMF_CODE_4M.fd", "/usr/share/OVMF/OVMF_VARS_4M.fd"),
    ("/usr/share/OVMF/OVMF_CODE.fd", "/usr/share/OVMF/OVMF_VARS.fd"),
    ("/usr/share/AAVMF/AAVMF_CODE.fd", "/usr/share/AAVMF/AAVMF_VARS.fd"),
];
/// The same with secure boot: the code insists on signatures, and the variables hold the vendors' keys.
const SECURE: &[(&str, &str)] = &[
    ("/usr/share/OVMF/OVMF_CODE_4M.secboot.fd", "/usr/share/OVMF/OVMF_VARS_4M.ms.fd"),
    ("/usr/share/OVMF/OVMF_CODE.secboot.fd", "/usr/share/OVMF/OVMF_VARS.ms.fd"),
    ("/usr/share/OVMF/OVMF_CODE.secboot.fd", "/usr/share/OVMF/OVMF_VARS.secboot.fd"),
];
/// Where the pod mounts the image with the kernel.
const KERNEL_BOOT: &str = "/var/run/kubevirt/container-disks/kernel-boot";

/// The firmware that the instance asks for, if the launcher's image has it.
pub(crate) fn efi(vmi: &VirtualMachineInstance, launcher: &Process) -> Option<EfiConfiguration> {
    let there = |path: &str| is_file(launcher, path);
    let loader = vmi.spec.domain.firmware.as_ref().and_then(|firmware| firmware.bootloader.as_ref());
    let secure = loader.and_then(|loader| loader.efi.as_ref()).is_some_and(|efi| efi.secure_boot != Some(false));
    let known = if secure { SECURE } else { PLAIN };
    let (code, vars) = known.iter().find(|(code, vars)| there(code) && there(vars))?;
    Some(EfiConfiguration {
        efi_code: (*code).into(),
        efi_vars: (*vars).into(),
        secure_loader: secure,
        ..Default::default()
    })
}

/// The kernel and the initial file system that the instance takes from an image.
pub(crate) fn kernel(vmi: &VirtualMachineInstance, launcher: &Process) -> Result<Option<KernelFiles>, Vec<FieldError>> {
    let Some(files) = kernel_files(vmi) else { return Ok(None) };
    let mut errors = vec![];
    for (field, path) in [("kernelPath", &files.kernel), ("initrdPath", &files.initrd)] {
        if !path.is_empty() && !is_file(launcher, path) {
            let field = format!("spec.domain.firmware.kernelBoot.container.{field}");
            errors.push(FieldError { field, message: "the image has no such file".into() });
        }
    }
    if errors.is_empty() { Ok(Some(files)) } else { Err(errors) }
}

/// Where those files are in the launcher's file tree.
pub(crate) fn kernel_files(vmi: &VirtualMachineInstance) -> Option<KernelFiles> {
    let container = vmi.spec.domain.firmware.as_ref()?.kernel_boot.as_ref()?.container.as_ref()?;
    let place = |path: &str| match path {
        "" => String::new(),
        path => format!("{KERNEL_BOOT}/{}", path.trim_start_matches('/')),
    };
    Some(KernelFiles { kernel: place(&container.kernel_path), initrd: place(&container.initrd_path) })
}

/// The tree is an image's word, so no link in it may lead out of it.
fn is_file(launcher: &Process, path: &str) -> bool {
    let opened = launcher.open(path, OFlags::RDONLY);
    opened.is_ok_and(|file| File::from(file).metadata().is_ok_and(|metadata| metadata.is_file()))
}
