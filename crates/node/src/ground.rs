//! What the agent stands on outside the API: the pods that really are on its node, and the way to their launchers.

use std::{os::fd::BorrowedFd, path::PathBuf};

use futures::future::BoxFuture;

use crate::{
    launcher::{Launcher, LauncherError},
    process::{Peer, ProcessError},
};

/// The pods of one node. The real one is [`Kubelet`]; a simulated node brings its own.
pub trait Ground: Send + Sync {
    /// True while something of the pod may be left on the node.
    fn has_pod(&self, uid: &str) -> bool;
    /// Connects to the launcher in a pod whose container runs as `user`.
    fn connect<'a>(&'a self, uid: &'a str, user: u32) -> BoxFuture<'a, Result<Launcher, LauncherError>>;
    /// Makes sure that whoever listens at the other end of a connection belongs to a pod.
    fn check(&self, stream: BorrowedFd<'_>, uid: &str) -> Result<(), ProcessError> {
        Peer::of(stream, uid).map(drop)
    }
}

/// Pods as a kubelet keeps them: in directories, with a socket in one of their volumes.
pub(crate) struct Kubelet {
    pub root: PathBuf,
}

impl Ground for Kubelet {
    /// A kubelet removes this directory only after the pod's containers are gone.
    fn has_pod(&self, uid: &str) -> bool {
        self.root.join("pods").join(uid).exists()
    }

    fn connect<'a>(&'a self, uid: &'a str, user: u32) -> BoxFuture<'a, Result<Launcher, LauncherError>> {
        let pods = self.root.join("pods");
        Box::pin(async move { Launcher::connect(&pods, uid, user).await })
    }
}
