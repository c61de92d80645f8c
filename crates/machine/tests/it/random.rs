//! Random valid VMIs: each becomes a machine, the same one every time, with well-formed XML from which nothing can break out.

use std::collections::BTreeSet;

use ferrovirt_api::v1::VirtualMachineInstance;
use ferrovirt_machine::{
    convert::{Context, machine_spec},
    defaults,
    spec::MachineSpec,
    xml::{Element, domain_xml, parse},
};
use proptest::{collection::vec, option, prelude::*, sample::select};
use quick_xml::{Reader, events::Event};
use serde_json::{Value, json};

fn volume() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(json!({"containerDisk": {"image": "x"}})),
        Just(json!({"emptyDisk": {"capacity": "1.5Gi"}})),
        Just(json!({"persistentVolumeClaim": {"claimName": "c"}})),
        Just(json!({"dataVolume": {"name": "c"}})),
        Just(json!({"ephemeral": {"persistentVolumeClaim": {"claimName": "c"}}})),
        Just(json!({"hostDisk": {"path": "/data/a.img", "type": "DiskOrCreate", "capacity": "1G"}})),
        Just(json!({"configMap": {"name": "c"}})),
        Just(json!({"secret": {"secretName": "c"}})),
        Just(json!({"cloudInitNoCloud": {"userDataBase64": "IyEK"}})),
        Just(json!({"cloudInitConfigDrive": {"secretRef": {"name": "s"}}})),
    ]
}

fn device() -> impl Strategy<Value = Value> {
    prop_oneof![
        select(vec!["virtio", "sata", "scsi", "usb", ""]).prop_map(|bus| json!({"disk": {"bus": bus}})),
        (select(vec!["sata", "scsi", ""]), select(vec!["open", "closed", ""]))
            .prop_map(|(bus, tray)| json!({"cdrom": {"bus": bus, "tray": tray}})),
        Just(json!({})),
    ]
}

fn disk(text: &'static str) -> impl Strategy<Value = (Value, Value)> {
    let cache = select(vec!["", "none", "writethrough", "writeback"]);
    (device(), volume(), cache, any::<bool>(), text).prop_map(|(mut disk, volume, cache, dedicated, serial)| {
        disk["cache"] = cache.into();
        disk["dedicatedIOThread"] = dedicated.into();
        disk["serial"] = serial.chars().take(12).collect::<String>().into();
        (disk, volume)
    })
}

/// The smaller devices, any of them or none.
fn devices() -> impl Strategy<Value = Value> {
    let model = select(vec!["virtio", "e1000", "e1000e", "rtl8139"]);
    let interfaces = vec((model, any::<bool>(), 0u32..3), 0..3);
    let inputs = vec(select(vec!["usb", "virtio"]), 0..3);
    let video = option::of(select(vec!["vga", "virtio", "bochs"]));
    let sound = option::of(select(vec!["ich9", "ac97"]));
    let panic = option::of(select(vec!["hyperv", "isa"]));
    let watchdog = option::of(select(vec!["reset", "poweroff", "shutdown"]));
    (interfaces, inputs, video, sound, panic, watchdog).prop_map(
        |(interfaces, inputs, video, sound, panic, watchdog)| {
            let interface = |(index, (model, down, acpi)): (usize, (&str, bool, u32))| {
                let acpi = if acpi == 0 { 0 } else { index + 1 };
                let state = if down { "down" } else { "up" };
                json!({"name": format!("net{index}"), "masquerade": {}, "model": model, "state": state, "acpiIndex": acpi})
            };
            let input = |(index, bus): (usize, &str)| json!({"name": format!("in{index}"), "type": "tablet", "bus": bus});
            json!({
                "interfaces": interfaces.into_iter().enumerate().map(interface).collect::<Vec<_>>(),
                "inputs": inputs.into_iter().enumerate().map(input).collect::<Vec<_>>(),
                "video": video.map(|kind| json!({"type": kind})),
                "sound": sound.map(|model| json!({"name": "sound", "model": model})),
                "panicDevices": panic.into_iter().map(|model| json!({"model": model})).collect::<Vec<_>>(),
                "watchdog": watchdog.map(|action| json!({"name": "dog", "i6300esb": {"action": action}})),
            })
        },
    )
}

