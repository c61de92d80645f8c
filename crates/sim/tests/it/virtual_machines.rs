//! Every `printableStatus` in scope, and what leads to and from it.

use anyhow::{Context, Result, ensure};
use ferrovirt_sim::{cluster::eventually, kubelet, launcher::Behaviour};
use k8s_openapi::api::{
    apps::v1::ControllerRevision,
    core::v1::{PersistentVolumeClaim, Pod},
};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, PropagationPolicy},
    core::{ApiResource, DynamicObject, GroupVersionKind},
};
use serde_json::{Value, json};

use crate::support::*;

/// A node that went away takes its VMs with it until an operator says that it is gone. Then they start elsewhere.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_node_is_given_up_by_an_operator_only() {
    let options = ferrovirt_sim::Options { nodes: 2, ..Default::default() };
    let cluster = ferrovirt_sim::Cluster::start(options).await.unwrap();
    create(&cluster, vm("moves", "Always")).await.unwrap();
    wait_status(&cluster, "moves", "Running").await.unwrap();
    let first = cluster.vmis().get("moves").await.unwrap();
    let node = first.status.node_name.clone();
    // The machine lost its power: agent and launcher are gone, and nobody is left to say so.
    cluster.kill_agent(&node);
    cluster.launcher("moves").await.unwrap().kill();
    cluster.vmis().delete("moves", &DeleteParams::default()).await.unwrap();
    wait_vmi(&cluster, "moves", "is held", |vmi| vmi.metadata.deletion_timestamp.is_some()).await.unwrap();
    let taint = json!([{ "key": "node.kubernetes.io/out-of-service", "value": "nodeshutdown", "effect": "NoExecute" }]);
    let nodes = Api::<k8s_openapi::api::core::v1::Node>::all(cluster.client.clone());
    let patch = Patch::Merge(json!({ "spec": { "taints": taint, "unschedulable": true } }));
    nodes.patch(&node, &PatchParams::default(), &patch).await.unwrap();
    wait_vmi(&cluster, "moves", "runs elsewhere", |vmi| {
        vmi.uid() != first.uid() && vmi.status.phase == "Running" && vmi.status.node_name != node
    })
    .await
    .unwrap();
    assert_eq!(cluster.ledger.violations(), Vec::<String>::new());
    cluster.stop().await;
}

/// One cluster for all cases: they use VMs of their own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn statuses() {
    let cluster = cluster().await;
    let results = [
        ("life", life(&cluster).await),
        ("paused", paused(&cluster).await),
        ("unsupported", unsupported(&cluster).await),
        ("refused_instance", refused_instance(&cluster).await),
        ("waiting", waiting(&cluster).await),
        ("crash_loop", crash_loop(&cluster).await),
        ("storage", storage(&cluster).await),
        ("restart_required", restart_required(&cluster).await),
        ("orphans", orphans(&cluster).await),
        ("identity", identity(&cluster).await),
        ("followed", followed(&cluster).await),
        ("checksums", checksums(&cluster).await),
    ];
    let failed: Vec<String> =
        results.into_iter().filter_map(|(name, result)| Some(format!("{name}: {:#}", result.err()?))).collect();
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    assert_eq!(cluster.ledger.violations(), Vec::<String>::new());
    cluster.stop().await;
}

type Cluster = ferrovirt_sim::Cluster;

