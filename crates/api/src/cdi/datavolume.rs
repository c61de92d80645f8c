//! DataVolume.

use k8s_openapi::api::core::v1::{
    PersistentVolumeClaimSpec, TypedLocalObjectReference, TypedObjectReference, VolumeResourceRequirements,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, Time};
use serde::{Deserialize, Serialize};

use crate::go::{null, zero};
use crate::kind::kind;

kind!(in "cdi.kubevirt.io", "v1beta1"; DataVolume, "datavolumes", DataVolumeSpec, DataVolumeStatus);

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct DataVolumeSpec {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<DataVolumeSource>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source_ref: Option<DataVolumeSourceRef>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pvc: Option<PersistentVolumeClaimSpec>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub storage: Option<StorageSpec>,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub priority_class_name: String,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub service_account_name: String,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub content_type: String,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub checkpoints: Vec<DataVolumeCheckpoint>,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub final_checkpoint: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preallocation: Option<bool>,
}

/// A claim of which much may be left out.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct StorageSpec {
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub access_modes: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selector: Option<LabelSelector>,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub resources: VolumeResourceRequirements,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub volume_name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub storage_class_name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub volume_mode: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data_source: Option<TypedLocalObjectReference>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data_source_ref: Option<TypedObjectReference>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct DataVolumeCheckpoint {
    #[serde(deserialize_with = "null")]
    pub previous: String,
    #[serde(deserialize_with = "null")]
    pub current: String,
}

/// Exactly one is set. Sources that are only passed on stay as they are written.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct DataVolumeSource {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub http: Option<DataVolumeSourceHttp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub s3: Option<serde_json::Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gcs: Option<serde_json::Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub registry: Option<DataVolumeSourceRegistry>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pvc: Option<DataVolumeSourcePvc>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub upload: Option<DataVolumeSourceUpload>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub blank: Option<DataVolumeBlankImage>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub imageio: Option<serde_json::Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vddk: Option<serde_json::Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<DataVolumeSourceSnapshot>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct DataVolumeSourcePvc {
    #[serde(deserialize_with = "null")]
    pub namespace: String,
    #[serde(deserialize_with = "null")]
    pub name: String,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct DataVolumeSourceSnapshot {
    #[serde(deserialize_with = "null")]
    pub namespace: String,
    #[serde(deserialize_with = "null")]
    pub name: String,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct DataVolumeBlankImage {}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct DataVolumeSourceUpload {}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct DataVolumeSourceHttp {
    #[serde(deserialize_with = "null")]
    pub url: String,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub secret_ref: String,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub cert_config_map: String,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub extra_headers: Vec<String>,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub secret_extra_headers: Vec<String>,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub checksum: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub insecure_skip_verify: Option<bool>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct DataVolumeSourceRegistry {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image_stream: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pull_method: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cert_config_map: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub platform: Option<PlatformOptions>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PlatformOptions {
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub architecture: String,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct DataVolumeSourceRef {
    #[serde(deserialize_with = "null")]
    pub kind: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    #[serde(deserialize_with = "null")]
    pub name: String,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct DataVolumeStatus {
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub claim_name: String,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub phase: String,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub progress: String,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub restart_count: i32,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub conditions: Vec<DataVolumeCondition>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct DataVolumeCondition {
    #[serde(rename = "type", deserialize_with = "null")]
    pub type_: String,
    #[serde(deserialize_with = "null")]
    pub status: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_transition_time: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_heartbeat_time: Option<Time>,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub reason: String,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub message: String,
}
