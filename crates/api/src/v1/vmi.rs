//! VirtualMachineInstance: one run of a machine.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Affinity;
use k8s_openapi::api::core::v1::PodDNSConfig;
use k8s_openapi::api::core::v1::Toleration;
use k8s_openapi::api::core::v1::TopologySpreadConstraint;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde::{Deserialize, Serialize};

use super::domain::{AccessCredential, DomainSpec, Machine, Probe, UtilityVolume, VirtualMachineInstanceResourceClaim};
use super::network::Network;
use super::volumes::Volume;
use crate::go::{null, zero};
use crate::kind::kind;

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct MemoryStatus {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub guest_at_boot: Option<Quantity>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub guest_current: Option<Quantity>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub guest_requested: Option<Quantity>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_overhead: Option<Quantity>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct CPUTopology {
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub cores: u32,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub sockets: u32,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub threads: u32,
}

kind!(VirtualMachineInstance, "virtualmachineinstances", VirtualMachineInstanceSpec, VirtualMachineInstanceStatus);

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct VirtualMachineInstanceSpec {
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub priority_class_name: String,
    #[serde(deserialize_with = "null")]
    pub domain: DomainSpec,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub node_selector: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub affinity: Option<Affinity>,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub scheduler_name: String,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub service_account_name: String,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub tolerations: Vec<Toleration>,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub topology_spread_constraints: Vec<TopologySpreadConstraint>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub eviction_strategy: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_strategy: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub termination_grace_period_seconds: Option<i64>,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub volumes: Vec<Volume>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub liveness_probe: Option<Probe>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub readiness_probe: Option<Probe>,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub hostname: String,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub subdomain: String,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub networks: Vec<Network>,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub dns_policy: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dns_config: Option<PodDNSConfig>,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub access_credentials: Vec<AccessCredential>,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub architecture: String,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub resource_claims: Vec<VirtualMachineInstanceResourceClaim>,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub utility_volumes: Vec<UtilityVolume>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hypervisor: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct VirtualMachineInstancePhaseTransitionTimestamp {
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub phase: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase_transition_timestamp: Option<Time>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct TopologyHints {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tsc_frequency: Option<i64>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct VirtualMachineInstanceStatus {
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub node_name: String,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub reason: String,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub conditions: Vec<VirtualMachineInstanceCondition>,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub phase: String,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub phase_transition_timestamps: Vec<VirtualMachineInstancePhaseTransitionTimestamp>,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub interfaces: Vec<VirtualMachineInstanceNetworkInterface>,
    #[serde(rename = "guestOSInfo", deserialize_with = "null")]
    pub guest_os_info: VirtualMachineInstanceGuestOSInfo,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub migration_state: Option<VirtualMachineInstanceMigrationState>,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub migration_method: String,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub migration_transport: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub qos_class: Option<String>,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub launcher_container_image_version: String,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub evacuation_node_name: String,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub active_pods: BTreeMap<String, String>,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub volume_status: Vec<VolumeStatus>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kernel_boot_status: Option<KernelBootStatus>,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub fs_freeze_status: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub topology_hints: Option<TopologyHints>,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub virtual_machine_revision_name: String,
    #[serde(deserialize_with = "null")]
    pub runtime_user: u64,
    #[serde(rename = "VSOCKCID", skip_serializing_if = "Option::is_none")]
    pub vsockcid: Option<u32>,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub selinux_context: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub machine: Option<Machine>,
    #[serde(rename = "currentCPUTopology", skip_serializing_if = "Option::is_none")]
    pub current_cpu_topology: Option<CPUTopology>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<MemoryStatus>,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub migrated_volumes: Vec<StorageMigratedVolumeInfo>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub changed_block_tracking: Option<ChangedBlockTrackingStatus>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct StorageMigratedVolumeInfo {
    #[serde(deserialize_with = "null")]
    pub volume_name: String,
    #[serde(rename = "sourcePVCInfo", skip_serializing_if = "Option::is_none")]
    pub source_pvc_info: Option<PersistentVolumeClaimInfo>,
    #[serde(rename = "destinationPVCInfo", skip_serializing_if = "Option::is_none")]
    pub destination_pvc_info: Option<PersistentVolumeClaimInfo>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PersistentVolumeClaimInfo {
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub claim_name: String,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub access_modes: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub volume_mode: Option<String>,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub capacity: BTreeMap<String, Quantity>,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub requests: BTreeMap<String, Quantity>,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub preallocated: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub filesystem_overhead: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct VolumeStatus {
    #[serde(deserialize_with = "null")]
    pub name: String,
    #[serde(deserialize_with = "null")]
    pub target: String,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub phase: String,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub reason: String,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub persistent_volume_claim_info: Option<PersistentVolumeClaimInfo>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hotplug_volume: Option<HotplugVolumeStatus>,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub size: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_dump_volume: Option<DomainMemoryDumpInfo>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub container_disk_volume: Option<ContainerDiskInfo>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct KernelInfo {
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub checksum: u32,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct InitrdInfo {
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub checksum: u32,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct KernelBootStatus {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kernel_info: Option<KernelInfo>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub initrd_info: Option<InitrdInfo>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct DomainMemoryDumpInfo {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_timestamp: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub end_timestamp: Option<Time>,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub claim_name: String,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub target_file_name: String,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct HotplugVolumeStatus {
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub attach_pod_name: String,
    #[serde(rename = "attachPodUID", deserialize_with = "null", skip_serializing_if = "zero")]
    pub attach_pod_uid: String,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ContainerDiskInfo {
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub checksum: u32,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct VirtualMachineInstanceCondition {
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
pub struct VirtualMachineInstanceNetworkInterface {
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub ip_address: String,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub mac: String,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub name: String,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub ip_addresses: Vec<String>,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub pod_interface_name: String,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub interface_name: String,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub info_source: String,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub queue_count: i32,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub link_state: String,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct VirtualMachineInstanceGuestOSInfo {
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub name: String,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub kernel_release: String,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub version: String,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub pretty_name: String,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub version_id: String,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub kernel_version: String,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub machine: String,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub id: String,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct VirtualMachineInstanceMigrationSourceState {
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub node: String,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub pod: String,
    #[serde(rename = "migrationUID", deserialize_with = "null", skip_serializing_if = "zero")]
    pub migration_uid: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub domain_name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub domain_namespace: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sync_address: Option<String>,
    #[serde(rename = "persistentStatePVCName", skip_serializing_if = "Option::is_none")]
    pub persistent_state_pvc_name: Option<String>,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub selinux_context: String,
    #[serde(rename = "virtualMachineInstanceUID", skip_serializing_if = "Option::is_none")]
    pub virtual_machine_instance_uid: Option<String>,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub node_selectors: BTreeMap<String, String>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct VirtualMachineInstanceMigrationTargetState {
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub node: String,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub pod: String,
    #[serde(rename = "migrationUID", deserialize_with = "null", skip_serializing_if = "zero")]
    pub migration_uid: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub domain_name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub domain_namespace: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sync_address: Option<String>,
    #[serde(rename = "persistentStatePVCName", skip_serializing_if = "Option::is_none")]
    pub persistent_state_pvc_name: Option<String>,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub selinux_context: String,
    #[serde(rename = "virtualMachineInstanceUID", skip_serializing_if = "Option::is_none")]
    pub virtual_machine_instance_uid: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub domain_ready_timestamp: Option<Time>,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub domain_detected: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_address: Option<String>,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub direct_migration_node_ports: BTreeMap<String, i64>,
    #[serde(rename = "attachmentPodUID", skip_serializing_if = "Option::is_none")]
    pub attachment_pod_uid: Option<String>,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub cpu_set: Vec<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_topology: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct VirtualMachineInstanceMigrationState {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_timestamp: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub end_timestamp: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target_node_domain_ready_timestamp: Option<Time>,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub target_node_domain_detected: bool,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub target_node_address: String,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub target_direct_migration_node_ports: BTreeMap<String, i64>,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub target_node: String,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub target_pod: String,
    #[serde(rename = "targetAttachmentPodUID", deserialize_with = "null", skip_serializing_if = "zero")]
    pub target_attachment_pod_uid: String,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub source_node: String,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub source_pod: String,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub completed: bool,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub failed: bool,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub abort_requested: bool,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub abort_status: String,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub failure_reason: String,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub migration_uid: String,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub mode: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub migration_policy_name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub migration_configuration: Option<VMIMConfigurationOptions>,
    #[serde(rename = "targetCPUSet", deserialize_with = "null", skip_serializing_if = "zero")]
    pub target_cpu_set: Vec<i64>,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub target_node_topology: String,
    #[serde(rename = "sourcePersistentStatePVCName", deserialize_with = "null", skip_serializing_if = "zero")]
    pub source_persistent_state_pvc_name: String,
    #[serde(rename = "targetPersistentStatePVCName", deserialize_with = "null", skip_serializing_if = "zero")]
    pub target_persistent_state_pvc_name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source_state: Option<VirtualMachineInstanceMigrationSourceState>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target_state: Option<VirtualMachineInstanceMigrationTargetState>,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub migration_network_type: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target_memory_overhead: Option<Quantity>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct VirtualMachineInstanceBackupStatus {
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub backup_name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_timestamp: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub end_timestamp: Option<Time>,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub completed: bool,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub failed: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backup_msg: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checkpoint_name: Option<String>,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub volumes: Vec<VirtualMachineInstanceBackupVolumeInfo>,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub quiesce_status: String,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct VirtualMachineInstanceBackupVolumeInfo {
    #[serde(deserialize_with = "null")]
    pub volume_name: String,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ChangedBlockTrackingStatus {
    #[serde(deserialize_with = "null")]
    pub state: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backup_status: Option<VirtualMachineInstanceBackupStatus>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct StallDetectorOptions {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stall_margin: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ewma_alpha: Option<Quantity>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stall_progress_timeout: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub switchover_timeout: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub precopy_possible_factor: Option<Quantity>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub patience_window_decay_factor: Option<Quantity>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub search_local_minima: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub completion_timeout_factor: Option<Quantity>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ExperimentalMigrationOptions {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stall_detector: Option<StallDetectorOptions>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub downtime_tuning: Option<DowntimeTuningOptions>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compression: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct DowntimeTuningOptions {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub initial_ms: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub steps: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_after_iteration: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cooldown_seconds: Option<i32>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct VMIMConfigurationOptions {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_drain_taint_key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parallel_outbound_migrations_per_node: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parallel_migrations_per_cluster: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allow_auto_converge: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bandwidth_per_migration: Option<Quantity>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub completion_timeout_per_gi_b: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_downtime_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub progress_timeout: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub utility_volumes_timeout: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unsafe_migration_override: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allow_post_copy: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allow_workload_disruption: Option<bool>,
    #[serde(rename = "disableTLS", skip_serializing_if = "Option::is_none")]
    pub disable_tls: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network: Option<String>,
    #[serde(rename = "matchSELinuxLevelOnMigration", skip_serializing_if = "Option::is_none")]
    pub match_se_linux_level_on_migration: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub experimental: Option<ExperimentalMigrationOptions>,
}
