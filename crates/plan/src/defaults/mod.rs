//! What an object means where it says nothing, written into it as upstream writes it.
//!
//! Admission applies this before it judges, so that what is stored says what will run and what is judged is what runs. The
//! controllers apply it again, for objects that came past admission. All of it is idempotent.
//!
//! A VM gets what must outlive its instances ([`virtual_machine`]): architecture, machine type and identity. All else stays
//! open in it until an instance is made, so that the cluster's settings count from the next start on. An instance gets
//! everything ([`instance`]).

mod room;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use ferrovirt_api::{
    Quantity, names,
    v1::{
        CPUTopology, Disk, Interface, InterfaceBridge, InterfaceMasquerade, KubeVirtConfiguration, MemoryStatus,
        Network, PodNetwork, VirtualMachine, VirtualMachineInstance, VirtualMachineInstanceSpec,
        VirtualMachineInstanceStatus, values::virtual_machine_instance_phase as phase,
    },
};
use ferrovirt_machine::{defaults, spec::Arch};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};

use crate::{cluster_defaults as cluster, conditions};

pub use room::{obstacle_to_more_memory, without_room};

/// What upstream asks of a node for an instance that asks for no CPU time. The configuration's own value is written only if it
/// is another one.
const CPU_REQUEST: &str = "100m";
/// The user that a launcher runs as.
const LAUNCHER_USER: u64 = 107;

/// A default that the configuration asks for and that cannot be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Impossible {
    #[error("bridge interface is not enabled in kubevirt-config")]
    Bridge,
    #[error("slirp interface is deprecated as of v1.3")]
    Slirp,
}

/// Names that a new object gets and keeps. They come from outside: there are no dice here.
#[derive(Debug, Clone)]
pub struct Identity {
    pub uuid: String,
    pub serial: String,
}

/// Fills in what a VM keeps over all its instances. A VM that exists gets no new identity: its instances derive theirs from its
/// uid.
pub fn virtual_machine(vm: &mut VirtualMachine, configuration: &KubeVirtConfiguration, new: Option<Identity>) {
    let Some(template) = &mut vm.spec.template else { return };
    let spec = &mut template.spec;
    let is_new = new.is_some();
    if let Some(Identity { uuid, serial }) = new {
        let firmware = spec.domain.firmware.get_or_insert_default();
        if firmware.uuid.is_empty() {
            firmware.uuid = uuid;
        }
        if firmware.serial.is_empty() {
            firmware.serial = serial;
        }
    }
    machine(spec, configuration);
    if is_new {
        pci_topology(&mut template.metadata, spec);
    }
}

/// The part of [`instance`] that templates are judged with: size, network and disks, without the details of devices.
pub fn spec(spec: &mut VirtualMachineInstanceSpec, configuration: &KubeVirtConfiguration) -> Result<(), Impossible> {
    machine(spec, configuration);
    defaults::resource_requests(spec);
    cpu_request(spec, configuration);
    defaults::guest_memory(spec);
    defaults::guest_cpus(spec);
    defaults::pull_policies(spec);
    if spec.eviction_strategy.is_none() {
        spec.eviction_strategy = Some(configuration.eviction_strategy.clone().unwrap_or_else(|| "None".into()));
    }
    let network = add_network(spec, configuration);
    add_disks(spec);
    network
}

/// Fills in all that an instance leaves open. `annotations` are those of the `KubeVirt` object, some of which instances get.
pub fn instance(
    vmi: &mut VirtualMachineInstance,
    configuration: &KubeVirtConfiguration,
    annotations: &BTreeMap<String, String>,
) -> Result<(), Impossible> {
    spec(&mut vmi.spec, configuration)?;
    // Upstream treats one that it does not know like amd64, and refuses it afterwards.
    let arch = Arch::parse(&vmi.spec.architecture).unwrap_or_default();
    let model = match configuration.cpu_model.as_str() {
        "" => "host-model",
        model => model,
    };
    defaults::machine(vmi, arch, model);
    room::leave(&mut vmi.spec, configuration);
    pci_topology(&mut vmi.metadata, &vmi.spec);
    follow_cluster(vmi, configuration, annotations);
    Ok(())
}

/// The status that an instance begins with.
pub fn status(
    vmi: &VirtualMachineInstance,
    configuration: &KubeVirtConfiguration,
    now: Time,
) -> VirtualMachineInstanceStatus {
    let mut status = vmi.status.clone();
    let domain = &vmi.spec.domain;
    if let Some(guest) = domain.memory.as_ref().and_then(|memory| memory.guest.clone()) {
        status.memory = Some(MemoryStatus {
            guest_at_boot: Some(guest.clone()),
            guest_current: Some(guest.clone()),
            guest_requested: Some(guest),
            ..MemoryStatus::default()
        });
    }
    if let (Some(cpu), None) = (&domain.cpu, &status.current_cpu_topology) {
        let (sockets, cores, threads) = (cpu.sockets, cpu.cores, cpu.threads);
        status.current_cpu_topology = Some(CPUTopology { cores, sockets, threads });
    }
    if !cluster::feature_gate(configuration, "Root") {
        status.runtime_user = LAUNCHER_USER;
    }
    conditions::enter_phase(&mut status, &now, phase::PENDING);
    status
}

