//! How far a running instance could grow: the sockets and the memory that it may get later.
//!
//! Upstream writes both into every instance of a cluster that updates VMs while they run, and so does this: an object is the
//! same wherever it was made. Machines do not grow here yet, so nodes make them without the room ([`without_room`]): guests see
//! what they have, and a change of either asks for a restart.

use ferrovirt_api::{
    Quantity,
    v1::{KubeVirtConfiguration, NUMA, VirtualMachineInstanceSpec},
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as WireQuantity;

/// So many times its present size, unless the configuration says another number.
const RATIO: u32 = 4;
/// Machine types differ in how many CPUs they take; this many all of them do.
const MAX_CPUS: u32 = 512;
const LEAST_MEMORY: i64 = 1 << 30;

pub(super) fn leave(spec: &mut VirtualMachineInstanceSpec, configuration: &KubeVirtConfiguration) {
    let live = configuration.vm_rollout_strategy.as_deref().is_none_or(|strategy| strategy == "LiveUpdate");
    if spec.architecture == "arm64" || !live {
        return;
    }
    sockets(spec, configuration);
    memory(spec, configuration);
}

fn ratio(configuration: &KubeVirtConfiguration) -> u32 {
    let own = configuration.live_update_configuration.as_ref().map_or(0, |live| live.max_hotplug_ratio);
    if own == 0 { RATIO } else { own }
}

fn sockets(spec: &mut VirtualMachineInstanceSpec, configuration: &KubeVirtConfiguration) {
    let Some(cpu) = spec.domain.cpu.as_mut().filter(|cpu| cpu.max_sockets == 0) else { return };
    let most = configuration.live_update_configuration.as_ref().and_then(|live| live.max_cpu_sockets).unwrap_or(0);
    if most != 0 {
        cpu.max_sockets = most.max(cpu.sockets);
        return;
    }
    cpu.max_sockets = cpu.sockets.saturating_mul(ratio(configuration));
    let per_socket = cpu.cores.saturating_mul(cpu.threads);
    if per_socket != 0 && cpu.max_sockets.saturating_mul(per_socket) > MAX_CPUS {
        cpu.max_sockets = (MAX_CPUS / per_socket).max(cpu.sockets);
    }
}

fn memory(spec: &mut VirtualMachineInstanceSpec, configuration: &KubeVirtConfiguration) {
    let Some(memory) = spec.domain.memory.as_ref().filter(|memory| memory.max_guest.is_none()) else { return };
    let own = configuration.live_update_configuration.as_ref().and_then(|live| live.max_guest.clone());
    let times = i64::from(ratio(configuration));
    let most = own.or_else(|| {
        let bytes = value(memory.guest.as_ref()?).saturating_mul(times);
        u64::try_from(bytes).ok().map(|bytes| WireQuantity(Quantity::bytes(bytes).to_string()))
    });
    let Some(most) = most.filter(|most| obstacle_to_more_memory(spec, most).is_none()) else { return };
    if let Some(memory) = &mut spec.domain.memory {
        memory.max_guest = Some(most);
    }
}

fn value(amount: &WireQuantity) -> i64 {
    Quantity::try_from(amount).map_or(0, Quantity::value)
}

/// Why an instance cannot grow to this much memory, in upstream's words.
pub fn obstacle_to_more_memory(spec: &VirtualMachineInstanceSpec, most: &WireQuantity) -> Option<String> {
    let domain = &spec.domain;
    let memory = domain.memory.as_ref();
    let huge = memory.and_then(|memory| memory.hugepages.as_ref()).is_some_and(|pages| pages.page_size == "1Gi");
    let (block, unit) = if huge { (1 << 30, "1Gi") } else { (2 << 20, "2Mi") };
    let guest = memory.and_then(|memory| memory.guest.as_ref());
    let (asked, most) = (guest.map_or(0, value), value(most));
    let cpu = domain.cpu.as_ref();
    let passthrough = |numa: &NUMA| numa.guest_mapping_passthrough.is_some();
    let message = if cpu.is_some_and(|cpu| cpu.realtime.is_some()) {
        "Memory hotplug is not compatible with realtime VMs".to_owned()
    } else if cpu.and_then(|cpu| cpu.numa.as_ref()).is_some_and(passthrough) {
        "Memory hotplug is not compatible with guest mapping passthrough".to_owned()
    } else if domain.launch_security.is_some() {
        "Memory hotplug is not compatible with encrypted VMs".to_owned()
    } else if guest.is_none() {
        "Guest memory must be configured when memory hotplug is enabled".to_owned()
    } else if asked > most {
        "Guest memory is greater than the configured maxGuest memory".to_owned()
    } else if asked % block != 0 {
        format!("Guest memory must be {unit} aligned")
    } else if most % block != 0 {
        format!("MaxGuest must be {unit} aligned")
    } else if spec.architecture != "amd64" {
        "Memory hotplug is only available for x86_64 VMs".to_owned()
    } else if asked < LEAST_MEMORY {
        "Memory hotplug is only available for VMs with at least 1Gi of guest memory".to_owned()
    } else {
        return None;
    };
    Some(message)
}

/// The machine that a node makes of it: of its present size.
pub fn without_room(spec: &mut VirtualMachineInstanceSpec) {
    if let Some(cpu) = &mut spec.domain.cpu {
        cpu.max_sockets = 0;
    }
    if let Some(memory) = &mut spec.domain.memory {
        memory.max_guest = None;
    }
}
