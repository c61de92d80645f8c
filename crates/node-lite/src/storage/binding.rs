//! Which claim a volume is for. Pure: the binder and whoever mounts a volume ask here, and nowhere else.
//!
//! A claim is written by whoever may edit its namespace, and may name any volume. A volume is written by administrators and by
//! the binder alone. So what the volume says counts: namespace, name and uid of its claim. A claim that comes after another
//! one of the same name is another claim.

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, PersistentVolumeSpec};

/// What a volume says of a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// Nobody has it.
    Free,
    /// An administrator keeps it for a claim of this name, which has not taken it yet.
    Reserved,
    /// It is this claim's.
    Own,
    /// It is another claim's, even if that one is gone.
    Foreign,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NotBound {
    #[error("it is not bound")]
    Pending,
    #[error("the volume that it names belongs to another claim")]
    Foreign,
    #[error("the volume that it names is released")]
    Released,
    #[error("its volumeMode is not that of its volume")]
    Mode,
}

pub fn standing(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> Standing {
    let Some(reference) = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref()) else {
        return Standing::Free;
    };
    let own = &claim.metadata;
    let named = reference.name.is_some() && reference.namespace == own.namespace && reference.name == own.name;
    match reference.uid.as_deref().filter(|uid| !uid.is_empty()) {
        None if named => Standing::Reserved,
        Some(uid) if named && own.uid.as_deref() == Some(uid) => Standing::Own,
        _ => Standing::Foreign,
    }
}

/// What a pod may mount for a claim: both say that they belong together.
pub fn mountable<'a>(
    claim: &PersistentVolumeClaim,
    volume: &'a PersistentVolume,
) -> Result<&'a PersistentVolumeSpec, NotBound> {
    if standing(volume, claim) != Standing::Own {
        return Err(NotBound::Foreign);
    }
    let named = claim.spec.as_ref().and_then(|spec| spec.volume_name.as_ref()).filter(|name| !name.is_empty());
    let bound = claim.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Bound");
    if named.is_none() || named != volume.metadata.name.as_ref() || !bound {
        return Err(NotBound::Pending);
    }
    if matches!(volume.status.as_ref().and_then(|status| status.phase.as_deref()), Some("Released" | "Failed")) {
        return Err(NotBound::Released);
    }
    let spec = volume.spec.as_ref().ok_or(NotBound::Pending)?;
    let wanted = claim.spec.as_ref().and_then(|spec| spec.volume_mode.as_deref());
    match mode(wanted) == mode(spec.volume_mode.as_deref()) {
        true => Ok(spec),
        false => Err(NotBound::Mode),
    }
}

/// What no mode means.
pub fn mode(mode: Option<&str>) -> &str {
    mode.filter(|mode| !mode.is_empty()).unwrap_or("Filesystem")
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn claim(namespace: &str, uid: &str) -> PersistentVolumeClaim {
        serde_json::from_value(json!({
            "metadata": { "namespace": namespace, "name": "data", "uid": uid },
            "spec": { "volumeName": "v" }, "status": { "phase": "Bound" },
        }))
        .unwrap()
    }

    fn volume(reference: Value, phase: &str) -> PersistentVolume {
        serde_json::from_value(json!({
            "metadata": { "name": "v" },
            "spec": { "claimRef": reference, "local": { "path": "/v" } }, "status": { "phase": phase },
        }))
        .unwrap()
    }

    #[test]
    fn a_claim_that_names_another_tenants_volume_does_not_get_it_mounted() {
        let victim = json!({ "namespace": "victim", "name": "data", "uid": "u1" });
        let own = claim("victim", "u1");
        assert!(mountable(&own, &volume(victim.clone(), "Bound")).is_ok());
        for (namespace, uid, why) in [
            ("attacker", "u2", "another namespace"),
            ("attacker", "u1", "another namespace and a uid that it took"),
            ("victim", "u2", "the same name again, after the first was deleted"),
            ("victim", "", "no uid at all"),
        ] {
            let found = volume(victim.clone(), "Bound");
            assert_eq!(mountable(&claim(namespace, uid), &found).err(), Some(NotBound::Foreign), "{why}");
        }
    }

    #[test]
    fn what_is_reserved_free_or_released_is_not_mounted_before_it_is_bound() {
        let claim = claim("a", "u1");
        let reserved = json!({ "namespace": "a", "name": "data" });
        assert_eq!(mountable(&claim, &volume(reserved.clone(), "Available")).err(), Some(NotBound::Foreign));
        assert_eq!(mountable(&claim, &volume(Value::Null, "Available")).err(), Some(NotBound::Foreign));
        let own = json!({ "namespace": "a", "name": "data", "uid": "u1" });
        assert_eq!(mountable(&claim, &volume(own.clone(), "Released")).err(), Some(NotBound::Released));
        let mut pending = claim.clone();
        pending.status = None;
        assert_eq!(mountable(&pending, &volume(own.clone(), "Bound")).err(), Some(NotBound::Pending));
        let mut elsewhere = claim.clone();
        elsewhere.spec.as_mut().unwrap().volume_name = Some("w".to_owned());
        assert_eq!(mountable(&elsewhere, &volume(own.clone(), "Bound")).err(), Some(NotBound::Pending));
        let mut block = claim.clone();
        block.spec.as_mut().unwrap().volume_mode = Some("Block".to_owned());
        assert_eq!(mountable(&block, &volume(own, "Bound")).err(), Some(NotBound::Mode));
        assert_eq!(standing(&volume(reserved, "Available"), &claim), Standing::Reserved);
    }
}
