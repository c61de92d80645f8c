//! The claim and the importer pod of a DataVolume.

use std::collections::BTreeMap;

use ferrovirt_api::Quantity;
use ferrovirt_api::cdi::{DataVolume, DataVolumeSource, names};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, PersistentVolumeClaimSpec, Pod, VolumeResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Amount;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use serde_json::{Value, json};

use super::foreign::{origin_namespace, server_name, shown_by};
use super::{Bare, Observed, by_storage};
use crate::Settings;
use crate::cache;
use crate::job::{self, From, Job, paths};

/// KubeVirt's user, who owns disks.
const USER: i64 = 107;

/// Of the importer that fills a claim for the owner with this uid: a DataVolume of the same name, or the claim itself.
pub fn pod_name(name: &str, uid: &str) -> String {
    // A pod's name has at most 253 characters, and its host name at most 63: longer ones are told apart by the uid.
    if name.len() <= 52 {
        return format!("importer-{name}");
    }
    format!(
        "importer-{}-{}",
        name.get(..40).unwrap_or_default().trim_end_matches(['-', '.']),
        uid.get(..8).unwrap_or(uid)
    )
}

/// The claim to make; `None` while the claim that it is a clone of does not exist.
pub(super) fn claim(observed: &Observed<'_>) -> Result<Option<PersistentVolumeClaim>, String> {
    let volume = observed.volume;
    let mut spec = match (&volume.spec.pvc, &volume.spec.storage) {
        (Some(spec), _) => spec.clone(),
        (None, Some(storage)) => PersistentVolumeClaimSpec {
            access_modes: Some(storage.access_modes.clone()).filter(|modes| !modes.is_empty()),
            selector: storage.selector.clone(),
            resources: Some(storage.resources.clone()),
            volume_name: Some(storage.volume_name.clone()).filter(|name| !name.is_empty()),
            storage_class_name: storage.storage_class_name.clone(),
            volume_mode: storage.volume_mode.clone().filter(|mode| mode != "FromStorageProfile"),
            ..Default::default()
        },
        (None, None) => return Err("spec needs one of pvc and storage".to_owned()),
    };
    spec.access_modes.get_or_insert_with(|| vec!["ReadWriteOnce".to_owned()]);
    let cloned = observed.source.is_some_and(|source| source.pvc.is_some());
    let origin_size = observed.origin.and_then(size_of);
    if cloned && origin_size.is_none() {
        return Ok(None);
    }
    let resources = spec.resources.get_or_insert_with(VolumeResourceRequirements::default);
    let requests = resources.requests.get_or_insert_with(BTreeMap::new);
    let asked = requests.get("storage").and_then(bytes);
    match (asked, origin_size) {
        (Some(asked), Some(origin)) if asked < origin => {
            return Err(format!("the disk has {asked} bytes and the claim to be cloned {origin}; ask for as much"));
        }
        (None, Some(origin)) => drop(requests.insert("storage".to_owned(), Amount(origin.to_string()))),
        (None, None) => return Err("the size is missing: set resources.requests.storage".to_owned()),
        _ => {}
    }
    spec.data_source = by_storage::data_source(observed, &spec);
    let mut annotations = volume.metadata.annotations.clone().unwrap_or_default();
    annotations.remove("kubectl.kubernetes.io/last-applied-configuration");
    annotations.insert(names::CONTENT_TYPE.to_owned(), "kubevirt".to_owned());
    if observed.source.is_some_and(|source| source.upload.is_some()) {
        annotations.insert(names::UPLOAD_REQUEST.to_owned(), String::new());
    }
    let mut labels = volume.metadata.labels.clone().unwrap_or_default();
    labels.insert("app".to_owned(), "containerized-data-importer".to_owned());
    Ok(Some(PersistentVolumeClaim {
        metadata: ObjectMeta {
            name: volume.metadata.name.clone(),
            namespace: volume.metadata.namespace.clone(),
            annotations: Some(annotations),
            labels: Some(labels),
            owner_references: Some(vec![owner(volume)]),
            ..Default::default()
        },
        spec: Some(spec),
        status: None,
    }))
}

