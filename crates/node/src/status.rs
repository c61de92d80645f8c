//! From what the launcher reports to what the instance's status says. Pure.

use ferrovirt_api::v1::{
    CPUTopology, Machine, MemoryStatus, VirtualMachineInstance, VirtualMachineInstanceNetworkInterface,
    VirtualMachineInstanceStatus, VolumeStatus,
    values::{virtual_machine_instance_condition_type as condition, virtual_machine_instance_phase as phase},
};
use ferrovirt_machine::{
    protocol::{GuestFacts, MachinePhase, MachineState, PauseReason, StopReason},
    spec::{MachineSpec, Topology},
};
use ferrovirt_plan::conditions::{enter_phase, is_controllers_word, remove_vmi, set_vmi};
use k8s_openapi::apimachinery::pkg::{api::resource::Quantity, apis::meta::v1::Time};

use crate::{claims::Claimed, guest, migratable, network::Attached};

/// Reason of an instance that never ran.
pub(crate) const START_FAILED: &str = "StartFailed";
/// Upstream's words for a domain that could not be made, which its clients compare.
const NOT_SYNCHRONIZED: &str = "Synchronizing with the Domain failed.";

/// What the machine was given, as far as the status tells it. Kept as long as the machine runs, unlike the whole of its spec.
pub(crate) struct Given {
    /// Names and targets.
    disks: Vec<(String, String)>,
    topology: Topology,
    memory_bytes: u64,
}

impl From<&MachineSpec> for Given {
    fn from(spec: &MachineSpec) -> Self {
        Self {
            disks: spec.devices.disks.iter().map(|disk| (disk.name.clone(), disk.target.clone())).collect(),
            topology: spec.cpu.topology.clone(),
            memory_bytes: spec.memory.bytes,
        }
    }
}

/// How an instance ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct End {
    pub succeeded: bool,
    pub reason: &'static str,
    pub message: String,
}

impl End {
    pub(crate) fn of(state: &MachineState, deleting: bool) -> Self {
        let message = |default: &str| state.message.clone().unwrap_or_else(|| default.into());
        match state.stop_reason {
            Some(StopReason::GuestShutdown) => {
                Self { succeeded: true, reason: "GuestPoweredDown", message: message("the guest powered off") }
            }
            // Ended from outside because somebody asked for it.
            Some(StopReason::Destroyed) if deleting => {
                Self { succeeded: true, reason: "Destroyed", message: message("the guest was stopped") }
            }
            Some(StopReason::Destroyed) => {
                Self { succeeded: false, reason: "Destroyed", message: message("the guest was ended from outside") }
            }
            Some(StopReason::StartFailed) => {
                Self { succeeded: false, reason: START_FAILED, message: message("the guest could not be started") }
            }
            Some(StopReason::Crashed) | None => {
                Self { succeeded: false, reason: "Crashed", message: message("the guest crashed") }
            }
        }
    }
}

/// Writes the machine's state into the status while it runs.
/// A daemon that ends so often ends again; before, a new one makes up for it.
const TOO_MANY_LOSSES: u32 = 3;
pub(crate) const DAEMON_UNSTABLE: &str = "LibvirtUnstable";

/// What to say about a daemon that does not stay up. The guest does not depend on it.
pub(crate) fn daemon_trouble(state: &MachineState) -> Option<String> {
    (state.daemon_losses >= TOO_MANY_LOSSES).then(|| {
        format!(
            "libvirt's daemon ended {} times; the guest runs on, and a new daemon was started each time. Look at the log of the \
             launcher pod for the reason, and restart the VM when it suits",
            state.daemon_losses
        )
    })
}

pub(crate) const FILESYSTEM_LOST: &str = "FilesystemLost";

