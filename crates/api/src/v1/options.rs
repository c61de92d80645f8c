//! Bodies of subresource requests and answers, and what no kind above refers to.

use std::collections::BTreeMap;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::TypedObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ListMeta;
use serde::{Deserialize, Serialize};

use super::vmi::VirtualMachineInstanceGuestOSInfo;
use crate::go;

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct AuthorizedKeysFile {
    #[serde(deserialize_with = "go::or_default")]
    pub file_path: String,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct VMISelector {
    #[serde(deserialize_with = "go::or_default")]
    pub name: String,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct RestartOptions {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grace_period_seconds: Option<i64>,
    #[serde(
        deserialize_with = "go::or_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub dry_run: Vec<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct StartOptions {
    #[serde(
        deserialize_with = "go::or_default",
        skip_serializing_if = "go::is_default"
    )]
    pub paused: bool,
    #[serde(
        deserialize_with = "go::or_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub dry_run: Vec<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PauseOptions {
    #[serde(
        deserialize_with = "go::or_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub dry_run: Vec<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct UnpauseOptions {
    #[serde(
        deserialize_with = "go::or_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub dry_run: Vec<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct StopOptions {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grace_period: Option<i64>,
    #[serde(
        deserialize_with = "go::or_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub dry_run: Vec<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct MigrateOptions {
    #[serde(
        deserialize_with = "go::or_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub dry_run: Vec<String>,
    #[serde(
        deserialize_with = "go::or_default",
        skip_serializing_if = "BTreeMap::is_empty"
    )]
    pub added_node_selector: BTreeMap<String, String>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct EvacuateCancelOptions {
    #[serde(
        deserialize_with = "go::or_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub dry_run: Vec<String>,
    #[serde(deserialize_with = "go::or_default")]
    pub evacuation_node_name: String,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct VirtualMachineInstanceGuestAgentInfo {
    #[serde(
        deserialize_with = "go::or_default",
        skip_serializing_if = "String::is_empty"
    )]
    pub guest_agent_version: String,
    #[serde(
        deserialize_with = "go::or_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub supported_commands: Vec<GuestAgentCommandInfo>,
    #[serde(
        deserialize_with = "go::or_default",
        skip_serializing_if = "String::is_empty"
    )]
    pub hostname: String,
    #[serde(deserialize_with = "go::or_default")]
    pub os: VirtualMachineInstanceGuestOSInfo,
    #[serde(
        deserialize_with = "go::or_default",
        skip_serializing_if = "String::is_empty"
    )]
    pub timezone: String,
    #[serde(
        deserialize_with = "go::or_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub user_list: Vec<VirtualMachineInstanceGuestOSUser>,
    #[serde(deserialize_with = "go::or_default")]
    pub fs_info: VirtualMachineInstanceFileSystemInfo,
    #[serde(
        deserialize_with = "go::or_default",
        skip_serializing_if = "String::is_empty"
    )]
    pub fs_freeze_status: String,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct GuestAgentCommandInfo {
    #[serde(deserialize_with = "go::or_default")]
    pub name: String,
    #[serde(
        deserialize_with = "go::or_default",
        skip_serializing_if = "go::is_default"
    )]
    pub enabled: bool,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct VirtualMachineInstanceGuestOSUserList {
    #[serde(
        deserialize_with = "go::or_default",
        skip_serializing_if = "go::is_default"
    )]
    pub metadata: ListMeta,
    #[serde(deserialize_with = "go::or_default")]
    pub items: Vec<VirtualMachineInstanceGuestOSUser>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct VirtualMachineInstanceGuestOSUser {
    #[serde(deserialize_with = "go::or_default")]
    pub user_name: String,
    #[serde(
        deserialize_with = "go::or_default",
        skip_serializing_if = "String::is_empty"
    )]
    pub domain: String,
    #[serde(
        deserialize_with = "go::or_default",
        skip_serializing_if = "go::is_default"
    )]
    pub login_time: f64,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct VirtualMachineInstanceFileSystemInfo {
    #[serde(deserialize_with = "go::or_default")]
    pub disks: Vec<VirtualMachineInstanceFileSystem>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct VirtualMachineInstanceFileSystemList {
    #[serde(
        deserialize_with = "go::or_default",
        skip_serializing_if = "go::is_default"
    )]
    pub metadata: ListMeta,
    #[serde(deserialize_with = "go::or_default")]
    pub items: Vec<VirtualMachineInstanceFileSystem>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct VirtualMachineInstanceFileSystemDisk {
    #[serde(
        deserialize_with = "go::or_default",
        skip_serializing_if = "String::is_empty"
    )]
    pub serial: String,
    #[serde(deserialize_with = "go::or_default")]
    pub bus_type: String,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct VirtualMachineInstanceFileSystem {
    #[serde(deserialize_with = "go::or_default")]
    pub disk_name: String,
    #[serde(deserialize_with = "go::or_default")]
    pub mount_point: String,
    #[serde(deserialize_with = "go::or_default")]
    pub file_system_type: String,
    #[serde(deserialize_with = "go::or_default")]
    pub used_bytes: i64,
    #[serde(deserialize_with = "go::or_default")]
    pub total_bytes: i64,
    #[serde(
        deserialize_with = "go::or_default",
        skip_serializing_if = "Vec::is_empty"
    )]
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
    #[serde(deserialize_with = "go::or_default")]
    pub move_cursor: bool,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct VSOCKOptions {
    #[serde(deserialize_with = "go::or_default")]
    pub target_port: u32,
    #[serde(rename = "useTLS", skip_serializing_if = "Option::is_none")]
    pub use_tls: Option<bool>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ProfilerResult {
    #[serde(
        deserialize_with = "go::or_default",
        skip_serializing_if = "BTreeMap::is_empty"
    )]
    pub pprof_data: BTreeMap<String, ByteString>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ClusterProfilerResults {
    #[serde(deserialize_with = "go::or_default")]
    pub component_results: BTreeMap<String, ProfilerResult>,
    #[serde(
        deserialize_with = "go::or_default",
        skip_serializing_if = "String::is_empty"
    )]
    pub continue_: String,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ClusterProfilerRequest {
    #[serde(
        deserialize_with = "go::or_default",
        skip_serializing_if = "String::is_empty"
    )]
    pub label_selector: String,
    #[serde(
        deserialize_with = "go::or_default",
        skip_serializing_if = "String::is_empty"
    )]
    pub continue_: String,
    #[serde(deserialize_with = "go::or_default")]
    pub page_size: i64,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct SEVPlatformInfo {
    #[serde(
        deserialize_with = "go::or_default",
        skip_serializing_if = "String::is_empty"
    )]
    pub pdh: String,
    #[serde(
        deserialize_with = "go::or_default",
        skip_serializing_if = "String::is_empty"
    )]
    pub cert_chain: String,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct SEVMeasurementInfo {
    #[serde(
        deserialize_with = "go::or_default",
        skip_serializing_if = "String::is_empty"
    )]
    pub measurement: String,
    #[serde(
        deserialize_with = "go::or_default",
        skip_serializing_if = "go::is_default"
    )]
    pub api_major: u64,
    #[serde(
        deserialize_with = "go::or_default",
        skip_serializing_if = "go::is_default"
    )]
    pub api_minor: u64,
    #[serde(
        rename = "buildID",
        deserialize_with = "go::or_default",
        skip_serializing_if = "go::is_default"
    )]
    pub build_id: u64,
    #[serde(
        deserialize_with = "go::or_default",
        skip_serializing_if = "go::is_default"
    )]
    pub policy: u64,
    #[serde(
        rename = "loaderSHA",
        deserialize_with = "go::or_default",
        skip_serializing_if = "String::is_empty"
    )]
    pub loader_sha: String,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct SEVSessionOptions {
    #[serde(
        deserialize_with = "go::or_default",
        skip_serializing_if = "String::is_empty"
    )]
    pub session: String,
    #[serde(
        deserialize_with = "go::or_default",
        skip_serializing_if = "String::is_empty"
    )]
    pub dh_cert: String,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct SEVSecretOptions {
    #[serde(
        deserialize_with = "go::or_default",
        skip_serializing_if = "String::is_empty"
    )]
    pub header: String,
    #[serde(
        deserialize_with = "go::or_default",
        skip_serializing_if = "String::is_empty"
    )]
    pub secret: String,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ObjectGraphNode {
    #[serde(deserialize_with = "go::or_default")]
    pub object_reference: TypedObjectReference,
    #[serde(
        deserialize_with = "go::or_default",
        skip_serializing_if = "BTreeMap::is_empty"
    )]
    pub labels: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub optional: Option<bool>,
    #[serde(
        deserialize_with = "go::or_default",
        skip_serializing_if = "Vec::is_empty"
    )]
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
