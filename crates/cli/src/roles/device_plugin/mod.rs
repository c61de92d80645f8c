//! Gives pods the devices that VMs need: a kubelet lets a container use a device only if a plugin offers it.
//!
//! ```text
//! listen on <device>.sock ──> register with kubelet.sock ──> kubelet asks for the list, and for each pod's devices
//!           ^                                                   |
//!           └── the kubelet has restarted: our socket is gone <─┘
//! ```

mod grpc;
mod messages;

use std::{
    convert::Infallible,
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, Result};
use ferrovirt_api::names;
use futures::stream;
use http::Request;
use hyper::{body::Incoming, server::conn::http2, service::service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::{
    net::{UnixListener, UnixStream},
    sync::watch,
    task::JoinSet,
};

/// Where all kubelets have it, whatever their root directory is.
pub const DIRECTORY: &str = "/var/lib/kubelet/device-plugins";
/// Any number of VMs can share a device, but the kubelet wants to count.
const COUNT: usize = 1000;
/// How soon a restarted kubelet and a new device are noticed.
const LOOK: Duration = Duration::from_secs(2);

#[derive(Debug, Clone)]
pub struct Device {
    pub resource: &'static str,
    pub path: &'static str,
    /// False if the device is of no use even if it is there.
    pub usable: bool,
}

/// What a node offers. `kvm` says whether its processor virtualizes.
pub fn devices(kvm: bool) -> Vec<Device> {
    let device = |resource, path, usable| Device { resource, path, usable };
    vec![
        device(names::KVM_DEVICE, "/dev/kvm", kvm),
        // The other kernel interface that hypervisors of libvirt's use; a node that has it has nothing else to show.
        device(names::MSHV_DEVICE, "/dev/mshv", true),
        device(names::TUN_DEVICE, "/dev/net/tun", true),
        device(names::VHOST_NET_DEVICE, "/dev/vhost-net", true),
        device(names::VHOST_VSOCK_DEVICE, "/dev/vhost-vsock", true),
    ]
}

/// Offers the devices below the node's root directory for as long as it is polled.
pub async fn run(devices: Vec<Device>, root: PathBuf, directory: PathBuf) {
    let mut plugins = JoinSet::new();
    for device in devices {
        let (root, directory) = (root.clone(), directory.clone());
        plugins.spawn(async move {
            loop {
                if let Err(error) = offer(&device, &root, &directory).await {
                    let error = format!("{error:#}");
                    tracing::warn!(resource = device.resource, error, "cannot offer it to the kubelet; trying again");
                }
                tokio::time::sleep(LOOK).await;
            }
        });
    }
    plugins.join_all().await;
}

/// One registration, until the kubelet has forgotten it.
async fn offer(device: &Device, root: &Path, directory: &Path) -> Result<()> {
    let name = device.resource.rsplit('/').next().unwrap_or(device.resource);
    let endpoint = format!("kubevirt-{name}.sock");
    let (socket, kubelet) = (directory.join(&endpoint), directory.join("kubelet.sock"));
    let _ = fs::remove_file(&socket);
    let listener = UnixListener::bind(&socket).with_context(|| format!("cannot listen on {}", socket.display()))?;
    let here = || device.usable && root.join(device.path.trim_start_matches('/')).exists();
    let (count, watched) = watch::channel(if here() { COUNT } else { 0 });
    let _serving = AbortOnDrop(tokio::spawn(serve(listener, device.path, watched)));

    let stream = UnixStream::connect(&kubelet).await.context("the kubelet does not take device plugins")?;
    let request = messages::register_request(&endpoint, device.resource);
    grpc::call(stream, "/v1beta1.Registration/Register", &request).await.context("the kubelet refused it")?;
    tracing::info!(resource = device.resource, devices = *count.borrow(), "offered to the kubelet");
    // A kubelet that starts removes all sockets, and waits for new registrations.
    while socket.exists() {
        tokio::time::sleep(LOOK).await;
        let now = if here() { COUNT } else { 0 };
        count.send_if_modified(|count| std::mem::replace(count, now) != now);
    }
    Ok(())
}

async fn serve(listener: UnixListener, path: &'static str, count: watch::Receiver<usize>) {
    let count = Arc::new(count);
    while let Ok((stream, _)) = listener.accept().await {
        let count = count.clone();
        tokio::spawn(async move {
            let answer = service_fn(|request| answer(request, path, count.clone()));
            let connection = http2::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(stream), answer);
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a connection of the kubelet ended");
            }
        });
    }
}

