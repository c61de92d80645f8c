//! What a machine keeps over its restarts beside its disks: EFI variables and the state of its TPM. They are on a claim that belongs
//! to the VM, in KubeVirt's form, so that each finds what the other left.

use std::collections::BTreeMap;

use ferrovirt_api::v1::{VirtualMachineInstance, VirtualMachineInstanceSpec};
use k8s_openapi::{
    api::core::v1::{
        PersistentVolumeClaim, PersistentVolumeClaimSpec, PersistentVolumeClaimVolumeSource, Volume, VolumeMount,
        VolumeResourceRequirements,
    },
    apimachinery::pkg::{
        api::resource::Quantity,
        apis::meta::v1::{ObjectMeta, OwnerReference},
    },
};

/// The claim's label, whose value is the machine's name, and how the claim's own name begins.
pub const CLAIM: &str = "persistent-state-for";
const SIZE: &str = "10Mi";
const VOLUME: &str = "vm-state";
const PRIVATE: &str = "/var/run/kubevirt-private";

/// True if something of the machine is to be kept.
pub fn is_needed(spec: &VirtualMachineInstanceSpec) -> bool {
    keeps_efi(spec) || keeps_tpm(spec)
}

/// The claim's name. KubeVirt's own may be called otherwise: it is found by its label first.
pub fn claim_name(vmi: &VirtualMachineInstance) -> String {
    format!("{CLAIM}-{}", vmi.metadata.name.as_deref().unwrap_or_default())
}

/// The claim of an instance among those of its namespace.
pub fn find<'a>(
    vmi: &VirtualMachineInstance,
    claims: &'a [PersistentVolumeClaim],
) -> Option<&'a PersistentVolumeClaim> {
    let name = claim_name(vmi);
    let living = || claims.iter().filter(|claim| claim.metadata.deletion_timestamp.is_none());
    let label = |claim: &&PersistentVolumeClaim| {
        claim.metadata.labels.as_ref().and_then(|labels| labels.get(CLAIM)) == vmi.metadata.name.as_ref()
    };
    living().find(label).or_else(|| living().find(|claim| claim.metadata.name.as_ref() == Some(&name)))
}

