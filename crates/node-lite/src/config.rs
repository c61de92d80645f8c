//! What `ferrovirt up` decides before node-lite starts.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use ferrovirt_net::nft::Net;

use crate::images::Images;
use crate::makers::Creators;

#[derive(Clone)]
pub struct Config {
    pub node_name: String,
    /// The address other machines would reach this one by.
    pub node_ip: IpAddr,
    pub data_dir: PathBuf,
    /// Volatile: `/run/ferrovirt/<hash>`.
    pub run_dir: PathBuf,
    /// A short hash of the data directory, in the names of bridges, network namespaces and cgroups.
    pub instance: String,
    pub pod_cidr: Ipv4Net,
    /// The addresses of services.
    pub service_cidr: Ipv4Net,
    /// The same for IPv6, on a machine that has it.
    pub ipv6: Option<Ipv6Networks>,
    /// The addresses that services may have as `externalIPs`.
    pub external_ips: Vec<Net>,
    /// The addresses that services of the type LoadBalancer are given.
    pub load_balancer_ips: Vec<Net>,
    /// A versioned copy of a program with the subcommands `pod-shim` and `pod-init`.
    pub self_exe: PathBuf,
    /// The programs of our images, each under its digest: see [`crate::programs`].
    pub program_dir: PathBuf,
    /// Whose pods run wherever they are. Those of others run where an administrator lets them.
    pub creators: Creators,
    /// Directories of the host that pods of our controllers mount, beside the host disks of VMs.
    pub shared_dirs: Vec<PathBuf>,
    /// What the launcher's image has beside the host's programs: host path, path inside, read only. Such as the
    /// cache of libvirt's capabilities. What does not exist when a pod starts is left out.
    pub image_mounts: Vec<(PathBuf, PathBuf)>,
    /// Variables of the image; the pod's own come after them.
    pub image_env: Vec<(String, String)>,
    pub cni_plugin_dirs: Vec<PathBuf>,
    /// Extended resources of the node, such as `devices.kubevirt.io/kvm`; see [`detect_devices`].
    pub devices: BTreeMap<String, u32>,
    pub images: Arc<dyn Images>,
    /// Give each pod users of the machine that no other pod has, where kernel and file system can: see decision 30.
    pub own_users: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ipv4Net {
    pub address: Ipv4Addr,
    pub prefix: u8,
}

/// IPv6 networks of an instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ipv6Networks {
    pub pods: Net,
    pub services: Net,
}

#[derive(Debug, thiserror::Error)]
#[error("{0:?} is not an IPv4 network such as 10.42.0.0/24")]
pub struct NotANetwork(String);

impl Config {
    /// The name server of pods, at the place in the service network that Kubernetes distributions agree on.
    pub fn cluster_dns(&self) -> Ipv4Addr {
        self.service_cidr.host(10)
    }

    /// The networks of pods, the first one first.
    pub fn pod_networks(&self) -> Vec<Net> {
        [self.pod_cidr.into()].into_iter().chain(self.ipv6.map(|ipv6| ipv6.pods)).collect()
    }

    /// The networks of services.
    pub fn service_networks(&self) -> Vec<Net> {
        [self.service_cidr.into()].into_iter().chain(self.ipv6.map(|ipv6| ipv6.services)).collect()
    }
}

impl Ipv4Net {
    /// The nth address of the network.
    pub fn host(self, number: u32) -> Ipv4Addr {
        let mask = u32::MAX.checked_shl(32 - u32::from(self.prefix.min(32))).unwrap_or(0);
        Ipv4Addr::from((u32::from(self.address) & mask) + number)
    }
}

/// The distribution's directory, then the one that upstream documents.
pub fn default_cni_plugin_dirs() -> Vec<PathBuf> {
    vec![PathBuf::from("/usr/lib/cni"), PathBuf::from("/opt/cni/bin")]
}