fn clock() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(json!({"utc": {}})),
        Just(json!({"utc": {"offsetSeconds": 60}})),
        Just(
            json!({"timezone": "Europe/Berlin", "timer": {"hpet": {"present": false}, "rtc": {"tickPolicy": "catchup"}}})
        ),
        Just(json!({"timer": {"pit": {"tickPolicy": "delay"}}})),
    ]
}

prop_compose! {
    /// `text` is the pattern of what an owner can write as they like.
    pub(crate) fn instance(text: &'static str)(
        disks in vec(disk(text), 0..40),
        devices in devices(),
        clock in option::of(clock()),
        io_threads in option::of(select(vec!["shared", "auto"])),
        cpu in (1u32..4, 1u32..3, 1u32..3, 0u32..8),
        model in select(vec!["", "host-model", "host-passthrough", "Nehalem"]),
        flags in vec(any::<bool>(), 8),
        text in text,
        kernel in option::of(text.prop_map(|text| format!("a{text}"))),
    ) -> Value {
        let mut volumes = Vec::new();
        let mut targets = Vec::new();
        for (index, (mut disk, mut volume)) in disks.into_iter().enumerate() {
            disk["name"] = format!("disk{index}").into();
            volume["name"] = disk["name"].clone();
            targets.push(disk);
            volumes.push(volume);
        }
        let networks: Vec<Value> = devices["interfaces"].as_array().into_iter().flatten()
            .map(|interface| json!({"name": interface["name"], "pod": {}})).collect();
        let (sockets, cores, threads, extra) = cpu;
        let max_sockets = if extra > 4 { sockets + extra } else { 0 };
        let mut object = json!({
            "metadata": {"name": "vm", "namespace": "ns", "uid": "u", "annotations": {"x": text}},
            "spec": {
                "startStrategy": flags[0].then_some("Paused"),
                "domain": {
                    "ioThreadsPolicy": io_threads,
                    "cpu": {"sockets": sockets, "cores": cores, "threads": threads, "maxSockets": max_sockets, "model": model},
                    "memory": {"guest": "128Mi"},
                    "chassis": {"manufacturer": text},
                    "firmware": {
                        "serial": text,
                        "kernelBoot": kernel.map(|arguments| json!({"kernelArgs": arguments})),
                    },
                    "features": {"hyperv": {"vendorid": {"vendorid": text}}},
                    "devices": {
                        "disks": targets,
                        "disableHotplug": flags[1],
                        "blockMultiQueue": flags[2],
                        "networkInterfaceMultiqueue": flags[3],
                        "useVirtioTransitional": flags[4],
                        "autoattachGraphicsDevice": flags[5],
                        "autoattachSerialConsole": flags[6],
                        "autoattachMemBalloon": flags[7],
                        "rng": flags[0].then(|| json!({})),
                    },
                },
                "volumes": volumes,
                "networks": networks,
            },
        });
        object["spec"]["domain"]["clock"] = clock.unwrap_or_default();
        let Value::Object(devices) = devices else { return object };
        for (key, value) in devices {
            object["spec"]["domain"]["devices"][key] = value;
        }
        object
    }
}

pub(crate) fn context(arch: &str, hardware: bool) -> Context {
    let images: serde_json::Map<String, Value> =
        (0..40).map(|index| (format!("disk{index}"), json!({"path": "/image", "format": "raw"}))).collect();
    serde_json::from_value(json!({
        "arch": arch,
        "allowEmulation": true,
        "hypervisorDeviceAvailable": hardware,
        "containerDisks": images,
        "efiConfiguration": {"efiCode": "/code", "efiVars": "/vars"},
    }))
    .unwrap()
}

pub(crate) fn machine(object: &Value, context: &Context) -> MachineSpec {
    let mut vmi: VirtualMachineInstance = serde_json::from_value(object.clone()).unwrap();
    defaults::apply(&mut vmi, context.arch);
    machine_spec(&vmi, context).unwrap_or_else(|errors| panic!("{errors:?}"))
}

