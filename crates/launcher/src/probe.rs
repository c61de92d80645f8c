//! `ferrovirt-launcher probe`: what a hypervisor of this image can do on this node.
//!
//! Probing a QEMU binary costs libvirt about a second and starts QEMU several times. It is done once per node; every
//! launcher gets the result as files (`--capabilities-cache`).

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::Context;
use ferrovirt_machine::last_words;
use ferrovirt_machine::node_facts::{FACTS_FILE, LAST_WORDS, NodeFacts};

use crate::capabilities::{
    HypervisorReport, Report, cpu_features, domain_capabilities, host_capabilities, host_model_cpu, tsc, version_text,
};
use crate::process::Children;
use crate::runtime::{Daemon, Dirs, LibvirtRuntime};

/// Asks one hypervisor of this image; its cache files are left in `out`.
pub async fn probe(
    runtime: &'static dyn LibvirtRuntime,
    libvirt_dir: &Path,
    out: Option<&Path>,
) -> anyhow::Result<Report> {
    let children = Children::reap().context("cannot become the reaper of child processes")?;
    let dirs = Dirs::new(libvirt_dir);
    let mut report = Report::default();
    let found = probe_one(&children, runtime, &dirs, &mut report)
        .await
        .with_context(|| format!("cannot probe {}", runtime.name()))?;
    report.hypervisors.push(found);
    if let Some(facts) = report.facts(runtime.name()) {
        tell(&facts, out)?;
    }
    if let Some(out) = out.filter(|_| !runtime.virt_types().is_empty()) {
        keep(&runtime.capabilities_cache(&dirs), out)?;
    }
    Ok(report)
}

/// Leaves the facts for the node's agent: beside the cache, and in the container's last words, where one finds them who sees only
/// the pod.
fn tell(facts: &NodeFacts, out: Option<&Path>) -> anyhow::Result<()> {
    if let Some(out) = out {
        fs::create_dir_all(out).with_context(|| format!("cannot make {}", out.display()))?;
        let path = out.join(FACTS_FILE);
        fs::write(&path, serde_json::to_vec(facts)?).with_context(|| format!("cannot write {}", path.display()))?;
    }
    if let Some(text) = facts.to_text(LAST_WORDS) {
        // Not every container has a place for them.
        let opened = fs::OpenOptions::new().write(true).truncate(true).open(last_words::PATH);
        let _ = opened.and_then(|mut file| file.write_all(text.as_bytes()));
    }
    Ok(())
}

async fn probe_one(
    children: &Children,
    runtime: &'static dyn LibvirtRuntime,
    dirs: &Dirs,
    report: &mut Report,
) -> anyhow::Result<HypervisorReport> {
    runtime.setup(dirs, None).context("cannot write the configuration of libvirt")?;
    let (_daemon, connection) = Daemon::start(children, runtime, dirs).await?;
    let capabilities = connection.capabilities().await?;
    let versions = connection.versions().await?;
    let (arch, machine_types) = host_capabilities(&capabilities);
    let mut virt_types = Vec::new();
    for virt_type in runtime.virt_types() {
        match connection.domain_capabilities(&arch, None, virt_type).await {
            Ok(xml) => {
                let mut found = domain_capabilities(&xml);
                found.machine_types.clone_from(&machine_types);
                if let Some(cpu) = host_model_cpu(&found) {
                    match connection.expand_cpu(&cpu, virt_type).await {
                        Ok(xml) => found.host_features = cpu_features(&xml),
                        Err(error) => {
                            tracing::info!(virt_type, %error, "the features of the host's model are not known")
                        }
                    }
                }
                virt_types.push(found);
            }
            Err(error) => tracing::info!(virt_type, %error, "not available"),
        }
    }
    report.arch = arch;
    report.tsc = tsc(&capabilities);
    report.libvirt_version = version_text(versions.libvirt);
    Ok(HypervisorReport { name: runtime.name().to_owned(), version: version_text(versions.hypervisor), virt_types })
}

fn keep(cache: &Path, out: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(out).with_context(|| format!("cannot make {}", out.display()))?;
    for entry in fs::read_dir(cache).with_context(|| format!("libvirt left no cache in {}", cache.display()))? {
        let entry = entry?;
        let target = out.join(entry.file_name());
        // Renamed into place, so that a launcher that starts now sees a whole file or none.
        let partial = out.join(format!(".{}.partial", entry.file_name().to_string_lossy()));
        fs::copy(entry.path(), &partial)
            // libvirt keeps its cache to itself; launchers may run as another user than the probe did.
            .and_then(|_| fs::set_permissions(&partial, fs::Permissions::from_mode(0o644)))
            .and_then(|()| fs::rename(&partial, &target))
            .with_context(|| format!("cannot write {}", target.display()))?;
    }
    Ok(())
}
