//! Directories that the guest mounts: what each one shows, and where its daemon listens.

use ferrovirt_api::v1;

use super::{Conversion, volumes};
use crate::spec::Filesystem;

/// Where virtiofs daemons listen.
pub const SOCKETS: &str = "/var/run/kubevirt/virtiofs-containers";

pub(super) fn convert(c: &mut Conversion<'_>) -> Vec<Filesystem> {
    let vmi = c.vmi;
    let mut found = Vec::new();
    for (position, filesystem) in vmi.spec.domain.devices.filesystems.iter().enumerate() {
        if filesystem.virtiofs.is_none() {
            continue;
        }
        let name = &filesystem.name;
        let volume = vmi.spec.volumes.iter().find(|volume| volume.name == *name);
        let dir = match volume.map(|volume| directory(c, volume)) {
            Some(Ok(dir)) => dir,
            _ if c.ctx.as_upstream => String::new(),
            refused => {
                let message = match refused {
                    Some(Err(message)) => message,
                    _ => "there is no volume of this name; every file system shows the volume that is named like it",
                };
                c.refuse(format!("spec.domain.devices.filesystems[{position}].name"), message);
                continue;
            }
        };
        found.push(Filesystem {
            tag: name.clone(),
            socket: format!("{SOCKETS}/{name}.sock"),
            dir,
            // A kubelet gives the links of an account's token to the pod's user, in a directory of root's that anybody may write
            // to as far as its mode says. Kernels do not follow such links, not even for root.
            as_root: volume.is_some_and(|volume| volume.service_account.is_some()),
        });
    }
    found
}

/// Where the pod has the volume's files.
fn directory(c: &Conversion<'_>, volume: &v1::Volume) -> Result<String, &'static str> {
    let (layout, name) = (&c.ctx.layout, &volume.name);
    let is_block = [&c.ctx.is_block_pvc, &c.ctx.is_block_dv].iter().any(|kinds| kinds.get(name) == Some(&true));
    let content = |kind: &str| Ok(volumes::content_paths(&layout.private, kind, name).0);
    if volume.persistent_volume_claim.is_some() || volume.data_volume.is_some() {
        if is_block {
            return Err("the claim is a block device; a file system needs one with volumeMode: Filesystem");
        }
        Ok(format!("{}/{name}", layout.vmi_disks))
    } else if volume.config_map.is_some() {
        content("config-map")
    } else if volume.secret.is_some() {
        content("secret")
    } else if volume.downward_api.is_some() {
        content("downwardapi")
    } else if volume.service_account.is_some() {
        Ok(layout.service_account.clone())
    } else {
        Err(
            "only claims, dataVolumes, configMaps, secrets, serviceAccounts and downwardAPI volumes can be file systems",
        )
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::{Context, machine_spec};

    fn shared(volume: Value, ctx: &Context) -> String {
        let vmi = serde_json::from_value(json!({
            "metadata": { "name": "a", "namespace": "n", "uid": "u" },
            "spec": {
                "domain": { "memory": { "guest": "64Mi" }, "devices": { "filesystems": [{ "name": "v", "virtiofs": {} }] } },
                "volumes": [volume],
            }
        }))
        .unwrap();
        match machine_spec(&vmi, ctx) {
            Ok(spec) => {
                let filesystem = &spec.devices.filesystems[0];
                assert_eq!(filesystem.socket, "/var/run/kubevirt/virtiofs-containers/v.sock");
                let backing = spec.memory.backing.unwrap();
                assert!(backing.shared && backing.source.as_deref() == Some("memfd"));
                format!("{}{}", filesystem.dir, if filesystem.as_root { " as root" } else { "" })
            }
            Err(errors) => errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "),
        }
    }

    #[test]
    fn every_kind_of_volume_is_shown_from_where_the_pod_has_it() {
        let ctx = Context { allow_emulation: true, ..Context::default() };
        let block = Context { is_block_pvc: [("v".to_owned(), true)].into(), ..ctx.clone() };
        let refused = "spec.domain.devices.filesystems[0].name: ";
        for (volume, ctx, expected) in [
            (json!({ "persistentVolumeClaim": { "claimName": "c" } }), &ctx, "/var/run/kubevirt-private/vmi-disks/v"),
            (json!({ "dataVolume": { "name": "d" } }), &ctx, "/var/run/kubevirt-private/vmi-disks/v"),
            (json!({ "configMap": { "name": "m" } }), &ctx, "/var/run/kubevirt-private/config-map/v"),
            (json!({ "secret": { "secretName": "s" } }), &ctx, "/var/run/kubevirt-private/secret/v"),
            (json!({ "downwardAPI": { "fields": [] } }), &ctx, "/var/run/kubevirt-private/downwardapi/v"),
            (
                json!({ "serviceAccount": { "serviceAccountName": "a" } }),
                &ctx,
                "/var/run/secrets/kubernetes.io/serviceaccount as root",
            ),
            (json!({ "persistentVolumeClaim": { "claimName": "c" } }), &block, "the claim is a block device"),
            (json!({ "emptyDisk": { "capacity": "1Gi" } }), &ctx, "only claims, dataVolumes, configMaps"),
            (json!({ "name": "w", "configMap": { "name": "m" } }), &ctx, "there is no volume of this name"),
        ] {
            let mut named = volume.clone();
            named.as_object_mut().unwrap().entry("name").or_insert(json!("v"));
            let shown = shared(named, ctx);
            let expected = if expected.starts_with('/') { expected.to_owned() } else { format!("{refused}{expected}") };
            assert!(shown.starts_with(&expected), "{volume}: {shown}, not {expected}");
        }
    }
}
