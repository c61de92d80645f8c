//! One row per default: what an object says, what the cluster says, and what is written. The facts are upstream's.

use serde_json::{Value, json};

use super::*;

/// Reads as [`instance`] leaves it: metadata, spec and the status that it begins with.
fn defaulted(configuration: &Value, vmi: &Value) -> Value {
    let configuration: KubeVirtConfiguration = serde_json::from_value(configuration.clone()).unwrap();
    let mut vmi: VirtualMachineInstance = serde_json::from_value(vmi.clone()).unwrap();
    instance(&mut vmi, &configuration, &BTreeMap::new()).unwrap();
    let once = vmi.clone();
    instance(&mut vmi, &configuration, &BTreeMap::new()).unwrap();
    assert_eq!(once, vmi, "defaults are idempotent");
    vmi.status = status(&vmi, &configuration, Time(k8s_openapi::jiff::Timestamp::UNIX_EPOCH));
    serde_json::to_value(vmi).unwrap()
}

/// Checks what stands at some places; `null` is nothing.
fn check(configuration: Value, vmi: Value, expected: &[(&str, Value)]) {
    let found = defaulted(&configuration, &vmi);
    for (pointer, value) in expected {
        let seen = found.pointer(pointer).unwrap_or(&Value::Null);
        assert_eq!(seen, value, "{pointer} of {vmi} with {configuration}");
    }
}

fn spec(spec: Value) -> Value {
    json!({ "metadata": { "uid": "11111111-2222-3333-4444-555555555555" }, "spec": spec })
}

fn domain(domain: Value) -> Value {
    spec(json!({ "architecture": "amd64", "domain": domain }))
}

const MODEL: &str = "/spec/domain/cpu/model";
const MACHINE: &str = "/spec/domain/machine/type";

#[test]
fn architecture_machine_and_processor_go_together() {
    for (architecture, model, machine) in [
        ("amd64", "host-model", "q35"),
        ("arm64", "host-passthrough", "virt"),
        ("s390x", "host-model", "s390-ccw-virtio"),
    ] {
        let expected = [
            ("/spec/architecture", json!(architecture)),
            (MODEL, json!(model)),
            (MACHINE, json!(machine)),
            ("/spec/domain/resources/requests", Value::Null),
        ];
        check(json!({}), spec(json!({ "architecture": architecture, "domain": {} })), &expected);
        let default = json!({ "architectureConfiguration": { "defaultArchitecture": architecture } });
        check(default, spec(json!({ "domain": {} })), &expected);
        let own = json!({ "machineType": "own" });
        let configured = json!({
            "cpuModel": "Haswell", "cpuRequest": "800m",
            "architectureConfiguration": { "amd64": own, "arm64": own, "s390x": own },
        });
        let model = if architecture == "arm64" { "host-passthrough" } else { "Haswell" };
        let expected =
            [(MODEL, json!(model)), (MACHINE, json!("own")), ("/spec/domain/resources/requests/cpu", json!("800m"))];
        check(configured.clone(), spec(json!({ "architecture": architecture, "domain": {} })), &expected);
        let said = json!({ "architecture": architecture, "domain": {
            "cpu": { "model": "mine" }, "machine": { "type": "mine" }, "resources": { "requests": { "cpu": "1" } } } });
        let kept =
            [(MODEL, json!("mine")), (MACHINE, json!("mine")), ("/spec/domain/resources/requests/cpu", json!("1"))];
        check(configured, spec(said), &kept);
    }
    let usual = json!({ "cpuRequest": "0.1" });
    check(usual, domain(json!({})), &[("/spec/domain/resources/requests", Value::Null)]);
    let pinned = domain(json!({ "cpu": { "cores": 2, "dedicatedCpuPlacement": true } }));
    check(json!({ "cpuRequest": "1" }), pinned, &[("/spec/domain/resources/requests", Value::Null)]);
}

