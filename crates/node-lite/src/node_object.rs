//! The Node object and its lease: what a kubelet registers.

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::api::core::v1::{Node, NodeAddress, NodeCondition, NodeSpec, NodeStatus, NodeSystemInfo};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::api::{Api, Patch, PatchParams, PostParams};
use serde_json::json;

use crate::Config;
use crate::config::DEVICE_RESOURCES;
use crate::hugepages;
use crate::identity::boot_id;
use crate::status::time;

const LEASE_NAMESPACE: &str = "kube-node-lease";
const LEASE_SECONDS: i32 = 40;
const LEASE_INTERVAL: Duration = Duration::from_secs(10);
/// Leases between two reports of an unchanged status: five minutes, the kubelet's default.
const STATUS_EVERY: u32 = 30;
/// Kept for the host and for Ferrovirt itself.
const RESERVED_MEMORY: u64 = 256 << 20;
const MAX_PODS: u32 = 500;
/// The share of the disk, one in so many, below which the node says that it is under pressure.
const PRESSURE: u64 = 20;

/// Why pods of the node are not kept apart by users of their own; absent where they are.
const SHARED_USER: &str = "ferrovirt.io/shared-user";

/// What the machine says about itself.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Facts {
    pub cpus: usize,
    pub memory_bytes: u64,
    /// Bytes in huge pages, by the name of their resource. They are part of the memory.
    pub huge_pages: BTreeMap<String, u64>,
    pub disk_bytes: u64,
    /// Of those, what is left.
    pub disk_free: u64,
    pub kernel: String,
    pub os_image: String,
    pub machine_id: String,
    pub boot_id: String,
    pub system_uuid: String,
}

/// Registers the node and keeps it alive, for ever. `shared_user` is why its pods share one user of the machine, if they do.
pub(crate) async fn keep(client: kube::Client, config: &Config, shared_user: Option<&str>) {
    let mut round: u32 = 0;
    let mut told = BTreeMap::new();
    loop {
        // Pages are reserved while the node runs, and pods that wait for them should not have to wait for the next report.
        let pages = hugepages::reserved();
        let due = round.is_multiple_of(STATUS_EVERY) || pages != told;
        let status = if due { register(&client, config, shared_user).await } else { Ok(()) };
        let result = match status {
            Ok(()) => {
                told = pages;
                renew(&client, config).await
            }
            Err(error) => Err(error),
        };
        let pause = match result {
            Ok(()) => {
                round = round.wrapping_add(1);
                LEASE_INTERVAL
            }
            Err(error) => {
                tracing::warn!(%error, node = config.node_name, "cannot report the node");
                Duration::from_secs(1)
            }
        };
        tokio::time::sleep(pause).await;
    }
}

async fn register(client: &kube::Client, config: &Config, shared_user: Option<&str>) -> Result<(), kube::Error> {
    let api: Api<Node> = Api::all(client.clone());
    let facts = Facts::read(config);
    let found = match api.get_opt(&config.node_name).await? {
        Some(node) => node,
        None => api.create(&PostParams::default(), &fresh(config)).await?,
    };
    // Labels and addresses of ours are kept right; what others added stays.
    let wanted = fresh(config);
    // null takes back what is no longer true.
    let annotations = json!({ SHARED_USER: shared_user });
    let patch = json!({ "metadata": { "labels": wanted.metadata.labels, "annotations": annotations } });
    let labels_fit = wanted
        .metadata
        .labels
        .iter()
        .flatten()
        .all(|(name, value)| found.metadata.labels.as_ref().and_then(|labels| labels.get(name)) == Some(value));
    let told = found.metadata.annotations.as_ref().and_then(|all| all.get(SHARED_USER)).map(String::as_str);
    if !labels_fit || told != shared_user {
        api.patch(&config.node_name, &PatchParams::default(), &Patch::Merge(&patch)).await?;
    }
    loop {
        let Some(mut node) = api.get_opt(&config.node_name).await? else {
            return Ok(());
        };
        node.status = Some(status(node.status.take().unwrap_or_default(), config, &facts, Timestamp::now()));
        match api.replace_status(&config.node_name, &PostParams::default(), &node).await {
            Err(kube::Error::Api(answer)) if answer.code == 409 => {}
            result => return result.map(drop),
        }
    }
}