async fn answer(
    request: Request<Incoming>,
    path: &'static str,
    count: Arc<watch::Receiver<usize>>,
) -> Result<grpc::Answer, Infallible> {
    let method = request.uri().path().to_owned();
    Ok(match method.as_str() {
        // No options: nothing to do before a container starts, and no preferences.
        "/v1beta1.DevicePlugin/GetDevicePluginOptions" => grpc::one(b""),
        "/v1beta1.DevicePlugin/ListAndWatch" => grpc::many(lists((*count).clone())),
        "/v1beta1.DevicePlugin/Allocate" => {
            let message = grpc::message(request.into_body()).await;
            let allocated = message.and_then(|message| messages::allocate(&message, path));
            allocated.map_or_else(grpc::damaged, |answer| grpc::one(&answer))
        }
        _ => grpc::unknown_method(),
    })
}

/// The list now, and again whenever it changes.
fn lists(count: watch::Receiver<usize>) -> impl futures::Stream<Item = Vec<u8>> + Send {
    stream::unfold((count, true), |(mut count, first)| async move {
        if !first {
            count.changed().await.ok()?;
        }
        let list = messages::devices(*count.borrow_and_update(), true);
        Some((list, (count, false)))
    })
}

struct AbortOnDrop(tokio::task::JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_devices_of_hypervisors_are_counted_where_they_work() {
        let offered = |kvm: bool| -> Vec<&str> {
            let usable = devices(kvm).into_iter().filter(|device| device.usable);
            usable.map(|device| device.path).take(2).collect()
        };
        assert_eq!(offered(true), ["/dev/kvm", "/dev/mshv"]);
        assert_eq!(offered(false).first(), Some(&"/dev/mshv"), "another processor may well have it");
    }

    /// Plays the kubelet: takes the registration, then asks for devices.
    #[tokio::test]
    async fn a_kubelet_gets_what_it_asks_for() {
        let scratch = tempfile::tempdir().unwrap();
        let (root, directory) = (scratch.path().join("root"), scratch.path().join("plugins"));
        fs::create_dir_all(root.join("dev")).unwrap();
        fs::create_dir_all(&directory).unwrap();
        fs::write(root.join("dev/kvm"), "").unwrap();
        let kubelet = UnixListener::bind(directory.join("kubelet.sock")).unwrap();
        let (registered, mut registrations) = tokio::sync::mpsc::unbounded_channel();
        tokio::spawn(async move {
            while let Ok((stream, _)) = kubelet.accept().await {
                let registered = registered.clone();
                let service = service_fn(move |request: Request<Incoming>| {
                    let registered = registered.clone();
                    async move {
                        assert_eq!(request.uri().path(), "/v1beta1.Registration/Register");
                        registered.send(grpc::message(request.into_body()).await.unwrap()).unwrap();
                        Ok::<_, Infallible>(grpc::one(b""))
                    }
                });
                let _ = http2::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(stream), service).await;
            }
        });
        let kvm = devices(true).into_iter().take(1).collect();
        tokio::spawn(run(kvm, root, directory.clone()));
        let wanted = messages::register_request("kubevirt-kvm.sock", "devices.kubevirt.io/kvm");
        assert_eq!(registrations.recv().await.unwrap(), wanted);

        let socket = directory.join("kubevirt-kvm.sock");
        let call = |method: &'static str, message: &'static [u8]| {
            let socket = socket.clone();
            async move {
                let stream = UnixStream::connect(&socket).await.unwrap();
                grpc::call(stream, &format!("/v1beta1.DevicePlugin/{method}"), message).await
            }
        };
        assert_eq!(call("GetDevicePluginOptions", b"").await.unwrap(), "");
        let answer = call("Allocate", b"\x0a\x03\x0a\x010").await.unwrap();
        assert_eq!(answer, messages::allocate(b"\x0a\x00", "/dev/kvm").unwrap());
        let refused = call("Allocate", b"\xff").await.unwrap_err();
        assert!(refused.to_string().contains("\"3\""), "{refused}");
        assert!(call("PreStartContainer", b"").await.unwrap_err().to_string().contains("\"12\""));

        // A kubelet that restarts removes the sockets.
        fs::remove_file(&socket).unwrap();
        assert_eq!(registrations.recv().await.unwrap(), wanted);
    }

    #[tokio::test]
    async fn the_list_is_sent_again_when_it_changes() {
        use futures::StreamExt;
        let (count, watched) = watch::channel(1);
        let mut lists = std::pin::pin!(lists(watched));
        assert_eq!(lists.next().await, Some(messages::devices(1, true)));
        count.send(0).unwrap();
        assert_eq!(lists.next().await, Some(vec![]));
        drop(count);
        assert_eq!(lists.next().await, None);
    }
}
