//! The domain XML equals upstream's for the same VMI and context.

#![allow(clippy::unwrap_used, clippy::panic)]

use ferrovirt_api::v1::VirtualMachineInstance;
use ferrovirt_machine::{
    convert::{Context, machine_spec},
    defaults,
    spec::Arch,
    xml::domain_xml,
};

fn check(arch: Arch, annotations: &[(&str, &str)], expected: &str) {
    let mut vmi: VirtualMachineInstance = serde_json::from_str(include_str!("data/upstream/vmi-input.json")).unwrap();
    let data = serde_json::from_str(include_str!("data/upstream/context.json")).unwrap();
    let context = Context::upstream(&data, arch).unwrap();
    vmi.metadata.annotations = Some(annotations.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect());
    defaults::object(&mut vmi);
    defaults::for_arch(&mut vmi.spec, arch);
    let spec = machine_spec(&vmi, &context).unwrap();
    let found = domain_xml(&spec);
    for (line, (found, expected)) in found.lines().zip(expected.trim().lines()).enumerate() {
        assert_eq!(found, expected, "line {}", line + 1);
    }
    assert_eq!(found, expected.trim());

    let wire = serde_json::to_string(&spec).unwrap();
    assert_eq!(spec, serde_json::from_str(&wire).unwrap(), "the spec survives its journey to the launcher");
}

#[test]
fn x86_64() {
    check(Arch::X86_64, &[], include_str!("data/upstream/domain_x86_64.xml"));
}

#[test]
fn aarch64() {
    check(Arch::Aarch64, &[], include_str!("data/upstream/domain_arm64.xml"));
}

#[test]
fn s390x() {
    check(Arch::S390x, &[], include_str!("data/upstream/domain_s390x.xml"));
}

#[test]
fn x86_64_on_the_root_bus() {
    let root = [(ferrovirt_api::names::PLACE_PCI_DEVICES_ON_ROOT_COMPLEX, "true")];
    check(Arch::X86_64, &root, include_str!("data/upstream/domain_x86_64_root.xml"));
}
