//! The metrics as text, with upstream's names and units.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::fs;
use std::path::Path;

use quick_xml::escape::escape;
use serde_json::Value;

/// The node's counters, as far as they could be read.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Host {
    packages: usize,
    cpu_seconds: f64,
    meminfo: String,
    vmstat: String,
    time: u64,
}

impl Host {
    pub(super) fn read(root: &Path) -> Self {
        let text = |path: &str| fs::read_to_string(root.join(path)).unwrap_or_default();
        let cpus = fs::read_dir(root.join("sys/devices/system/cpu")).into_iter().flatten().flatten();
        let packages: BTreeSet<String> =
            cpus.filter_map(|cpu| fs::read_to_string(cpu.path().join("topology/physical_package_id")).ok()).collect();
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        Self {
            packages: packages.len(),
            cpu_seconds: cpu_seconds(&text("proc/stat")),
            meminfo: text("proc/meminfo"),
            vmstat: text("proc/vmstat"),
            time: now.map_or(0, |now| now.as_secs()),
        }
    }

    /// Kilobytes, or pages in `vmstat`.
    fn value(text: &str, name: &str) -> u64 {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix([':', ' ']));
        line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0)
    }
}

/// User, nice and system time of all CPUs. The kernel counts in hundredths of a second for everybody to see.
fn cpu_seconds(stat: &str) -> f64 {
    const HERTZ: f64 = 100.0;
    let line = stat.lines().find_map(|line| line.strip_prefix("cpu ")).unwrap_or_default();
    let ticks: u64 = line.split_whitespace().take(3).filter_map(|word| word.parse::<u64>().ok()).sum();
    ticks as f64 / HERTZ
}

/// `counters` are libvirt's, by their names; without them the machine's own metrics are left out.
pub(super) fn text(host_name: &str, product: &str, counters: Option<&Value>, host: &Host) -> String {
    const PAGE_KIB: u64 = 4;
    let mut out = String::from("<metrics>\n");
    let mut metric = |context: &str, kind: &str, unit: &str, name: &str, value: String| {
        let unit = if unit.is_empty() { String::new() } else { format!(" unit=\"{unit}\"") };
        let value = escape(value.as_str());
        let _ = writeln!(
            out,
            "  <metric type=\"{kind}\" context=\"{context}\"{unit}>\n    <name>{name}</name>\n    <value>{value}</value>\n  </metric>"
        );
    };
    for (name, value) in [
        ("HostName", host_name),
        ("HostSystemInfo", "linux"),
        ("VirtualizationVendor", "kubevirt.io"),
        ("VirtProductInfo", product),
    ] {
        metric("host", "string", "", name, value.to_owned());
    }
    if let Some(counters) = counters {
        let number = |name: &str| counters.get(name).and_then(Value::as_u64);
        let vcpus =
            (0..number("vcpu.maximum").unwrap_or(0)).filter(|cpu| number(&format!("vcpu.{cpu}.state")).is_some());
        let vcpus: Vec<u64> = vcpus.collect();
        let nanoseconds: u64 = vcpus.iter().filter_map(|cpu| number(&format!("vcpu.{cpu}.time"))).sum();
        let memory = number("balloon.current").unwrap_or(0).to_string();
        metric("vm", "real64", "s", "TotalCPUTime", format!("{:.6}", nanoseconds as f64 / 1e9));
        metric("vm", "int64", "", "ResourceProcessorLimit", vcpus.len().to_string());
        metric("vm", "uint64", "KiB", "PhysicalMemoryAllocatedToVirtualSystem", memory.clone());
        metric("vm", "uint64", "KiB", "ResourceMemoryLimit", memory);
    }
    let memory = |name: &str| Host::value(&host.meminfo, name);
    let (free, swap_free) = (memory("MemFree"), memory("SwapFree"));
    let idle = free + memory("Buffers") + memory("Cached");
    let used = memory("MemTotal").saturating_sub(idle);
    let used_virtual = (memory("MemTotal") + memory("SwapTotal")).saturating_sub(idle + memory("SwapCached"));
    metric("host", "int64", "", "NumberOfPhysicalCPUs", host.packages.to_string());
    metric("host", "real64", "s", "TotalCPUTime", format!("{:.6}", host.cpu_seconds));
    metric("host", "uint64", "KiB", "FreePhysicalMemory", free.to_string());
    metric("host", "uint64", "KiB", "FreeVirtualMemory", (free + swap_free).to_string());
    metric("host", "uint64", "KiB", "MemoryAllocatedToVirtualServers", used.to_string());
    metric("host", "uint64", "KiB", "UsedVirtualMemory", used_virtual.to_string());
    for (name, counter) in [("PagedInMemory", "pswpin"), ("PagedOutMemory", "pswpout")] {
        metric("host", "uint64", "KiB", name, (Host::value(&host.vmstat, counter) * PAGE_KIB).to_string());
    }
    metric("host", "int64", "s", "Time", host.time.to_string());
    out.push_str("</metrics>");
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn value<'a>(text: &'a str, context: &str, name: &str) -> Option<&'a str> {
        let context = format!("context=\"{context}\"");
        let metric =
            text.split("<metric ").find(|part| part.contains(&context) && part.contains(&format!("<name>{name}<")))?;
        metric.split("<value>").nth(1)?.split("</value>").next()
    }

    #[test]
    fn counters_become_metrics() {
        let host = Host {
            packages: 2,
            cpu_seconds: cpu_seconds("cpu  100 50 250 9999 1\ncpu0 1 1 1\n"),
            meminfo: "MemTotal: 1000 kB\nMemFree: 100 kB\nBuffers: 20 kB\nCached: 30 kB\nSwapCached: 5 kB\nSwapTotal: 50 kB\n\
                      SwapFree: 7 kB\n"
                .into(),
            vmstat: "pswpin 3\npswpout 4\n".into(),
            time: 12,
        };
        let counters = json!({
            "vcpu.current": 2, "vcpu.maximum": 3, "vcpu.0.state": 1, "vcpu.0.time": 1_500_000_000_u64,
            "vcpu.2.state": 1, "vcpu.2.time": 500_000_000, "balloon.current": 131_072,
        });
        let told = text("a<b", "qemu-kvm", Some(&counters), &host);
        for (context, name, expected) in [
            ("host", "HostName", "a&lt;b"),
            ("vm", "TotalCPUTime", "2.000000"),
            ("vm", "ResourceProcessorLimit", "2"),
            ("vm", "ResourceMemoryLimit", "131072"),
            ("host", "NumberOfPhysicalCPUs", "2"),
            ("host", "TotalCPUTime", "4.000000"),
            ("host", "FreeVirtualMemory", "107"),
            ("host", "MemoryAllocatedToVirtualServers", "850"),
            ("host", "UsedVirtualMemory", "895"),
            ("host", "PagedOutMemory", "16"),
            ("host", "Time", "12"),
        ] {
            assert_eq!(value(&told, context, name), Some(expected), "{name} in {told}");
        }
        assert_eq!(value(&text("h", "p", None, &host), "vm", "TotalCPUTime"), None);
    }
}
