#![allow(clippy::unwrap_used, clippy::panic)]

use std::sync::Arc;

use serde::de::DeserializeOwned;

use super::*;

fn parse<T: DeserializeOwned>(value: Value) -> Arc<T> {
    Arc::new(serde_json::from_value(value).unwrap())
}

fn claim(patch: Value) -> Arc<PersistentVolumeClaim> {
    let mut claim = json!({
        "metadata": { "namespace": "a", "name": "data", "uid": "u1", "finalizers": [CLAIM_FINALIZER] },
        "spec": { "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Gi" } }, "storageClassName": "local" },
        "status": { "phase": "Pending" },
    });
    merge(&mut claim, patch);
    parse(claim)
}

fn merge(into: &mut Value, from: Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (key, value) in from {
                match value {
                    Value::Null => drop(into.remove(&key)),
                    value => merge(into.entry(key).or_insert(Value::Null), value),
                }
            }
        }
        (into, from) => *into = from,
    }
}

fn classes() -> Vec<Arc<StorageClass>> {
    super::super::classes().into_iter().map(parse).collect()
}

/// Runs the plan and shows each action as one line.
fn check(claims: &[Arc<PersistentVolumeClaim>], volumes: &[Arc<PersistentVolume>], used: &[&str], expected: &[&str]) {
    let used = used.iter().map(|name| ("a".to_owned(), (*name).to_owned())).collect();
    let classes = classes();
    let world = World { claims, volumes, classes: &classes, used: &used, node: "n1" };
    let actions: Vec<String> = plan(&world, &Index::of(&world), Path::new("/v")).iter().map(line).collect();
    assert_eq!(actions, expected);
}

fn line(action: &Action) -> String {
    match action {
        Action::PatchClaim { key, patch, status } => {
            format!("claim {}{} {patch}", key.1, if *status { "/status" } else { "" })
        }
        Action::PatchVolume { name, patch, status } => {
            format!("volume {name}{} {patch}", if *status { "/status" } else { "" })
        }
        Action::Provision { key, volume, like } => {
            let spec = volume.spec.as_ref().unwrap();
            let path = &spec.local.as_ref().unwrap().path;
            let like = like.as_ref().map(|like| format!(" like {}", like.display())).unwrap_or_default();
            format!("provision {} {path} {}{like}", key.1, spec.capacity.as_ref().unwrap()["storage"].0)
        }
        Action::Grow { volume, bytes, .. } => format!("grow {volume} {bytes}"),
        Action::Reclaim { volume } => format!("reclaim {volume}"),
        Action::Say { key, reason, .. } => format!("say {} {reason}", key.1),
    }
}

fn provisioned(claim: &PersistentVolumeClaim) -> PersistentVolume {
    let used = HashSet::new();
    let classes = classes();
    let claims = [Arc::new(claim.clone())];
    let world = World { claims: &claims, volumes: &[], classes: &classes, used: &used, node: "n1" };
    let found = plan(&world, &Index::of(&world), Path::new("/v")).into_iter().find_map(|action| match action {
        Action::Provision { volume, .. } => Some(*volume),
        _ => None,
    });
    found.unwrap()
}

