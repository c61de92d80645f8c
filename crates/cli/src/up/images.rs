//! The images of this host: what was imported by hand, and what registries have.

use std::{fs, path::Path, path::PathBuf};

use anyhow::{Context, Result};
use ferrovirt_confine::child::Helper;
use ferrovirt_disks::{
    budget::Budget,
    digest::Digest,
    reference::Reference,
    store::{Image, ImageStore},
    unpacker::{SUBCOMMAND, Unpacker},
};
use ferrovirt_fetch::registry::{Credentials, Puller, Registries};
use ferrovirt_node_lite::{
    ImageError, Images, Wanted,
    cgroup::{Hierarchy, Limits},
};
use futures::{FutureExt, future::BoxFuture};
use kube::Client;
use tokio::task::{AbortHandle, spawn_blocking};

use super::image_access::Access;
use super::image_gc::{Collector, Thresholds};

/// For all children that unpack images at a time, with the files that they are writing. Each has a limit of its own besides.
const UNPACK_MEMORY: i64 = 2 << 30;

pub struct NodeImages {
    store: ImageStore,
    puller: Puller,
    /// The file that `--registries` names. What it says at the moment of a pull counts.
    registries: Option<PathBuf>,
    client: Client,
    /// One empty file for each name that came from a registry. Only those are asked for again.
    pulled: PathBuf,
    access: Access,
    collector: Collector,
    collecting: AbortHandle,
}

/// Where and how images are kept.
pub struct Settings<'a> {
    pub directory: &'a Path,
    pub registries: Option<PathBuf>,
    pub thresholds: Thresholds,
    /// Tells this host's control groups from another's on the same machine.
    pub instance: &'a str,
}

impl NodeImages {
    pub fn open(settings: Settings<'_>, client: Client) -> Result<Self> {
        let directory = settings.directory;
        let store = ImageStore::open(directory, confined(cgroup(settings.instance)))?;
        let (pulled, blobs) = (directory.join(".pulled"), directory.join(".blobs"));
        fs::create_dir_all(&pulled)?;
        let puller = Puller::new(store.clone(), &blobs);
        let access = Access::open(&directory.join(".access"))?;
        let collector =
            Collector { store: store.clone(), directory: directory.to_owned(), blobs, thresholds: settings.thresholds };
        let collecting = tokio::spawn(collector.clone().run()).abort_handle();
        let registries = settings.registries;
        Ok(Self { puller, store, registries, client, pulled, access, collector, collecting })
    }

    /// The file, and what the CDIConfig says about insecure registries.
    async fn registries(&self, reference: &str) -> Result<Registries, ImageError> {
        let read = async {
            let registries = read_registries(self.registries.as_deref())?;
            let request = http::Request::get(ferrovirt_api::cdi::names::CONFIG_PATH).body(vec![])?;
            let config: serde_json::Value = self.client.request(request).await.unwrap_or_default();
            let insecure = config["spec"]["insecureRegistries"].as_array().into_iter().flatten();
            Ok(registries.with_insecure(insecure.filter_map(|host| host.as_str().map(str::to_owned))))
        };
        let pull =
            |error: anyhow::Error| ImageError::Pull { reference: reference.into(), reason: format!("{error:#}") };
        read.await.map_err(pull)
    }

    fn marker(&self, reference: &str) -> PathBuf {
        self.pulled.join(reference.replace('/', "%2F"))
    }

    /// An image that somebody's login brought is for those whom the registry gives it to.
    async fn check_access(&self, wanted: &Wanted, image: &Image, credentials: &Credentials) -> Result<(), ImageError> {
        let reference = &wanted.reference;
        let refuse = |reason: String| ImageError::Unusable { reference: reference.clone(), reason };
        let digest: Digest = image.digest.parse().map_err(|error| refuse(format!("{error}")))?;
        let name: Option<Reference> = reference.parse().ok();
        let login = name.as_ref().and_then(|name| credentials.login(name));
        if self.access.allows(&digest, login) {
            return Ok(());
        }
        const PRIVATE: &str = "it was pulled with a login, and this pod's pull secrets have not been seen with it";
        if wanted.policy == "Never" {
            return Err(refuse(format!(
                "{PRIVATE}; allow it to be pulled (imagePullPolicy), so that the registry is asked"
            )));
        }
        let registries = self.registries(reference).await?;
        match self.puller.allows(reference, &digest, credentials, &registries).await {
            Ok(()) => {
                self.access.record(&digest, login);
                Ok(())
            }
            Err(error) => Err(refuse(format!("{PRIVATE}: {}", ferrovirt_api::chain(&error)))),
        }
    }