/// Stopped, Starting (seen or skipped), Running, Stopping, Terminating; events as upstream's.
async fn life(cluster: &Cluster) -> Result<()> {
    create(cluster, vm("life", "Halted")).await?;
    wait_status(cluster, "life", "Stopped").await?;
    patch(cluster, "life", json!({ "spec": { "runStrategy": "Always" } })).await?;
    let vm =
        wait_vm(cluster, "life", "runs and is ready", |vm| vm.status.printable_status == "Running" && vm.status.ready)
            .await?;
    ensure!(vm.status.created && vm.status.run_strategy == "Always", "{:?}", vm.status);
    wait_event(cluster, "life", "SuccessfulCreate").await?;
    wait_event(cluster, "life", "Started").await?;
    // A guest that takes its time shows as Stopping.
    create(cluster, annotated("slow", Behaviour::STUBBORN, "")).await?;
    wait_status(cluster, "slow", "Running").await?;
    patch(cluster, "slow", json!({ "spec": { "runStrategy": "Halted" } })).await?;
    wait_status(cluster, "slow", "Stopping").await?;
    cluster.launcher("slow").await?.kill();
    wait_status(cluster, "slow", "Stopped").await?;
    wait_event(cluster, "slow", "SuccessfulDelete").await?;
    patch(cluster, "slow", json!({ "spec": { "runStrategy": "Always" } })).await?;
    wait_status(cluster, "slow", "Running").await?;
    cluster.vms().delete("slow", &DeleteParams::default()).await?;
    wait_status(cluster, "slow", "Terminating").await?;
    cluster.launcher("slow").await?.kill();
    wait_gone(cluster, "slow").await?;
    cluster.vms().delete("life", &DeleteParams::default()).await?;
    wait_gone(cluster, "life").await
}

/// Where it runs, and what a descheduler may do with it, can be read from the pod of a VM that runs.
async fn followed(cluster: &Cluster) -> Result<()> {
    const EVICT: &str = "descheduler.alpha.kubernetes.io/evict";
    create(cluster, vm("followed", "Always")).await?;
    wait_status(cluster, "followed", "Running").await?;
    let annotate = |value: Value| {
        let annotations = json!({ EVICT: value, "other": "stays behind" });
        json!({ "spec": { "template": { "metadata": { "annotations": annotations } } } })
    };
    patch(cluster, "followed", annotate(json!("true"))).await?;
    let vmi = cluster.vmis().get("followed").await?;
    for expected in [Some("true"), None] {
        eventually("the pod follows", SOON, || async {
            let pods = Api::<Pod>::namespaced(cluster.client.clone(), "default").list(&ListParams::default()).await?;
            let ours = |pod: &&Pod| pod.uid().is_some_and(|uid| vmi.status.active_pods.contains_key(&uid));
            let pod = pods.items.iter().find(ours).context("no pod")?;
            let node = pod.labels().get("kubevirt.io/nodeName");
            ensure!(node == Some(&vmi.status.node_name), "{:?}", pod.labels());
            ensure!(pod.annotations().get(EVICT).map(String::as_str) == expected, "{:?}", pod.annotations());
            ensure!(!pod.annotations().contains_key("other"), "{:?}", pod.annotations());
            Ok(())
        })
        .await?;
        patch(cluster, "followed", annotate(json!(null))).await?;
    }
    Ok(())
}

/// What an image must be is not lost on the way into a VM, although KubeVirt's own VMs do not know it.
async fn checksums(cluster: &Cluster) -> Result<()> {
    let mut wants = vm("checked", "Halted");
    wants["spec"]["template"]["spec"]["volumes"][0] = json!({ "name": "root", "dataVolume": { "name": "checked" } });
    let http = json!({ "url": "https://images.example/a.qcow2", "checksum": "sha256:00", "insecureSkipVerify": false });
    wants["spec"]["dataVolumeTemplates"] = json!([{ "metadata": { "name": "checked" }, "spec": {
        "source": { "http": http }, "storage": { "resources": { "requests": { "storage": "1Gi" } } },
    } }]);
    let made = create(cluster, wants).await?;
    let kept = &made.spec.data_volume_templates[0].spec["source"]["http"];
    ensure!(*kept == http, "{kept}");
    Ok(())
}