#[test]
fn processors_and_memory() {
    let topology = |sockets: u32, cores: u32, threads: u32| {
        [
            ("/spec/domain/cpu/sockets", if sockets == 0 { Value::Null } else { json!(sockets) }),
            ("/spec/domain/cpu/cores", if cores == 0 { Value::Null } else { json!(cores) }),
            ("/spec/domain/cpu/threads", if threads == 0 { Value::Null } else { json!(threads) }),
            ("/status/currentCPUTopology/sockets", if sockets == 0 { Value::Null } else { json!(sockets) }),
        ]
    };
    check(json!({}), domain(json!({})), &topology(1, 1, 1));
    check(json!({}), domain(json!({ "resources": { "requests": { "cpu": "4" } } })), &topology(4, 1, 1));
    let limited = domain(json!({ "resources": { "limits": { "cpu": "2200m" } } }));
    check(json!({}), limited.clone(), &topology(3, 1, 1));
    check(json!({}), limited, &[("/spec/domain/resources/requests/cpu", json!("2200m"))]);
    check(json!({}), domain(json!({ "cpu": { "cores": 3 } })), &topology(0, 3, 0));
    check(json!({}), domain(json!({ "cpu": { "sockets": 3, "cores": 3, "threads": 2 } })), &topology(3, 3, 2));

    let guest = "/spec/domain/memory/guest";
    for (said, size) in [
        (json!({ "resources": { "requests": { "memory": "512Mi" } } }), "512Mi"),
        (json!({ "resources": { "limits": { "memory": "256Mi" } } }), "256Mi"),
        (json!({ "resources": { "requests": { "memory": "512Mi" }, "limits": { "memory": "1Gi" } } }), "512Mi"),
        (json!({ "memory": { "hugepages": { "pageSize": "2Mi" } } }), "2Mi"),
        (json!({ "memory": { "guest": "1Gi" }, "resources": { "requests": { "memory": "512Mi" } } }), "1Gi"),
    ] {
        let expected = [
            (guest, json!(size)),
            ("/status/memory/guestAtBoot", json!(size)),
            ("/status/memory/guestCurrent", json!(size)),
            ("/status/memory/guestRequested", json!(size)),
        ];
        check(json!({}), domain(said), &expected);
    }
    for nothing in [json!({}), json!({ "memory": { "hugepages": { "pageSize": "big" } } })] {
        check(json!({}), domain(nothing), &[(guest, Value::Null), ("/status/memory", Value::Null)]);
    }
}

#[test]
fn a_status_begins_as_pending_and_keeps_what_is_known() {
    let known = json!({ "spec": { "domain": { "cpu": { "sockets": 2 } } },
        "status": { "currentCPUTopology": { "sockets": 1 }, "virtualMachineRevisionName": "r" } });
    check(
        json!({}),
        known,
        &[
            ("/status/currentCPUTopology/sockets", json!(1)),
            ("/status/virtualMachineRevisionName", json!("r")),
            ("/status/phase", json!("Pending")),
            ("/status/phaseTransitionTimestamps/0/phase", json!("Pending")),
            ("/status/runtimeUser", json!(107)),
        ],
    );
    let root = json!({ "developerConfiguration": { "featureGates": ["Root"] } });
    check(root, domain(json!({})), &[("/status/runtimeUser", json!(0))]);
}

