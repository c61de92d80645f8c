//! One row per mistake: what is changed in a VM that is well, and which field and words the refusal has.

use ferrovirt_api::v1::KubeVirtConfiguration;
use serde_json::{Value, json};

use super::*;

const T: &str = "spec.template.spec";
/// Someone makes it anew.
const NEW: By = By { component: false, creates: true };

fn base() -> Value {
    json!({
        "metadata": { "name": "a" },
        "spec": { "runStrategy": "Always", "template": { "spec": {
            "domain": { "memory": { "guest": "64Mi" }, "devices": { "disks": [{ "name": "root", "disk": { "bus": "virtio" } }] } },
            "volumes": [{ "name": "root", "containerDisk": { "image": "x" } }],
        } } },
    })
}

/// Puts a value at a path, as a merge patch would.
fn merge(target: &mut Value, patch: &Value) {
    match (target, patch) {
        (Value::Object(target), Value::Object(patch)) => {
            for (key, value) in patch {
                if value.is_null() {
                    target.remove(key);
                } else {
                    merge(target.entry(key.clone()).or_insert(Value::Null), value);
                }
            }
        }
        (target, patch) => *target = patch.clone(),
    }
}

fn causes(patch: &Value) -> Vec<Cause> {
    let mut value = base();
    merge(&mut value, patch);
    with(json!({}), |cluster| virtual_machine(&serde_json::from_value(value).unwrap(), cluster, NEW))
}

