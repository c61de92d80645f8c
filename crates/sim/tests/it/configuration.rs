//! The `KubeVirt` object, changed while everything runs: each field counts from the next instance on.

use anyhow::{Context, Result, bail, ensure};
use ferrovirt_api::v1::{KubeVirt, VirtualMachineInstance};
use ferrovirt_sim::{Cluster, cluster::eventually};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, PostParams},
};
use serde_json::{Value, json};

use crate::support::*;

/// Where the effect of a field is seen.
enum Seen {
    /// At this pointer of the instance, with this value.
    Instance(&'static str, Value),
    /// The same of its pod.
    Pod(&'static str, Value),
    /// An instance with this specification is refused before and accepted after.
    Admitted(Value),
}
use Seen::{Admitted, Instance};

fn table() -> Vec<(&'static str, Value, Seen)> {
    let machine = "/spec/domain/machine/type";
    let on_host = json!({
        "domain": { "memory": { "guest": "64Mi" }, "devices": { "disks": [{ "name": "d", "disk": {} }] } },
        "volumes": [{ "name": "d", "hostDisk": { "path": "/var/d.img", "type": "Disk" } }],
    });
    let mut contained = template();
    contained["hypervisor"] = json!("lxc");
    let cpu = "/spec/containers/0/resources/requests/cpu";
    let kvm = "/spec/containers/0/resources/limits/devices.kubevirt.io~1kvm";
    vec![
        ("cpuModel", json!({ "cpuModel": "Nehalem" }), Instance("/spec/domain/cpu/model", json!("Nehalem"))),
        ("machineType", json!({ "machineType": "pc-q35-7.0" }), Instance(machine, json!("pc-q35-7.0"))),
        (
            "architectureConfiguration",
            json!({ "architectureConfiguration": { "amd64": { "machineType": "pc-q35-7.1" } } }),
            Instance(machine, json!("pc-q35-7.1")),
        ),
        (
            "evictionStrategy",
            json!({ "evictionStrategy": "External" }),
            Instance("/spec/evictionStrategy", json!("External")),
        ),
        (
            "network",
            json!({ "network": { "defaultNetworkInterface": "bridge" } }),
            Instance("/spec/domain/devices/interfaces/0/bridge", json!({})),
        ),
        (
            "imagePullPolicy",
            json!({ "imagePullPolicy": "Always" }),
            Seen::Pod("/spec/containers/0/imagePullPolicy", json!("Always")),
        ),
        (
            "cpuAllocationRatio",
            json!({ "developerConfiguration": { "cpuAllocationRatio": 4 } }),
            Seen::Pod(cpu, json!("250m")),
        ),
        ("useEmulation", json!({ "developerConfiguration": { "useEmulation": false } }), Seen::Pod(kvm, json!("1"))),
        ("featureGates", json!({ "developerConfiguration": { "featureGates": ["HostDisk"] } }), Admitted(on_host)),
        ("hypervisors", json!({ "hypervisors": [{ "name": "qemu-kvm" }, { "name": "lxc" }] }), Admitted(contained)),
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_field_counts_from_the_next_instance_on() {
    let cluster = cluster().await;
    let before = create_instance(&cluster, &template()).await.unwrap();
    let mut failed = vec![];
    for (field, configuration, seen) in table() {
        if let Err(error) = check(&cluster, &configuration, &seen).await {
            failed.push(format!("{field}: {error:#}"));
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    let after = cluster.vmis().get(&before.name_any()).await.unwrap();
    assert_eq!(after.spec, before.spec, "a running instance was changed");
    cluster.stop().await;
}

async fn check(cluster: &Cluster, configuration: &Value, seen: &Seen) -> Result<()> {
    // Each row by itself: first all is as without it, so that the change is what makes the difference.
    eventually("the defaults hold", SOON, || async {
        ensure!(!holds(cluster, seen).await?, "it holds without the field");
        Ok(())
    })
    .await?;
    configure(cluster, configuration).await?;
    let done = eventually("the field counts", SOON, || async {
        ensure!(holds(cluster, seen).await?, "it does not");
        Ok(())
    })
    .await;
    configure(cluster, &json!({})).await?;
    done
}

/// Replaces the configuration.
async fn configure(cluster: &Cluster, configuration: &Value) -> Result<()> {
    let kubevirts = Api::<KubeVirt>::namespaced(cluster.client.clone(), "kubevirt");
    let mut wanted = json!({ "developerConfiguration": { "useEmulation": true } });
    for (key, value) in configuration.as_object().context("an object")? {
        match (wanted.get_mut(key), value.as_object()) {
            (Some(Value::Object(known)), Some(more)) => known.extend(more.clone()),
            _ => wanted[key] = value.clone(),
        }
    }
    // Its status is written meanwhile.
    eventually("the configuration is written", SOON, || async {
        let mut kubevirt = kubevirts.get("kubevirt").await?;
        kubevirt.spec.configuration = serde_json::from_value(wanted.clone())?;
        kubevirts.replace("kubevirt", &PostParams::default(), &kubevirt).await?;
        Ok(())
    })
    .await
}

/// Makes an instance and looks whether it shows the effect.
async fn holds(cluster: &Cluster, seen: &Seen) -> Result<bool> {
    match seen {
        Admitted(spec) => match create_instance(cluster, spec).await {
            Ok(vmi) => remove(cluster, &vmi).await.map(|()| true),
            Err(kube::Error::Api(status)) if status.code == 422 => Ok(false),
            Err(error) => Err(error.into()),
        },
        Instance(pointer, expected) => {
            let vmi = create_instance(cluster, &template()).await?;
            remove(cluster, &vmi).await?;
            Ok(serde_json::to_value(&vmi)?.pointer(pointer) == Some(expected))
        }
        Seen::Pod(pointer, expected) => {
            let vmi = create_instance(cluster, &template()).await?;
            let pod = eventually("there is a pod", SOON, || pod_of(cluster, &vmi)).await?;
            remove(cluster, &vmi).await?;
            Ok(serde_json::to_value(&pod)?.pointer(pointer) == Some(expected))
        }
    }
}

async fn create_instance(cluster: &Cluster, spec: &Value) -> Result<VirtualMachineInstance, kube::Error> {
    let bare = json!({ "metadata": { "generateName": "bare-" }, "spec": spec });
    let vmi = serde_json::from_value(bare).map_err(kube::Error::SerdeError)?;
    cluster.vmis().create(&PostParams::default(), &vmi).await
}

async fn remove(cluster: &Cluster, vmi: &VirtualMachineInstance) -> Result<()> {
    cluster.vmis().delete(&vmi.name_any(), &DeleteParams::default()).await?;
    Ok(())
}

async fn pod_of(cluster: &Cluster, vmi: &VirtualMachineInstance) -> Result<Pod> {
    let pods = Api::<Pod>::namespaced(cluster.client.clone(), "default").list(&ListParams::default()).await?;
    let owned = |pod: &Pod| pod.owner_references().iter().any(|owner| Some(&owner.uid) == vmi.uid().as_ref());
    match pods.items.into_iter().find(owned) {
        Some(pod) => Ok(pod),
        None => bail!("no pod of {}", vmi.name_any()),
    }
}