#[test]
fn volumes_get_disks_and_images_a_policy() {
    let volumes = spec(json!({
        "domain": { "devices": {
            "disks": [{ "name": "root", "disk": { "bus": "scsi" } }, { "name": "cd", "cdrom": {} }],
            "filesystems": [{ "name": "shared", "virtiofs": {} }],
        } },
        "volumes": [
            { "name": "root", "containerDisk": { "image": "a:1" } },
            { "name": "cd", "containerDisk": { "image": "a:latest" } },
            { "name": "shared", "persistentVolumeClaim": { "claimName": "c" } },
            { "name": "more", "containerDisk": { "image": "a@sha256:0" } },
            { "name": "bare", "containerDisk": { "image": "a" } },
            { "name": "own", "containerDisk": { "image": "a:latest", "imagePullPolicy": "Never" } },
            { "name": "metrics", "downwardMetrics": {} },
        ],
    }));
    let disk = |index: usize, rest: &str| format!("/spec/domain/devices/disks/{index}/{rest}");
    let policy = |index: usize| format!("/spec/volumes/{index}/containerDisk/imagePullPolicy");
    let expected = [
        (disk(0, "disk/bus"), json!("scsi")),
        (disk(1, "cdrom"), json!({ "bus": "sata", "readonly": true, "tray": "closed" })),
        (disk(2, "name"), json!("more")),
        (disk(2, "disk/bus"), json!("sata")),
        (disk(3, "name"), json!("bare")),
        (disk(4, "name"), json!("own")),
        (disk(5, "name"), Value::Null),
        (policy(0), json!("IfNotPresent")),
        (policy(1), json!("Always")),
        (policy(3), json!("IfNotPresent")),
        (policy(4), json!("Always")),
        (policy(5), json!("Never")),
    ];
    let expected: Vec<(&str, Value)> = expected.iter().map(|(at, value)| (at.as_str(), value.clone())).collect();
    check(json!({ "architectureConfiguration": { "defaultArchitecture": "amd64" } }), volumes, &expected);
    for (kind, value) in [("disk", json!({})), ("cdrom", json!({})), ("lun", json!({}))] {
        let mut disk = json!({ "name": "a" });
        disk[kind] = value;
        let one = spec(json!({ "architecture": "arm64", "domain": { "devices": { "disks": [disk] } } }));
        check(json!({}), one, &[(&format!("/spec/domain/devices/disks/0/{kind}/bus"), json!("virtio"))]);
    }
}

#[test]
fn the_network_that_nobody_asked_for() {
    let interface = "/spec/domain/devices/interfaces/0";
    let configured = |kind: &str| json!({ "network": { "defaultNetworkInterface": kind } });
    for (configuration, expected) in [
        (json!({}), json!({ "name": "default", "masquerade": {} })),
        (configured("masquerade"), json!({ "name": "default", "masquerade": {} })),
        (configured("bridge"), json!({ "name": "default", "bridge": {} })),
    ] {
        let pod = ("/spec/networks/0", json!({ "name": "default", "pod": {} }));
        check(configuration, domain(json!({})), &[(interface, expected), pod]);
    }
    let off = domain(json!({ "devices": { "autoattachPodInterface": false } }));
    check(configured("bridge"), off, &[(interface, Value::Null), ("/spec/networks", Value::Null)]);
    let own =
        spec(json!({ "domain": { "devices": { "interfaces": [{ "name": "a" }] } }, "networks": [{ "name": "b" }] }));
    check(json!({}), own, &[("/spec/networks/0/name", json!("b")), ("/spec/networks/1", Value::Null)]);
    let refused = |configuration: Value| {
        let mut vmi = VirtualMachineInstance::default();
        instance(&mut vmi, &serde_json::from_value(configuration).unwrap(), &BTreeMap::new()).unwrap_err().to_string()
    };
    assert_eq!(refused(configured("slirp")), "slirp interface is deprecated as of v1.3");
    let closed =
        json!({ "network": { "defaultNetworkInterface": "bridge", "permitBridgeInterfaceOnPodNetwork": false } });
    assert_eq!(refused(closed), "bridge interface is not enabled in kubevirt-config");
}

