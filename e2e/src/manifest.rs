//! Manifests of the machines that tests run.

use serde_json::{Value, json};

/// The image that the demo guest's archive holds.
pub const IMAGE: &str = "ferrovirt/demo-guest:latest";

/// The same guest for a hypervisor that runs containers.
pub const CONTAINER_IMAGE: &str = "ferrovirt/demo-container:latest";

/// First line that the demo guest's user space writes to the serial console.
pub const USER_SPACE: &str = "ferrovirt-guest: user space is up";

/// Last line before the login prompt.
pub const READY: &str = "ferrovirt-guest: ready";

/// A VirtualMachine with the demo guest. Tests change the fields that they are about.
pub fn vm(name: &str, run_strategy: &str) -> Value {
    json!({
        "apiVersion": "kubevirt.io/v1",
        "kind": "VirtualMachine",
        "metadata": { "name": name, "namespace": "default" },
        "spec": {
            "runStrategy": run_strategy,
            "template": {
                "metadata": { "labels": { "kubevirt.io/vm": name } },
                "spec": {
                    "domain": {
                        "memory": { "guest": "128Mi" },
                        "devices": {
                            "disks": [
                                { "name": "root", "disk": { "bus": "virtio" } },
                                { "name": "cloudinit", "disk": { "bus": "virtio" } },
                            ],
                            "interfaces": [{ "name": "default", "masquerade": {}, "model": "virtio" }],
                            "rng": {},
                        },
                    },
                    "networks": [{ "name": "default", "pod": {} }],
                    "terminationGracePeriodSeconds": 10,
                    "volumes": [
                        { "name": "root", "containerDisk": { "image": IMAGE } },
                        { "name": "cloudinit", "cloudInitNoCloud": { "userData": user_data(name) } },
                    ],
                },
            },
        },
    })
}

/// The same machine without cloud-init and without patience at its end, for tests that do not look into the guest.
pub fn plain_vm(name: &str, run_strategy: &str) -> Value {
    let mut vm = vm(name, run_strategy);
    let spec = &mut vm["spec"]["template"]["spec"];
    spec["domain"]["devices"]["disks"] = json!([{ "name": "root", "disk": { "bus": "virtio" } }]);
    spec["terminationGracePeriodSeconds"] = json!(0);
    spec["volumes"] = json!([{ "name": "root", "containerDisk": { "image": IMAGE } }]);
    vm
}

fn user_data(name: &str) -> String {
    format!(
        "#cloud-config\nhostname: {name}\nuser: demo\npassword: ferrovirt\nchpasswd: {{ expire: false }}\n\
         runcmd:\n  - echo \"made by runcmd on $(hostname)\" > /etc/made-by-runcmd\n"
    )
}
