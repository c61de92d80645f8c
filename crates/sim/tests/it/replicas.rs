//! VirtualMachineInstanceReplicaSets on a simulated cluster.

use anyhow::{Result, ensure};
use ferrovirt_api::v1::{VirtualMachineInstance, VirtualMachineInstanceReplicaSet};
use ferrovirt_sim::{Cluster, cluster::eventually, launcher::Behaviour};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};

use crate::support::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replica_sets() {
    let cluster = cluster().await;
    let results = [("scales", scales(&cluster).await), ("replaces", replaces(&cluster).await)];
    let failed: Vec<String> =
        results.into_iter().filter_map(|(name, result)| Some(format!("{name}: {:#}", result.err()?))).collect();
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    cluster.stop().await;
}

fn sets(cluster: &Cluster) -> Api<VirtualMachineInstanceReplicaSet> {
    Api::namespaced(cluster.client.clone(), "default")
}

async fn create_set(cluster: &Cluster, name: &str, replicas: i32, annotations: Value) -> Result<()> {
    let set = json!({
        "metadata": { "name": name },
        "spec": {
            "replicas": replicas,
            "selector": { "matchLabels": { "set": name } },
            "template": { "metadata": { "labels": { "set": name }, "annotations": annotations }, "spec": template() },
        },
    });
    sets(cluster).create(&PostParams::default(), &serde_json::from_value(set)?).await?;
    Ok(())
}

async fn instances(cluster: &Cluster, set: &str) -> Result<Vec<VirtualMachineInstance>> {
    let params = ListParams::default().labels(&format!("set={set}"));
    let mut all = cluster.vmis().list(&params).await?.items;
    all.retain(|vmi| vmi.metadata.deletion_timestamp.is_none());
    Ok(all)
}

async fn wait_counts(cluster: &Cluster, set: &str, ready: i32, all: i32) -> Result<VirtualMachineInstanceReplicaSet> {
    eventually(&format!("{set} has {ready} of {all}"), SOON, || async {
        let seen = sets(cluster).get(set).await?;
        let status = &seen.status;
        ensure!(status.ready_replicas == ready && status.replicas == all, "{status:?}");
        Ok(seen)
    })
    .await
}

async fn scales(cluster: &Cluster) -> Result<()> {
    create_set(cluster, "set", 3, json!({})).await?;
    let set = wait_counts(cluster, "set", 3, 3).await?;
    ensure!(set.status.label_selector == "set=set", "{}", set.status.label_selector);
    wait_event(cluster, "set", "SuccessfulCreate").await?;
    // As an autoscaler does.
    let scale = sets(cluster).get_scale("set").await?;
    ensure!(scale.status.as_ref().and_then(|s| s.selector.clone()).as_deref() == Some("set=set"), "{scale:?}");
    let patch = Patch::Merge(json!({ "spec": { "replicas": 1 } }));
    sets(cluster).patch_scale("set", &PatchParams::default(), &patch).await?;
    wait_counts(cluster, "set", 1, 1).await?;
    wait_event(cluster, "set", "SuccessfulDelete").await?;

    // Released when its labels no longer fit, and replaced; adopted when they fit again.
    let name = instances(cluster, "set").await?.first().map(ResourceExt::name_any).unwrap_or_default();
    let relabel = |value: Value| Patch::Merge(json!({ "metadata": { "labels": { "set": value } } }));
    cluster.vmis().patch(&name, &PatchParams::default(), &relabel(json!(null))).await?;
    wait_vmi(cluster, &name, "is released", |vmi| vmi.owner_references().is_empty()).await?;
    eventually("another takes its place", SOON, || async {
        let now = instances(cluster, "set").await?;
        ensure!(now.len() == 1 && now.iter().all(|vmi| vmi.name_any() != name), "{}", now.len());
        Ok(())
    })
    .await?;
    sets(cluster).patch("set", &PatchParams::default(), &Patch::Merge(json!({ "spec": { "paused": true } }))).await?;
    wait_event(cluster, "set", "SuccessfulPaused").await?;
    cluster.vmis().patch(&name, &PatchParams::default(), &relabel(json!("set"))).await?;
    wait_vmi(cluster, &name, "is adopted", |vmi| !vmi.owner_references().is_empty()).await?;
    wait_counts(cluster, "set", 2, 2).await?;
    sets(cluster).patch("set", &PatchParams::default(), &Patch::Merge(json!({ "spec": { "paused": false } }))).await?;
    wait_counts(cluster, "set", 1, 1).await?;
    wait_event(cluster, "set", "SuccessfulResumed").await?;

    sets(cluster).delete("set", &DeleteParams::default()).await?;
    eventually("all are gone", SOON, || async {
        let left = instances(cluster, "set").await?;
        ensure!(left.is_empty(), "{} are left", left.len());
        Ok(())
    })
    .await
}

/// One that ends is replaced at once; those that never run are replaced ever more slowly.
async fn replaces(cluster: &Cluster) -> Result<()> {
    create_set(cluster, "mortal", 1, json!({})).await?;
    wait_counts(cluster, "mortal", 1, 1).await?;
    let first = instances(cluster, "mortal").await?.first().map(ResourceExt::name_any).unwrap_or_default();
    cluster.launcher(&first).await?.crash();
    eventually("a new one runs", SOON, || async {
        let now = instances(cluster, "mortal").await?;
        ensure!(now.iter().any(|vmi| vmi.name_any() != first && vmi.status.phase == "Running"), "not yet");
        ensure!(now.len() == 1, "{} instances", now.len());
        Ok(())
    })
    .await?;
    create_set(cluster, "doomed", 1, json!({ Behaviour::START_ERROR: "no such machine" })).await?;
    wait_event(cluster, "doomed", "SuccessfulDelete").await?;
    wait_counts(cluster, "doomed", 0, 0).await?;
    Ok(())
}