#[test]
fn small_things() {
    let eviction = "/spec/evictionStrategy";
    check(json!({}), domain(json!({})), &[(eviction, json!("None"))]);
    let cluster = json!({ "evictionStrategy": "External" });
    check(cluster.clone(), domain(json!({})), &[(eviction, json!("External"))]);
    check(cluster, spec(json!({ "evictionStrategy": "None", "domain": {} })), &[(eviction, json!("None"))]);
    let probe = json!({ "domain": {}, "readinessProbe": { "tcpSocket": { "port": 1 }, "periodSeconds": 7 } });
    let at = |name: &str| format!("/spec/readinessProbe/{name}");
    let values = [("timeoutSeconds", 1), ("periodSeconds", 7), ("successThreshold", 1), ("failureThreshold", 3)];
    for (name, value) in values {
        check(json!({}), spec(probe.clone()), &[(&at(name), json!(value))]);
    }
    let inputs = domain(json!({ "devices": { "inputs": [{ "name": "a" }, { "name": "b", "bus": "virtio" }] } }));
    let one = ("/spec/domain/devices/inputs/0", json!({ "name": "a", "bus": "usb", "type": "tablet" }));
    let other = ("/spec/domain/devices/inputs/1", json!({ "name": "b", "bus": "virtio", "type": "tablet" }));
    check(json!({}), inputs, &[one, other]);
    let uuid = ("/spec/domain/firmware/uuid", json!("11111111-2222-3333-4444-555555555555"));
    check(json!({}), domain(json!({})), &[uuid, ("/spec/domain/features/acpi/enabled", json!(true))]);
    let dog =
        |architecture: &str| spec(json!({ "architecture": architecture, "domain": { "devices": { "watchdog": {} } } }));
    check(json!({}), dog("amd64"), &[("/spec/domain/devices/watchdog/i6300esb/action", json!("reset"))]);
    check(json!({}), dog("s390x"), &[("/spec/domain/devices/watchdog/diag288/action", json!("reset"))]);
    let arm = spec(json!({ "architecture": "arm64", "domain": {} }));
    check(json!({}), arm, &[("/spec/domain/firmware/bootloader/efi/secureBoot", json!(false))]);
    let z = spec(json!({ "architecture": "s390x", "domain": {} }));
    check(json!({}), z, &[("/spec/domain/features/acpi/enabled", json!(false))]);
}

#[test]
fn enlightenments_bring_what_they_build_on() {
    let hyperv = |hyperv: Value| domain(json!({ "features": { "hyperv": hyperv } }));
    let at = |name: &str| format!("/spec/domain/features/hyperv/{name}/enabled");
    let asked = hyperv(json!({ "synictimer": {}, "evmcs": {} }));
    for name in ["synictimer", "synic", "vpindex", "evmcs", "vapic"] {
        check(json!({}), asked.clone(), &[(&at(name), json!(true))]);
    }
    let vmx = json!([{ "name": "vmx", "policy": "require" }]);
    check(json!({}), asked, &[("/spec/domain/cpu/features", vmx)]);
    // One that was switched off stays so; what asked for it is refused later, and nothing after it is added.
    let torn = hyperv(json!({ "vpindex": { "enabled": false }, "synictimer": {}, "evmcs": {} }));
    check(
        json!({}),
        torn,
        &[
            (&at("vpindex"), json!(false)),
            (&at("synic"), json!(true)),
            (&at("vapic"), json!(true)),
            ("/spec/domain/cpu/features", Value::Null),
        ],
    );
    check(json!({}), hyperv(json!({ "relaxed": {} })), &[(&at("relaxed"), json!(true)), (&at("vpindex"), Value::Null)]);
    let spin = "/spec/domain/features/hyperv/spinlocks/spinlocks";
    check(json!({}), hyperv(json!({ "spinlocks": {} })), &[(spin, json!(4096))]);
}

