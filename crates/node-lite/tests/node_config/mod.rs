//! The configuration of a node that a test has for itself.

use std::path::Path;
use std::sync::Arc;

use ferrovirt_node_lite::images::NoImages;
use ferrovirt_node_lite::makers::default_creators;
use ferrovirt_node_lite::{Config, default_cni_plugin_dirs};

/// Directories below `root`; networks, cgroups and links by a `number` that no other test of the crate has at the same time.
/// The first number of `networks` and how many there are keep programs apart that run side by side.
pub fn of(root: &Path, number: u8, networks: (u32, u32), service_cidr: &str) -> Config {
    let id = std::process::id();
    Config {
        node_name: "n1".into(),
        node_ip: "127.0.0.1".parse().unwrap(),
        data_dir: root.join("data"),
        run_dir: root.join("run"),
        instance: format!("{:04x}{number:02x}", id & 0xffff),
        pod_cidr: format!("10.{}.{number}.0/24", networks.0 + id % networks.1).parse().unwrap(),
        service_cidr: service_cidr.parse().unwrap(),
        ipv6: None,
        external_ips: vec![],
        load_balancer_ips: vec![],
        self_exe: env!("CARGO_BIN_EXE_ferrovirt-shim").into(),
        program_dir: root.join("bin"),
        creators: default_creators(),
        shared_dirs: vec![],
        image_mounts: vec![],
        image_env: vec![],
        cni_plugin_dirs: default_cni_plugin_dirs(),
        own_users: true,
        devices: Default::default(),
        images: Arc::new(NoImages),
    }
}
