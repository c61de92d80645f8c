//! What a launcher pod asks its node for: memory around the guest and for it, CPUs, huge pages, the hypervisor's device.

use std::collections::BTreeMap;

use ferrovirt_api::{names, v1::VirtualMachineInstance};
use k8s_openapi::{
    api::core::v1::{EmptyDirVolumeSource, ResourceClaim, ResourceRequirements, Volume, VolumeMount},
    apimachinery::pkg::api::resource::Quantity,
};

use crate::pod::{Config, hypervisor};

/// Where a launcher has its huge pages, and where libvirt keeps its own files among them. As upstream, so that what
/// looks for them finds them.
const HUGEPAGES: [(&str, &str); 2] =
    [("hugepages", "/dev/hugepages"), ("hugetblfs-dir", "/dev/hugepages/libvirt/qemu")];

/// What the pod's own files may take beside the guest's: logs, sockets, libvirt's state.
const EPHEMERAL_STORAGE: i64 = 50_000_000;
const EPHEMERAL_STORAGE_RESOURCE: &str = "ephemeral-storage";
const SEV_DEVICE: &str = "devices.kubevirt.io/sev";
const TDX_DEVICE: &str = "devices.kubevirt.io/tdx";

type Amounts = BTreeMap<String, Quantity>;

pub(crate) fn resources(vmi: &VirtualMachineInstance, config: &Config) -> ResourceRequirements {
    let domain = &vmi.spec.domain;
    let mut requests: Amounts = domain.resources.requests.clone();
    let mut limits: Amounts = domain.resources.limits.clone();
    let limits_memory = limits.contains_key("memory");
    memory(vmi, config, &mut requests, &mut limits);
    let dedicated = own_cpus(vmi, limits.get("cpu").or(requests.get("cpu")));
    match dedicated {
        Some(cpus) => {
            // Only a pod whose requests are its limits gets CPUs of its own.
            for list in [&mut requests, &mut limits] {
                list.insert("cpu".into(), Quantity(cpus.to_string()));
            }
            let memory = requests.get("memory").map(|wire| bytes(wire).max(limits.get("memory").map_or(0, bytes)));
            if let Some(memory) = memory {
                requests.insert("memory".into(), Quantity(memory.to_string()));
                limits.insert("memory".into(), Quantity(memory.to_string()));
            }
        }
        None => shared_cpus(vmi, config, &mut requests, &mut limits),
    }
    if let (Some(ratio), false, None) = (config.auto_memory_limit, limits_memory, dedicated)
        && let Some(request) = requests.get("memory").map(bytes)
    {
        limits.insert("memory".into(), Quantity(scaled(request, ratio).to_string()));
    }
    devices(vmi, config, &mut requests, &mut limits);
    add_to(&mut requests, EPHEMERAL_STORAGE_RESOURCE, EPHEMERAL_STORAGE);
    if limits.contains_key(EPHEMERAL_STORAGE_RESOURCE) {
        add_to(&mut limits, EPHEMERAL_STORAGE_RESOURCE, EPHEMERAL_STORAGE);
    }
    let claims = claims(vmi, config);
    ResourceRequirements {
        requests: Some(requests),
        limits: (!limits.is_empty()).then_some(limits),
        claims: (!claims.is_empty()).then_some(claims),
    }
}

/// The guest's memory, what is around it, and huge pages.
fn memory(vmi: &VirtualMachineInstance, config: &Config, requests: &mut Amounts, limits: &mut Amounts) {
    let domain = &vmi.spec.domain;
    let overhead = overhead(vmi, config);
    let told = |list: &Amounts| list.get("memory").map(bytes).filter(|bytes| *bytes > 0);
    let guest = domain.memory.as_ref().and_then(|memory| memory.guest.as_ref()).map(bytes);
    // What was said in resources is meant so; only what follows from the guest's size can be promised more than once.
    let requested = told(requests).or_else(|| told(limits)).or_else(|| {
        let percent = u128::try_from(config.memory_overcommit).unwrap_or(100).max(1);
        guest.map(|guest| u64::try_from(u128::from(guest) * 100 / percent).unwrap_or(guest))
    });
    match huge_pages(vmi, requested) {
        // The guest's memory is in the pages; beside them there is the overhead, and what was asked for above the guest's.
        Some((resource, pages)) => {
            let beside = |amount: u64| Quantity(amount.saturating_sub(pages).saturating_add(overhead).to_string());
            requests.insert("memory".into(), beside(requested.unwrap_or(0)));
            if let Some(limit) = limits.get("memory").map(bytes) {
                limits.insert("memory".into(), beside(limit));
            }
            requests.insert(resource.clone(), Quantity(pages.to_string()));
            limits.insert(resource, Quantity(pages.to_string()));
        }
        None => {
            // What is around a guest is asked for even where nothing says how large the guest is.
            let around = if domain.resources.overcommit_guest_overhead { 0 } else { overhead };
            let asked = requested.unwrap_or(0).saturating_add(around);
            if asked > 0 {
                requests.insert("memory".into(), Quantity(asked.to_string()));
            }
            if let Some(limit) = limits.get("memory").map(bytes) {
                limits.insert("memory".into(), Quantity(limit.saturating_add(overhead).to_string()));
            }
        }
    }
}