async fn renew(client: &kube::Client, config: &Config) -> Result<(), kube::Error> {
    let api: Api<Lease> = Api::namespaced(client.clone(), LEASE_NAMESPACE);
    let now = MicroTime(Timestamp::now());
    let patch = json!({ "spec": { "renewTime": now, "holderIdentity": config.node_name } });
    match api.patch(&config.node_name, &PatchParams::default(), &Patch::Merge(&patch)).await {
        Err(kube::Error::Api(answer)) if answer.code == 404 => {}
        result => return result.map(drop),
    }
    let lease = Lease {
        metadata: ObjectMeta { name: Some(config.node_name.clone()), ..Default::default() },
        spec: Some(LeaseSpec {
            holder_identity: Some(config.node_name.clone()),
            lease_duration_seconds: Some(LEASE_SECONDS),
            renew_time: Some(now),
            ..Default::default()
        }),
    };
    api.create(&PostParams::default(), &lease).await.map(drop)
}

fn fresh(config: &Config) -> Node {
    let arch = kubernetes_arch(std::env::consts::ARCH);
    let labels = [
        ("kubernetes.io/hostname", config.node_name.as_str()),
        ("kubernetes.io/os", "linux"),
        ("kubernetes.io/arch", arch),
        ("beta.kubernetes.io/os", "linux"),
        ("beta.kubernetes.io/arch", arch),
        ("node-role.kubernetes.io/control-plane", ""),
    ];
    Node {
        metadata: ObjectMeta {
            name: Some(config.node_name.clone()),
            labels: Some(labels.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()),
            ..Default::default()
        },
        spec: Some(NodeSpec {
            pod_cidr: Some(config.pod_cidr.to_string()),
            pod_cidrs: Some(config.pod_networks().iter().map(ToString::to_string).collect()),
            ..Default::default()
        }),
        status: None,
    }
}

