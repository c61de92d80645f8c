//! `upload.cdi.kubevirt.io/v1beta1`: a token that lets its holder fill one claim.

use serde::{Deserialize, Serialize};

use crate::go::{null, zero};
use crate::kind::kind;

kind!(in "upload.cdi.kubevirt.io", "v1beta1";
    UploadTokenRequest, "uploadtokenrequests", UploadTokenRequestSpec, UploadTokenRequestStatus);

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct UploadTokenRequestSpec {
    #[serde(deserialize_with = "null")]
    pub pvc_name: String,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct UploadTokenRequestStatus {
    #[serde(deserialize_with = "null", skip_serializing_if = "zero")]
    pub token: String,
}
