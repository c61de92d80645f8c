//! Launcher pods that somebody takes away: by force, and by eviction.

use anyhow::ensure;
use ferrovirt_api::v1::VirtualMachineInstance;
use ferrovirt_sim::{Cluster, cluster::eventually, kubelet, launcher::Behaviour};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, EvictParams, ListParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};

use crate::support::*;

fn pods(cluster: &Cluster) -> Api<Pod> {
    Api::namespaced(cluster.client.clone(), "default")
}

async fn pod_of(cluster: &Cluster, vmi: &VirtualMachineInstance) -> Pod {
    let all = pods(cluster).list(&ListParams::default()).await.expect("the API answers");
    let ours = |pod: &&Pod| vmi.status.active_pods.contains_key(&pod.uid().unwrap_or_default());
    all.items.iter().find(ours).expect("the instance has a pod").clone()
}

async fn remove_by_force(cluster: &Cluster, vmi: &VirtualMachineInstance) {
    let pod = pod_of(cluster, vmi).await;
    pods(cluster).delete(&pod.name_any(), &DeleteParams::default().grace_period(0)).await.expect("the API answers");
}

fn instance(name: &str, annotations: Value, more: Value) -> VirtualMachineInstance {
    let mut spec = template();
    for (key, value) in more.as_object().expect("an object") {
        spec[key] = value.clone();
    }
    serde_json::from_value(json!({ "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
        "metadata": { "name": name, "namespace": "default", "annotations": annotations }, "spec": spec }))
    .expect("an instance")
}

/// Nobody but the node's agent ends this launcher, and its guest does not end by itself: the instance fails only after the launcher
/// is gone, and the next one starts only then.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_that_was_removed_by_force_ends_with_its_processes() {
    let cluster = cluster().await;
    let stays = json!({ kubelet::LINGERS: "", Behaviour::STUBBORN: "" });
    cluster.vmis().create(&PostParams::default(), &instance("alone", stays.clone(), json!({}))).await.unwrap();
    let running = wait_vmi(&cluster, "alone", "runs", |vmi| vmi.status.phase == "Running").await.unwrap();
    let launcher = cluster.launcher("alone").await.unwrap();
    remove_by_force(&cluster, &running).await;
    let failed = wait_vmi(&cluster, "alone", "fails", |vmi| vmi.status.phase == "Failed").await.unwrap();
    assert!(launcher.has_ended(), "it was said to have failed while it ran");
    assert_eq!(failed.status.reason, "PodNotExists");

    // The same for one that is being deleted with a long grace period.
    let slow = instance("slow", stays.clone(), json!({ "terminationGracePeriodSeconds": 3600 }));
    cluster.vmis().create(&PostParams::default(), &slow).await.unwrap();
    let running = wait_vmi(&cluster, "slow", "runs", |vmi| vmi.status.phase == "Running").await.unwrap();
    let launcher = cluster.launcher("slow").await.unwrap();
    cluster.vmis().delete("slow", &DeleteParams::default()).await.unwrap();
    remove_by_force(&cluster, &running).await;
    let gone = eventually("slow is gone", SOON, || async {
        ensure!(cluster.vmis().get_opt("slow").await?.is_none(), "it is there");
        Ok(())
    });
    gone.await.unwrap();
    assert!(launcher.has_ended());

    // A VM's next instance finds the disk free.
    let mut machine = vm("again", "Always");
    machine["spec"]["template"]["metadata"]["annotations"] = stays;
    create(&cluster, machine).await.unwrap();
    wait_status(&cluster, "again", "Running").await.unwrap();
    let first = cluster.vmis().get("again").await.unwrap();
    let launcher = cluster.launcher("again").await.unwrap();
    remove_by_force(&cluster, &first).await;
    wait_vmi(&cluster, "again", "another one runs", |vmi| vmi.uid() != first.uid() && vmi.status.phase == "Running")
        .await
        .unwrap();
    assert!(launcher.has_ended());
    assert_eq!(cluster.ledger.violations(), Vec::<String>::new());
    cluster.stop().await;
}

