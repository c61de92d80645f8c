//! The first user of volumes that wait for one.
//!
//! A claim of a class that waits is bound to a volume when a pod that uses it gets a node, and only then can it be filled. The
//! launcher must not run before that is done. So a pod goes ahead that needs what the launcher needs, gets the node that
//! the launcher would get, and does nothing there. Upstream's has the same annotation.

use std::collections::{BTreeMap, BTreeSet};

use ferrovirt_api::{names, v1::VirtualMachineInstance};
use k8s_openapi::api::core::v1::{
    Capabilities, Container, Pod, PodSecurityContext, PodSpec, SeccompProfile, SecurityContext,
};

use crate::pod;

/// Follows from the instance, as the launcher's does.
pub fn name(vmi: &VirtualMachineInstance) -> String {
    pod::name(vmi).replacen("virt-launcher-", "virt-binder-", 1)
}

pub fn render(vmi: &VirtualMachineInstance, config: &pod::Config) -> Pod {
    let launcher = pod::render(vmi, config);
    let spec = launcher.spec.unwrap_or_default();
    let mut volumes = spec.volumes.unwrap_or_default();
    volumes.retain(|volume| volume.persistent_volume_claim.is_some());
    let claims: BTreeSet<&str> = volumes.iter().map(|volume| volume.name.as_str()).collect();
    let compute = spec.containers.into_iter().find(|container| container.name == names::COMPUTE_CONTAINER);
    let compute = compute.unwrap_or_default();
    let container = Container {
        name: compute.name,
        image: compute.image,
        image_pull_policy: compute.image_pull_policy,
        command: compute.command,
        args: Some(vec!["--version".into()]),
        resources: compute.resources,
        volume_mounts: compute
            .volume_mounts
            .map(|mounts| mounts.into_iter().filter(|mount| claims.contains(mount.name.as_str())).collect()),
        volume_devices: compute.volume_devices,
        security_context: Some(SecurityContext {
            allow_privilege_escalation: Some(false),
            capabilities: Some(Capabilities { drop: Some(vec!["ALL".into()]), add: None }),
            ..Default::default()
        }),
        ..Default::default()
    };
    let mut metadata = launcher.metadata;
    metadata.name = Some(name(vmi));
    // None of the VM's own: what selects its pods is not meant for this one.
    let kept = [names::APP_LABEL, names::CREATED_BY_LABEL];
    metadata.labels.iter_mut().for_each(|labels| labels.retain(|key, _| kept.contains(&key.as_str())));
    metadata.annotations = Some(BTreeMap::from([(names::EPHEMERAL_PROVISIONING_OBJECT.to_owned(), "true".to_owned())]));
    let spec = PodSpec {
        restart_policy: Some("Never".into()),
        termination_grace_period_seconds: Some(0),
        automount_service_account_token: Some(false),
        enable_service_links: Some(false),
        node_selector: spec.node_selector,
        affinity: spec.affinity,
        tolerations: spec.tolerations,
        topology_spread_constraints: spec.topology_spread_constraints,
        priority_class_name: spec.priority_class_name,
        scheduler_name: spec.scheduler_name,
        image_pull_secrets: spec.image_pull_secrets,
        security_context: Some(PodSecurityContext {
            run_as_user: Some(pod::RUNTIME_USER),
            run_as_group: Some(pod::RUNTIME_USER),
            run_as_non_root: Some(true),
            seccomp_profile: Some(SeccompProfile { type_: "RuntimeDefault".into(), ..Default::default() }),
            ..Default::default()
        }),
        volumes: Some(volumes),
        containers: vec![container],
        ..Default::default()
    };
    Pod { metadata, spec: Some(spec), status: None }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn it_needs_what_the_launcher_needs_and_does_nothing() {
        for hypervisor in ["qemu-kvm", "lxc"] {
            let vmi = serde_json::from_value(json!({
                "metadata": { "name": "a", "namespace": "n", "uid": "u", "labels": { "app": "x" },
                    "annotations": { "k8s.v1.cni.cncf.io/networks": "evil" } },
                "spec": {
                    "hypervisor": hypervisor, "nodeSelector": { "disk": "fast" },
                    "domain": { "memory": { "guest": "64Mi" }, "devices": { "disks": [{ "name": "root", "disk": {} }] } },
                    "volumes": [
                        { "name": "root", "dataVolume": { "name": "dv" } },
                        { "name": "init", "cloudInitNoCloud": { "secretRef": { "name": "s" } } },
                    ],
                },
            }))
            .unwrap();
            let config = pod::Config::default();
            let (launcher, consumer) = (pod::render(&vmi, &config), render(&vmi, &config));
            assert_ne!(launcher.metadata.name, consumer.metadata.name);
            assert_eq!(launcher.metadata.owner_references, consumer.metadata.owner_references);
            assert_eq!(consumer.metadata.annotations.unwrap().len(), 1);
            assert!(!consumer.metadata.labels.unwrap().contains_key("app"));
            let (launcher, consumer) = (launcher.spec.unwrap(), consumer.spec.unwrap());
            assert_eq!(launcher.node_selector, consumer.node_selector);
            assert_eq!(launcher.containers[0].resources, consumer.containers[0].resources);
            let names: Vec<_> = consumer.volumes.unwrap().into_iter().map(|volume| volume.name).collect();
            let mounts = consumer.containers[0].volume_mounts.clone().unwrap();
            assert_eq!(names, mounts.into_iter().map(|mount| mount.name).collect::<Vec<_>>());
            assert_eq!(names.len(), 1, "{names:?}");
            let context = consumer.containers[0].security_context.clone().unwrap();
            assert!(context.privileged != Some(true) && consumer.init_containers.is_none());
            assert_eq!(consumer.containers[0].args, Some(vec!["--version".to_owned()]));
        }
    }
}