#[test]
fn a_claim_goes_from_new_to_bound() {
    let new =
        claim(json!({ "metadata": { "finalizers": null }, "spec": { "storageClassName": null }, "status": null }));
    check(
        &[new],
        &[],
        &[],
        &[
            r#"claim data {"metadata":{"finalizers":["kubernetes.io/pvc-protection"]}}"#,
            r#"claim data/status {"status":{"phase":"Pending"}}"#,
            r#"claim data {"spec":{"storageClassName":"local"}}"#,
        ],
    );
    let pending = claim(json!({}));
    check(std::slice::from_ref(&pending), &[], &[], &["provision data /v/pvc-u1 1Gi"]);
    let volume = Arc::new(provisioned(&pending));
    let affinity = serde_json::to_value(volume.spec.as_ref().unwrap().node_affinity.as_ref().unwrap()).unwrap();
    assert_eq!(affinity["required"]["nodeSelectorTerms"][0]["matchExpressions"][0]["values"], json!(["n1"]));
    check(
        &[pending],
        std::slice::from_ref(&volume),
        &[],
        &[
            r#"claim data {"metadata":{"annotations":{"pv.kubernetes.io/bind-completed":"yes","pv.kubernetes.io/bound-by-controller":"yes"}},"spec":{"volumeName":"pvc-u1"}}"#,
            r#"volume pvc-u1/status {"status":{"phase":"Bound"}}"#,
        ],
    );
    let named = claim(json!({ "spec": { "volumeName": "pvc-u1" } }));
    check(
        &[named],
        std::slice::from_ref(&volume),
        &[],
        &[
            r#"claim data/status {"status":{"accessModes":["ReadWriteOnce"],"capacity":{"storage":"1Gi"},"phase":"Bound"}}"#,
            r#"volume pvc-u1/status {"status":{"phase":"Bound"}}"#,
        ],
    );
    let mut bound = PersistentVolume::clone(&volume);
    bound.status.get_or_insert_default().phase = Some("Bound".to_owned());
    let done =
        json!({ "spec": { "volumeName": "pvc-u1" }, "status": { "phase": "Bound", "capacity": { "storage": "1Gi" } } });
    check(&[claim(done.clone())], &[Arc::new(bound.clone())], &[], &[]);
    let mut larger = done;
    larger["spec"]["resources"] = json!({ "requests": { "storage": "2Gi" } });
    check(&[claim(larger)], &[Arc::new(bound)], &[], &["grow pvc-u1 2147483648"]);
}

#[test]
fn a_block_claim_is_one_file() {
    let block = claim(json!({ "spec": { "volumeMode": "Block" } }));
    check(&[block], &[], &[], &["provision data /v/pvc-u1/block.img 1Gi"]);
}

#[test]
fn a_clone_begins_with_the_files_of_its_source() {
    let source = json!({ "kind": "PersistentVolumeClaim", "name": "golden" });
    let golden = claim(json!({
        "metadata": { "name": "golden", "uid": "g" }, "spec": { "volumeName": "pvc-g" },
        "status": { "phase": "Bound", "capacity": { "storage": "1Gi" }, "accessModes": ["ReadWriteOnce"] },
    }));
    let mut volume = provisioned(&claim(json!({ "metadata": { "name": "golden", "uid": "g" } })));
    volume.status.get_or_insert_default().phase = Some("Bound".to_owned());
    let volumes = [Arc::new(volume)];
    let clone = |patch: Value| {
        let mut wanted = json!({ "spec": { "dataSource": source } });
        merge(&mut wanted, patch);
        claim(wanted)
    };
    let made = "provision data /v/pvc-u1 1Gi like /v/pvc-g";
    check(&[golden.clone(), clone(json!({}))], &volumes, &[], &[made]);
    let by_reference = json!({ "spec": { "dataSource": null, "dataSourceRef": source } });
    check(&[golden.clone(), clone(by_reference)], &volumes, &[], &[made]);
    check(&[golden.clone(), clone(json!({}))], &volumes, &["golden"], &["say data ProvisioningFailed"]);
    check(&[clone(json!({}))], &[], &[], &["say data ProvisioningFailed"]);
    for (wrong, why) in [
        (
            json!({ "spec": { "dataSource": { "kind": "VolumeSnapshot", "apiGroup": "snapshot.storage.k8s.io" } } }),
            "kind",
        ),
        (json!({ "spec": { "volumeMode": "Block" } }), "mode"),
        (json!({ "spec": { "resources": { "requests": { "storage": "1Mi" } } } }), "size"),
        (
            json!({ "spec": { "dataSourceRef": { "kind": "PersistentVolumeClaim", "name": "golden", "namespace": "b" } } }),
            "namespace",
        ),
    ] {
        let all = [golden.clone(), clone(wrong)];
        let used = HashSet::new();
        let world = World { claims: &all, volumes: &volumes, classes: &classes(), used: &used, node: "n1" };
        let actions: Vec<String> = plan(&world, &Index::of(&world), Path::new("/v")).iter().map(line).collect();
        assert_eq!(actions, ["say data ProvisioningFailed"], "{why}");
    }
}

