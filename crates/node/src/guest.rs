//! What the guest agent told, in upstream's shapes. Pure.

use ferrovirt_api::v1::{
    GuestAgentCommandInfo, VirtualMachineInstance, VirtualMachineInstanceFileSystem,
    VirtualMachineInstanceFileSystemDisk, VirtualMachineInstanceFileSystemInfo, VirtualMachineInstanceFileSystemList,
    VirtualMachineInstanceGuestAgentInfo, VirtualMachineInstanceGuestOSInfo, VirtualMachineInstanceGuestOSUser,
    VirtualMachineInstanceGuestOSUserList, VirtualMachineInstanceNetworkInterface,
};
use ferrovirt_machine::protocol::{GuestFilesystem, GuestInterface, GuestOs, GuestReport, GuestUser};

/// `status.fsFreezeStatus` and its likes while file systems are frozen.
pub(crate) const FROZEN: &str = "frozen";

pub(crate) fn agent_info(report: &GuestReport) -> VirtualMachineInstanceGuestAgentInfo {
    let commands = report.commands.iter();
    VirtualMachineInstanceGuestAgentInfo {
        guest_agent_version: report.agent_version.clone(),
        supported_commands: commands
            .map(|command| GuestAgentCommandInfo { name: command.name.clone(), enabled: command.enabled })
            .collect(),
        hostname: report.facts.hostname.clone(),
        os: os(&report.facts.os),
        timezone: report.facts.timezone.clone(),
        user_list: report.users.iter().map(user).collect(),
        fs_info: VirtualMachineInstanceFileSystemInfo { disks: report.filesystems.iter().map(filesystem).collect() },
        fs_freeze_status: if report.facts.frozen { FROZEN.into() } else { String::new() },
    }
}

pub(crate) fn user_list(report: &GuestReport) -> VirtualMachineInstanceGuestOSUserList {
    VirtualMachineInstanceGuestOSUserList { items: report.users.iter().map(user).collect(), ..Default::default() }
}

pub(crate) fn filesystem_list(report: &GuestReport) -> VirtualMachineInstanceFileSystemList {
    VirtualMachineInstanceFileSystemList {
        items: report.filesystems.iter().map(filesystem).collect(),
        ..Default::default()
    }
}

pub(crate) fn os(os: &GuestOs) -> VirtualMachineInstanceGuestOSInfo {
    VirtualMachineInstanceGuestOSInfo {
        name: os.name.clone(),
        kernel_release: os.kernel_release.clone(),
        version: os.version.clone(),
        pretty_name: os.pretty_name.clone(),
        version_id: os.version_id.clone(),
        kernel_version: os.kernel_version.clone(),
        machine: os.machine.clone(),
        id: os.id.clone(),
    }
}

/// Adds what the guest says to the interfaces of its instance: an interface is known again by its hardware address.
///
/// Behind a masquerade the guest's address is of no use to anybody outside, so the pod's stays.
pub(crate) fn interfaces(
    known: &mut Vec<VirtualMachineInstanceNetworkInterface>,
    vmi: &VirtualMachineInstance,
    told: &[GuestInterface],
) {
    let masqueraded = |name: &str| {
        let mut interfaces = vmi.spec.domain.devices.interfaces.iter();
        interfaces.any(|interface| interface.name == name && interface.masquerade.is_some())
    };
    for guest in told {
        match known.iter_mut().find(|interface| !guest.mac.is_empty() && interface.mac.eq_ignore_ascii_case(&guest.mac))
        {
            Some(interface) => {
                interface.interface_name.clone_from(&guest.name);
                interface.info_source = "domain, guest-agent".into();
                if !masqueraded(&interface.name) && !guest.addresses.is_empty() {
                    set_addresses(interface, guest);
                }
            }
            None => {
                let mut interface = VirtualMachineInstanceNetworkInterface {
                    mac: guest.mac.clone(),
                    interface_name: guest.name.clone(),
                    info_source: "guest-agent".into(),
                    ..Default::default()
                };
                set_addresses(&mut interface, guest);
                known.push(interface);
            }
        }
    }
}

fn set_addresses(interface: &mut VirtualMachineInstanceNetworkInterface, guest: &GuestInterface) {
    interface.ip_address = guest.addresses.first().cloned().unwrap_or_default();
    interface.ip_addresses.clone_from(&guest.addresses);
}

fn user(user: &GuestUser) -> VirtualMachineInstanceGuestOSUser {
    VirtualMachineInstanceGuestOSUser {
        user_name: user.name.clone(),
        domain: user.domain.clone(),
        login_time: user.login_time,
    }
}

fn filesystem(filesystem: &GuestFilesystem) -> VirtualMachineInstanceFileSystem {
    let disks = filesystem.disks.iter();
    VirtualMachineInstanceFileSystem {
        disk_name: filesystem.name.clone(),
        mount_point: filesystem.mount_point.clone(),
        file_system_type: filesystem.kind.clone(),
        used_bytes: filesystem.used_bytes,
        total_bytes: filesystem.total_bytes,
        disk: disks
            .map(|disk| VirtualMachineInstanceFileSystemDisk {
                serial: disk.serial.clone(),
                bus_type: disk.bus.clone(),
            })
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn check(binding: &str, told: Value, expected: Value) {
        let spec = json!({ "domain": { "devices": { "interfaces": [{ "name": "default", binding: {} }] } } });
        let vmi = serde_json::from_value(json!({ "metadata": {}, "spec": spec })).unwrap();
        let known = json!([{ "name": "default", "mac": "02:00:00:00:00:01", "ipAddress": "10.1.0.5",
            "ipAddresses": ["10.1.0.5"], "infoSource": "domain" }]);
        let mut known = serde_json::from_value(known).unwrap();
        interfaces(&mut known, &vmi, &serde_json::from_value::<Vec<GuestInterface>>(told).unwrap());
        assert_eq!(serde_json::to_value(&known).unwrap(), expected);
    }

    #[test]
    fn interfaces_are_known_again_by_their_hardware_address() {
        let told = json!([{ "name": "enp1s0", "mac": "02:00:00:00:00:01", "addresses": ["10.0.2.2", "fe80::1"] }]);
        check(
            "masquerade",
            told.clone(),
            json!([{ "name": "default", "mac": "02:00:00:00:00:01", "ipAddress": "10.1.0.5",
                "ipAddresses": ["10.1.0.5"], "interfaceName": "enp1s0", "infoSource": "domain, guest-agent" }]),
        );
        check(
            "bridge",
            told,
            json!([{ "name": "default", "mac": "02:00:00:00:00:01", "ipAddress": "10.0.2.2",
                "ipAddresses": ["10.0.2.2", "fe80::1"], "interfaceName": "enp1s0", "infoSource": "domain, guest-agent" }]),
        );
        check(
            "masquerade",
            json!([{ "name": "docker0", "mac": "02:42:00:00:00:01", "addresses": ["172.17.0.1"] }]),
            json!([
                { "name": "default", "mac": "02:00:00:00:00:01", "ipAddress": "10.1.0.5", "ipAddresses": ["10.1.0.5"],
                    "infoSource": "domain" },
                { "mac": "02:42:00:00:00:01", "ipAddress": "172.17.0.1", "ipAddresses": ["172.17.0.1"],
                    "interfaceName": "docker0", "infoSource": "guest-agent" },
            ]),
        );
    }
}
