//! Tries every hypervisor once, and again when its programs change: what runs here, and what libvirt knows of QEMU, so that no
//! VM start pays for asking.
//!
//! The launcher's `probe` runs as a pod, with the same image, user and devices as every VM, because libvirt's answer
//! depends on all of them. What it leaves behind is mounted read only into every launcher.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::MetadataExt,
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use ferrovirt_beneath::Dir;
use ferrovirt_machine::{
    hypervisor::{self, Hypervisor},
    node_facts::{FACTS_FILE, NodeFacts},
};
use ferrovirt_node::Hypervisors;
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Client,
    api::{DeleteParams, LogParams, PostParams},
    runtime::wait::await_condition,
};
use serde_json::json;
use tokio::sync::watch;

use super::{paths::Paths, services::NAMESPACE};

const NAME: &str = "ferrovirt-probe";
const KEY: &str = "key";
const USER: u32 = 107;
/// Programs that come, go or change are seen after so long.
const LOOK_AGAIN: Duration = Duration::from_secs(30);
const LONGEST_REST: Duration = Duration::from_secs(3600);
/// Shortens [`LOOK_AGAIN`] for tests.
const LOOK_AGAIN_VARIABLE: &str = "FERROVIRT_PROBE_SECONDS";

/// Whom the agent hears it from.
#[derive(Clone)]
pub struct Told {
    pub hypervisors: watch::Sender<Hypervisors>,
    pub facts: watch::Sender<NodeFacts>,
}

/// Tries all drivers, and again what failed or changed. Never returns.
pub async fn run(client: Client, paths: Paths, launcher_image: String, kvm: bool, told: Told) {
    let found = &told.hypervisors;
    let seconds = std::env::var(LOOK_AGAIN_VARIABLE).ok().and_then(|text| text.parse().ok());
    let pause = seconds.map_or(LOOK_AGAIN, Duration::from_secs);
    let mut known = String::new();
    // What failed fails again; it is tried less and less often, until something changes.
    let mut rest: BTreeMap<&str, (Instant, Duration)> = BTreeMap::new();
    loop {
        let key = key(&launcher_image, kvm);
        for driver in hypervisor::drivers() {
            let works = matches!(found.borrow().get(driver.name()), Some(None));
            let resting = rest.get(driver.name()).is_some_and(|(until, _)| Instant::now() < *until);
            if known == key && (works || resting) {
                continue;
            }
            let probe = Probe { client: &client, paths: &paths, launcher_image: &launcher_image, kvm, driver };
            let result = probe.run(&key).await;
            if let Ok(Some(facts)) = &result {
                told.facts.send_if_modified(|known| std::mem::replace(known, facts.clone()) != *facts);
            }
            let result = result.err().map(|error| format!("{error:#}"));
            match &result {
                None => drop(rest.remove(driver.name())),
                Some(_) => {
                    let (_, delay) = rest.get(driver.name()).copied().unwrap_or((Instant::now(), pause / 2));
                    let delay = (delay * 2).min(LONGEST_REST);
                    rest.insert(driver.name(), (Instant::now() + delay, delay));
                }
            }
            let changed = found
                .send_if_modified(|all| all.insert(driver.name().into(), result.clone()).as_ref() != Some(&result));
            // Said once: it is tried again for as long as the host runs.
            match &result {
                Some(error) if changed => {
                    tracing::warn!(hypervisor = driver.name(), error, "cannot be used on this node")
                }
                Some(error) => tracing::debug!(hypervisor = driver.name(), error, "still cannot be used on this node"),
                None => {}
            }
        }
        known = key;
        tokio::time::sleep(pause).await;
    }
}

struct Probe<'a> {
    client: &'a Client,
    paths: &'a Paths,
    launcher_image: &'a str,
    kvm: bool,
    driver: &'static dyn Hypervisor,
}

