//! Upstream's examples as they are: their images come from a real registry, under the names that they use. What is in these images is
//! our own guest.

use std::{fs, path::PathBuf, process::ExitCode};

use anyhow::{Context, Result, bail, ensure};
use ferrovirt_e2e::{
    Case, Host, Options, host,
    servers::Registry,
    suite,
    wait::{self, Seen},
};
use serde_json::{Value, json};

const CASES: &[Case] = &[
    ("instances_run", instances_run),
    ("machines_start", machines_start),
    ("replicas_are_ready", replicas_are_ready),
    ("the_others_say_why_not", the_others_say_why_not),
];

type Archive = fn() -> Result<PathBuf>;

/// What the examples call their images, and the archives that stand for them.
const IMAGES: &[(&str, Archive)] = &[
    ("kubevirt/cirros-container-disk-demo", host::guest_archive),
    ("kubevirt/alpine-container-disk-demo", host::guest_archive),
    ("kubevirt/fedora-with-test-tooling-container-disk", host::guest_archive),
    ("kubevirt/alpine-ext-kernel-boot-demo", host::kernel_archive),
];

/// An instance; how many interfaces it has in the end; and what its QEMU is told.
const INSTANCES: &[(&str, usize, &str)] = &[
    ("vmi-alpine-efi", 1, "OVMF_CODE"),
    ("vmi-ephemeral", 1, "virtio-blk-pci"),
    ("vmi-kernel-boot", 1, "vmlinuz-virt"),
    ("vmi-masquerade", 1, "rng-random"),
    ("vmi-migratable", 1, "virtio-blk-pci"),
    ("vmi-multus-multiple-net", 2, "virtio-net-pci"),
    ("vmi-nocloud", 1, "emptydisk"),
    ("vmi-pvc", 1, "vmi-disks/pvcdisk"),
    ("vmi-sata", 1, "ide-hd"),
];

fn main() -> ExitCode {
    match prepare() {
        Ok((_registry, directory, arguments)) => {
            let embedded_only = &[
                ("instances_run", WHY),
                ("machines_start", WHY),
                ("replicas_are_ready", WHY),
                ("the_others_say_why_not", WHY),
            ];
            let done = suite(Options { arguments, no_image: true, embedded_only, ..Options::default() }, CASES);
            drop(directory);
            done
        }
        Err(error) => {
            println!("test registry ... FAILED\n{error:#}");
            ExitCode::FAILURE
        }
    }
}

const WHY: &str = "a cluster's container runtime knows nothing of our registry";

/// A registry with all images, and a host that asks it when a name says `registry:5000`.
fn prepare() -> Result<(Registry, tempfile::TempDir, Vec<String>)> {
    let directory = tempfile::Builder::new().prefix("fv-registry-").tempdir_in("/tmp")?;
    let registry = Registry::start(&directory.path().join("registry"))?;
    for (name, archive) in IMAGES {
        registry.push_tagged(&archive()?, name, "devel", &directory.path().join(name))?;
    }
    let mirrors = [format!("http://127.0.0.1:{}", registry.port)];
    let config = directory.path().join("registries.yaml");
    fs::write(&config, json!({ "registries": [{ "host": "registry:5000", "mirrors": mirrors }] }).to_string())?;
    let arguments = vec!["--registries".into(), config.to_string_lossy().into_owned()];
    Ok((registry, directory, arguments))
}

fn example(name: &str) -> String {
    format!("../crates/api/tests/data/examples/{name}.yaml")
}

fn instances_run(host: &Host) -> Result<()> {
    host.apply(&json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": { "name": "disk-alpine", "namespace": "default" },
        "spec": { "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "64Mi" } } },
    }))?;
    let network = json!({ "cniVersion": "1.0.0", "type": "ptp", "ipMasq": false,
        "ipam": { "type": "host-local", "subnet": "10.213.0.0/24" } });
    host.apply(&json!({
        "apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
        "metadata": { "name": "ptp-conf", "namespace": "default" }, "spec": { "config": network.to_string() },
    }))?;
    let mut problems = vec![];
    for (name, interfaces, told) in INSTANCES {
        if let Err(error) = instance_runs(host, name, *interfaces, told) {
            problems.push(format!("{name}: {error:#}"));
        }
        host.kubectl(&["delete", "vmi", name, "--ignore-not-found", "--wait=false"])?;
    }
    for (name, ..) in INSTANCES {
        host.wait_gone("vmi", name)?;
    }
    host.kubectl(&["delete", "pvc", "disk-alpine"])?;
    ensure!(problems.is_empty(), "{}", problems.join("\n"));
    Ok(())
}

