//! DataVolumes that are being filled, many at a time.

use std::collections::BTreeMap;

use anyhow::{Result, ensure};
use ferrovirt_api::cdi::DataVolume;
use ferrovirt_apiserver::User;
use ferrovirt_sim::{
    Cluster, Options,
    cluster::eventually,
    writes::{Counted, Writes},
};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::{
    Api, Client,
    api::{ListParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::support::SOON;

const IMPORTS: usize = 60;
const CLONES: usize = 20;

/// How often something was asked since, by verb and resource.
fn since(before: &BTreeMap<String, u64>, now: &BTreeMap<String, u64>) -> BTreeMap<String, u64> {
    let grown = now.iter().map(|(key, count)| (key.clone(), count - before.get(key).unwrap_or(&0)));
    grown.filter(|(_, count)| *count > 0).collect()
}

fn volume(name: &str, source: Value) -> Result<DataVolume> {
    let storage = json!({ "resources": { "requests": { "storage": "1Gi" } } });
    Ok(serde_json::from_value(json!({
        "metadata": { "name": name, "namespace": "default" }, "spec": { "source": source, "storage": storage },
    }))?)
}

async fn pod_phase(pods: &Api<Pod>, name: &str, phase: &str) -> Result<()> {
    // Without an address: nobody is asked how far it is.
    let patch = Patch::Merge(json!({ "status": { "phase": phase } }));
    pods.patch_status(name, &PatchParams::default(), &patch).await?;
    Ok(())
}

/// What is asked of the API grows with what happens, neither with how many volumes are being filled nor with how long it takes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn volumes_that_are_being_filled_ask_for_nothing() {
    let cluster = Cluster::start(Options { nodes: 0, ..Options::default() }).await.expect("the cluster starts");
    let asked = Writes::default();
    let service = cluster.api.client_service(User::new("system:cdi", &["system:masters"]));
    let client = Client::new(Counted::new(service, asked.clone()), "default");
    let settings = ferrovirt_cdi::Settings { image: "sim".into(), pull_policy: "Never".into(), cache: None };
    let (_key, key) = watch::channel("key".to_owned());
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let running = tokio::spawn(ferrovirt_cdi::run(client, settings, key, async move { drop(stopped.await) }));

    let pods = Api::<Pod>::namespaced(cluster.client.clone(), "default");
    let claims = Api::<PersistentVolumeClaim>::namespaced(cluster.client.clone(), "default");
    let volumes = Api::<DataVolume>::namespaced(cluster.client.clone(), "default");
    // A claim that is in use: its clones wait.
    let base = json!({ "metadata": { "name": "base" }, "spec": {
        "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Gi" } } } });
    claims.create(&PostParams::default(), &serde_json::from_value(base).unwrap()).await.unwrap();
    let user = json!({ "metadata": { "name": "user" }, "spec": {
        "containers": [{ "name": "c", "image": "i" }],
        "volumes": [{ "name": "v", "persistentVolumeClaim": { "claimName": "base" } }] } });
    pods.create(&PostParams::default(), &serde_json::from_value(user).unwrap()).await.unwrap();
    let import = |index: usize| format!("import-{index}");
    for index in 0..IMPORTS {
        let made = volume(&import(index), json!({ "http": { "url": "http://images.test/disk" } })).unwrap();
        volumes.create(&PostParams::default(), &made).await.unwrap();
    }
    for index in 0..CLONES {
        let made = volume(&format!("clone-{index}"), json!({ "pvc": { "name": "base", "namespace": "default" } }));
        volumes.create(&PostParams::default(), &made.unwrap()).await.unwrap();
    }
    for index in 0..IMPORTS {
        let importer = format!("importer-{}", import(index));
        eventually(&importer, SOON, || pod_phase(&pods, &importer, "Running")).await.unwrap();
    }
    let all_are = |import: &'static str, clone: &'static str| {
        let volumes = volumes.clone();
        eventually("all volumes are on their way", SOON, move || {
            let volumes = volumes.clone();
            async move {
                for volume in volumes.list(&ListParams::default()).await?.items {
                    let is_import = volume.spec.source.as_ref().is_some_and(|source| source.http.is_some());
                    let expected = if is_import { import } else { clone };
                    ensure!(volume.status.phase == expected, "{:?}: {:?}", volume.metadata.name, volume.status);
                }
                Ok(())
            }
        })
    };
    all_are("ImportInProgress", "CloneScheduled").await.unwrap();

    // The clones look again who uses their claim, all of them together, every other second. Meanwhile nobody asks anything.
    eventually("nothing is asked while nothing happens", SOON, || async {
        let (reads, writes) = (asked.reads(), asked.counts());
        let looks = |reads: &BTreeMap<String, u64>| reads.get("GET pods").copied().unwrap_or_default();
        eventually("three more looks", SOON, || async {
            ensure!(looks(&asked.reads()) >= looks(&reads) + 3, "{:?}", asked.reads());
            Ok(())
        })
        .await?;
        let (mut read, written) = (since(&reads, &asked.reads()), since(&writes, &asked.counts()));
        let looks = read.remove("GET pods").unwrap_or_default();
        ensure!(looks <= 4 && read.is_empty() && written.is_empty(), "{looks} looks, {read:?}, {written:?}");
        Ok(())
    })
    .await
    .unwrap();

    // The user of the claim goes, and the importers end.
    pod_phase(&pods, "user", "Succeeded").await.unwrap();
    for index in 0..IMPORTS {
        pod_phase(&pods, &format!("importer-{}", import(index)), "Succeeded").await.unwrap();
    }
    for index in 0..CLONES {
        let importer = format!("importer-clone-{index}");
        eventually(&importer, SOON, || pod_phase(&pods, &importer, "Succeeded")).await.unwrap();
    }
    all_are("Succeeded", "Succeeded").await.unwrap();
    let total = |counts: BTreeMap<String, u64>| counts.values().sum::<u64>();
    let (reads, writes) = (total(asked.reads()), total(asked.counts()));
    let each = u64::try_from(IMPORTS + CLONES).unwrap();
    assert!(reads <= 25 * each && writes <= 15 * each, "{:?} {:?}", asked.reads(), asked.counts());
    drop(stop);
    running.await.unwrap();
    cluster.stop().await;
}
