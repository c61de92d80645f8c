//! A VMI as a container: the whole way from the manifest to libvirt's XML, and what is refused on it.

use ferrovirt_api::v1::VirtualMachineInstance;
use ferrovirt_machine::{
    convert::{Context, InterfaceInfo, machine_spec},
    defaults, features, hypervisor,
    spec::{Arch, IdRange, Preparation},
};
use serde_json::{Value, json};

const IDS: IdRange = IdRange { first: 1 << 29, count: 65536 };

fn vmi(change: impl FnOnce(&mut Value)) -> VirtualMachineInstance {
    let mut object = json!({
        "metadata": {"name": "demo", "namespace": "default", "uid": "u-1"},
        "spec": {
            "hypervisor": "lxc",
            "domain": {
                "cpu": {"cores": 2},
                "memory": {"guest": "128Mi"},
                "devices": {
                    "disks": [{"name": "root", "disk": {"bus": "virtio"}}, {"name": "cloudinit", "disk": {"bus": "virtio"}}],
                    "interfaces": [{"name": "default", "masquerade": {}, "model": "virtio"}],
                    "rng": {},
                },
            },
            "networks": [{"name": "default", "pod": {}}],
            "volumes": [
                {"name": "root", "containerDisk": {"image": "i"}},
                {"name": "cloudinit", "cloudInitNoCloud": {"userData": "#cloud-config"}},
            ],
        },
    });
    change(&mut object);
    let mut vmi = serde_json::from_value(object).unwrap();
    defaults::apply(&mut vmi, Arch::X86_64);
    vmi
}

fn context() -> Context {
    let tap = InterfaceInfo { tap: Some("tap0".into()), mac: Some("02:00:00:00:00:01".into()), mtu: Some(1500) };
    Context {
        container_trees: [("root".to_owned(), "/images/root".to_owned())].into(),
        interfaces: [("default".to_owned(), tap)].into(),
        guest_ids: IDS,
        ..Context::default()
    }
}

#[test]
fn a_machines_manifest_is_a_containers_too() {
    let vmi = vmi(|_| {});
    assert_eq!(features::unsupported(&vmi), []);
    let spec = machine_spec(&vmi, &context()).unwrap();
    let driver = hypervisor::hypervisor("lxc").unwrap();
    let expected = r##"<domain type="lxc">
  <name>default_demo</name>
  <memory unit="b">134217728</memory>
  <vcpu placement="static">2</vcpu>
  <cputune>
    <period>100000</period>
    <quota>200000</quota>
  </cputune>
  <os>
    <type arch="x86_64">exe</type>
    <init>/sbin/init</init>
  </os>
  <idmap>
    <uid start="0" target="536870912" count="65536"></uid>
    <gid start="0" target="536870912" count="65536"></gid>
  </idmap>
  <features>
    <privnet></privnet>
  </features>
  <on_poweroff>destroy</on_poweroff>
  <on_reboot>restart</on_reboot>
  <devices>
    <filesystem type="mount" accessmode="passthrough">
      <source dir="/var/run/kubevirt-ephemeral-disks/disk-data/rootfs"></source>
      <target dir="/"></target>
    </filesystem>
    <filesystem type="mount" accessmode="passthrough">
      <source dir="/var/run/kubevirt-ephemeral-disks/cloud-init-data/cloudinit"></source>
      <target dir="/var/lib/cloud/seed/nocloud"></target>
    </filesystem>
    <interface type="bridge">
      <mac address="02:00:00:00:00:01"></mac>
      <source bridge="tap0"></source>
      <guest dev="eth0"></guest>
    </interface>
    <console type="pty"></console>
  </devices>
</domain>"##;
    assert_eq!(driver.domain_xml(&spec), expected);
    let [Preparation::RootTree { base, scratch, ids, .. }, Preparation::Directory { files, .. }] =
        spec.prepare.as_slice()
    else {
        panic!("{:?}", spec.prepare);
    };
    assert_eq!((base.as_str(), *ids), ("/images/root", IDS));
    assert!(scratch.is_some(), "an image is not written");
    assert!(files.iter().any(|file| file.name == "user-data"));
    // What the launcher gets is what was planned.
    let wire = serde_json::to_string(&spec).unwrap();
    assert_eq!(serde_json::from_str::<ferrovirt_machine::spec::MachineSpec>(&wire).unwrap(), spec);
}

