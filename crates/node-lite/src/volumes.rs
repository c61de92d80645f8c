//! Volumes of a pod on the host, in the kubelet's layout. Everything that holds secrets lives in memory.
//! Root works here below directories of tenants: by descriptor only.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use ferrovirt_beneath::Dir;
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{
    ConfigMap, EmptyDirVolumeSource, EnvVar, KeyToPath, PersistentVolume, PersistentVolumeClaim, Pod, Secret,
    ServiceAccount, Volume, VolumeProjection,
};
use kube::api::{Api, PostParams};

use crate::downward::{self, DownwardError};
use crate::host_path::{self, HostPathError, HostPaths};
use crate::hugepages;
use crate::images::{ImageError, Images};
use crate::payload::{self, Payload, PayloadError};
use crate::podspec::{Identity, VolumeSource};
use crate::records::PodDir;
use crate::resources;
use crate::storage::binding::{self, NotBound};
use crate::sub_path;
use crate::volume_dirs::{self, Place};

#[derive(Debug, thiserror::Error)]
pub enum VolumeError {
    #[error("volume {0:?} is of a kind that embedded mode does not support")]
    Unsupported(String),
    #[error("a volume of huge pages needs a pod that asks for huge pages of one size")]
    PageSize,
    #[error("volume {volume:?}: {kind} {name:?} cannot be read")]
    Read { volume: String, kind: &'static str, name: String, source: Box<kube::Error> },
    #[error("volume {volume:?}: {kind} {name:?} not found")]
    NotFound { volume: String, kind: &'static str, name: String },
    #[error("volume {volume:?}: {kind} {name:?} has no key {key:?}")]
    NoKey { volume: String, kind: &'static str, name: String, key: String },
    #[error("volume {volume:?}: persistentvolumeclaim {claim:?} is not bound to a volume on this node")]
    Unbound { volume: String, claim: String },
    #[error("volume {volume:?}: persistentvolumeclaim {claim:?} cannot be mounted")]
    NotBound { volume: String, claim: String, source: NotBound },
    #[error("volume {volume:?}")]
    HostPath { volume: String, source: HostPathError },
    #[error("volume {volume:?}")]
    Image { volume: String, source: ImageError },
    #[error("volume {volume:?}")]
    Downward { volume: String, source: DownwardError },
    #[error("volume {volume:?}")]
    Payload { volume: String, source: PayloadError },
    #[error("the environment has more than {} KiB", crate::podspec::MOST_TEXT >> 10)]
    Environment,
    #[error("cannot {action} {path}")]
    Io { action: &'static str, path: PathBuf, source: io::Error },
}

/// Brings volumes of one pod into being.
#[derive(Clone, Copy)]
pub struct Volumes<'a> {
    pub client: &'a kube::Client,
    pub images: &'a dyn Images,
    pub dir: &'a PodDir,
    pub pod: &'a Pod,
    pub identity: Identity,
    pub host_paths: HostPaths<'a>,
}

const DEFAULT_MODE: i32 = 0o644;

impl Volumes<'_> {
    /// Makes every volume and says where it is.
    pub async fn prepare(&self) -> Result<BTreeMap<String, VolumeSource>, VolumeError> {
        let mut out = BTreeMap::new();
        for volume in self.pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten()) {
            let mut source = self.one(volume).await?;
            // What mounts it follows no link.
            source.path = host_path::real_path(&source.path).map_err(fail("find", &source.path))?;
            out.insert(volume.name.clone(), source);
        }
        Ok(out)
    }

    /// Brings downwardAPI volumes up to date with the pod's labels and annotations.
    pub fn refresh(&self) -> Result<(), VolumeError> {
        for volume in self.pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten()) {
            if let Some(source) = &volume.downward_api {
                let place = self.place("kubernetes.io~downward-api", &volume.name)?;
                let items = source.items.as_deref().unwrap_or_default();
                let mut files = Payload::new();
                self.add_downward(volume, items, source.default_mode, &mut files)?;
                self.write(volume, &place.dir, &files)?;
            }
        }
        Ok(())
    }