/// What to say about shared file systems that no longer answer.
pub(crate) fn filesystem_trouble(state: &MachineState) -> Option<String> {
    let lost: Vec<String> = state.lost_filesystems.iter().map(|(name, why)| format!("{name} ({why})")).collect();
    (!lost.is_empty()).then(|| {
        format!(
            "the virtiofs daemon of {} ended, and what the guest has mounted from there no longer answers. Look at the log of the \
             launcher pod for the reason, and restart the VM: a hypervisor does not connect to a new daemon",
            lost.join(", ")
        )
    })
}

/// What to say about a change that the running machine did not take.
pub(crate) fn change_trouble(state: &MachineState) -> Option<String> {
    let problem = state.applied.as_ref()?.problem.as_ref()?;
    Some(format!("the change did not reach the guest: {problem}. It is made when the VM starts again"))
}

pub(crate) fn mirror(
    status: &mut VirtualMachineInstanceStatus,
    vmi: &VirtualMachineInstance,
    state: &MachineState,
    emulation: Option<&str>,
    now: &Time,
) {
    let running = matches!(state.phase, MachinePhase::Running | MachinePhase::Paused | MachinePhase::ShuttingDown);
    if !running {
        return;
    }
    enter_phase(status, now, phase::RUNNING);
    status.reason = String::new();
    let paused = state.phase == MachinePhase::Paused;
    let probed = vmi.spec.readiness_probe.is_some();
    if paused {
        let (reason, message) = match state.pause_reason {
            Some(PauseReason::IoError) => ("PausedIOError", "VMI was paused, low-level IO error detected"),
            _ => ("PausedByUser", "VMI was paused by user"),
        };
        set_vmi(&mut status.conditions, now, condition::PAUSED, true, reason, message);
        set_vmi(&mut status.conditions, now, condition::READY, false, "GuestPaused", "the guest is paused");
    } else {
        remove_vmi(&mut status.conditions, condition::PAUSED);
        if !probed && !is_controllers_word(&status.conditions) {
            set_vmi(&mut status.conditions, now, condition::READY, true, "", "");
        }
    }
    if let Some(message) = daemon_trouble(state) {
        set_vmi(&mut status.conditions, now, condition::SYNCHRONIZED, false, DAEMON_UNSTABLE, &message);
    }
    if let Some(message) = filesystem_trouble(state) {
        set_vmi(&mut status.conditions, now, condition::SYNCHRONIZED, false, FILESYSTEM_LOST, &message);
    }
    match emulation {
        Some(why) => {
            let message = format!("the guest runs without hardware virtualization: {why}");
            set_vmi(&mut status.conditions, now, condition::SOFTWARE_EMULATION, true, "SoftwareEmulation", &message);
        }
        None => remove_vmi(&mut status.conditions, condition::SOFTWARE_EMULATION),
    }
    if state.agent_connected {
        set_vmi(&mut status.conditions, now, condition::AGENT_CONNECTED, true, "", "");
    } else {
        remove_vmi(&mut status.conditions, condition::AGENT_CONNECTED);
    }
    match &state.credentials_problem {
        None => remove_vmi(&mut status.conditions, condition::ACCESS_CREDENTIALS_SYNCHRONIZED),
        Some(problem) => {
            let reason = if problem.is_empty() { "" } else { "AccessCredentialsSyncFailed" };
            set_vmi(
                &mut status.conditions,
                now,
                condition::ACCESS_CREDENTIALS_SYNCHRONIZED,
                problem.is_empty(),
                reason,
                problem,
            );
        }
    }
    for (type_, obstacle) in [
        (condition::LIVE_MIGRATABLE, migratable::live(vmi)),
        (condition::STORAGE_LIVE_MIGRATABLE, migratable::storage(vmi)),
    ] {
        set_vmi(&mut status.conditions, now, type_, false, obstacle.reason, &obstacle.message);
    }
    if let Some(type_) = &state.machine_type {
        status.machine = Some(Machine { type_: type_.clone() });
    }
}