/// A new claim. It goes with the VM, or with an instance that has none.
pub fn claim(vmi: &VirtualMachineInstance, class: Option<&str>) -> PersistentVolumeClaim {
    let name = vmi.metadata.name.clone().unwrap_or_default();
    let owners = vmi.metadata.owner_references.clone().filter(|owners| !owners.is_empty());
    let itself = || OwnerReference {
        api_version: "kubevirt.io/v1".into(),
        kind: "VirtualMachineInstance".into(),
        name: name.clone(),
        uid: vmi.metadata.uid.clone().unwrap_or_default(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    };
    // A label holds 63 characters; a claim of a longer name is found by its own.
    let labels = (name.len() <= 63).then(|| BTreeMap::from([(CLAIM.to_owned(), name.clone())]));
    let storage = BTreeMap::from([("storage".to_owned(), Quantity(SIZE.into()))]);
    PersistentVolumeClaim {
        metadata: ObjectMeta {
            name: Some(claim_name(vmi)),
            namespace: vmi.metadata.namespace.clone(),
            labels,
            owner_references: Some(owners.unwrap_or_else(|| vec![itself()])),
            ..Default::default()
        },
        spec: Some(PersistentVolumeClaimSpec {
            // Only one node at a time needs it: instances are not migrated.
            access_modes: Some(vec!["ReadWriteOnce".into()]),
            resources: Some(VolumeResourceRequirements { requests: Some(storage), ..Default::default() }),
            storage_class_name: class.map(str::to_owned),
            volume_mode: Some("Filesystem".into()),
            ..Default::default()
        }),
        status: None,
    }
}

/// The claim's directories, where the launcher looks for them. Each is directly below the pod's own directory: what lies in between
/// would be root's.
pub(crate) fn add(
    vmi: &VirtualMachineInstance,
    claim: Option<&str>,
    volumes: &mut Vec<Volume>,
    mounts: &mut Vec<VolumeMount>,
) {
    let Some(claim_name) = claim.filter(|_| is_needed(&vmi.spec)).map(str::to_owned) else { return };
    let source = PersistentVolumeClaimVolumeSource { claim_name, read_only: None };
    volumes.push(Volume { name: VOLUME.into(), persistent_volume_claim: Some(source), ..Default::default() });
    let kept =
        [(keeps_efi(&vmi.spec), "nvram"), (keeps_tpm(&vmi.spec), "swtpm"), (keeps_tpm(&vmi.spec), "swtpm-localca")];
    for (_, directory) in kept.into_iter().filter(|(kept, _)| *kept) {
        mounts.push(VolumeMount {
            name: VOLUME.into(),
            mount_path: format!("{PRIVATE}/{directory}"),
            sub_path: Some(directory.into()),
            ..Default::default()
        });
    }
}

fn keeps_efi(spec: &VirtualMachineInstanceSpec) -> bool {
    let bootloader = spec.domain.firmware.as_ref().and_then(|firmware| firmware.bootloader.as_ref());
    bootloader.and_then(|bootloader| bootloader.efi.as_ref()).is_some_and(|efi| efi.persistent == Some(true))
}

fn keeps_tpm(spec: &VirtualMachineInstanceSpec) -> bool {
    let tpm = spec.domain.devices.tpm.as_ref();
    tpm.is_some_and(|tpm| tpm.enabled != Some(false) && tpm.persistent == Some(true))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn vmi(domain: Value) -> VirtualMachineInstance {
        let owner = json!({ "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "name": "a", "uid": "u" });
        serde_json::from_value(json!({
            "metadata": { "name": "a", "namespace": "n", "uid": "i", "ownerReferences": [owner] },
            "spec": { "domain": domain },
        }))
        .unwrap()
    }

    #[test]
    fn only_what_is_to_be_kept_is_mounted() {
        let efi = json!({ "bootloader": { "efi": { "persistent": true } } });
        for (domain, expected) in [
            (json!({}), ""),
            (json!({ "firmware": { "bootloader": { "efi": {} } }, "devices": { "tpm": {} } }), ""),
            (json!({ "firmware": efi }), "nvram"),
            (json!({ "devices": { "tpm": { "persistent": true } } }), "swtpm swtpm-localca"),
            (json!({ "devices": { "tpm": { "persistent": true, "enabled": false } } }), ""),
            (json!({ "firmware": efi, "devices": { "tpm": { "persistent": true } } }), "nvram swtpm swtpm-localca"),
        ] {
            let (mut volumes, mut mounts) = (vec![], vec![]);
            add(&vmi(domain.clone()), Some("c"), &mut volumes, &mut mounts);
            let shown: Vec<&str> = mounts.iter().filter_map(|mount| mount.sub_path.as_deref()).collect();
            assert_eq!(shown.join(" "), expected, "{domain}");
            assert_eq!((is_needed(&vmi(domain.clone()).spec), volumes.len()), (!mounts.is_empty(), shown.len().min(1)));
        }
    }

    #[test]
    fn the_claim_goes_with_its_vm_and_is_found_again() {
        let vmi = vmi(json!({}));
        let made = claim(&vmi, Some("fast"));
        assert_eq!(made.metadata.owner_references.as_ref().unwrap()[0].kind, "VirtualMachine");
        assert_eq!(made.spec.as_ref().unwrap().storage_class_name.as_deref(), Some("fast"));
        let mut alone = vmi.clone();
        alone.metadata.owner_references = None;
        assert_eq!(claim(&alone, None).metadata.owner_references.unwrap()[0].kind, "VirtualMachineInstance");

        let mut upstream = made.clone();
        upstream.metadata.name = Some("persistent-state-for-a-x7k2p".into());
        let mut unlabelled = made.clone();
        unlabelled.metadata.labels = None;
        let mut other = upstream.clone();
        other.metadata.labels = Some(BTreeMap::from([(CLAIM.into(), "b".into())]));
        let found = |claims: &[PersistentVolumeClaim]| find(&vmi, claims).and_then(|claim| claim.metadata.name.clone());
        assert_eq!(found(&[unlabelled.clone(), upstream.clone()]).as_deref(), Some("persistent-state-for-a-x7k2p"));
        assert_eq!(found(&[unlabelled, other.clone()]).as_deref(), Some("persistent-state-for-a"));
        assert_eq!(found(&[other]), None);
    }
}
