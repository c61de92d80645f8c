//! How full the claims of this host are, under the names that a kubelet has for it.

use ferrovirt_metrics::Family;
use ferrovirt_node_lite::storage::{Usage, usage};
use k8s_openapi::api::core::v1::PersistentVolume;
use kube::{Api, Client, api::ListParams};

pub async fn families(client: &Client) -> Vec<Family> {
    let volumes = match Api::<PersistentVolume>::all(client.clone()).list(&ListParams::default()).await {
        Ok(volumes) => volumes.items,
        Err(error) => {
            tracing::debug!(error = ferrovirt_api::chain(&error), "cannot look at the volumes");
            vec![]
        }
    };
    // Disks may be slow to answer.
    let used = tokio::task::spawn_blocking(move || volumes.iter().filter_map(usage).collect::<Vec<_>>()).await;
    render(&used.unwrap_or_default())
}

fn render(volumes: &[Usage]) -> Vec<Family> {
    let mut capacity = Family::gauge("kubelet_volume_stats_capacity_bytes", "Capacity in bytes of the volume");
    let mut used = Family::gauge("kubelet_volume_stats_used_bytes", "Number of used bytes in the volume");
    let mut available =
        Family::gauge("kubelet_volume_stats_available_bytes", "Number of available bytes in the volume");
    for volume in volumes {
        let labels = || [("namespace", volume.namespace.clone()), ("persistentvolumeclaim", volume.claim.clone())];
        capacity.add(labels(), volume.capacity as f64);
        used.add(labels(), volume.used as f64);
        available.add(labels(), volume.available as f64);
    }
    vec![capacity, used, available]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_claim_has_its_line() {
        let volume = |claim: &str, used| Usage {
            namespace: "a".into(),
            claim: claim.into(),
            capacity: 100,
            used,
            available: 100 - used,
        };
        let text = ferrovirt_metrics::to_text(&render(&[volume("x", 1), volume("y", 2)]));
        for line in [
            "kubelet_volume_stats_used_bytes{namespace=\"a\",persistentvolumeclaim=\"y\"} 2",
            "kubelet_volume_stats_available_bytes{namespace=\"a\",persistentvolumeclaim=\"x\"} 99",
            "kubelet_volume_stats_capacity_bytes{namespace=\"a\",persistentvolumeclaim=\"x\"} 100",
        ] {
            assert!(text.contains(line), "{line} is not in {text}");
        }
    }
}
