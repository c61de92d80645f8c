//! The virtual machine of a VirtualMachineInstance: CPU, memory, firmware, features, clock.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::ExecAction;
use k8s_openapi::api::core::v1::HTTPGetAction;
use k8s_openapi::api::core::v1::TCPSocketAction;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use serde::{Deserialize, Serialize};

use super::devices::{Devices, FeatureState};
use crate::go::{null, zero};

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct DomainSpec {
    #[serde(deserialize_with = "null")]
    pub resources: ResourceRequirements,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu: Option<CPU>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<Memory>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub machine: Option<Machine>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub firmware: Option<Firmware>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clock: Option<Clock>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub features: Option<Features>,
    #[serde(deserialize_with = "null")]
    pub devices: Devices,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub io_threads_policy: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub io_threads: Option<DiskIOThreads>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub chassis: Option<Chassis>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub launch_security: Option<LaunchSecurity>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reboot_policy: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Chassis {
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub manufacturer: String,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub version: String,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub serial: String,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub asset: String,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub sku: String,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Bootloader {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bios: Option<BIOS>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub efi: Option<EFI>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct BIOS {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub use_serial: Option<bool>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct EFI {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secure_boot: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub persistent: Option<bool>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct KernelBootContainer {
    #[serde(deserialize_with = "null")]
    pub image: String,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub image_pull_secret: String,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub image_pull_policy: String,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub kernel_path: String,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub initrd_path: String,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct KernelBoot {
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub kernel_args: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub container: Option<KernelBootContainer>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ResourceRequirements {
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub requests: BTreeMap<String, Quantity>,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub limits: BTreeMap<String, Quantity>,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub overcommit_guest_overhead: bool,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct CPU {
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub cores: u32,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub sockets: u32,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub max_sockets: u32,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub threads: u32,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub model: String,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub features: Vec<CPUFeature>,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub dedicated_cpu_placement: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub numa: Option<NUMA>,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub isolate_emulator_thread: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub realtime: Option<Realtime>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Realtime {
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub mask: String,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct NUMAGuestMappingPassthrough {}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct NUMA {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub guest_mapping_passthrough: Option<NUMAGuestMappingPassthrough>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct CPUFeature {
    #[serde(deserialize_with = "null")]
    pub name: String,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub policy: String,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Memory {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hugepages: Option<Hugepages>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub guest: Option<Quantity>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_guest: Option<Quantity>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reserved_overhead: Option<ReservedOverhead>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Hugepages {
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub page_size: String,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ReservedOverhead {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub added_overhead: Option<Quantity>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mem_lock: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Machine {
    #[serde(deserialize_with = "null")]
    pub type_: String,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Firmware {
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub uuid: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bootloader: Option<Bootloader>,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub serial: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kernel_boot: Option<KernelBoot>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub acpi: Option<ACPI>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ACPI {
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub slic_name_ref: String,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub msdm_name_ref: String,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct LaunchSecurity {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sev: Option<SEV>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub snp: Option<SEVSNP>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tdx: Option<TDX>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct SEV {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy: Option<SEVPolicy>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attestation: Option<SEVAttestation>,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub session: String,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub dh_cert: String,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct SEVPolicy {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub encrypted_state: Option<bool>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SEVSNP {}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SEVAttestation {}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TDX {}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct UtilityVolume {
    #[serde(deserialize_with = "null")]
    pub name: String,
    #[serde(deserialize_with = "null")]
    pub claim_name: String,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub read_only: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub type_: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ClockOffsetUTC {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub offset_seconds: Option<i64>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Clock {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub utc: Option<ClockOffsetUTC>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timezone: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timer: Option<Timer>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Timer {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hpet: Option<HPETTimer>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kvm: Option<KVMTimer>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pit: Option<PITTimer>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rtc: Option<RTCTimer>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hyperv: Option<HypervTimer>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct RTCTimer {
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub tick_policy: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub present: Option<bool>,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub track: String,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct HPETTimer {
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub tick_policy: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub present: Option<bool>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PITTimer {
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub tick_policy: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub present: Option<bool>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct KVMTimer {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub present: Option<bool>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct HypervTimer {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub present: Option<bool>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct HyperVPassthrough {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Features {
    #[serde(deserialize_with = "null")]
    pub acpi: FeatureState,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub apic: Option<FeatureAPIC>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hyperv_passthrough: Option<HyperVPassthrough>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hyperv: Option<FeatureHyperv>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub smm: Option<FeatureState>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kvm: Option<FeatureKVM>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pvspinlock: Option<FeatureState>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct SyNICTimer {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub direct: Option<FeatureState>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct FeatureAPIC {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub end_of_interrupt: bool,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct FeatureSpinlocks {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spinlocks: Option<u32>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct FeatureVendorID {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub vendorid: String,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct TLBFlush {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub direct: Option<FeatureState>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub extended: Option<FeatureState>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct FeatureHyperv {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub relaxed: Option<FeatureState>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vapic: Option<FeatureState>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spinlocks: Option<FeatureSpinlocks>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vpindex: Option<FeatureState>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub runtime: Option<FeatureState>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub synic: Option<FeatureState>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub synictimer: Option<SyNICTimer>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reset: Option<FeatureState>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vendorid: Option<FeatureVendorID>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub frequencies: Option<FeatureState>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reenlightenment: Option<FeatureState>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tlbflush: Option<TLBFlush>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ipi: Option<FeatureState>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub evmcs: Option<FeatureState>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct FeatureKVM {
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub hidden: bool,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct AccessCredentialSecretSource {
    #[serde(deserialize_with = "null")]
    pub secret_name: String,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ConfigDriveSSHPublicKeyAccessCredentialPropagation {}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct NoCloudSSHPublicKeyAccessCredentialPropagation {}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct QemuGuestAgentUserPasswordAccessCredentialPropagation {}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct QemuGuestAgentSSHPublicKeyAccessCredentialPropagation {
    #[serde(deserialize_with = "null")]
    pub users: Vec<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct SSHPublicKeyAccessCredentialSource {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret: Option<AccessCredentialSecretSource>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct SSHPublicKeyAccessCredentialPropagationMethod {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub config_drive: Option<ConfigDriveSSHPublicKeyAccessCredentialPropagation>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub no_cloud: Option<NoCloudSSHPublicKeyAccessCredentialPropagation>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub qemu_guest_agent: Option<QemuGuestAgentSSHPublicKeyAccessCredentialPropagation>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct SSHPublicKeyAccessCredential {
    #[serde(deserialize_with = "null")]
    pub source: SSHPublicKeyAccessCredentialSource,
    #[serde(deserialize_with = "null")]
    pub propagation_method: SSHPublicKeyAccessCredentialPropagationMethod,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct UserPasswordAccessCredentialSource {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret: Option<AccessCredentialSecretSource>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct UserPasswordAccessCredentialPropagationMethod {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub qemu_guest_agent: Option<QemuGuestAgentUserPasswordAccessCredentialPropagation>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct UserPasswordAccessCredential {
    #[serde(deserialize_with = "null")]
    pub source: UserPasswordAccessCredentialSource,
    #[serde(deserialize_with = "null")]
    pub propagation_method: UserPasswordAccessCredentialPropagationMethod,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct AccessCredential {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ssh_public_key: Option<SSHPublicKeyAccessCredential>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user_password: Option<UserPasswordAccessCredential>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct DiskIOThreads {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub supplemental_pool_thread_count: Option<u32>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct VirtualMachineInstanceResourceClaim {
    #[serde(deserialize_with = "null")]
    pub name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resource_claim_name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resource_claim_template_name: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Probe {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exec: Option<ExecAction>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub guest_agent_ping: Option<GuestAgentPing>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub http_get: Option<HTTPGetAction>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tcp_socket: Option<TCPSocketAction>,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub initial_delay_seconds: i32,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub timeout_seconds: i32,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub period_seconds: i32,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub success_threshold: i32,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub failure_threshold: i32,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct GuestAgentPing {}
