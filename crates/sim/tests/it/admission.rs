//! What admission writes into objects, what it says about kinds that nothing is done with yet, and the installation's status.

use anyhow::{Result, ensure};
use ferrovirt_api::v1::{
    KubeVirt, VirtualMachineInstance, VirtualMachineInstanceMigration, VirtualMachineInstancePreset,
};
use ferrovirt_sim::{Cluster, cluster::eventually};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, PostParams},
};
use serde_json::{Value, json};

use crate::support::*;

async fn instance(cluster: &Cluster, metadata: Value, spec: Value) -> Result<VirtualMachineInstance, kube::Error> {
    let vmi = serde_json::from_value(json!({ "metadata": metadata, "spec": spec })).map_err(kube::Error::SerdeError)?;
    cluster.vmis().create(&PostParams::default(), &vmi).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn objects_say_what_will_run() {
    let cluster = cluster().await;
    let vm = create(&cluster, vm("full", "Halted")).await.unwrap();
    let template = vm.spec.template.as_ref().unwrap();
    assert_eq!(template.spec.architecture, "amd64");
    let domain = &template.spec.domain;
    assert_eq!(domain.machine.as_ref().unwrap().type_, "q35");
    let firmware = domain.firmware.as_ref().unwrap();
    assert!(firmware.uuid.len() == 36 && firmware.serial.len() == 36, "{firmware:?}");
    assert_eq!(domain.cpu, None, "settled when an instance is made");
    // A VM keeps what it was given when something else of it changes.
    let changed =
        patch(&cluster, "full", json!({ "spec": { "template": { "spec": { "hostname": "h" } } } })).await.unwrap();
    assert_eq!(changed.spec.template.as_ref().unwrap().spec.domain.firmware, domain.firmware);

    let vmi = instance(&cluster, json!({ "name": "bare" }), super::support::template()).await.unwrap();
    let seen = serde_json::to_value(&vmi).unwrap();
    for (pointer, value) in [
        ("/spec/architecture", json!("amd64")),
        ("/spec/domain/cpu/sockets", json!(1)),
        ("/spec/domain/cpu/model", json!("host-model")),
        ("/spec/domain/devices/disks/0/disk/bus", json!("sata")),
        ("/spec/evictionStrategy", json!("None")),
        ("/spec/volumes/0/containerDisk/imagePullPolicy", json!("Always")),
        ("/status/phase", json!("Pending")),
        ("/status/memory/guestRequested", json!("64Mi")),
        ("/metadata/annotations/kubevirt.io~1pci-topology-version", json!("v3")),
    ] {
        assert_eq!(seen.pointer(pointer), Some(&value), "{pointer}");
    }
    // Judged as it would run: a disk without a bus is on SATA, where none can be read-only.
    let mut locked = super::support::template();
    locked["domain"]["devices"]["disks"][0]["disk"] = json!({ "readonly": true });
    let refusal = instance(&cluster, json!({ "name": "locked" }), locked).await.unwrap_err().to_string();
    assert!(refusal.contains("sata hard-disks do not support read-only"), "{refusal}");
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn quantities_may_be_numbers() {
    let cluster = cluster().await;
    let mut vm = vm("numbers", "Halted");
    vm["spec"]["template"]["spec"]["domain"]["resources"] =
        json!({ "requests": { "cpu": 2.2, "memory": 2222222.2 }, "limits": { "cpu": 3 } });
    let request = http::Request::post("/apis/kubevirt.io/v1/namespaces/default/virtualmachines")
        .header("Content-Type", "application/json")
        .body(vm.to_string().into_bytes())
        .unwrap();
    let stored: Value = cluster.client.request(request).await.unwrap();
    let resources = &stored["spec"]["template"]["spec"]["domain"]["resources"];
    assert_eq!(
        *resources,
        json!({ "requests": { "cpu": "2200m", "memory": "2222222200m" }, "limits": { "cpu": "3" } })
    );
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn presets_fill_new_instances_that_they_select() {
    let cluster = cluster().await;
    let presets = Api::<VirtualMachineInstancePreset>::namespaced(cluster.client.clone(), "default");
    let preset = |name: &str, cores: u32| -> VirtualMachineInstancePreset {
        let spec = json!({ "selector": { "matchLabels": { "size": "s" } }, "domain": { "cpu": { "cores": cores } } });
        serde_json::from_value(json!({ "metadata": { "name": name }, "spec": spec })).unwrap()
    };
    presets.create(&PostParams::default(), &preset("small", 3)).await.unwrap();
    let labels = json!({ "generateName": "p-", "labels": { "size": "s" } });
    let vmi = eventually("the preset counts", SOON, || async {
        let vmi = instance(&cluster, labels.clone(), template()).await?;
        ensure!(vmi.spec.domain.cpu.as_ref().is_some_and(|cpu| cpu.cores == 3), "{:?}", vmi.spec.domain.cpu);
        Ok(vmi)
    })
    .await
    .unwrap();
    assert_eq!(vmi.annotations()["virtualmachinepreset.kubevirt.io/small"], "kubevirt.io/v1");
    let other = instance(&cluster, json!({ "name": "other" }), template()).await.unwrap();
    assert!(other.spec.domain.cpu.as_ref().is_some_and(|cpu| cpu.cores == 1));
    presets.create(&PostParams::default(), &preset("other", 5)).await.unwrap();
    eventually("the conflict counts", SOON, || async {
        let refusal = instance(&cluster, labels.clone(), template()).await.err();
        ensure!(
            refusal.is_some_and(|error| error.to_string().contains("cannot be applied due to conflicts")),
            "accepted"
        );
        Ok(())
    })
    .await
    .unwrap();
    let empty = serde_json::from_value(json!({ "metadata": { "name": "empty" }, "spec": { "selector": {} } })).unwrap();
    let refusal = presets.create(&PostParams::default(), &empty).await.unwrap_err().to_string();
    assert!(refusal.contains("missing domain."), "{refusal}");
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_migration_says_that_it_is_none() {
    let cluster = cluster().await;
    create(&cluster, vm("still", "Always")).await.unwrap();
    wait_status(&cluster, "still", "Running").await.unwrap();
    let migrations = Api::<VirtualMachineInstanceMigration>::namespaced(cluster.client.clone(), "default");
    let of = |name: &str| -> VirtualMachineInstanceMigration {
        serde_json::from_value(json!({ "metadata": { "name": "m" }, "spec": { "vmiName": name } })).unwrap()
    };
    let refusal = migrations.create(&PostParams::default(), &of("none-such")).await.unwrap_err().to_string();
    assert!(refusal.contains("\"default/none-such\" does not exist"), "{refusal}");
    let made = migrations.create(&PostParams::default(), &of("still")).await.unwrap();
    assert_eq!(made.labels()["kubevirt.io/vmi-name"], "still");
    eventually("the migration failed and lets go", SOON, || async {
        let migration = migrations.get("m").await?;
        let told = migration.status.conditions.iter().any(|one| one.message.contains("not implemented yet"));
        ensure!(migration.status.phase == "Failed" && told, "{:?}", migration.status);
        ensure!(migration.finalizers().is_empty(), "{:?}", migration.finalizers());
        Ok(())
    })
    .await
    .unwrap();
    migrations.delete("m", &DeleteParams::default()).await.unwrap();
    assert!(migrations.get_opt("m").await.unwrap().is_none());
    wait_status(&cluster, "still", "Running").await.unwrap();
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_installation_is_available_and_its_object_is_judged() {
    let cluster = cluster().await;
    let kubevirts = Api::<KubeVirt>::namespaced(cluster.client.clone(), "kubevirt");
    eventually("the installation is available", SOON, || async {
        let kubevirt = kubevirts.get("kubevirt").await?;
        let is = |type_: &str| kubevirt.status.conditions.iter().any(|one| one.type_ == type_ && one.status == "True");
        ensure!(kubevirt.status.phase == "Deployed" && is("Available") && is("Created"), "{:?}", kubevirt.status);
        ensure!(!is("Degraded") && !is("Progressing"), "{:?}", kubevirt.status);
        ensure!(kubevirt.status.observed_generation == kubevirt.metadata.generation, "{:?}", kubevirt.status);
        Ok(())
    })
    .await
    .unwrap();
    let merge = kube::api::Patch::Merge(
        json!({ "spec": { "configuration": { "tlsConfiguration": { "ciphers": ["TLS_AES_128_GCM_SHA256"] } } } }),
    );
    let refusal = kubevirts.patch("kubevirt", &Default::default(), &merge).await.unwrap_err().to_string();
    assert!(refusal.contains("You cannot specify ciphers"), "{refusal}");
    let second = serde_json::from_value(json!({ "metadata": { "name": "second" }, "spec": {} })).unwrap();
    let refusal = kubevirts.create(&PostParams::default(), &second).await.unwrap_err().to_string();
    assert!(refusal.contains("Kubevirt is already created"), "{refusal}");
    cluster.stop().await;
}