#[test]
fn a_claim_is_written_itself() {
    let vmi = vmi(|object| {
        object["spec"]["volumes"][0] = json!({"name": "root", "persistentVolumeClaim": {"claimName": "c"}});
    });
    let spec = machine_spec(&vmi, &context()).unwrap();
    let root = spec.prepare.iter().find_map(|preparation| match preparation {
        Preparation::RootTree { base, scratch, .. } => Some((base.as_str(), scratch.clone())),
        _ => None,
    });
    assert_eq!(root, Some(("/var/run/kubevirt-private/vmi-disks/root", None)));
}

#[test]
fn what_a_container_would_miss_is_refused_with_its_field() {
    let volume = |source: Value| {
        move |object: &mut Value| {
            let mut volume = source;
            volume["name"] = json!("extra");
            object["spec"]["volumes"].as_array_mut().unwrap().push(volume);
            let disks = object["spec"]["domain"]["devices"]["disks"].as_array_mut().unwrap();
            disks.push(json!({"name": "extra", "disk": {}}));
        }
    };
    let set = |path: &'static str, value: Value| {
        move |object: &mut Value| {
            let (parent, field) = path.rsplit_once('/').unwrap();
            object.pointer_mut(parent).unwrap()[field] = value;
        }
    };
    type Change = Box<dyn FnOnce(&mut Value)>;
    let cases: Vec<(Change, &str)> = vec![
        (Box::new(volume(json!({"hostDisk": {"path": "/etc/shadow", "type": "Disk"}}))), "spec.volumes[2].hostDisk"),
        (Box::new(volume(json!({"secret": {"secretName": "s"}}))), "spec.volumes[2]"),
        (Box::new(volume(json!({"emptyDisk": {"capacity": "1Gi"}}))), "spec.volumes[2].emptyDisk"),
        (Box::new(volume(json!({"containerDisk": {"image": "other"}}))), "spec.volumes"),
        (
            Box::new(set("/spec/domain/devices/hostDevices", json!([{"name": "h", "deviceName": "d"}]))),
            "spec.domain.devices.hostDevices[0]",
        ),
        (
            Box::new(set("/spec/domain/devices/filesystems", json!([{"name": "f", "virtiofs": {}}]))),
            "spec.domain.devices.filesystems[0]",
        ),
        (Box::new(set("/spec/domain/firmware", json!({"kernelBoot": {}}))), "spec.domain.firmware.kernelBoot"),
        (Box::new(set("/spec/startStrategy", json!("Paused"))), "spec.startStrategy"),
        (Box::new(set("/spec/domain/cpu/model", json!("Haswell"))), "spec.domain.cpu.model"),
    ];
    for (change, field) in cases {
        let errors = features::unsupported(&vmi(change));
        assert!(errors.iter().any(|error| error.field == field), "{field}: {errors:?}");
        assert!(errors.iter().all(|error| error.message.contains("hypervisor lxc")), "{errors:?}");
    }
}

#[test]
fn a_container_without_root_or_ids_does_not_start() {
    let bare = vmi(|object| {
        object["spec"]["volumes"].as_array_mut().unwrap().remove(0);
        object["spec"]["domain"]["devices"]["disks"].as_array_mut().unwrap().remove(0);
    });
    let errors = machine_spec(&bare, &context()).unwrap_err();
    assert!(errors.iter().any(|error| error.field == "spec.volumes"), "{errors:?}");
    let errors = machine_spec(&vmi(|_| {}), &Context { guest_ids: IdRange::default(), ..context() }).unwrap_err();
    assert!(errors.iter().any(|error| error.field == "spec.hypervisor"), "{errors:?}");
}