    /// Values of the container's variables, in order, before `$(NAME)` is expanded.
    pub async fn environment(
        &self,
        variables: &[EnvVar],
        container: &str,
    ) -> Result<Vec<(String, String)>, VolumeError> {
        let mut out: Vec<(String, String)> = Vec::new();
        for variable in variables {
            // A secret may be long, and be named by many.
            if out.iter().map(|(_, value)| value.len()).sum::<usize>() > crate::podspec::MOST_TEXT {
                return Err(VolumeError::Environment);
            }
            let name = &variable.name;
            let down = |source| VolumeError::Downward { volume: name.clone(), source };
            let Some(from) = &variable.value_from else {
                out.push((name.clone(), variable.value.clone().unwrap_or_default()));
                continue;
            };
            let value = if let Some(selector) = &from.field_ref {
                Some(downward::field(self.pod, selector).map_err(down)?)
            } else if let Some(selector) = &from.resource_field_ref {
                Some(downward::resource(self.pod, selector, container).map_err(down)?)
            } else if let Some(selector) = &from.secret_key_ref {
                let optional = selector.optional == Some(true);
                let data = self.secret(name, &selector.name, optional).await?;
                pick(name, "secret", &selector.name, &selector.key, optional, data)?
            } else if let Some(selector) = &from.config_map_key_ref {
                let optional = selector.optional == Some(true);
                let data = self.config_map(name, &selector.name, optional).await?;
                pick(name, "configmap", &selector.name, &selector.key, optional, data)?
            } else {
                None
            };
            out.extend(value.map(|value| (name.clone(), value)));
        }
        Ok(out)
    }

    async fn one(&self, volume: &Volume) -> Result<VolumeSource, VolumeError> {
        let name = &volume.name;
        let writable = |path| Ok(VolumeSource { path, read_only: false });
        let fixed = |path| Ok(VolumeSource { path, read_only: true });
        if let Some(source) = &volume.empty_dir {
            self.empty_dir(name, source)?;
            return writable(self.dir.volume("kubernetes.io~empty-dir", name));
        }
        if let Some(source) = &volume.image {
            let reference = source.reference.as_deref().unwrap_or_default();
            let found = self.images.resolve(reference);
            return fixed(found.map_err(|source| VolumeError::Image { volume: name.clone(), source })?);
        }
        if let Some(source) = &volume.secret {
            let place = self.memory("kubernetes.io~secret", name, None)?;
            let secret = source.secret_name.as_deref().unwrap_or_default();
            let data = self.secret(name, secret, source.optional == Some(true)).await?;
            let mut files = Payload::new();
            let items = Items { list: source.items.as_deref(), mode: source.default_mode, optional: source.optional };
            add_items(name, "secret", secret, data, &items, &mut files)?;
            self.write(volume, &place.dir, &files)?;
            return fixed(place.path);
        }
        if let Some(source) = &volume.config_map {
            let place = self.place("kubernetes.io~configmap", name)?;
            let data = self.config_map(name, &source.name, source.optional == Some(true)).await?;
            let mut files = Payload::new();
            let items = Items { list: source.items.as_deref(), mode: source.default_mode, optional: source.optional };
            add_items(name, "configmap", &source.name, data, &items, &mut files)?;
            self.write(volume, &place.dir, &files)?;
            return fixed(place.path);
        }
        if let Some(source) = &volume.downward_api {
            let place = self.place("kubernetes.io~downward-api", name)?;
            let mut files = Payload::new();
            self.add_downward(volume, source.items.as_deref().unwrap_or_default(), source.default_mode, &mut files)?;
            self.write(volume, &place.dir, &files)?;
            return fixed(place.path);
        }
        if let Some(source) = &volume.projected {
            let place = self.memory("kubernetes.io~projected", name, None)?;
            let mut files = Payload::new();
            for projection in source.sources.iter().flatten() {
                self.project(volume, projection, source.default_mode, &mut files).await?;
            }
            self.write(volume, &place.dir, &files)?;
            return fixed(place.path);
        }
        if let Some(source) = &volume.persistent_volume_claim {
            let path = self.claim(name, &source.claim_name).await?;
            return Ok(VolumeSource { path, read_only: source.read_only == Some(true) });
        }
        if let Some(source) = &volume.host_path {
            let found = self.host_paths.resolve(Path::new(&source.path));
            return writable(found.map_err(|source| VolumeError::HostPath { volume: name.clone(), source })?);
        }
        Err(VolumeError::Unsupported(name.clone()))
    }