async fn paused(cluster: &Cluster) -> Result<()> {
    create(cluster, vm("held", "Always")).await?;
    wait_status(cluster, "held", "Running").await?;
    cluster.launcher("held").await?.io_error();
    let vm = wait_status(cluster, "held", "Paused").await?;
    let paused = condition(&vm, "Paused").context("no Paused condition")?;
    ensure!(paused.reason == "PausedIOError", "{paused:?}");
    // What no part of ours writes is shown for what it is.
    create(cluster, self::vm("strange", "Always")).await?;
    wait_status(cluster, "strange", "Running").await?;
    let unknown = Patch::Merge(json!({ "status": { "phase": "Unknown" } }));
    // Again and again: a report of the agent that was under way may undo it.
    eventually("strange is Unknown", SOON, || async {
        cluster.vmis().patch("strange", &PatchParams::default(), &unknown).await?;
        let status = cluster.vms().get("strange").await?.status.printable_status;
        ensure!(status == "Unknown", "{status}");
        Ok(())
    })
    .await
}

async fn unsupported(cluster: &Cluster) -> Result<()> {
    let mut wants = vm("lacking", "Always");
    wants["spec"]["template"]["spec"]["domain"]["devices"]["clientPassthrough"] = json!({});
    create(cluster, wants).await?;
    let stuck = wait_vm(cluster, "lacking", "says what it lacks", |vm| condition(vm, "Failure").is_some()).await?;
    let failure = condition(&stuck, "Failure").context("no Failure")?;
    ensure!(failure.message.contains("spec.template.spec.domain.devices.clientPassthrough"), "{failure:?}");
    ensure!(stuck.status.printable_status == "Stopped", "{}", stuck.status.printable_status);
    ensure!(cluster.vmis().get_opt("lacking").await?.is_none(), "it was started");
    wait_event(cluster, "lacking", "FailedCreate").await?;
    let without =
        json!({ "spec": { "template": { "spec": { "domain": { "devices": { "clientPassthrough": null } } } } } });
    patch(cluster, "lacking", without).await?;
    let runs = wait_status(cluster, "lacking", "Running").await?;
    ensure!(condition(&runs, "Failure").is_none(), "the failure stays");
    Ok(())
}

/// The API refuses the instance: the VM says so.
async fn refused_instance(cluster: &Cluster) -> Result<()> {
    let quota = json!({ "apiVersion": "v1", "kind": "ResourceQuota", "metadata": { "name": "none" },
        "spec": { "hard": { "count/virtualmachineinstances.kubevirt.io": "0" } } });
    let namespaces = Api::<k8s_openapi::api::core::v1::Namespace>::all(cluster.client.clone());
    let namespace = serde_json::from_value(json!({ "metadata": { "name": "small" } }))?;
    namespaces.create(&PostParams::default(), &namespace).await?;
    let quotas = Api::<k8s_openapi::api::core::v1::ResourceQuota>::namespaced(cluster.client.clone(), "small");
    quotas.create(&PostParams::default(), &serde_json::from_value(quota)?).await?;
    let vms = Api::<ferrovirt_api::v1::VirtualMachine>::namespaced(cluster.client.clone(), "small");
    let mut manifest = vm("refused", "Always");
    manifest["metadata"]["namespace"] = json!("small");
    ferrovirt_sim::cluster::eventually("the quota is known", SOON, || async {
        let seen = quotas.get_status("none").await?;
        ensure!(seen.status.is_some_and(|s| s.hard.is_some()), "no status");
        Ok(())
    })
    .await?;
    vms.create(&PostParams::default(), &serde_json::from_value(manifest)?).await?;
    ferrovirt_sim::cluster::eventually("the refusal is told", SOON, || async {
        let vm = vms.get("refused").await?;
        let failure = condition(&vm, "Failure").with_context(|| format!("{:?}", vm.status))?;
        ensure!(failure.reason == "FailedCreate" && failure.message.contains("quota"), "{failure:?}");
        Ok(())
    })
    .await
}

/// ErrorUnschedulable, ErrImagePull, ImagePullBackOff.
async fn waiting(cluster: &Cluster) -> Result<()> {
    for (name, annotation, value, status) in [
        ("nowhere", kubelet::UNSCHEDULABLE, "", "ErrorUnschedulable"),
        ("pull", kubelet::WAITING, "ErrImagePull", "ErrImagePull"),
        ("backoff", kubelet::WAITING, "ImagePullBackOff", "ImagePullBackOff"),
    ] {
        create(cluster, annotated(name, annotation, value)).await?;
        wait_status(cluster, name, status).await?;
        cluster.vms().delete(name, &DeleteParams::default()).await?;
        wait_gone(cluster, name).await?;
    }
    Ok(())
}

