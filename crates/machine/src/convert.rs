//! From a VirtualMachineInstance to a [`MachineSpec`].
//!
//! Each part of the machine has a module here. They do not stop at the first problem: everything that cannot be done is
//! collected and named with its field, so that a user fixes a manifest once.
//!
//! The VMI must have been through [`defaults::apply`](crate::defaults::apply).

pub(crate) mod arch;
mod clock;
mod cloud_init;
mod container;
mod context;
pub(crate) mod cpu;
mod cpu_pool;
pub mod credentials;
mod devices;
mod disks;
pub mod filesystems;
mod firmware;
mod io_threads;
mod launch_security;
mod memory;
mod network;
mod pci;
mod pinning;
mod placement;
mod platform;
mod upstream;
mod volumes;

use std::collections::BTreeMap;

use ferrovirt_api::{Quantity, names, v1::VirtualMachineInstance};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as WireQuantity;

pub use arch::default_machine_type;
pub use cloud_init::hostname;
pub(crate) use container::can_be_root;
pub use container::root_volume;
pub use context::*;

use crate::{
    hypervisor::{self, Guest},
    spec::{Acceleration, Devices, MachineSpec, Preparation, RebootAction, SPEC_VERSION},
};

/// Upstream's name for Microsoft's hypervisor under QEMU.
const HYPERV_DIRECT: &str = "hyperv-direct";

/// Something in an object that cannot be done, and where it stands.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {message}")]
pub struct FieldError {
    /// Path from the object's root, such as `spec.domain.devices.disks[0].name`.
    pub field: String,
    pub message: String,
}

impl FieldError {
    pub fn new(field: impl Into<String>, message: impl Into<String>) -> Self {
        Self { field: field.into(), message: message.into() }
    }
}

/// The machine for a VMI on the node that the context describes, or all that stands against it.
pub fn machine_spec(vmi: &VirtualMachineInstance, ctx: &Context) -> Result<MachineSpec, Vec<FieldError>> {
    let driver = hypervisor::hypervisor(vmi.spec.hypervisor.as_deref().unwrap_or(hypervisor::DEFAULT));
    if driver.is_some_and(|driver| driver.guest() == Guest::Container) {
        return container::convert(vmi, ctx);
    }
    let mut c = Conversion { vmi, ctx, prepare: Vec::new(), errors: Vec::new() };
    let acceleration = acceleration(&mut c);
    let emulated = acceleration == Acceleration::Emulation;
    let memory = memory::convert(&mut c);
    let cpu = cpu::convert(&mut c);
    let firmware = firmware::convert(&mut c);
    let interfaces = network::convert(&mut c);
    let disks = disks::convert(&mut c);
    let mut devices = Devices { interfaces, disks, ..devices::convert(&mut c) };
    placement::on_root_bus(&mut c, &mut devices);
    let mut spec = MachineSpec {
        version: SPEC_VERSION,
        name: domain_name(vmi),
        uid: vmi.metadata.uid.clone().unwrap_or_default(),
        hypervisor: vmi.spec.hypervisor.clone().unwrap_or_else(|| hypervisor::DEFAULT.into()),
        arch: ctx.arch,
        acceleration,
        domain_type: (ctx.hypervisor_name == HYPERV_DIRECT && !emulated).then(|| "hyperv".into()),
        translation_cache_mib: ctx.translation_cache_mib.filter(|_| emulated),
        memory,
        cpu,
        firmware,
        system_info: Some(firmware::system_info(&c)),
        clock: clock::convert(&c),
        features: Some(platform::convert(&c)),
        devices,
        container: None,
        io_threads: io_threads::plan(vmi).map(|threads| threads.total).filter(|total| *total > 0),
        launch_security: launch_security::convert(&c),
        iommufd: ctx.iommufd_enabled,
        on_reboot: match vmi.spec.domain.reboot_policy.as_deref() {
            Some("Terminate") => Some(RebootAction::Destroy),
            Some("Reboot") => Some(RebootAction::Restart),
            _ => None,
        },
        extra_arguments: ignition(&mut c),
        start_paused: firmware::starts_paused(vmi),
        grace_seconds: grace_seconds(vmi),
        credentials: credentials::convert(&mut c),
        host_metrics: devices::host_metrics(&c),
        // The node agent fills these in: they name what it made.
        dhcp: vec![],
        prepare: std::mem::take(&mut c.prepare),
    };
    pinning::adjust(&mut c, &mut spec);
    if c.errors.is_empty() { Ok(spec) } else { Err(c.errors) }
}

