//! Where an embedded installation keeps things. Persistent state is below the data directory, mode 0700; volatile state
//! is below `/run/ferrovirt/<instance>`, short enough for socket addresses. The instance is a hash of the data
//! directory, so that two data directories on one machine never share a name.

use std::{
    fs,
    net::{Ipv4Addr, Ipv6Addr},
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use ferrovirt_api::fnv::fnv1a;

pub const DEFAULT_DATA_DIR: &str = "/var/lib/ferrovirt";

#[derive(Debug, Clone)]
pub struct Paths {
    pub data_dir: PathBuf,
    pub run_dir: PathBuf,
    /// Six hexadecimal digits.
    pub instance: String,
}

impl Paths {
    /// Resolves the paths of a data directory, which need not exist.
    pub fn new(data_dir: &Path) -> Result<Self> {
        let data_dir = std::path::absolute(data_dir).context("cannot resolve the data directory")?;
        let data_dir = fs::canonicalize(&data_dir).unwrap_or(data_dir);
        let instance = hash(data_dir.as_os_str().as_encoded_bytes());
        let run_dir = Path::new("/run/ferrovirt").join(&instance);
        Ok(Self { data_dir, run_dir, instance })
    }

    pub fn create(&self) -> Result<()> {
        for directory in [&self.data_dir, &self.run_dir] {
            fs::DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(directory)
                .with_context(|| format!("cannot create {}", directory.display()))?;
        }
        Ok(())
    }

    pub fn kubeconfig(&self) -> PathBuf {
        self.data_dir.join("kubeconfig")
    }

    /// The objects of the API.
    pub fn store(&self) -> PathBuf {
        self.data_dir.join(ferrovirt_apiserver::STORE_DIR)
    }

    /// Keys and certificates.
    pub fn pki(&self) -> PathBuf {
        self.data_dir.join("pki")
    }

    pub fn images(&self) -> PathBuf {
        self.data_dir.join("images")
    }

    pub fn control_socket(&self) -> PathBuf {
        self.run_dir.join("control.sock")
    }

    pub fn lock(&self) -> PathBuf {
        self.data_dir.join("up.lock")
    }

    pub fn log(&self) -> PathBuf {
        self.data_dir.join("ferrovirt.log")
    }

    pub fn capabilities(&self) -> PathBuf {
        self.data_dir.join("capabilities")
    }

    /// The second and third octet of this instance's pod network, `10.A.B.0/24`.
    ///
    /// Derived from the hash so that two instances on one machine do not meet. It begins at 10.80, above the networks of
    /// small Kubernetes distributions and of our own test cluster.
    pub fn pod_network(&self) -> (u8, u8) {
        let number = u32::from_str_radix(&self.instance, 16).unwrap_or(0);
        (80 + (number % 48) as u8, (number >> 8) as u8)
    }

    /// The network of this instance's services, `10.A.B.0/20`, from 10.128 on.
    pub fn service_network(&self) -> ferrovirt_apiserver::ServiceNetwork {
        let number = u32::from_str_radix(&self.instance, 16).unwrap_or(0);
        let address = Ipv4Addr::new(10, 128 + (number % 48) as u8, (number >> 8) as u8 & 0xf0, 0);
        let ipv6 = ferrovirt_node_lite::detect_ipv6().then(|| self.ipv6_network(2));
        ferrovirt_apiserver::ServiceNetwork { address, prefix: 20, ipv6 }
    }

    /// The networks of this instance's pods, of both families.
    pub fn pod_networks(&self) -> Result<Vec<ferrovirt_apiserver::Network>, ferrovirt_apiserver::NetworkError> {
        let (second, third) = self.pod_network();
        [format!("10.{second}.{third}.0/24"), format!("{}/64", self.ipv6_network(1))]
            .iter()
            .map(|n| n.parse())
            .collect()
    }

    /// A private IPv6 network of this instance: 1 is that of pods, 2 that of services.
    pub fn ipv6_network(&self, which: u16) -> Ipv6Addr {
        let number = u32::from_str_radix(&self.instance, 16).unwrap_or(0);
        Ipv6Addr::new(0xfd76, (number >> 16) as u16, number as u16, which, 0, 0, 0, 0)
    }
}

/// FNV-1a, folded to 24 bits: stable over releases, and all that a name needs.
fn hash(bytes: &[u8]) -> String {
    let state = fnv1a(bytes.iter().copied());
    format!("{:06x}", (state ^ (state >> 24) ^ (state >> 48)) & 0xff_ffff)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instances_differ_by_data_directory() {
        let one = Paths::new(Path::new("/nonexistent/one")).unwrap();
        let two = Paths::new(Path::new("/nonexistent/two")).unwrap();
        assert_eq!(one.instance.len(), 6);
        assert_ne!(one.instance, two.instance);
        assert_ne!(one.run_dir, two.run_dir);
        assert_eq!(one.instance, Paths::new(Path::new("/nonexistent/one")).unwrap().instance);
    }
}