pub(super) fn pod(
    observed: &Observed<'_>,
    source: &DataVolumeSource,
    claim: &PersistentVolumeClaim,
) -> Result<Pod, String> {
    let mut parts = Parts::with_target(claim);
    let from = origin(observed, source, claim, &mut parts)?;
    parts.entry = cache_entry(observed);
    importer(claim, owner(observed.volume), &observed.volume.spec.priority_class_name, from, parts, observed.settings)
}

/// The cache's entry of what a volume is filled with, if the node keeps it.
pub(super) fn cache_entry(observed: &Observed<'_>) -> Option<String> {
    observed.settings.cache.as_ref()?;
    let namespace = observed.volume.metadata.namespace.as_deref().unwrap_or_default();
    cache::entry(namespace, observed.source?.http.as_ref()?)
}

/// The importer of a claim that has no DataVolume and waits for an upload.
pub(super) fn receiver(observed: &Bare<'_>) -> Result<Pod, String> {
    let (claim, mut parts) = (observed.claim, Parts::with_target(observed.claim));
    let from = upload(claim, observed.upload_key, observed.certificate, observed.random, &mut parts);
    importer(claim, owner_claim(claim), "", from, parts, observed.settings)
}

fn upload(claim: &PersistentVolumeClaim, key: &str, certificate: &str, random: &str, parts: &mut Parts) -> From {
    parts.mount("secret", json!({ "secret": { "secretName": upload_secret(random) } }), paths::SECRET);
    From::Upload {
        key: key.to_owned(),
        claim: claim.metadata.uid.clone().unwrap_or_default(),
        certificate: certificate.to_owned(),
    }
}

/// Of the key of an importer that takes an upload: nobody has a secret of this name.
pub(super) fn upload_secret(random: &str) -> String {
    format!("upload-{random}")
}

/// Of what lets an importer fetch a claim from another namespace: nobody has a secret of this name.
pub(super) fn secret_name(observed: &Observed<'_>) -> String {
    format!("clone-{}", observed.random)
}

/// The pod that shows a claim of another namespace to the importer of the volume.
pub(super) fn server(observed: &Observed<'_>, claim: &PersistentVolumeClaim) -> Result<Pod, String> {
    let (block, name) = (is_block(claim), claim.metadata.name.as_deref().unwrap_or_default());
    let mut parts = Parts::default();
    parts.claim("source", name, block, if block { paths::SOURCE_DEVICE } else { paths::SOURCE }, true);
    parts.mount("secret", json!({ "secret": { "secretName": secret_name(observed) } }), paths::SECRET);
    let from = From::Serve { block };
    let job = Job { from, block, size: 0, cache: false, scratch: false };
    let namespace = claim.metadata.namespace.as_deref().unwrap_or_default();
    let created_by = observed.volume.metadata.uid.as_deref().unwrap_or_default();
    pod_for(
        (&server_name(observed.volume), namespace),
        owner_claim(claim),
        created_by,
        "",
        &job,
        parts,
        observed.settings,
    )
}

fn importer(
    claim: &PersistentVolumeClaim,
    owner: OwnerReference,
    priority_class: &str,
    from: From,
    mut parts: Parts,
    settings: &Settings,
) -> Result<Pod, String> {
    let block = is_block(claim);
    let size = size_of(claim).ok_or("the claim has no size")?;
    let name = claim.metadata.name.as_deref().unwrap_or_default();
    let entry = parts.entry.take().zip(settings.cache.as_ref());
    if let Some((entry, cache)) = &entry {
        let path = json!({ "path": cache.directory.join(entry), "type": "Directory" });
        parts.mount("cache", json!({ "hostPath": path }), paths::CACHE);
    }
    // Beside a device there is no room for anything.
    let scratch = block || entry.is_some();
    if scratch {
        parts.volumes.push(json!({ "name": cache::SCRATCH, "emptyDir": {} }));
        parts.mounts.push(json!({ "name": cache::SCRATCH, "mountPath": paths::SCRATCH }));
    }
    let job = Job { from, block, size, cache: entry.is_some(), scratch };
    let (uid, namespace) = (owner.uid.clone(), claim.metadata.namespace.as_deref().unwrap_or_default());
    pod_for((&pod_name(name, &uid), namespace), owner, &uid, priority_class, &job, parts, settings)
}

