//! What the guests of this node use: libvirt's counters under upstream's names.

use std::time::Duration;

use ferrovirt_api::{Folded, v1::VirtualMachineInstance};
use ferrovirt_machine::protocol::{Answer, GuestCall, Request};
use ferrovirt_metrics::Family;
use futures::{StreamExt, stream};
use kube::ResourceExt;
use serde_json::{Map, Value};

use crate::{Context, pods};

/// Launchers that are asked at the same time, and how long one may take: none holds up the others' figures.
const AT_ONCE: usize = 16;
const ANSWER: Duration = Duration::from_secs(5);
/// The counters of the largest machine are much shorter, and its devices fewer.
const MOST_COUNTERS: usize = 1 << 16;
const MOST_DEVICES: u64 = 4096;

/// A metric, and where it comes from.
struct Row {
    name: &'static str,
    help: &'static str,
    counter: bool,
    /// libvirt's name. Of a device or a virtual CPU, what follows its number.
    source: &'static str,
    of: Of,
    scale: f64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Of {
    Machine,
    Cpu,
    Interface,
    Disk,
}

/// libvirt counts times in nanoseconds and memory in KiB.
const NANOSECOND: f64 = 1e-9;
const KIBIBYTE: f64 = 1024.0;

const fn counter(name: &'static str, help: &'static str, of: Of, source: &'static str, scale: f64) -> Row {
    Row { name, help, counter: true, source, of, scale }
}

const fn gauge(name: &'static str, help: &'static str, source: &'static str) -> Row {
    Row { name, help, counter: false, source, of: Of::Machine, scale: KIBIBYTE }
}

#[rustfmt::skip]
const TABLE: &[Row] = &[
    counter("kubevirt_vmi_cpu_usage_seconds_total", "CPU time of the guest and its hypervisor.", Of::Machine, "cpu.time", NANOSECOND),
    counter("kubevirt_vmi_cpu_user_usage_seconds_total", "CPU time in user mode.", Of::Machine, "cpu.user", NANOSECOND),
    counter("kubevirt_vmi_cpu_system_usage_seconds_total", "CPU time in system mode.", Of::Machine, "cpu.system", NANOSECOND),
    counter("kubevirt_vmi_vcpu_seconds_total", "CPU time of each virtual CPU.", Of::Cpu, "time", NANOSECOND),
    counter("kubevirt_vmi_vcpu_wait_seconds_total", "Time that each virtual CPU waited for I/O.", Of::Cpu, "wait", NANOSECOND),
    counter("kubevirt_vmi_vcpu_delay_seconds_total", "Time that each virtual CPU waited for its turn.", Of::Cpu, "delay", NANOSECOND),
    gauge("kubevirt_vmi_memory_resident_bytes", "Resident memory of the process that runs the guest.", "balloon.rss"),
    gauge("kubevirt_vmi_memory_available_bytes", "Memory that the guest sees.", "balloon.available"),
    gauge("kubevirt_vmi_memory_unused_bytes", "Memory that the guest leaves unused.", "balloon.unused"),
    gauge("kubevirt_vmi_memory_usable_bytes", "Memory that could be taken without swapping.", "balloon.usable"),
    gauge("kubevirt_vmi_memory_cached_bytes", "Memory that caches I/O in the guest.", "balloon.disk_caches"),
    gauge("kubevirt_vmi_memory_swap_in_traffic_bytes", "What the guest read from swap.", "balloon.swap_in"),
    gauge("kubevirt_vmi_memory_swap_out_traffic_bytes", "What the guest wrote to swap.", "balloon.swap_out"),
    gauge("kubevirt_vmi_memory_actual_balloon_bytes", "Memory that the balloon leaves to the guest.", "balloon.current"),
    gauge("kubevirt_vmi_memory_domain_bytes", "Memory that the guest was given.", "balloon.maximum"),
    counter("kubevirt_vmi_memory_pgmajfault_total", "Page faults that needed I/O.", Of::Machine, "balloon.major_fault", 1.0),
    counter("kubevirt_vmi_memory_pgminfault_total", "Page faults that needed none.", Of::Machine, "balloon.minor_fault", 1.0),
    counter("kubevirt_vmi_network_receive_bytes_total", "Bytes that the guest received.", Of::Interface, "rx.bytes", 1.0),
    counter("kubevirt_vmi_network_receive_packets_total", "Packets that the guest received.", Of::Interface, "rx.pkts", 1.0),
    counter("kubevirt_vmi_network_receive_errors_total", "Packets to the guest that had errors.", Of::Interface, "rx.errs", 1.0),
    counter("kubevirt_vmi_network_receive_packets_dropped_total", "Packets to the guest that were dropped.", Of::Interface, "rx.drop", 1.0),
    counter("kubevirt_vmi_network_transmit_bytes_total", "Bytes that the guest sent.", Of::Interface, "tx.bytes", 1.0),
    counter("kubevirt_vmi_network_transmit_packets_total", "Packets that the guest sent.", Of::Interface, "tx.pkts", 1.0),
    counter("kubevirt_vmi_network_transmit_errors_total", "Packets of the guest that had errors.", Of::Interface, "tx.errs", 1.0),
    counter("kubevirt_vmi_network_transmit_packets_dropped_total", "Packets of the guest that were dropped.", Of::Interface, "tx.drop", 1.0),
    counter("kubevirt_vmi_storage_iops_read_total", "Read operations.", Of::Disk, "rd.reqs", 1.0),
    counter("kubevirt_vmi_storage_iops_write_total", "Write operations.", Of::Disk, "wr.reqs", 1.0),
    counter("kubevirt_vmi_storage_read_traffic_bytes_total", "Bytes read.", Of::Disk, "rd.bytes", 1.0),
    counter("kubevirt_vmi_storage_write_traffic_bytes_total", "Bytes written.", Of::Disk, "wr.bytes", 1.0),
    counter("kubevirt_vmi_storage_read_times_seconds_total", "Time spent on reading.", Of::Disk, "rd.times", NANOSECOND),
    counter("kubevirt_vmi_storage_write_times_seconds_total", "Time spent on writing.", Of::Disk, "wr.times", NANOSECOND),
    counter("kubevirt_vmi_storage_flush_requests_total", "Requests to flush caches.", Of::Disk, "fl.reqs", 1.0),
    counter("kubevirt_vmi_storage_flush_times_seconds_total", "Time spent on flushing caches.", Of::Disk, "fl.times", NANOSECOND),
];

/// Families of everything that runs here.
pub(crate) async fn collect(context: &Context, instances: Vec<Folded<VirtualMachineInstance>>) -> Vec<Family> {
    let mut families = empty();
    let mut answers = stream::iter(instances).map(|folded| counters(context, folded)).buffered(AT_ONCE);
    while let Some(answer) = answers.next().await {
        let Some((vmi, found)) = answer else { continue };
        for counters in found {
            add(&mut families, &context.config.node_name, &vmi, &counters);
        }
    }
    families.push(Family::gauge("kubevirt_virt_handler_ready_status", "Whether the node agent serves.").with([], 1.0));
    families
}

/// What the launchers of one instance count. A machine that just ended has no counters, which is no fault.
async fn counters(
    context: &Context,
    folded: Folded<VirtualMachineInstance>,
) -> Option<(Box<VirtualMachineInstance>, Vec<Map<String, Value>>)> {
    let vmi = Box::new(folded.unfold().ok()?);
    let mut found = vec![];
    for pod in pods::here(context, &vmi) {
        let asked = async {
            let launcher = context.ground.connect(&pod, pods::user(&vmi)).await.ok()?;
            match launcher.request(Request::Guest { call: GuestCall::Stats {} }).await {
                Ok(Answer::Stats { counters }) => Some(counters).filter(|counters| counters.len() <= MOST_COUNTERS),
                _ => None,
            }
        };
        found.extend(tokio::time::timeout(ANSWER, asked).await.ok().flatten());
    }
    Some((vmi, found))
}

fn empty() -> Vec<Family> {
    let family = |row: &Row| match row.counter {
        true => Family::counter(row.name, row.help),
        false => Family::gauge(row.name, row.help),
    };
    TABLE.iter().map(family).collect()
}

/// Adds the counters of one machine. `families` are those of [`TABLE`], in its order.
fn add(families: &mut [Family], node: &str, vmi: &VirtualMachineInstance, counters: &Map<String, Value>) {
    let place = || {
        let namespace = vmi.namespace().unwrap_or_default();
        [("node", node.to_owned()), ("namespace", namespace), ("name", vmi.name_any())]
    };
    for (row, family) in TABLE.iter().zip(families) {
        let value = |name: &str| counters.get(name).and_then(Value::as_f64).map(|value| value * row.scale);
        if row.of == Of::Machine {
            if let Some(value) = value(row.source) {
                family.add(place(), value);
            }
            continue;
        }
        let group = match row.of {
            Of::Cpu => "vcpu",
            Of::Interface => "net",
            Of::Disk | Of::Machine => "block",
        };
        let current = if row.of == Of::Cpu { "vcpu.maximum".to_owned() } else { format!("{group}.count") };
        let count = counters.get(&current).and_then(Value::as_u64).unwrap_or(0).min(MOST_DEVICES);
        for index in 0..count {
            if let Some(value) = value(&format!("{group}.{index}.{}", row.source)) {
                let text = |field: &str| {
                    let found = counters.get(&format!("{group}.{index}.{field}")).and_then(Value::as_str);
                    found.unwrap_or_default().to_owned()
                };
                let labels = match row.of {
                    Of::Cpu => cpu_labels(row.source, index, counters.get(&format!("vcpu.{index}.state"))),
                    Of::Interface => vec![("interface", interface(vmi, index, text("name")))],
                    Of::Disk | Of::Machine => vec![("drive", drive(vmi, text("name")))],
                };
                family.add(place().into_iter().chain(labels), value);
            }
        }
    }
}

fn cpu_labels(source: &str, index: u64, state: Option<&Value>) -> Vec<(&'static str, String)> {
    let mut labels = vec![("id", index.to_string())];
    if source == "time" {
        let state = match state.and_then(Value::as_i64) {
            Some(0) => "offline",
            Some(1) => "running",
            Some(2) => "blocked",
            _ => "",
        };
        labels.push(("state", state.to_owned()));
    }
    labels
}

/// The instance's name of an interface; they stand in the same order.
fn interface(vmi: &VirtualMachineInstance, index: u64, device: String) -> String {
    let index = usize::try_from(index).unwrap_or(usize::MAX);
    vmi.spec.domain.devices.interfaces.get(index).map_or(device, |interface| interface.name.clone())
}

/// The instance's name of a disk, which its status gives for the device.
fn drive(vmi: &VirtualMachineInstance, device: String) -> String {
    let volume = vmi.status.volume_status.iter().find(|volume| volume.target == device);
    volume.map_or(device, |volume| volume.name.clone())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn names_and_types_are_upstreams() {
        assert_eq!(ferrovirt_metrics::strangers(&empty()), Vec::<String>::new());
    }

    #[test]
    fn a_launcher_that_claims_endless_devices_does_not_keep_the_agent_counting() {
        let counters = json!({ "vcpu.maximum": u64::MAX, "net.count": u64::MAX, "block.count": u64::MAX });
        let mut families = empty();
        add(&mut families, "m", &VirtualMachineInstance::default(), counters.as_object().unwrap());
        assert!(ferrovirt_metrics::to_text(&families).lines().all(|line| line.starts_with('#')));
    }

    #[test]
    fn counters_of_libvirt_become_metrics_in_base_units() {
        let vmi: VirtualMachineInstance = serde_json::from_value(json!({
            "metadata": { "name": "a", "namespace": "n" },
            "spec": { "domain": { "devices": { "interfaces": [{ "name": "default" }] } } },
            "status": { "volumeStatus": [{ "name": "root", "target": "vda" }] },
        }))
        .unwrap();
        let counters = json!({
            "cpu.time": 2_500_000_000_u64, "balloon.rss": 10, "vcpu.maximum": 2, "vcpu.0.time": 1_000_000_000_u64,
            "vcpu.0.state": 1, "net.count": 1, "net.0.name": "tap0", "net.0.rx.bytes": 42,
            "block.count": 1, "block.0.name": "vda", "block.0.wr.reqs": 7,
        });
        let mut families = empty();
        add(&mut families, "m", &vmi, counters.as_object().unwrap());
        let text = ferrovirt_metrics::to_text(&families);
        let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
        assert_eq!(
            lines,
            [
                r#"kubevirt_vmi_cpu_usage_seconds_total{node="m",namespace="n",name="a"} 2.5"#,
                r#"kubevirt_vmi_vcpu_seconds_total{node="m",namespace="n",name="a",id="0",state="running"} 1"#,
                r#"kubevirt_vmi_memory_resident_bytes{node="m",namespace="n",name="a"} 10240"#,
                r#"kubevirt_vmi_network_receive_bytes_total{node="m",namespace="n",name="a",interface="default"} 42"#,
                r#"kubevirt_vmi_storage_iops_write_total{node="m",namespace="n",name="a",drive="root"} 7"#,
            ]
        );
    }
}