/// Writes what the machine was given: disks, interfaces, CPU and memory.
pub(crate) fn describe(
    status: &mut VirtualMachineInstanceStatus,
    given: &Given,
    networks: &[Attached],
    claimed: &[Claimed],
) {
    let info = |name: &str| claimed.iter().find(|claim| claim.volume() == name).map(Claimed::info);
    status.volume_status = given
        .disks
        .iter()
        .map(|(name, target)| VolumeStatus {
            name: name.clone(),
            target: target.clone(),
            persistent_volume_claim_info: info(name),
            ..Default::default()
        })
        .collect();
    status.interfaces = networks
        .iter()
        .map(|network| VirtualMachineInstanceNetworkInterface {
            name: network.name.clone(),
            mac: network.info.mac.clone().unwrap_or_default(),
            ip_address: network.addresses.first().map(ToString::to_string).unwrap_or_default(),
            ip_addresses: network.addresses.iter().map(ToString::to_string).collect(),
            pod_interface_name: network.pod_interface.clone(),
            info_source: "domain".into(),
            queue_count: i32::try_from(network.queues).unwrap_or(1),
            link_state: "up".into(),
            ..Default::default()
        })
        .collect();
    let topology = &given.topology;
    status.current_cpu_topology =
        Some(CPUTopology { cores: topology.cores, sockets: topology.sockets, threads: topology.threads });
    let guest = Some(Quantity(mebibytes(given.memory_bytes)));
    status.memory = Some(MemoryStatus {
        guest_at_boot: guest.clone(),
        guest_current: guest.clone(),
        guest_requested: guest,
        memory_overhead: status.memory.take().and_then(|m| m.memory_overhead),
    });
}

/// Writes what the guest says of itself; `describe` must have written the interfaces before.
pub(crate) fn guest(
    status: &mut VirtualMachineInstanceStatus,
    vmi: &VirtualMachineInstance,
    facts: Option<&GuestFacts>,
) {
    let Some(facts) = facts else {
        status.fs_freeze_status = String::new();
        return;
    };
    status.guest_os_info = guest::os(&facts.os);
    status.fs_freeze_status = if facts.frozen { guest::FROZEN.into() } else { String::new() };
    guest::interfaces(&mut status.interfaces, vmi, &facts.interfaces);
}

pub(crate) fn ended(status: &mut VirtualMachineInstanceStatus, end: &End, now: &Time) {
    enter_phase(status, now, if end.succeeded { phase::SUCCEEDED } else { phase::FAILED });
    status.reason = end.reason.into();
    remove_vmi(&mut status.conditions, condition::PAUSED);
    remove_vmi(&mut status.conditions, condition::AGENT_CONNECTED);
    set_vmi(&mut status.conditions, now, condition::READY, false, "GuestNotRunning", &end.message);
    if end.reason == START_FAILED {
        set_vmi(&mut status.conditions, now, condition::SYNCHRONIZED, false, NOT_SYNCHRONIZED, &end.message);
    }
}

fn mebibytes(bytes: u64) -> String {
    match bytes {
        bytes if bytes.is_multiple_of(1 << 30) => format!("{}Gi", bytes >> 30),
        bytes if bytes.is_multiple_of(1 << 20) => format!("{}Mi", bytes >> 20),
        bytes => bytes.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_domain_that_could_not_be_made_is_not_synchronized() {
        for (reason, expected) in [(START_FAILED, Some(NOT_SYNCHRONIZED)), ("Crashed", None)] {
            let mut status = VirtualMachineInstanceStatus::default();
            let end = End { succeeded: false, reason, message: "no such disk".into() };
            ended(&mut status, &end, &Time("2026-11-18T08:00:00Z".parse().unwrap()));
            assert_eq!(status.phase, phase::FAILED);
            let said = status.conditions.iter().find(|one| one.type_ == condition::SYNCHRONIZED);
            assert_eq!(said.map(|one| one.reason.as_str()), expected);
            assert!(said.is_none_or(|one| one.status == "False" && one.message == "no such disk"));
        }
    }
}
