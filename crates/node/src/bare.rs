//! A machine for a launcher without a process of its own: there is no namespace to bind a network in and no file tree to
//! find disks in, so the specification is made from the instance alone.

use ferrovirt_api::v1::VirtualMachineInstance;
use ferrovirt_machine::{
    convert::{ContainerDisk, Context, EfiConfiguration, FieldError, InterfaceInfo, machine_spec},
    spec::{Arch, DiskFormat, MachineSpec},
};

use crate::boot;

pub(crate) fn spec(vmi: &VirtualMachineInstance, arch: Arch) -> Result<MachineSpec, Vec<FieldError>> {
    let disk = || ContainerDisk { path: "/disk/disk.img".into(), format: DiskFormat::Raw, size: None };
    let images = vmi.spec.volumes.iter().filter(|volume| volume.container_disk.is_some());
    let mut context = Context {
        arch,
        allow_emulation: true,
        efi_configuration: Some(EfiConfiguration::default()),
        kernel_boot: boot::kernel_files(vmi),
        container_disks: images.map(|volume| (volume.name.clone(), disk())).collect(),
        ..Default::default()
    };
    for interface in &vmi.spec.domain.devices.interfaces {
        let info = InterfaceInfo { tap: Some("tap0".into()), ..Default::default() };
        context.interfaces.insert(interface.name.clone(), info);
        context.domain_attachment_by_interface_name.insert(interface.name.clone(), "tap".into());
    }
    let mut defaulted = vmi.clone();
    ferrovirt_machine::defaults::apply(&mut defaulted, arch);
    ferrovirt_plan::defaults::without_room(&mut defaulted.spec);
    machine_spec(&defaulted, &context)
}
