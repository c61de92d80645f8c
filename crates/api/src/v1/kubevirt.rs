//! KubeVirt: the installation's own configuration.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Affinity;
use k8s_openapi::api::core::v1::LocalObjectReference;
use k8s_openapi::api::core::v1::Toleration;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde::{Deserialize, Serialize};

use crate::go::{null, zero};
use crate::kind::kind;

kind!(KubeVirt, "kubevirts", KubeVirtSpec, KubeVirtStatus);

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct KubeVirtSelfSignConfiguration {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ca_rotate_interval: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cert_rotate_interval: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ca_overlap_interval: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ca: Option<CertConfig>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server: Option<CertConfig>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct CertConfig {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub duration: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub renew_before: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct KubeVirtCertificateRotateStrategy {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub self_signed: Option<KubeVirtSelfSignConfiguration>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct KubeVirtWorkloadUpdateStrategy {
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub workload_update_methods: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub batch_eviction_size: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub batch_eviction_interval: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct KubeVirtSpec {
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub image_tag: String,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub image_registry: String,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub image_pull_policy: String,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub image_pull_secrets: Vec<LocalObjectReference>,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub monitor_namespace: String,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub service_monitor_namespace: String,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub monitor_account: String,
    #[serde(deserialize_with = "null")]
    pub workload_update_strategy: KubeVirtWorkloadUpdateStrategy,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub uninstall_strategy: String,
    #[serde(deserialize_with = "null")]
    pub certificate_rotate_strategy: KubeVirtCertificateRotateStrategy,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub product_version: String,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub product_name: String,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub product_component: String,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub synchronization_port: String,
    #[serde(deserialize_with = "null")]
    pub configuration: KubeVirtConfiguration,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub infra: Option<ComponentConfig>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workloads: Option<ComponentConfig>,
    #[serde(deserialize_with = "null")]
    pub customize_components: CustomizeComponents,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct CustomizeComponents {
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub patches: Vec<CustomizeComponentsPatch>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub flags: Option<Flags>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Flags {
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub api: BTreeMap<String, String>,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub controller: BTreeMap<String, String>,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub handler: BTreeMap<String, String>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct CustomizeComponentsPatch {
    #[serde(deserialize_with = "null")]
    pub resource_name: String,
    #[serde(deserialize_with = "null")]
    pub resource_type: String,
    #[serde(deserialize_with = "null")]
    pub patch: String,
    #[serde(deserialize_with = "null")]
    pub type_: String,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct GenerationStatus {
    #[serde(deserialize_with = "null")]
    pub group: String,
    #[serde(deserialize_with = "null")]
    pub resource: String,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub namespace: String,
    #[serde(deserialize_with = "null")]
    pub name: String,
    #[serde(deserialize_with = "null")]
    pub last_generation: i64,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub hash: String,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct KubeVirtStatus {
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub phase: String,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub conditions: Vec<KubeVirtCondition>,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub operator_version: String,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub target_kube_virt_registry: String,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub target_kube_virt_version: String,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub target_deployment_config: String,
    #[serde(rename = "targetDeploymentID", deserialize_with = "null", skip_serializing_if = "zero")]
    pub target_deployment_id: String,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub observed_kube_virt_registry: String,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub observed_kube_virt_version: String,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub observed_deployment_config: String,
    #[serde(rename = "observedDeploymentID", deserialize_with = "null", skip_serializing_if = "zero")]
    pub observed_deployment_id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outdated_virtual_machine_instance_workloads: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub default_architecture: String,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub generations: Vec<GenerationStatus>,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub synchronization_addresses: Vec<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct KubeVirtCondition {
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
pub struct TokenBucketRateLimiter {
    #[serde(deserialize_with = "null")]
    pub qps: f32,
    #[serde(deserialize_with = "null")]
    pub burst: i64,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct RateLimiter {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token_bucket_rate_limiter: Option<TokenBucketRateLimiter>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct RESTClientConfiguration {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate_limiter: Option<RateLimiter>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ReloadableComponentConfiguration {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rest_client: Option<RESTClientConfiguration>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct KubeVirtConfiguration {
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub cpu_model: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_request: Option<Quantity>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub developer_configuration: Option<DeveloperConfiguration>,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub emulated_machines: Vec<String>,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub image_pull_policy: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub migrations: Option<MigrationConfiguration>,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub machine_type: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network: Option<NetworkConfiguration>,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub ovmf_path: String,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub selinux_launcher_type: String,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub default_runtime_class: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub smbios: Option<SMBiosConfiguration>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub architecture_configuration: Option<ArchConfiguration>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub eviction_strategy: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub additional_guest_memory_overhead_ratio: Option<String>,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub support_container_resources: Vec<SupportContainerResources>,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub supported_guest_agent_versions: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mem_balloon_stats_period: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub permitted_host_devices: Option<PermittedHostDevices>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mediated_devices_configuration: Option<MediatedDevicesConfiguration>,
    #[serde(rename = "minCPUModel", deserialize_with = "null", skip_serializing_if = "zero")]
    pub min_cpu_model: String,
    #[serde(rename = "obsoleteCPUModels", deserialize_with = "null", skip_serializing_if = "zero")]
    pub obsolete_cpu_models: BTreeMap<String, bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub virtual_machine_instances_per_node: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub api_configuration: Option<ReloadableComponentConfiguration>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub webhook_configuration: Option<ReloadableComponentConfiguration>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub controller_configuration: Option<ReloadableComponentConfiguration>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub handler_configuration: Option<ReloadableComponentConfiguration>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls_configuration: Option<TLSConfiguration>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seccomp_configuration: Option<SeccompConfiguration>,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub vm_state_storage_class: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub virtual_machine_options: Option<VirtualMachineOptions>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ksm_configuration: Option<KSMConfiguration>,
    #[serde(rename = "autoCPULimitNamespaceLabelSelector", skip_serializing_if = "Option::is_none")]
    pub auto_cpu_limit_namespace_label_selector: Option<LabelSelector>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub live_update_configuration: Option<LiveUpdateConfiguration>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vm_rollout_strategy: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub common_instancetypes_deployment: Option<CommonInstancetypesDeployment>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub virt_template_deployment: Option<VirtTemplateDeployment>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instancetype: Option<InstancetypeConfiguration>,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub hypervisors: Vec<HypervisorConfiguration>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub changed_block_tracking_label_selectors: Option<ChangedBlockTrackingSelectors>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub persistent_reservation_configuration: Option<PersistentReservationConfiguration>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub confidential_compute: Option<ConfidentialComputeConfiguration>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub role_aggregation_strategy: Option<String>,
    /// What this build does not know, kept so that a write does not lose it.
    #[serde(flatten)]
    pub other: BTreeMap<String, serde_json::Value>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct TDXAttestationConfiguration {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enforced: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub qgs_socket_path: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct TDXConfiguration {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attestation: Option<TDXAttestationConfiguration>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ConfidentialComputeConfiguration {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tdx: Option<TDXConfiguration>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct HypervisorConfiguration {
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub name: String,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ChangedBlockTrackingSelectors {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace_label_selector: Option<LabelSelector>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub virtual_machine_label_selector: Option<LabelSelector>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct InstancetypeConfiguration {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reference_policy: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct CommonInstancetypesDeployment {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct VirtTemplateDeployment {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ArchConfiguration {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub amd64: Option<ArchSpecificConfiguration>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub arm64: Option<ArchSpecificConfiguration>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ppc64le: Option<ArchSpecificConfiguration>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub s390x: Option<ArchSpecificConfiguration>,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub default_architecture: String,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ArchSpecificConfiguration {
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub ovmf_path: String,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub emulated_machines: Vec<String>,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub machine_type: String,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct SMBiosConfiguration {
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub manufacturer: String,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub product: String,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub version: String,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub sku: String,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub family: String,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct SupportContainerResources {
    #[serde(deserialize_with = "null")]
    pub type_: String,
    #[serde(deserialize_with = "null")]
    pub resources: ResourceRequirementsWithoutClaims,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct CustomProfile {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub localhost_profile: Option<String>,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub runtime_default_profile: bool,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct VirtualMachineInstanceProfile {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub custom_profile: Option<CustomProfile>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct SeccompConfiguration {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub virtual_machine_instance_profile: Option<VirtualMachineInstanceProfile>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct VirtualMachineOptions {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disable_free_page_reporting: Option<DisableFreePageReporting>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disable_serial_console_log: Option<DisableSerialConsoleLog>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct DisableFreePageReporting {}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct DisableSerialConsoleLog {}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct TLSConfiguration {
    #[serde(rename = "minTLSVersion", deserialize_with = "null", skip_serializing_if = "zero")]
    pub min_tls_version: String,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub ciphers: Vec<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct MigrationConfiguration {
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
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct DiskVerification {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_limit: Option<Quantity>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct DeveloperConfiguration {
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub feature_gates: Vec<String>,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub disabled_feature_gates: Vec<String>,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub pvc_tolerate_less_space_up_to_percent: i64,
    #[serde(rename = "minimumReservePVCBytes", deserialize_with = "null", skip_serializing_if = "zero")]
    pub minimum_reserve_pvc_bytes: u64,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub memory_overcommit: i64,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub node_selectors: BTreeMap<String, String>,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub use_emulation: bool,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub cpu_allocation_ratio: i64,
    #[serde(rename = "minimumClusterTSCFrequency", skip_serializing_if = "Option::is_none")]
    pub minimum_cluster_tsc_frequency: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk_verification: Option<DiskVerification>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub log_verbosity: Option<LogVerbosity>,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub cluster_profiler: bool,
    /// What this build does not know, kept so that a write does not lose it.
    #[serde(flatten)]
    pub other: BTreeMap<String, serde_json::Value>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct LogVerbosity {
    #[serde(rename = "virtAPI", deserialize_with = "null", skip_serializing_if = "zero")]
    pub virt_api: u64,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub virt_controller: u64,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub virt_handler: u64,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub virt_launcher: u64,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub virt_operator: u64,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub virt_synchronization_controller: u64,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub node_verbosity: BTreeMap<String, u64>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PermittedHostDevices {
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub pci_host_devices: Vec<PciHostDevice>,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub mediated_devices: Vec<MediatedHostDevice>,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub usb: Vec<USBHostDevice>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct USBHostDevice {
    #[serde(deserialize_with = "null")]
    pub resource_name: String,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub selectors: Vec<USBSelector>,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub external_resource_provider: bool,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct USBSelector {
    #[serde(deserialize_with = "null")]
    pub vendor: String,
    #[serde(deserialize_with = "null")]
    pub product: String,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PciHostDevice {
    #[serde(deserialize_with = "null")]
    pub pci_vendor_selector: String,
    #[serde(deserialize_with = "null")]
    pub resource_name: String,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub external_resource_provider: bool,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct MediatedHostDevice {
    #[serde(deserialize_with = "null")]
    pub mdev_name_selector: String,
    #[serde(deserialize_with = "null")]
    pub resource_name: String,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub external_resource_provider: bool,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct MediatedDevicesConfiguration {
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub mediated_devices_types: Vec<String>,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub mediated_device_types: Vec<String>,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub node_mediated_device_types: Vec<NodeMediatedDeviceTypesConfig>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct NodeMediatedDeviceTypesConfig {
    #[serde(deserialize_with = "null")]
    pub node_selector: BTreeMap<String, String>,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub mediated_devices_types: Vec<String>,
    #[serde(deserialize_with = "null")]
    pub mediated_device_types: Vec<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct KSMConfiguration {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_label_selector: Option<LabelSelector>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct NetworkConfiguration {
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub default_network_interface: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub permit_slirp_interface: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub permit_bridge_interface_on_pod_network: Option<bool>,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub binding: BTreeMap<String, InterfaceBindingPlugin>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct InterfaceBindingPlugin {
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub sidecar_image: String,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub network_attachment_definition: String,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub domain_attachment_type: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub migration: Option<InterfaceBindingMigration>,
    #[serde(rename = "downwardAPI", deserialize_with = "null", skip_serializing_if = "zero")]
    pub downward_api: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compute_resource_overhead: Option<ResourceRequirementsWithoutClaims>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ResourceRequirementsWithoutClaims {
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub limits: BTreeMap<String, Quantity>,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub requests: BTreeMap<String, Quantity>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct InterfaceBindingMigration {
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub method: String,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct LiveUpdateConfiguration {
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub max_hotplug_ratio: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_cpu_sockets: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_guest: Option<Quantity>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PersistentReservationConfiguration {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct NodePlacement {
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub node_selector: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub affinity: Option<Affinity>,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub tolerations: Vec<Toleration>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ComponentConfig {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_placement: Option<NodePlacement>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replicas: Option<u8>,
}
