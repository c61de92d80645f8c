//! The domain for libvirt's `ch` driver.

use ferrovirt_api::v1::VirtualMachineInstance;
use ferrovirt_machine::{
    convert::{Context, machine_spec},
    defaults, features, hypervisor,
};
use serde_json::{Value, json};

fn domain(spec: Value) -> String {
    let context: Context = serde_json::from_value(json!({
        "arch": "amd64", "hypervisorDeviceAvailable": true,
        "interfaces": {"default": {"tap": "tap0", "mac": "02:00:00:00:00:01"}},
        "kernelBoot": {"kernel": "/k/vmlinuz", "initrd": "/k/initrd"},
    }))
    .unwrap();
    let mut object = json!({"metadata": {"name": "a", "namespace": "b", "uid": "c"}, "spec": spec});
    object["spec"]["hypervisor"] = "cloud-hypervisor".into();
    let mut vmi: VirtualMachineInstance = serde_json::from_value(object).unwrap();
    assert_eq!(features::unsupported(&vmi), []);
    defaults::apply(&mut vmi, context.arch);
    let spec = machine_spec(&vmi, &context).unwrap();
    hypervisor::hypervisor("cloud-hypervisor").unwrap().domain_xml(&spec)
}

#[test]
fn disks_are_raw_files_on_virtio_and_the_firmware_stands_for_a_kernel() {
    let found = domain(json!({
        "domain": {
            "memory": {"guest": "64Mi"},
            "cpu": {"cores": 2},
            "devices": {"disks": [{"name": "root", "disk": {"bus": "sata"}}, {"name": "init", "cdrom": {}}]},
        },
        "volumes": [
            {"name": "root", "persistentVolumeClaim": {"claimName": "root"}},
            {"name": "init", "cloudInitNoCloud": {"userData": "#"}},
        ],
    }));
    let expected = r#"<domain type="kvm">
  <name>b_a</name>
  <memory unit="b">67108864</memory>
  <vcpu placement="static">2</vcpu>
  <os>
    <type arch="x86_64">hvm</type>
    <kernel>/usr/share/cloud-hypervisor/CLOUDHV.fd</kernel>
  </os>
  <devices>
    <emulator>/usr/bin/cloud-hypervisor</emulator>
    <disk type="file" device="disk">
      <driver name="ch" type="raw"></driver>
      <source file="/var/run/kubevirt-private/vmi-disks/root/disk.img"></source>
      <target dev="vda" bus="virtio"></target>
      <alias name="ua-root"></alias>
    </disk>
    <disk type="file" device="disk">
      <driver name="ch" type="raw"></driver>
      <source file="/var/run/kubevirt-ephemeral-disks/cloud-init-data/b/a/noCloud.iso"></source>
      <target dev="vdb" bus="virtio"></target>
      <readonly></readonly>
      <alias name="ua-init"></alias>
    </disk>
    <interface type="ethernet">
      <mac address="02:00:00:00:00:01"></mac>
      <target dev="tap0" managed="no"></target>
      <model type="virtio"></model>
      <alias name="ua-default"></alias>
    </interface>
    <serial type="unix">
      <source mode="bind" path="/var/run/kubevirt-private/c/virt-serial0"></source>
      <target port="0"></target>
    </serial>
  </devices>
</domain>"#;
    assert_eq!(found, expected);
}

#[test]
fn a_kernel_is_booted_directly() {
    let container = json!({"image": "x", "kernelPath": "/boot/vmlinuz", "initrdPath": "/boot/initrd"});
    let found = domain(json!({
        "domain": {
            "memory": {"guest": "64Mi"},
            "firmware": {"kernelBoot": {"kernelArgs": "console=ttyS0", "container": container}},
            "devices": {},
        },
    }));
    for expected in ["<kernel>/k/vmlinuz</kernel>", "<initrd>/k/initrd</initrd>", "<cmdline>console=ttyS0</cmdline>"] {
        assert!(found.contains(expected), "{found}");
    }
}