#[test]
fn a_class_that_waits_provisions_for_the_first_pod() {
    let waiting = claim(json!({ "spec": { "storageClassName": "local-wait" } }));
    check(std::slice::from_ref(&waiting), &[], &[], &["say data WaitForFirstConsumer"]);
    check(&[waiting], &[], &["data"], &["provision data /v/pvc-u1 1Gi"]);
}

#[test]
fn a_claim_that_a_pod_uses_outlives_its_deletion() {
    let leaving = claim(json!({ "metadata": { "deletionTimestamp": "2026-01-01T00:00:00Z" } }));
    check(std::slice::from_ref(&leaving), &[], &["data"], &[]);
    check(&[leaving], &[], &[], &[r#"claim data {"metadata":{"finalizers":[]}}"#]);
}

#[test]
fn what_nobody_claims_is_released_and_reclaimed_if_its_policy_says_so() {
    for (policy, expected) in [("Delete", vec!["reclaim pvc-u1"]), ("Retain", vec![])] {
        let mut volume = provisioned(&claim(json!({})));
        check(&[], &[Arc::new(volume.clone())], &[], &[r#"volume pvc-u1/status {"status":{"phase":"Released"}}"#]);
        volume.status.get_or_insert_default().phase = Some("Released".to_owned());
        volume.spec.as_mut().unwrap().persistent_volume_reclaim_policy = Some(policy.to_owned());
        check(&[], &[Arc::new(volume)], &[], &expected);
    }
}

#[test]
fn a_fitting_volume_is_taken_before_a_new_one_is_made() {
    let volume = |name: &str, size: &str, mode: &str| -> Arc<PersistentVolume> {
        parse(json!({
            "metadata": { "name": name },
            "spec": { "capacity": { "storage": size }, "accessModes": [mode], "storageClassName": "local", "hostPath": { "path": "/x" } },
            "status": { "phase": "Available" },
        }))
    };
    let all = [
        volume("small", "1Mi", "ReadWriteOnce"),
        volume("large", "9Gi", "ReadWriteOnce"),
        volume("fits", "2Gi", "ReadWriteOnce"),
        volume("shared", "1Gi", "ReadWriteMany"),
    ];
    check(
        &[claim(json!({}))],
        &all,
        &[],
        &[
            r#"volume fits {"spec":{"claimRef":{"apiVersion":"v1","kind":"PersistentVolumeClaim","name":"data","namespace":"a","uid":"u1"}}}"#,
        ],
    );
}

#[test]
fn a_claim_whose_volume_vanished_is_lost() {
    let bound = claim(json!({ "spec": { "volumeName": "gone" }, "status": { "phase": "Bound" } }));
    check(&[bound], &[], &[], &[r#"claim data/status {"status":{"phase":"Lost"}}"#]);
    let unknown = claim(json!({ "spec": { "storageClassName": "nfs" } }));
    check(&[unknown], &[], &[], &["say data ProvisioningFailed"]);
}

fn reserved(reference: Value) -> Arc<PersistentVolume> {
    parse(json!({
        "metadata": { "name": "v", "resourceVersion": "7" },
        "spec": {
            "capacity": { "storage": "1Gi" }, "accessModes": ["ReadWriteOnce"], "storageClassName": "local",
            "claimRef": reference, "hostPath": { "path": "/x" },
        },
        "status": { "phase": "Available" },
    }))
}

#[test]
fn a_reserved_volume_is_not_bound_by_a_stranger_who_names_it() {
    let volume = [reserved(json!({ "namespace": "victim", "name": "data" }))];
    // By name, and by looking for one that fits.
    check(&[claim(json!({ "spec": { "volumeName": "v" } }))], &volume, &[], &["say data FailedBinding"]);
    check(&[claim(json!({}))], &volume, &[], &["provision data /v/pvc-u1 1Gi"]);
    let other_name = [reserved(json!({ "namespace": "a", "name": "other" }))];
    check(&[claim(json!({ "spec": { "volumeName": "v" } }))], &other_name, &[], &["say data FailedBinding"]);
    // Who it is for takes it, and only if nobody wrote it meanwhile.
    let own = [reserved(json!({ "namespace": "a", "name": "data" }))];
    let taken = r#"volume v {"metadata":{"resourceVersion":"7"},"spec":{"claimRef":{"apiVersion":"v1","kind":"PersistentVolumeClaim","name":"data","namespace":"a","uid":"u1"}}}"#;
    check(&[claim(json!({}))], &own, &[], &[taken]);
    check(&[claim(json!({ "spec": { "volumeName": "v" } }))], &own, &[], &[taken]);
}

#[test]
fn a_claim_with_the_name_of_a_deleted_one_does_not_inherit_its_volume() {
    let volume = [reserved(json!({ "namespace": "a", "name": "data", "uid": "before" }))];
    let released = r#"volume v/status {"status":{"phase":"Released"}}"#;
    let again = claim(json!({ "spec": { "volumeName": "v" } }));
    check(std::slice::from_ref(&again), &volume, &[], &["say data FailedBinding", released]);
    check(&[claim(json!({}))], &volume, &[], &["provision data /v/pvc-u1 1Gi", released]);
    // Who says of himself that he is bound is not believed.
    let liar = claim(json!({ "spec": { "volumeName": "v" }, "status": { "phase": "Bound" } }));
    let lost = r#"claim data/status {"status":{"phase":"Lost"}}"#;
    check(std::slice::from_ref(&liar), &volume, &[], &[lost, "say data ClaimMisbound", released]);
    let (used, classes) = (HashSet::new(), classes());
    let claims = [liar];
    let world = World { claims: &claims, volumes: &volume, classes: &classes, used: &used, node: "n1" };
    assert!(matches!(state(&world, &Index::of(&world), &claims[0]), ClaimState::Stuck(_)));
}

#[test]
fn a_volume_is_promised_to_one_claim_at_a_time_and_only_if_it_fits() {
    let free = [reserved(Value::Null)];
    let both = [claim(json!({})), claim(json!({ "metadata": { "name": "other", "uid": "u2" } }))];
    let taken = r#"volume v {"metadata":{"resourceVersion":"7"},"spec":{"claimRef":{"apiVersion":"v1","kind":"PersistentVolumeClaim","name":"data","namespace":"a","uid":"u1"}}}"#;
    check(&both, &free, &[], &[taken, "provision other /v/pvc-u2 1Gi"]);
    for wrong in [
        json!({ "volumeName": "v", "volumeMode": "Block" }),
        json!({ "volumeName": "v", "resources": { "requests": { "storage": "2Gi" } } }),
        json!({ "volumeName": "v", "storageClassName": "local-wait" }),
        json!({ "volumeName": "v", "accessModes": ["ReadWriteMany"] }),
    ] {
        check(&[claim(json!({ "spec": wrong }))], &free, &[], &["say data VolumeMismatch"]);
    }
}

#[test]
fn a_claim_whose_uid_is_a_path_gets_no_files() {
    for uid in ["../../etc", "a/b", "..", ""] {
        check(&[claim(json!({ "metadata": { "uid": uid } }))], &[], &[], &["say data ProvisioningFailed"]);
    }
}