    /// Makes the directories inside volumes that the container mounts, as a kubelet does. What is there already stays as it is.
    pub fn sub_paths(&self, sources: &BTreeMap<String, VolumeSource>) -> Result<(), VolumeError> {
        let containers = self.pod.spec.iter().flat_map(|spec| &spec.containers);
        for mount in containers.flat_map(|container| container.volume_mounts.iter().flatten()) {
            let (Some(inside), Some(source)) = (mount.sub_path.as_deref(), sources.get(&mount.name)) else { continue };
            if !inside.is_empty() && !source.read_only {
                let group = self.identity.fs_group.unwrap_or(self.identity.gid);
                host_path::open_dir(&source.path)
                    .and_then(|volume| sub_path::make(&volume, Path::new(inside), self.identity.uid, group))
                    .map_err(fail("create a directory in", &source.path))?;
            }
        }
        Ok(())
    }

    fn empty_dir(&self, name: &str, source: &EmptyDirVolumeSource) -> Result<(), VolumeError> {
        const PLUGIN: &str = "kubernetes.io~empty-dir";
        let place = match source.medium.as_deref() {
            None | Some("") => self.place(PLUGIN, name)?,
            Some("Memory") => {
                let limit = source.size_limit.clone().map(|limit| BTreeMap::from([("bytes".to_owned(), limit)]));
                let bytes = resources::amounts(limit.as_ref()).get("bytes").copied().filter(|bytes| *bytes > 0);
                self.memory(PLUGIN, name, bytes)?
            }
            Some(medium) if hugepages::is_medium(medium) => {
                let spec = self.pod.spec.as_ref();
                let size = spec.and_then(|spec| hugepages::page_size(medium, spec)).ok_or(VolumeError::PageSize)?;
                let place = self.place(PLUGIN, name)?;
                let path = place.path.clone();
                place.with_huge_pages(size).map_err(fail("mount huge pages on", &path))?
            }
            Some(other) => return Err(VolumeError::Unsupported(other.to_owned())),
        };
        let group = self.identity.fs_group.unwrap_or(self.identity.gid);
        place.dir.own(self.identity.uid, group).map_err(fail("hand over", &place.path))?;
        place.dir.set_mode(0o770).map_err(fail("set the mode of", &place.path))
    }

    fn place(&self, plugin: &str, name: &str) -> Result<Place, VolumeError> {
        Place::make(self.dir, plugin, name).map_err(fail("create", &self.dir.volume(plugin, name)))
    }

    fn memory(&self, plugin: &str, name: &str, bytes: Option<i64>) -> Result<Place, VolumeError> {
        let place = self.place(plugin, name)?;
        let path = place.path.clone();
        place.with_memory(bytes).map_err(fail("mount memory on", &path))
    }

    fn write(&self, volume: &Volume, dir: &Dir, files: &Payload) -> Result<(), VolumeError> {
        let group = self.identity.fs_group.unwrap_or(self.identity.gid);
        let written = dir.set_mode(0o755).map_err(|source| PayloadError::Io {
            action: "set the mode of",
            path: PathBuf::from(&volume.name),
            source,
        });
        written
            .and_then(|()| payload::write(dir, files, Some(group)))
            .map_err(|source| VolumeError::Payload { volume: volume.name.clone(), source })
    }

