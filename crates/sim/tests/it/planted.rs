//! Pods that somebody made to be taken for a launcher's.

use ferrovirt_api::{names, v1::VirtualMachineInstance};
use ferrovirt_sim::cluster::eventually;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::{Api, ResourceExt, api::PostParams};
use serde_json::json;

use crate::support::*;

/// The name that the launcher's pod will have: it follows from the instance's uid, which is for everybody to see.
fn predicted(vmi: &VirtualMachineInstance) -> String {
    const ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
    let fold = |state: u32, byte: u8| (state ^ u32::from(byte)).wrapping_mul(0x0100_0193);
    let mut state = vmi.uid().unwrap_or_default().bytes().fold(0x811c_9dc5, fold);
    let mut name = format!("virt-launcher-{}-", vmi.name_any());
    for _ in 0..5 {
        name.push(char::from(ALPHABET[(state % ALPHABET.len() as u32) as usize]));
        state /= ALPHABET.len() as u32;
    }
    name
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_that_was_made_first_with_the_predictable_name_is_not_adopted() {
    let cluster = cluster().await;
    let mut spec = template();
    spec["volumes"][0] = json!({ "name": "root", "persistentVolumeClaim": { "claimName": "late" } });
    let vmi = json!({ "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
        "metadata": { "name": "prey", "namespace": "default" }, "spec": spec });
    cluster.vmis().create(&PostParams::default(), &serde_json::from_value(vmi).unwrap()).await.unwrap();
    let waiting = wait_vmi(&cluster, "prey", "waits", |vmi| vmi.status.phase == "Pending").await.unwrap();

    let pods = Api::<Pod>::namespaced(cluster.client.clone(), "default");
    let uid = waiting.uid().unwrap();
    let planted = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": predicted(&waiting),
            "labels": { names::APP_LABEL: names::LAUNCHER_APP, names::CREATED_BY_LABEL: uid },
            "annotations": { names::DOMAIN_ANNOTATION: "prey" },
            "ownerReferences": [{ "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "name": "prey",
                "uid": uid, "controller": true, "blockOwnerDeletion": true }],
        },
        "spec": { "containers": [{ "name": "compute", "image": "evil" }] },
    });
    let planted = pods.create(&PostParams::default(), &serde_json::from_value(planted).unwrap()).await.unwrap();
    let gone = eventually("the planted pod is gone", SOON, || async {
        let there = pods.get_opt(&planted.name_any()).await?.filter(|pod| pod.uid() == planted.uid());
        anyhow::ensure!(there.is_none(), "it is there");
        Ok(())
    });
    gone.await.unwrap();
    let claim = json!({ "metadata": { "name": "late" }, "spec": { "accessModes": ["ReadWriteOnce"],
        "resources": { "requests": { "storage": "1Gi" } } } });
    let claims = Api::<PersistentVolumeClaim>::namespaced(cluster.client.clone(), "default");
    claims.create(&PostParams::default(), &serde_json::from_value(claim).unwrap()).await.unwrap();

    let running = wait_vmi(&cluster, "prey", "runs", |vmi| vmi.status.phase == "Running").await.unwrap();
    let recorded: Vec<_> = running.status.active_pods.keys().cloned().collect();
    let real = pods.get(&predicted(&waiting)).await.unwrap();
    assert_eq!(recorded, [real.uid().unwrap()], "only the pod that the controller made is on record");
    assert_ne!(real.uid(), planted.uid());
    assert_eq!(cluster.ledger.violations(), Vec::<String>::new());
    cluster.stop().await;
}
