//! What a launcher pod asks its node for: memory around the guest and for it, CPUs, huge pages, the hypervisor's device.

use std::collections::BTreeMap;

use ferrovirt_api::{names, v1::VirtualMachineInstance};
use k8s_openapi::{
    api::core::v1::{EmptyDirVolumeSource, ResourceRequirements, Volume, VolumeMount},
    apimachinery::pkg::api::resource::Quantity,
};

use crate::pod::{Config, hypervisor};

/// Where a launcher has its huge pages, and where libvirt keeps its own files among them. As upstream, so that what
/// looks for them finds them.
const HUGEPAGES: [(&str, &str); 2] =
    [("hugepages", "/dev/hugepages"), ("hugetblfs-dir", "/dev/hugepages/libvirt/qemu")];

pub(crate) fn resources(vmi: &VirtualMachineInstance, config: &Config) -> ResourceRequirements {
    let domain = &vmi.spec.domain;
    let overhead = i128::from(memory_overhead(vmi, config.may_emulate()));
    let guest = domain.memory.as_ref().and_then(|memory| memory.guest.as_ref()).map(bytes);

    let mut requests: BTreeMap<String, Quantity> = domain.resources.requests.clone();
    let mut limits: BTreeMap<String, Quantity> = domain.resources.limits.clone();
    let requested = requests.get("memory").map(bytes).or_else(|| limits.get("memory").map(bytes)).or(guest);
    match huge_pages(vmi, requested) {
        // The guest's memory is in the pages; beside them there is the overhead, and what was asked for above the guest's.
        Some((resource, pages)) => {
            let beside = |amount: u64| Quantity((i128::from(amount.saturating_sub(pages)) + overhead).to_string());
            requests.insert("memory".into(), beside(requested.unwrap_or(0)));
            if let Some(limit) = limits.get("memory").map(bytes) {
                limits.insert("memory".into(), beside(limit));
            }
            requests.insert(resource.clone(), Quantity(pages.to_string()));
            limits.insert(resource, Quantity(pages.to_string()));
        }
        None => {
            if let Some(requested) = requested {
                let overhead = if domain.resources.overcommit_guest_overhead { 0 } else { overhead };
                requests.insert("memory".into(), Quantity((i128::from(requested) + overhead).to_string()));
            }
            if let Some(limit) = limits.get("memory").map(bytes) {
                limits.insert("memory".into(), Quantity((i128::from(limit) + overhead).to_string()));
            }
        }
    }
    if let Some(cpus) = own_cpus(vmi, limits.get("cpu").or(requests.get("cpu"))) {
        // Only a pod whose requests are its limits gets CPUs of its own.
        for list in [&mut requests, &mut limits] {
            list.insert("cpu".into(), Quantity(cpus.to_string()));
        }
        if let Some(memory) = requests.get("memory").map(|wire| bytes(wire).max(limits.get("memory").map_or(0, bytes)))
        {
            requests.insert("memory".into(), Quantity(memory.to_string()));
            limits.insert("memory".into(), Quantity(memory.to_string()));
        }
    }
    if !requests.contains_key("cpu") && !limits.contains_key("cpu") {
        let milli = 1000 * i64::from(virtual_cpus(vmi)) / config.cpu_allocation_ratio.max(1);
        requests.insert("cpu".into(), Quantity(format!("{}m", milli.max(1))));
    }
    if !config.may_emulate()
        && let Some(driver) = ferrovirt_machine::hypervisor::hypervisor(hypervisor(vmi))
        && let Some(device) = driver.device()
    {
        requests.insert(device.into(), Quantity("1".into()));
        limits.insert(device.into(), Quantity("1".into()));
    }
    if crate::vsock::is_asked(&vmi.spec) {
        requests.insert(names::VHOST_VSOCK_DEVICE.into(), Quantity("1".into()));
        limits.insert(names::VHOST_VSOCK_DEVICE.into(), Quantity("1".into()));
    }
    ResourceRequirements {
        requests: Some(requests),
        limits: (!limits.is_empty()).then_some(limits),
        ..Default::default()
    }
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
    let threads = vmi.spec.domain.io_threads.as_ref().and_then(|threads| threads.supplemental_pool_thread_count);
    let threads = u64::from(threads.unwrap_or(0));
    let cpus = told.unwrap_or_else(|| virtual_cpus(vmi).into()) + threads;
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
    cpu.cores.max(1) * cpu.sockets.max(1) * cpu.threads.max(1)
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
            let amounts = list.iter().map(|(name, amount)| match name.as_str() {
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
