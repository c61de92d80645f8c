//! VirtualMachineInstanceReplicaSet.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde::{Deserialize, Serialize};

use super::vmi::VirtualMachineInstanceSpec;
use crate::go::{null, zero};
use crate::kind::kind;

kind!(
    VirtualMachineInstanceReplicaSet,
    "virtualmachineinstancereplicasets",
    VirtualMachineInstanceReplicaSetSpec,
    VirtualMachineInstanceReplicaSetStatus
);

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct VirtualMachineInstanceReplicaSetSpec {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selector: Option<LabelSelector>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub template: Option<VirtualMachineInstanceTemplateSpec>,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub paused: bool,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct VirtualMachineInstanceReplicaSetStatus {
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub replicas: i32,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub ready_replicas: i32,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub conditions: Vec<VirtualMachineInstanceReplicaSetCondition>,
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub label_selector: String,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct VirtualMachineInstanceReplicaSetCondition {
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
pub struct VirtualMachineInstanceTemplateSpec {
    #[serde(deserialize_with = "null")]
    pub metadata: ObjectMeta,
    #[serde(deserialize_with = "null")]
    pub spec: VirtualMachineInstanceSpec,
}