/// CPUs that are shared with others: a part of each that the guest sees, unless somebody says how much.
fn shared_cpus(vmi: &VirtualMachineInstance, config: &Config, requests: &mut Amounts, limits: &mut Amounts) {
    let cpus = i64::from(virtual_cpus(vmi)).saturating_add(io_threads(vmi).cast_signed());
    if !requests.contains_key("cpu") && !limits.contains_key("cpu") {
        let part = || Quantity(format!("{}m", (cpus.saturating_mul(1000) / config.cpu_allocation_ratio.max(1)).max(1)));
        requests.insert("cpu".into(), config.cpu_request.clone().unwrap_or_else(part));
    }
    if config.auto_cpu_limit {
        limits.entry("cpu".into()).or_insert_with(|| Quantity(cpus.to_string()));
    }
}

/// Devices of the node, one each or as many as are asked for.
fn devices(vmi: &VirtualMachineInstance, config: &Config, requests: &mut Amounts, limits: &mut Amounts) {
    let devices = &vmi.spec.domain.devices;
    let mut wanted: Vec<&str> = vec![];
    if !config.may_emulate() {
        let driver = ferrovirt_machine::hypervisor::hypervisor(hypervisor(vmi));
        wanted.extend(driver.and_then(|driver| driver.device()));
    }
    if crate::vsock::is_asked(&vmi.spec) {
        wanted.push(names::VHOST_VSOCK_DEVICE);
    }
    if let Some(security) = &vmi.spec.domain.launch_security {
        wanted.extend((security.sev.is_some() || security.snp.is_some()).then_some(SEV_DEVICE));
        wanted.extend(security.tdx.is_some().then_some(TDX_DEVICE));
    }
    let named = devices.gpus.iter().map(|gpu| (&gpu.device_name, &gpu.claim_name));
    let named = named.chain(devices.host_devices.iter().map(|device| (&device.device_name, &device.claim_name)));
    let plugged = named.filter(|(device, claim)| !device.is_empty() && claim.is_empty());
    wanted.extend(plugged.map(|(device, _)| device.as_str()));
    for device in wanted {
        add_to(requests, device, 1);
        add_to(limits, device, 1);
    }
}

/// Devices that a driver of the cluster gives, by the instance's resource claims.
fn claims(vmi: &VirtualMachineInstance, config: &Config) -> Vec<ResourceClaim> {
    let devices = &vmi.spec.domain.devices;
    let gpus =
        devices.gpus.iter().map(|gpu| (config.claimed.gpus, &gpu.device_name, &gpu.claim_name, &gpu.request_name));
    let host_devices = devices.host_devices.iter();
    let host_devices = host_devices
        .map(|device| (config.claimed.host_devices, &device.device_name, &device.claim_name, &device.request_name));
    let given =
        gpus.chain(host_devices).filter(|(open, device, claim, _)| *open && device.is_empty() && !claim.is_empty());
    let given = given.map(|(_, _, claim, request)| (claim, request));
    let networks = vmi.spec.networks.iter().filter(|_| config.claimed.networks);
    let networks = networks.filter_map(|network| network.resource_claim.as_ref());
    let all = given.chain(networks.map(|network| (&network.claim_name, &network.request_name)));
    all.map(|(claim, request)| ResourceClaim {
        name: claim.clone(),
        request: (!request.is_empty()).then(|| request.clone()),
    })
    .collect()
}