impl Probe<'_> {
    /// Runs the pod, unless the last one saw the same programs and kernel. The default driver's has something to tell of the node.
    async fn run(&self, key: &str) -> Result<Option<NodeFacts>> {
        if let Some(device) = self.driver.needed_device().filter(|_| !self.kvm) {
            bail!("it needs the device {device}, which this node does not have");
        }
        let directory = match self.driver.name() == hypervisor::DEFAULT {
            true => self.paths.capabilities(),
            false => self.paths.capabilities().join(self.driver.name()),
        };
        // The directory is the user's that VMs run as: what is in it is found without links, and is a file or nothing.
        let known = Dir::open(&directory).and_then(|directory| directory.read_file(KEY, key.len() as u64));
        let facts = || facts(&directory, self.driver);
        if known.is_ok_and(|known| known == key.as_bytes())
            && let Ok(facts) = facts()
        {
            return Ok(facts);
        }
        let name = format!("{NAME}-{}", self.driver.name());
        let scratch = self.paths.capabilities().with_extension(format!("new-{}", self.driver.name()));
        remake(&scratch)?;
        let pods = Api::<Pod>::namespaced(self.client.clone(), NAMESPACE);
        let _ = pods.delete(&name, &DeleteParams::default().grace_period(0)).await;
        await_condition(pods.clone(), &name, |pod: Option<&Pod>| pod.is_none()).await?;
        pods.create(&PostParams::default(), &self.pod(&name, &scratch)?).await?;
        let ended = await_condition(pods.clone(), &name, |pod: Option<&Pod>| phase(pod) != Phase::Going).await?;
        let outcome = phase(ended.as_ref());
        if outcome == Phase::Succeeded {
            Dir::open(&scratch)?.write_file(KEY, key.as_bytes(), 0o644)?;
            let _ = fs::remove_dir_all(&directory);
            fs::create_dir_all(directory.parent().unwrap_or(&directory))?;
            fs::rename(&scratch, &directory)?;
            tracing::info!(hypervisor = self.driver.name(), "runs on this node");
        }
        let said = match outcome {
            Phase::Succeeded => String::new(),
            _ => pods.logs(&name, &LogParams::default()).await.unwrap_or_default(),
        };
        pods.delete(&name, &DeleteParams::default().grace_period(0)).await?;
        if outcome != Phase::Succeeded {
            let _ = fs::remove_dir_all(&scratch);
            let _ = fs::remove_file(directory.join(KEY));
            bail!("{}", complaint(&said));
        }
        facts()
    }

    /// The same rights and devices as a VM of this hypervisor.
    fn pod(&self, name: &str, directory: &Path) -> Result<Pod> {
        let device = self.driver.device().filter(|_| self.kvm);
        let devices = device.map_or(json!({}), |device| json!({ device: "1" }));
        let (pod_security, security) = match self.driver.runs_privileged() {
            true => (json!({ "runAsUser": 0, "runAsGroup": 0 }), json!({ "privileged": true })),
            false => (
                json!({ "runAsUser": USER, "runAsGroup": USER, "runAsNonRoot": true, "fsGroup": USER }),
                json!({ "allowPrivilegeEscalation": false }),
            ),
        };
        Ok(serde_json::from_value(json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": { "name": name, "namespace": NAMESPACE },
            "spec": {
                "restartPolicy": "Never",
                "automountServiceAccountToken": false,
                "securityContext": pod_security,
                "containers": [{
                    "name": "compute",
                    "image": ferrovirt_plan::pod::launcher_image(self.launcher_image, self.driver.name()),
                    "command": [
                        "/usr/bin/ferrovirt-launcher", "probe", "--hypervisor", self.driver.name(),
                        "--out", "/var/run/kubevirt/capabilities",
                    ],
                    "securityContext": security,
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
}

/// What the default driver's probe left. Its directory is the user's that VMs run as: a file of some size or nothing.
fn facts(directory: &Path, driver: &dyn Hypervisor) -> Result<Option<NodeFacts>> {
    const LARGEST: u64 = 1 << 20;
    if driver.name() != hypervisor::DEFAULT {
        return Ok(None);
    }
    let text = Dir::open(directory).and_then(|directory| directory.read_file(FACTS_FILE, LARGEST));
    let text = text.with_context(|| format!("the probe left no {FACTS_FILE}"))?;
    Ok(Some(serde_json::from_slice(&text).with_context(|| format!("the probe's {FACTS_FILE} cannot be read"))?))
}

/// The last thing that the launcher said, without time and level.
pub fn complaint(log: &str) -> String {
    let last = log.lines().rev().find(|line| line.contains("ERROR")).or_else(|| log.lines().next_back());
    let text = last.map(|line| line.rsplit_once("ERROR").map_or(line, |(_, text)| text));
    let text = text.map(|text| text.trim().trim_start_matches("ferrovirt_launcher:").trim());
    text.filter(|text| !text.is_empty()).unwrap_or("its probe failed without a word").to_owned()
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
    let programs = [
        "/usr/bin/qemu-system-x86_64",
        "/usr/bin/qemu-system-aarch64",
        "/usr/sbin/libvirtd",
        "/usr/sbin/virtqemud",
        "/usr/sbin/virtlxcd",
        "/usr/lib/libvirt/libvirt_lxc",
        "/usr/libexec/libvirt_lxc",
        "/usr/lib/x86_64-linux-gnu/libvirt/connection-driver/libvirt_driver_lxc.so",
    ];
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reason_is_the_last_error_of_the_log() {
        let log = "2026-01-01T00:00:00Z  INFO ferrovirt_launcher: x\n2026-01-01T00:00:00Z ERROR ferrovirt_launcher: cannot \
                   probe lxc: no driver\n";
        assert_eq!(complaint(log), "cannot probe lxc: no driver");
        assert_eq!(complaint(""), "its probe failed without a word");
    }
}