    fn add_downward(
        &self,
        volume: &Volume,
        items: &[k8s_openapi::api::core::v1::DownwardAPIVolumeFile],
        default_mode: Option<i32>,
        files: &mut Payload,
    ) -> Result<(), VolumeError> {
        let container = self.pod.spec.iter().flat_map(|spec| &spec.containers).next();
        let container = container.map(|container| container.name.as_str()).unwrap_or_default();
        let found = downward::files(self.pod, items, container)
            .map_err(|source| VolumeError::Downward { volume: volume.name.clone(), source })?;
        for (path, content, mode) in found {
            files.insert(path, (content, bits(mode.or(default_mode))));
        }
        Ok(())
    }

    async fn project(
        &self,
        volume: &Volume,
        projection: &VolumeProjection,
        mode: Option<i32>,
        files: &mut Payload,
    ) -> Result<(), VolumeError> {
        let name = &volume.name;
        if let Some(source) = &projection.secret {
            let data = self.secret(name, &source.name, source.optional == Some(true)).await?;
            let items = Items { list: source.items.as_deref(), mode, optional: source.optional };
            add_items(name, "secret", &source.name, data, &items, files)?;
        }
        if let Some(source) = &projection.config_map {
            let data = self.config_map(name, &source.name, source.optional == Some(true)).await?;
            let items = Items { list: source.items.as_deref(), mode, optional: source.optional };
            add_items(name, "configmap", &source.name, data, &items, files)?;
        }
        if let Some(source) = &projection.downward_api {
            self.add_downward(volume, source.items.as_deref().unwrap_or_default(), mode, files)?;
        }
        if let Some(source) = &projection.service_account_token {
            let spec = self.pod.spec.as_ref();
            let account = spec.and_then(|spec| spec.service_account_name.as_deref()).unwrap_or("default");
            let api: Api<ServiceAccount> = Api::namespaced(self.client.clone(), self.namespace());
            let request = TokenRequest {
                spec: Some(TokenRequestSpec {
                    audiences: source.audience.clone().map(|audience| vec![audience]),
                    expiration_seconds: source.expiration_seconds,
                    ..Default::default()
                }),
                ..Default::default()
            };
            let answer = api.create_token_request(account, &PostParams::default(), &request).await;
            let answer = answer.map_err(read_error(name, "serviceaccount", account))?;
            let token = answer.status.and_then(|status| status.token).unwrap_or_default();
            files.insert(source.path.clone(), (token.into_bytes(), bits(mode)));
        }
        Ok(())
    }

    async fn secret(&self, volume: &str, name: &str, optional: bool) -> Result<BTreeMap<String, Vec<u8>>, VolumeError> {
        let api: Api<Secret> = Api::namespaced(self.client.clone(), self.namespace());
        let found = api.get_opt(name).await.map_err(read_error(volume, "secret", name))?;
        let Some(secret) = found else {
            return missing(volume, "secret", name, optional);
        };
        Ok(secret.data.into_iter().flatten().map(|(key, value)| (key, value.0)).collect())
    }

    async fn config_map(
        &self,
        volume: &str,
        name: &str,
        optional: bool,
    ) -> Result<BTreeMap<String, Vec<u8>>, VolumeError> {
        let api: Api<ConfigMap> = Api::namespaced(self.client.clone(), self.namespace());
        let found = api.get_opt(name).await.map_err(read_error(volume, "configmap", name))?;
        let Some(map) = found else {
            return missing(volume, "configmap", name, optional);
        };
        let text = map.data.into_iter().flatten().map(|(key, value)| (key, value.into_bytes()));
        let binary = map.binary_data.into_iter().flatten().map(|(key, value)| (key, value.0));
        Ok(text.chain(binary).collect())
    }