async fn crash_loop(cluster: &Cluster) -> Result<()> {
    create(cluster, annotated("doomed", Behaviour::START_ERROR, "no such machine")).await?;
    let vm = wait_status(cluster, "doomed", "CrashLoopBackOff").await?;
    let failure = vm.status.start_failure.context("no startFailure")?;
    ensure!(failure.consecutive_fail_count >= 1 && failure.retry_after_timestamp.is_some(), "{failure:?}");
    // A guest that crashes after it ran is started again without delay.
    create(cluster, self::vm("crashes", "RerunOnFailure")).await?;
    wait_status(cluster, "crashes", "Running").await?;
    let first = cluster.vmis().get("crashes").await?.uid();
    cluster.launcher("crashes").await?.crash();
    wait_vmi(cluster, "crashes", "another one runs", |vmi| vmi.uid() != first && vmi.status.phase == "Running").await?;
    // One that powers off has done its work.
    cluster.launcher("crashes").await?.power_off();
    wait_status(cluster, "crashes", "Stopped").await?;
    Ok(())
}

fn data_volumes(cluster: &Cluster) -> Api<DynamicObject> {
    let kind = GroupVersionKind::gvk("cdi.kubevirt.io", "v1beta1", "DataVolume");
    Api::namespaced_with(cluster.client.clone(), "default", &ApiResource::from_gvk_with_plural(&kind, "datavolumes"))
}

async fn data_volume_status(cluster: &Cluster, name: &str, status: Value) -> Result<()> {
    let patch = Patch::Merge(json!({ "status": status }));
    let volumes = data_volumes(cluster);
    // With or without a status subresource.
    match volumes.patch_status(name, &PatchParams::default(), &patch).await {
        Err(kube::Error::Api(status)) if status.is_not_found() => {
            volumes.patch(name, &PatchParams::default(), &patch).await?;
        }
        other => drop(other?),
    }
    Ok(())
}

/// ErrorPvcNotFound, Provisioning, DataVolumeError, WaitingForVolumeBinding.
async fn storage(cluster: &Cluster) -> Result<()> {
    let claims = Api::<PersistentVolumeClaim>::namespaced(cluster.client.clone(), "default");
    let claim = |name: &str| -> Result<PersistentVolumeClaim> {
        Ok(serde_json::from_value(json!({ "metadata": { "name": name }, "spec": {
            "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Gi" } } } }))?)
    };
    let mut missing = vm("unclaimed", "Always");
    missing["spec"]["template"]["spec"]["volumes"][0] =
        json!({ "name": "root", "persistentVolumeClaim": { "claimName": "later" } });
    create(cluster, missing).await?;
    wait_status(cluster, "unclaimed", "ErrorPvcNotFound").await?;
    claims.create(&PostParams::default(), &claim("later")?).await?;
    let bound = Patch::Merge(json!({ "status": { "phase": "Bound" } }));
    claims.patch_status("later", &PatchParams::default(), &bound).await?;
    wait_status(cluster, "unclaimed", "Running").await?;

    let mut imported = vm("imported", "Always");
    imported["spec"]["template"]["spec"]["volumes"][0] = json!({ "name": "root", "dataVolume": { "name": "dv" } });
    imported["spec"]["template"]["metadata"]["annotations"][kubelet::WAITING] = json!("ContainerCreating");
    imported["spec"]["dataVolumeTemplates"] = json!([{ "metadata": { "name": "dv" }, "spec": {
        "source": { "blank": {} }, "storage": { "resources": { "requests": { "storage": "1Gi" } } } } }]);
    create(cluster, imported).await?;
    wait_event(cluster, "imported", "SuccessfulDataVolumeCreate").await?;
    let volume = data_volumes(cluster).get("dv").await?;
    ensure!(volume.owner_references().iter().any(|o| o.kind == "VirtualMachine" && o.name == "imported"), "{volume:?}");
    data_volume_status(cluster, "dv", json!({ "phase": "ImportInProgress", "progress": "42.0%" })).await?;
    wait_vm(cluster, "imported", "tells the progress", |vm| {
        vm.status.printable_status == "Provisioning"
            && condition(vm, "Ready").is_some_and(|c| c.message.contains("42.0%"))
    })
    .await?;
    let stuck = json!([{ "type": "Running", "status": "False", "reason": "Error", "message": "404 Not Found" }]);
    data_volume_status(cluster, "dv", json!({ "phase": "ImportInProgress", "conditions": stuck })).await?;
    wait_status(cluster, "imported", "DataVolumeError").await?;
    ensure!(cluster.vmis().get_opt("imported").await?.is_none(), "it was started");
    claims.create(&PostParams::default(), &claim("dv")?).await?;
    data_volume_status(cluster, "dv", json!({ "phase": "WaitForFirstConsumer", "conditions": null })).await?;
    wait_status(cluster, "imported", "WaitingForVolumeBinding").await?;
    cluster.vms().delete("imported", &DeleteParams::default()).await?;
    wait_gone(cluster, "imported").await
}

