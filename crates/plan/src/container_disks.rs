//! containerDisks without image volumes, for kubelets and container runtimes that have none.
//!
//! Each image runs once, before the launcher, with a static program of ours that copies the image's files into an emptyDir. The
//! launcher finds them where an image volume would be. That costs a copy at every start, and the space for it.

use k8s_openapi::api::core::v1::{Container, EmptyDirVolumeSource, PodSpec, Volume, VolumeMount};

/// The volume with the program that copies, and where it is mounted.
const TOOL: &str = "copy-tool";
const TOOL_DIR: &str = "/var/run/ferrovirt-copy-tool";
/// Where the copier finds the place to copy to.
const COPY_DIR: &str = "/var/run/ferrovirt-copy";

/// Turns every image volume into a copy of the image. `tool` is the components' image, which has the program.
pub(crate) fn copy_images(spec: &mut PodSpec, tool: &str) {
    let Some(compute) = spec.containers.first() else { return };
    // As the launcher itself: the larger of both is what counts for the pod, so this adds nothing.
    let like_compute = Container {
        resources: compute.resources.clone(),
        security_context: compute.security_context.clone(),
        ..Container::default()
    };
    let mut copiers = vec![];
    let mut volumes = spec.volumes.take().unwrap_or_default();
    for volume in &mut volumes {
        let Some(image) = volume.image.take() else { continue };
        volume.empty_dir = Some(EmptyDirVolumeSource::default());
        copiers.push(Container {
            name: volume.name.clone(),
            image: image.reference,
            image_pull_policy: image.pull_policy,
            command: Some(words(&[&format!("{TOOL_DIR}/ferrovirt"), "copy-tree", "/", COPY_DIR])),
            volume_mounts: Some(vec![mount(TOOL, TOOL_DIR, true), mount(&volume.name, COPY_DIR, false)]),
            ..like_compute.clone()
        });
    }
    if !copiers.is_empty() {
        let program = format!("{TOOL_DIR}/ferrovirt");
        let first = Container {
            name: TOOL.into(),
            image: Some(tool.to_owned()),
            image_pull_policy: Some("IfNotPresent".into()),
            command: Some(words(&["/usr/bin/ferrovirt", "copy-tree", "/usr/bin/ferrovirt", &program])),
            volume_mounts: Some(vec![mount(TOOL, TOOL_DIR, false)]),
            ..like_compute
        };
        copiers.insert(0, first);
        volumes.push(Volume {
            name: TOOL.into(),
            empty_dir: Some(EmptyDirVolumeSource::default()),
            ..Volume::default()
        });
        spec.init_containers = Some(copiers);
    }
    spec.volumes = Some(volumes);
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

fn mount(name: &str, path: &str, read_only: bool) -> VolumeMount {
    VolumeMount {
        name: name.into(),
        mount_path: path.into(),
        read_only: read_only.then_some(true),
        ..VolumeMount::default()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn images_are_copied_by_containers_that_run_before_the_launcher() {
        let mut spec: PodSpec = serde_json::from_value(json!({
            "containers": [{ "name": "compute", "securityContext": { "runAsUser": 107 } }],
            "volumes": [
                { "name": "private", "emptyDir": {} },
                { "name": "container-disk-root", "image": { "reference": "r/i:1", "pullPolicy": "Always" } },
            ],
        }))
        .unwrap();
        copy_images(&mut spec, "ferrovirt:1");
        let before: Vec<_> =
            spec.init_containers.iter().flatten().map(|c| (c.name.as_str(), c.image.as_deref())).collect();
        assert_eq!(before, [("copy-tool", Some("ferrovirt:1")), ("container-disk-root", Some("r/i:1"))]);
        assert!(spec.volumes.iter().flatten().all(|volume| volume.image.is_none() && volume.empty_dir.is_some()));
        for container in spec.init_containers.iter().flatten() {
            assert_eq!(container.security_context, spec.containers[0].security_context);
        }
        let mut plain: PodSpec = serde_json::from_value(json!({ "containers": [{ "name": "compute" }] })).unwrap();
        copy_images(&mut plain, "ferrovirt:1");
        assert_eq!(plain.init_containers, None);
    }
}