fn instance_runs(host: &Host, name: &str, interfaces: usize, told: &str) -> Result<()> {
    host.kubectl(&["create", "-f", &example(name)])?;
    let vmi = running(host, name)?;
    let found = vmi["status"]["interfaces"].as_array().context("no interfaces")?;
    let addressed = found.iter().filter(|interface| interface["ipAddress"].is_string()).count();
    ensure!(addressed == interfaces, "{addressed} interfaces have an address: {found:?}");
    let qemu = host.qemu(name)?;
    ensure!(qemu.arguments.iter().any(|word| word.contains(told)), "no {told}: {:?}", qemu.arguments);
    if name == "vmi-nocloud" {
        // The data reached the guest, and it did what they say.
        let mut console = host.console(name)?;
        console.expect("printed from cloud-init userdata", wait::BOOT)?;
        console.leave()?;
    }
    Ok(())
}

fn running(host: &Host, name: &str) -> Result<Value> {
    wait::until(&format!("vmi/{name} to run"), wait::BOOT, || {
        let vmi = host.get("vmi", name)?;
        Ok(match vmi["status"]["phase"].as_str() {
            Some("Running") => Seen::Yes(vmi),
            Some("Failed") => bail!("{}", vmi["status"]),
            _ => Seen::Not(vmi["status"].to_string()),
        })
    })
}

/// A machine that is off as it is written, and runs when somebody starts it; one of them on a disk filled from the registry.
fn machines_start(host: &Host) -> Result<()> {
    for name in ["vm-cirros", "vm-alpine-datavolume"] {
        host.kubectl(&["create", "-f", &example(name)])?;
        host.ferrovirt(&["start", name])?;
        host.wait_running(name)?;
        host.ferrovirt(&["delete", "vm", name])?;
        host.wait_gone("vmi", name)?;
    }
    // A class that does not exist holds it up until it does.
    host.kubectl(&["create", "-f", &example("vm-priorityclass")])?;
    let name = "vm-non-preemtible";
    host.ferrovirt(&["start", "--wait=false", name])?;
    host.wait_for("vmi", name, "to miss its class", |vmi| {
        vmi["status"]["conditions"].to_string().contains("PriorityClass")
    })?;
    let class = json!({ "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": { "name": "non-preemtible" },
        "value": 999_999_999, "preemptionPolicy": "Never" });
    host.apply(&class)?;
    host.wait_running(name)?;
    host.ferrovirt(&["delete", "vm", name])?;
    host.wait_gone("vmi", name)
}

fn replicas_are_ready(host: &Host) -> Result<()> {
    let name = "vmi-replicaset-cirros";
    host.kubectl(&["create", "-f", &example(name)])?;
    host.wait_for("vmirs", name, "to have three ready", |set| set["status"]["readyReplicas"] == 3)?;
    host.kubectl(&["delete", "vmirs", name])?;
    wait::until("its instances to be gone", wait::BOOT, || {
        let left = host.kubectl(&["get", "vmi", "-o", "name"])?;
        Ok(if left.trim().is_empty() { Seen::Yes(()) } else { Seen::Not(left) })
    })
}

/// Features of later milestones, and one that an operator has to admit first.
fn the_others_say_why_not(host: &Host) -> Result<()> {
    let said = host.try_kubectl(&["create", "-f", &example("vmi-host-disk")], "")?.failure()?;
    ensure!(said.contains("spec.volumes[0]") && said.contains("HostDisk"), "{said}");
    host.kubectl(&["create", "-f", &example("csmall")])?;
    let said = host.try_kubectl(&["create", "-f", &example("migration-job")], "")?.failure()?;
    ensure!(said.contains("spec.vmiName") && said.contains("does not exist"), "{said}");
    let outcome = host.try_kubectl(&["create", "-f", &example("vm-cirros-csmall")], "")?;
    ensure!(
        outcome.succeeded() && outcome.stderr.contains("Warning") && outcome.stderr.contains("spec.instancetype"),
        "{outcome}"
    );
    host.ferrovirt(&["start", "--wait=false", "vm-cirros-csmall"])?;
    let vm = host.wait_for("vm", "vm-cirros-csmall", "to say what it lacks", |vm| {
        let conditions = vm["status"]["conditions"].as_array();
        conditions
            .into_iter()
            .flatten()
            .any(|c| c["type"] == "Failure" && c["message"].as_str().is_some_and(|m| m.contains("spec.instancetype")))
    })?;
    ensure!(vm["status"]["printableStatus"] == "Stopped", "{}", vm["status"]);
    ensure!(host.object("vmi", "vm-cirros-csmall")?.is_none(), "it was started");
    host.ferrovirt(&["delete", "vm", "vm-cirros-csmall"]).map(drop)
}