/// VMs that wait for their volumes are not looked at again and again: what is asked grows with what changes, not with how many wait
/// nor with how long.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiting_for_volumes_asks_for_nothing() {
    const WAITING: usize = 30;
    const CHANGES: usize = 10;
    let cluster = cluster().await;
    let name = |index: usize| format!("waits-{index}");
    for index in 0..WAITING {
        let mut importing = vm(&name(index), "Always");
        importing["spec"]["template"]["spec"]["volumes"][0] =
            json!({ "name": "root", "dataVolume": { "name": name(index) } });
        importing["spec"]["dataVolumeTemplates"] = json!([{ "metadata": { "name": name(index) }, "spec": {
            "source": { "blank": {} }, "storage": { "resources": { "requests": { "storage": "1Gi" } } } } }]);
        create(&cluster, importing).await.unwrap();
    }
    for index in 0..WAITING {
        ferrovirt_sim::cluster::eventually("the volume is made", SOON, || async {
            data_volume_status(&cluster, &name(index), json!({ "phase": "ImportScheduled" })).await
        })
        .await
        .unwrap();
        let told = |vm: &ferrovirt_api::v1::VirtualMachine| {
            condition(vm, "Ready").is_some_and(|c| c.message.contains("ImportScheduled"))
        };
        wait_vm(&cluster, &name(index), "waits for its volume", told).await.unwrap();
    }
    let total = |counts: std::collections::BTreeMap<String, u64>| -> u64 {
        let of_nodes = |key: &str| key.contains(" nodes") || key.contains(" kubevirts");
        counts.iter().filter(|(key, _)| !of_nodes(key)).map(|(_, count)| count).sum()
    };
    let before = (total(cluster.writes.reads()), total(cluster.writes.counts()));
    for change in 0..CHANGES {
        let phase = format!("Phase{change}");
        data_volume_status(&cluster, &name(0), json!({ "phase": phase })).await.unwrap();
        let told =
            |vm: &ferrovirt_api::v1::VirtualMachine| condition(vm, "Ready").is_some_and(|c| c.message.contains(&phase));
        wait_vm(&cluster, &name(0), &format!("tells {phase}"), told).await.unwrap();
    }
    let after = (total(cluster.writes.reads()), total(cluster.writes.counts()));
    let (reads, writes) = (after.0 - before.0, after.1 - before.1);
    // For each change the VM is looked at, and once more because its own status changed.
    let most = u64::try_from(3 * CHANGES).unwrap();
    assert!(reads <= most && writes <= most, "{reads} reads and {writes} writes for {CHANGES} changes of one volume");
    cluster.stop().await;
}

