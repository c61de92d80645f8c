//! Registries that are slow, lie, or give to some what they do not give to others.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex};

use ferrovirt_disks::budget::Budget;
use ferrovirt_disks::digest::Digest;
use ferrovirt_disks::store::ImageStore;
use ferrovirt_disks::unpacker::Unpacker;
use ferrovirt_fetch::registry::{Credentials, PullError, Puller, Registries};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;

/// A registry with one image, `demo:1`.
#[derive(Clone, Default)]
struct Registry {
    files: Arc<HashMap<String, Vec<u8>>>,
    /// Answers for these paths never end.
    slow: Arc<Vec<String>>,
    /// `Basic …`; everybody without it is refused.
    login: Option<String>,
    asked: Arc<Mutex<Vec<String>>>,
    stuck: Arc<Notify>,
}

impl Registry {
    fn new(layers: &[Vec<u8>], size: impl Fn(&Vec<u8>) -> u64) -> Self {
        let mut files = HashMap::new();
        let layers: Vec<_> = layers
            .iter()
            .map(|layer| {
                files.insert(format!("/v2/demo/blobs/{}", Digest::of(layer)), layer.clone());
                json!({ "digest": Digest::of(layer).to_string(), "size": size(layer) })
            })
            .collect();
        let manifest = json!({ "schemaVersion": 2, "layers": layers }).to_string().into_bytes();
        files.insert(format!("/v2/demo/manifests/{}", Digest::of(&manifest)), manifest.clone());
        files.insert("/v2/demo/manifests/1".into(), manifest);
        Self { files: Arc::new(files), ..Self::default() }
    }

    /// Serves it, and answers the image's name.
    async fn serve(&self) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let name = format!("{}/demo:1", listener.local_addr().unwrap());
        let registry = self.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(registry.clone().answer(stream));
            }
        });
        name
    }

    async fn answer(self, mut stream: TcpStream) {
        let mut request = Vec::new();
        while !request.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            match stream.read(&mut byte).await {
                // Whoever begins a TLS handshake is sent away.
                Ok(1) if !request.is_empty() || byte[0].is_ascii_uppercase() => request.push(byte[0]),
                _ => return,
            }
        }
        let request = String::from_utf8_lossy(&request).into_owned();
        let path = request.split(' ').nth(1).unwrap_or_default().to_owned();
        let known = self.login.as_ref().is_none_or(|login| request.contains(&format!("Basic {login}\r\n")));
        self.asked.lock().unwrap().push(path.clone());
        let (status, extra, body) = match self.files.get(&path) {
            _ if !known => ("401 Unauthorized", "WWW-Authenticate: Basic realm=\"x\"\r\n", vec![]),
            Some(body) => ("200 OK", "", body.clone()),
            None => ("404 Not Found", "", vec![]),
        };
        let length = body.len();
        let head = format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\n{extra}Connection: close\r\n\r\n");
        let _ = stream.write_all(head.as_bytes()).await;
        if self.slow.contains(&path) {
            self.stuck.notify_one();
            return std::future::pending().await;
        }
        let _ = stream.write_all(&body).await;
    }

    fn blobs_asked(&self) -> usize {
        self.asked.lock().unwrap().iter().filter(|path| path.contains("/blobs/")).count()
    }
}

fn layer(name: &str, content: &[u8]) -> Vec<u8> {
    let mut tar = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_gnu();
    header.set_size(content.len() as u64);
    header.set_mode(0o644);
    tar.append_data(&mut header, name, content).unwrap();
    tar.into_inner().unwrap()
}

fn puller(dir: &Path, budget: Budget) -> (ImageStore, Puller) {
    let store = ImageStore::open(dir, Unpacker::here(Budget { reserve: 0, ..budget })).unwrap();
    (store.clone(), Puller::new(store, &dir.join(".blobs")))
}

fn anybody(_: &Digest) {}

/// Registries on this machine's loopback are asked if an administrator lists them.
fn listed(name: &str) -> Registries {
    let host = name.split('/').next().unwrap_or_default().to_owned();
    Registries::default().with_insecure([host])
}

async fn pull(puller: &Puller, name: &str) -> Result<ferrovirt_disks::store::Image, PullError> {
    puller.pull(name, &Credentials::default(), &listed(name), false, &anybody).await
}

fn kept(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir.join(".blobs")).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

#[tokio::test]
async fn a_slow_registry_blocks_only_its_own_image() {
    let dir = tempfile::tempdir().unwrap();
    let layers = [layer("disk/a.img", b"shared"), layer("b", b"more")];
    let good = Registry::new(&layers, |layer| layer.len() as u64);
    // The same image, layer by layer, from somebody who never finishes.
    let hostile = Registry {
        slow: Arc::new(layers.iter().map(|layer| format!("/v2/demo/blobs/{}", Digest::of(layer))).collect()),
        ..Registry::new(&layers, |layer| layer.len() as u64)
    };
    let (hostile_name, good_name) = (hostile.serve().await, good.serve().await);
    let (_, puller) = puller(dir.path(), Budget::default());
    let puller = Arc::new(puller);
    let stuck = {
        let puller = puller.clone();
        tokio::spawn(async move { pull(&puller, &hostile_name).await.map(drop) })
    };
    hostile.stuck.notified().await;
    let image = pull(&puller, &good_name).await.unwrap();
    assert_eq!(fs::read(image.rootfs.join("disk/a.img")).unwrap(), b"shared");
    assert!(!stuck.is_finished());
    stuck.abort();
}

