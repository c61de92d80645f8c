//! Upstream's examples: each is applied to the API, and reaches the state its name promises or is answered with the reason.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use ferrovirt_sim::{Cluster, cluster::eventually};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::{
    Api, ResourceExt,
    api::{Patch, PatchParams, PostParams},
    core::{ApiResource, DynamicObject, GroupVersionKind},
};
use serde_json::{Value, json};

use crate::support::*;

enum Expected {
    /// It is kept as it is.
    Stored,
    /// The instance runs on a simulated node.
    Runs,
    /// The VM runs once its run strategy says so.
    Starts,
    /// The VM is kept and waits, with this status and these words in a condition.
    Waits(&'static str, &'static str),
    /// The set has all its instances running.
    Replicates,
    /// Refused, naming this.
    Refused(&'static str),
}
use Expected::*;

/// Every example, and what becomes of it. Instances that need a claim get one.
const TABLE: &[(&str, Expected)] = &[
    ("csmall", Stored),
    ("migration-job", Refused("spec.vmiName")),
    ("vm-alpine-datavolume", Waits("Provisioning", "alpine-dv")),
    ("vm-cirros", Starts),
    ("vm-cirros-csmall", Waits("Stopped", "spec.instancetype")),
    ("vm-priorityclass", Waits("Starting", "no PriorityClass")),
    ("vmi-alpine-efi", Runs),
    ("vmi-ephemeral", Runs),
    ("vmi-host-disk", Refused("spec.volumes[0]")),
    ("vmi-kernel-boot", Runs),
    ("vmi-masquerade", Runs),
    ("vmi-migratable", Runs),
    ("vmi-multus-multiple-net", Runs),
    ("vmi-nocloud", Runs),
    ("vmi-pvc", Runs),
    ("vmi-replicaset-cirros", Replicates),
    ("vmi-sata", Runs),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn examples_are_answered() {
    let directory = Path::new("../api/tests/data/examples");
    let mut files: Vec<String> = std::fs::read_dir(directory)
        .expect("the examples are in the repository")
        .filter_map(|entry| entry.ok()?.path().file_stem()?.to_str().map(Into::into))
        .collect();
    files.sort();
    let listed: Vec<&str> = TABLE.iter().map(|(name, _)| *name).collect();
    assert_eq!(files, listed, "every example is in the table");

    let cluster = cluster().await;
    let mut failed = vec![];
    for (name, expected) in TABLE {
        let text = std::fs::read_to_string(directory.join(format!("{name}.yaml"))).expect(name);
        if let Err(error) = check(&cluster, &text, expected).await {
            failed.push(format!("{name}: {error:#}"));
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    cluster.stop().await;
}

async fn check(cluster: &Cluster, text: &str, expected: &Expected) -> Result<()> {
    let object: Value = serde_saphyr::from_str(text)?;
    let (kind, version) = (object["kind"].as_str().context("kind")?, object["apiVersion"].as_str().context("version")?);
    let (group, version) = version.split_once('/').context("group")?;
    let resource = ApiResource::from_gvk_with_plural(
        &GroupVersionKind::gvk(group, version, kind),
        &format!("{}s", kind.to_lowercase()),
    );
    let api = Api::<DynamicObject>::namespaced_with(cluster.client.clone(), "default", &resource);
    let name = object["metadata"]["name"].as_str().context("name")?.to_owned();
    let made = api.create(&PostParams::default(), &serde_json::from_value(object.clone())?).await;
    if let Refused(field) = expected {
        let Err(kube::Error::Api(status)) = made else { anyhow::bail!("it was accepted") };
        let causes = status.details.as_ref().map(|d| d.causes.clone()).unwrap_or_default();
        ensure!(causes.iter().any(|cause| cause.field == *field), "{}: {causes:?}", status.message);
        return Ok(());
    }
    made?;
    make_claims(cluster, &object["spec"]["volumes"]).await?;
    match expected {
        Stored | Refused(_) => {
            let kept = api.get(&name).await?;
            ensure!(kept.data["spec"] == object["spec"], "{}", kept.data["spec"]);
        }
        Runs => drop(wait_vmi(cluster, &name, "it runs", |vmi| vmi.status.phase == "Running").await?),
        Starts => {
            start(cluster, &name).await?;
            wait_status(cluster, &name, "Running").await?;
        }
        Waits(status, words) => {
            start(cluster, &name).await?;
            wait_vm(cluster, &name, &format!("it is {status}"), |vm| {
                vm.status.printable_status == *status && vm.status.conditions.iter().any(|c| c.message.contains(words))
            })
            .await?;
        }
        Replicates => {
            let wanted = object["spec"]["replicas"].clone();
            eventually("all replicas are ready", SOON, || async {
                let seen = api.get(&name).await?;
                ensure!(seen.data["status"]["readyReplicas"] == wanted, "{}", seen.data["status"]);
                Ok(())
            })
            .await?;
        }
    }
    Ok(())
}

async fn start(cluster: &Cluster, name: &str) -> Result<()> {
    patch(cluster, name, json!({ "spec": { "runStrategy": "Always" } })).await.map(drop)
}

async fn make_claims(cluster: &Cluster, volumes: &Value) -> Result<()> {
    let claims = Api::<PersistentVolumeClaim>::namespaced(cluster.client.clone(), "default");
    for volume in volumes.as_array().into_iter().flatten() {
        let Some(name) = volume["persistentVolumeClaim"]["claimName"].as_str() else { continue };
        let claim: PersistentVolumeClaim = serde_json::from_value(json!({ "metadata": { "name": name }, "spec": {
            "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Gi" } } } }))?;
        let made = claims.create(&PostParams::default(), &claim).await?;
        let bound = Patch::Merge(json!({ "status": { "phase": "Bound" } }));
        claims.patch_status(&made.name_any(), &PatchParams::default(), &bound).await?;
    }
    Ok(())
}