async fn restart_required(cluster: &Cluster) -> Result<()> {
    let made = create(cluster, vm("changed", "Always")).await?;
    wait_status(cluster, "changed", "Running").await?;
    let first = cluster.vmis().get("changed").await?;
    let revisions = Api::<ControllerRevision>::namespaced(cluster.client.clone(), "default");
    let name = format!("revision-start-vm-{}-1", made.uid().unwrap_or_default());
    ensure!(first.status.virtual_machine_revision_name == name, "{}", first.status.virtual_machine_revision_name);
    ensure!(revisions.get(&name).await?.owner_references().len() == 1, "the revision has no owner");
    patch(
        cluster,
        "changed",
        json!({ "spec": { "template": { "spec": { "domain": { "memory": { "guest": "128Mi" } } } } } }),
    )
    .await?;
    let vm = wait_vm(cluster, "changed", "asks for a restart", |vm| condition(vm, "RestartRequired").is_some()).await?;
    ensure!(vm.status.desired_generation > vm.status.observed_generation, "{:?}", vm.status);
    let requests = json!({ "status": { "stateChangeRequests": [{ "action": "Stop", "uid": first.uid() }] } });
    cluster.vms().patch_status("changed", &PatchParams::default(), &Patch::Merge(requests)).await?;
    wait_vmi(cluster, "changed", "runs with more memory", |vmi| {
        vmi.uid() != first.uid()
            && vmi.status.phase == "Running"
            && vmi.spec.domain.memory.as_ref().and_then(|m| m.guest.clone()).is_some_and(|g| g.0 == "128Mi")
    })
    .await?;
    wait_vm(cluster, "changed", "needs no restart", |vm| condition(vm, "RestartRequired").is_none()).await?;
    let left = revisions.list(&ListParams::default()).await?;
    let mine = left.items.iter().filter(|r| r.name_any().contains(&made.uid().unwrap_or_default())).count();
    ensure!(mine == 1, "{mine} revisions are left");
    Ok(())
}

/// An orphaning delete leaves the instance, and a new VM of the name adopts it.
async fn orphans(cluster: &Cluster) -> Result<()> {
    create(cluster, vm("orphaned", "Always")).await?;
    wait_status(cluster, "orphaned", "Running").await?;
    let before = cluster.vmis().get("orphaned").await?.uid();
    let params = DeleteParams { propagation_policy: Some(PropagationPolicy::Orphan), ..DeleteParams::default() };
    cluster.vms().delete("orphaned", &params).await?;
    ferrovirt_sim::cluster::eventually("the VM is gone", SOON, || async {
        ensure!(cluster.vms().get_opt("orphaned").await?.is_none(), "it is there");
        Ok(())
    })
    .await?;
    let left = wait_vmi(cluster, "orphaned", "nobody's", |vmi| vmi.owner_references().is_empty()).await?;
    ensure!(left.uid() == before && left.metadata.deletion_timestamp.is_none(), "the instance did not stay");
    let vm = create(cluster, vm("orphaned", "Always")).await?;
    wait_vmi(cluster, "orphaned", "is adopted", |vmi| {
        vmi.uid() == before && vmi.owner_references().iter().any(|owner| Some(&owner.uid) == vm.uid().as_ref())
    })
    .await?;
    wait_status(cluster, "orphaned", "Running").await?;
    Ok(())
}

/// A restarted machine is the same machine to its guest.
async fn identity(cluster: &Cluster) -> Result<()> {
    create(cluster, vm("same", "Always")).await?;
    wait_status(cluster, "same", "Running").await?;
    let first = cluster.vmis().get("same").await?;
    cluster.vmis().delete("same", &DeleteParams::default()).await?;
    let second =
        wait_vmi(cluster, "same", "another one runs", |vmi| vmi.uid() != first.uid() && vmi.status.phase == "Running")
            .await?;
    ensure!(first.spec.domain.firmware == second.spec.domain.firmware, "the firmware changed");
    ensure!(first.spec.domain.devices.interfaces == second.spec.domain.devices.interfaces, "the interfaces changed");
    Ok(())
}
