//! The pods that really are on a simulated node.

use std::{
    collections::HashMap,
    io,
    os::fd::BorrowedFd,
    sync::{Arc, Mutex, PoisonError},
};

use ferrovirt_node::{Ground, Launcher, LauncherError, ProcessError};
use futures::future::BoxFuture;

use crate::launcher::SimLauncher;

/// Pods by uid. Clones are the same node.
#[derive(Clone, Default)]
pub struct Pods(Arc<Mutex<HashMap<String, SimLauncher>>>);

impl Pods {
    pub fn add(&self, uid: &str, launcher: SimLauncher) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(uid.into(), launcher);
    }

    /// What a kubelet does after a pod's containers are gone.
    pub fn remove(&self, uid: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(uid);
    }

    pub fn get(&self, uid: &str) -> Option<SimLauncher> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(uid).cloned()
    }

    pub fn all(&self) -> Vec<(String, SimLauncher)> {
        let pods = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        pods.iter().map(|(uid, launcher)| (uid.clone(), launcher.clone())).collect()
    }
}

impl Ground for Pods {
    fn has_pod(&self, uid: &str) -> bool {
        self.get(uid).is_some()
    }

    fn connect<'a>(&'a self, uid: &'a str, _user: u32) -> BoxFuture<'a, Result<Launcher, LauncherError>> {
        Box::pin(async move {
            let absent = || LauncherError::Connect { path: uid.into(), source: io::ErrorKind::NotFound.into() };
            let launcher = self.get(uid).ok_or_else(absent)?;
            if launcher.has_ended() {
                return Err(absent());
            }
            Launcher::inside(launcher.dial(), launcher.ended()).await
        })
    }

    /// Simulated guests are tasks of this process, which is in nobody's pod.
    fn check(&self, _stream: BorrowedFd<'_>, _uid: &str) -> Result<(), ProcessError> {
        Ok(())
    }
}