/// The status, with resources and conditions of others kept.
pub fn status(old: NodeStatus, config: &Config, facts: &Facts, now: Timestamp) -> NodeStatus {
    let mut own = BTreeMap::from([
        ("cpu".to_owned(), Quantity(facts.cpus.to_string())),
        ("memory".to_owned(), Quantity(format!("{}Ki", facts.memory_bytes / 1024))),
        ("ephemeral-storage".to_owned(), Quantity(format!("{}Ki", facts.disk_bytes / 1024))),
        ("pods".to_owned(), Quantity(MAX_PODS.to_string())),
    ]);
    own.extend(facts.huge_pages.iter().map(|(name, bytes)| (name.clone(), Quantity(in_mebibytes(*bytes)))));
    own.extend(config.devices.iter().map(|(name, count)| (name.clone(), Quantity(count.to_string()))));
    let merge = |old: Option<BTreeMap<String, Quantity>>| {
        let mut all = old.unwrap_or_default();
        all.retain(|name, _| !DEVICE_RESOURCES.iter().any(|(device, _)| device == name));
        all.extend(own.clone());
        all
    };
    let capacity = merge(old.capacity);
    let mut allocatable = merge(old.allocatable);
    let in_pages: u64 = facts.huge_pages.values().sum();
    let left = facts.memory_bytes.saturating_sub(RESERVED_MEMORY).saturating_sub(in_pages);
    allocatable.insert("memory".to_owned(), Quantity(format!("{}Ki", left / 1024)));

    let mut conditions = old.conditions.unwrap_or_default();
    for (type_, on, reason, message) in [
        ("MemoryPressure", false, "KubeletHasSufficientMemory", "the node has enough memory"),
        match facts.disk_free < facts.disk_bytes / PRESSURE {
            true => {
                ("DiskPressure", true, "KubeletHasDiskPressure", "the disk under the data directory is nearly full")
            }
            false => ("DiskPressure", false, "KubeletHasNoDiskPressure", "the node has enough disk space"),
        },
        ("PIDPressure", false, "KubeletHasSufficientPID", "the node has enough process ids"),
        ("Ready", true, "KubeletReady", "ferrovirt is posting ready status"),
    ] {
        let state = if on { "True" } else { "False" };
        let position = conditions.iter().position(|condition| condition.type_ == type_);
        let kept = position.and_then(|at| conditions.get(at)).filter(|old| old.status == state);
        let new = NodeCondition {
            type_: type_.to_owned(),
            status: state.to_owned(),
            reason: Some(reason.to_owned()),
            message: Some(message.to_owned()),
            last_heartbeat_time: Some(time(now)),
            last_transition_time: kept.and_then(|old| old.last_transition_time.clone()).or(Some(time(now))),
        };
        match position.and_then(|at| conditions.get_mut(at)) {
            Some(slot) => *slot = new,
            None => conditions.push(new),
        }
    }
    let address = |type_: &str, address: String| NodeAddress { type_: type_.to_owned(), address };
    NodeStatus {
        capacity: Some(capacity),
        allocatable: Some(allocatable),
        conditions: Some(conditions),
        addresses: Some(vec![
            address("InternalIP", config.node_ip.to_string()),
            address("Hostname", config.node_name.clone()),
        ]),
        node_info: Some(NodeSystemInfo {
            architecture: kubernetes_arch(std::env::consts::ARCH).to_owned(),
            boot_id: facts.boot_id.clone(),
            container_runtime_version: format!("ferrovirt://{}", env!("CARGO_PKG_VERSION")),
            kernel_version: facts.kernel.clone(),
            kube_proxy_version: String::new(),
            kubelet_version: format!("v1.36.0-ferrovirt.{}", env!("CARGO_PKG_VERSION")),
            machine_id: facts.machine_id.clone(),
            operating_system: "linux".to_owned(),
            os_image: facts.os_image.clone(),
            system_uuid: facts.system_uuid.clone(),
            ..Default::default()
        }),
        ..old
    }
}

impl Facts {
    fn read(config: &Config) -> Self {
        let text = |path: &str| fs::read_to_string(path).unwrap_or_default().trim().to_owned();
        let (disk_bytes, disk_free) = disk(config);
        Self {
            cpus: std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
            memory_bytes: meminfo(&text("/proc/meminfo")),
            huge_pages: hugepages::reserved(),
            disk_bytes,
            disk_free,
            kernel: text("/proc/sys/kernel/osrelease"),
            os_image: os_image(&text("/etc/os-release")),
            machine_id: text("/etc/machine-id"),
            boot_id: boot_id().unwrap_or_default(),
            system_uuid: text("/sys/class/dmi/id/product_uuid"),
        }
    }
}

/// Bytes of the file system under the data directory, and how many of them are left.
fn disk(config: &Config) -> (u64, u64) {
    let disk = nix::sys::statvfs::statvfs(&config.data_dir);
    disk.map_or((0, 0), |disk| (disk.blocks() * disk.fragment_size(), disk.blocks_available() * disk.fragment_size()))
}

fn meminfo(text: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let kilobytes = line.and_then(|line| line.split_ascii_whitespace().next()?.parse::<u64>().ok());
    kilobytes.unwrap_or(0) * 1024
}

fn in_mebibytes(bytes: u64) -> String {
    if bytes == 0 { "0".to_owned() } else { format!("{}Mi", bytes >> 20) }
}

fn os_image(text: &str) -> String {
    let line = text.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="));
    line.unwrap_or("Linux").trim_matches('"').to_owned()
}