    async fn claim(&self, volume: &str, name: &str) -> Result<PathBuf, VolumeError> {
        let unbound = || VolumeError::Unbound { volume: volume.to_owned(), claim: name.to_owned() };
        let claims: Api<PersistentVolumeClaim> = Api::namespaced(self.client.clone(), self.namespace());
        let claim = claims.get_opt(name).await.map_err(read_error(volume, "persistentvolumeclaim", name))?;
        let claim = claim.ok_or_else(|| VolumeError::NotFound {
            volume: volume.to_owned(),
            kind: "persistentvolumeclaim",
            name: name.to_owned(),
        })?;
        let bound = claim.spec.as_ref().and_then(|spec| spec.volume_name.as_deref()).filter(|name| !name.is_empty());
        let bound = bound.ok_or_else(unbound)?;
        let volumes: Api<PersistentVolume> = Api::all(self.client.clone());
        let found = volumes.get_opt(bound).await.map_err(read_error(volume, "persistentvolume", bound))?;
        let found = found.ok_or_else(unbound)?;
        // A claim may name any volume; the volume says whose it is.
        let spec = binding::mountable(&claim, &found).map_err(|source| VolumeError::NotBound {
            volume: volume.to_owned(),
            claim: name.to_owned(),
            source,
        })?;
        if let Some(local) = spec.local.clone() {
            let path = PathBuf::from(local.path);
            // As the kubelet for local volumes, and only where the top does not fit: a big volume is walked once.
            if let Some(group) = self.identity.fs_group {
                volume_dirs::hand_over(&path, self.identity.uid, group).map_err(fail("hand over", &path))?;
            }
            return Ok(path);
        }
        spec.host_path.as_ref().map(|source| PathBuf::from(&source.path)).ok_or_else(unbound)
    }

    fn namespace(&self) -> &str {
        self.pod.metadata.namespace.as_deref().unwrap_or("default")
    }
}

struct Items<'a> {
    list: Option<&'a [KeyToPath]>,
    mode: Option<i32>,
    optional: Option<bool>,
}

fn add_items(
    volume: &str,
    kind: &'static str,
    name: &str,
    data: BTreeMap<String, Vec<u8>>,
    items: &Items<'_>,
    files: &mut Payload,
) -> Result<(), VolumeError> {
    let Some(list) = items.list.filter(|list| !list.is_empty()) else {
        files.extend(data.into_iter().map(|(key, value)| (key, (value, bits(items.mode)))));
        return Ok(());
    };
    for item in list {
        match data.get(&item.key) {
            Some(value) => {
                files.insert(item.path.clone(), (value.clone(), bits(item.mode.or(items.mode))));
            }
            None if items.optional == Some(true) => {}
            None => {
                return Err(VolumeError::NoKey {
                    volume: volume.to_owned(),
                    kind,
                    name: name.to_owned(),
                    key: item.key.clone(),
                });
            }
        }
    }
    Ok(())
}

fn pick(
    volume: &str,
    kind: &'static str,
    name: &str,
    key: &str,
    optional: bool,
    data: BTreeMap<String, Vec<u8>>,
) -> Result<Option<String>, VolumeError> {
    match data.get(key) {
        Some(value) => Ok(Some(String::from_utf8_lossy(value).into_owned())),
        None if optional => Ok(None),
        None => Err(VolumeError::NoKey { volume: volume.to_owned(), kind, name: name.to_owned(), key: key.to_owned() }),
    }
}

fn missing(
    volume: &str,
    kind: &'static str,
    name: &str,
    optional: bool,
) -> Result<BTreeMap<String, Vec<u8>>, VolumeError> {
    if optional {
        return Ok(BTreeMap::new());
    }
    Err(VolumeError::NotFound { volume: volume.to_owned(), kind, name: name.to_owned() })
}

fn read_error(volume: &str, kind: &'static str, name: &str) -> impl FnOnce(kube::Error) -> VolumeError {
    let (volume, name) = (volume.to_owned(), name.to_owned());
    move |source| VolumeError::Read { volume, kind, name, source: Box::new(source) }
}

fn bits(mode: Option<i32>) -> u32 {
    u32::try_from(mode.unwrap_or(DEFAULT_MODE)).unwrap_or(0o644) & 0o777
}

fn fail(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> VolumeError + use<> {
    let path = path.to_owned();
    move |source| VolumeError::Io { action, path, source }
}