fn pod_for(
    (name, namespace): (&str, &str),
    owner: OwnerReference,
    created_by: &str,
    priority_class: &str,
    job: &Job,
    parts: Parts,
    settings: &Settings,
) -> Result<Pod, String> {
    let job = serde_json::to_string(job).map_err(|error| error.to_string())?;
    let pod = json!({
        "metadata": {
            "name": name, "namespace": namespace,
            "labels": {
                "app": "containerized-data-importer",
                names::COMPONENT_LABEL: names::IMPORTER,
                names::CREATED_BY_LABEL: created_by,
            },
            "ownerReferences": [owner],
        },
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 5,
            "automountServiceAccountToken": false,
            "enableServiceLinks": false,
            "priorityClassName": Some(priority_class).filter(|name| !name.is_empty()),
            "imagePullSecrets": parts.pull_secrets,
            "securityContext": {
                "runAsUser": USER, "runAsGroup": USER, "runAsNonRoot": true, "fsGroup": USER,
                "seccompProfile": { "type": "RuntimeDefault" },
            },
            "volumes": parts.volumes,
            "containers": [{
                "name": names::IMPORTER,
                "image": settings.image, "imagePullPolicy": settings.pull_policy,
                "command": ["/usr/bin/ferrovirt", "importer"],
                "env": [{ "name": job::VARIABLE, "value": job }],
                "ports": [{ "name": "progress", "containerPort": job::PORT }],
                "resources": { "requests": { "cpu": "100m", "memory": "64Mi" } },
                "terminationMessagePolicy": "FallbackToLogsOnError",
                "securityContext": {
                    "allowPrivilegeEscalation": false, "runAsNonRoot": true, "runAsUser": USER, "runAsGroup": USER,
                    "capabilities": { "drop": ["ALL"] },
                },
                "volumeMounts": parts.mounts, "volumeDevices": parts.devices,
            }],
        },
    });
    serde_json::from_value(pod).map_err(|error| error.to_string())
}

/// What the pod mounts beside its claim.
#[derive(Default)]
struct Parts {
    volumes: Vec<Value>,
    mounts: Vec<Value>,
    devices: Vec<Value>,
    pull_secrets: Vec<Value>,
    /// What the node may have of the image.
    entry: Option<String>,
}

impl Parts {
    /// The claim that is filled comes first.
    fn with_target(claim: &PersistentVolumeClaim) -> Self {
        let (mut parts, block) = (Self::default(), is_block(claim));
        let path = if block { paths::TARGET_DEVICE } else { paths::TARGET };
        parts.claim("target", claim.metadata.name.as_deref().unwrap_or_default(), block, path, false);
        parts
    }

    fn claim(&mut self, volume: &str, name: &str, block: bool, path: &str, read_only: bool) {
        let claim = json!({ "claimName": name, "readOnly": read_only });
        self.volumes.push(json!({ "name": volume, "persistentVolumeClaim": claim }));
        match block {
            true => self.devices.push(json!({ "name": volume, "devicePath": path })),
            false => self.mounts.push(json!({ "name": volume, "mountPath": path, "readOnly": read_only })),
        }
    }

    fn mount(&mut self, name: &str, source: Value, path: &str) {
        let mut volume = source;
        volume["name"] = name.into();
        self.volumes.push(volume);
        self.mounts.push(json!({ "name": name, "mountPath": path, "readOnly": true }));
    }
}

