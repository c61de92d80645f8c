//! Byte streams into a guest: its serial console, its screen, its ports.

use std::{io, path::PathBuf};

use ferrovirt_api::v1::VirtualMachineInstance;
use ferrovirt_machine::node_call::Protocol;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::UnixStream,
};

use crate::{Context, forward, launcher::connect_below, pods};

pub trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Duplex for T {}
pub type Stream = Box<dyn Duplex>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamKind {
    /// With `replay` it begins with what the guest wrote last.
    Serial {
        replay: bool,
    },
    Vnc,
    PortForward {
        port: u16,
        protocol: Protocol,
    },
}

#[derive(Debug, thiserror::Error)]
pub enum StreamError {
    #[error("the instance does not run on this node")]
    NotHere,
    #[error("cannot open the guest's {what}")]
    Open { what: &'static str, source: io::Error },
    #[error("the instance has no address yet")]
    NoAddress,
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
        StreamKind::Vnc => Ok(Box::new(device(context, vmi, "virt-vnc", "screen").await?)),
        StreamKind::PortForward { port, protocol } => forward::dial(vmi, port, protocol).await,
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
        let directory: PathBuf =
            pods::directory(context, &pod).join("volumes/kubernetes.io~empty-dir/private").join(uid);
        match connect_below(&directory, file).await {
            Ok(stream) => return Ok(stream),
            Err(source) => last = StreamError::Open { what, source },
        }
    }
    Err(last)
}