#[test]
fn room_to_grow() {
    let sockets = "/spec/domain/cpu/maxSockets";
    let cpu = |cpu: Value| domain(json!({ "cpu": cpu }));
    let live = |live: Value| json!({ "liveUpdateConfiguration": live });
    for (configuration, vmi, expected) in [
        (json!({}), cpu(json!({})), json!(4)),
        (json!({}), cpu(json!({ "sockets": 2 })), json!(8)),
        (json!({}), cpu(json!({ "sockets": 2, "maxSockets": 16 })), json!(16)),
        (json!({}), cpu(json!({ "sockets": 32, "cores": 2, "threads": 3 })), json!(85)),
        (live(json!({ "maxHotplugRatio": 2 })), cpu(json!({})), json!(2)),
        (live(json!({ "maxCpuSockets": 10, "maxHotplugRatio": 2 })), cpu(json!({ "sockets": 2 })), json!(10)),
        (live(json!({ "maxCpuSockets": 1 })), cpu(json!({ "sockets": 2 })), json!(2)),
        (json!({ "vmRolloutStrategy": "Stage" }), cpu(json!({})), Value::Null),
        (json!({}), spec(json!({ "architecture": "arm64", "domain": {} })), Value::Null),
    ] {
        check(configuration, vmi, &[(sockets, expected)]);
    }
    let most = "/spec/domain/memory/maxGuest";
    let memory = |memory: Value| domain(json!({ "memory": memory }));
    for (configuration, vmi, expected) in [
        (json!({}), memory(json!({ "guest": "1Gi" })), json!("4Gi")),
        (json!({}), memory(json!({ "guest": "1Gi", "maxGuest": "2Gi" })), json!("2Gi")),
        (live(json!({ "maxHotplugRatio": 2 })), memory(json!({ "guest": "1Gi" })), json!("2Gi")),
        (live(json!({ "maxGuest": "8Gi" })), memory(json!({ "guest": "1Gi" })), json!("8Gi")),
        (live(json!({ "maxGuest": "1Gi" })), memory(json!({ "guest": "2Gi" })), Value::Null),
        (json!({}), memory(json!({ "guest": "512Mi" })), Value::Null),
        (json!({}), memory(json!({ "guest": "1025Mi" })), Value::Null),
        (json!({}), memory(json!({})), Value::Null),
        (json!({}), domain(json!({ "memory": { "guest": "1Gi" }, "launchSecurity": {} })), Value::Null),
        (json!({}), domain(json!({ "memory": { "guest": "1Gi" }, "cpu": { "realtime": {} } })), Value::Null),
        (json!({}), spec(json!({ "architecture": "s390x", "domain": { "memory": { "guest": "1Gi" } } })), Value::Null),
    ] {
        check(configuration, vmi, &[(most, expected)]);
    }
    let mut grown: VirtualMachineInstanceSpec = serde_json::from_value(
        json!({ "domain": { "cpu": { "sockets": 1, "maxSockets": 4 }, "memory": { "guest": "1Gi", "maxGuest": "4Gi" } } }),
    )
    .unwrap();
    without_room(&mut grown);
    let left = serde_json::to_value(grown.domain).unwrap();
    assert_eq!((&left["cpu"], &left["memory"]), (&json!({ "sockets": 1 }), &json!({ "guest": "1Gi" })));
}

