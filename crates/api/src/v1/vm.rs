//! VirtualMachine: a machine that is kept, running or not.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde::{Deserialize, Serialize};

use super::devices::Disk;
use super::replicaset::VirtualMachineInstanceTemplateSpec;
use super::vmi::{ChangedBlockTrackingStatus, StorageMigratedVolumeInfo};
use super::volumes::{DataVolumeSource, PersistentVolumeClaimVolumeSource};
use crate::go::{null, zero};
use crate::kind::kind;

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct HotplugVolumeSource {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub persistent_volume_claim: Option<PersistentVolumeClaimVolumeSource>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data_volume: Option<DataVolumeSource>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct DataVolumeTemplateDummyStatus {}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct DataVolumeTemplateSpec {
    #[serde(deserialize_with = "null")]
    pub metadata: ObjectMeta,
    #[serde(deserialize_with = "null")]
    pub spec: serde_json::Value,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<DataVolumeTemplateDummyStatus>,
}

kind!(VirtualMachine, "virtualmachines", VirtualMachineSpec, VirtualMachineStatus);

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct VirtualMachineSpec {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub running: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run_strategy: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instancetype: Option<InstancetypeMatcher>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preference: Option<PreferenceMatcher>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub template: Option<VirtualMachineInstanceTemplateSpec>,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub data_volume_templates: Vec<DataVolumeTemplateSpec>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub update_volumes_strategy: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct VirtualMachineStartFailure {
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub consecutive_fail_count: i64,
    #[serde(rename = "lastFailedVMIUID", deserialize_with = "null", skip_serializing_if = "zero")]
    pub last_failed_vmiuid: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_after_timestamp: Option<Time>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct VirtualMachineStatus {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub snapshot_in_progress: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub restore_in_progress: Option<String>,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub created: bool,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub ready: bool,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub printable_status: String,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub conditions: Vec<VirtualMachineCondition>,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub state_change_requests: Vec<VirtualMachineStateChangeRequest>,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub volume_requests: Vec<VirtualMachineVolumeRequest>,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub volume_snapshot_statuses: Vec<VolumeSnapshotStatus>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_failure: Option<VirtualMachineStartFailure>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_dump_request: Option<VirtualMachineMemoryDumpRequest>,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub observed_generation: i64,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub desired_generation: i64,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub run_strategy: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub volume_update_state: Option<VolumeUpdateState>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub changed_block_tracking: Option<ChangedBlockTrackingStatus>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instancetype_ref: Option<InstancetypeStatusRef>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preference_ref: Option<InstancetypeStatusRef>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ControllerRevisionRef {
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub name: String,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct InstancetypeStatusRef {
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub name: String,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub kind: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub controller_revision_ref: Option<ControllerRevisionRef>,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub infer_from_volume: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub infer_from_volume_failure_policy: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct VolumeUpdateState {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub volume_migration_state: Option<VolumeMigrationState>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct VolumeMigrationState {
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub migrated_volumes: Vec<StorageMigratedVolumeInfo>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct VolumeSnapshotStatus {
    #[serde(deserialize_with = "null")]
    pub name: String,
    #[serde(deserialize_with = "null")]
    pub enabled: bool,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub reason: String,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct VirtualMachineVolumeRequest {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub add_volume_options: Option<AddVolumeOptions>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remove_volume_options: Option<RemoveVolumeOptions>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct VirtualMachineStateChangeRequest {
    #[serde(deserialize_with = "null")]
    pub action: String,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub data: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct VirtualMachineCondition {
    #[serde(deserialize_with = "null")]
    pub type_: String,
    #[serde(deserialize_with = "null")]
    pub status: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_probe_time: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_transition_time: Option<Time>,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub reason: String,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub message: String,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct VirtualMachineMemoryDumpRequest {
    #[serde(deserialize_with = "null")]
    pub claim_name: String,
    #[serde(deserialize_with = "null")]
    pub phase: String,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub remove: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_timestamp: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub end_timestamp: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file_name: Option<String>,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub message: String,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct AddVolumeOptions {
    #[serde(deserialize_with = "null")]
    pub name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk: Option<Disk>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub volume_source: Option<HotplugVolumeSource>,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub dry_run: Vec<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct RemoveVolumeOptions {
    #[serde(deserialize_with = "null")]
    pub name: String,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub dry_run: Vec<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct InstancetypeMatcher {
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub name: String,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub kind: String,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub revision_name: String,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub infer_from_volume: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub infer_from_volume_failure_policy: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PreferenceMatcher {
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub name: String,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub kind: String,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub revision_name: String,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub infer_from_volume: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub infer_from_volume_failure_policy: Option<String>,
}
