//! VirtualMachineInstancePreset (deprecated upstream).

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use serde::{Deserialize, Serialize};

use super::domain::DomainSpec;
use crate::go::null;
use crate::kind::kind;

kind!(VirtualMachineInstancePreset, "virtualmachineinstancepresets", VirtualMachineInstancePresetSpec);

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct VirtualMachineInstancePresetSpec {
    #[serde(deserialize_with = "null")]
    pub selector: LabelSelector,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub domain: Option<DomainSpec>,
}
