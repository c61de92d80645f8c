//! Has libvirt look at QEMU once, so that no VM start pays for it.
//!
//! The launcher's `probe` runs as a pod, with the same image, user and devices as every VM, because libvirt's answer
//! depends on all of them. What it leaves behind is mounted read only into every launcher.

use std::{fs, os::unix::fs::MetadataExt, path::Path};

use anyhow::{Context, Result, bail};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Client,
    api::{DeleteParams, PostParams},
    runtime::wait::await_condition,
};
use serde_json::json;

use super::{paths::Paths, services::NAMESPACE};

const NAME: &str = "ferrovirt-probe";
const KEY: &str = "key";
const USER: u32 = 107;

/// Probes unless the last probe saw the same programs and kernel.
pub async fn run(client: Client, paths: Paths, launcher_image: String, kvm: bool) {
    if let Err(error) = probe(client, &paths, &launcher_image, kvm).await {
        tracing::warn!(
            error = format!("{error:#}"),
            "libvirt's knowledge of QEMU was not saved; every VM start probes anew"
        );
    }
}

async fn probe(client: Client, paths: &Paths, launcher_image: &str, kvm: bool) -> Result<()> {
    let (directory, key) = (paths.capabilities(), key(launcher_image, kvm));
    if fs::read_to_string(directory.join(KEY)).is_ok_and(|known| known == key) {
        return Ok(());
    }
    let scratch = directory.with_extension("new");
    remake(&scratch)?;
    let pods = Api::<Pod>::namespaced(client, NAMESPACE);
    let _ = pods.delete(NAME, &DeleteParams::default().grace_period(0)).await;
    await_condition(pods.clone(), NAME, |pod: Option<&Pod>| pod.is_none()).await?;
    pods.create(&PostParams::default(), &pod(launcher_image, &scratch, kvm)?).await?;
    let ended = await_condition(pods.clone(), NAME, |pod: Option<&Pod>| phase(pod) != Phase::Going).await?;
    let outcome = phase(ended.as_ref());
    if outcome == Phase::Succeeded {
        fs::write(scratch.join(KEY), key)?;
        let _ = fs::remove_dir_all(&directory);
        fs::rename(&scratch, &directory)?;
        tracing::info!("libvirt knows QEMU now; VM starts need not ask");
    }
    pods.delete(NAME, &DeleteParams::default().grace_period(0)).await?;
    if outcome != Phase::Succeeded {
        bail!("the probe failed");
    }
    Ok(())
}

#[derive(PartialEq, Eq)]
enum Phase {
    Going,
    Succeeded,
    Failed,
}

fn phase(pod: Option<&Pod>) -> Phase {
    match pod.map(|pod| pod.status.as_ref().and_then(|status| status.phase.as_deref())) {
        None | Some(Some("Failed")) => Phase::Failed,
        Some(Some("Succeeded")) => Phase::Succeeded,
        Some(_) => Phase::Going,
    }
}

/// What libvirt's own cache depends on: the programs, the kernel, the device.
fn key(launcher_image: &str, kvm: bool) -> String {
    let changed = |path: &str| fs::metadata(path).map(|m| (m.mtime(), m.ctime(), m.len())).unwrap_or_default();
    let uname = rustix::system::uname();
    let programs =
        ["/usr/bin/qemu-system-x86_64", "/usr/bin/qemu-system-aarch64", "/usr/sbin/libvirtd", "/usr/sbin/virtqemud"];
    format!(
        "{launcher_image} kvm={kvm} kernel={} {} {:?}\n",
        uname.release().to_string_lossy(),
        uname.version().to_string_lossy(),
        programs.map(changed)
    )
}

fn remake(directory: &Path) -> Result<()> {
    let _ = fs::remove_dir_all(directory);
    fs::create_dir_all(directory).with_context(|| format!("cannot create {}", directory.display()))?;
    std::os::unix::fs::chown(directory, Some(USER), Some(USER))?;
    Ok(())
}

fn pod(launcher_image: &str, directory: &Path, kvm: bool) -> Result<Pod> {
    let devices = if kvm { json!({ ferrovirt_api::names::KVM_DEVICE: "1" }) } else { json!({}) };
    Ok(serde_json::from_value(json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": { "name": NAME, "namespace": NAMESPACE },
        "spec": {
            "restartPolicy": "Never",
            "automountServiceAccountToken": false,
            "securityContext": { "runAsUser": USER, "runAsGroup": USER, "runAsNonRoot": true, "fsGroup": USER },
            "containers": [{
                "name": "compute",
                "image": launcher_image,
                "command": ["/usr/bin/ferrovirt-launcher", "probe", "--out", "/var/run/kubevirt/capabilities"],
                "resources": { "limits": devices, "requests": devices },
                "volumeMounts": [
                    { "name": "capabilities", "mountPath": "/var/run/kubevirt/capabilities" },
                    { "name": "libvirt-runtime", "mountPath": "/var/run/libvirt" },
                ],
            }],
            "volumes": [
                { "name": "capabilities", "hostPath": { "path": directory, "type": "Directory" } },
                { "name": "libvirt-runtime", "emptyDir": {} },
            ],
        },
    }))?)
}
