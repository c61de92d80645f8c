//! Byte streams into a guest: its serial console and its screen.

use std::{io, path::PathBuf};

use ferrovirt_api::v1::VirtualMachineInstance;
use tokio::net::UnixStream;

use crate::{Context, launcher::connect_below, pods};

pub type Stream = UnixStream;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamKind {
    Serial,
    Vnc,
}

#[derive(Debug, thiserror::Error)]
pub enum StreamError {
    #[error("the instance does not run on this node")]
    NotHere,
    #[error("cannot open the guest's {what}")]
    Open { what: &'static str, source: io::Error },
}

pub(crate) async fn open(
    context: &Context,
    vmi: &VirtualMachineInstance,
    kind: StreamKind,
) -> Result<Stream, StreamError> {
    let (file, what) = match kind {
        StreamKind::Serial => ("virt-serial0", "serial console"),
        StreamKind::Vnc => ("virt-vnc", "screen"),
    };
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
