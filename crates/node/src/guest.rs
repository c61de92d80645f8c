//! What the guest agent told, in upstream's shapes. Pure.

use std::net::IpAddr;

use ferrovirt_api::v1::{
    GuestAgentCommandInfo, VirtualMachineInstance, VirtualMachineInstanceFileSystem,
    VirtualMachineInstanceFileSystemDisk, VirtualMachineInstanceFileSystemInfo, VirtualMachineInstanceFileSystemList,
    VirtualMachineInstanceGuestAgentInfo, VirtualMachineInstanceGuestOSInfo, VirtualMachineInstanceGuestOSUser,
    VirtualMachineInstanceGuestOSUserList, VirtualMachineInstanceNetworkInterface,
};
use ferrovirt_machine::protocol::{
    GuestFacts, GuestFilesystem, GuestInterface, GuestOs, GuestReport, GuestUser, MachineState,
};

/// Whatever a guest tells ends up in the API, in answers and on terminals, so it is bounded: so many characters of a text, none
/// of them a control character, and so many of a kind.
const TEXT: usize = 256;
const MESSAGE: usize = 4096;
const INTERFACES: usize = 64;
const ADDRESSES: usize = 32;
const LIST: usize = 256;

/// `status.fsFreezeStatus` and its likes while file systems are frozen.
pub(crate) const FROZEN: &str = "frozen";

pub(crate) fn bound_state(state: &mut MachineState) {
    cut(&mut state.uid, TEXT);
    for text in [&mut state.virt_type, &mut state.machine_type].into_iter().flatten() {
        cut(text, TEXT);
    }
    for text in [&mut state.message, &mut state.credentials_problem].into_iter().flatten() {
        cut(text, MESSAGE);
    }
    if state.lost_filesystems.len() > INTERFACES
        || state.lost_filesystems.iter().any(|(k, v)| k.len().max(v.len()) > TEXT)
    {
        let lost = std::mem::take(&mut state.lost_filesystems).into_iter().take(INTERFACES);
        state.lost_filesystems = lost
            .map(|(mut name, mut why)| {
                cut(&mut name, TEXT);
                cut(&mut why, TEXT);
                (name, why)
            })
            .collect();
    }
    if let Some(applied) = &mut state.applied {
        applied.at_restart.truncate(INTERFACES);
        applied.at_restart.iter_mut().for_each(|part| cut(part, TEXT));
        applied.problem.iter_mut().for_each(|problem| cut(problem, MESSAGE));
    }
    if let Some(facts) = &mut state.guest {
        bound_facts(facts);
    }
}

pub(crate) fn bound_report(report: &mut GuestReport) {
    cut(&mut report.agent_version, TEXT);
    bound_facts(&mut report.facts);
    report.commands.truncate(LIST);
    report.commands.iter_mut().for_each(|command| cut(&mut command.name, TEXT));
    report.users.truncate(LIST);
    for user in &mut report.users {
        cut(&mut user.name, TEXT);
        cut(&mut user.domain, TEXT);
    }
    report.filesystems.truncate(LIST);
    for filesystem in &mut report.filesystems {
        cut(&mut filesystem.name, TEXT);
        cut(&mut filesystem.mount_point, MESSAGE);
        cut(&mut filesystem.kind, TEXT);
        filesystem.disks.truncate(ADDRESSES);
        for disk in &mut filesystem.disks {
            cut(&mut disk.serial, TEXT);
            cut(&mut disk.bus, TEXT);
        }
    }
}

fn bound_facts(facts: &mut GuestFacts) {
    let os = &mut facts.os;
    let texts = [&mut facts.hostname, &mut facts.timezone, &mut os.id, &mut os.name, &mut os.pretty_name];
    let more = [&mut os.version, &mut os.version_id, &mut os.kernel_release, &mut os.kernel_version, &mut os.machine];
    texts.into_iter().chain(more).for_each(|text| cut(text, TEXT));
    facts.interfaces.truncate(INTERFACES);
    for interface in &mut facts.interfaces {
        cut(&mut interface.name, TEXT);
        cut(&mut interface.mac, TEXT);
        // What is no address, or nobody else's, says nothing about where the guest is.
        interface.addresses.retain(|address| {
            address.parse::<IpAddr>().is_ok_and(|ip| !(ip.is_loopback() || ip.is_unspecified() || ip.is_multicast()))
        });
        interface.addresses.truncate(ADDRESSES);
    }
}

fn cut(text: &mut String, most: usize) {
    if text.len() > most || text.chars().any(char::is_control) {
        *text = text.chars().filter(|character| !character.is_control()).take(most).collect();
    }
}

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
    fn a_guest_agent_without_measure_is_cut_short() {
        let long = "x".repeat(8 << 10);
        let one = json!({ "name": long, "mac": long, "addresses": vec!["10.0.0.1"; 100] });
        let liar = json!({ "name": "eth0", "mac": "02:00:00:00:00:01",
            "addresses": ["127.0.0.1", "::1", "0.0.0.0", "not an address", "224.0.0.1", "10.0.0.7"] });
        let mut interfaces = vec![liar];
        interfaces.extend(vec![one; 100]);
        let facts = json!({ "hostname": format!("a\u{1b}[2Jb\r\n{long}"), "timezone": long, "interfaces": interfaces,
            "os": { "name": long, "prettyName": long } });
        let mut report: GuestReport = serde_json::from_value(json!({
            "agentVersion": long, "facts": facts, "users": vec![json!({ "name": long, "domain": long }); 1000],
            "filesystems": vec![json!({ "name": "a", "disks": vec![json!({ "serial": long }); 40] }); 1000],
            "commands": vec![json!({ "name": "a" }); 10_000],
        }))
        .unwrap();
        bound_report(&mut report);
        assert!(report.facts.hostname.starts_with("a[2Jbx"), "{:?}", &report.facts.hostname[..8]);
        assert_eq!(report.facts.interfaces[0].addresses, ["10.0.0.7"]);
        assert!(serde_json::to_vec(&report).unwrap().len() < 4 << 20);
        assert!(serde_json::to_vec(&report.facts).unwrap().len() < 128 << 10, "what goes into the status is small");

        let mut state: MachineState = serde_json::from_value(json!({
            "generation": 1, "phase": "running", "uid": long, "message": long, "virtType": long, "guest": facts,
        }))
        .unwrap();
        let applied = json!({ "generation": 1, "atRestart": vec![long.clone(); 1000], "problem": long });
        state.applied = Some(serde_json::from_value(applied).unwrap());
        state.lost_filesystems = (0..1000).map(|number| (format!("{number}{long}"), long.clone())).collect();
        bound_state(&mut state);
        assert!(serde_json::to_vec(&state).unwrap().len() < 256 << 10);
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