fn add_to(list: &mut Amounts, resource: &str, amount: i64) {
    let known = list.get(resource).and_then(|wire| ferrovirt_api::Quantity::try_from(wire).ok());
    let sum = known.unwrap_or_default() + ferrovirt_api::Quantity::milli(1000) * amount;
    list.insert(resource.into(), Quantity(sum.to_string()));
}

/// What the processes around the guest need, as much as the cluster gives them.
pub(crate) fn overhead(vmi: &VirtualMachineInstance, config: &Config) -> u64 {
    let bytes = memory_overhead(vmi, config.may_emulate());
    config.overhead_ratio.map_or(bytes, |ratio| scaled(bytes, ratio))
}

/// Cut off to whole bytes, and never less than nothing.
fn scaled(bytes: u64, ratio: f64) -> u64 {
    (bytes as f64 * ratio) as u64
}

pub(crate) use ferrovirt_machine::overhead::is_guaranteed;

fn io_threads(vmi: &VirtualMachineInstance) -> u64 {
    let threads = vmi.spec.domain.io_threads.as_ref().and_then(|threads| threads.supplemental_pool_thread_count);
    threads.unwrap_or(0).into()
}

/// True if the guest's CPUs are to be its own.
pub(crate) fn pins_cpus(vmi: &VirtualMachineInstance) -> bool {
    vmi.spec.domain.cpu.as_ref().is_some_and(|cpu| cpu.dedicated_cpu_placement)
}

/// True if the guest's NUMA nodes are to be the node's.
pub(crate) fn mirrors_numa(vmi: &VirtualMachineInstance) -> bool {
    let numa = vmi.spec.domain.cpu.as_ref().and_then(|cpu| cpu.numa.as_ref());
    numa.is_some_and(|numa| numa.guest_mapping_passthrough.is_some())
}

/// How many CPUs of its own a machine needs: for its virtual ones, for a pool of I/O threads, and for the emulator's threads. `told`
/// counts where the topology says nothing.
fn own_cpus(vmi: &VirtualMachineInstance, told: Option<&Quantity>) -> Option<u64> {
    let cpu = vmi.spec.domain.cpu.as_ref().filter(|cpu| cpu.dedicated_cpu_placement)?;
    let named = [cpu.cores, cpu.sockets, cpu.threads].iter().any(|count| *count > 0);
    let told = told.map(bytes).filter(|_| !named);
    let cpus = told.unwrap_or_else(|| virtual_cpus(vmi).into()).saturating_add(io_threads(vmi));
    if !cpu.isolate_emulator_thread {
        return Some(cpus);
    }
    let annotations = vmi.metadata.annotations.as_ref();
    let even = annotations.is_some_and(|all| all.contains_key(names::EMULATOR_THREAD_COMPLETE_TO_EVEN_PARITY));
    Some(cpus + if even && cpus.is_multiple_of(2) { 2 } else { 1 })
}

/// The file systems of the guest's huge pages.
pub(crate) fn add_huge_pages(vmi: &VirtualMachineInstance, volumes: &mut Vec<Volume>, mounts: &mut Vec<VolumeMount>) {
    if page_size(vmi).is_none() {
        return;
    }
    for (name, path) in HUGEPAGES {
        let pages = EmptyDirVolumeSource { medium: Some("HugePages".into()), ..Default::default() };
        volumes.push(Volume { name: name.into(), empty_dir: Some(pages), ..Default::default() });
        mounts.push(VolumeMount { name: name.into(), mount_path: path.into(), ..Default::default() });
    }
}

/// What the processes around the guest need.
pub fn memory_overhead(vmi: &VirtualMachineInstance, may_be_emulated: bool) -> u64 {
    let arch = ferrovirt_machine::spec::Arch::parse(&vmi.spec.architecture).unwrap_or_default();
    ferrovirt_machine::hypervisor::hypervisor(hypervisor(vmi))
        .map_or(0, |driver| ferrovirt_machine::overhead::memory_overhead(vmi, arch, driver, may_be_emulated))
}

pub fn virtual_cpus(vmi: &VirtualMachineInstance) -> u32 {
    let Some(cpu) = &vmi.spec.domain.cpu else { return 1 };
    cpu.cores.max(1).saturating_mul(cpu.sockets.max(1)).saturating_mul(cpu.threads.max(1))
}

