//! What the claims of an instance's volumes are: block device or file system, and how large.

use ferrovirt_api::{
    Quantity,
    v1::{PersistentVolumeClaimInfo, VirtualMachineInstance, Volume},
};
use ferrovirt_machine::{
    convert::{Context, Layout},
    spec::Preparation,
};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::{Api, Client, ResourceExt};

/// A volume of the instance and the claim behind it.
pub(crate) struct Claimed {
    volume: String,
    from_data_volume: bool,
    /// Written to through an overlay only, or no disk at all, so there is nothing to make.
    no_disk: bool,
    claim: PersistentVolumeClaim,
}

/// Reads the claims that the instance names. One that does not exist is left out: the pod could not have started.
pub(crate) async fn look_up(client: &Client, vmi: &VirtualMachineInstance) -> Result<Vec<Claimed>, kube::Error> {
    let claims = Api::<PersistentVolumeClaim>::namespaced(client.clone(), &vmi.namespace().unwrap_or_default());
    let disks = &vmi.spec.domain.devices.disks;
    let mut found = vec![];
    for volume in &vmi.spec.volumes {
        let Some(name) = claim_name(volume) else { continue };
        if let Some(claim) = claims.get_opt(name).await? {
            found.push(Claimed {
                volume: volume.name.clone(),
                from_data_volume: volume.data_volume.is_some(),
                no_disk: volume.ephemeral.is_some() || disks.iter().all(|disk| disk.name != volume.name),
                claim,
            });
        }
    }
    Ok(found)
}

impl Claimed {
    pub(crate) fn describe(&self, context: &mut Context) {
        let kinds = if self.from_data_volume { &mut context.is_block_dv } else { &mut context.is_block_pvc };
        kinds.insert(self.volume.clone(), self.is_block());
    }

    /// An empty file system gets a disk as large as the claim, by upstream's convention.
    pub(crate) fn disk(&self, layout: &Layout) -> Option<Preparation> {
        if self.is_block() || self.no_disk {
            return None;
        }
        let bytes = self.capacity()?;
        Some(Preparation::SparseFile { path: format!("{}/{}/disk.img", layout.vmi_disks, self.volume), bytes })
    }

    pub(crate) fn volume(&self) -> &str {
        &self.volume
    }

    pub(crate) fn info(&self) -> PersistentVolumeClaimInfo {
        let spec = self.claim.spec.clone().unwrap_or_default();
        let status = self.claim.status.clone().unwrap_or_default();
        PersistentVolumeClaimInfo {
            claim_name: self.claim.name_any(),
            access_modes: status.access_modes.or(spec.access_modes).unwrap_or_default(),
            volume_mode: Some(spec.volume_mode.unwrap_or_else(|| "Filesystem".into())),
            capacity: status.capacity.unwrap_or_default(),
            requests: spec.resources.and_then(|resources| resources.requests).unwrap_or_default(),
            ..Default::default()
        }
    }

    fn is_block(&self) -> bool {
        self.claim.spec.as_ref().and_then(|spec| spec.volume_mode.as_deref()) == Some("Block")
    }

    fn capacity(&self) -> Option<u64> {
        let capacity = self.claim.status.as_ref()?.capacity.as_ref()?.get("storage")?;
        Quantity::try_from(capacity).ok().map(|quantity| quantity.as_bytes())
    }
}

fn claim_name(volume: &Volume) -> Option<&str> {
    let claim = volume.persistent_volume_claim.as_ref().map(|claim| claim.claim_name.as_str());
    let data_volume = || volume.data_volume.as_ref().map(|source| source.name.as_str());
    let ephemeral =
        || volume.ephemeral.as_ref()?.persistent_volume_claim.as_ref().map(|claim| claim.claim_name.as_str());
    claim.or_else(data_volume).or_else(ephemeral)
}
