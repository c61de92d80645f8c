//! Clones that the storage makes itself, from a claim's `dataSource`: no pod, and no time where blocks can be shared.

use ferrovirt_api::{cdi::names, storage::default_class};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, PersistentVolumeClaimSpec, TypedLocalObjectReference};
use k8s_openapi::api::storage::v1::StorageClass;

use super::foreign::origin_namespace;
use super::{Observed, Plan, phase, status};

const KIND: &str = "PersistentVolumeClaim";

/// What the new claim says if its storage is to make the clone.
pub(super) fn data_source(
    observed: &Observed<'_>,
    wanted: &PersistentVolumeClaimSpec,
) -> Option<TypedLocalObjectReference> {
    let source = observed.source?.pvc.as_ref()?;
    let origin = observed.origin?.spec.as_ref()?;
    let class = class_of(observed.classes, wanted.storage_class_name.as_deref())?;
    let annotations = class.metadata.annotations.as_ref()?;
    let mode = |spec: &PersistentVolumeClaimSpec| spec.volume_mode.clone().unwrap_or_else(|| "Filesystem".to_owned());
    let possible = annotations.get(names::CLONE_STRATEGY).is_some_and(|strategy| strategy == names::CSI_CLONE)
        // The claim would wait for its first user, and that one for the DataVolume.
        && class.volume_binding_mode.as_deref() != Some("WaitForFirstConsumer")
        && origin.storage_class_name == class.metadata.name
        && mode(origin) == mode(wanted)
        && wanted.volume_name.is_none()
        && origin_namespace(observed.volume, observed.source).is_none();
    possible.then(|| TypedLocalObjectReference { api_group: None, kind: KIND.to_owned(), name: source.name.clone() })
}

/// Whether the storage makes this claim's clone.
pub(super) fn makes(claim: &PersistentVolumeClaim) -> bool {
    let source = claim.spec.as_ref().and_then(|spec| spec.data_source.as_ref());
    source.is_some_and(|source| source.kind == KIND)
}

/// What is said while it does.
pub(super) fn follow(observed: &Observed<'_>, claim: &PersistentVolumeClaim, plan: &mut Plan) {
    match claim.status.as_ref().and_then(|status| status.phase.as_deref()) {
        Some("Bound") => status::succeed(&mut plan.status, observed),
        _ => {
            let message = "the storage makes the clone; the events of the claim say what it waits for";
            status::wait(&mut plan.status, observed, phase::CSI_CLONE_IN_PROGRESS, message);
        }
    }
}

/// The class of this name, or the default.
pub(super) fn class_of<'a>(classes: &'a [StorageClass], name: Option<&str>) -> Option<&'a StorageClass> {
    match name {
        Some(name) => classes.iter().find(|class| class.metadata.name.as_deref() == Some(name)),
        None => default_class(classes),
    }
}
