//! The machine: what is to run, with every question already answered.
//!
//! The node agent makes a [`MachineSpec`] from a VirtualMachineInstance and what it knows of the node; the launcher turns it
//! into its hypervisor's own language. All paths are paths inside the launcher's container. Nothing here names Kubernetes.
//!
//! Order is meaning: devices, timers and CPU features are printed as they stand in their lists. `None` and empty lists mean
//! "leave it to the hypervisor", never "decide for yourself", except where a field's comment says so.

mod container;
mod credentials;
mod devices;
mod dhcp;
mod disk;
mod firmware;
mod host_metrics;
mod prepare;
mod words;

use serde::{Deserialize, Serialize};

pub use container::*;
pub use credentials::*;
pub use devices::*;
pub use dhcp::*;
pub use disk::*;
pub use firmware::*;
pub use host_metrics::*;
pub use prepare::*;
pub use words::*;

/// The version of this format. A launcher refuses a spec that is newer than its own.
pub const SPEC_VERSION: u32 = 1;

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct MachineSpec {
    pub version: u32,
    /// Name of the domain, `<namespace>_<name>`.
    pub name: String,
    /// Identity of this run of the machine. A launcher runs one uid in its life.
    pub uid: String,
    /// Key of the hypervisor registry, such as `qemu-kvm`.
    pub hypervisor: String,
    pub arch: Arch,
    pub acceleration: Acceleration,
    /// Kind of domain, where the acceleration alone does not say it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub domain_type: Option<String>,
    /// Bound of the code translation cache when emulating, in MiB. QEMU's own default is a gigabyte.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub translation_cache_mib: Option<u32>,
    pub memory: Memory,
    pub cpu: Cpu,
    pub firmware: Firmware,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub system_info: Option<SystemInfo>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clock: Option<Clock>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub features: Option<Features>,
    pub devices: Devices,
    /// For a guest that is a container: what it has instead of firmware and disks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub container: Option<Container>,
    /// Number of threads that serve disks beside the main loop.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub io_threads: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub launch_security: Option<LaunchSecurity>,
    /// Pass host devices through the kernel's newer interface.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub iommufd: bool,
    /// What a reboot of the guest does. `None` restarts it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_reboot: Option<RebootAction>,
    /// Extra arguments for the hypervisor process, for what its management layer cannot say.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub extra_arguments: Vec<String>,
    /// Bring the domain up without starting its CPUs.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub start_paused: bool,
    /// How long a shutdown waits for the guest before it is ended.
    pub grace_seconds: u64,
    /// Servers that tell the guest its addresses.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub dhcp: Vec<DhcpServer>,
    /// What the guest agent puts into the guest, and keeps current.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub credentials: Vec<Credential>,
    /// Counters of the host that the guest can read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host_metrics: Option<HostMetrics>,
    /// What has to exist before the domain can start, in this order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub prepare: Vec<Preparation>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Arch {
    #[default]
    #[serde(rename = "x86_64")]
    X86_64,
    #[serde(rename = "aarch64")]
    Aarch64,
    #[serde(rename = "s390x")]
    S390x,
}

impl Arch {
    /// From Go's spelling (`amd64`), which Kubernetes uses, or the kernel's (`x86_64`).
    pub fn parse(name: &str) -> Option<Self> {
        match name {
            "amd64" | "x86_64" => Some(Self::X86_64),
            "arm64" | "aarch64" => Some(Self::Aarch64),
            "s390x" => Some(Self::S390x),
            _ => None,
        }
    }

