//! Image registries (the OCI distribution protocol): resolve a name, bring the blobs, fill the node's image store.
//!
//! Blobs are kept by digest while an image is on its way, so a broken pull goes on where it broke and two images share layers.

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ferrovirt_disks::budget::{OverBudget, leave_room};
use ferrovirt_disks::digest::{Digest, Hashing};
use ferrovirt_disks::oci::OciError;
use ferrovirt_disks::reference::Reference;
use ferrovirt_disks::store::{Image, ImageStore, StoreError};
use http::header::{ACCEPT, AUTHORIZATION, RANGE, WWW_AUTHENTICATE};
use http::{HeaderMap, HeaderValue, Method, StatusCode};
use serde::{Deserialize, Serialize};
use tokio::sync::OwnedMutexGuard;

use crate::guard::Reach;
use crate::http::{Client, HttpError, Trust, next_chunk};

const MANIFESTS: &str = "application/vnd.oci.image.index.v1+json, application/vnd.oci.image.manifest.v1+json, \
     application/vnd.docker.distribution.manifest.list.v2+json, application/vnd.docker.distribution.manifest.v2+json";
const MAX_DOCUMENT: usize = 8 << 20;
const ATTEMPTS: u32 = 5;
/// Room on the disk is measured anew after this many bytes.
const MEASURE_EVERY: u64 = 16 << 20;

/// Where registries really are. The file that `ferrovirt up --registries` names.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub struct Registries {
    pub registries: Vec<Registry>,
}

/// How one registry is reached.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub struct Registry {
    /// As in image names, such as `docker.io` or `registry.example.com:5000`.
    pub host: String,
    /// Asked first, in this order, such as `https://mirror.example.com`.
    pub mirrors: Vec<String>,
    /// Speak plain HTTP, and trust any certificate.
    pub insecure: bool,
    /// A file with certificates (PEM) to trust beside the system's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ca_file: Option<PathBuf>,
}

impl Registries {
    /// Adds hosts that others say are insecure.
    pub fn with_insecure(mut self, hosts: impl IntoIterator<Item = String>) -> Self {
        for host in hosts {
            match self.registries.iter_mut().find(|registry| registry.host == host) {
                Some(known) => known.insecure = true,
                None => self.registries.push(Registry { host, insecure: true, ..Registry::default() }),
            }
        }
        self
    }
}

/// In place of a host: a login for whatever registry has the image.
pub const ANY_HOST: &str = "*";

/// User and password for registries, by host.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Credentials {
    by_host: BTreeMap<String, String>,
}

impl Credentials {
    /// Adds what a secret of type `kubernetes.io/dockerconfigjson` holds.
    pub fn add_docker_config(&mut self, json: &[u8]) -> Result<(), serde_json::Error> {
        #[derive(Deserialize)]
        struct Config {
            #[serde(default)]
            auths: BTreeMap<String, Entry>,
        }
        #[derive(Deserialize)]
        struct Entry {
            auth: Option<String>,
            username: Option<String>,
            password: Option<String>,
        }
        let config: Config = serde_json::from_slice(json)?;
        for (host, entry) in config.auths {
            let pair = || Some(STANDARD.encode(format!("{}:{}", entry.username?, entry.password?)));
            if let Some(basic) = entry.auth.filter(|auth| !auth.is_empty()).or_else(pair) {
                let host = host.trim_start_matches("https://").trim_start_matches("http://");
                let host = host.split('/').next().unwrap_or_default();
                let host = if host == "index.docker.io" { "docker.io" } else { host };
                self.by_host.insert(host.to_owned(), basic);
            }
        }
        Ok(())
    }

    /// The login that an image of this name is asked for with.
    pub fn login(&self, name: &Reference) -> Option<&str> {
        self.of(&name.domain).map(String::as_str)
    }

    fn of(&self, host: &str) -> Option<&String> {
        self.by_host.get(host).or_else(|| self.by_host.get(ANY_HOST))
    }
}

