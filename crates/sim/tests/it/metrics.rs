//! What the controllers tell Prometheus, compared with upstream's names, types and labels.

use anyhow::{Context, Result, ensure};
use ferrovirt_metrics::{Family, strangers};
use ferrovirt_sim::cluster::eventually;
use serde_json::json;

use crate::support::*;

/// Name of a family, and the labels upstream gives it.
const LABELS: &[(&str, &[&str])] = &[
    ("kubevirt_info", &["kubevirt_version"]),
    (
        "kubevirt_vm_info",
        &[
            "name",
            "namespace",
            "os",
            "workload",
            "flavor",
            "machine_type",
            "instance_type",
            "preference",
            "status",
            "status_group",
        ],
    ),
    (
        "kubevirt_vmi_info",
        &[
            "node",
            "namespace",
            "name",
            "phase",
            "os",
            "workload",
            "flavor",
            "instance_type",
            "preference",
            "guest_os_kernel_release",
            "guest_os_machine",
            "guest_os_arch",
            "guest_os_name",
            "guest_os_version_id",
            "evictable",
            "outdated",
            "vmi_pod",
        ],
    ),
    ("kubevirt_vm_create_date_timestamp_seconds", &["name", "namespace"]),
    ("kubevirt_vm_running_status_last_transition_timestamp_seconds", &["name", "namespace"]),
    ("kubevirt_vm_resource_requests", &["name", "namespace", "resource", "unit", "source"]),
    ("kubevirt_vmi_non_evictable", &["node", "namespace", "name"]),
    ("kubevirt_vmi_launcher_memory_overhead_bytes", &["namespace", "name"]),
    ("kubevirt_vmi_vnic_info", &["name", "namespace", "vnic_name", "binding_type", "network", "binding_name", "model"]),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn metrics_are_upstreams() {
    let cluster = cluster().await;
    create(&cluster, vm("measured", "Always")).await.unwrap();
    wait_vm(&cluster, "measured", "is ready", |vm| vm.status.ready).await.unwrap();
    let families = eventually("the scrape shows it running", SOON, || async { running(&cluster) }).await.unwrap();
    assert_eq!(strangers(&families), Vec::<String>::new());
    for (name, labels) in LABELS {
        let sample = find(&families, name).unwrap_or_else(|| panic!("{name} is not told"));
        let found: Vec<&str> = sample.samples[0].labels.iter().map(|(label, _)| *label).collect();
        let mut wanted = labels.to_vec();
        wanted.sort_unstable();
        let mut sorted = found.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, wanted, "{name}");
    }
    let text = ferrovirt_metrics::to_text(&families);
    for line in [
        "kubevirt_virt_controller_leading_status 1\n",
        "kubevirt_configuration_emulation_enabled 1\n",
        "kubevirt_number_of_vms{namespace=\"default\"} 1\n",
        "kubevirt_vmi_phase_transition_time_from_creation_seconds_count{phase=\"Running\"} 1\n",
    ] {
        assert!(text.contains(line), "{line} is not in\n{text}");
    }
    cluster.stop().await;
}

fn running(cluster: &ferrovirt_sim::Cluster) -> Result<Vec<Family>> {
    let families = cluster.metrics.collect();
    let info = find(&families, "kubevirt_vmi_info").context("no info")?;
    let labels = json!(info.samples.iter().flat_map(|s| s.labels.clone()).collect::<Vec<_>>()).to_string();
    ensure!(labels.contains("running"), "{labels}");
    let machine = find(&families, "kubevirt_vm_running_status_last_transition_timestamp_seconds");
    ensure!(machine.is_some(), "the VM does not run yet");
    ensure!(find(&families, "kubevirt_vmi_phase_transition_time_from_creation_seconds").is_some(), "no times yet");
    Ok(families)
}

fn find<'a>(families: &'a [Family], name: &str) -> Option<&'a Family> {
    families.iter().find(|family| family.name == name && !family.samples.is_empty())
}
