//! The programs that pods run, as copies that are known by their digest: an upgrade of the installed files never touches a running VM, and
//! a pod runs what its image says and nothing else.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::{Context, Result, bail};
use ferrovirt_node_lite::{makers::default_creators, programs::Kind};
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, Client, api::ListParams};

use super::{images, paths::Paths, program_files::ProgramFiles};

/// Where launchers find what libvirt knows of QEMU.
const CAPABILITIES: &str = "/var/lib/ferrovirt/capabilities";
/// Where launchers find the daemon of shared file systems, if it is installed beside us.
const VIRTIOFSD: &str = "/var/lib/ferrovirt/virtiofsd";

pub struct Programs {
    /// Runs `pod-shim` and `pod-init`.
    pub shim: PathBuf,
    pub launcher_image: String,
    /// Serves directories to guests. Without it, launchers look for the distribution's.
    pub virtiofsd: Option<PathBuf>,
    /// Importers run from it.
    pub tools_image: String,
    files: ProgramFiles,
}

/// Copies this program and the launcher into the data directory, unless these very files are there.
pub fn install(paths: &Paths) -> Result<Programs> {
    let own = std::env::current_exe().context("cannot find this program's own file")?;
    let mut files = ProgramFiles::open(&paths.data_dir.join("bin"))?;
    let shim = files.install(&find_shim(&own), "ferrovirt-shim")?.path;
    let launcher = files.install(&find_launcher(&own)?, Kind::Launcher.stem())?;
    let virtiofsd = find_virtiofsd(&own).map(|found| files.install(&found, "virtiofsd")).transpose()?;
    let tools = files.install(&own, Kind::Tools.stem())?;
    files.save()?;
    Ok(Programs {
        shim,
        launcher_image: format!("{}@sha256:{}", Kind::Launcher.stem(), launcher.sha256),
        virtiofsd: virtiofsd.map(|installed| installed.path),
        tools_image: format!("{}@sha256:{}", Kind::Tools.stem(), tools.sha256),
        files,
    })
}

impl Programs {
    /// Removes the programs of earlier versions that no pod needs any more.
    pub async fn collect(self: Arc<Self>, client: Client, paths: Paths) {
        let result = async {
            let pods = Api::<Pod>::all(client).list(&ListParams::default()).await?;
            let containers = pods.items.into_iter().filter_map(|pod| pod.spec).flat_map(|spec| spec.containers);
            let images: BTreeSet<String> = containers.filter_map(|container| container.image).collect();
            tokio::task::spawn_blocking(move || anyhow::Ok(self.files.collect(&images, &paths.data_dir.join("pods"))?))
                .await?
        };
        match result.await {
            Ok(removed) if removed.is_empty() => {}
            Ok(removed) => tracing::info!(?removed, "removed programs of earlier versions"),
            Err(error) => tracing::warn!(error = format!("{error:#}"), "cannot remove programs of earlier versions"),
        }
    }
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
        load_balancer_ips: vec![],
        self_exe: programs.shim.clone(),
        program_dir: programs.files.directory().to_owned(),
        creators: default_creators(),
        shared_dirs: vec![images::cache(&paths.images())],
        image_mounts,
        image_env,
        cni_plugin_dirs: ferrovirt_node_lite::default_cni_plugin_dirs(),
        own_users: true,
        devices: ferrovirt_node_lite::detect_devices(),
        images: Arc::new(images),
    })
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_node_runs_the_launchers_of_every_hypervisor() {
        for driver in ferrovirt_machine::hypervisor::drivers() {
            let common = format!("ferrovirt-launcher@sha256:{}", "0".repeat(64));
            let image = ferrovirt_plan::pod::launcher_image(&common, driver.name());
            let known = ferrovirt_node_lite::programs::Image::parse(&image).map(|image| image.kind);
            assert_eq!(known, Some(ferrovirt_node_lite::programs::Kind::Launcher), "{image}");
        }
    }
}