#[derive(Debug, thiserror::Error)]
pub enum PullError {
    #[error(transparent)]
    Http(#[from] HttpError),
    #[error("{0} says that there is no such image, or that it is not for you; check the name and the pull secret")]
    Denied(String),
    #[error("{0} has no such image")]
    NotFound(String),
    #[error("the registry asks for a login that is not understood: {0}")]
    Challenge(String),
    #[error("{0} wants the login at an address that is not encrypted; list the registry as insecure if that is meant")]
    PlainRealm(String),
    #[error("the registry answered with what is no manifest")]
    Manifest(#[source] serde_json::Error),
    #[error("{what} should have digest {wanted} and has {found}")]
    Mismatch { what: String, wanted: Digest, found: Digest },
    #[error("the image has nothing for {0}")]
    NoPlatform(String),
    #[error("the registry names a digest wrongly")]
    Digest(#[from] ferrovirt_disks::digest::BadDigest),
    #[error("the image costs too much")]
    Budget(#[from] OverBudget),
    #[error("{0} brings more than the manifest says")]
    Longer(String),
    #[error("the image did not arrive within {} seconds", .0.as_secs())]
    Slow(Duration),
    #[error("cannot keep {}", path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error("cannot unpack the image")]
    Unpack(#[from] OciError),
    #[error("cannot store the image")]
    Store(#[from] StoreError),
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Manifest {
    #[serde(default)]
    manifests: Vec<Descriptor>,
    #[serde(default)]
    layers: Vec<Descriptor>,
}

#[derive(Deserialize)]
struct Descriptor {
    digest: String,
    #[serde(default)]
    size: u64,
    platform: Option<Platform>,
}

#[derive(Deserialize)]
struct Platform {
    architecture: String,
    os: String,
}

/// Pulls images into one store. One pull of a name at a time; others wait and find it done. Nobody waits for another's registry:
/// what a registry brings is kept apart until it is known to be what its digest says.
pub struct Puller {
    store: ImageStore,
    blobs: PathBuf,
    turns: Turns,
}

impl Puller {
    pub fn new(store: ImageStore, blobs: &Path) -> Self {
        Self { store, blobs: blobs.to_owned(), turns: Turns::default() }
    }

    /// Brings the image. With `fresh`, a name is asked for again although it is here. `granted` is told which image the registry
    /// gives for these credentials, before anybody can find it in the store.
    pub async fn pull(
        &self,
        reference: &str,
        credentials: &Credentials,
        registries: &Registries,
        fresh: bool,
        granted: &(dyn Fn(&Digest) + Send + Sync),
    ) -> Result<Image, PullError> {
        let name: Reference = reference.parse().map_err(StoreError::Reference)?;
        let _turn = self.turns.take(name.to_string()).await;
        if let Some(image) = self.store.resolve(reference).filter(|_| !fresh) {
            return Ok(image);
        }
        let patience = Duration::from_secs(self.store.unpacker().budget().seconds);
        let mut last = None;
        for session in sessions(&name, credentials, registries)? {
            let pulled = tokio::time::timeout(patience, self.pull_from(&session, &name, granted)).await;
            match pulled.unwrap_or(Err(PullError::Slow(patience))) {
                Ok(image) => return Ok(image),
                Err(error) => {
                    tracing::info!(image = reference, registry = session.base, %error, "cannot pull from here");
                    // A registry that says no tells more than an address where nobody listens.
                    let telling = !matches!(error, PullError::Http(HttpError::Connect { .. }));
                    if telling || last.is_none() {
                        last = Some(error);
                    }
                }
            }
        }
        Err(last.unwrap_or_else(|| PullError::NotFound(reference.to_owned())))
    }

    /// Whether the registry gives an image that is here to somebody with these credentials.
    pub async fn allows(
        &self,
        reference: &str,
        digest: &Digest,
        credentials: &Credentials,
        registries: &Registries,
    ) -> Result<(), PullError> {
        let name: Reference = reference.parse().map_err(StoreError::Reference)?;
        let mut last = None;
        for session in sessions(&name, credentials, registries)? {
            match session.manifest(&digest.to_string(), Some(digest), &mut None).await {
                Ok(_) => return Ok(()),
                Err(error) => last = Some(error),
            }
        }
        Err(last.unwrap_or_else(|| PullError::NotFound(reference.to_owned())))
    }

    async fn pull_from(
        &self,
        session: &Session<'_>,
        name: &Reference,
        granted: &(dyn Fn(&Digest) + Send + Sync),
    ) -> Result<Image, PullError> {
        let wanted = name.digest.as_ref().map(ToString::to_string).or_else(|| name.tag.clone()).unwrap_or_default();
        let mut auth = None;
        let (digest, mut manifest) = session.manifest(&wanted, name.digest.as_ref(), &mut auth).await?;
        granted(&digest);
        if self.store.resolve(&digest.to_string()).is_some() {
            // Only the name is new.
            return Ok(self.store.install(name, &digest, |_| Ok::<(), StoreError>(()))?);
        }
        if !manifest.manifests.is_empty() {
            let architecture = match std::env::consts::ARCH {
                "x86_64" => "amd64",
                "aarch64" => "arm64",
                other => other,
            };
            let fits = |platform: &Platform| platform.os == "linux" && platform.architecture == architecture;
            let fitting = manifest.manifests.iter().find(|entry| entry.platform.as_ref().is_none_or(fits));
            let fitting = fitting.ok_or_else(|| PullError::NoPlatform(format!("linux/{architecture}")))?;
            let inner: Digest = fitting.digest.parse()?;
            manifest = session.manifest(&fitting.digest.clone(), Some(&inner), &mut auth).await?.1;
        }
        let budget = *self.store.unpacker().budget();
        if manifest.layers.len() > budget.layers {
            return Err(OverBudget::Layers(budget.layers).into());
        }
        let announced = manifest.layers.iter().fold(0_u64, |sum, layer| sum.saturating_add(layer.size));
        if announced > budget.packed {
            return Err(OverBudget::Bytes(budget.packed).into());
        }
        fs::create_dir_all(&self.blobs).map_err(at(&self.blobs))?;
        let mut layers = Vec::new();
        let mut left = budget.packed;
        for layer in &manifest.layers {
            let digest: Digest = layer.digest.parse()?;
            // A registry that does not say how long its layers are has the rest of the budget for them.
            let limit = Some(layer.size).filter(|size| *size > 0).unwrap_or(left);
            let room = Room { limit, reserve: budget.reserve };
            let file = self.layer(session, &digest, room, &mut auth).await?;
            let length = file.metadata().map_err(at(&self.blobs))?.len();
            left = left.checked_sub(length).ok_or(OverBudget::Bytes(budget.packed))?;
            layers.push((digest, file));
        }
        let (store, name, blobs) = (self.store.clone(), name.clone(), self.blobs.clone());
        let work = move || {
            let fill = |root: &Path| store.unpacker().layers(&layers, root).map_err(PullError::from);
            let installed = store.install(&name, &digest, fill);
            // Others that want the same layer hold it open, or bring it again.
            for (digest, _) in &layers {
                let _ = fs::remove_file(place(&blobs, digest));
            }
            installed
        };
        match tokio::task::spawn_blocking(work).await {
            Ok(result) => result,
            Err(error) => Err(at(&self.blobs)(io::Error::other(error))),
        }
    }

    /// A layer whose digest was compared, held open: its name may go at any time.
    async fn layer(
        &self,
        session: &Session<'_>,
        digest: &Digest,
        room: Room,
        auth: &mut Option<HeaderValue>,
    ) -> Result<File, PullError> {
        let source = format!("{}/{}", session.base, session.repository);
        let _turn = self.turns.take(format!("{source}@{digest}")).await;
        let path = place(&self.blobs, digest);
        if let Ok(file) = File::open(&path) {
            return Ok(file);
        }
        // Each source has a beginning of its own: a bad one spoils, and delays, nobody else's.
        let source: String = Digest::of(source.as_bytes()).hex().chars().take(16).collect();
        let partial = self.blobs.join(format!("sha256-{}.{source}.partial", digest.hex()));
        let file = session.blob(digest, &partial, room, auth).await?;
        fs::rename(&partial, &path).map_err(at(&path))?;
        Ok(file)
    }
}

fn place(blobs: &Path, digest: &Digest) -> PathBuf {
    blobs.join(format!("sha256-{}", digest.hex()))
}

/// How much a blob may take.
#[derive(Debug, Clone, Copy)]
struct Room {
    limit: u64,
    /// What stays free for others.
    reserve: u64,
}

/// One turn at a time for each key; keys that nobody waits for are forgotten.
#[derive(Default)]
struct Turns(Mutex<HashMap<String, Weak<tokio::sync::Mutex<()>>>>);

impl Turns {
    async fn take(&self, key: String) -> OwnedMutexGuard<()> {
        let turn = {
            let mut turns = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            turns.retain(|_, turn| turn.strong_count() > 0);
            match turns.get(&key).and_then(Weak::upgrade) {
                Some(turn) => turn,
                None => {
                    let turn = Arc::new(tokio::sync::Mutex::new(()));
                    turns.insert(key, Arc::downgrade(&turn));
                    turn
                }
            }
        };
        turn.lock_owned().await
    }
}

/// Whom to ask, in this order.
fn sessions<'a>(
    name: &Reference,
    credentials: &'a Credentials,
    registries: &Registries,
) -> Result<Vec<Session<'a>>, PullError> {
    let login = credentials.of(&name.domain);
    let session = |(base, client)| Session { client, base, repository: name.path.clone(), login };
    Ok(places(name, registries)?.into_iter().map(session).collect())
}

/// Mirrors first, then the registry itself.
fn places(name: &Reference, registries: &Registries) -> Result<Vec<(String, Client)>, PullError> {
    let known = registries.registries.iter().find(|registry| registry.host == name.domain);
    let host = if name.domain == "docker.io" { "registry-1.docker.io" } else { &name.domain };
    let insecure = known.is_some_and(|registry| registry.insecure);
    let ca_file = known.and_then(|registry| registry.ca_file.as_deref());
    let extra_pem = ca_file.map(|path| fs::read(path).map_err(at(path))).transpose()?;
    // Anybody may name an image, and the host itself pulls it. Only what an administrator lists may be on the host.
    let reach = if known.is_some() { Reach::Anything } else { Reach::NotThisHost };
    let client = Client::new(&Trust { insecure, extra_pem: extra_pem.into_iter().collect() })?.within(reach);
    let mirrors = known.map(|registry| registry.mirrors.clone()).unwrap_or_default();
    let mut places: Vec<_> =
        mirrors.into_iter().map(|mirror| (mirror.trim_end_matches('/').to_owned(), client.clone())).collect();
    if insecure {
        places.push((format!("http://{host}"), client.clone()));
    }
    places.push((format!("https://{host}"), client));
    Ok(places)
}

/// Talks to one registry about one repository.
struct Session<'a> {
    client: Client,
    base: String,
    repository: String,
    login: Option<&'a String>,
}

impl Session<'_> {
    async fn manifest(
        &self,
        wanted: &str,
        digest: Option<&Digest>,
        auth: &mut Option<HeaderValue>,
    ) -> Result<(Digest, Manifest), PullError> {
        let url = format!("{}/v2/{}/manifests/{wanted}", self.base, self.repository);
        for _ in 0..2 {
            let mut headers = HeaderMap::new();
            headers.insert(ACCEPT, HeaderValue::from_static(MANIFESTS));
            headers.extend(auth.clone().map(|value| (AUTHORIZATION, value)));
            let answer = self.client.document(&url, &headers, MAX_DOCUMENT).await?;
            match answer.status() {
                StatusCode::OK => {
                    let found = Digest::of(answer.body());
                    if let Some(wanted) = digest.filter(|digest| **digest != found) {
                        let what = format!("the manifest of {}", self.repository);
                        return Err(PullError::Mismatch { what, wanted: wanted.clone(), found });
                    }
                    return Ok((found, serde_json::from_slice(answer.body()).map_err(PullError::Manifest)?));
                }
                StatusCode::UNAUTHORIZED if auth.is_none() => *auth = Some(self.authorize(answer.headers()).await?),
                StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => return Err(PullError::Denied(self.base.clone())),
                StatusCode::NOT_FOUND => return Err(PullError::NotFound(self.base.clone())),
                status => return Err(HttpError::Status { url, status }.into()),
            }
        }
        Err(PullError::Denied(self.base.clone()))
    }

    /// Brings a blob to a file, going on where an earlier attempt ended, and compares its digest.
    async fn blob(
        &self,
        digest: &Digest,
        partial: &Path,
        room: Room,
        auth: &mut Option<HeaderValue>,
    ) -> Result<File, PullError> {
        let url = format!("{}/v2/{}/blobs/{digest}", self.base, self.repository);
        for attempt in 1..=ATTEMPTS {
            match self.blob_once(&url, partial, room, auth).await {
                Ok(()) => break,
                Err(PullError::Http(error)) if attempt < ATTEMPTS && error.is_transient() => {
                    tracing::info!(url, %error, "a layer broke off; going on");
                }
                // What cannot end well is not kept.
                Err(error @ (PullError::Longer(_) | PullError::Budget(_))) => {
                    let _ = fs::remove_file(partial);
                    return Err(error);
                }
                Err(error) => return Err(error),
            }
        }
        let file = File::open(partial).map_err(at(partial))?;
        let length = file.metadata().map_err(at(partial))?.len();
        let reader = file.try_clone().map_err(at(partial))?;
        let hashed = move || Hashing::new(io::BufReader::with_capacity(1 << 18, reader)).drain();
        let hashed = tokio::task::spawn_blocking(hashed).await.map_err(|error| at(partial)(io::Error::other(error)))?;
        let (found, _) = hashed.map_err(at(partial))?;
        if found != *digest {
            fs::remove_file(partial).map_err(at(partial))?;
            tracing::warn!(url, length, "a layer is not what it should be");
            return Err(PullError::Mismatch { what: url, wanted: digest.clone(), found });
        }
        Ok(file)
    }

    async fn blob_once(
        &self,
        url: &str,
        partial: &Path,
        room: Room,
        auth: &mut Option<HeaderValue>,
    ) -> Result<(), PullError> {
        let mut file = File::options().create(true).append(true).open(partial).map_err(at(partial))?;
        let mut have = file.metadata().map_err(at(partial))?.len();
        for _ in 0..2 {
            let mut headers = HeaderMap::new();
            headers.extend(auth.clone().map(|value| (AUTHORIZATION, value)));
            if have > 0 {
                headers.extend(HeaderValue::from_str(&format!("bytes={have}-")).map(|value| (RANGE, value)));
            }
            let (_, answer) = self.client.send(&Method::GET, url, &headers).await?;
            match answer.status() {
                StatusCode::OK | StatusCode::PARTIAL_CONTENT => {
                    if answer.status() == StatusCode::OK && have > 0 {
                        file.set_len(0).map_err(at(partial))?;
                        have = 0;
                    }
                    let mut body = answer.into_body();
                    let mut measured = 0;
                    while let Some(chunk) = next_chunk(&mut body, url).await? {
                        have += chunk.len() as u64;
                        if have > room.limit {
                            return Err(PullError::Longer(url.to_owned()));
                        }
                        if have - measured >= MEASURE_EVERY || measured == 0 {
                            measured = have;
                            leave_room(&file, room.reserve).map_err(at(partial))?;
                        }
                        file.write_all(&chunk).map_err(at(partial))?;
                    }
                    return Ok(());
                }
                // All of it is here.
                StatusCode::RANGE_NOT_SATISFIABLE if have > 0 => return Ok(()),
                StatusCode::UNAUTHORIZED => *auth = Some(self.authorize(answer.headers()).await?),
                StatusCode::NOT_FOUND => return Err(PullError::NotFound(self.base.clone())),
                status => return Err(HttpError::Status { url: url.to_owned(), status }.into()),
            }
        }
        Err(PullError::Denied(self.base.clone()))
    }

    /// Answers a challenge: basic with the login itself, bearer with a token that the login buys.
    async fn authorize(&self, headers: &HeaderMap) -> Result<HeaderValue, PullError> {
        let challenge = headers.get(WWW_AUTHENTICATE).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let invalid = || PullError::Challenge(challenge.to_owned());
        let (scheme, rest) = challenge.split_once(' ').unwrap_or((challenge, ""));
        if scheme.eq_ignore_ascii_case("basic") {
            let login = self.login.ok_or_else(|| PullError::Denied(self.base.clone()))?;
            return HeaderValue::from_str(&format!("Basic {login}")).map_err(|_| invalid());
        }
        if !scheme.eq_ignore_ascii_case("bearer") {
            return Err(invalid());
        }
        let fields = parse_challenge(rest);
        let realm = fields.get("realm").ok_or_else(invalid)?;
        // The login goes to whom the registry names, but not in clear because of what an answer says.
        if !realm.to_ascii_lowercase().starts_with("https://") && !self.base.starts_with("http://") {
            return Err(PullError::PlainRealm(self.base.clone()));
        }
        let fallback = format!("repository:{}:pull", self.repository);
        let scope = fields.get("scope").unwrap_or(&fallback);
        let service = fields.get("service").map(|service| format!("&service={}", escape(service)));
        let separator = if realm.contains('?') { '&' } else { '?' };
        let url = format!("{realm}{separator}scope={}{}", escape(scope), service.unwrap_or_default());
        let mut headers = HeaderMap::new();
        if let Some(Ok(value)) = self.login.map(|login| HeaderValue::from_str(&format!("Basic {login}"))) {
            headers.insert(AUTHORIZATION, value);
        }
        let answer = self.client.document(&url, &headers, MAX_DOCUMENT).await?;
        if answer.status() != StatusCode::OK {
            return Err(PullError::Denied(self.base.clone()));
        }
        #[derive(Deserialize)]
        struct Answer {
            #[serde(alias = "access_token")]
            token: String,
        }
        let answer: Answer = serde_json::from_slice(answer.body()).map_err(PullError::Manifest)?;
        HeaderValue::from_str(&format!("Bearer {}", answer.token)).map_err(|_| invalid())
    }
}

/// `name="value"` pairs with commas between them; a value may hold commas.
fn parse_challenge(text: &str) -> BTreeMap<String, String> {
    let mut out = BTreeMap::new();
    let mut rest = text.trim();
    while let Some((name, tail)) = rest.split_once('=') {
        let (value, tail) = match tail.strip_prefix('"') {
            Some(quoted) => quoted.split_once('"').unwrap_or((quoted, "")),
            None => tail.split_once(',').unwrap_or((tail, "")),
        };
        out.insert(name.trim().to_ascii_lowercase(), value.to_owned());
        rest = tail.trim_start_matches([',', ' ']);
    }
    out
}

fn escape(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'~' | b'/' | b':');
    text.bytes().map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") }).collect()
}

fn at(path: &Path) -> impl Fn(io::Error) -> PullError + use<> {
    let path = path.to_owned();
    move |source| PullError::Io { path: path.clone(), source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn challenges_are_taken_apart() {
        let fields = parse_challenge(r#"realm="https://a/token",service="r",scope="repository:x:pull,push""#);
        assert_eq!(fields["realm"], "https://a/token");
        assert_eq!(fields["scope"], "repository:x:pull,push");
        assert_eq!(parse_challenge("realm=x, service=y")["service"], "y");
        assert_eq!(escape("repository:a/b c:pull"), "repository:a/b%20c:pull");
    }

    #[test]
    fn docker_configs_give_logins_by_host() {
        let mut credentials = Credentials::default();
        let json = br#"{"auths":{"https://index.docker.io/v1/":{"auth":"YTpi"},"r:5000":{"username":"u","password":"p"},"x":{}}}"#;
        credentials.add_docker_config(json).unwrap();
        assert_eq!(credentials.of("docker.io").unwrap(), "YTpi");
        assert_eq!(credentials.of("r:5000").unwrap(), "dTpw");
        assert!(credentials.of("x").is_none());
        assert!(credentials.add_docker_config(b"no json").is_err());
    }
}