#[tokio::test]
async fn an_image_that_two_pods_want_is_pulled_once() {
    let dir = tempfile::tempdir().unwrap();
    let registry = Registry::new(&[layer("a", b"x")], |layer| layer.len() as u64);
    let name = registry.serve().await;
    let (_, puller) = puller(dir.path(), Budget::default());
    let (one, other) = tokio::join!(pull(&puller, &name), pull(&puller, &name));
    assert_eq!(one.unwrap().digest, other.unwrap().digest);
    assert_eq!(registry.blobs_asked(), 1);
    // Asked for again, it is the same one, and nothing is brought.
    puller.pull(&name, &Credentials::default(), &listed(&name), true, &anybody).await.unwrap();
    assert_eq!(registry.blobs_asked(), 1);
    assert_eq!(kept(dir.path()), [""; 0]);
}

#[tokio::test]
async fn a_registry_cannot_bring_more_than_it_says() {
    let dir = tempfile::tempdir().unwrap();
    let registry = Registry::new(&[layer("a", &[1; 4096])], |_| 100);
    let name = registry.serve().await;
    let (store, puller) = puller(dir.path(), Budget::default());
    let error = pull(&puller, &name).await.unwrap_err();
    assert!(matches!(error, PullError::Longer(_)), "{error:?}");
    assert_eq!(kept(dir.path()), [""; 0], "nothing is left of it");
    assert!(store.resolve(&name).is_none());
}

#[tokio::test]
async fn an_image_over_its_budget_is_not_brought() {
    for (budget, size) in [
        (Budget { packed: 1000, ..Budget::default() }, 2000),
        (Budget { layers: 1, ..Budget::default() }, 10),
        (Budget { packed: 1000, ..Budget::default() }, u64::MAX),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let registry = Registry::new(&[layer("a", b"x"), layer("b", b"x")], move |_| size);
        let name = registry.serve().await;
        let (_, puller) = puller(dir.path(), budget);
        let error = pull(&puller, &name).await.unwrap_err();
        assert!(matches!(error, PullError::Budget(_)), "{error:?}");
        assert_eq!(registry.blobs_asked(), 0);
    }
    // One that does not say how much it is.
    let dir = tempfile::tempdir().unwrap();
    let registry = Registry::new(&[layer("a", &[1; 4096])], |_| 0);
    let name = registry.serve().await;
    let (_, puller) = puller(dir.path(), Budget { packed: 1000, ..Budget::default() });
    assert!(pull(&puller, &name).await.is_err());
    assert_eq!(kept(dir.path()), [""; 0]);
}

#[tokio::test]
async fn a_layer_that_is_not_what_its_digest_says_is_not_used() {
    let dir = tempfile::tempdir().unwrap();
    let (real, forged) = (layer("a", b"real"), layer("a", b"evil"));
    let mut registry = Registry::new(std::slice::from_ref(&real), |layer| layer.len() as u64);
    let mut files = (*registry.files).clone();
    files.insert(format!("/v2/demo/blobs/{}", Digest::of(&real)), forged);
    registry.files = Arc::new(files);
    let name = registry.serve().await;
    let (store, puller) = puller(dir.path(), Budget::default());
    let error = pull(&puller, &name).await.unwrap_err();
    assert!(matches!(error, PullError::Mismatch { .. }), "{error:?}");
    assert!(store.resolve(&name).is_none());
    assert_eq!(kept(dir.path()), [""; 0]);
}

#[tokio::test]
async fn a_private_image_is_asked_for_with_each_pods_own_login() {
    let dir = tempfile::tempdir().unwrap();
    let registry = Registry {
        login: Some("YWxpY2U6c2VjcmV0".into()),
        ..Registry::new(&[layer("a", b"x")], |layer| layer.len() as u64)
    };
    let name = registry.serve().await;
    let host = name.split('/').next().unwrap();
    let mut alice = Credentials::default();
    let config = json!({ "auths": { host: { "username": "alice", "password": "secret" } } });
    alice.add_docker_config(config.to_string().as_bytes()).unwrap();
    let (_, puller) = puller(dir.path(), Budget::default());
    assert!(matches!(pull(&puller, &name).await, Err(PullError::Denied(_))));
    let granted = Mutex::new(Vec::new());
    let grant = |digest: &Digest| granted.lock().unwrap().push(digest.clone());
    let image = puller.pull(&name, &alice, &listed(&name), false, &grant).await.unwrap();
    let digest: Digest = image.digest.parse().unwrap();
    assert_eq!(*granted.lock().unwrap(), std::slice::from_ref(&digest));
    let registries = listed(&name);
    puller.allows(&name, &digest, &alice, &registries).await.unwrap();
    let mallory = Credentials::default();
    assert!(puller.allows(&name, &digest, &mallory, &registries).await.is_err());
}
