//! Disks that persist: claims of the local class, and what a guest keeps on them.

use std::{path::Path, process::ExitCode};

use anyhow::{Context, Result, ensure};
use ferrovirt_e2e::{Case, Host, Options, manifest, suite};
use serde_json::{Value, json};

const CASES: &[Case] = &[
    ("claims_are_bound_and_reclaimed", claims_are_bound_and_reclaimed),
    ("data_outlives_the_vm_and_the_host", data_outlives_the_vm_and_the_host),
];

fn main() -> ExitCode {
    suite(Options::default(), CASES)
}

fn claim(name: &str, class: Option<&str>, mode: &str) -> Value {
    let mut claim = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": { "name": name, "namespace": "default" },
        "spec": {
            "accessModes": ["ReadWriteOnce"], "volumeMode": mode, "resources": { "requests": { "storage": "64Mi" } },
        },
    });
    if let Some(class) = class {
        claim["spec"]["storageClassName"] = class.into();
    }
    claim
}

fn claims_are_bound_and_reclaimed(host: &Host) -> Result<()> {
    host.apply(&claim("plain", None, "Filesystem"))?;
    host.apply(&claim("waits", Some("local-wait"), "Filesystem"))?;
    let bound = host.wait_for("pvc", "plain", "bound", |claim| claim["status"]["phase"] == "Bound")?;
    ensure!(bound["spec"]["storageClassName"] == "local", "class: {}", bound["spec"]);
    ensure!(bound["status"]["capacity"]["storage"] == "64Mi", "status: {}", bound["status"]);
    let name = bound["spec"]["volumeName"].as_str().context("no volume")?.to_owned();
    let volume = host.wait_for("pv", &name, "bound", |volume| volume["status"]["phase"] == "Bound")?;
    let path = volume["spec"]["local"]["path"].as_str().context("no path")?.to_owned();
    ensure!(Path::new(&path).is_dir(), "{path} is no directory");
    let waiting = host.get("pvc", "waits")?;
    ensure!(waiting["status"]["phase"] == "Pending", "it did not wait: {}", waiting["status"]);
    host.kubectl(&["delete", "pvc", "plain", "waits"])?;
    host.wait_gone("pv", &name)?;
    ensure!(!Path::new(&path).exists(), "{path} was left behind");
    Ok(())
}

/// Two disks, one in each volume mode. What the guest writes is there after a stop, and after everything restarted.
fn data_outlives_the_vm_and_the_host(host: &Host) -> Result<()> {
    host.apply(&claim("keep", None, "Filesystem"))?;
    host.apply(&claim("keep-block", Some("local-wait"), "Block"))?;
    let mut vm = manifest::vm("keeper", "Always");
    let spec = &mut vm["spec"]["template"]["spec"];
    for (name, serial) in [("keep", "KEEPFILE"), ("keep-block", "KEEPBLOCK")] {
        let disk = json!({ "name": name, "disk": { "bus": "virtio" }, "serial": serial });
        spec["domain"]["devices"]["disks"].as_array_mut().context("disks")?.push(disk);
        let volume = json!({ "name": name, "persistentVolumeClaim": { "claimName": name } });
        spec["volumes"].as_array_mut().context("volumes")?.push(volume);
    }
    host.apply(&vm)?;
    host.wait_running("keeper")?;
    let mut console = host.console("keeper")?;
    console.login("keeper")?;
    for (device, name) in [("vdc", "file"), ("vdd", "block")] {
        let size = console.shell(&format!("cat /sys/block/{device}/size"))?;
        ensure!(size == "131072", "{device} has {size} sectors, not 64 MiB");
        let made = console.shell(&format!(
            "sudo /sbin/mke2fs /dev/{device} >/dev/null 2>&1; sudo mkdir -p /mnt/{name}; sudo mount /dev/{device} /mnt/{name} && echo kept-{name} | sudo tee /mnt/{name}/note; sudo umount /mnt/{name}"
        ))?;
        ensure!(made.contains(&format!("kept-{name}")), "{device}: {made:?}");
    }
    console.leave()?;
    host.ferrovirt(&["stop", "keeper"])?;
    host.wait_gone("vmi", "keeper")?;
    host.down()?;
    host.up()?;
    host.ferrovirt(&["start", "keeper"])?;
    host.wait_running("keeper")?;
    let mut console = host.console("keeper")?;
    console.login("keeper")?;
    for (device, name) in [("vdc", "file"), ("vdd", "block")] {
        let read = console.shell(&format!(
            "sudo mkdir -p /mnt/{name}; sudo mount -o ro /dev/{device} /mnt/{name}; cat /mnt/{name}/note"
        ))?;
        ensure!(read.contains(&format!("kept-{name}")), "{device} lost its file: {read:?}");
    }
    console.leave()?;
    host.kubectl(&["delete", "vm", "keeper"])?;
    host.kubectl(&["delete", "pvc", "keep", "keep-block"])?;
    Ok(())
}
