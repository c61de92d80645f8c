//! Secrets with access credentials, as volumes of the launcher pod.

use ferrovirt_api::v1::VirtualMachineInstance;
use ferrovirt_machine::convert::credentials::{secrets, volume_name};
use k8s_openapi::api::core::v1::{SecretVolumeSource, Volume, VolumeMount};

pub(crate) fn add(vmi: &VirtualMachineInstance, volumes: &mut Vec<Volume>, mounts: &mut Vec<VolumeMount>) {
    for secret in secrets(vmi) {
        let name = volume_name(secret);
        mounts.push(VolumeMount {
            name: name.clone(),
            mount_path: format!("/var/run/kubevirt-private/secret/{name}"),
            read_only: Some(true),
            ..Default::default()
        });
        let source = SecretVolumeSource { secret_name: Some(secret.to_owned()), ..Default::default() };
        volumes.push(Volume { name, secret: Some(source), ..Default::default() });
    }
}
