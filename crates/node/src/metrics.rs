//! What the guests of this node use, in upstream's names: read from the processes and network namespaces of their launchers.

use std::{fs, sync::Arc};

use ferrovirt_api::v1::VirtualMachineInstance;
use ferrovirt_metrics::Family;
use kube::ResourceExt;

use crate::{Context, pods, processes};

/// Families of everything that runs here.
pub(crate) async fn collect(context: &Context, instances: &[Arc<VirtualMachineInstance>]) -> Vec<Family> {
    let mut families = Families::default();
    for vmi in instances {
        for pod in pods::here(context, vmi) {
            let Ok(launcher) = context.ground.connect(&pod).await else { continue };
            let Some(pid) = launcher.pid() else { continue };
            families.add(&context.config.node_name, vmi, pid);
        }
    }
    let ready = Family::gauge("kubevirt_virt_handler_ready_status", "Whether the node agent serves.").with([], 1.0);
    families.list.into_iter().chain([ready]).collect()
}

struct Families {
    list: Vec<Family>,
}

/// The order is that of the indices below.
const NAMES: [(&str, bool, &str); 14] = [
    ("kubevirt_vmi_cpu_usage_seconds_total", true, "CPU time of the guest and its hypervisor."),
    ("kubevirt_vmi_cpu_user_usage_seconds_total", true, "CPU time in user mode."),
    ("kubevirt_vmi_cpu_system_usage_seconds_total", true, "CPU time in system mode."),
    ("kubevirt_vmi_memory_resident_bytes", false, "Resident memory of the process that runs the guest."),
    ("kubevirt_vmi_memory_domain_bytes", false, "Memory that the guest was given."),
    ("kubevirt_vmi_vcpu_seconds_total", true, "CPU time of each virtual CPU."),
    ("kubevirt_vmi_network_receive_bytes_total", true, "Bytes that the guest received."),
    ("kubevirt_vmi_network_receive_packets_total", true, "Packets that the guest received."),
    ("kubevirt_vmi_network_receive_errors_total", true, "Packets to the guest that had errors."),
    ("kubevirt_vmi_network_receive_packets_dropped_total", true, "Packets to the guest that were dropped."),
    ("kubevirt_vmi_network_transmit_bytes_total", true, "Bytes that the guest sent."),
    ("kubevirt_vmi_network_transmit_packets_total", true, "Packets that the guest sent."),
    ("kubevirt_vmi_network_transmit_errors_total", true, "Packets of the guest that had errors."),
    ("kubevirt_vmi_network_transmit_packets_dropped_total", true, "Packets of the guest that were dropped."),
];

impl Default for Families {
    fn default() -> Self {
        let list = NAMES.iter().map(|(name, counter, help)| match counter {
            true => Family::counter(name, help),
            false => Family::gauge(name, help),
        });
        Self { list: list.collect() }
    }
}

impl Families {
    fn add(&mut self, node: &str, vmi: &VirtualMachineInstance, launcher: i32) {
        let place = || {
            let namespace = vmi.namespace().unwrap_or_default();
            vec![("node", node.to_owned()), ("namespace", namespace), ("name", vmi.name_any())]
        };
        let mut put = |name: &str, more: Vec<(&'static str, String)>, value: f64| {
            if let Some(family) = self.list.iter_mut().find(|family| family.name == name) {
                family.add(place().into_iter().chain(more), value);
            }
        };
        if let Some(usage) = processes::hypervisor(launcher).and_then(processes::usage) {
            put("kubevirt_vmi_cpu_usage_seconds_total", vec![], usage.user + usage.system);
            put("kubevirt_vmi_cpu_user_usage_seconds_total", vec![], usage.user);
            put("kubevirt_vmi_cpu_system_usage_seconds_total", vec![], usage.system);
            put("kubevirt_vmi_memory_resident_bytes", vec![], usage.resident as f64);
            for (id, seconds) in usage.virtual_cpus {
                let labels = vec![("id", id.to_string()), ("state", "running".to_owned())];
                put("kubevirt_vmi_vcpu_seconds_total", labels, seconds);
            }
        }
        let memory = vmi.status.memory.as_ref().and_then(|memory| memory.guest_current.as_ref());
        if let Some(bytes) = memory.and_then(|amount| ferrovirt_api::Quantity::try_from(amount).ok()) {
            put("kubevirt_vmi_memory_domain_bytes", vec![], bytes.value() as f64);
        }
        let table = fs::read_to_string(format!("/proc/{launcher}/net/dev")).unwrap_or_default();
        for (interface, counters) in processes::taps(&table) {
            // What the tap receives is what the guest sent, and the other way round.
            let directions = [("transmit", &counters[..4]), ("receive", &counters[8..12])];
            for (direction, values) in directions {
                for (what, value) in
                    ["bytes_total", "packets_total", "errors_total", "packets_dropped_total"].iter().zip(values)
                {
                    let name = format!("kubevirt_vmi_network_{direction}_{what}");
                    put(&name, vec![("interface", interface.clone())], *value as f64);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_types_are_upstreams() {
        assert_eq!(ferrovirt_metrics::strangers(&Families::default().list), Vec::<String>::new());
    }
}
