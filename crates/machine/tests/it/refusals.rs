//! What cannot be done is refused with its field, all of it at once, and what emulation lacks is left out.

use ferrovirt_api::v1::VirtualMachineInstance;
use ferrovirt_machine::{
    convert::{Context, FieldError, machine_spec},
    defaults,
    spec::{Acceleration, Arch, Boot, CpuMode, MachineSpec},
    xml::domain_xml,
};
use serde_json::{Value, json};

fn convert(spec: Value, context: Value) -> Result<MachineSpec, Vec<FieldError>> {
    let metadata = json!({"name": "a", "namespace": "b", "uid": "c"});
    let object =
        json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "metadata": metadata, "spec": spec});
    let mut vmi: VirtualMachineInstance = serde_json::from_value(object).unwrap();
    let context: Context = serde_json::from_value(context).unwrap();
    defaults::apply(&mut vmi, context.arch);
    machine_spec(&vmi, &context)
}

/// Checks that exactly these fields are refused.
fn refused(spec: Value, context: Value, expected: &[&str]) {
    let errors = convert(spec, context).err().unwrap_or_default();
    let fields: Vec<&str> = errors.iter().map(|error| error.field.as_str()).collect();
    assert_eq!(fields, expected, "{errors:?}");
}

#[test]
fn every_problem_is_named() {
    let kvm = json!({"hypervisorDeviceAvailable": true});
    refused(
        json!({
            "domain": {
                "devices": {
                    "disks": [
                        {"name": "lost", "disk": {"bus": "virtio"}},
                        {"name": "image", "disk": {"bus": "floppy"}},
                        {"name": "seed", "disk": {"bus": "sata", "readonly": true}, "cache": "warm", "errorPolicy": "cry"}
                    ],
                    "interfaces": [{"name": "nowhere", "bridge": {}}],
                    "inputs": [{"name": "i", "type": "mouse", "bus": "ps2"}],
                    "sound": {"name": "s", "model": "gramophone"}
                }
            },
            "networks": [],
            "volumes": [
                {"name": "image", "containerDisk": {"image": "x"}},
                {"name": "seed", "cloudInitNoCloud": {}},
                {"name": "other", "containerDisk": {"image": "x"}}
            ]
        }),
        kvm,
        &[
            "spec.domain.memory.guest",
            "spec.domain.devices.interfaces[0].name",
            "spec.domain.devices.disks[0].name",
            "spec.domain.devices.disks[1].bus",
            "spec.domain.devices.disks[2].cache",
            "spec.domain.devices.disks[2].disk.readonly",
            "spec.volumes[1].cloudInitNoCloud",
            "spec.domain.devices.disks[2].errorPolicy",
            "spec.volumes[2].containerDisk",
            "spec.domain.devices.inputs[0].bus",
            "spec.domain.devices.inputs[0].type",
            "spec.domain.devices.sound.model",
        ],
    );
}

#[test]
fn emulation_needs_permission() {
    let spec = json!({"domain": {"memory": {"guest": "64Mi"}, "devices": {"autoattachPodInterface": false}}});
    refused(spec.clone(), json!({}), &["spec.hypervisor"]);
    let machine = convert(spec, json!({"allowEmulation": true, "translationCacheMib": 32})).unwrap();
    assert_eq!(machine.acceleration, Acceleration::Emulation);
    assert_eq!(machine.translation_cache_mib, Some(32));
}

#[test]
fn what_only_hardware_has_is_left_out_of_an_emulated_machine() {
    let spec = json!({
        "domain": {
            "cpu": {"model": "host-passthrough"},
            "memory": {"guest": "64Mi"},
            "features": {"hyperv": {"synictimer": {}}},
            "devices": {"autoattachPodInterface": false}
        }
    });
    let emulated = convert(spec.clone(), json!({"allowEmulation": true})).unwrap();
    assert_eq!(emulated.cpu.mode, CpuMode::Maximum);
    assert!(!domain_xml(&emulated).contains("hyperv"));

    let real = convert(spec, json!({"hypervisorDeviceAvailable": true})).unwrap();
    assert_eq!(real.cpu.mode, CpuMode::HostPassthrough);
    let hyperv = real.features.unwrap().hyperv.unwrap();
    assert_eq!((hyperv.synic, hyperv.vpindex), (Some(true), Some(true)), "dependencies are switched on");
}

