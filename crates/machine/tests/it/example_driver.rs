//! The driver that docs/adding-a-hypervisor.md writes, and a test that the text shows this very code.

use std::fs;

use ferrovirt_api::v1::VirtualMachineInstance;
use ferrovirt_machine::{
    convert::machine_spec,
    defaults,
    spec::{DiskSource, Interface},
    xml::parse,
};
use serde_json::json;

use crate::random::context;

// region: driver
use ferrovirt_machine::{
    features::Gap,
    hypervisor::{Hypervisor, Overheads},
    spec::{Acceleration, MachineSpec},
};

pub struct Example;

impl Hypervisor for Example {
    fn name(&self) -> &'static str {
        "example"
    }

    fn overheads(&self, _acceleration: Acceleration) -> Overheads {
        const MIB: u64 = 1 << 20;
        Overheads { monitor: 2 * MIB, launcher: 20 * MIB, log_daemon: 0, daemon: 35 * MIB, hypervisor: 10 * MIB }
    }

    fn supports_iso(&self) -> bool {
        false
    }

    fn device(&self) -> Option<&'static str> {
        Some("devices.kubevirt.io/kvm")
    }

    fn can_emulate(&self) -> bool {
        false
    }

    fn runs_privileged(&self) -> bool {
        false
    }

    fn vcpu_of_thread(&self, name: &str) -> Option<u32> {
        name.strip_prefix("vcpu-")?.parse().ok()
    }

    fn libvirt_socket(&self) -> &'static str {
        "/var/run/libvirt/libvirt-sock"
    }

    fn disk_driver(&self) -> &'static str {
        "example"
    }

    fn requires_boot_order(&self) -> bool {
        false
    }

    fn supports_memory_ballooning(&self) -> bool {
        false
    }

    fn gaps(&self) -> &'static [Gap] {
        GAPS
    }

    fn domain_xml(&self, spec: &MachineSpec) -> String {
        domain_xml(spec)
    }
}
// end

// region: gaps
const GAPS: &[Gap] = &[
    Gap { feature: "tpm", reason: "example machines have no TPM" },
    Gap { feature: "filesystems", reason: "the driver does not know virtiofs; use a disk" },
];
// end

// region: xml
fn domain_xml(spec: &MachineSpec) -> String {
    let disks: String = spec
        .devices
        .disks
        .iter()
        .filter_map(|disk| match &disk.source {
            DiskSource::File { path } => Some(format!("<disk type='file'><source file='{path}'/></disk>")),
            DiskSource::Block { path, .. } => Some(format!("<disk type='block'><source dev='{path}'/></disk>")),
            DiskSource::Empty {} => None,
        })
        .collect();
    let interface =
        |interface: &Interface| format!("<interface type='ethernet'><alias name='ua-{}'/></interface>", interface.name);
    let interfaces: String = spec.devices.interfaces.iter().map(interface).collect();
    format!(
        "<domain type='example'><name>{}</name><memory unit='b'>{}</memory><vcpu>{}</vcpu><devices>{disks}{interfaces}</devices></domain>",
        spec.name, spec.memory.bytes, spec.cpu.vcpus,
    )
}
// end

#[test]
fn the_example_driver_converts_a_machine() {
    let mut vmi: VirtualMachineInstance = serde_json::from_value(json!({
        "metadata": {"name": "a", "namespace": "b", "uid": "c"},
        "spec": {
            "domain": {"memory": {"guest": "64Mi"}, "cpu": {"cores": 2}, "devices": {"disks": [{"name": "root"}]}},
            "volumes": [{"name": "root", "persistentVolumeClaim": {"claimName": "root"}}],
        },
    }))
    .unwrap();
    let context = context("amd64", true);
    defaults::apply(&mut vmi, context.arch);
    let spec = machine_spec(&vmi, &context).unwrap();
    let domain = parse(&Example.domain_xml(&spec)).unwrap();
    let names: Vec<&str> = domain.elements().iter().map(|element| element.name()).collect();
    assert_eq!(names, ["name", "memory", "vcpu", "devices"]);
    assert_eq!(domain.elements()[1].content(), "67108864");
    let devices: Vec<&str> = domain.elements()[3].elements().iter().map(|element| element.name()).collect();
    assert_eq!(devices, ["disk", "interface"]);
    assert_eq!(Example.vcpu_of_thread("vcpu-3"), Some(3));
    let known: Vec<&str> = ferrovirt_machine::features::FEATURES.iter().map(|feature| feature.key).collect();
    assert!(Example.gaps().iter().all(|gap| known.contains(&gap.feature)));
}

#[test]
fn the_guide_shows_this_code() {
    let guide = fs::read_to_string("../../docs/adding-a-hypervisor.md").unwrap();
    let source = fs::read_to_string("tests/it/example_driver.rs").unwrap();
    let regions: Vec<&str> = source
        .split("// region: ")
        .skip(1)
        .filter_map(|rest| rest.split_once('\n')?.1.split_once("// end\n").map(|(code, _)| code))
        .collect();
    let shown: Vec<&str> =
        guide.split("```rust\n").skip(1).filter_map(|rest| rest.split_once("```\n").map(|(code, _)| code)).collect();
    assert_eq!(regions.len(), 3);
    assert_eq!(shown, regions, "docs/adding-a-hypervisor.md and tests/it/example_driver.rs differ");
}
