//! Manifests, and waiting for what they lead to.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use ferrovirt_api::v1::{VirtualMachine, VirtualMachineInstance};
use ferrovirt_sim::{Cluster, Options, cluster::eventually};
use k8s_openapi::api::core::v1::Event;
use kube::{
    Api,
    api::{ListParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};

/// Generous: the machine may be busy.
pub const SOON: Duration = Duration::from_secs(90);

pub async fn cluster() -> Cluster {
    Cluster::start(Options::default()).await.expect("the cluster starts")
}

pub fn vm(name: &str, run_strategy: &str) -> Value {
    json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine",
        "metadata": { "name": name, "namespace": "default" },
        "spec": { "runStrategy": run_strategy, "template": {
            "metadata": { "labels": { "app": name }, "annotations": {} },
            "spec": template(),
        } },
    })
}

pub fn template() -> Value {
    json!({
        "domain": { "memory": { "guest": "64Mi" }, "devices": { "disks": [{ "name": "root", "disk": {} }] } },
        "volumes": [{ "name": "root", "containerDisk": { "image": "sim" } }],
    })
}

/// A VM whose instance and pod carry an annotation.
pub fn annotated(name: &str, annotation: &str, value: &str) -> Value {
    let mut vm = vm(name, "Always");
    vm["spec"]["template"]["metadata"]["annotations"][annotation] = json!(value);
    vm
}

pub async fn create(cluster: &Cluster, vm: Value) -> Result<VirtualMachine> {
    Ok(cluster.vms().create(&PostParams::default(), &serde_json::from_value(vm)?).await?)
}

pub async fn patch(cluster: &Cluster, name: &str, patch: Value) -> Result<VirtualMachine> {
    Ok(cluster.vms().patch(name, &PatchParams::default(), &Patch::Merge(patch)).await?)
}

pub async fn wait_status(cluster: &Cluster, name: &str, status: &str) -> Result<VirtualMachine> {
    wait_vm(cluster, name, &format!("{name} is {status}"), |vm| vm.status.printable_status == status).await
}

pub async fn wait_vm(
    cluster: &Cluster,
    name: &str,
    what: &str,
    check: impl Fn(&VirtualMachine) -> bool,
) -> Result<VirtualMachine> {
    eventually(what, SOON, || async {
        let vm = cluster.vms().get(name).await?;
        ensure!(check(&vm), "{}", serde_json::to_string(&vm.status)?);
        Ok(vm)
    })
    .await
}

pub async fn wait_vmi(
    cluster: &Cluster,
    name: &str,
    what: &str,
    check: impl Fn(&VirtualMachineInstance) -> bool,
) -> Result<VirtualMachineInstance> {
    eventually(what, SOON, || async {
        let vmi = cluster.vmis().get(name).await?;
        ensure!(check(&vmi), "{}", serde_json::to_string(&vmi.status)?);
        Ok(vmi)
    })
    .await
}

pub async fn wait_gone(cluster: &Cluster, name: &str) -> Result<()> {
    eventually(&format!("{name} is gone"), SOON, || async {
        ensure!(cluster.vms().get_opt(name).await?.is_none(), "the VM is there");
        ensure!(cluster.vmis().get_opt(name).await?.is_none(), "the instance is there");
        Ok(())
    })
    .await
}

/// Waits until an event of that reason about the object was recorded, and returns its message.
pub async fn wait_event(cluster: &Cluster, name: &str, reason: &str) -> Result<String> {
    eventually(&format!("an event {reason} about {name}"), SOON, || async {
        let events = Api::<Event>::namespaced(cluster.client.clone(), "default").list(&ListParams::default()).await?;
        let about = |event: &&Event| {
            event.involved_object.name.as_deref() == Some(name) && event.reason.as_deref() == Some(reason)
        };
        let found = events.items.iter().find(about).with_context(|| {
            let seen = events.items.iter().filter(|e| e.involved_object.name.as_deref() == Some(name));
            format!("there are {:?}", seen.map(|e| e.reason.clone().unwrap_or_default()).collect::<Vec<_>>())
        })?;
        Ok(found.message.clone().unwrap_or_default())
    })
    .await
}

pub fn condition<'a>(vm: &'a VirtualMachine, type_: &str) -> Option<&'a ferrovirt_api::v1::VirtualMachineCondition> {
    vm.status.conditions.iter().find(|c| c.type_ == type_)
}