/// Name of the domain: unique on a node, and what upstream's tools look for.
pub fn domain_name(vmi: &VirtualMachineInstance) -> String {
    let metadata = &vmi.metadata;
    let namespace = metadata.namespace.as_deref().unwrap_or_default();
    format!("{namespace}_{}", metadata.name.as_deref().unwrap_or_default())
}

/// How long a guest gets to power off when nothing was said, as upstream has it.
pub const DEFAULT_GRACE_SECONDS: u64 = 30;

pub fn grace_seconds(vmi: &VirtualMachineInstance) -> u64 {
    let seconds = vmi.spec.termination_grace_period_seconds;
    seconds.map_or(DEFAULT_GRACE_SECONDS, |seconds| u64::try_from(seconds).unwrap_or(0))
}

/// What the modules share while a machine is put together.
pub(crate) struct Conversion<'a> {
    pub(crate) vmi: &'a VirtualMachineInstance,
    pub(crate) ctx: &'a Context,
    prepare: Vec<Preparation>,
    errors: Vec<FieldError>,
}

impl Conversion<'_> {
    fn refuse(&mut self, field: impl Into<String>, message: impl Into<String>) {
        self.errors.push(FieldError::new(field, message));
    }

    /// Two disks may show the same volume; it is made once.
    fn prepare(&mut self, preparation: Preparation) {
        let path = preparation.path();
        if !self.prepare.iter().any(|known| known.path() == path) {
            self.prepare.push(preparation);
        }
    }
}

/// Ignition data reaches the guest by an argument that libvirt has no element for.
fn ignition(c: &mut Conversion<'_>) -> Vec<String> {
    let annotations = c.vmi.metadata.annotations.as_ref();
    let data = annotations.and_then(|annotations| annotations.get(names::IGNITION_ANNOTATION));
    if !data.is_some_and(|data| data.contains("ignition")) {
        return Vec::new();
    }
    if !c.ctx.as_upstream {
        let field = format!("metadata.annotations[{}]", names::IGNITION_ANNOTATION);
        c.refuse(field, "ignition data is not passed to guests yet; use cloud-init data");
        return Vec::new();
    }
    let metadata = &c.vmi.metadata;
    let namespace = metadata.namespace.as_deref().unwrap_or_default();
    let name = metadata.name.as_deref().unwrap_or_default();
    let path = format!("{}/{namespace}/{name}/data.ign", c.ctx.layout.ignition);
    vec!["-fw_cfg".into(), format!("name=opt/com.coreos/config,file={path}")]
}

fn acceleration(c: &mut Conversion<'_>) -> Acceleration {
    if c.ctx.emulates_foreign(c.vmi) {
        return Acceleration::Emulation;
    }
    match (c.ctx.hypervisor_device_available, c.ctx.allow_emulation) {
        (true, _) => Acceleration::Hardware,
        (false, true) => Acceleration::Emulation,
        (false, false) => {
            let message = "the node has no hardware virtualization and the KubeVirt configuration does not allow emulation \
                           (developerConfiguration.useEmulation)";
            c.refuse("spec.hypervisor", message);
            Acceleration::Hardware
        }
    }
}

/// A resource by name; what does not parse is treated as absent, because the schema refused it before.
fn resource(resources: &BTreeMap<String, WireQuantity>, name: &str) -> Option<Quantity> {
    resources.get(name).and_then(|wire| Quantity::try_from(wire).ok())
}
