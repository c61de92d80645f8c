//! The images of this host: what was imported by hand, and what registries have.

use std::{fs, path::Path, path::PathBuf};

use anyhow::{Context, Result};
use ferrovirt_disks::store::ImageStore;
use ferrovirt_fetch::registry::{Credentials, Puller, Registries};
use ferrovirt_node_lite::{ImageError, Images, Wanted};
use futures::{FutureExt, future::BoxFuture};
use kube::Client;

pub struct NodeImages {
    store: ImageStore,
    puller: Puller,
    /// The file that `--registries` names. What it says at the moment of a pull counts.
    registries: Option<PathBuf>,
    client: Client,
    /// One empty file for each name that came from a registry. Only those are asked for again.
    pulled: PathBuf,
}

impl NodeImages {
    pub fn open(directory: &Path, registries: Option<PathBuf>, client: Client) -> Result<Self> {
        let store = ImageStore::open(directory)?;
        let pulled = directory.join(".pulled");
        fs::create_dir_all(&pulled)?;
        let puller = Puller::new(store.clone(), &directory.join(".blobs"));
        Ok(Self { puller, store, registries, client, pulled })
    }

    /// The file, and what the CDIConfig says about insecure registries.
    async fn registries(&self) -> Result<Registries> {
        let registries = read_registries(self.registries.as_deref())?;
        let request = http::Request::get(ferrovirt_api::cdi::names::CONFIG_PATH).body(vec![])?;
        let config: serde_json::Value = self.client.request(request).await.unwrap_or_default();
        let insecure = config["spec"]["insecureRegistries"].as_array().into_iter().flatten();
        Ok(registries.with_insecure(insecure.filter_map(|host| host.as_str().map(str::to_owned))))
    }

    fn marker(&self, reference: &str) -> PathBuf {
        self.pulled.join(reference.replace('/', "%2F"))
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
            let here = self.resolve(reference);
            let again = wanted.policy == "Always" && self.marker(reference).exists();
            if wanted.policy == "Never" || (here.is_ok() && !again) {
                return here;
            }
            let mut credentials = Credentials::default();
            for config in &wanted.docker_configs {
                if let Err(error) = credentials.add_docker_config(config) {
                    tracing::warn!(%error, image = reference, "a pull secret is not understood");
                }
            }
            let registries = self
                .registries()
                .await
                .map_err(|error| ImageError::Pull { reference: reference.clone(), reason: format!("{error:#}") })?;
            match self.puller.pull(reference, &credentials, &registries, again).await {
                Ok(image) => {
                    let _ = fs::write(self.marker(reference), "");
                    Ok(image.rootfs)
                }
                Err(error) => {
                    let reason = ferrovirt_api::chain(&error);
                    // What is here is better than nothing when the registry is away.
                    here.map_err(|_| ImageError::Pull { reference: reference.clone(), reason })
                }
            }
        }
        .boxed()
    }
}

/// Reads the file that `--registries` names.
pub fn read_registries(path: Option<&Path>) -> Result<Registries> {
    let Some(path) = path else { return Ok(Registries::default()) };
    let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    serde_saphyr::from_str(&text).with_context(|| format!("{} does not describe registries", path.display()))
}

/// Where importers keep images for each other. They run as the user of VMs.
pub fn make_cache(images: &Path) -> Result<PathBuf> {
    const OWNER: u32 = 107;
    let cache = images.join("cache");
    fs::create_dir_all(&cache)?;
    std::os::unix::fs::chown(&cache, Some(OWNER), Some(OWNER))?;
    Ok(cache)
}