/// The input device that a VM's instance gets if it asks for one and names none. What kind it is, is a default like others.
pub fn attach_input(spec: &mut VirtualMachineInstanceSpec) {
    let devices = &mut spec.domain.devices;
    if devices.autoattach_input_device == Some(true) && devices.inputs.is_empty() {
        devices.inputs.push(ferrovirt_api::v1::Input { name: "default-0".into(), ..Default::default() });
    }
}

/// Architecture and machine type.
fn machine(spec: &mut VirtualMachineInstanceSpec, configuration: &KubeVirtConfiguration) {
    if spec.architecture.is_empty() {
        spec.architecture = cluster::architecture(configuration).into();
    }
    let type_ = cluster::machine_type(configuration, &spec.architecture).to_owned();
    defaults::machine_type(spec, &type_);
}

fn cpu_request(spec: &mut VirtualMachineInstanceSpec, configuration: &KubeVirtConfiguration) {
    let Some(wanted) = &configuration.cpu_request else { return };
    let usual = Quantity::parse(CPU_REQUEST).ok();
    let dedicated = spec.domain.cpu.as_ref().is_some_and(|cpu| cpu.dedicated_cpu_placement);
    if dedicated || Quantity::try_from(wanted).ok() == usual {
        return;
    }
    spec.domain.resources.requests.entry("cpu".into()).or_insert_with(|| wanted.clone());
}

/// Puts an instance that names no network on the pod network, bound as the configuration says; behind its pod's address if
/// that says nothing. Upstream's own default is a bridge, which takes the pod's address away from the pod and does not migrate.
fn add_network(spec: &mut VirtualMachineInstanceSpec, configuration: &KubeVirtConfiguration) -> Result<(), Impossible> {
    let devices = &mut spec.domain.devices;
    if devices.autoattach_pod_interface == Some(false) || !devices.interfaces.is_empty() || !spec.networks.is_empty() {
        return Ok(());
    }
    let mut interface = Interface { name: "default".into(), ..Default::default() };
    let network = configuration.network.as_ref();
    match network.map(|network| network.default_network_interface.as_str()) {
        Some("bridge") => {
            if network.is_some_and(|network| network.permit_bridge_interface_on_pod_network == Some(false)) {
                return Err(Impossible::Bridge);
            }
            interface.bridge = Some(InterfaceBridge {});
        }
        Some("slirp") => return Err(Impossible::Slirp),
        _ => interface.masquerade = Some(InterfaceMasquerade {}),
    }
    devices.interfaces.push(interface);
    spec.networks.push(Network { name: "default".into(), pod: Some(PodNetwork::default()), ..Default::default() });
    Ok(())
}

/// Gives every volume without a disk or a file system a disk of its name: `virtctl create vm` writes volumes only.
fn add_disks(spec: &mut VirtualMachineInstanceSpec) {
    let devices = &mut spec.domain.devices;
    let disks = devices.disks.iter().map(|disk| disk.name.clone());
    let shown: BTreeSet<String> = disks.chain(devices.filesystems.iter().map(|one| one.name.clone())).collect();
    let hidden = spec.volumes.iter().filter(|volume| {
        // These are not disks: one is a device of its own, the other is written to, not read from.
        volume.downward_metrics.is_none() && volume.memory_dump.is_none() && !shown.contains(&volume.name)
    });
    devices.disks.extend(hidden.map(|volume| Disk { name: volume.name.clone(), ..Default::default() }));
}

/// Which layout of PCI slots a machine has. It must not change over its life, so it is written down when it is made.
fn pci_topology(metadata: &mut ObjectMeta, spec: &VirtualMachineInstanceSpec) {
    let machine = spec.domain.machine.as_ref().map(|machine| machine.type_.as_str());
    let express = machine.is_none_or(|machine| machine.contains("q35") || machine.starts_with("virt"));
    if !express || !["", "amd64", "arm64"].contains(&spec.architecture.as_str()) {
        return;
    }
    let annotations = metadata.annotations.get_or_insert_default();
    let key = names::PCI_TOPOLOGY_VERSION_ANNOTATION;
    annotations.entry(key.into()).or_insert_with(|| names::PCI_TOPOLOGY_VERSION_V3.into());
}

/// What the whole cluster does in one way, and its launchers learn from their instance.
fn follow_cluster(
    vmi: &mut VirtualMachineInstance,
    configuration: &KubeVirtConfiguration,
    annotations: &BTreeMap<String, String>,
) {
    let domain = &vmi.spec.domain;
    let parity = names::EMULATOR_THREAD_COMPLETE_TO_EVEN_PARITY;
    let isolated = domain.cpu.as_ref().is_some_and(|cpu| cpu.isolate_emulator_thread);
    let own = &mut vmi.metadata.annotations;
    if isolated && annotations.contains_key(parity) && cluster::feature_gate(configuration, "AlignCPUs") {
        own.get_or_insert_default().insert(parity.into(), String::new());
    }
    if domain.launch_security.as_ref().is_some_and(|security| security.tdx.is_some()) {
        let socket = cluster::attestation_socket(configuration);
        if !socket.is_empty() {
            own.get_or_insert_default().insert(names::QGS_SOCKET_PATH_ANNOTATION.into(), socket.into());
        }
    }
}