/// An agent that was away meanwhile finds out by itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_that_comes_back_ends_what_has_no_pod_any_more() {
    let cluster = cluster().await;
    let stays = json!({ kubelet::LINGERS: "", Behaviour::STUBBORN: "" });
    cluster.vmis().create(&PostParams::default(), &instance("alone", stays, json!({}))).await.unwrap();
    let running = wait_vmi(&cluster, "alone", "runs", |vmi| vmi.status.phase == "Running").await.unwrap();
    let launcher = cluster.launcher("alone").await.unwrap();
    cluster.kill_agent(&running.status.node_name);
    remove_by_force(&cluster, &running).await;
    let told = |vmi: &VirtualMachineInstance| why_not_ready(vmi) == Some("PodNotExists".into());
    let lost = wait_vmi(&cluster, "alone", "has lost its pod", told).await.unwrap();
    assert_eq!(lost.status.phase, "Running", "nobody has seen its processes end");
    assert!(!launcher.has_ended());
    cluster.start_agent(&running.status.node_name).unwrap();
    wait_vmi(&cluster, "alone", "fails", |vmi| vmi.status.phase == "Failed").await.unwrap();
    assert!(launcher.has_ended());
    cluster.stop().await;
}

/// Why it is not ready.
fn why_not_ready(vmi: &VirtualMachineInstance) -> Option<String> {
    let ready = vmi.status.conditions.iter().find(|condition| condition.type_ == "Ready")?;
    (ready.status == "False").then(|| ready.reason.clone())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_eviction_ends_no_protected_machine() {
    let cluster = cluster().await;
    for (name, strategy, refusal) in [
        ("external", "External", Some("Eviction triggered evacuation of VMI \"default/external\"")),
        ("moves", "LiveMigrate", Some("VMI moves is configured with an eviction strategy but is not live-migratable")),
        ("perhaps", "LiveMigrateIfPossible", None),
        ("unprotected", "None", None),
    ] {
        let vmi = instance(name, json!({}), json!({ "evictionStrategy": strategy }));
        cluster.vmis().create(&PostParams::default(), &vmi).await.unwrap();
        let running = wait_vmi(&cluster, name, "runs", |vmi| vmi.status.phase == "Running").await.unwrap();
        let pod = pod_of(&cluster, &running).await;
        let answer = pods(&cluster).evict(&pod.name_any(), &EvictParams::default()).await;
        match (answer, refusal) {
            (Err(kube::Error::Api(status)), Some(expected)) => {
                assert_eq!(status.code, 429, "{name}: {status:?}");
                assert!(status.message.ends_with(expected), "{name}: {}", status.message);
                let there = pods(&cluster).get(&pod.name_any()).await.unwrap();
                assert!(there.metadata.deletion_timestamp.is_none(), "{name}: it was deleted in spite of that");
            }
            (Ok(_), None) => {
                wait_vmi(&cluster, name, "ends", |vmi| vmi.status.phase == "Succeeded").await.unwrap();
            }
            (answer, _) => panic!("{name}: {answer:?}"),
        }
    }
    // It is marked for whoever moves it, and asked again it says so.
    let asks = |vmi: &VirtualMachineInstance| {
        let marked = vmi.status.conditions.iter().any(|c| c.type_ == "EvictionRequested" && c.status == "True");
        marked && vmi.status.evacuation_node_name == vmi.status.node_name && !vmi.status.node_name.is_empty()
    };
    let marked = wait_vmi(&cluster, "external", "is marked", asks).await.unwrap();
    let pod = pod_of(&cluster, &marked).await;
    let again = pods(&cluster).evict(&pod.name_any(), &EvictParams::default()).await.unwrap_err();
    let kube::Error::Api(again) = again else { panic!("{again:?}") };
    assert!(again.code == 429 && again.message.contains("Evacuation in progress: "), "{again:?}");
    assert_eq!(cluster.vmis().get("moves").await.unwrap().status.evacuation_node_name, "");

    // A dry run marks nobody.
    let patch = Patch::Merge(json!({ "status": { "evacuationNodeName": null } }));
    cluster.vmis().patch("external", &PatchParams::default(), &patch).await.unwrap();
    let dry =
        EvictParams { post_options: PostParams { dry_run: true, ..PostParams::default() }, ..EvictParams::default() };
    let refused = pods(&cluster).evict(&pod.name_any(), &dry).await.unwrap_err();
    assert!(matches!(refused, kube::Error::Api(status) if status.code == 429));
    let unmarked = wait_vmi(&cluster, "external", "is not marked", |vmi| !asks(vmi)).await.unwrap();
    assert_eq!((unmarked.status.evacuation_node_name.as_str(), unmarked.status.phase.as_str()), ("", "Running"));
    cluster.stop().await;
}
