//! `ferrovirt status`: what runs, where, how to connect, and where the host is weaker than it could be.

use anyhow::{Result, bail};
use ferrovirt_api::{names, v1::VirtualMachine};
use k8s_openapi::api::core::v1::Node;
use kube::{Api, api::ListParams};
use serde_json::Value;

use crate::{
    HostArgs,
    client::ClientArgs,
    next, root,
    up::{control, paths::Paths},
};

/// Set by node-lite where pods cannot have users of their own: why.
const SHARED_USER: &str = "ferrovirt.io/shared-user";

pub async fn run(arguments: HostArgs) -> Result<()> {
    let paths = Paths::new(&arguments.data_dir)?;
    let Some(status) = control::status(&paths.control_socket()).await else {
        root::needed_for(&paths.control_socket())?;
        root::needed_for(&paths.kubeconfig())?;
        let up = next::ferrovirt("up --detach");
        bail!("no host runs in {}: start one with `{up}`", paths.data_dir.display());
    };
    let client = ClientArgs { kubeconfig: Some(paths.kubeconfig()), ..Default::default() }.connect().await?;
    let vms = Api::<VirtualMachine>::all(client.clone()).list(&ListParams::default()).await?;
    let nodes = Api::<Node>::all(client).list(&ListParams::default()).await?.items;
    let running = vms.items.iter().filter(|vm| vm.status.printable_status == "Running").count();
    println!("ferrovirt {} is {} (pid {})", status.version, if status.ready { "up" } else { "starting" }, status.pid);
    println!("  API:             {}", status.server);
    println!("  data directory:  {}", paths.data_dir.display());
    // One that runs as a service logs elsewhere.
    if paths.log().exists() {
        println!("  log:             {}", paths.log().display());
    }
    println!("  virtualization:  {}", status.virtualization);
    println!("  VMs:             {running} running of {}", vms.items.len());
    for node in &nodes {
        for weakness in weaknesses(&serde_json::to_value(node)?) {
            println!("  weakness:        {weakness}");
        }
    }
    println!("connect with:");
    println!("  export KUBECONFIG={}", next::quoted(&paths.kubeconfig().display().to_string()));
    println!("  kubectl get vms -A");
    Ok(())
}

/// What a node says against itself.
fn weaknesses(node: &Value) -> Vec<String> {
    let metadata = &node["metadata"];
    let mut found = vec![];
    if let Some(why) = metadata["annotations"][SHARED_USER].as_str() {
        found.push(format!(
            "pods share one user of this machine, so a guest that breaks out reaches the others' files: {why}"
        ));
    }
    for condition in node["status"]["conditions"].as_array().into_iter().flatten() {
        let text = |field: &str| condition[field].as_str().unwrap_or_default();
        // What is True is wrong, but for one.
        let well = if text("type") == "Ready" { "True" } else { "False" };
        if text("status") != well {
            found.push(format!("{} is {}: {}", text("type"), text("status"), text("message")));
        }
    }
    if node["spec"]["unschedulable"] == true {
        found.push("the node takes no new VMs: it is cordoned (kubectl uncordon NODE)".into());
    } else if metadata["labels"][names::NODE_SCHEDULABLE] != "true" {
        found.push("the node takes no new VMs: its agent has not reported yet".into());
    }
    if let Some(annotations) = metadata["annotations"].as_object() {
        let hypervisors = annotations.iter().filter_map(|(name, value)| {
            let hypervisor = name.strip_prefix(names::HYPERVISOR_LABEL)?;
            let why = value.as_str().filter(|why| !why.is_empty())?;
            Some(format!("{hypervisor} does not work here: {why}"))
        });
        found.extend(hypervisors);
    }
    found
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn node(annotations: Value, conditions: Value) -> Value {
        json!({
            "metadata": { "labels": { names::NODE_SCHEDULABLE: "true" }, "annotations": annotations },
            "status": { "conditions": conditions },
        })
    }

    #[test]
    fn a_host_tells_where_it_is_weak() {
        let well = json!([
            { "type": "Ready", "status": "True", "message": "fine" },
            { "type": "DiskPressure", "status": "False", "message": "fine" },
        ]);
        assert_eq!(weaknesses(&node(json!({}), well.clone())), [""; 0]);
        let shared = weaknesses(&node(json!({ SHARED_USER: "the kernel makes no user namespaces" }), well.clone()));
        assert!(shared[0].contains("share one user") && shared[0].contains("no user namespaces"), "{shared:?}");
        let full =
            weaknesses(&node(json!({}), json!([{ "type": "DiskPressure", "status": "True", "message": "full" }])));
        assert_eq!(full, ["DiskPressure is True: full"]);
        let silent = weaknesses(&node(json!({}), json!([{ "type": "Ready", "status": "Unknown", "message": "gone" }])));
        assert_eq!(silent, ["Ready is Unknown: gone"]);
        let broken = weaknesses(&node(json!({ "hypervisor.node.kubevirt.io/lxc": "no cgroups" }), well.clone()));
        assert_eq!(broken, ["lxc does not work here: no cgroups"]);
        let mut cordoned = node(json!({}), well);
        cordoned["spec"]["unschedulable"] = true.into();
        assert!(weaknesses(&cordoned)[0].contains("cordoned"));
    }
}