#[test]
fn annotations_of_instances() {
    let layout = "/metadata/annotations/kubevirt.io~1pci-topology-version";
    let of = |architecture: &str, machine: Value| {
        spec(json!({ "architecture": architecture, "domain": { "machine": machine } }))
    };
    for (architecture, machine, expected) in [
        ("amd64", json!({}), json!("v3")),
        ("amd64", json!({ "type": "pc-i440fx-2.12" }), Value::Null),
        ("arm64", json!({ "type": "virt-6.2" }), json!("v3")),
        ("s390x", json!({}), Value::Null),
        ("ppc64le", json!({}), Value::Null),
    ] {
        check(json!({}), of(architecture, machine), &[(layout, expected)]);
    }
    let mut kept = of("amd64", json!({}));
    kept["metadata"]["annotations"] = json!({ "kubevirt.io/pci-topology-version": "v2" });
    check(json!({}), kept, &[(layout, json!("v2"))]);
    let socket = "/metadata/annotations/kubevirt.io~1qgs-socket-path";
    let encrypted = domain(json!({ "launchSecurity": { "tdx": {} } }));
    check(json!({}), encrypted, &[(socket, json!("/var/run/tdx-qgs/qgs.socket"))]);

    let parity = |gate: &str, of_cluster: bool, isolated: bool| {
        let configuration = json!({ "developerConfiguration": { "featureGates": [gate] } });
        let cpu = json!({ "dedicatedCpuPlacement": true, "isolateEmulatorThread": isolated });
        let mut vmi: VirtualMachineInstance = serde_json::from_value(domain(json!({ "cpu": cpu }))).unwrap();
        let key = names::EMULATOR_THREAD_COMPLETE_TO_EVEN_PARITY;
        let cluster = if of_cluster { [(key.to_owned(), String::new())].into() } else { BTreeMap::new() };
        instance(&mut vmi, &serde_json::from_value(configuration).unwrap(), &cluster).unwrap();
        vmi.metadata.annotations.unwrap_or_default().contains_key(key)
    };
    assert!(parity("AlignCPUs", true, true));
    assert!(!parity("Other", true, true) && !parity("AlignCPUs", false, true) && !parity("AlignCPUs", true, false));
}

#[test]
fn a_vm_keeps_what_outlives_its_instances() {
    let made = |configuration: Value, template: Value, new: bool| {
        let mut vm: VirtualMachine = serde_json::from_value(json!({ "spec": { "template": template } })).unwrap();
        let identity = new.then(|| Identity { uuid: "u".into(), serial: "s".into() });
        virtual_machine(&mut vm, &serde_json::from_value(configuration).unwrap(), identity);
        serde_json::to_value(vm.spec.template).unwrap()
    };
    let amd64 = json!({ "architectureConfiguration": { "defaultArchitecture": "amd64" } });
    let template = made(amd64.clone(), json!({ "spec": { "domain": {} } }), true);
    assert_eq!(template["spec"]["architecture"], "amd64");
    let domain = &template["spec"]["domain"];
    assert_eq!(domain["machine"]["type"], "q35");
    assert_eq!(domain["firmware"], json!({ "uuid": "u", "serial": "s" }));
    assert_eq!(template["metadata"]["annotations"]["kubevirt.io/pci-topology-version"], "v3");
    for open in ["cpu", "memory", "features"] {
        assert!(domain[open].is_null(), "{open} is settled when an instance is made: {domain}");
    }
    let changed = made(amd64, json!({ "spec": { "domain": {} } }), false);
    assert!(changed["spec"]["domain"]["firmware"].is_null() && changed["metadata"]["annotations"].is_null());
    let own = json!({ "spec": { "architecture": "arm64", "domain": {
        "machine": { "type": "mine" }, "firmware": { "uuid": "mine", "serial": "mine" } } } });
    let kept = made(json!({ "machineType": "other" }), own.clone(), true);
    assert_eq!(kept["spec"]["domain"], serde_json::to_value(made(json!({}), own, true)).unwrap()["spec"]["domain"]);
    assert_eq!(kept["spec"]["domain"]["firmware"], json!({ "uuid": "mine", "serial": "mine" }));
}

#[test]
fn an_input_is_attached_if_asked_for_and_none_is_there() {
    let attached = |devices: Value| {
        let mut spec: VirtualMachineInstanceSpec =
            serde_json::from_value(json!({ "domain": { "devices": devices } })).unwrap();
        attach_input(&mut spec);
        spec.domain.devices.inputs.into_iter().map(|input| input.name).collect::<Vec<_>>()
    };
    assert_eq!(attached(json!({ "autoattachInputDevice": true })), ["default-0"]);
    assert_eq!(attached(json!({ "autoattachInputDevice": true, "inputs": [{ "name": "mine" }] })), ["mine"]);
    assert!(attached(json!({ "autoattachInputDevice": false })).is_empty() && attached(json!({})).is_empty());
}
