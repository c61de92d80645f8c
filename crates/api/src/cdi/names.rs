//! Annotations, labels and words of CDI that its clients read or write.

pub const GROUP: &str = "cdi.kubevirt.io";
pub const UPLOAD_GROUP: &str = "upload.cdi.kubevirt.io";
/// Where the one CDIConfig is read.
pub const CONFIG_PATH: &str = "/apis/cdi.kubevirt.io/v1beta1/cdiconfigs/config";

/// On a claim: this DataVolume fills it, and nobody may use it before that is done.
pub const POPULATED_FOR: &str = "cdi.kubevirt.io/storage.populatedFor";
/// On a claim: phase of the pod that fills it, as upstream writes it.
pub const POD_PHASE: &str = "cdi.kubevirt.io/storage.pod.phase";
pub const POD_READY: &str = "cdi.kubevirt.io/storage.pod.ready";
pub const POD_RESTARTS: &str = "cdi.kubevirt.io/storage.pod.restarts";
/// On a claim: it waits for an upload.
pub const UPLOAD_REQUEST: &str = "cdi.kubevirt.io/storage.upload.target";
pub const CONTENT_TYPE: &str = "cdi.kubevirt.io/storage.contentType";
/// On a DataVolume or its claim: fill it without waiting for a VM that uses it.
pub const IMMEDIATE_BINDING: &str = "cdi.kubevirt.io/storage.bind.immediate.requested";
/// On a DataVolume or claim: what is in it came from elsewhere (a restored snapshot), there is nothing to do.
pub const PREPOPULATED: &str = "cdi.kubevirt.io/storage.prePopulated";
/// On a DataVolume: do not delete it after success, upstream's default since garbage collection was dropped.
pub const DELETE_AFTER_COMPLETION: &str = "cdi.kubevirt.io/storage.deleteAfterCompletion";

/// On a StorageClass: how clones of its claims are made.
pub const CLONE_STRATEGY: &str = "cdi.kubevirt.io/clone-strategy";
/// The storage makes them, from a claim's `dataSource`.
pub const CSI_CLONE: &str = "csi-clone";
/// On a DataVolume: something was made in the namespace of the claim that it is a clone of.
pub const CLONE_FINALIZER: &str = "cdi.kubevirt.io/cloneSource";

pub const COMPONENT_LABEL: &str = "cdi.kubevirt.io";
pub const IMPORTER: &str = "importer";
/// On pods and claims: uid of the DataVolume they serve.
pub const CREATED_BY_LABEL: &str = "cdi.kubevirt.io/createdBy";

/// Values of [`super::DataVolumeStatus::phase`].
pub mod phase {
    pub const PENDING: &str = "Pending";
    pub const PVC_BOUND: &str = "PVCBound";
    pub const WAIT_FOR_FIRST_CONSUMER: &str = "WaitForFirstConsumer";
    pub const PENDING_POPULATION: &str = "PendingPopulation";
    pub const IMPORT_SCHEDULED: &str = "ImportScheduled";
    pub const IMPORT_IN_PROGRESS: &str = "ImportInProgress";
    pub const CLONE_SCHEDULED: &str = "CloneScheduled";
    pub const CLONE_IN_PROGRESS: &str = "CloneInProgress";
    pub const CSI_CLONE_IN_PROGRESS: &str = "CSICloneInProgress";
    pub const UPLOAD_SCHEDULED: &str = "UploadScheduled";
    pub const UPLOAD_READY: &str = "UploadReady";
    pub const SUCCEEDED: &str = "Succeeded";
    pub const FAILED: &str = "Failed";
}

/// Types of [`super::DataVolumeCondition`].
pub mod condition {
    pub const READY: &str = "Ready";
    pub const BOUND: &str = "Bound";
    pub const RUNNING: &str = "Running";
}