    /// As Kubernetes spells it.
    pub fn go_name(self) -> &'static str {
        match self {
            Self::X86_64 => "amd64",
            Self::Aarch64 => "arm64",
            Self::S390x => "s390x",
        }
    }

    /// As the kernel and libvirt spell it.
    pub fn name(self) -> &'static str {
        match self {
            Self::X86_64 => "x86_64",
            Self::Aarch64 => "aarch64",
            Self::S390x => "s390x",
        }
    }
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Acceleration {
    /// The CPU's virtualization extension.
    #[default]
    Hardware,
    /// Translation in software.
    Emulation,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum RebootAction {
    Restart,
    Destroy,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Memory {
    /// What the guest sees when it starts.
    pub bytes: u64,
    /// Room to grow by plugging memory devices.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max: Option<MaxMemory>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backing: Option<MemoryBacking>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct MaxMemory {
    pub bytes: u64,
    pub slots: u64,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct MemoryBacking {
    /// Back the memory with huge pages of the host's mount.
    pub hugepages: bool,
    /// `memfd`, `file`, or `None` for anonymous memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// Let other processes map the memory (virtiofs, vhost-user).
    pub shared: bool,
    /// Allocate everything before the guest starts.
    pub allocate: bool,
    /// Keep kernel same-page merging away.
    pub no_share_pages: bool,
    /// Huge pages per cell of the guest; empty takes the host's default size for all.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub pages: Vec<HugePages>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct HugePages {
    /// Size of one page.
    pub bytes: u64,
    /// The guest's cell that they back.
    pub cell: u32,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Cpu {
    pub mode: CpuMode,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub features: Vec<CpuFeature>,
    pub topology: Topology,
    /// CPUs the guest could have at most.
    pub vcpus: u32,
    /// One entry per vCPU when some are plugged later; empty when all are there from the start.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub slots: Vec<VcpuSlot>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub numa: Vec<NumaCell>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pinning: Option<Pinning>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum CpuMode {
    /// The hypervisor's own default model.
    #[default]
    Default,
    /// A migratable likeness of the host's CPU.
    HostModel,
    HostPassthrough,
    /// All that the hypervisor can do. Emulation has no host CPU to pass through.
    Maximum,
    /// A named model.
    Custom(String),
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct CpuFeature {
    pub name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy: Option<CpuPolicy>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Topology {
    pub sockets: u32,
    pub cores: u32,
    pub threads: u32,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct VcpuSlot {
    pub id: u32,
    pub enabled: bool,
    pub hotpluggable: bool,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct NumaCell {
    pub id: u32,
    /// A CPU list such as `0-3`.
    pub cpus: String,
    pub bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_access: Option<String>,
    /// Distances to cells, by cell id.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub distances: Vec<(u32, u64)>,
    /// Host node that backs the cell's memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host_node: Option<u32>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Pinning {
    /// Host CPU list per vCPU, by vCPU number.
    pub vcpus: Vec<String>,
    /// Host CPU list per I/O thread, by thread number from 1.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub io_threads: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub emulator: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Clock {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub offset: Option<ClockOffset>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timezone: Option<String>,
    /// `reset`, or seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub adjustment: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub timers: Vec<Timer>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Timer {
    pub name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tick_policy: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub present: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub track: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub frequency: Option<u64>,
}

/// Paravirtual and platform features. An `Option<bool>` that is set is printed as on or off.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Features {
    pub acpi: bool,
    pub apic: bool,
    pub smm: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hyperv: Option<Hyperv>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kvm_hidden: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kvm_hint_dedicated: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pv_spinlock: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pmu: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vm_port: Option<bool>,
}

/// Hyper-V enlightenments.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Hyperv {
    /// Take all that the host offers instead of the list.
    pub passthrough: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub relaxed: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vapic: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spinlocks: Option<Spinlocks>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vpindex: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub runtime: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub synic: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub synic_timer: Option<SynicTimer>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reset: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vendor_id: Option<VendorId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub frequencies: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reenlightenment: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tlb_flush: Option<TlbFlush>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ipi: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub evmcs: Option<bool>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Spinlocks {
    pub enabled: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retries: Option<u32>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct SynicTimer {
    pub enabled: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub direct: Option<bool>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct VendorId {
    pub enabled: bool,
    pub value: String,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct TlbFlush {
    pub enabled: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub direct: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub extended: Option<bool>,
}

/// Encrypted or measured guests.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum LaunchSecurity {
    Sev {
        policy: u32,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        dh_cert: Option<String>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        session: Option<String>,
    },
    SevSnp {
        policy: u64,
    },
    Tdx {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        quote_socket: Option<String>,
    },
    S390Pv {},
}