/// Judges as in a cluster with this configuration.
fn with<T>(configuration: Value, judge: impl FnOnce(&Cluster<'_>) -> T) -> T {
    judge(&Cluster(&serde_json::from_value(configuration).unwrap()))
}

fn causes_with(configuration: Value, patch: &Value) -> Vec<Cause> {
    let mut value = base();
    merge(&mut value, patch);
    with(configuration, |cluster| virtual_machine(&serde_json::from_value(value).unwrap(), cluster, NEW))
}

/// The same rule twice: closed by default, and gone once the gate is open.
fn gated(gate: &str, patch: Value, field: &str, words: &str) {
    check(patch.clone(), field, words);
    let open = causes_with(json!({ "developerConfiguration": { "featureGates": [gate] } }), &patch);
    assert_eq!(open, [], "{gate} is open");
}

/// The only refusal is this one. Paths are below the template's spec unless they begin with `spec`.
fn check(patch: Value, field: &str, words: &str) {
    let found = causes(&patch);
    // Upstream names these without their place.
    let bare = ["nameservers", "searchDomains", "options"];
    let field = match field {
        field if field.starts_with("spec") || bare.contains(&field) => field.to_owned(),
        field => format!("{T}.{field}"),
    };
    match found.as_slice() {
        [cause] => {
            assert_eq!(cause.field, field, "{patch}: {}", cause.message);
            assert!(cause.message.contains(words), "{patch}: {:?} lacks {words:?}", cause.message);
        }
        other => panic!("{patch}: {other:#?}"),
    }
}

fn template(spec: Value) -> Value {
    json!({ "spec": { "template": { "spec": spec } } })
}

fn disks(disks: Value) -> Value {
    template(json!({ "domain": { "devices": { "disks": disks } } }))
}

/// A volume next to the boot disk.
fn volume(source: Value) -> Value {
    let mut extra = json!({ "name": "extra" });
    merge(&mut extra, &source);
    template(json!({ "volumes": [{ "name": "root", "containerDisk": { "image": "x" } }, extra] }))
}

fn interface(interface: Value) -> Value {
    let mut one = json!({ "name": "n", "masquerade": {} });
    merge(&mut one, &interface);
    template(json!({ "domain": { "devices": { "interfaces": [one] } }, "networks": [{ "name": "n", "pod": {} }] }))
}

#[test]
fn what_is_well_is_accepted() {
    for patch in [
        json!({}),
        template(json!({ "domain": { "machine": { "type": "pc-q35-7.2" } } })),
        template(json!({ "domain": { "cpu": { "cores": 2, "features": [{ "name": "vmx", "policy": "disable" }] } } })),
        template(
            json!({ "domain": { "resources": { "requests": { "memory": "64Mi", "cpu": "100m" }, "limits": { "memory": "128Mi" } } } }),
        ),
        volume(json!({ "cloudInitNoCloud": { "userData": "#cloud-config" } })),
        volume(json!({ "emptyDisk": { "capacity": "1Gi" } })),
        interface(
            json!({ "macAddress": "02:00:00:00:00:01", "model": "e1000", "ports": [{ "port": 80, "name": "http" }] }),
        ),
        disks(
            json!([{ "name": "root", "bootOrder": 1, "serial": "A-1", "cache": "none", "io": "native" }, { "name": "cd", "cdrom": { "bus": "sata" } }]),
        ),
        template(json!({ "readinessProbe": { "tcpSocket": { "port": 22 } } })),
        template(json!({ "hostname": "a-1", "subdomain": "b.c", "startStrategy": "Paused" })),
        template(json!({ "dnsPolicy": "None", "dnsConfig": { "nameservers": ["10.0.0.1"], "searches": ["x.y"] } })),
    ] {
        assert_eq!(causes(&patch), [], "{patch}");
    }
}

#[test]
fn run_strategies() {
    check(json!({ "spec": { "running": true } }), "spec.running", "mutually exclusive");
    check(json!({ "spec": { "runStrategy": "Sometimes" } }), "spec.runStrategy", "Invalid RunStrategy (Sometimes)");
    check(json!({ "spec": { "runStrategy": null } }), "spec.running", "RunStrategy must be specified");
    gated(
        "DecentralizedLiveMigration",
        json!({ "spec": { "runStrategy": "WaitAsReceiver" } }),
        "spec.runStrategy",
        "DecentralizedLiveMigration feature gate is not enabled",
    );
    check(json!({ "spec": { "template": null } }), "spec.template", "missing virtual machine template.");
}

#[test]
fn memory() {
    let guest = |size: &str| template(json!({ "domain": { "memory": { "guest": size } } }));
    check(guest("-1Gi"), "domain.memory.guest", "must be greater than or equal to 0");
    check(guest("0"), "domain.memory.guest", "must be greater than or equal to 1M");
    check(guest("1"), "domain.memory.guest", "must be greater than or equal to 1M");
    // No node has as much: that is for the scheduler to say.
    assert_eq!(causes(&guest("1Ei")), []);
    check(guest("lots"), "domain.memory.guest", "quantities must match");
    let open = template(json!({ "domain": { "memory": null } }));
    assert_eq!(causes(&open), []);
    let mut vm = base();
    merge(&mut vm, &open);
    let said = with(json!({}), |cluster| warnings(&serde_json::from_value(vm).unwrap(), cluster));
    assert!(said.iter().any(|warning| warning.contains("no memory requested")), "{said:?}");
    let resources = |requests: &str, limits: &str| {
        template(
            json!({ "domain": { "resources": { "requests": { "memory": requests }, "limits": { "memory": limits } } } }),
        )
    };
    check(resources("128Mi", "64Mi"), "domain.resources.requests.memory", "'128Mi' is greater than");
    let limited = template(json!({ "domain": { "resources": { "limits": { "memory": "32Mi" } } } }));
    let found = causes_with(json!({ "vmRolloutStrategy": "Stage" }), &limited);
    assert!(found[0].message.contains("must be equal to or less than the memory limit"), "{found:?}");
    let grows =
        |guest: &str, most: &str| template(json!({ "domain": { "memory": { "guest": guest, "maxGuest": most } } }));
    assert_eq!(causes(&grows("1Gi", "4Gi")), []);
    check(grows("4112Mi", "4Gi"), "domain.memory.guest", "greater than the configured maxGuest memory");
    check(grows("1025Mi", "4Gi"), "domain.memory.guest", "Guest memory must be 2Mi aligned");
    check(grows("512Mi", "4Gi"), "domain.memory.guest", "at least 1Gi of guest memory");
    let pages = |size: &str| template(json!({ "domain": { "memory": { "hugepages": { "pageSize": size } } } }));
    check(pages("1Gi"), "domain.resources.requests.memory", "must be equal to or larger than page size");
    check(pages("48Mi"), "domain.resources.requests.memory", "is not a multiple of the page size");
    check(pages("big"), "domain.memory.hugepages.pageSize", "'big': quantities must match");
}

#[test]
fn processors() {
    let cpu = |cpu: Value| template(json!({ "domain": { "cpu": cpu } }));
    check(cpu(json!({ "cores": 711 })), "domain.cpu", "711 virtual CPUs");
    check(
        cpu(json!({ "sockets": 4, "maxSockets": 2 })),
        "domain.cpu.sockets",
        "greater than the maximum sockets allowed",
    );
    check(
        cpu(json!({ "features": [{ "name": "vmx", "policy": "maybe" }] })),
        "domain.cpu.features[0].policy",
        "CPU feature vmx uses policy maybe that is not supported.",
    );
    check(
        cpu(json!({ "isolateEmulatorThread": true })),
        "domain.cpu.isolateEmulatorThread",
        "in combination with DedicatedCPUPlacement",
    );
    check(
        cpu(json!({ "dedicatedCpuPlacement": true, "threads": 3 })),
        "domain.cpu.dedicatedCpuPlacement",
        "Not more than two threads",
    );
    assert_eq!(causes(&cpu(json!({ "dedicatedCpuPlacement": true }))), []);
    let both = json!({ "domain": { "cpu": { "dedicatedCpuPlacement": true }, "resources": { "requests": { "cpu": "1" }, "limits": { "cpu": "2" } } } });
    check(template(both), "domain.cpu.dedicatedCpuPlacement", "must be equal when DedicatedCPUPlacement");
    check(
        template(json!({ "domain": { "resources": { "requests": { "cpu": "-1" } } } })),
        "domain.resources.requests.cpu",
        "must be greater than or equal to 0",
    );
    check(
        template(json!({ "domain": { "resources": { "requests": { "cpu": "2" }, "limits": { "cpu": "1" } } } })),
        "domain.resources.requests.cpu",
        "'2' is greater than",
    );
    check(
        template(
            json!({ "architecture": "arm64", "domain": { "cpu": { "threads": 2, "dedicatedCpuPlacement": true } } }),
        ),
        "architecture",
        "threads must not be greater than 1",
    );
    check(
        template(json!({ "domain": { "ioThreadsPolicy": "many" } })),
        "domain.ioThreadsPolicy",
        "Invalid IOThreadsPolicy (many)",
    );
    check(
        template(json!({ "domain": { "machine": { "type": "pdp11" } } })),
        "domain.machine.type",
        "is not supported: pdp11",
    );
}

#[test]
fn firmware() {
    let firmware = |firmware: Value| template(json!({ "domain": { "firmware": firmware } }));
    check(
        firmware(json!({ "bootloader": { "bios": {}, "efi": { "secureBoot": false } } })),
        "domain.firmware.bootloader",
        "mutually exclusive",
    );
    check(firmware(json!({ "bootloader": { "efi": {} } })), "domain", "SecureBoot requires SMM");
    check(
        firmware(json!({ "kernelBoot": { "kernelArgs": "x" } })),
        "domain.firmware.kernelBoot.kernelArgs",
        "without an external kernel",
    );
    check(
        firmware(json!({ "kernelBoot": { "container": { "kernelPath": "/k" } } })),
        "domain.firmware.kernelBoot.container.image",
        "must be defined with an image",
    );
    check(
        firmware(json!({ "kernelBoot": { "container": { "image": "i" } } })),
        "domain.firmware.kernelBoot.container",
        "at least one of the following",
    );
    check(firmware(json!({ "acpi": {} })), "acpi", "no SLIC nor MSDM");
    check(firmware(json!({ "acpi": { "slicNameRef": "none" } })), "acpi.slicNameRef", "matching Volume");
    check(firmware(json!({ "acpi": { "slicNameRef": "root" } })), "acpi.slicNameRef", "unsupported type");
}

#[test]
fn small_devices() {
    let devices = |devices: Value| template(json!({ "domain": { "devices": devices } }));
    check(
        devices(json!({ "inputs": [{ "name": "t", "type": "tablet", "bus": "ps2" }] })),
        "domain.devices.inputs[0].bus",
        "virtio or usb",
    );
    check(
        devices(json!({ "inputs": [{ "name": "t", "type": "mouse" }] })),
        "domain.devices.inputs[0].type",
        "only tablet",
    );
    check(devices(json!({ "sound": { "name": "s", "model": "sb16" } })), "Sound", "'ich9' or 'ac97'");
    check(devices(json!({ "sound": { "model": "ich9" } })), "Sound", "requires a name");
}

#[test]
fn disk_targets() {
    let one = |disk: Value| {
        let mut root = json!({ "name": "root" });
        merge(&mut root, &disk);
        disks(json!([root]))
    };
    let d = "domain.devices.disks[0]";
    let at = |below: &str| format!("{d}.{below}");
    let twice = "domain.devices.disks.domain.devices.disks";
    check(
        disks(json!([{ "name": "root" }, { "name": "other", "disk": {} }])),
        "domain.devices.disks[1].name",
        "'other' not found.",
    );
    check(
        disks(json!([{ "name": "root" }, { "name": "root" }])),
        "domain.devices.disks[1].name",
        "must not have the same Name",
    );
    check(one(json!({ "disk": {}, "cdrom": {} })), d, "single target type");
    check(one(json!({ "disk": { "bus": "ide" } })), &at("disk.bus"), "IDE bus is not supported");
    check(one(json!({ "disk": { "bus": "floppy" } })), &at("disk.bus"), "unrecognized bus floppy");
    check(one(json!({ "cdrom": { "bus": "virtio" } })), &at("cdrom.bus"), "invalid for CD-ROM");
    check(one(json!({ "disk": { "bus": "sata", "readonly": true } })), &at("disk.bus"), "do not support read-only");
    check(one(json!({ "lun": {} })), &at("lun"), "can only be mapped to a DataVolume or PersistentVolumeClaim");
    check(
        one(json!({ "disk": { "bus": "sata", "pciAddress": "0000:81:01.0" } })),
        &format!("{twice}.disk[0].pciAddress"),
        "only possible with bus type virtio",
    );
    check(
        one(json!({ "disk": { "bus": "virtio", "pciAddress": "81:01.0" } })),
        &format!("{twice}.disk[0].pciAddress"),
        "malformed PCI address",
    );
    check(one(json!({ "bootOrder": 0 })), &at("bootOrder"), "boot order > 0");
    check(one(json!({ "serial": "a b" })), &at("serial"), "[A-Za-z0-9_.+-]");
    check(one(json!({ "serial": "a".repeat(257) })), &at("serial"), "less than or equal to 256");
    check(one(json!({ "cache": "always" })), &at("cache"), "invalid value always");
    check(one(json!({ "io": "fast" })), &format!("{twice}[0].io"), "Supported modes are: native, threads");
    check(one(json!({ "errorPolicy": "cry" })), &at("errorPolicy"), "invalid value \"cry\"");
    check(
        one(json!({ "disk": { "bus": "sata" }, "dedicatedIOThread": true })),
        &format!("{twice}[0]"),
        "IOThreads are not supported for disks on a sata bus",
    );
    let block = |logical: u64| one(json!({ "blockSize": { "custom": { "logical": logical, "physical": 4096 } } }));
    check(block(8192), &at("blockSize.custom.logical"), "must be the same or less than the physical size of 4096");
    check(block(256), &at("blockSize.custom.logical"), "less than the supported minimum");
    let large = json!({ "blockSize": { "custom": { "logical": 512, "physical": 4 << 20 } } });
    check(one(large), &at("blockSize.custom.physical"), "greater than the supported maximum");
    check(block(1000), &at("blockSize.custom.logical"), "not a power of 2");
    let both = json!({ "blockSize": { "custom": { "logical": 512, "physical": 512 }, "matchVolume": {} } });
    check(one(both), &at("blockSize"), "can't be enabled together");
    let same = json!({ "domain": { "devices": {
        "disks": [{ "name": "root", "bootOrder": 1 }], "interfaces": [{ "name": "n", "masquerade": {}, "bootOrder": 1 }],
    } }, "networks": [{ "name": "n", "pod": {} }] });
    check(template(same), "domain.devices.interfaces[0].bootOrder", "already set for a different device");
}

#[test]
fn volumes() {
    check(volume(json!({})), "volumes[1]", "exactly one source type");
    check(
        volume(json!({ "emptyDisk": { "capacity": "1Gi" }, "secret": { "secretName": "s" } })),
        "volumes[1]",
        "exactly one source type",
    );
    check(
        volume(json!({ "name": "root", "emptyDisk": { "capacity": "1Gi" } })),
        "volumes[1].name",
        "must not have the same Name",
    );
    check(volume(json!({ "emptyDisk": { "capacity": "0" } })), "volumes[1].emptyDisk.capacity", "greater than zero");
    check(volume(json!({ "containerDisk": { "image": "" } })), "volumes[1].containerDisk.image", "is a required field");
    check(volume(json!({ "configMap": {} })), "volumes[1].configMap.name", "is a required field");
    check(volume(json!({ "secret": {} })), "volumes[1].secret.secretName", "is a required field");
    check(
        volume(json!({ "serviceAccount": {} })),
        "volumes[1].serviceAccount.serviceAccountName",
        "is a required field",
    );
    check(volume(json!({ "dataVolume": { "name": "" } })), "volumes[1].name", "DataVolume 'name' must be set");
    let two = json!({ "volumes": [
        { "name": "root", "containerDisk": { "image": "x" } },
        { "name": "a", "serviceAccount": { "serviceAccountName": "x" } },
        { "name": "b", "serviceAccount": { "serviceAccountName": "y" } },
    ] });
    check(template(two), "volumes", "max one serviceAccount volume");
    let host = json!({ "hostDisk": { "path": "/x", "type": "Disk" } });
    gated("HostDisk", volume(host), "volumes[1]", "HostDisk feature gate is not enabled");
    let init = |source: Value| volume(json!({ "cloudInitNoCloud": source }));
    let field = "volumes[1].cloudInitNoCloud";
    check(init(json!({})), field, "at least one userdatasource");
    check(init(json!({ "userData": "x", "userDataBase64": "eA==" })), field, "only one userdatasource");
    check(init(json!({ "userDataBase64": "%" })), "volumes[1].cloudInitNoCloud.userDataBase64", "not a valid base64");
    check(init(json!({ "userData": "x".repeat(2049) })), field, "userdata exceeds 2048 byte limit");
    check(init(json!({ "networkData": "x".repeat(2049) })), field, "networkdata exceeds 2048 byte limit");
    let drive = json!({ "cloudInitConfigDrive": { "networkData": "x", "networkDataBase64": "eA==" } });
    check(volume(drive), "volumes[1].cloudInitConfigDrive", "only one networkdata source");
}

#[test]
fn data_volume_templates() {
    let made = |name: &str, spec: Value| json!({ "spec": { "dataVolumeTemplates": [{ "metadata": { "name": name }, "spec": spec }] } });
    let (pvc, blank) = (json!({ "resources": {} }), json!({ "blank": {} }));
    let t = "spec.dataVolumeTemplate[0]";
    let at = |below: &str| format!("{t}.{below}");
    let sound = json!({ "pvc": pvc, "source": blank });
    check(made("unused", sound.clone()), t, "must be referenced in the VMI template's 'volumes' list");
    check(made("", sound), &at("name"), "must not be empty");
    check(made("x", json!({ "source": blank })), &at("PVC.Storage"), "Missing Data volume PVC or Storage");
    let both = json!({ "pvc": pvc, "storage": {}, "source": blank });
    check(made("x", both), &at("PVC.Storage"), "Duplicate storage definition");
    check(made("x", json!({ "pvc": pvc })), &at("source.sourceRef"), "should have either Source, SourceRef");
    check(made("x", json!({ "pvc": pvc, "source": {} })), &at("source"), "Missing dataVolume valid source");
    let two = json!({ "pvc": pvc, "source": { "blank": {}, "upload": {} } });
    check(made("x", two), &at("source"), "Multiple dataVolume sources");
    let outside = json!({ "storage": { "dataSource": { "name": "s" } }, "source": blank });
    check(made("x", outside), &at("source"), "External population is incompatible");
}

#[test]
fn networks() {
    let i = "domain.devices.interfaces[0]";
    let at = |below: &str| format!("{i}.{below}");
    check(interface(json!({ "macAddress": "zz" })), &at("macAddress"), "malformed MAC address (zz)");
    check(interface(json!({ "macAddress": "02:00:00:00:00:00" })), &at("macAddress"), "reserved for the in-pod bridge");
    check(interface(json!({ "model": "token-ring" })), &at("model"), "uses model token-ring");
    check(interface(json!({ "pciAddress": "x" })), &at("pciAddress"), "malformed PCI address");
    check(interface(json!({ "state": "sideways" })), &at("state"), "state value is unsupported");
    check(interface(json!({ "bridge": {} })), i, "exactly one binding method");
    check(interface(json!({ "masquerade": null })), i, "exactly one binding method or binding plugin");
    check(
        interface(json!({ "slirp": {} })),
        "spec.domain.devices.interfaces[0].slirp",
        "Slirp interface support has been discontinued since v1.3",
    );
    check(interface(json!({ "macvtap": {} })), "spec.domain.devices.interfaces[0].macvtap", "discontinued since v1.3");
    check(interface(json!({ "macAddress": "02:00:00:00:00:00:00:01" })), &at("macAddress"), "has too long MAC address");
    let absent = |binding: &str| {
        template(json!({
            "domain": { "devices": { "interfaces": [{ "name": "n", binding: {}, "state": "absent" }] } },
            "networks": [{ "name": "n", "multus": { "networkName": "x" } }],
        }))
    };
    assert_eq!(causes(&absent("bridge")), []);
    check(absent("sriov"), &at("state"), "supported only for bridge binding");
    check(interface(json!({ "dhcpOptions": { "ntpServers": ["x"] } })), &at("dhcpOptions.ntpServers[0]"), "valid IPv4");
    let options = |options: Value| interface(json!({ "dhcpOptions": { "privateOptions": options } }));
    check(options(json!([{ "option": 1, "value": "x" }])), T, "range 224 to 254");
    let twice = json!([{ "option": 224, "value": "x" }, { "option": 224, "value": "y" }]);
    check(options(twice), T, "duplicate DHCPPrivateOptions");
    let ranges = |ranges: Value| interface(json!({ "portRanges": ranges }));
    gated(
        "PortRangesSpec",
        ranges(json!([{ "protocol": "TCP", "start": 1, "end": 9 }])),
        &at("name"),
        "PortRangesSpec feature gate is not enabled",
    );
    let overlap =
        ranges(json!([{ "protocol": "TCP", "start": 5, "end": 9 }, { "protocol": "TCP", "start": 1, "end": 5 }]));
    let open = json!({ "developerConfiguration": { "featureGates": ["PortRangesSpec"] } });
    assert_eq!(causes_with(open, &overlap)[0].message, "TCP portRanges [1-5] and [5-9] overlap");
    let bridged = interface(json!({ "masquerade": null, "bridge": {} }));
    let closed = json!({ "network": { "permitBridgeInterfaceOnPodNetwork": false } });
    assert_eq!(causes(&bridged), []);
    assert!(causes_with(closed, &bridged)[0].message.starts_with("Bridge on pod network configuration is not enabled"));
    check(interface(json!({ "ports": [{ "port": 0 }] })), &at("ports[0].port"), "Port field is mandatory.");
    check(interface(json!({ "ports": [{ "port": 70000 }] })), &at("ports[0].port"), "0 < x < 65536");
    check(
        interface(json!({ "ports": [{ "port": 1, "protocol": "SCTP" }] })),
        &at("ports[0].protocol"),
        "only TCP or UDP",
    );
    check(
        interface(json!({ "ports": [{ "port": 1, "name": "a" }, { "port": 2, "name": "a" }] })),
        &at("ports[1].name"),
        "Duplicate name",
    );
    check(interface(json!({ "ports": [{ "port": 1, "name": "Not_A_Name" }] })), &at("ports[0].name"), "Invalid name");
    let orphan = json!({ "networks": [{ "name": "n", "pod": {} }] });
    check(template(orphan), "networks[0].name", "'n' not found.");
    let multus = json!({
        "domain": { "devices": { "interfaces": [{ "name": "n", "masquerade": {} }] } },
        "networks": [{ "name": "n", "multus": { "networkName": "x" } }],
    });
    check(template(multus), &at("name"), "only implemented with pod network");
    let nameless = json!({
        "domain": { "devices": { "interfaces": [{ "name": "n", "bridge": {} }] } }, "networks": [{ "name": "n", "multus": {} }],
    });
    check(template(nameless), "networks[0]", "must have a networkName");
    let typeless = json!({
        "domain": { "devices": { "interfaces": [{ "name": "n", "bridge": {} }] } }, "networks": [{ "name": "n" }],
    });
    check(template(typeless), "networks[0]", "should have a network type");
    let two = json!({
        "domain": { "devices": { "interfaces": [{ "name": "a", "masquerade": {} }, { "name": "b", "masquerade": {} }] } },
        "networks": [{ "name": "a", "pod": {} }, { "name": "b", "pod": {} }],
    });
    check(template(two), "interfaces", "more than one interface is connected to a pod network");
}

#[test]
fn guests() {
    check(
        template(json!({ "terminationGracePeriodSeconds": -1 })),
        "terminationGracePeriodSeconds",
        "must not be negative",
    );
    check(template(json!({ "hostname": "Not A Label" })), "hostname", "DNS_LABEL rules");
    check(template(json!({ "subdomain": "bad..domain" })), "subdomain", "DNS_SUBDOMAIN rules");
    check(template(json!({ "startStrategy": "Fast" })), "startStrategy", "unrecognized option: Fast");
    check(template(json!({ "evictionStrategy": "Flee" })), "evictionStrategy", "unrecognized option: Flee");
    let probed = json!({ "startStrategy": "Paused", "livenessProbe": { "guestAgentPing": {} } });
    check(template(probed), "startStrategy", "Pausing VMI with LivenessProbe is not supported");
    check(template(json!({ "readinessProbe": {} })), "readinessProbe", "must be set if a");
    let both = json!({ "livenessProbe": { "tcpSocket": { "port": 1 }, "exec": { "command": ["x"] } } });
    check(template(both), "livenessProbe", "exactly one probe type");
    let alone = json!({ "domain": { "devices": { "autoattachPodInterface": false } }, "readinessProbe": { "tcpSocket": { "port": 1 } } });
    check(template(alone), "readinessProbe.tcpSocket", "only allowed if the Pod Network is attached");
    check(template(json!({ "dnsPolicy": "Maybe" })), "dnsPolicy", "DNSPolicy: Maybe is not supported");
    check(template(json!({ "dnsPolicy": "None" })), "dnsConfig", "must provide `dnsConfig`");
    check(template(json!({ "dnsConfig": { "nameservers": ["x"] } })), "nameservers", "must be valid IP address: x");
    let four = json!({ "dnsConfig": { "nameservers": ["1.1.1.1", "1.1.1.2", "1.1.1.3", "1.1.1.4"] } });
    check(template(four), "nameservers", "more than 3 nameservers");
    check(template(json!({ "dnsConfig": { "searches": ["-x"] } })), "searchDomains", "RFC 1123");
}

#[test]
fn credentials() {
    let credential = |credential: Value| template(json!({ "accessCredentials": [credential] }));
    let secret = || json!({ "secret": { "secretName": "s" } });
    let c = "accessCredentials[0]";
    check(credential(json!({})), c, "exactly one access credential type");
    check(
        credential(
            json!({ "sshPublicKey": { "source": {}, "propagationMethod": { "qemuGuestAgent": { "users": ["u"] } } } }),
        ),
        &format!("{c}.sshPublicKey.source"),
        "exactly one source",
    );
    check(
        credential(json!({ "sshPublicKey": { "source": secret(), "propagationMethod": {} } })),
        &format!("{c}.sshPublicKey.propagationMethod"),
        "exactly one propagationMethod",
    );
    check(
        credential(json!({ "sshPublicKey": { "source": secret(), "propagationMethod": { "noCloud": {} } } })),
        &format!("{c}.sshPublicKey.propagationMethod"),
        "requires a noCloud volume",
    );
    check(
        credential(
            json!({ "sshPublicKey": { "source": secret(), "propagationMethod": { "qemuGuestAgent": { "users": [] } } } }),
        ),
        &format!("{c}.sshPublicKey.propagationMethod.qemuGuestAgent.users"),
        "at least one user",
    );
    check(
        credential(json!({ "userPassword": { "source": secret(), "propagationMethod": {} } })),
        &format!("{c}.userPassword.propagationMethod"),
        "exactly one propagationMethod",
    );
}

#[test]
fn programs_of_users_do_not_run_in_launchers() {
    let sidecar = json!({ "spec": { "template": { "metadata": { "annotations": { "hooks.kubevirt.io/hookSidecars": "[]" } } } } });
    check(sidecar, "spec.template.metadata.annotations", "sidecar feature gate is not enabled");
}

#[test]
fn what_we_lack_is_a_warning_on_a_vm_and_a_refusal_on_an_instance() {
    let mut value = base();
    value["spec"]["template"]["spec"]["domain"]["cpu"] = json!({
        "realtime": {}, "dedicatedCpuPlacement": true, "cores": 1, "numa": { "guestMappingPassthrough": {} },
    });
    value["spec"]["template"]["spec"]["domain"]["memory"]["hugepages"] = json!({ "pageSize": "2Mi" });
    let vm: VirtualMachine = serde_json::from_value(value).unwrap();
    let cluster = KubeVirtConfiguration::default();
    let cluster = Cluster(&cluster);
    assert_eq!(virtual_machine(&vm, &cluster, NEW), []);
    let told = |warning: &String| warning.starts_with("spec.template.spec.domain.cpu.realtime: ");
    let said = warnings(&vm, &cluster);
    assert!(said.iter().any(told), "{said:?}");
    let vmi = VirtualMachineInstance { spec: vm.spec.template.unwrap().spec, ..Default::default() };
    assert!(instance(&vmi, &cluster).iter().any(|cause| cause.field == "spec.domain.cpu.realtime"));
    let none = template(json!({ "hypervisor": "none-such" }));
    assert_eq!(causes(&none)[0].field, "spec.template.spec.hypervisor");
}

#[test]
fn every_mistake_is_told_at_once() {
    let found = causes(&template(json!({
        "hostname": "A", "domain": { "memory": { "guest": "-1" }, "ioThreadsPolicy": "x" }, "dnsPolicy": "y",
    })));
    assert_eq!(found.len(), 4, "{found:#?}");
}

#[test]
fn replica_sets_select_what_they_make() {
    let set = |labels: Value, selector: Value, replicas: i32| {
        let value = json!({
            "metadata": { "name": "a" },
            "spec": { "replicas": replicas, "selector": selector, "template": {
                "metadata": { "labels": labels }, "spec": base()["spec"]["template"]["spec"],
            } },
        });
        let found = with(json!({}), |cluster| replica_set(&serde_json::from_value(value).unwrap(), cluster));
        found.into_iter().map(|c| c.field).collect::<Vec<_>>()
    };
    let own = json!({ "matchLabels": { "a": "b" } });
    assert!(set(json!({ "a": "b" }), own.clone(), 1).is_empty());
    assert_eq!(set(json!({ "a": "c" }), own.clone(), 1), ["spec.selector"]);
    assert_eq!(set(json!({ "a": "b" }), json!({}), 1), ["spec.selector"]);
    assert_eq!(set(json!({ "a": "b" }), own, -1), ["spec.replicas"]);
}

#[test]
fn an_instance_belongs_to_the_components() {
    let vmi = |change: Value| -> VirtualMachineInstance {
        let mut value = json!({
            "metadata": { "name": "a", "finalizers": [ferrovirt_api::names::VIRTUAL_MACHINE_INSTANCE_FINALIZER], "labels": { "kubevirt.io/nodeName": "n" } },
            "spec": base()["spec"]["template"]["spec"], "status": { "phase": "Running" },
        });
        merge(&mut value, &change);
        serde_json::from_value(value).unwrap()
    };
    let old = vmi(json!({}));
    let fields = |change: Value| update::changed(&old, &vmi(change)).into_iter().map(|c| c.field).collect::<Vec<_>>();
    assert!(fields(json!({ "metadata": { "labels": { "mine": "yes" }, "annotations": { "a": "b" } } })).is_empty());
    assert_eq!(fields(json!({ "spec": { "hostname": "x" } })), ["spec"]);
    assert_eq!(fields(json!({ "status": { "phase": "Failed" } })), ["status"]);
    assert_eq!(fields(json!({ "metadata": { "labels": { "kubevirt.io/nodeName": "other" } } })), ["metadata.labels"]);
    assert_eq!(fields(json!({ "metadata": { "finalizers": [] } })), ["metadata.finalizers"]);
    let owner = json!({ "metadata": { "ownerReferences": [{ "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "name": "x", "uid": "u" }] } });
    assert_eq!(fields(owner.clone()), ["metadata.ownerReferences"]);
    let made = update::created(&vmi(owner)).into_iter().map(|c| c.field).collect::<Vec<_>>();
    assert_eq!(made, ["metadata.labels", "metadata.ownerReferences"]);
    let sized = |sockets: u32, memory: &str| json!({ "spec": { "domain": { "cpu": { "maxSockets": sockets }, "memory": { "maxGuest": memory } } } });
    assert_eq!(update::resized(&sized(2, "1Gi"), &sized(2, "1024Mi")), None);
    assert!(update::resized(&sized(2, "1Gi"), &sized(4, "1Gi")).unwrap().message.contains("maxSockets changed"));
    assert!(update::resized(&sized(2, "1Gi"), &sized(2, "2Gi")).unwrap().message.contains("maxGuest changed"));
    for (user, component) in [
        ("system:ferrovirt:node", true),
        ("system:serviceaccount:kubevirt:kubevirt-handler", true),
        ("system:serviceaccount:kube-system:generic-garbage-collector", true),
        ("system:serviceaccount:kubevirt:default", false),
        ("system:serviceaccount:default:kubevirt-handler", false),
        ("admin", false),
    ] {
        assert_eq!(update::is_component(user), component, "{user}");
    }
}

#[test]
fn devices_behind_gates() {
    let devices = |devices: Value| template(json!({ "domain": { "devices": devices } }));
    gated(
        "HostDevices",
        devices(json!({ "hostDevices": [{ "name": "d", "deviceName": "x" }] })),
        "HostDevices",
        "Host Devices feature gate is not enabled in kubevirt-config",
    );
    gated("VSOCK", devices(json!({ "autoattachVSOCK": true })), "domain.devices.autoattachVSOCK", "VSOCK feature gate");
    gated(
        "DownwardMetrics",
        devices(json!({ "downwardMetrics": {} })),
        "domain.devices.downwardMetrics",
        "DownwardMetrics feature gate is not enabled",
    );
    let disk = json!({ "video": { "type": "vga" }, "autoattachGraphicsDevice": false });
    check(devices(disk), "video", "not allowed when autoattachGraphicsDevice is set to false");
    check(
        devices(json!({ "panicDevices": [{ "model": "bell" }] })),
        "domain.devices.panicDevices[0].model",
        "invalid PanicDeviceModel(bell)",
    );
    let closed = json!({ "developerConfiguration": { "disabledFeatureGates": ["RebootPolicy"] } });
    let policy = template(json!({ "domain": { "rebootPolicy": "Terminate" } }));
    assert_eq!(causes(&policy), []);
    assert_eq!(causes_with(closed, &policy)[0].field, format!("{T}.domain.rebootPolicy"));
}

#[test]
fn places() {
    let affinity = |affinity: Value| template(json!({ "affinity": affinity }));
    let required = |terms: Value| {
        affinity(
            json!({ "nodeAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": { "nodeSelectorTerms": terms } } }),
        )
    };
    let n = "nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms";
    check(required(json!([])), n, "Required value: must have at least one node selector term");
    let expression = |one: Value| required(json!([{ "matchExpressions": [one] }]));
    check(
        expression(json!({ "key": "a", "operator": "In" })),
        &format!("{n}[0].matchExpressions[0].values"),
        "must be specified when `operator` is 'In' or 'NotIn'",
    );
    check(
        expression(json!({ "key": "a", "operator": "Near" })),
        &format!("{n}[0].matchExpressions[0].operator"),
        "Invalid value: \"Near\": not a valid selector operator",
    );
    check(
        expression(json!({ "key": "a b", "operator": "Exists" })),
        &format!("{n}[0].matchExpressions[0].key"),
        "name part must consist of alphanumeric characters",
    );
    let pod = |weight: i32, key: &str| {
        affinity(json!({ "podAntiAffinity": { "preferredDuringSchedulingIgnoredDuringExecution": [
            { "weight": weight, "podAffinityTerm": { "topologyKey": key } },
        ] } }))
    };
    let p = "podAntiAffinity.preferredDuringSchedulingIgnoredDuringExecution[0]";
    check(pod(101, "zone"), &format!("{p}.weight"), "must be in the range 1-100");
    check(pod(1, "a/b/c"), &format!("{p}.podAffinityTerm.topologyKey"), "a valid label key must consist of");
    let spread =
        |skew: i32, action: &str| json!({ "maxSkew": skew, "topologyKey": "zone", "whenUnsatisfiable": action });
    let spreads = |all: Value| template(json!({ "topologySpreadConstraints": all }));
    let s = "topologySpreadConstraints[0]";
    check(spreads(json!([spread(0, "DoNotSchedule")])), &format!("{s}.maxSkew"), "must be greater than zero");
    check(
        spreads(json!([spread(1, "Weep")])),
        &format!("{s}.whenUnsatisfiable"),
        "supported values: \"DoNotSchedule\", \"ScheduleAnyway\"",
    );
    let one = || spread(1, "DoNotSchedule");
    check(
        spreads(json!([one(), one()])),
        &format!("{s}.{{topologyKey, whenUnsatisfiable}}"),
        "Duplicate value: \"{zone, DoNotSchedule}\"",
    );
}

/// What only an instance is asked: of a VM it is not known before defaults are applied.
#[test]
fn instances_of_an_architecture() {
    let judged = |patch: Value| -> Vec<Cause> {
        let mut value = json!({ "spec": base()["spec"]["template"]["spec"] });
        merge(&mut value, &json!({ "spec": { "architecture": "amd64" } }));
        merge(&mut value, &json!({ "spec": patch }));
        with(json!({}), |cluster| instance(&serde_json::from_value(value).unwrap(), cluster))
    };
    let devices = |architecture: &str, devices: Value| {
        judged(json!({ "architecture": architecture, "domain": { "devices": devices } }))
    };
    let says = |found: Vec<Cause>, field: &str, words: &str| {
        assert!(found.iter().any(|c| c.field == field && c.message.contains(words)), "{field} {words}: {found:#?}");
    };
    assert_eq!(judged(json!({})), []);
    let dog = json!({ "watchdog": { "name": "w", "diag288": {} } });
    says(devices("amd64", dog.clone()), "spec.domain.devices.watchdog", "amd64 only supports I6300ESB");
    says(devices("arm64", dog), "spec.domain.devices.watchdog", "Arm64 not support Watchdog device");
    let video = json!({ "video": { "type": "vga" } });
    says(devices("s390x", video), "spec.domain.devices.video.type", "video model 'vga' is not supported on s390x");
    says(devices("vax", json!({})), "spec.architecture", "unsupported architecture: vax");
    let features = json!({ "domain": { "features": { "hyperv": { "synic": {}, "vpindex": { "enabled": false } } } } });
    says(
        judged(features),
        "spec.domain.features.hyperv.domain.features.hyperv.synic",
        "requires 'spec.domain.features.hyperv.domain.features.hyperv.vpindex', which was disabled.",
    );
    let both = json!({ "domain": { "features": { "hyperv": {}, "hypervPassthrough": {} } } });
    says(judged(both), "spec.domain.features.hyperv", "Please use either HyperV or HypervPassthrough");
    let encrypted = json!({ "architecture": "amd64", "domain": { "launchSecurity": { "sev": {}, "snp": {} } } });
    says(judged(encrypted), "spec.launchSecurity", "One and only one launchSecurity type can be set");
}

#[test]
fn claimed_devices() {
    let devices =
        |devices: Value, claims: Value| template(json!({ "domain": { "devices": devices }, "resourceClaims": claims }));
    let claim = json!([{ "name": "c", "resourceClaimName": "c" }]);
    let gpu = json!({ "name": "g", "claimName": "c", "requestName": "r" });
    let g = "domain.devices.gpus";
    assert_eq!(causes(&devices(json!({ "gpus": [gpu] }), claim.clone())), []);
    check(devices(json!({ "gpus": [gpu] }), json!([])), "resourceClaims", "must specify all claims used in");
    check(devices(json!({ "gpus": [{ "name": "g" }] }), json!([])), g, "GPUs without deviceName or claimRequest");
    let both = json!({ "name": "g", "claimName": "c", "requestName": "r", "deviceName": "d" });
    check(devices(json!({ "gpus": [both] }), claim.clone()), g, "GPUs with both deviceName and claimRequest");
    let mixed = json!([gpu, { "name": "h", "deviceName": "d" }]);
    check(devices(json!({ "gpus": mixed }), claim.clone()), g, "contains both DRA and non-DRA GPUs");
    check(
        devices(json!({ "gpus": [gpu, gpu] }), claim),
        "domain.devices.gpus[1]",
        "duplicate claimName/requestName pair \"c/r\"",
    );
    check(devices(json!({}), json!([{ "name": "c" }])), "resourceClaims[0]", "must specify one of: resourceClaimName");
}

#[test]
fn nodes_write_their_own_instances() {
    let review = |node: Value, user: &str| {
        json!({ "request": {
            "userInfo": { "username": user, "extra": { "authentication.kubernetes.io/node-name": node } },
            "oldObject": { "status": { "nodeName": "a" } }, "object": { "status": { "nodeName": "a" } },
        } })
    };
    let handler = "system:serviceaccount:kubevirt:kubevirt-handler";
    let judged = |review: Value| with(json!({}), |cluster| update::elsewhere(&review, cluster).is_some());
    assert!(!judged(review(json!(["a"]), handler)));
    assert!(judged(review(json!(["b"]), handler)));
    assert!(!judged(review(json!(["b"]), "system:serviceaccount:kubevirt:kubevirt-controller")));
    assert!(!judged(review(Value::Null, "system:ferrovirt:node")));
    let unborn = |node: &str| {
        let mut review = review(json!([node]), handler);
        review["request"]["oldObject"]["status"] = json!({ "activePods": { "uid": "a" } });
        judged(review)
    };
    assert!(!unborn("a") && unborn("b"), "an instance that never ran is its pod's node's to let go of");
}
