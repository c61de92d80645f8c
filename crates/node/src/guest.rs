//! What the guest agent told, in upstream's shapes. Pure.

use ferrovirt_api::v1::{
    GuestAgentCommandInfo, VirtualMachineInstanceFileSystem, VirtualMachineInstanceFileSystemDisk,
    VirtualMachineInstanceFileSystemInfo, VirtualMachineInstanceFileSystemList, VirtualMachineInstanceGuestAgentInfo,
    VirtualMachineInstanceGuestOSInfo, VirtualMachineInstanceGuestOSUser, VirtualMachineInstanceGuestOSUserList,
};
use ferrovirt_machine::protocol::{GuestFilesystem, GuestOs, GuestReport, GuestUser};

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
