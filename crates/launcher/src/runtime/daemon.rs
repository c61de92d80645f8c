//! The libvirt daemon as a child process.

use std::io;
use std::path::Path;
use std::time::Duration;

use ferrovirt_libvirt::Connection;
use tokio::time::Instant;

use super::{Dirs, LibvirtRuntime};
use crate::process::{Child, Children};

/// How long a daemon may take until it listens. It needs about 30 ms; the rest is for a machine under load.
const START_TIMEOUT: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(3);

#[derive(Debug, thiserror::Error)]
pub enum DaemonError {
    #[error("cannot start the libvirt daemon")]
    Spawn(#[source] io::Error),
    #[error("the libvirt daemon ended at once: {0}")]
    Ended(String),
    #[error("the libvirt daemon did not listen within {} s", START_TIMEOUT.as_secs())]
    Timeout,
    #[error("cannot connect to the libvirt daemon")]
    Connect(#[source] ferrovirt_libvirt::Error),
}

/// A running daemon; it is killed with this value, the hypervisor is not.
pub struct Daemon {
    child: Child,
    _log: Option<Child>,
}

impl Daemon {
    /// Starts the daemon and connects. Configuration was written by `setup`.
    pub async fn start(
        children: &Children,
        runtime: &dyn LibvirtRuntime,
        dirs: &Dirs,
    ) -> Result<(Self, Connection), DaemonError> {
        let log = match runtime.log_daemon(dirs) {
            Some(mut command) => Some(children.spawn(&mut command).map_err(DaemonError::Spawn)?),
            None => None,
        };
        let mut daemon = runtime.daemon(dirs).map_err(DaemonError::Spawn)?;
        // The socket of a daemon that crashed would make us connect to nobody.
        let _ = std::fs::remove_file(&daemon.socket);
        let child = children.spawn(&mut daemon.command).map_err(DaemonError::Spawn)?;
        let mut daemon_process = Self { child, _log: log };
        let (uri, _) = runtime.uri_and_user(dirs);
        let connection = daemon_process.connect(&daemon.socket, &uri).await?;
        Ok((daemon_process, connection))
    }

    /// Waits until the daemon ends.
    pub async fn ended(&mut self) -> String {
        self.child.wait().await
    }

    pub fn pid(&self) -> i32 {
        self.child.pid()
    }

    /// Connects as soon as the daemon lets us.
    async fn connect(&mut self, socket: &Path, uri: &str) -> Result<Connection, DaemonError> {
        let deadline = Instant::now() + START_TIMEOUT;
        loop {
            // The file appears a moment before the daemon listens, so the first attempt may fail.
            let failure = if socket.exists() {
                match Connection::open(uri).await {
                    Ok(connection) => return Ok(connection),
                    Err(error) => Some(error),
                }
            } else {
                None
            };
            if Instant::now() > deadline {
                return Err(failure.map_or(DaemonError::Timeout, DaemonError::Connect));
            }
            tokio::select! {
                status = self.child.wait() => return Err(DaemonError::Ended(status)),
                () = tokio::time::sleep(POLL) => {}
            }
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.child.kill();
    }
}
