//! Bodies of subresource requests and answers, and what no kind above refers to.

use std::collections::BTreeMap;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::TypedObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ListMeta;
use serde::{Deserialize, Serialize};

use super::vmi::VirtualMachineInstanceGuestOSInfo;
use crate::go::{null, zero};

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct AuthorizedKeysFile {
    #[serde(deserialize_with = "null")]
    pub file_path: String,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct VMISelector {
    #[serde(deserialize_with = "null")]
    pub name: String,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct RestartOptions {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grace_period_seconds: Option<i64>,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub dry_run: Vec<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct StartOptions {
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub paused: bool,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub dry_run: Vec<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PauseOptions {
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub dry_run: Vec<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct UnpauseOptions {
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub dry_run: Vec<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct StopOptions {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grace_period: Option<i64>,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub dry_run: Vec<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct MigrateOptions {
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub dry_run: Vec<String>,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub added_node_selector: BTreeMap<String, String>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct EvacuateCancelOptions {
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub dry_run: Vec<String>,
    #[serde(deserialize_with = "null")]
    pub evacuation_node_name: String,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct VirtualMachineInstanceGuestAgentInfo {
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub guest_agent_version: String,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub supported_commands: Vec<GuestAgentCommandInfo>,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub hostname: String,
    #[serde(deserialize_with = "null")]
    pub os: VirtualMachineInstanceGuestOSInfo,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub timezone: String,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub user_list: Vec<VirtualMachineInstanceGuestOSUser>,
    #[serde(deserialize_with = "null")]
    pub fs_info: VirtualMachineInstanceFileSystemInfo,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub fs_freeze_status: String,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct GuestAgentCommandInfo {
    #[serde(deserialize_with = "null")]
    pub name: String,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub enabled: bool,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct VirtualMachineInstanceGuestOSUserList {
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub metadata: ListMeta,
    #[serde(deserialize_with = "null")]
    pub items: Vec<VirtualMachineInstanceGuestOSUser>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct VirtualMachineInstanceGuestOSUser {
    #[serde(deserialize_with = "null")]
    pub user_name: String,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub domain: String,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub login_time: f64,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct VirtualMachineInstanceFileSystemInfo {
    #[serde(deserialize_with = "null")]
    pub disks: Vec<VirtualMachineInstanceFileSystem>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct VirtualMachineInstanceFileSystemList {
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub metadata: ListMeta,
    #[serde(deserialize_with = "null")]
    pub items: Vec<VirtualMachineInstanceFileSystem>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct VirtualMachineInstanceFileSystemDisk {
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub serial: String,
    #[serde(deserialize_with = "null")]
    pub bus_type: String,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct VirtualMachineInstanceFileSystem {
    #[serde(deserialize_with = "null")]
    pub disk_name: String,
    #[serde(deserialize_with = "null")]
    pub mount_point: String,
    #[serde(deserialize_with = "null")]
    pub file_system_type: String,
    #[serde(deserialize_with = "null")]
    pub used_bytes: i64,
    #[serde(deserialize_with = "null")]
    pub total_bytes: i64,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub disk: Vec<VirtualMachineInstanceFileSystemDisk>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct FreezeUnfreezeTimeout {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unfreeze_timeout: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ScreenshotOptions {
    #[serde(deserialize_with = "null")]
    pub move_cursor: bool,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct VSOCKOptions {
    #[serde(deserialize_with = "null")]
    pub target_port: u32,
    #[serde(rename = "useTLS", skip_serializing_if = "Option::is_none")]
    pub use_tls: Option<bool>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ProfilerResult {
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub pprof_data: BTreeMap<String, ByteString>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ClusterProfilerResults {
    #[serde(deserialize_with = "null")]
    pub component_results: BTreeMap<String, ProfilerResult>,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub continue_: String,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ClusterProfilerRequest {
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub label_selector: String,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub continue_: String,
    #[serde(deserialize_with = "null")]
    pub page_size: i64,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct SEVPlatformInfo {
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub pdh: String,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub cert_chain: String,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct SEVMeasurementInfo {
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub measurement: String,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub api_major: u64,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub api_minor: u64,
    #[serde(rename = "buildID", deserialize_with = "null", skip_serializing_if = "zero")]
    pub build_id: u64,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub policy: u64,
    #[serde(rename = "loaderSHA", deserialize_with = "null", skip_serializing_if = "zero")]
    pub loader_sha: String,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct SEVSessionOptions {
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub session: String,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub dh_cert: String,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct SEVSecretOptions {
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub header: String,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub secret: String,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ObjectGraphNode {
    #[serde(deserialize_with = "null")]
    pub object_reference: TypedObjectReference,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub labels: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub optional: Option<bool>,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub children: Vec<ObjectGraphNode>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ObjectGraphOptions {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub include_optional_nodes: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub label_selector: Option<LabelSelector>,
}