    async fn pull(&self, wanted: &Wanted, credentials: &Credentials, again: bool) -> Result<Image, ImageError> {
        let reference = &wanted.reference;
        let registries = self.registries(reference).await?;
        let collector = self.collector.clone();
        // Before the disk is full, not when it is.
        let _ = spawn_blocking(move || collector.collect()).await;
        // Known before the image is here: without a record it would be for all.
        let login = reference.parse().ok().and_then(|name| credentials.login(&name));
        let granted = |digest: &Digest| self.access.record(digest, login);
        let pulled = self.puller.pull(reference, credentials, &registries, again, &granted).await;
        let image = pulled
            .map_err(|error| ImageError::Pull { reference: reference.clone(), reason: ferrovirt_api::chain(&error) })?;
        let _ = fs::write(self.marker(reference), "");
        Ok(image)
    }
}

impl Images for NodeImages {
    fn resolve(&self, reference: &str) -> Result<PathBuf, ImageError> {
        match self.store.resolve(reference) {
            Some(image) => Ok(image.rootfs),
            None => Err(ImageError::NotFound(reference.into())),
        }
    }

    /// A name keeps the content that it had here until somebody asks for more with `Always`. An image that was imported by
    /// hand is its user's, whatever a registry has under that name.
    fn provide<'a>(&'a self, wanted: &'a Wanted) -> BoxFuture<'a, Result<PathBuf, ImageError>> {
        async move {
            let reference = &wanted.reference;
            let mut credentials = Credentials::default();
            for config in &wanted.docker_configs {
                if let Err(error) = credentials.add_docker_config(config) {
                    tracing::warn!(%error, image = reference, "a pull secret is not understood");
                }
            }
            let here = self.store.resolve(reference);
            let again = wanted.policy == "Always" && self.marker(reference).exists();
            let image = match here {
                Some(image) if !again => image,
                None if wanted.policy == "Never" => return Err(ImageError::NotFound(reference.clone())),
                here => match (self.pull(wanted, &credentials, again).await, here) {
                    (Ok(image), _) => image,
                    // What is here is better than nothing when the registry is away.
                    (Err(_), Some(image)) => image,
                    (Err(error), None) => return Err(error),
                },
            };
            // Also after a pull: another pod's may have come first.
            self.check_access(wanted, &image, &credentials).await?;
            self.collector.used(&image);
            Ok(image.rootfs)
        }
        .boxed()
    }
}

impl Drop for NodeImages {
    fn drop(&mut self) {
        self.collecting.abort();
    }
}

/// Images are unpacked by this program, in a child that shuts itself in.
pub fn confined(join: Vec<PathBuf>) -> Unpacker {
    Unpacker::confined(Helper { join, ..Helper::ourselves(SUBCOMMAND) }, Budget::default())
}

/// The control group of such children. A machine that has none still has the limits of the process.
fn cgroup(instance: &str) -> Vec<PathBuf> {
    let limits = Limits { cpu_request_milli: 100, cpu_limit_milli: None, memory_limit_bytes: Some(UNPACK_MEMORY) };
    let made =
        Hierarchy::detect().and_then(|hierarchy| hierarchy.create(&format!("ferrovirt-{instance}"), "images", &limits));
    made.unwrap_or_else(|error| {
        tracing::warn!(error = ferrovirt_api::chain(&error), "images are unpacked without a control group");
        vec![]
    })
}

/// Reads the file that `--registries` names.
pub fn read_registries(path: Option<&Path>) -> Result<Registries> {
    let Some(path) = path else { return Ok(Registries::default()) };
    let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    serde_saphyr::from_str(&text).with_context(|| format!("{} does not describe registries", path.display()))
}

pub fn cache(images: &Path) -> PathBuf {
    images.join("imports")
}

/// Where the node keeps images between imports. Importers read their own entry of it and write nothing.
pub fn make_cache(images: &Path) -> Result<PathBuf> {
    let cache = cache(images);
    fs::create_dir_all(images)?;
    ferrovirt_cdi::cache::make(&cache, &images.join("cache"))
        .with_context(|| format!("cannot make {}", cache.display()))?;
    Ok(cache)
}
