//! What the agent says of its node: labels, devices and a heartbeat.

use std::{sync::Arc, time::Duration};

use ferrovirt_api::names;
use k8s_openapi::{api::core::v1::Node, jiff::Timestamp};
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use serde_json::json;

use crate::Context;

const HEARTBEAT: Duration = Duration::from_secs(60);
/// Until the node object exists and the first write went through.
const RETRY: Duration = Duration::from_millis(200);

/// Keeps the node's labels and heartbeat fresh. Never returns.
pub(crate) async fn keep(context: Arc<Context>) {
    let nodes = Api::<Node>::all(context.client.clone());
    let name = context.config.node_name.clone();
    loop {
        let patch = json!({ "metadata": {
            "labels": {
                names::NODE_SCHEDULABLE: "true",
                format!("{}{}", names::VM_ARCH_LABEL, context.host.arch): "true",
            },
            "annotations": { names::VIRT_HANDLER_HEARTBEAT: Timestamp::now().to_string() },
        }});
        let devices = if context.host.kvm_usable() { "1k" } else { "0" };
        let status = json!({ "status": {
            "capacity": { names::KVM_DEVICE: devices },
            "allocatable": { names::KVM_DEVICE: devices },
        }});
        let written = async {
            nodes.patch(&name, &PatchParams::default(), &Patch::Merge(patch)).await?;
            nodes.patch_status(&name, &PatchParams::default(), &Patch::Merge(status)).await
        };
        match written.await {
            Ok(_) => tokio::time::sleep(HEARTBEAT).await,
            Err(error) => {
                tracing::debug!(%error, "cannot update the node object yet");
                tokio::time::sleep(RETRY).await;
            }
        }
    }
}
