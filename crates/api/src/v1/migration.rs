//! VirtualMachineInstanceMigration.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde::{Deserialize, Serialize};

use super::vmi::VirtualMachineInstanceMigrationState;
use crate::go::{null, zero};
use crate::kind::kind;

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct VirtualMachineInstanceMigrationCondition {
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

kind!(
    VirtualMachineInstanceMigration,
    "virtualmachineinstancemigrations",
    VirtualMachineInstanceMigrationSpec,
    VirtualMachineInstanceMigrationStatus
);

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct VirtualMachineInstanceMigrationSpec {
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub vmi_name: String,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub added_node_selector: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub send_to: Option<VirtualMachineInstanceMigrationSource>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub receive: Option<VirtualMachineInstanceMigrationTarget>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct VirtualMachineInstanceMigrationSource {
    #[serde(rename = "migrationID", deserialize_with = "null")]
    pub migration_id: String,
    #[serde(rename = "connectURL", deserialize_with = "null")]
    pub connect_url: String,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct VirtualMachineInstanceMigrationTarget {
    #[serde(rename = "migrationID", deserialize_with = "null")]
    pub migration_id: String,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct VirtualMachineInstanceMigrationPhaseTransitionTimestamp {
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub phase: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase_transition_timestamp: Option<Time>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct VirtualMachineInstanceMigrationStatus {
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub phase: String,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub conditions: Vec<VirtualMachineInstanceMigrationCondition>,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub phase_transition_timestamps: Vec<VirtualMachineInstanceMigrationPhaseTransitionTimestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub migration_state: Option<VirtualMachineInstanceMigrationState>,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub synchronization_addresses: Vec<String>,
}
