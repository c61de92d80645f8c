//! The domain XML equals upstream's for the same VMI and context.

use std::{fs, path::Path};

use ferrovirt_api::v1::VirtualMachineInstance;
use ferrovirt_machine::{
    convert::{Context, machine_spec},
    defaults,
    spec::Arch,
    xml::{domain_xml, parse},
};

/// Each folder of `data/converter` has a VMI, a context, and what upstream's converter (KubeVirt v1.9) made of them, by
/// architecture. They are facts and do not change.
#[test]
fn converter_cases() {
    let directory = Path::new("tests/data/converter");
    let mut seen = 0;
    for entry in fs::read_dir(directory).unwrap() {
        let case = entry.unwrap().path();
        let name = case.file_name().unwrap().to_string_lossy().into_owned();
        let read = |file: &str| fs::read_to_string(case.join(file)).unwrap();
        let vmi: VirtualMachineInstance =
            serde_saphyr::from_str(&read("vmi.yaml")).unwrap_or_else(|e| panic!("{name}: {e}"));
        let data = serde_json::from_str(&read("context.json")).unwrap();
        for arch in [Arch::X86_64, Arch::Aarch64, Arch::S390x] {
            let expected = case.join(format!("{}.xml", arch.go_name()));
            if !expected.exists() {
                continue;
            }
            seen += 1;
            let context = Context::upstream(&data, arch).unwrap();
            let mut vmi = vmi.clone();
            defaults::object(&mut vmi);
            defaults::for_arch(&mut vmi.spec, arch);
            let spec = machine_spec(&vmi, &context).unwrap_or_else(|e| panic!("{name} {arch:?}: {e:?}"));
            let found = as_open_as_upstream(&domain_xml(&spec));
            let expected = fs::read_to_string(expected).unwrap();
            for (line, (found, expected)) in found.lines().zip(expected.lines()).enumerate() {
                assert_eq!(found, expected, "{name} {arch:?} line {}", line + 1);
            }
            assert_eq!(found, expected.trim_end(), "{name} {arch:?}");
            assert_eq!(parse(&found).unwrap().to_string(), found, "{name}: what is printed can be read back");
            let wire = serde_json::to_vec(&spec).unwrap();
            assert_eq!(spec, serde_json::from_slice(&wire).unwrap(), "{name}");
        }
    }
    assert!(seen >= 60, "only {seen}");
}

/// Upstream leaves the end of a disk's chain to the image; we close it. That is the one difference.
fn as_open_as_upstream(xml: &str) -> String {
    let lines: Vec<_> = xml.lines().filter(|line| line.trim() != "<backingStore></backingStore>").collect();
    lines.join("\n")
}

fn check(arch: Arch, annotations: &[(&str, &str)], expected: &str) {
    let mut vmi: VirtualMachineInstance =
        serde_json::from_str(include_str!("../data/upstream/vmi-input.json")).unwrap();
    let data = serde_json::from_str(include_str!("../data/upstream/context.json")).unwrap();
    let context = Context::upstream(&data, arch).unwrap();
    vmi.metadata.annotations = Some(annotations.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect());
    defaults::object(&mut vmi);
    defaults::for_arch(&mut vmi.spec, arch);
    let spec = machine_spec(&vmi, &context).unwrap();
    let found = as_open_as_upstream(&domain_xml(&spec));
    for (line, (found, expected)) in found.lines().zip(expected.trim().lines()).enumerate() {
        assert_eq!(found, expected, "line {}", line + 1);
    }
    assert_eq!(found, expected.trim());

    let wire = serde_json::to_string(&spec).unwrap();
    assert_eq!(spec, serde_json::from_str(&wire).unwrap(), "the spec survives its journey to the launcher");
}

#[test]
fn x86_64() {
    check(Arch::X86_64, &[], include_str!("../data/upstream/domain_x86_64.xml"));
}

#[test]
fn aarch64() {
    check(Arch::Aarch64, &[], include_str!("../data/upstream/domain_arm64.xml"));
}

#[test]
fn s390x() {
    check(Arch::S390x, &[], include_str!("../data/upstream/domain_s390x.xml"));
}

#[test]
fn x86_64_on_the_root_bus() {
    let root = [(ferrovirt_api::names::PLACE_PCI_DEVICES_ON_ROOT_COMPLEX, "true")];
    check(Arch::X86_64, &root, include_str!("../data/upstream/domain_x86_64_root.xml"));
}
