//! The programs that pods run, as versioned copies: an upgrade of the installed files never touches a running VM.

use std::{
    fs,
    hash::{DefaultHasher, Hasher},
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::{Context, Result, bail};

use super::{images, paths::Paths};

/// Where launchers find what libvirt knows of QEMU.
const CAPABILITIES: &str = "/var/lib/ferrovirt/capabilities";
/// Where launchers find the daemon of shared file systems, if it is installed beside us.
const VIRTIOFSD: &str = "/var/lib/ferrovirt/virtiofsd";

pub struct Programs {
    /// Runs `pod-shim` and `pod-init`.
    pub shim: PathBuf,
    pub launcher: PathBuf,
    pub launcher_image: String,
    /// Serves directories to guests. Without it, launchers look for the distribution's.
    pub virtiofsd: Option<PathBuf>,
    /// Runs importers.
    pub tools: PathBuf,
    pub tools_image: String,
}

/// Copies this program and the launcher into the data directory, unless these very files are there.
pub fn install(paths: &Paths) -> Result<Programs> {
    let own = std::env::current_exe().context("cannot find this program's own file")?;
    let launcher = find_launcher(&own)?;
    let directory = paths.data_dir.join("bin");
    fs::create_dir_all(&directory)?;
    // uid 107 must be able to reach and run the launcher, and nothing else below the data directory.
    fs::set_permissions(&directory, fs::Permissions::from_mode(0o711))?;
    Ok(Programs {
        shim: copy(&find_shim(&own), &directory, "ferrovirt-shim")?,
        launcher: copy(&launcher, &directory, "ferrovirt-launcher")?,
        launcher_image: format!("ferrovirt-launcher:{}", env!("CARGO_PKG_VERSION")),
        virtiofsd: find_virtiofsd(&own).map(|found| keep(&found, &directory, "virtiofsd")).transpose()?,
        tools: keep(&own, &directory, "ferrovirt")?,
        tools_image: format!("ferrovirt:{}", env!("CARGO_PKG_VERSION")),
    })
}

fn find_launcher(own: &Path) -> Result<PathBuf> {
    if let Some(path) = std::env::var_os("FERROVIRT_LAUNCHER") {
        return Ok(path.into());
    }
    let beside = own.with_file_name("ferrovirt-launcher");
    if beside.exists() {
        return Ok(beside);
    }
    bail!("ferrovirt-launcher is not beside {}; install both, or name it with FERROVIRT_LAUNCHER", own.display())
}

/// The small program if it is installed; this one can do the same at a price of some megabytes per VM.
fn find_shim(own: &Path) -> PathBuf {
    let beside = own.with_file_name("ferrovirt-shim");
    if beside.exists() { beside } else { own.to_path_buf() }
}

fn find_virtiofsd(own: &Path) -> Option<PathBuf> {
    let named = std::env::var_os("FERROVIRT_VIRTIOFSD").map(PathBuf::from);
    Some(named.unwrap_or_else(|| own.with_file_name("ferrovirt-virtiofsd"))).filter(|path| path.exists())
}

/// A large program, without reading it: a link where that is possible. Upgrades replace files, they do not write into them.
fn keep(source: &Path, directory: &Path, name: &str) -> Result<PathBuf> {
    let metadata = fs::metadata(source).with_context(|| format!("cannot read {}", source.display()))?;
    let mut hasher = DefaultHasher::new();
    for number in
        [metadata.len(), metadata.ino(), metadata.mtime().cast_unsigned(), metadata.mtime_nsec().cast_unsigned()]
    {
        hasher.write_u64(number);
    }
    let target = directory.join(format!("{name}-{}-{:016x}", env!("CARGO_PKG_VERSION"), hasher.finish()));
    if !target.exists() && fs::hard_link(source, &target).is_err() {
        let temporary = target.with_extension("new");
        fs::copy(source, &temporary)?;
        fs::set_permissions(&temporary, fs::Permissions::from_mode(0o755))?;
        fs::rename(&temporary, &target)?;
    }
    Ok(target)
}

fn copy(source: &Path, directory: &Path, name: &str) -> Result<PathBuf> {
    let content = fs::read(source).with_context(|| format!("cannot read {}", source.display()))?;
    let mut hasher = DefaultHasher::new();
    hasher.write(&content);
    let target = directory.join(format!("{name}-{}-{:016x}", env!("CARGO_PKG_VERSION"), hasher.finish()));
    if !target.exists() {
        let temporary = target.with_extension("new");
        fs::write(&temporary, content)?;
        fs::set_permissions(&temporary, fs::Permissions::from_mode(0o755))?;
        fs::rename(&temporary, &target)?;
    }
    Ok(target)
}

pub fn node_config(
    paths: &Paths,
    programs: &Programs,
    node_name: &str,
    images: images::NodeImages,
) -> Result<ferrovirt_node_lite::Config> {
    let mut image_mounts = vec![(paths.capabilities(), PathBuf::from(CAPABILITIES))];
    let mut image_env = vec![("FERROVIRT_CAPABILITIES_CACHE".to_owned(), CAPABILITIES.to_owned())];
    if let Some(virtiofsd) = &programs.virtiofsd {
        image_mounts.push((virtiofsd.clone(), VIRTIOFSD.into()));
        image_env.push(("FERROVIRT_VIRTIOFSD".into(), VIRTIOFSD.into()));
    }
    let (second, third) = paths.pod_network();
    let services = paths.service_network();
    Ok(ferrovirt_node_lite::Config {
        node_name: node_name.into(),
        node_ip: ferrovirt_node_lite::detect_node_ip(),
        data_dir: paths.data_dir.clone(),
        run_dir: paths.run_dir.clone(),
        instance: paths.instance.clone(),
        pod_cidr: format!("10.{second}.{third}.0/24").parse()?,
        service_cidr: ferrovirt_node_lite::Ipv4Net { address: services.address, prefix: services.prefix },
        ipv6: services.ipv6.map(|address| ferrovirt_node_lite::Ipv6Networks {
            pods: (paths.ipv6_network(1), 64).into(),
            services: (address, ferrovirt_apiserver::ServiceNetwork::IPV6_PREFIX).into(),
        }),
        external_ips: vec![],
        self_exe: programs.shim.clone(),
        launcher_exe: programs.launcher.clone(),
        tools_exe: programs.tools.clone(),
        image_mounts,
        image_env,
        cni_plugin_dirs: ferrovirt_node_lite::default_cni_plugin_dirs(),
        devices: ferrovirt_node_lite::detect_devices(),
        images: Arc::new(images),
    })
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_node_runs_the_launchers_of_every_hypervisor() {
        for driver in ferrovirt_machine::hypervisor::drivers() {
            let image = ferrovirt_plan::pod::launcher_image("ferrovirt-launcher:1", driver.name());
            assert!(ferrovirt_node_lite::podspec::is_own_image(&image), "{image}");
        }
    }
}