#[test]
fn fractions_of_bytes_and_equal_maxima() {
    let memory = |memory: Value| {
        let spec = json!({"domain": {"memory": memory, "devices": {"autoattachPodInterface": false}}});
        convert(spec, json!({"hypervisorDeviceAvailable": true})).unwrap().memory
    };
    assert_eq!(memory(json!({"guest": "1.5Gi"})).bytes, 1_610_612_736);
    assert_eq!(memory(json!({"guest": "1000000500m"})).bytes, 1_000_000);
    assert_eq!(memory(json!({"guest": "1Gi", "maxGuest": "1024Mi"})).max, None);
    assert_eq!(memory(json!({"guest": "1Gi", "maxGuest": "4Gi"})).max.unwrap().bytes, 4 << 30);
}

#[test]
fn architectures_have_their_own_defaults() {
    let machine = |arch: &str| {
        let spec = json!({
            "domain": {
                "memory": {"guest": "64Mi"},
                "devices": {"autoattachPodInterface": false, "disks": [{"name": "d"}]}
            },
            "volumes": [{"name": "d", "persistentVolumeClaim": {"claimName": "c"}}]
        });
        let efi = json!({"efiCode": "/code", "efiVars": "/vars"});
        convert(spec, json!({"arch": arch, "hypervisorDeviceAvailable": true, "efiConfiguration": efi})).unwrap()
    };
    for (arch, machine_type, target, is_efi, mode) in [
        ("amd64", "q35", "sda", false, CpuMode::HostModel),
        ("arm64", "virt", "vda", true, CpuMode::HostPassthrough),
        ("s390x", "s390-ccw-virtio", "vda", false, CpuMode::HostModel),
    ] {
        let machine = machine(arch);
        assert_eq!(machine.arch, Arch::parse(arch).unwrap());
        assert_eq!(machine.firmware.machine_type, machine_type);
        assert_eq!(machine.devices.disks[0].target, target);
        assert_eq!(matches!(machine.firmware.boot, Boot::Efi { .. }), is_efi, "{arch}");
        assert_eq!(machine.cpu.mode, mode);
    }
}

/// Cells of the guest as `vCPUs@node memory`, on a node of two cells with two cores of two threads each.
#[test]
fn cells_of_the_guest_follow_the_cpus_that_it_was_given() {
    let cpu = |id: u32| json!({"id": id, "siblings": [id & !1, id | 1]});
    let cell = |id: u32, first: u32| {
        json!({"id": id, "cpus": (first..first + 4).map(cpu).collect::<Vec<_>>(),
               "distances": [{"id": 0, "value": 10 + 11 * id}, {"id": 1, "value": 21 - 11 * id}]})
    };
    let given = |cpus: &[u32], cores: u32, threads: u32, memory: &str| {
        let spec = json!({"domain": {
            "cpu": {"cores": cores, "threads": threads, "dedicatedCpuPlacement": true,
                    "numa": {"guestMappingPassthrough": {}}},
            "memory": {"guest": memory, "hugepages": {"pageSize": "2Mi"}},
            "devices": {"autoattachPodInterface": false},
        }});
        let context = json!({"hypervisorDeviceAvailable": true, "cpuSet": cpus,
                             "topology": {"numaCells": [cell(0, 0), cell(1, 4)]}});
        match convert(spec, context) {
            Ok(machine) => {
                let shown = machine.cpu.numa.iter().map(|cell| {
                    let distances: Vec<String> =
                        cell.distances.iter().map(|(other, value)| format!("{other}:{value}")).collect();
                    format!("{}@{} {}Mi {}", cell.cpus, cell.host_node.unwrap(), cell.bytes >> 20, distances.join(","))
                });
                shown.collect::<Vec<_>>().join("; ")
            }
            Err(errors) => errors.iter().map(|error| error.field.clone()).collect::<Vec<_>>().join("; "),
        }
    };
    for (cpus, cores, threads, memory, expected) in [
        (&[4, 5][..], 2, 1, "64Mi", "0,1@1 64Mi 0:10"),
        (&[0, 1, 4, 5][..], 2, 2, "64Mi", "0,1@0 32Mi 0:10,1:21; 2,3@1 32Mi 0:21,1:10"),
        // The first cell has the page that is left over.
        (&[2, 6][..], 2, 1, "66Mi", "0@0 34Mi 0:10,1:21; 1@1 32Mi 0:21,1:10"),
        // A core of two threads on two cells.
        (&[2, 6][..], 1, 2, "64Mi", "spec.domain.cpu"),
        (&[0, 4][..], 2, 1, "2Mi", "spec.domain.memory.guest"),
        (&[0, 1][..], 2, 1, "63Mi", "spec.domain.memory.guest"),
    ] {
        assert_eq!(given(cpus, cores, threads, memory), expected, "{cpus:?}");
    }
}