fn origin(
    observed: &Observed<'_>,
    source: &DataVolumeSource,
    claim: &PersistentVolumeClaim,
    parts: &mut Parts,
) -> Result<From, String> {
    if let Some(http) = &source.http {
        if !http.secret_extra_headers.is_empty() {
            return Err("spec.source.http.secretExtraHeaders is not supported".to_owned());
        }
        if !http.secret_ref.is_empty() {
            parts.mount("secret", json!({ "secret": { "secretName": http.secret_ref } }), paths::SECRET);
        }
        if !http.cert_config_map.is_empty() {
            parts.mount("certificates", json!({ "configMap": { "name": http.cert_config_map } }), paths::CERTIFICATES);
        }
        return Ok(From::Http {
            url: http.url.clone(),
            headers: http.extra_headers.clone(),
            checksum: http.checksum.clone(),
            insecure: http.insecure_skip_verify == Some(true),
            login: !http.secret_ref.is_empty(),
            certificates: !http.cert_config_map.is_empty(),
        });
    }
    if let Some(registry) = &source.registry {
        let url = registry.url.as_deref().ok_or("spec.source.registry.url is missing")?;
        let reference = url.strip_prefix("docker://").ok_or_else(|| {
            format!("spec.source.registry.url {url:?} is not of the form docker://registry.example.com/name:tag")
        })?;
        if !registry.cert_config_map.as_deref().unwrap_or_default().is_empty() {
            return Err("spec.source.registry.certConfigMap is not supported; the node pulls the image, so name the \
                        certificates in its configuration of registries"
                .to_owned());
        }
        parts.mount("image", json!({ "image": { "reference": reference } }), paths::IMAGE);
        parts.pull_secrets.extend(registry.secret_ref.iter().map(|name| json!({ "name": name })));
        return Ok(From::Image);
    }
    if let Some(wanted) = &source.pvc {
        if origin_namespace(observed.volume, observed.source).is_some() {
            let secret = json!({ "secret": { "secretName": secret_name(observed) } });
            parts.mount("secret", secret, paths::SECRET);
            return observed.server.and_then(shown_by).ok_or_else(|| "the claim to be cloned is not shown".to_owned());
        }
        let block = observed.origin.is_some_and(is_block);
        let path = if block { paths::SOURCE_DEVICE } else { paths::SOURCE };
        parts.claim("source", &wanted.name, block, path, true);
        return Ok(From::Claim { block });
    }
    if source.upload.is_some() {
        return Ok(upload(claim, observed.upload_key, observed.certificate, observed.random, parts));
    }
    Ok(From::Blank)
}

fn owner_claim(claim: &PersistentVolumeClaim) -> OwnerReference {
    owner_of("v1", "PersistentVolumeClaim", &claim.metadata)
}

fn owner(volume: &DataVolume) -> OwnerReference {
    owner_of("cdi.kubevirt.io/v1beta1", "DataVolume", &volume.metadata)
}

fn owner_of(api_version: &str, kind: &str, metadata: &ObjectMeta) -> OwnerReference {
    OwnerReference {
        api_version: api_version.to_owned(),
        kind: kind.to_owned(),
        name: metadata.name.clone().unwrap_or_default(),
        uid: metadata.uid.clone().unwrap_or_default(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    }
}

fn is_block(claim: &PersistentVolumeClaim) -> bool {
    claim.spec.as_ref().and_then(|spec| spec.volume_mode.as_deref()) == Some("Block")
}

/// What was asked for, which is what the user counts on.
fn size_of(claim: &PersistentVolumeClaim) -> Option<u64> {
    bytes(claim.spec.as_ref()?.resources.as_ref()?.requests.as_ref()?.get("storage")?)
}

fn bytes(amount: &Amount) -> Option<u64> {
    Quantity::try_from(amount).ok().map(|quantity| quantity.as_bytes())
}
