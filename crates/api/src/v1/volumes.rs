//! What disks and file systems are made of.

use k8s_openapi::api::core::v1::DownwardAPIVolumeFile;
use k8s_openapi::api::core::v1::LocalObjectReference;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use serde::{Deserialize, Serialize};

use crate::go::{null, zero};

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct HostDisk {
    #[serde(deserialize_with = "null")]
    pub path: String,
    #[serde(deserialize_with = "null")]
    pub type_: String,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub capacity: Quantity,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shared: Option<bool>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ConfigMapVolumeSource {
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub optional: Option<bool>,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub volume_label: String,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct SecretVolumeSource {
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub secret_name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub optional: Option<bool>,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub volume_label: String,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct DownwardAPIVolumeSource {
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub fields: Vec<DownwardAPIVolumeFile>,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub volume_label: String,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ServiceAccountVolumeSource {
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub service_account_name: String,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ContainerPathVolumeSource {
    #[serde(deserialize_with = "null")]
    pub path: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read_only: Option<bool>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct DownwardMetricsVolumeSource {}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct SysprepSource {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret: Option<LocalObjectReference>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub config_map: Option<LocalObjectReference>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct CloudInitNoCloudSource {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<LocalObjectReference>,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub user_data_base64: String,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub user_data: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network_data_secret_ref: Option<LocalObjectReference>,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub network_data_base64: String,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub network_data: String,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct CloudInitConfigDriveSource {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<LocalObjectReference>,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub user_data_base64: String,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub user_data: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network_data_secret_ref: Option<LocalObjectReference>,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub network_data_base64: String,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub network_data: String,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Volume {
    #[serde(deserialize_with = "null")]
    pub name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host_disk: Option<HostDisk>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub persistent_volume_claim: Option<PersistentVolumeClaimVolumeSource>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cloud_init_no_cloud: Option<CloudInitNoCloudSource>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cloud_init_config_drive: Option<CloudInitConfigDriveSource>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sysprep: Option<SysprepSource>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub container_disk: Option<ContainerDiskSource>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ephemeral: Option<EphemeralVolumeSource>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub empty_disk: Option<EmptyDiskSource>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data_volume: Option<DataVolumeSource>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub config_map: Option<ConfigMapVolumeSource>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret: Option<SecretVolumeSource>,
    #[serde(rename = "downwardAPI", skip_serializing_if = "Option::is_none")]
    pub downward_api: Option<DownwardAPIVolumeSource>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service_account: Option<ServiceAccountVolumeSource>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub downward_metrics: Option<DownwardMetricsVolumeSource>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_dump: Option<MemoryDumpVolumeSource>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub container_path: Option<ContainerPathVolumeSource>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct DataVolumeSource {
    #[serde(deserialize_with = "null")]
    pub name: String,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub hotpluggable: bool,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PersistentVolumeClaimVolumeSource {
    #[serde(deserialize_with = "null")]
    pub claim_name: String,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub read_only: bool,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub hotpluggable: bool,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct MemoryDumpVolumeSource {
    #[serde(deserialize_with = "null")]
    pub claim_name: String,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub read_only: bool,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub hotpluggable: bool,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct EphemeralVolumeSource {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub persistent_volume_claim: Option<k8s_openapi::api::core::v1::PersistentVolumeClaimVolumeSource>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct EmptyDiskSource {
    #[serde(deserialize_with = "null")]
    pub capacity: Quantity,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ContainerDiskSource {
    #[serde(deserialize_with = "null")]
    pub image: String,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub image_pull_secret: String,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub path: String,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub image_pull_policy: String,
}