/// KubeVirt's device resources that this machine has. On x86, a `/dev/kvm` without `vmx` or `svm` does not work.
pub fn detect_devices() -> BTreeMap<String, u32> {
    const SHARED: u32 = 1000;
    let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let mut out = BTreeMap::new();
    for (resource, path) in DEVICE_RESOURCES {
        let usable = *resource != "devices.kubevirt.io/kvm" || kvm_works(&cpuinfo, std::env::consts::ARCH);
        if usable && Path::new(path).exists() {
            out.insert((*resource).to_owned(), SHARED);
        }
    }
    out
}

/// Whether this machine's kernel speaks IPv6.
pub fn detect_ipv6() -> bool {
    std::fs::read_to_string("/proc/sys/net/ipv6/conf/all/disable_ipv6").is_ok_and(|value| value.trim() == "0")
}

/// The source address of the default route, without sending anything; loopback on a machine that has none.
pub fn detect_node_ip() -> IpAddr {
    let probe = || {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).ok()?;
        socket.connect((Ipv4Addr::new(192, 0, 2, 1), 9)).ok()?;
        Some(socket.local_addr().ok()?.ip()).filter(|ip| !ip.is_unspecified())
    };
    probe().unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST))
}

/// Resource names that give a pod a device.
pub(crate) const DEVICE_RESOURCES: &[(&str, &str)] = &[
    ("devices.kubevirt.io/kvm", "/dev/kvm"),
    ("devices.kubevirt.io/mshv", "/dev/mshv"),
    ("devices.kubevirt.io/tun", "/dev/net/tun"),
    ("devices.kubevirt.io/vhost-net", "/dev/vhost-net"),
    ("devices.kubevirt.io/vhost-vsock", "/dev/vhost-vsock"),
];

fn kvm_works(cpuinfo: &str, arch: &str) -> bool {
    let flags = cpuinfo.lines().find(|line| line.starts_with("flags"));
    arch != "x86_64"
        || flags.is_some_and(|line| line.split_ascii_whitespace().any(|flag| flag == "vmx" || flag == "svm"))
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config")
            .field("node_name", &self.node_name)
            .field("data_dir", &self.data_dir)
            .field("instance", &self.instance)
            .field("pod_cidr", &self.pod_cidr)
            .finish_non_exhaustive()
    }
}

impl From<Ipv4Net> for ferrovirt_net::nft::Net {
    fn from(net: Ipv4Net) -> Self {
        Self { address: net.address.into(), prefix: net.prefix }
    }
}

impl fmt::Display for Ipv4Net {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}

impl FromStr for Ipv4Net {
    type Err = NotANetwork;

    fn from_str(text: &str) -> Result<Self, NotANetwork> {
        let parse = || {
            let (address, prefix) = text.split_once('/')?;
            Some(Self { address: address.parse().ok()?, prefix: prefix.parse().ok().filter(|prefix| *prefix <= 32)? })
        };
        parse().ok_or_else(|| NotANetwork(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_are_read_and_shown() {
        for text in ["10.42.0.0/24", "0.0.0.0/0"] {
            assert_eq!(text.parse::<Ipv4Net>().unwrap().to_string(), text);
        }
        for text in ["10.42.0.0", "10.42.0/24", "10.42.0.0/33", ""] {
            assert!(text.parse::<Ipv4Net>().is_err(), "{text}");
        }
    }

    #[test]
    fn kvm_needs_a_cpu_that_has_it() {
        for (cpuinfo, arch, expected) in [
            ("flags\t\t: fpu vmx sse", "x86_64", true),
            ("flags\t\t: fpu svm", "x86_64", true),
            ("flags\t\t: fpu sse svmx", "x86_64", false),
            ("", "x86_64", false),
            ("", "aarch64", true),
        ] {
            assert_eq!(kvm_works(cpuinfo, arch), expected, "{cpuinfo} {arch}");
        }
    }
}