/// The text of each element, by its path, in document order.
fn texts(xml: &str) -> Vec<(String, String)> {
    let mut reader = Reader::from_str(xml);
    let mut path: Vec<(String, String)> = Vec::new();
    let mut found = Vec::new();
    loop {
        match reader.read_event().unwrap() {
            Event::Start(start) => {
                for attribute in start.attributes() {
                    attribute.unwrap();
                }
                path.push((start.name().as_ref().to_string(), String::new()));
            }
            Event::Text(text) => {
                if let Some((_, content)) = path.last_mut() {
                    content.push_str(&text);
                }
            }
            Event::GeneralRef(reference) => {
                let character = match reference.resolve_char_ref().unwrap() {
                    Some(character) => character,
                    None => match &*reference {
                        "amp" => '&',
                        "lt" => '<',
                        "gt" => '>',
                        other => panic!("unknown entity {other}"),
                    },
                };
                if let Some((_, content)) = path.last_mut() {
                    content.push(character);
                }
            }
            Event::End(_) => {
                let names: Vec<&str> = path.iter().map(|(name, _)| name.as_str()).collect();
                let names = names.join("/");
                let (_, content) = path.pop().unwrap();
                found.push((names, content));
            }
            Event::Eof => break,
            other => panic!("unexpected {other:?}"),
        }
    }
    assert!(path.is_empty());
    found
}

/// What XML cannot say becomes the replacement character.
fn printable(text: &str) -> String {
    let replaced = |c: char| (c < ' ' && !"\t\n\r".contains(c)) || c == '\u{fffe}' || c == '\u{ffff}';
    text.chars().map(|c| if replaced(c) { '\u{fffd}' } else { c }).collect()
}

/// The format of every disk, and of all below it, is said and not left to its bytes, and so is where that ends.
fn every_disk_ends_its_chain(xml: &str) {
    let tree = parse(xml).unwrap();
    let devices = tree.elements().iter().find(|element| element.name() == "devices").unwrap();
    for disk in devices.elements().iter().filter(|device| device.name() == "disk") {
        let child = |of: &Element, name: &str| of.elements().iter().find(|child| child.name() == name).cloned();
        let format = child(disk, "driver").and_then(|driver| driver.attribute("type").map(str::to_owned));
        assert!(matches!(format.as_deref(), Some("raw" | "qcow2")), "{disk}");
        let source = child(disk, "source").unwrap();
        if source.attribute("file").is_none() && source.attribute("dev").is_none() {
            continue;
        }
        let mut below = child(disk, "backingStore").unwrap_or_else(|| panic!("an open chain: {disk}"));
        while below.attribute("type").is_some() {
            assert!(child(&below, "format").is_some_and(|format| format.attribute("type").is_some()), "{disk}");
            below = child(&below, "backingStore").unwrap_or_else(|| panic!("an open chain: {disk}"));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn becomes_a_machine(
        object in instance(".{0,40}"),
        arch in select(vec!["amd64", "arm64", "s390x"]),
        hardware in any::<bool>(),
    ) {
        let context = context(arch, hardware);
        let mut object = object;
        if arch == "arm64" {
            object["spec"]["domain"]["devices"]["watchdog"] = Value::Null;
        }
        let spec = machine(&object, &context);
        prop_assert_eq!(&spec, &machine(&object, &context));
        prop_assert_eq!(&spec, &serde_json::from_slice(&serde_json::to_vec(&spec).unwrap()).unwrap());

        let targets: BTreeSet<&str> = spec.devices.disks.iter().map(|disk| disk.target.as_str()).collect();
        prop_assert_eq!(targets.len(), spec.devices.disks.len(), "targets are unique");
        let paths: BTreeSet<&str> = spec.prepare.iter().map(|preparation| preparation.path()).collect();
        prop_assert_eq!(paths.len(), spec.prepare.len(), "nothing is made twice");
        let threads = spec.io_threads.unwrap_or(0);
        prop_assert!(spec.devices.disks.iter().all(|disk| disk.io_thread.is_none_or(|thread| thread <= threads)));

        let xml = domain_xml(&spec);
        every_disk_ends_its_chain(&xml);
        prop_assert_eq!(parse(&xml).unwrap().to_string(), xml.as_str(), "what is printed can be read back");
        let found = texts(&xml);
        let arguments = object["spec"]["domain"]["firmware"]["kernelBoot"]["kernelArgs"].as_str();
        let cmdline: Vec<&str> =
            found.iter().filter(|(path, _)| path == "domain/os/cmdline").map(|(_, text)| text.as_str()).collect();
        let expected: Vec<String> = arguments.map(printable).into_iter().collect();
        prop_assert_eq!(cmdline, expected);
        prop_assert_eq!(found.iter().filter(|(path, _)| path == "domain/devices/disk").count(), spec.devices.disks.len());
    }
}