/// Go's names of architectures, which Kubernetes uses.
fn kubernetes_arch(arch: &str) -> &str {
    match arch {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::images::NoImages;
    use std::sync::Arc;

    fn config() -> Config {
        Config {
            node_name: "n1".into(),
            node_ip: [192, 0, 2, 1].into(),
            data_dir: "/d".into(),
            run_dir: "/r".into(),
            instance: "0a1b2c".into(),
            pod_cidr: "10.42.0.0/24".parse().unwrap(),
            service_cidr: "10.43.0.0/16".parse().unwrap(),
            ipv6: None,
            external_ips: vec![],
            load_balancer_ips: vec![],
            self_exe: "/x".into(),
            program_dir: "/p".into(),
            creators: Default::default(),
            shared_dirs: vec![],
            image_mounts: vec![],
            image_env: vec![],
            cni_plugin_dirs: vec![],
            own_users: false,
            devices: BTreeMap::from([("devices.kubevirt.io/tun".into(), 1000)]),
            images: Arc::new(NoImages),
        }
    }

    #[test]
    fn status_keeps_what_others_added() {
        let config = config();
        let huge_pages = BTreeMap::from([("hugepages-1Gi".to_owned(), 0), ("hugepages-2Mi".to_owned(), 64 << 20)]);
        let facts = Facts { cpus: 2, memory_bytes: 4 << 30, huge_pages, ..Default::default() };
        let old: NodeStatus = serde_json::from_value(json!({
            "capacity": {"example.com/gpu": "2", "devices.kubevirt.io/kvm": "1000", "cpu": "64"},
            "allocatable": {"example.com/gpu": "1"},
            "conditions": [{"type": "Other", "status": "True"}],
        }))
        .unwrap();
        let at = |second: i64| Timestamp::from_second(1_800_000_000 + second).unwrap();
        let first = status(old, &config, &facts, at(0));
        let shown: Vec<String> = first.capacity.iter().flatten().map(|(k, v)| format!("{k}={}", v.0)).collect();
        assert_eq!(
            shown,
            [
                "cpu=2",
                "devices.kubevirt.io/tun=1000",
                "ephemeral-storage=0Ki",
                "example.com/gpu=2",
                "hugepages-1Gi=0",
                "hugepages-2Mi=64Mi",
                "memory=4194304Ki",
                "pods=500"
            ]
        );
        let allocatable = first.allocatable.clone().unwrap();
        assert_eq!((allocatable["memory"].0.as_str(), allocatable["example.com/gpu"].0.as_str()), ("3866624Ki", "1"));
        let second = status(first.clone(), &config, &facts, at(300));
        let ready =
            |status: &NodeStatus| status.conditions.clone().unwrap().into_iter().find(|c| c.type_ == "Ready").unwrap();
        assert_eq!(second.conditions.as_ref().unwrap().len(), 5);
        assert_eq!(ready(&second).last_transition_time, ready(&first).last_transition_time);
        assert_ne!(ready(&second).last_heartbeat_time, ready(&first).last_heartbeat_time);
    }

    #[test]
    fn a_disk_that_is_nearly_full_is_told() {
        let config = config();
        let pressure = |disk_free: u64| {
            let facts = Facts { disk_bytes: 100, disk_free, ..Default::default() };
            let told = status(NodeStatus::default(), &config, &facts, Timestamp::UNIX_EPOCH);
            told.conditions.unwrap().into_iter().find(|c| c.type_ == "DiskPressure").unwrap().status
        };
        assert_eq!((pressure(4), pressure(5), pressure(90)), ("True".into(), "False".into(), "False".into()));
    }

    #[test]
    fn facts_are_parsed() {
        assert_eq!(meminfo("MemFree: 1 kB\nMemTotal:       2048 kB\n"), 2 << 20);
        assert_eq!(meminfo(""), 0);
        assert_eq!(os_image("NAME=x\nPRETTY_NAME=\"Debian 12\"\n"), "Debian 12");
    }
}
