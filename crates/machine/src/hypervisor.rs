//! What is known of a hypervisor without running it. One trait, one registry; nothing else looks at a hypervisor's name.
//!
//! How libvirt is started for it is the launcher's side (`launcher::LibvirtRuntime`).

mod cloud_hypervisor;
mod lxc;
mod qemu_kvm;

use crate::{
    features::Gap,
    spec::{Acceleration, MachineSpec},
};

/// The hypervisor of a VMI that names none.
pub const DEFAULT: &str = "qemu-kvm";

pub trait Hypervisor: Send + Sync {
    /// Its name in `spec.hypervisor`.
    fn name(&self) -> &'static str;

    /// What its guests are.
    fn guest(&self) -> Guest {
        Guest::Machine
    }

    /// What its launcher image is called after the common name; none where the common one has it.
    fn image_suffix(&self) -> &'static str {
        ""
    }

    /// What its processes need beside the guest's memory.
    fn overheads(&self, acceleration: Acceleration) -> Overheads;

    /// True if it reads ISO images; otherwise made volumes are raw disks with a file system.
    fn supports_iso(&self) -> bool;

    /// The device resource that a pod asks for, or none if it needs no device.
    fn device(&self) -> Option<&'static str>;

    /// True if it can run without its device, more slowly.
    fn can_emulate(&self) -> bool;

    /// The device without which it does not run at all.
    fn needed_device(&self) -> Option<&'static str> {
        self.device().filter(|_| !self.can_emulate())
    }

    /// True if the launcher's container has to be privileged.
    fn runs_privileged(&self) -> bool;

    /// The number of the vCPU that a thread with this name runs, if it runs one.
    fn vcpu_of_thread(&self, name: &str) -> Option<u32>;

    /// Where libvirt listens inside the launcher's container.
    fn libvirt_socket(&self) -> &'static str;

    /// Name of the disk driver in domain XML.
    fn disk_driver(&self) -> &'static str;

    /// True if a machine boots only from devices with a boot order.
    fn requires_boot_order(&self) -> bool;

    fn supports_memory_ballooning(&self) -> bool;

    /// True if what the guest writes to its console can be kept in a file.
    fn logs_console(&self) -> bool {
        true
    }

    /// The features it does not have, each with the reason.
    fn gaps(&self) -> &'static [Gap];

    /// The machine in the language of its libvirt driver.
    fn domain_xml(&self, spec: &MachineSpec) -> String;
}

/// What runs inside, and so what it needs from outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Guest {
    /// A kernel of its own: boots from disks, plugged into taps.
    Machine,
    /// The node's kernel: starts from a tree of files, plugged into bridges, with user ids of its own.
    Container,
}

/// Resident memory of each process of a machine, in bytes, without the guest's own.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Overheads {
    /// The process that keeps the launcher's exit status.
    pub monitor: u64,
    pub launcher: u64,
    pub log_daemon: u64,
    /// libvirt's daemon.
    pub daemon: u64,
    /// The hypervisor's process, stressed, without guest memory and page tables.
    pub hypervisor: u64,
}

impl Overheads {
    pub fn total(self) -> u64 {
        self.monitor + self.launcher + self.log_daemon + self.daemon + self.hypervisor
    }
}

/// A name of the list, with its driver or why there is none.
pub struct Known {
    pub name: &'static str,
    pub driver: Result<&'static dyn Hypervisor, &'static str>,
}

/// All names that `spec.hypervisor` may take, in libvirt's order.
pub static KNOWN: [Known; 11] = [
    Known { name: DEFAULT, driver: Ok(&qemu_kvm::QemuKvm) },
    Known { name: "lxc", driver: Ok(&lxc::Lxc) },
    missing("openvz", "libvirt manages OpenVZ only on hosts with its kernel, which cannot run in a pod"),
    missing("vbox", "needs VirtualBox's kernel modules and service on the node"),
    missing("esx", "is a remote machine: libvirt has no local driver for it"),
    missing("vmware", "needs VMware Workstation or Player, which is not redistributable"),
    missing("xen", "needs a node booted under Xen as its control domain"),
    missing("hyperv", "is a remote machine: libvirt has no local driver for it"),
    missing("virtuozzo", "needs Virtuozzo's own kernel and dispatcher on the node"),
    missing("bhyve", "runs on FreeBSD only"),
    Known { name: "cloud-hypervisor", driver: Ok(&cloud_hypervisor::CloudHypervisor) },
];

/// All that there are.
pub fn drivers() -> impl Iterator<Item = &'static dyn Hypervisor> {
    KNOWN.iter().filter_map(|known| known.driver.ok())
}

/// True if a cluster that lists these names admits this one. One that lists none admits the default, for which upstream has another
/// word.
pub fn is_admitted<'a>(listed: impl IntoIterator<Item = &'a str>, name: &str) -> bool {
    let mut listed = listed.into_iter().peekable();
    match listed.peek() {
        None => name == DEFAULT,
        Some(_) => listed.any(|entry| entry == name || (entry == "kvm" && name == DEFAULT)),
    }
}

/// The driver of this name, if there is one.
pub fn hypervisor(name: &str) -> Option<&'static dyn Hypervisor> {
    KNOWN.iter().find(|known| known.name == name).and_then(|known| known.driver.ok())
}

/// The driver of this name, or a sentence that says why there is none and what there is.
pub fn find(name: &str) -> Result<&'static dyn Hypervisor, String> {
    let implemented: Vec<&str> = KNOWN.iter().filter(|known| known.driver.is_ok()).map(|known| known.name).collect();
    let implemented = implemented.join(", ");
    match KNOWN.iter().find(|known| known.name == name) {
        Some(Known { driver: Ok(driver), .. }) => Ok(*driver),
        Some(Known { driver: Err(reason), .. }) => {
            Err(format!("hypervisor {name:?} cannot be used: {reason}; available: {implemented}"))
        }
        None => Err(format!("there is no hypervisor {name:?}; available: {implemented}")),
    }
}

const fn missing(name: &'static str, reason: &'static str) -> Known {
    Known { name, driver: Err(reason) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_without_a_driver_is_refused_with_what_there_is() {
        assert!(hypervisor(DEFAULT).is_some());
        for (name, expected) in
            [("xen", "control domain; available: qemu-kvm, lxc, cloud-hypervisor"), ("acrn", "no hypervisor \"acrn\"")]
        {
            let error = find(name).err().unwrap_or_default();
            assert!(error.contains(expected), "{error}");
        }
    }
}