/// The resource that the guest's pages are, and how many bytes of it.
fn huge_pages(vmi: &VirtualMachineInstance, requested: Option<u64>) -> Option<(String, u64)> {
    let size = page_size(vmi)?;
    let guest = vmi.spec.domain.memory.as_ref().and_then(|memory| memory.guest.as_ref()).map(bytes);
    let one = bytes(&Quantity(size.into()));
    Some((format!("hugepages-{size}"), guest.or(requested).unwrap_or(one)))
}

fn page_size(vmi: &VirtualMachineInstance) -> Option<&str> {
    Some(&vmi.spec.domain.memory.as_ref()?.hugepages.as_ref()?.page_size)
}

/// What cannot be read counts as nothing: admission refused it before.
fn bytes(wire: &Quantity) -> u64 {
    ferrovirt_api::Quantity::try_from(wire).map(|quantity| quantity.as_bytes()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn vmi(domain: Value) -> VirtualMachineInstance {
        serde_json::from_value(json!({ "metadata": { "name": "a" }, "spec": { "domain": domain } })).unwrap()
    }

    /// Requests and limits, with the overhead taken from memory.
    fn shown(domain: Value) -> String {
        let vmi = vmi(domain);
        let overhead = memory_overhead(&vmi, true);
        let rendered = resources(&vmi, &Config::default());
        let show = |list: Option<BTreeMap<String, Quantity>>| {
            let list = list.unwrap_or_default();
            let amounts = list.iter().filter(|(name, _)| *name != EPHEMERAL_STORAGE_RESOURCE);
            let amounts = amounts.map(|(name, amount)| match name.as_str() {
                "memory" => format!("memory={}Mi", (bytes(amount) - overhead) >> 20),
                name if name.starts_with("hugepages") => format!("{name}={}Mi", bytes(amount) >> 20),
                name => format!("{name}={}", amount.0),
            });
            amounts.collect::<Vec<_>>().join(" ")
        };
        format!("{} | {}", show(rendered.requests), show(rendered.limits))
    }

    #[test]
    fn the_guests_memory_is_asked_for_as_memory_or_as_huge_pages() {
        for (domain, expected) in [
            (json!({}), "cpu=100m memory=0Mi | "),
            (json!({ "memory": { "guest": "64Mi" } }), "cpu=100m memory=64Mi | "),
            (
                json!({ "memory": { "guest": "64Mi", "hugepages": { "pageSize": "2Mi" } } }),
                "cpu=100m hugepages-2Mi=64Mi memory=0Mi | hugepages-2Mi=64Mi",
            ),
            (
                json!({ "memory": { "hugepages": { "pageSize": "2Mi" } }, "resources": { "requests": { "memory": "32Mi" } } }),
                "cpu=100m hugepages-2Mi=32Mi memory=0Mi | hugepages-2Mi=32Mi",
            ),
            (
                json!({ "memory": { "guest": "64Mi", "hugepages": { "pageSize": "2Mi" } },
                        "resources": { "requests": { "memory": "70Mi" }, "limits": { "memory": "80Mi" } } }),
                "cpu=100m hugepages-2Mi=64Mi memory=6Mi | hugepages-2Mi=64Mi memory=16Mi",
            ),
            (
                json!({ "memory": { "hugepages": { "pageSize": "1Gi" } } }),
                "cpu=100m hugepages-1Gi=1024Mi memory=0Mi | hugepages-1Gi=1024Mi",
            ),
        ] {
            assert_eq!(shown(domain.clone()), expected, "{domain}");
        }
    }

    #[test]
    fn cpus_of_its_own_make_a_guaranteed_pod() {
        let memory = json!({ "guest": "64Mi" });
        for (cpu, resources, expected) in [
            (json!({ "cores": 2 }), json!({}), "cpu=2 memory=64Mi | cpu=2 memory=64Mi"),
            (
                json!({ "cores": 1, "sockets": 2, "threads": 2, "isolateEmulatorThread": true }),
                json!({}),
                "cpu=5 memory=64Mi | cpu=5 memory=64Mi",
            ),
            (json!({}), json!({ "limits": { "cpu": "3" } }), "cpu=3 memory=64Mi | cpu=3 memory=64Mi"),
            (json!({}), json!({}), "cpu=1 memory=64Mi | cpu=1 memory=64Mi"),
            (
                json!({ "cores": 1 }),
                json!({ "requests": { "memory": "64Mi" }, "limits": { "memory": "70Mi" } }),
                "cpu=1 memory=70Mi | cpu=1 memory=70Mi",
            ),
        ] {
            let mut domain = json!({ "cpu": cpu, "memory": memory, "resources": resources });
            domain["cpu"]["dedicatedCpuPlacement"] = json!(true);
            assert_eq!(shown(domain.clone()), expected, "{domain}");
        }
        let mut even =
            vmi(json!({ "cpu": { "cores": 2, "dedicatedCpuPlacement": true, "isolateEmulatorThread": true } }));
        assert_eq!(own_cpus(&even, None), Some(3));
        let parity = names::EMULATOR_THREAD_COMPLETE_TO_EVEN_PARITY.to_owned();
        even.metadata.annotations = Some(BTreeMap::from([(parity, String::new())]));
        assert_eq!(own_cpus(&even, None), Some(4));
    }

    fn amounts(domain: &Value, config: &Config) -> (Amounts, Amounts) {
        let rendered = resources(&vmi(domain.clone()), config);
        (rendered.requests.unwrap_or_default(), rendered.limits.unwrap_or_default())
    }

    #[test]
    fn memory_is_promised_more_than_once_only_where_nobody_said_how_much() {
        let (guest, pages) = (json!({ "guest": "1Gi" }), json!({ "hugepages": { "pageSize": "1Gi" } }));
        let (both, none) = (json!({ "guest": "1Gi", "hugepages": { "pageSize": "1Gi" } }), json!({}));
        let resources = |requests: bool, limits: bool| {
            let gigabyte = |on: bool| if on { json!({ "memory": "1Gi" }) } else { json!({}) };
            json!({ "requests": gigabyte(requests), "limits": gigabyte(limits) })
        };
        for (memory, requests, limits, expected) in [
            (&none, false, false, false),
            (&none, true, false, false),
            (&none, false, true, false),
            (&guest, false, false, true),
            (&guest, true, false, false),
            (&guest, false, true, false),
            (&guest, true, true, false),
            (&pages, false, false, false),
            (&pages, true, true, false),
            (&both, false, false, false),
        ] {
            let domain = json!({ "memory": memory, "resources": resources(requests, limits) });
            let around = memory_overhead(&vmi(domain.clone()), true);
            let asked = |percent: i64| {
                let config = Config { memory_overcommit: percent, ..Config::default() };
                amounts(&domain, &config).0.get("memory").map_or(0, |memory| bytes(memory) - around)
            };
            let (plain, promised) = (asked(100), asked(110));
            assert_eq!(promised, if expected { plain * 100 / 110 } else { plain }, "{domain}");
        }
    }

    #[test]
    fn a_quota_on_limits_gives_limits_to_those_without() {
        let quota = Config { auto_cpu_limit: true, auto_memory_limit: Some(3.2), ..Config::default() };
        let cores = json!({ "cores": 2 });
        let (requests, limits) = amounts(&json!({ "cpu": cores, "memory": { "guest": "64Mi" } }), &quota);
        assert_eq!((requests["cpu"].0.as_str(), limits["cpu"].0.as_str()), ("200m", "2"));
        assert_eq!(bytes(&limits["memory"]), (bytes(&requests["memory"]) as f64 * 3.2) as u64);
        // Not over what was said, nor over what CPUs of its own need.
        let told = json!({ "cpu": cores, "resources": {
            "requests": { "memory": "64M", "cpu": "200m" }, "limits": { "memory": "64M", "cpu": "350m" } } });
        let (requests, limits) = amounts(&told, &quota);
        assert_eq!((&limits["memory"], limits["cpu"].0.as_str()), (&requests["memory"], "350m"));
        let own = json!({ "cpu": { "cores": 2, "dedicatedCpuPlacement": true }, "resources": { "requests": { "memory": "64M" } } });
        let (requests, limits) = amounts(&own, &quota);
        assert_eq!((&limits["memory"], &limits["cpu"]), (&requests["memory"], &requests["cpu"]));
        let (_, none) = amounts(&json!({ "cpu": cores, "memory": { "guest": "64Mi" } }), &Config::default());
        assert!(none.is_empty(), "{none:?}");
    }

    #[test]
    fn what_the_cluster_says_of_cpus_and_overhead_counts() {
        let cpu = |domain: &Value, config: &Config| amounts(domain, config).0["cpu"].0.clone();
        let cores = json!({ "cpu": { "cores": 3, "sockets": 5 } });
        let ratio = |cpu_allocation_ratio: i64| Config { cpu_allocation_ratio, ..Config::default() };
        assert_eq!((cpu(&cores, &ratio(1)), cpu(&cores, &ratio(10))), ("15000m".into(), "1500m".into()));
        let threads = json!({ "cpu": { "cores": 2 }, "ioThreads": { "supplementalPoolThreadCount": 2 } });
        assert_eq!(cpu(&threads, &ratio(10)), "400m");
        let said = Config { cpu_request: Some(Quantity("250m".into())), ..Config::default() };
        assert_eq!(cpu(&cores, &said), "250m");
        let own = json!({ "resources": { "requests": { "cpu": "7m" } } });
        assert_eq!(cpu(&own, &said), "7m");

        let guest = json!({ "memory": { "guest": "64Mi" } });
        let more = Config { overhead_ratio: Some(1.5), ..Config::default() };
        let beside = |config: &Config| bytes(&amounts(&guest, config).0["memory"]) - (64 << 20);
        assert_eq!(beside(&more), beside(&Config::default()) * 3 / 2);
    }

    #[test]
    fn the_pods_own_files_are_counted_on_top() {
        let shown = |resources: Value| {
            let (requests, limits) = amounts(&json!({ "resources": resources }), &Config::default());
            let one = |list: &Amounts| list.get(EPHEMERAL_STORAGE_RESOURCE).map(|amount| amount.0.clone());
            (one(&requests), one(&limits))
        };
        assert_eq!(shown(json!({})), (Some("50M".into()), None));
        let asked = json!({ "requests": { "ephemeral-storage": "30M" }, "limits": { "ephemeral-storage": "70M" } });
        assert_eq!(shown(asked), (Some("80M".into()), Some("120M".into())));
    }

    #[test]
    fn devices_are_counted_or_claimed() {
        let domain = json!({ "memory": { "guest": "64Mi" }, "launchSecurity": { "sev": {} }, "devices": {
            "gpus": [{ "name": "a", "deviceName": "vendor.com/gpu" }, { "name": "b", "deviceName": "vendor.com/gpu" },
                { "name": "c", "claimName": "claim", "requestName": "one" }],
            "hostDevices": [{ "name": "d", "deviceName": "vendor.com/disk" }],
        } });
        let (requests, limits) = amounts(&domain, &Config::default());
        for (device, count) in [("vendor.com/gpu", "2"), ("vendor.com/disk", "1"), (SEV_DEVICE, "1")] {
            assert_eq!((requests[device].0.as_str(), limits[device].0.as_str()), (count, count), "{device}");
        }
        let claims = resources(&vmi(domain), &Config::default()).claims.unwrap();
        assert_eq!(claims, [ResourceClaim { name: "claim".into(), request: Some("one".into()) }]);
    }

    #[test]
    fn a_vsock_needs_its_device() {
        let domain = json!({ "memory": { "guest": "64Mi" }, "devices": { "autoattachVSOCK": true } });
        let device = "devices.kubevirt.io/vhost-vsock=1";
        assert_eq!(shown(domain), format!("cpu=100m {device} memory=64Mi | {device}"));
    }

    #[test]
    fn huge_pages_are_mounted_where_libvirt_looks_for_them() {
        let (mut volumes, mut mounts) = (vec![], vec![]);
        add_huge_pages(&vmi(json!({ "memory": { "guest": "64Mi" } })), &mut volumes, &mut mounts);
        assert!(volumes.is_empty() && mounts.is_empty());
        add_huge_pages(&vmi(json!({ "memory": { "hugepages": { "pageSize": "2Mi" } } })), &mut volumes, &mut mounts);
        let paths: Vec<&str> = mounts.iter().map(|mount| mount.mount_path.as_str()).collect();
        assert_eq!(paths, ["/dev/hugepages", "/dev/hugepages/libvirt/qemu"]);
        assert!(volumes.iter().all(|v| v.empty_dir.as_ref().unwrap().medium.as_deref() == Some("HugePages")));
    }
}
