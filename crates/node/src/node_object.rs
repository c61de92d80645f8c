//! What the agent says of its node: labels and a heartbeat. Its devices are the kubelet's to count.

use std::{sync::Arc, time::Duration};

use ferrovirt_api::names;
use k8s_openapi::{api::core::v1::Node, jiff::Timestamp};
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use serde_json::json;

use crate::{Context, cpus, hypervisors};

const HEARTBEAT: Duration = Duration::from_secs(60);
/// Until the node object exists and the first write went through.
const RETRY: Duration = Duration::from_millis(200);

/// Keeps the node's labels and heartbeat fresh. Never returns.
pub(crate) async fn keep(context: Arc<Context>) {
    let nodes = Api::<Node>::all(context.client.clone());
    let name = context.config.node_name.clone();
    let mut hypervisors = context.config.hypervisors.clone();
    loop {
        let (hypervisor_labels, hypervisor_annotations) = {
            let found = hypervisors.borrow_and_update();
            hypervisors::labels_and_annotations(&found)
        };
        let gives_cpus = cpus::are_given(&context.config.kubelet_root);
        let mut patch = json!({ "metadata": {
            "labels": {
                names::CPU_MANAGER: gives_cpus.to_string(),
                names::DEPRECATED_CPU_MANAGER: gives_cpus.to_string(),
                names::NODE_SCHEDULABLE: "true",
                format!("{}{}", names::VM_ARCH_LABEL, context.host.arch): "true",
            },
            "annotations": { names::VIRT_HANDLER_HEARTBEAT: Timestamp::now().to_string() },
        }});
        for (key, value) in hypervisor_labels {
            patch["metadata"]["labels"][key] = value;
        }
        for (key, value) in hypervisor_annotations {
            patch["metadata"]["annotations"][key] = value;
        }
        match nodes.patch(&name, &PatchParams::default(), &Patch::Merge(patch)).await {
            Ok(_) => tokio::select! {
                () = tokio::time::sleep(HEARTBEAT) => {}
                Ok(()) = hypervisors.changed() => {}
                () = cpus::changed(&context.config.kubelet_root, gives_cpus) => {}
            },
            Err(error) => {
                tracing::debug!(%error, "cannot update the node object yet");
                tokio::time::sleep(RETRY).await;
            }
        }
    }
}
