//! Nonsense, sent to the real API: each gets an answer that names the field, and nothing is stored.

use anyhow::{Context, Result, ensure};
use ferrovirt_sim::Cluster;
use kube::{
    Api,
    api::PostParams,
    core::{ApiResource, DynamicObject, GroupVersionKind},
};
use serde_json::{Value, json};

use crate::support::*;

const T: &str = "spec.template.spec";

/// What is put where in a VM that is well, the field that the answer names, and some of its words.
fn table() -> Vec<(&'static str, Value, String, &'static str)> {
    let at = |field: &str| format!("{T}.{field}");
    let two = |name: &str, source: Value| {
        let mut volume = source;
        volume["name"] = json!(name);
        volume
    };
    let root = json!({ "name": "root", "containerDisk": { "image": "sim" } });
    vec![
        ("domain/memory/guest", json!("-1Gi"), at("domain.memory.guest"), "must be greater than or equal to 0"),
        ("domain/cpu", json!({ "cores": 2_000_000_000, "sockets": 2_000_000_000 }), at("domain.cpu"), "virtual CPUs"),
        ("domain/resources", json!({ "requests": { "memory": "lots" } }), at("domain.resources.requests.memory"), ""),
        ("domain/devices/disks", json!([{ "name": "ghost", "disk": {} }]), at("domain.devices.disks[0].name"), "ghost"),
        (
            "domain/devices/disks",
            json!([{ "name": "root", "disk": {} }, { "name": "root", "disk": {} }]),
            at("domain.devices.disks[1].name"),
            "",
        ),
        (
            "volumes",
            json!([root, two("root", json!({ "emptyDisk": { "capacity": "1Gi" } }))]),
            at("volumes[1].name"),
            "",
        ),
        ("volumes", json!([{ "name": "root" }]), at("volumes[0]"), ""),
        (
            "volumes",
            json!([root, two("big", json!({ "emptyDisk": { "capacity": "-5" } }))]),
            at("volumes[1].emptyDisk.capacity"),
            "",
        ),
        (
            "domain/devices/interfaces",
            json!([{ "name": "n", "masquerade": {} }, { "name": "n", "masquerade": {} }]),
            at("domain.devices.interfaces[1].name"),
            "",
        ),
        ("networks", json!([{ "name": "a", "pod": {} }, { "name": "b", "pod": {} }]), at("interfaces"), "pod"),
        ("terminationGracePeriodSeconds", json!(-7), at("terminationGracePeriodSeconds"), ""),
        ("hostname", json!("x".repeat(300)), at("hostname"), ""),
        ("nodeSelector", json!({ "no key": "x" }), at("nodeSelector"), "no key"),
        ("nodeSelector", json!({ "zone": "a b" }), at("nodeSelector"), "a b"),
        ("tolerations", json!([{ "key": "a", "operator": "Like" }]), at("tolerations[0].operator"), "Like"),
        ("priorityClassName", json!("Very High"), at("priorityClassName"), "Very High"),
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nonsense_is_answered_with_its_field() {
    let cluster = cluster().await;
    let mut failed = vec![];
    for (place, value, field, words) in table() {
        let mut manifest = vm("nonsense", "Always");
        let spec = manifest.pointer_mut("/spec/template/spec").expect("a template");
        put(spec, place, value.clone());
        if let Err(error) = refused(&cluster, &manifest, &field, words).await {
            failed.push(format!("{place} = {value:.120}: {error:#}"));
        }
    }
    if let Err(error) = labels(&cluster).await {
        failed.push(format!("labels: {error:#}"));
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    cluster.stop().await;
}

fn put(target: &mut Value, place: &str, value: Value) {
    let mut at = target;
    for key in place.split('/') {
        at = &mut at[key];
    }
    *at = value;
}

/// Sent as it is: our own types could not even say some of it.
async fn send(cluster: &Cluster, manifest: &Value) -> Result<DynamicObject, kube::Error> {
    let kind = GroupVersionKind::gvk("kubevirt.io", "v1", "VirtualMachine");
    let resource = ApiResource::from_gvk_with_plural(&kind, "virtualmachines");
    let api = Api::<DynamicObject>::namespaced_with(cluster.client.clone(), "default", &resource);
    let object = serde_json::from_value(manifest.clone()).map_err(kube::Error::SerdeError)?;
    api.create(&PostParams::default(), &object).await
}

async fn refused(cluster: &Cluster, manifest: &Value, field: &str, words: &str) -> Result<()> {
    let status = match send(cluster, manifest).await {
        Err(kube::Error::Api(status)) => status,
        other => anyhow::bail!("{:?}", other.map(|object| object.metadata.name)),
    };
    ensure!(status.code == 422, "{status:?}");
    let causes = status.details.as_ref().map(|details| details.causes.clone()).unwrap_or_default();
    let named = causes.iter().any(|cause| cause.field.starts_with(field) && cause.message.contains(words));
    ensure!(named, "{field} with {words:?} is not among {causes:?}; {}", status.message);
    let name = manifest["metadata"]["name"].as_str().context("a name")?;
    ensure!(cluster.vms().get_opt(name).await?.is_none(), "it was stored");
    Ok(())
}

/// Ten thousand labels are many, and allowed; keys that are none are not.
async fn labels(cluster: &Cluster) -> Result<()> {
    let keys =
        |prefix: &str| (0..10_000).map(|n| (format!("{prefix}{n}"), json!("x"))).collect::<serde_json::Map<_, _>>();
    let mut wrong = vm("mislabelled", "Always");
    wrong["metadata"]["labels"] = keys("no key ").into();
    refused(cluster, &wrong, "metadata.labels", "").await?;
    let mut wrong = vm("mislabelled", "Always");
    wrong["spec"]["template"]["metadata"]["labels"] = keys("no key ").into();
    refused(cluster, &wrong, "spec.template.metadata.labels", "no key").await?;
    let mut many = vm("labelled", "Always");
    many["metadata"]["labels"] = keys("key-").into();
    many["spec"]["template"]["metadata"]["labels"] = keys("key-").into();
    send(cluster, &many).await?;
    wait_status(cluster, "labelled", "Running").await?;
    Ok(())
}
