//! Byte streams into a guest: its serial console, its screen, its ports.
//!
//! Root works here below directories of tenants: by descriptor only.

use std::{io, os::fd::AsFd, path::Path};

use ferrovirt_api::v1::VirtualMachineInstance;
use ferrovirt_machine::node_call::Protocol;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::UnixStream,
};

use crate::{Context, Ground, forward, launcher::connect_in_pod, pods, process::ProcessError, session::Session};

pub trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Duplex for T {}
pub type Stream = Box<dyn Duplex>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamKind {
    /// With `replay` it begins with what the guest wrote last.
    Serial {
        replay: bool,
    },
    /// With `preserve` only if nobody else looks.
    Vnc {
        preserve: bool,
    },
    PortForward {
        port: u16,
        protocol: Protocol,
    },
}

#[derive(Debug, thiserror::Error)]
pub enum StreamError {
    #[error("the instance does not run on this node")]
    NotHere,
    #[error("Active VNC connection. Request denied.")]
    InUse,
    #[error("cannot open the guest's {what}")]
    Open { what: &'static str, source: io::Error },
    #[error("the instance has no address yet")]
    NoAddress,
    #[error("the instance has no interface on the pod network, and no other is reached from its node")]
    NoPodNetwork,
    #[error("cannot reach the instance's pod")]
    Pod(#[source] io::Error),
    #[error("cannot reach port {port}/{} of the guest at {address}", protocol.name())]
    Dial { address: String, port: u16, protocol: Protocol, source: io::Error },
}

pub(crate) async fn open(
    context: &Context,
    vmi: &VirtualMachineInstance,
    kind: StreamKind,
) -> Result<Stream, StreamError> {
    match kind {
        StreamKind::Serial { replay } => {
            let uid = vmi.metadata.uid.as_deref().unwrap_or_default();
            let failed = |source| StreamError::Open { what: "serial console", source };
            // Which pod it is, and whether one is here at all, matters for the first connection only.
            let mut missing = None;
            let connect = async {
                device(context, vmi, "virt-serial0", "serial console").await.map_err(|error| {
                    missing = Some(error);
                    io::ErrorKind::NotConnected.into()
                })
            };
            let opened = context.consoles.open(uid, replay, connect).await;
            let stream = opened.map_err(|source| missing.unwrap_or_else(|| failed(source)))?;
            Ok(Box::new(stream))
        }
        StreamKind::Vnc { preserve } => {
            let uid = vmi.metadata.uid.as_deref().unwrap_or_default();
            let in_use = context.screens.enter(uid, preserve).ok_or(StreamError::InUse)?;
            let screen = device(context, vmi, "virt-vnc", "screen").await?;
            Ok(Box::new(Session::counted(screen, in_use)))
        }
        StreamKind::PortForward { port, protocol } => forward::dial(context, vmi, port, protocol).await,
    }
}

async fn device(
    context: &Context,
    vmi: &VirtualMachineInstance,
    file: &str,
    what: &'static str,
) -> Result<UnixStream, StreamError> {
    let uid = vmi.metadata.uid.as_deref().unwrap_or_default();
    let mut last = StreamError::NotHere;
    for pod in pods::here(context, vmi) {
        match connect(&*context.ground, &context.config.kubelet_root.join("pods"), &pod, uid, file).await {
            Ok(stream) => return Ok(stream),
            Err(source) => last = StreamError::Open { what, source },
        }
    }
    Err(last)
}

/// Connects to a socket that the hypervisor of a pod made.
async fn connect(ground: &dyn Ground, pods: &Path, pod: &str, instance: &str, file: &str) -> io::Result<UnixStream> {
    let stream = connect_in_pod(pods, pod, "private", Some(instance), file).await?;
    match ground.check(stream.as_fd(), pod) {
        Ok(()) => Ok(stream),
        // libvirt's daemon opened the socket and gave it to the hypervisor, and may have been started anew since. What stands
        // for the socket then is its place: in the pod's own volume, where no link led to it.
        Err(ProcessError::Ended) => Ok(stream),
        Err(error) => Err(io::Error::other(error)),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::ground::Kubelet;

    const POD: &str = "4b5c1e0a-7a31-4a0e-8a0f-0c6f3b1f0001";

    #[tokio::test]
    async fn a_console_that_is_a_link_does_not_lead_to_a_socket_of_the_host() {
        let home = tempfile::tempdir().unwrap();
        let host = home.path().join("docker.sock");
        let listener = tokio::net::UnixListener::bind(&host).unwrap();
        let private = home.path().join("pods").join(POD).join("volumes/kubernetes.io~empty-dir/private");
        std::fs::create_dir_all(private.join("vmi")).unwrap();
        symlink(&host, private.join("vmi/virt-serial0")).unwrap();
        // The directory may be the link as well, with the socket's own name in it.
        symlink(home.path(), private.join("linked")).unwrap();
        let pods = home.path().join("pods");
        let ground = Kubelet { root: home.path().to_owned() };
        for (instance, file) in [("vmi", "virt-serial0"), ("linked", "docker.sock"), ("..", "docker.sock")] {
            let answer = connect(&ground, &pods, POD, instance, file).await;
            assert!(answer.is_err(), "{instance}/{file} led to the host");
        }
        // A hard link to it is no link: then it counts who listens.
        std::fs::hard_link(&host, private.join("vmi/virt-vnc")).unwrap();
        let error = connect(&ground, &pods, POD, "vmi", "virt-vnc").await.unwrap_err();
        assert!(error.to_string().contains("not that of pod"), "{error}");
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut heard = vec![];
        tokio::io::AsyncReadExt::read_to_end(&mut stream, &mut heard).await.unwrap();
        assert!(heard.is_empty(), "the host's socket heard {heard:?}");
    }

    #[tokio::test]
    async fn a_console_that_is_no_socket_is_refused() {
        let home = tempfile::tempdir().unwrap();
        let private = home.path().join(POD).join("volumes/kubernetes.io~empty-dir/private/vmi");
        std::fs::create_dir_all(&private).unwrap();
        std::fs::write(private.join("virt-serial0"), "").unwrap();
        let ground = Kubelet { root: home.path().to_owned() };
        assert!(connect(&ground, home.path(), POD, "vmi", "virt-serial0").await.is_err());
    }
}
